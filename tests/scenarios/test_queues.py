"""Queues, priorities and turns, as a worker keeps them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest

from perdure import Agent, Runtime, RuntimeOptions, Session, ToolContext, WorkerOptions, tool
from perdure.errors import Code, Error
from perdure.ids import StreamId, WorkerId
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.internals import core_of, ref_of
from perdure.runtime.worker import worker
from perdure.store.shapes import Loaded, ReadyStream
from perdure.tools.toolbox import ToolSource
from tests.scenarios.conftest import NewStore, until

MODEL = ScriptedModel(call("visit"), say("done"))


class Door:
    """A tool that records its calls in order and blocks them until it is opened."""

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
    app = await stack.enter_async_context(Runtime(new_store(), agents=crew, worker=WorkerOptions(queues=["desk"])))
    late = await (await app.session("late", agent="writer")).send("hi")
    assert (await (await app.session("now", agent="clerk")).send("hi")).is_duplicate is False
    await until(lambda: _is_idle(app, "now"))
    moved = await app.session("moved", agent="writer", queue="desk")
    assert await moved.ask("hi", timeout=20)
    assert door.visits == ["now", "moved"]
    why = await app.get_session("late").why()
    assert (why.status, why.queued) == ("queued", 1)
    assert "no worker serves queue 'bulk'" in why.summary
    await stack.enter_async_context(Runtime(new_store(), agents=crew, worker=WorkerOptions(queues=["bulk", "other"])))
    assert (await late.result(timeout=20)).status == "finished"


async def test_idle_session_moves_to_a_worker_of_its_queue(new_store: NewStore, stack: AsyncExitStack) -> None:
    door = Door()
    door.opened.set()
    app = await stack.enter_async_context(
        Runtime(new_store(), agents=agents(door), worker=WorkerOptions(queues=["default"]))
    )
    vip = await stack.enter_async_context(
        Runtime(new_store(), agents=agents(door), worker=WorkerOptions(queues=["vip"]))
    )
    session = await app.session("s", agent="a")
    assert await session.ask("hi", timeout=20)
    await session.move(queue="vip")
    assert (await (await vip.get_session("s").send("and now?")).result(timeout=20)).status == "finished"
    info = await core_of(vip).store.stream(ref_of(session).stream)
    assert info is not None
    assert info.owner == vip.worker_id
    await session.move(queue="default")
    assert (await (await session.send("and back?")).result(timeout=20)).status == "finished"
    assert len(door.visits) == 3


async def test_idle_session_of_a_full_worker_moves_to_another(new_store: NewStore, stack: AsyncExitStack) -> None:
    door = Door()
    crew = [*agents(door), Agent("quick", model=ScriptedModel(say("at once")))]
    full = await stack.enter_async_context(Runtime(new_store(), agents=crew, worker=WorkerOptions(concurrency=1)))
    assert await (await full.session("quick", agent="quick")).ask("hi", timeout=20)
    long = await (await full.session("long", agent="a")).send("go in")
    await until(lambda: _went_in(door, "long"))
    other = await stack.enter_async_context(Runtime(new_store(), agents=crew))
    assert await other.get_session("quick").ask("again", timeout=20)
    assert door.inside == {"long"}, "no turn had to end for that"
    door.opened.set()
    assert (await long.result(timeout=20)).status == "finished"
    assert await (await full.session("quick")).ask("and here?", timeout=20)


async def _went_in(door: Door, name: str) -> bool:
    return name in door.inside


async def _is_idle(rt: Runtime, name: str) -> bool:
    return (await rt.get_session(name).why()).status == "idle"


async def test_sessions_run_by_priority_within_the_slot_limit(new_store: NewStore, stack: AsyncExitStack) -> None:
    door = Door()
    crew = agents(door, clerk=("default", 0), boss=("default", 5))
    sender = await stack.enter_async_context(Runtime(new_store(), agents=crew, worker=False))
    for name, agent in (("c1", "clerk"), ("c2", "clerk"), ("b1", "boss")):
        await (await sender.session(name, agent=agent)).send("hi")
    urgent = await sender.session("u1", agent="clerk", priority=9)
    await urgent.send("hi")
    rt = await stack.enter_async_context(Runtime(new_store(), agents=crew, worker=WorkerOptions(concurrency=1)))
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
    rt = await stack.enter_async_context(Runtime(new_store(), agents=crew, worker=WorkerOptions(concurrency=1)))
    await until(lambda: _visited(door, 1))
    for name in ("x", "y"):
        await (await sender.session(name, agent="a")).send("hi")
    await until(lambda: _crowded(rt))
    door.opened.set()
    await until(lambda: _visited(door, 5))
    assert door.visits == ["talker", "x", "y", "talker", "talker"]


async def _crowded(rt: Runtime) -> bool:
    worker = core_of(rt).worker
    assert worker is not None
    return worker.crowded


async def test_tenants_take_turns(new_store: NewStore, stack: AsyncExitStack) -> None:
    door = Door()
    crew = agents(door)
    for tenant, names in (("crowd", ["a0", "a1", "a2", "a3"]), ("solo", ["b0"])):
        async with Runtime(new_store(), agents=crew, worker=False, tenant=tenant) as sender:
            for name in names:
                await (await sender.session(name, agent="a")).send("hi")
    await stack.enter_async_context(
        Runtime(new_store(), agents=crew, worker=WorkerOptions(concurrency=1, all_tenants=True))
    )
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
    work = WorkerOptions(limits={"queue:bulk": 2}, concurrency=3)
    rts = [await stack.enter_async_context(Runtime(new_store(), agents=crew, worker=work)) for _ in range(2)]
    await until(lambda: _visited(door, 2))
    await (await sender.session("c", agent="clerk")).send("hi")
    await until(lambda: _visited(door, 3))
    assert sorted(door.inside) == ["c", "w0", "w1"], "a full queue blocks no other queue"
    why = await rts[0].get_session("w4").why()
    assert why.status == "queued"
    assert "2 are driven now: session w0" in why.summary
    door.opened.set()
    for i in range(5):
        await until(lambda i=i: _is_idle(rts[0], f"w{i}"))
    assert sorted(door.visits) == ["c", "w0", "w1", "w2", "w3", "w4"]
    await until(lambda: _no_permits(rts[0]))


async def _no_permits(rt: Runtime) -> bool:
    return not await core_of(rt).store.permits()


async def test_busy_session_yields_to_others_of_its_full_queue(new_store: NewStore, stack: AsyncExitStack) -> None:
    door = Door()
    (talkers,) = agents(door, talkers=("bulk", 0))
    (quiet,) = agents(door, quiet=("bulk", 0))
    sender = await stack.enter_async_context(Runtime(new_store(), agents=[talkers, quiet], worker=False))
    talker = await sender.session("talker", agent="talkers")
    for i in range(3):
        await talker.send(f"and {i}")
    work = WorkerOptions(limits={"queue:bulk": 1})
    await stack.enter_async_context(Runtime(new_store(), agents=[talkers], worker=work))
    await until(lambda: _visited(door, 1))
    other = await stack.enter_async_context(Runtime(new_store(), agents=[quiet], worker=work))  # of another worker
    await (await sender.session("x", agent="quiet")).send("hi")
    await until(lambda: _in_line(other, "x"))
    door.opened.set()
    await until(lambda: _visited(door, 4))
    assert door.visits == ["talker", "x", "talker", "talker"]
    assert door.most == 1
    await until(lambda: _no_permits(other))


async def _in_line(rt: Runtime, name: str) -> bool:
    return any(f":{name}#" in permit.holder and not permit.granted for permit in await core_of(rt).store.permits())


async def test_the_most_urgent_of_a_full_queue_is_next(new_store: NewStore, stack: AsyncExitStack) -> None:
    door = Door()
    crew = agents(door, clerk=("bulk", 0), boss=("bulk", 5))
    sender = await stack.enter_async_context(Runtime(new_store(), agents=crew, worker=False))
    rt = await stack.enter_async_context(
        Runtime(new_store(), agents=crew, worker=WorkerOptions(limits={"queue:bulk": 1}))
    )
    await (await sender.session("c1", agent="clerk")).send("hi")
    await until(lambda: _visited(door, 1))
    for name, agent in (("c2", "clerk"), ("b1", "boss")):
        await (await sender.session(name, agent=agent)).send("hi")
        await until(lambda name=name: _in_line(rt, name))
    door.opened.set()
    await until(lambda: _visited(door, 3))
    assert door.visits == ["c1", "b1", "c2"]


async def test_drained_worker_withdraws_its_slot_requests(new_store: NewStore, stack: AsyncExitStack) -> None:
    door = Door()
    crew = agents(door, writer=("bulk", 0))
    sender = await stack.enter_async_context(Runtime(new_store(), agents=crew, worker=False))
    work = WorkerOptions(limits={"queue:bulk": 1})
    rt = await stack.enter_async_context(Runtime(new_store(), agents=crew, worker=work))
    await (await sender.session("w1", agent="writer")).send("hi")
    await until(lambda: _visited(door, 1))
    await (await sender.session("w2", agent="writer")).send("hi")
    await until(lambda: _in_line(rt, "w2"))
    await rt.drain(0)
    await until(lambda: _no_permits(rt))


async def test_slots_are_given_back_when_the_claim_fails(
    new_store: NewStore, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = Door()
    door.opened.set()
    crew = agents(door, writer=("bulk", 0))
    work = WorkerOptions(limits={"queue:bulk": 1})
    store = new_store()
    rt = await stack.enter_async_context(Runtime(store, agents=crew, worker=work))
    failed = asyncio.Event()

    async def away(*_: object, **__: object) -> tuple[ReadyStream, ...]:
        failed.set()
        raise Error(Code.STORE_UNAVAILABLE, "the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(store, "claim_ready", away)
        session = await rt.session("w", agent="writer")
        sent = await session.send("hi")
        await failed.wait()
        await session.move(queue="other")  # no stream will request that slot again
        await until(lambda: _no_permits(rt))
    assert (await sent.result(timeout=20)).status == "finished"
    assert await (await rt.session("next", agent="writer")).ask("hi", timeout=20)


async def test_slots_are_released_after_a_lost_exchange_reply(
    new_store: NewStore, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew = agents(Door(), writer=("bulk", 0))
    store = new_store()
    rt = await stack.enter_async_context(Runtime(store, agents=crew, worker=WorkerOptions(limits={"queue:bulk": 1})))
    exchange, lost = store.exchange, asyncio.Event()

    async def breaks_off(worker: WorkerId, **what: Any) -> frozenset[str]:
        await exchange(worker, **what)
        if what.get("asks"):
            lost.set()
            raise Error(Code.STORE_UNAVAILABLE, "no answer came")
        return frozenset()

    with monkeypatch.context() as patch:
        patch.setattr(store, "exchange", breaks_off)
        session = await rt.session("w", agent="writer")
        await session.send("hi")
        await lost.wait()
        await session.pause()
    await until(lambda: _no_permits(rt))


async def test_a_session_that_cannot_be_served_keeps_no_slot(
    new_store: NewStore, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = Door()
    door.opened.set()
    crew = agents(door, writer=("bulk", 0))
    store = new_store()
    rt = await stack.enter_async_context(Runtime(store, agents=crew, worker=WorkerOptions(limits={"queue:bulk": 1})))
    load, tries = store.load, list[str]()

    async def damaged(stream: StreamId, **how: Any) -> Loaded:
        if stream.endswith(":bad") and not repaired.is_set():
            tries.append(stream)
            raise Error(Code.STORE_CORRUPT, "a record cannot be read")
        return await load(stream, **how)

    repaired = asyncio.Event()
    monkeypatch.setattr(store, "load", damaged)
    sent = await (await rt.session("bad", agent="writer")).send("hi")
    await until(lambda: _tried(tries, 3))
    assert await (await rt.session("good", agent="writer")).ask("hi", timeout=20)
    repaired.set()
    assert (await sent.result(timeout=30)).status == "finished"
    await until(lambda: _no_permits(rt))


async def test_where_very_many_wait_the_order_is_found_once_for_several(
    new_store: NewStore, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "MANY", 3)
    monkeypatch.setattr(worker, "LINE_S", 3600.0)
    monkeypatch.setattr(worker, "LOOK_SHARE", 1e-9)
    door, looks, store = Door(), list[int](), new_store()
    door.opened.set()
    sender = await stack.enter_async_context(Runtime(new_store(), agents=agents(door), worker=False))
    names = [f"s{k:02}" for k in range(12)]
    sent = [await (await sender.session(name, agent="a")).send("go in") for name in names]
    claimable = store.claimable

    async def noting(*given: Any, **how: Any) -> tuple[StreamId, ...]:
        found = await claimable(*given, **how)
        looks.append(len(found))
        return found

    monkeypatch.setattr(store, "claimable", noting)
    await stack.enter_async_context(Runtime(store, agents=agents(door), worker=WorkerOptions(concurrency=1)))
    for one in sent:
        assert (await one.result(timeout=20)).status == "finished"
    assert door.visits == names
    assert 1 <= sum(found > 3 for found in looks) <= 3, "once for most of them, and not for each"


async def test_workers_at_one_long_queue_serve_each_session_once(
    new_store: NewStore, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "MANY", 3)
    monkeypatch.setattr(worker, "LINE_S", 3600.0)
    monkeypatch.setattr(worker, "LOOK_SHARE", 1e-9)
    door = Door()
    door.opened.set()
    sender = await stack.enter_async_context(Runtime(new_store(), agents=agents(door), worker=False))
    names = [f"s{k:02}" for k in range(24)]
    sent = [await (await sender.session(name, agent="a")).send("go in") for name in names]
    for _ in range(2):
        await stack.enter_async_context(Runtime(new_store(), agents=agents(door), worker=WorkerOptions(concurrency=2)))
    for one in sent:
        assert (await one.result(timeout=20)).status == "finished"
    assert sorted(door.visits) == names


async def test_a_worker_that_gets_nothing_of_a_long_line_looks_again_later(
    new_store: NewStore, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scan without getting a stream, as if another worker held all of the queue."""
    monkeypatch.setattr(worker, "MANY", 3)
    door, looks, store = Door(), list[int](), new_store()
    rt = await stack.enter_async_context(Runtime(store, agents=agents(door), worker=WorkerOptions(concurrency=2)))
    claimable, claim_ready = store.claimable, store.claim_ready

    async def noting(*given: Any, **how: Any) -> tuple[StreamId, ...]:
        looks.append(1)
        return await claimable(*given, **how)

    async def nothing(*_given: Any, **_how: Any) -> tuple[ReadyStream, ...]:
        return ()

    monkeypatch.setattr(store, "claim_ready", nothing)
    sender = await stack.enter_async_context(Runtime(new_store(), agents=agents(door), worker=False))
    sent = [await (await sender.session(f"s{k:02}", agent="a")).send("go in") for k in range(12)]
    monkeypatch.setattr(store, "claimable", noting)
    found = core_of(rt).worker
    assert found is not None
    async with asyncio.timeout(20):
        await found._scan()  # pyright: ignore[reportPrivateUsage] - one look for work
    assert len(looks) < 20
    monkeypatch.setattr(store, "claim_ready", claim_ready)
    door.opened.set()
    for one in sent:
        assert (await one.result(timeout=20)).status == "finished"


