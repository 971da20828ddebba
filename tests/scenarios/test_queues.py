"""Queues, priorities and turns, as a worker keeps them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from perdure import Agent, Runtime, ToolContext, Work, tool
from perdure.errors import Code, Error
from perdure.models.scripted import ScriptedModel, call, say
from perdure.tools.toolbox import ToolSource
from tests.scenarios.conftest import NewStore, until

MODEL = ScriptedModel(call("visit"), say("done"))


class Door:
    """Who went in, in order; nobody comes out before it is opened."""

    def __init__(self) -> None:
        self.visits: list[str] = []
        self.inside: set[str] = set()
        self.most = 0
        self.opened = asyncio.Event()

    def tool(self) -> ToolSource:
        @tool(effect="idempotent")
        async def visit(ctx: ToolContext) -> str:
            """Go in."""
            self.visits.append(ctx.session_id)
            self.inside.add(ctx.session_id)
            self.most = max(self.most, len(self.inside))
            await self.opened.wait()
            self.inside.discard(ctx.session_id)
            return "was in"

        return visit


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


def agents(door: Door, **places: tuple[str, int]) -> list[Agent]:
    found = places or {"a": ("default", 0)}
    return [
        Agent(name, model=MODEL, tools=[door.tool()], queue=queue, priority=priority)
        for name, (queue, priority) in found.items()
    ]


async def test_a_worker_takes_only_what_is_in_its_queues(new_store: NewStore, stack: AsyncExitStack) -> None:
    door = Door()
    door.opened.set()
    crew = agents(door, clerk=("desk", 0), writer=("bulk", 0))
    desk = await stack.enter_async_context(Runtime(new_store(), agents=crew, worker=Work(queues=["desk"])))
    late = await (await desk.session("late", agent="writer")).send("hi")
    assert (await (await desk.session("now", agent="clerk")).send("hi")).duplicate is False
    await until(lambda: _is_idle(desk, "now"))
    moved = await desk.session("moved", agent="writer", queue="desk")
    assert await moved.ask("hi", timeout=20)
    assert door.visits == ["now", "moved"]
    why = await desk.existing("late").why()
    assert (why.status, why.queued) == ("queued", 1)
    assert "no worker serves queue 'bulk'" in why.summary
    await stack.enter_async_context(Runtime(new_store(), agents=crew, worker=Work(queues=["bulk", "other"])))
    assert (await late.result(timeout=20)).status == "finished"


async def _is_idle(rt: Runtime, name: str) -> bool:
    return (await rt.existing(name).why()).status == "idle"


async def test_the_most_urgent_is_first_and_no_more_run_than_there_are_seats(
    new_store: NewStore, stack: AsyncExitStack
) -> None:
    door = Door()
    crew = agents(door, clerk=("default", 0), boss=("default", 5))
    sender = await stack.enter_async_context(Runtime(new_store(), agents=crew, worker=False))
    for name, agent in (("c1", "clerk"), ("c2", "clerk"), ("b1", "boss")):
        await (await sender.session(name, agent=agent)).send("hi")
    urgent = await sender.session("u1", agent="clerk", priority=9)
    await urgent.send("hi")
    rt = await stack.enter_async_context(Runtime(new_store(), agents=crew, worker=Work(concurrency=1)))
    await until(lambda: _visited(door, 1))
    door.opened.set()
    for name in ("c1", "c2", "b1", "u1"):
        await until(lambda name=name: _is_idle(rt, name))
    assert door.visits == ["u1", "b1", "c1", "c2"]
    assert door.most == 1


async def _visited(door: Door, count: int) -> bool:
    return len(door.visits) >= count


async def test_a_session_with_much_to_say_lets_others_go_first(new_store: NewStore, stack: AsyncExitStack) -> None:
    door = Door()
    crew = agents(door)
    sender = await stack.enter_async_context(Runtime(new_store(), agents=crew, worker=False))
    talker = await sender.session("talker", agent="a")
    for i in range(3):
        await talker.send(f"and {i}")
    rt = await stack.enter_async_context(Runtime(new_store(), agents=crew, worker=Work(concurrency=1)))
    await until(lambda: _visited(door, 1))
    for name in ("x", "y"):
        await (await sender.session(name, agent="a")).send("hi")
    await until(lambda: _crowded(rt))
    door.opened.set()
    await until(lambda: _visited(door, 5))
    assert door.visits == ["talker", "x", "y", "talker", "talker"]


async def _crowded(rt: Runtime) -> bool:
    assert rt.worker is not None
    return rt.worker.crowded


async def test_tenants_take_turns(new_store: NewStore, stack: AsyncExitStack) -> None:
    door = Door()
    crew = agents(door)
    for tenant, names in (("crowd", ["a0", "a1", "a2", "a3"]), ("solo", ["b0"])):
        async with Runtime(new_store(), agents=crew, worker=False, tenant=tenant) as sender:
            for name in names:
                await (await sender.session(name, agent="a")).send("hi")
    await stack.enter_async_context(Runtime(new_store(), agents=crew, worker=Work(concurrency=1, all_tenants=True)))
    await until(lambda: _visited(door, 1))
    door.opened.set()
    await until(lambda: _visited(door, 5))
    assert door.visits == ["a0", "b0", "a1", "a2", "a3"]


async def test_a_queue_has_no_more_sessions_under_way_than_its_number(
    new_store: NewStore, stack: AsyncExitStack
) -> None:
    door = Door()
    crew = agents(door, clerk=("desk", 0), writer=("bulk", 0))
    sender = await stack.enter_async_context(Runtime(new_store(), agents=crew, worker=False))
    for i in range(5):
        await (await sender.session(f"w{i}", agent="writer")).send("hi")
    work = Work(limits={"queue:bulk": 2}, concurrency=3)
    rts = [await stack.enter_async_context(Runtime(new_store(), agents=crew, worker=work)) for _ in range(2)]
    await until(lambda: _visited(door, 2))
    await (await sender.session("c", agent="clerk")).send("hi")
    await until(lambda: _visited(door, 3))
    assert sorted(door.inside) == ["c", "w0", "w1"], "a full queue keeps nobody else from working"
    why = await rts[0].existing("w4").why()
    assert why.status == "queued"
    assert "2 are driven now: session w0" in why.summary
    door.opened.set()
    for i in range(5):
        await until(lambda i=i: _is_idle(rts[0], f"w{i}"))
    assert sorted(door.visits) == ["c", "w0", "w1", "w2", "w3", "w4"]
    await until(lambda: _no_permits(rts[0]))


async def _no_permits(rt: Runtime) -> bool:
    return not await rt.store.permits()


async def test_a_session_that_exists_is_moved_on_purpose_only(new_store: NewStore, stack: AsyncExitStack) -> None:
    rt = await stack.enter_async_context(Runtime(new_store(), agents=agents(Door()), worker=False))
    session = await rt.session("s", agent="a", queue="slow", priority=1)
    await session.send("hi")
    assert await rt.session("s", queue="slow", priority=1)
    with pytest.raises(Error) as caught:
        await rt.session("s", queue="fast")
    assert caught.value.code is Code.INVALID_ARGUMENT
    await session.place(queue="fast")
    info = await rt.store.stream(session.stream)
    assert info is not None
    assert (info.queue, info.priority) == ("fast", None)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Work(queues="bulk"),
        lambda: Work(queues=[]),
        lambda: Work(queues=[" "]),
        lambda: Work(concurrency=0),
        lambda: Work(limits={"charge": 2}),
        lambda: Work(limits={"tool:": 2}),
        lambda: Work(limits={"tool:a*b": 2}),
        lambda: Work(limits={"tool:charge": 0}),
        lambda: Work(limits={"queue:*": 2}),
        lambda: Agent("a", queue=""),
        lambda: Agent("a", priority=5000),
    ],
)
def test_what_cannot_be_meant_is_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(Error) as caught:
        wrong()
    assert caught.value.code in (Code.INVALID_ARGUMENT, Code.INVALID_ID)
