"""A baton: its waiter resumes within the call that passes it on, unless a task runs."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

from perdure.runtime.worker.baton import Baton

NAME: ContextVar[str] = ContextVar("name", default="")


async def outside(baton: Baton[str], seen: list[str], answer: str) -> None:
    """Pass the baton on from a callback of the loop, as a connection does."""
    passed = asyncio.get_running_loop().create_future()

    def call() -> None:
        baton.pass_on(answer)
        seen.append("passed")
        passed.set_result(None)

    asyncio.get_running_loop().call_soon(call)
    await passed


async def passing(baton: Baton[str], seen: list[str], name: str = "") -> None:
    NAME.set(name)
    seen.append(await baton + NAME.get())
    await asyncio.sleep(0)
    seen.append("later")


async def test_waiter_resumes_inside_the_call_in_its_own_context() -> None:
    baton, seen = Baton[str](), list[str]()
    task = asyncio.create_task(passing(baton, seen, "!"))
    await asyncio.sleep(0)
    await outside(baton, seen, "go")
    await task
    assert seen == ["go!", "passed", "later"]
    assert NAME.get() == ""


async def test_a_task_that_passes_it_on_is_not_interrupted() -> None:
    baton, seen = Baton[str](), list[str]()
    task = asyncio.create_task(passing(baton, seen))
    await asyncio.sleep(0)
    baton.pass_on("go")
    seen.append("passed")
    await task
    assert seen == ["passed", "go", "later"]


async def test_result_without_waiter_is_stored() -> None:
    baton, seen = Baton[str](), list[str]()
    await outside(baton, seen, "go")
    await passing(baton, seen)
    assert seen == ["passed", "go", "later"]


async def test_further_waiters_are_woken_through_the_loop() -> None:
    baton, seen = Baton[str](), list[str]()
    tasks = [asyncio.create_task(passing(baton, seen)) for _ in range(2)]
    await asyncio.sleep(0)
    await outside(baton, seen, "go")
    await asyncio.gather(*tasks)
    assert seen[:3] == ["go", "passed", "go"]


async def test_cancelled_waiter_is_not_resumed() -> None:
    baton, seen = Baton[str](), list[str]()
    task = asyncio.create_task(passing(baton, seen))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert baton.cancelled()
    assert seen == []


async def test_error_of_a_resumed_waiter_stays_in_its_task() -> None:
    baton = Baton[str]()

    async def fails() -> None:
        await baton
        raise ValueError("mine")

    task, seen = asyncio.create_task(fails()), list[str]()
    await asyncio.sleep(0)
    await outside(baton, seen, "go")
    assert isinstance(task.exception(), ValueError)
    assert seen == ["passed"]
