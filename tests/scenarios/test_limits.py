"""Limits of tools and models that hold for all workers of a store together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from perdure import Agent, Runtime, RuntimeOptions, ToolContext, WorkerOptions, tool
from perdure.ids import StreamId
from perdure.models.protocol import ModelEvent, ModelReply, ModelRequest
from perdure.models.scripted import ScriptedModel, call, calls, say
from perdure.runtime.internals import core_of, ref_of
from perdure.runtime.sessions.results import wait_for
from perdure.tools.toolbox import ToolSource
from perdure.vocab.messages import Text
from perdure.vocab.records import EffectStarted
from perdure.vocab.usage import Usage
from tests.scenarios.conftest import NewStore, until


class Counter:
    """The calls running now, and their maximum so far."""

    def __init__(self) -> None:
        self.now: list[str] = []
        self.most = 0
        self.ever: list[str] = []
        self.opened = asyncio.Event()

    async def __call__(self, who: str) -> None:
        self.now.append(who)
        self.ever.append(who)
        self.most = max(self.most, len(self.now))
        try:
            await self.opened.wait()
        finally:
            self.now.remove(who)


def charge_with(counter: Counter) -> ToolSource:
    @tool(effect="once")
    async def charge(ctx: ToolContext) -> str:
        """Charge."""
        await counter(ctx.session_id)
        return "charged"

    return charge


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def open_two(new_store: NewStore, stack: AsyncExitStack, agent: Agent, work: WorkerOptions) -> list[Runtime]:
    return [await stack.enter_async_context(Runtime(new_store(), agents=[agent], worker=work)) for _ in range(2)]


async def _inside(counter: Counter, count: int) -> bool:
    return len(counter.now) == count


async def test_limit_of_two_calls_holds_across_workers(new_store: NewStore, stack: AsyncExitStack) -> None:
    counter = Counter()
    agent = Agent("a", model=ScriptedModel(call("charge"), say("done")), tools=[charge_with(counter)])
    rts = await open_two(new_store, stack, agent, WorkerOptions(limits={"tool:charge": 2}))
    sent = [await (await rts[i % 2].session(f"s{i}", agent="a")).send("go") for i in range(6)]
    await until(lambda: _inside(counter, 2))
    waiting = next(i for i in range(6) if f"s{i}" not in counter.now)
    session = rts[0].get_session(f"s{waiting}")
    await until(lambda: _in_line(ref_of(session).stream, rts[0]))
    why = await session.why()
    assert why.status == "running"
    assert "a permit of tool:charge, held by session" in why.summary
    assert all(f"session {name} (worker " in why.summary for name in counter.now)
    started = [row.record.id for row in await session.journal() if isinstance(row.record, EffectStarted)]
    assert started == ["m1.1"], "a call that waits for a permit has not started"
    counter.opened.set()
    assert [(await each.result(timeout=20)).status for each in sent] == ["finished"] * 6
    assert sorted(counter.ever) == [f"s{i}" for i in range(6)]
    assert counter.most == 2
    await until(lambda: _no_permits(rts[0]))


async def _in_line(stream: str, rt: Runtime) -> bool:
    return any(not p.granted and p.holder.startswith(f"{stream}#") for p in await core_of(rt).store.permits())


async def _no_permits(rt: Runtime) -> bool:
    return not await core_of(rt).store.permits()


async def test_turn_waiting_for_a_permit_is_cancelled_without_a_call(
    new_store: NewStore, stack: AsyncExitStack
) -> None:
    counter = Counter()
    agent = Agent("a", model=ScriptedModel(call("charge"), say("done")), tools=[charge_with(counter)])
    rts = await open_two(new_store, stack, agent, WorkerOptions(limits={"tool:charge": 1}))
    first = await (await rts[0].session("first", agent="a")).send("go")
    await until(lambda: _inside(counter, 1))
    session = await rts[1].session("second", agent="a")
    second = await session.send("go")
    await until(lambda: _in_line(ref_of(session).stream, rts[1]))
    assert await session.cancel() == "requested"
    result = await second.result(timeout=20)
    assert (result.status, result.reason) == ("stopped", "cancelled")
    counter.opened.set()
    assert (await first.result(timeout=20)).status == "finished"
    assert counter.ever == ["first"]
    (answer,) = [part for message in await session.messages() if message.role == "tool" for part in message.parts]
    assert "in doubt" not in str(answer)
    assert "not executed" in str(answer) or "cancelled" in str(answer)
    await until(lambda: _no_permits(rts[0]))


class CountedModel:
    """A model that counts its concurrent calls."""

    name = "test:counted"

    def __init__(self, counter: Counter) -> None:
        self.counter = counter

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        await self.counter("asked")
        yield ModelReply(parts=(Text(text="answer"),), finish="stop", usage=Usage(), model=self.name)


async def test_a_model_is_asked_by_no_more_at_once_than_its_number(new_store: NewStore, stack: AsyncExitStack) -> None:
    counter = Counter()
    agent = Agent("a", model=CountedModel(counter))
    rts = await open_two(new_store, stack, agent, WorkerOptions(limits={"model:test:*": 2, "model:test:counted": 3}))
    sent = [await (await rts[i % 2].session(f"s{i}", agent="a")).send("go") for i in range(5)]
    await until(lambda: _inside(counter, 2))
    await until(lambda: _lined_up(rts[0], 3))
    counter.opened.set()
    assert [(await each.result(timeout=20)).text for each in sent] == ["answer"] * 5
    assert (counter.most, len(counter.ever)) == (2, 5)
    await until(lambda: _no_permits(rts[0]))


async def _lined_up(rt: Runtime, count: int) -> bool:
    return len({permit.holder for permit in await core_of(rt).store.permits() if not permit.granted}) == count


async def test_limit_holds_within_a_reply_without_delaying_other_calls(
    new_store: NewStore, stack: AsyncExitStack
) -> None:
    counter = Counter()

    @tool(effect="pure")
    async def look() -> str:
        """Look."""
        return "seen"

    model = ScriptedModel(calls(call("charge"), call("charge"), call("look"), call("charge")), say("done"))
    agent = Agent("a", model=model, tools=[charge_with(counter), look])
    rt, _ = await open_two(new_store, stack, agent, WorkerOptions(limits={"tool:charge": 1}))
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await until(lambda: _inside(counter, 1))
    counter.opened.set()
    assert (await sent.result(timeout=20)).status == "finished"
    assert (counter.most, len(counter.ever)) == (1, 3)


async def test_worker_releasing_a_waiting_turn_leaves_no_permit(new_store: NewStore, stack: AsyncExitStack) -> None:
    counter = Counter()
    agent = Agent("a", model=ScriptedModel(call("charge"), say("done")), tools=[charge_with(counter)])
    work = WorkerOptions(limits={"tool:charge": 1})
    first = await stack.enter_async_context(Runtime(new_store(), agents=[agent], worker=work))
    await (await first.session("first", agent="a")).send("go")
    await until(lambda: _inside(counter, 1))
    async with Runtime(new_store(), agents=[agent], worker=work) as leaving:
        session = await leaving.session("second", agent="a")
        sent = await session.send("go")
        await until(lambda: _in_line(ref_of(session).stream, leaving))
        await leaving.drain(0)
    await until(lambda: _in_line(ref_of(session).stream, first))
    counter.opened.set()
    result = await wait_for(ref_of(first.get_session("second")), sent.turn_id)
    assert result.status == "finished"
    assert counter.ever == ["first", "second"]


def publish_with(counter: Counter) -> ToolSource:
    @tool(effect="resumable")
    async def publish(ctx: ToolContext, n: int) -> str:
        """Publish."""
        counter.ever.append(f"{ctx.session_id}{n}")
        if n == 1:
            await ctx.wait_for_event("news")
        return f"published {n}"

    return publish


async def test_a_turn_does_not_wait_for_a_permit_that_it_holds_itself(
    new_store: NewStore, stack: AsyncExitStack
) -> None:
    counter = Counter()
    two = ScriptedModel(calls(call("publish", n=1), call("publish", n=2)), say("done"))
    both = Agent("both", model=two, tools=[publish_with(counter)])
    one = Agent("one", model=ScriptedModel(call("publish", n=9), say("done")), tools=[publish_with(counter)])
    work, tuning = WorkerOptions(limits={"tool:publish": 1}), RuntimeOptions(idle_timeout_s=0)
    rt = await stack.enter_async_context(Runtime(new_store(), agents=[both, one], worker=work, options=tuning))
    session = await rt.session("b", agent="both")
    sent = await session.send("go")
    assert await (await rt.session("o", agent="one")).ask("go", timeout=20), "the permit of what waits is free"
    await until(lambda: _published(counter, "b2"))
    await until(lambda: _is_parked(rt, ref_of(session).stream))
    await session.resolve("news", True)
    assert (await sent.result(timeout=20)).status == "finished"
    await until(lambda: _no_permits(rt))


async def _published(counter: Counter, what: str) -> bool:
    return what in counter.ever


async def _is_parked(rt: Runtime, stream: StreamId) -> bool:
    info = await core_of(rt).store.stream(stream)
    return info is not None and info.parked


async def test_a_worker_that_drains_begins_nothing_that_was_in_line(new_store: NewStore, stack: AsyncExitStack) -> None:
    counter = Counter()
    agent = Agent("a", model=ScriptedModel(call("charge"), say("done")), tools=[charge_with(counter)])
    rt = await stack.enter_async_context(
        Runtime(new_store(), agents=[agent], worker=WorkerOptions(limits={"tool:charge": 1}))
    )
    await (await rt.session("first", agent="a")).send("go")
    await until(lambda: _inside(counter, 1))
    session = await rt.session("second", agent="a")
    sent = await session.send("go")
    await until(lambda: _in_line(ref_of(session).stream, rt))
    draining = asyncio.create_task(rt.drain(20))
    await until(lambda: _is_parked(rt, ref_of(session).stream))
    counter.opened.set()
    await draining
    assert counter.ever == ["first"]
    other = await stack.enter_async_context(Runtime(new_store(), agents=[agent], worker=True))
    assert (await wait_for(ref_of(other.get_session("second")), sent.turn_id)).status == "finished"
    assert counter.ever == ["first", "second"]