async def _tried(tries: list[str], count: int) -> bool:
    return len(tries) >= count


async def test_a_session_that_exists_is_moved_on_purpose_only(new_store: NewStore, stack: AsyncExitStack) -> None:
    rt = await stack.enter_async_context(Runtime(new_store(), agents=agents(Door()), worker=False))
    session = await rt.session("s", agent="a", queue="slow", priority=1)
    await session.send("hi")
    assert await rt.session("s", queue="slow", priority=1)
    with pytest.raises(Error) as caught:
        await rt.session("s", queue="fast")
    assert caught.value.code is Code.INVALID_ARGUMENT
    await session.move(queue="fast")
    info = await core_of(rt).store.stream(ref_of(session).stream)
    assert info is not None
    assert (info.queue, info.priority) == ("fast", None)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: WorkerOptions(queues="bulk"),
        lambda: WorkerOptions(queues=[]),
        lambda: WorkerOptions(queues=[" "]),
        lambda: WorkerOptions(queues=cast(Any, 5)),
        lambda: WorkerOptions(concurrency=0),
        lambda: WorkerOptions(concurrency=cast(Any, 1.5)),
        lambda: WorkerOptions(concurrency=cast(Any, "8")),
        lambda: WorkerOptions(concurrency=cast(Any, None)),
        lambda: WorkerOptions(concurrency=True),
        lambda: WorkerOptions(limits=cast(Any, None)),
        lambda: WorkerOptions(limits=cast(Any, ["tool:charge"])),
        lambda: WorkerOptions(limits=cast(Any, {1: 2})),
        lambda: WorkerOptions(limits={"charge": 2}),
        lambda: WorkerOptions(limits={"tool:": 2}),
        lambda: WorkerOptions(limits={"tool:a*b": 2}),
        lambda: WorkerOptions(limits={"tool:charge": 0}),
        lambda: WorkerOptions(limits={"queue:*": 2}),
        lambda: Agent("a", model="sim:echo", queue=""),
        lambda: Agent("a", model="sim:echo", priority=5000),
    ],
)
def test_invalid_queue_settings_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(Error) as caught:
        wrong()
    assert caught.value.code in (Code.INVALID_ARGUMENT, Code.INVALID_ID)


