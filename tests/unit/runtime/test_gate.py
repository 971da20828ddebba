"""A gate: whoever waits there goes on within the call that opens it, unless a task runs."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

from perdure.runtime.worker.gate import Gate

NAME: ContextVar[str] = ContextVar("name", default="")


async def outside(gate: Gate[str], seen: list[str], answer: str) -> None:
    """Open it from a callback of the loop, as whoever hears from a server does."""
    opened = asyncio.get_running_loop().create_future()

    def call() -> None:
        gate.open(answer)
        seen.append("opened")
        opened.set_result(None)

    asyncio.get_running_loop().call_soon(call)
    await opened


async def passing(gate: Gate[str], seen: list[str], name: str = "") -> None:
    NAME.set(name)
    seen.append(await gate + NAME.get())
    await asyncio.sleep(0)
    seen.append("later")


async def test_whoever_waits_goes_on_before_the_gate_is_left_and_as_itself() -> None:
    gate, seen = Gate[str](), list[str]()
    task = asyncio.create_task(passing(gate, seen, "!"))
    await asyncio.sleep(0)
    await outside(gate, seen, "go")
    await task
    assert seen == ["go!", "opened", "later"]
    assert NAME.get() == ""


async def test_a_task_that_opens_it_is_not_interrupted() -> None:
    gate, seen = Gate[str](), list[str]()
    task = asyncio.create_task(passing(gate, seen))
    await asyncio.sleep(0)
    gate.open("go")
    seen.append("opened")
    await task
    assert seen == ["opened", "go", "later"]


async def test_nobody_need_wait() -> None:
    gate, seen = Gate[str](), list[str]()
    await outside(gate, seen, "go")
    await passing(gate, seen)
    assert seen == ["opened", "go", "later"]


async def test_the_others_who_wait_are_woken_as_usual() -> None:
    gate, seen = Gate[str](), list[str]()
    tasks = [asyncio.create_task(passing(gate, seen)) for _ in range(2)]
    await asyncio.sleep(0)
    await outside(gate, seen, "go")
    await asyncio.gather(*tasks)
    assert seen[:3] == ["go", "opened", "go"]


async def test_whoever_went_away_is_not_called_back() -> None:
    gate, seen = Gate[str](), list[str]()
    task = asyncio.create_task(passing(gate, seen))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert gate.cancelled()
    assert seen == []


async def test_what_whoever_goes_on_raises_is_its_own_business() -> None:
    gate = Gate[str]()

    async def fails() -> None:
        await gate
        raise ValueError("mine")

    task, seen = asyncio.create_task(fails()), list[str]()
    await asyncio.sleep(0)
    await outside(gate, seen, "go")
    assert isinstance(task.exception(), ValueError)
    assert seen == ["opened"]
