"""The machine may see a fact before it is durable; the world may not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from perdure import Agent, Error, RetryPolicy, Runtime, RuntimeOptions, ToolContext, ToolError, tool
from perdure.events import RecordEvent
from perdure.models.scripted import ScriptedModel, call, calls, say
from perdure.runtime.internals import ref_of
from perdure.runtime.sessions.results import wait_for
from perdure.store.memory.store import MemoryStore
from perdure.store.protocol import Store
from perdure.testing.clock import ManualClock
from perdure.testing.gated_store import AppendGate
from perdure.tools.decorator import AnyTool
from perdure.vocab.effects import EffectKind
from perdure.vocab.records import EffectStarted
from tests.scenarios.conftest import until

NewStore = Callable[[], Store]


async def a_while() -> None:
    """Long enough for everything that could happen to happen."""
    for _ in range(20):
        await asyncio.sleep(0.005)


async def _true(it_is_so: bool) -> bool:
    return it_is_so


def tools_of_each_class(ran: list[str]) -> list[AnyTool]:
    @tool(effect="pure")
    async def pure() -> None:
        """Pure."""
        ran.append("pure")

    @tool(effect="idempotent")
    async def idempotent() -> None:
        """Idempotent."""
        ran.append("idempotent")

    @tool(effect="once")
    async def once() -> None:
        """Once."""
        ran.append("once")

    return [pure, idempotent, once]


async def test_only_pure_calls_start_before_their_reply_is_durable(new_store: NewStore) -> None:
    ran: list[str] = []
    gate = AppendGate(lambda what: "effect_settled m1.1" in what)
    model = ScriptedModel(calls(call("pure"), call("idempotent"), call("once")), say("ok"))
    agent = Agent("a", model=model, tools=tools_of_each_class(ran))
    async with Runtime(gate.guard(new_store()), agents=[agent]) as rt:
        sent = await (await rt.session("s", agent="a")).send("go")
        await gate.reached.wait()
        await until(lambda: _true(bool(ran)))
        await a_while()
        assert ran == ["pure"]
        gate.release()
        await sent.result(timeout=10)
        assert sorted(ran) == ["idempotent", "once", "pure"]


async def test_result_and_event_are_published_after_their_records_commit(new_store: NewStore) -> None:
    gate = AppendGate(lambda what: "turn_ended" in what)
    async with Runtime(gate.guard(new_store()), agents=[Agent("a", model=ScriptedModel(say("ok")))]) as rt:
        session = await rt.session("s", agent="a")
        sent = await session.send("go")
        kinds: list[str] = []

        async def watch() -> None:
            async for event in session.events():
                if isinstance(event, RecordEvent):
                    kinds.append(type(event.record).__name__)

        watching = asyncio.create_task(watch())
        result = asyncio.create_task(sent.result())
        await gate.reached.wait()
        await a_while()
        assert not result.done()
        assert "EffectSettled" not in kinds
        gate.release()
        assert (await asyncio.wait_for(result, 10)).text.startswith("ok")
        await until(lambda: _true("TurnEnded" in kinds))
        assert kinds[-2:] == ["EffectSettled", "TurnEnded"]
        watching.cancel()


async def test_a_queued_call_has_no_intent_before_its_predecessor_is_settled(new_store: NewStore) -> None:
    """Otherwise a crash would leave calls in doubt that never left."""
    ran: list[str] = []
    gate = AppendGate(lambda what: "effect_settled c1.0.1" in what)

    @tool(concurrency_group="bank")
    async def charge(n: int) -> None:
        """Charge."""
        ran.append(f"charge {n}")

    model = ScriptedModel(calls(call("charge", n=1), call("charge", n=2)), say("ok"))
    async with Runtime(gate.guard(new_store()), agents=[Agent("a", model=model, tools=[charge])]) as rt:
        session = await rt.session("s", agent="a")
        sent = await session.send("go")
        await gate.reached.wait()
        await a_while()
        assert ran == ["charge 1"], "the second intent is not durable yet"
        started = [row.record.id for row in await session.journal() if isinstance(row.record, EffectStarted)]
        assert started == ["m1.1", "c1.0.1"]
        gate.release()
        await sent.result(timeout=10)
        assert ran == ["charge 1", "charge 2"]


async def test_a_sleep_keeps_its_original_moment_through_a_restart() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    attempts: list[int] = []

    @tool(retries=RetryPolicy(kind="safe", max_attempts=2))
    async def charge(ctx: ToolContext) -> str:
        """Charge."""
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            raise ToolError("closed for an hour", retry_safe=True, retry_after_ms=3_600_000)
        return "charged"

    agent = Agent("a", model=ScriptedModel(call("charge"), say("ok")), tools=[charge])
    tuning = RuntimeOptions(clock=clock, drain_s=0.01)
    asleep = asyncio.Event()
    async with Runtime(store, agents=[agent], options=tuning) as rt:
        session = await rt.session("s", agent="a")
        await session.send("go", key="k")
        async with asyncio.timeout(5):
            async for event in session.events():
                record = getattr(event, "record", None)
                if isinstance(record, EffectStarted) and record.kind is EffectKind.SLEEP:
                    asleep.set()
                    break
    assert asleep.is_set()
    clock.advance(3_000_000)
    async with Runtime(store, agents=[agent], options=tuning) as rt:
        sent = await rt.get_session("s").send("go", key="k")
        with pytest.raises(Error):
            await sent.result(timeout=0.3)
        assert attempts == [1]
        clock.advance(600_000)  # the hour is over: counted from the first start, not from the restart
        assert (await sent.result(timeout=5)).status == "finished"
    assert attempts == [1, 2]
    sleeps = [
        row.record
        for row in await store.read(ref_of(session).stream)
        if isinstance(row.record, EffectStarted) and row.record.kind is EffectKind.SLEEP
    ]
    assert len(sleeps) == 1


async def test_backoff_timer_wakes_a_parked_session(new_store: NewStore) -> None:
    """The timer alone makes the session claimable again."""

    @tool(effect="idempotent", retries=RetryPolicy(kind="idempotent", max_attempts=2, base_delay_ms=400))
    async def put(ctx: ToolContext) -> str:
        """Put."""
        if ctx.attempt == 1:
            raise ToolError("later")
        return "put"

    agent = Agent("a", model=ScriptedModel(call("put"), say("ok")), tools=[put])
    async with Runtime(new_store(), agents=[agent], options=RuntimeOptions(drain_s=0.05)) as rt:
        session = await rt.session("s", agent="a")
        sent = await session.send("go")
        await a_while()
    async with Runtime(new_store(), agents=[agent]) as rt:
        result = await wait_for(ref_of(rt.get_session("s")), sent.turn_id)
        assert result.status == "finished"