PATIENT = RuntimeOptions(idle_timeout_s=3600.0)


@tool(effect="resumable")
async def delegate(ctx: ToolContext) -> str:
    """Let somebody else do it."""
    return await ctx.agent("clerk").ask("please")


@tool(effect="resumable")
async def await_word(ctx: ToolContext) -> str:
    """Wait for word from outside."""
    return str(await ctx.wait_for_event("word"))


def delegating(queue: str = "default") -> list[Agent]:
    chief = ScriptedModel(call("delegate"), say("all done", exact=True))
    clerk = ScriptedModel(say("done"))
    return [
        Agent("chief", model=chief, tools=[delegate], queue=queue),
        Agent("clerk", model=clerk, queue=queue),
    ]


@pytest.mark.parametrize("limits", [{}, {"queue:desk": 2}], ids=["slots of the worker", "slots of a queue"])
async def test_parent_waiting_for_a_child_releases_its_slot(
    new_store: NewStore, stack: AsyncExitStack, limits: dict[str, int]
) -> None:
    work = WorkerOptions(concurrency=256 if limits else 2, limits=limits)
    rt = await stack.enter_async_context(Runtime(new_store(), agents=delegating("desk"), worker=work, options=PATIENT))
    asked = [await (await rt.session(f"s{n}", agent="chief")).send("go") for n in range(4)]
    results = [await one.result(timeout=30) for one in asked]
    assert [result.text for result in results] == ["all done"] * 4


async def test_waiting_turn_is_evicted_for_runnable_work(new_store: NewStore, stack: AsyncExitStack) -> None:
    agent = Agent("a", model=ScriptedModel(call("await_word"), say("heard", exact=True)), tools=[await_word])
    other = Agent("b", model=ScriptedModel(say("here", exact=True)))
    rt = await stack.enter_async_context(
        Runtime(new_store(), agents=[agent, other], worker=WorkerOptions(concurrency=1), options=PATIENT)
    )
    waiting = await rt.session("waiting", agent="a")
    sent = await waiting.send("go")
    await until(lambda: _waits(waiting))
    assert (await (await rt.session("next", agent="b")).ask("hi", timeout=30)) == "here"
    await waiting.resolve("word", "now")
    assert (await sent.result(timeout=30)).text == "heard"


async def _waits(session: Session) -> bool:
    return bool(await session.pending())
