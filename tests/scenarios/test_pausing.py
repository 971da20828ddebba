"""Pausing: nothing is begun, nothing is lost, and everything goes on from where it stood."""

from __future__ import annotations

import asyncio
import time

from perdure import RetryPolicy, RuntimeOptions, ToolContext, ToolError, tool
from perdure.models.scripted import ScriptedModel, call, calls, say
from perdure.runtime.internals import core_of, ref_of
from perdure.runtime.sessions.session import Session
from perdure.vocab.records import EffectStarted
from tests.scenarios.conftest import App, until
from tests.scenarios.verbs import Gate, texts


async def stands(session: Session) -> bool:
    """Return whether no worker works on the session."""
    info = await ref_of(session).runtime.store.stream(ref_of(session).stream)
    return info is not None and info.owner is None and not info.active


async def begun(session: Session) -> list[str]:
    return [row.record.id for row in await session.journal() if isinstance(row.record, EffectStarted)]


async def test_paused_session_answers_its_inputs_after_resume(app: App) -> None:
    rt = await app.open(ScriptedModel(say("ok", exact=True)))
    away = await app.open(ScriptedModel(), worker=False)
    session, there = await rt.session("s", agent="a"), await away.session("s", agent="a")
    await session.ask("hello")
    assert await there.pause(by="maria", reason="look first")
    assert not await session.pause(by="paul")
    sent = [await session.send("one"), await there.send("two"), await session.send("three", key="k")]
    await asyncio.sleep(0.4)  # a worker looks four times a second
    assert [one.input for one in await session.queued_inputs()] == [one.input_id for one in sent]
    why = await session.why()
    assert why.status == "paused"
    assert "maria" in why.summary
    assert "look first" in why.summary
    [info] = await core_of(rt).session_streams()
    assert info.paused is not None
    assert info.paused.by == "maria"
    assert await there.resume(by="maria")
    assert not await there.resume(by="maria")
    assert [(await one.result(10)).text for one in sent] == ["ok", "ok", "ok"]
    assert (await session.why()).status == "idle"


async def test_running_turn_pauses_after_its_calls_in_flight(app: App) -> None:
    gate = Gate()
    rt = await app.open(ScriptedModel(calls(call("pay"), call("last")), say("done", exact=True)), gate.pay, last)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await gate.entered.wait()
    assert await session.pause(by="maria")
    gate.go.set()
    await until(lambda: stands(session))
    assert await begun(session) == ["m1.1", "c1.0.1"]
    assert (await session.why()).status == "paused"
    await session.resume()
    assert (await sent.result(10)).text == "done"
    assert await begun(session) == ["m1.1", "c1.0.1", "c1.1.1", "m2.1"]
    assert gate.world == ["pay ann"]


@tool(sequential=True)
async def last() -> str:
    """Last."""
    return "done"


async def test_pausing_and_resuming_before_anything_has_landed_changes_nothing(app: App) -> None:
    gate = Gate()
    rt = await app.open(ScriptedModel(call("pay"), say("done", exact=True)), gate.pay)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await gate.entered.wait()
    assert await session.pause()
    assert await session.resume()
    gate.go.set()
    assert (await sent.result(10)).text == "done"


async def test_wait_is_resolved_during_a_pause(app: App) -> None:
    @tool(effect="resumable")
    async def ask(ctx: ToolContext) -> str:
        """Ask."""
        return str(await ctx.wait_for_event("answer"))

    for patience in (0.0, 30.0):
        rt = await app.open(ScriptedModel(call("ask"), say("done", exact=True)), ask, tuning=_patience(patience))
        session = await rt.session(f"s{patience}", agent="a")
        sent = await session.send("go")
        await until(lambda: _waits(session))  # noqa: B023 - called at once
        await session.pause()
        await until(lambda: stands(session))  # noqa: B023
        await session.resolve("answer", 7)
        await asyncio.sleep(0.3)
        assert (await session.why()).status == "paused"
        await session.resume()
        assert (await sent.result(10)).text == "done"


def _patience(seconds: float) -> RuntimeOptions:
    return RuntimeOptions(idle_timeout_s=seconds)


async def _waits(session: Session) -> bool:
    return "c1.0/event:answer" in await begun(session)


async def test_a_due_time_stands_while_a_session_is_paused(app: App) -> None:
    ran: list[int] = []

    @tool(effect="idempotent", retries=RetryPolicy(kind="idempotent", max_attempts=2, base_delay_ms=1500))
    async def flaky(ctx: ToolContext) -> str:
        """Flaky."""
        ran.append(ctx.attempt)
        if ctx.attempt == 1:
            raise ToolError("not now", retry_safe=True)
        return "fine"

    rt = await app.open(ScriptedModel(call("flaky"), say("done", exact=True)), flaky)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await until(lambda: _sleeps(session))
    await session.pause()
    due = [row.record.due_at for row in await session.journal() if isinstance(row.record, EffectStarted)]
    await asyncio.sleep(max(at for at in due if at is not None) / 1000 - time.time() + 0.2)
    assert ran == [1]
    await session.resume()
    assert (await sent.result(10)).text == "done"
    assert ran == [1, 2]
    after = [row.record.due_at for row in await session.journal() if isinstance(row.record, EffectStarted)]
    assert after[: len(due)] == due


async def _sleeps(session: Session) -> bool:
    return "c1.0.1.sleep" in await begun(session)


async def test_a_cancelled_turn_of_a_paused_session_ends_when_it_is_resumed(app: App) -> None:
    gate = Gate()
    rt = await app.open(ScriptedModel(call("look"), say("done")), gate.look)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await gate.entered.wait()
    await session.pause()
    gate.go.set()
    await until(lambda: stands(session))
    assert await session.cancel() == "requested"
    await session.resume()
    assert (await sent.result(10)).reason == "cancelled"
    assert "m2.1" not in await begun(session)


async def test_an_interruption_waits_for_the_resumption(app: App) -> None:
    rt = await app.open(ScriptedModel(say("ok", exact=True)))
    session = await rt.session("s", agent="a")
    await session.ask("hello")
    await session.pause()
    sent = await session.send("stop", mode="interrupt")
    await asyncio.sleep(0.3)
    assert len(await session.queued_inputs()) == 1
    await session.resume()
    assert (await sent.result(10)).text == "ok"
    assert texts(await session.messages())[-2:] == ["user: stop", "assistant: ok"]


async def test_deleting_a_paused_session_deletes_it(app: App) -> None:
    rt = await app.open(ScriptedModel(say("ok", exact=True)))
    session = await rt.session("s", agent="a")
    await session.ask("hello")
    await session.pause()
    assert await session.delete()
    assert await (await rt.session("s", agent="a")).ask("hello") == "ok"


async def test_an_imported_session_is_not_paused(app: App) -> None:
    rt = await app.open(ScriptedModel(say("ok", exact=True)))
    session = await rt.session("s", agent="a")
    await session.ask("hello")
    await session.pause()
    copy = await rt.import_session("copy", await session.export())
    assert await copy.ask("hello") == "ok"
