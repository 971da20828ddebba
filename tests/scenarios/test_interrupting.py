"""Interrupting and cancelling: the turn ends, every call is answered truthfully, and nothing is dispatched after it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from perdure import RetryPolicy, RuntimeOptions, ToolContext, ToolError, tool
from perdure.cli.timeline import pictures
from perdure.codec import Json
from perdure.models.scripted import ScriptedModel, call, calls, fail, say
from perdure.runtime.internals import core_of, ref_of
from perdure.runtime.sessions import verbs
from perdure.runtime.sessions.session import Session
from perdure.session.fold import SessionState
from perdure.store.shapes import Loaded
from perdure.testing.validity import complaints
from perdure.vocab.messages import Message, ToolResultPart
from perdure.vocab.outcomes import Done, InDoubt, ToolCallOutcome
from perdure.vocab.records import CancelRequested, EffectSettled, EffectStarted, TurnEnded
from tests.scenarios.conftest import App, until
from tests.scenarios.verbs import Gate, HeldModel, in_its_turn, texts


def codes(history: tuple[Message, ...]) -> list[object]:
    """Return the result of each call: the code of an error, else the value."""
    outputs: list[Json] = [
        part.output for message in history for part in message.parts if isinstance(part, ToolResultPart)
    ]
    return [output["code"] if isinstance(output, dict) else output for output in outputs]


async def interrupted(session: Session) -> list[object]:
    """Interrupt whatever runs and look at what is left: what the model was told of each call."""
    waiting = await session.send("stop", mode="interrupt", sent_by="web")
    ended = await waiting.result(10)
    assert (ended.status, ended.text, ended.turn_id) == ("finished", "stopped", waiting.turn_id)
    history = await session.messages()
    assert complaints(history) == []
    assert texts(history)[-2:] == ["user: stop", "assistant: stopped"]
    rows = await session.journal()
    ends = [row.record for row in rows if isinstance(row.record, TurnEnded)]
    assert [(end.status, end.reason) for end in ends] == [("stopped", "cancelled"), ("finished", None)]
    [request] = [row.record for row in rows if isinstance(row.record, CancelRequested)]
    assert (request.superseded_by, request.origin, request.turn) == (waiting.input_id, "web", ends[0].turn)
    end = next(row.seq for row in rows if row.kind == "turn_ended")
    begun = [row.record.id for row in rows if row.seq > end and isinstance(row.record, EffectStarted)]
    assert begun == ["m1.1"]  # nothing of the old turn after its end, and nothing but the answer in the new one
    return codes(history)


STOP = ("stop", say("stopped", exact=True))


async def test_while_the_model_streams(app: App) -> None:
    model = HeldModel(("go", say("a long answer")), STOP)
    rt = await app.open(model)
    session = await rt.session("s", agent="a")
    first = await session.send("go")
    await in_its_turn(model, session)
    assert await interrupted(session) == []
    assert model.cut_off
    assert (await first.result(10)).reason == "cancelled"


async def test_while_an_async_once_tool_runs(app: App) -> None:
    gate = Gate()
    rt = await app.open(ScriptedModel.by_input({"go": [call("pay")], "stop": [STOP[1]]}), gate.pay)
    session = await rt.session("s", agent="a")
    await session.send("go")
    await gate.entered.wait()
    assert await interrupted(session) == ["outcome_unknown"]
    assert gate.world == ["pay ann"]


async def test_while_a_sync_once_tool_runs_which_is_told_and_left_running(app: App) -> None:
    gate = Gate()
    rt = await app.open(ScriptedModel.by_input({"go": [call("post")], "stop": [STOP[1]]}), gate.post)
    session = await rt.session("s", agent="a")
    await session.send("go")
    await gate.entered.wait()
    try:
        assert await interrupted(session) == ["outcome_unknown"]
        assert await asyncio.to_thread(gate.told.wait, 10)
        assert gate.world == ["post"]
    finally:
        gate.let_go.set()


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_call_that_ignores_its_cancellation_is_reported_as_left_running(app: App, kind: str) -> None:
    gate, deaf = Gate(), asyncio.Event()

    @tool
    async def wire(ctx: ToolContext) -> str:
        """Wire, whatever anybody says."""
        gate.world.append("wire")
        while not deaf.is_set():
            with suppress(asyncio.CancelledError):
                await deaf.wait()
        return "wired"

    name, used = ("post", gate.post) if kind == "sync" else ("wire", wire)
    script = {"go": [calls(call("pay"), call(name))], "stop": [STOP[1]]}
    rt = await app.open(ScriptedModel.by_input(script), gate.pay, used)
    session = await rt.session("s", agent="a")
    await session.send("go")

    async def both_run() -> bool:
        return len(gate.world) == 2

    await until(both_run)
    try:
        assert await interrupted(session) == ["outcome_unknown", "outcome_unknown"]
        stopped, left = [
            row.record.outcome.launch.result.output
            for row in await session.journal()
            if isinstance(row.record, EffectSettled) and isinstance(row.record.outcome, ToolCallOutcome)
            if isinstance(row.record.outcome.launch, Done)
        ]
        assert isinstance(stopped, InDoubt)
        assert isinstance(left, InDoubt)
        assert (stopped.left_running, left.left_running) == (False, True)
        told = str(await session.messages())
        assert told.count("it ignored that and was left running") == 1
    finally:
        gate.let_go.set()
        deaf.set()


async def test_interrupt_cancels_a_call_during_its_approval_predicate(app: App) -> None:
    thinking, world = asyncio.Event(), list[str]()

    async def allowed(_: object) -> bool:
        thinking.set()
        await asyncio.sleep(3600)
        return False

    @tool(needs_approval=allowed)
    async def pay() -> str:
        """Pay."""
        world.append("paid")
        return "paid"

    rt = await app.open(ScriptedModel.by_input({"go": [call("pay")], "stop": [STOP[1]]}), pay)
    session = await rt.session("s", agent="a")
    await session.send("go")
    await thinking.wait()
    assert await interrupted(session) == ["cancelled"]
    assert world == []
    assert await rt.approvals.list() == ()


async def test_while_an_idempotent_tool_runs(app: App) -> None:
    gate = Gate()
    rt = await app.open(ScriptedModel.by_input({"go": [call("look")], "stop": [STOP[1]]}), gate.look)
    session = await rt.session("s", agent="a")
    await session.send("go")
    await gate.entered.wait()
    assert await interrupted(session) == ["tool_cancelled"]


async def test_interrupt_cancels_unstarted_calls_and_doubts_started_ones(app: App) -> None:
    gate = Gate()

    @tool(sequential=True)
    async def last() -> str:
        """Last."""
        gate.world.append("last")
        return "done"

    script = {"go": [calls(call("pay", to="ann"), call("last"))], "stop": [STOP[1]]}
    rt = await app.open(ScriptedModel.by_input(script), gate.pay, last)
    session = await rt.session("s", agent="a")
    await session.send("go")
    await gate.entered.wait()
    assert await interrupted(session) == ["outcome_unknown", "cancelled"]
    assert gate.world == ["pay ann"]


async def test_in_the_pause_before_a_retry(app: App) -> None:
    ran: list[int] = []

    @tool(effect="idempotent", retries=RetryPolicy(kind="idempotent", max_attempts=3, base_delay_ms=60_000))
    async def flaky(ctx: ToolContext) -> str:
        """Flaky."""
        ran.append(ctx.attempt)
        raise ToolError("not now", retry_safe=True)

    rt = await app.open(ScriptedModel.by_input({"go": [call("flaky")], "stop": [STOP[1]]}), flaky)
    session = await rt.session("s", agent="a")
    await session.send("go")
    await until(lambda: _has(session, "c1.0.1.sleep"))
    assert await interrupted(session) == ["tool_cancelled"]
    assert ran == [1]


async def test_in_the_pause_before_the_model_is_asked_again(app: App) -> None:
    model = ScriptedModel.by_input({"go": [fail(503, retry_after_ms=60_000), say("never")], "stop": [STOP[1]]})
    rt = await app.open(model)
    session = await rt.session("s", agent="a")
    await session.send("go")
    await until(lambda: _has(session, "m1.1.sleep"))
    assert await interrupted(session) == []


async def _has(session: Session, effect: str) -> bool:
    started = [row.record for row in await session.journal()]
    return any(isinstance(one, EffectStarted) and one.id == effect for one in started)


async def _parked(session: Session) -> bool:
    info = await ref_of(session).runtime.store.stream(ref_of(session).stream)
    return info is not None and info.parked


@pytest.mark.parametrize("patience", [0.0, 30.0])
async def test_while_a_body_waits_in_memory_or_parked_without_entering_it_again(app: App, patience: float) -> None:
    entered: list[str] = []

    @tool(effect="resumable")
    async def ask(ctx: ToolContext) -> str:
        """Ask."""
        entered.append("entered")
        return str(await ctx.wait_for_event("answer"))

    script = {"go": [call("ask")], "stop": [STOP[1]]}
    rt = await app.open(ScriptedModel.by_input(script), ask, tuning=RuntimeOptions(idle_timeout_s=patience))
    session = await rt.session("s", agent="a")
    await session.send("go")
    await until(lambda: _parked(session) if patience == 0 else _has(session, "c1.0/event:answer"))
    assert await interrupted(session) == ["tool_cancelled"]
    assert entered == ["entered"]


async def test_parked_turn_is_interrupted_by_a_runtime_without_worker(app: App) -> None:
    @tool(effect="resumable")
    async def ask(ctx: ToolContext) -> str:
        """Ask."""
        return str(await ctx.wait_for_event("answer"))

    script = {"go": [call("ask")], "stop": [STOP[1]]}
    rt = await app.open(ScriptedModel.by_input(script), ask, tuning=RuntimeOptions(idle_timeout_s=0))
    away = await app.open(ScriptedModel(), worker=False)
    session = await rt.session("s", agent="a")
    await session.send("go")
    await until(lambda: _parked(session))
    assert await interrupted(await away.session("s", agent="a")) == ["tool_cancelled"]


async def test_interrupt_precedes_queued_inputs_in_their_order(app: App) -> None:
    model = HeldModel(("go", say("x")), STOP, ("q1", say("one", exact=True)), ("q2", say("two", exact=True)))
    rt = await app.open(model)
    session = await rt.session("s", agent="a")
    await session.send("go")
    await in_its_turn(model, session)
    queued = [await session.send("q1"), await session.send("q2")]
    await session.send("stop", mode="interrupt")
    assert (await queued[1].result(10)).text == "two"
    assert texts(await session.messages()) == [
        *("user: go", "user: stop", "assistant: stopped"),
        *("user: q1", "assistant: one", "user: q2", "assistant: two"),
    ]


async def test_each_turn_is_shown_under_what_it_was_begun_with(app: App) -> None:
    model = HeldModel(("go", say("a long answer")), STOP, ("more", say("fine")))
    rt = await app.open(model)
    session = await rt.session("s", agent="a")
    await session.send("go")
    await in_its_turn(model, session)
    await interrupted(session)
    await (await session.send("more", mode="steer")).result(10)
    assert [turn.said for turn in pictures(await session.journal())] == ['"go"', '"stop"', '"more"']


async def test_the_same_interruption_again_ends_nothing_more(app: App) -> None:
    model = HeldModel(("go", say("x")), STOP, ("on", say("fine", exact=True)), hold=3)
    rt = await app.open(model)
    session = await rt.session("s", agent="a")
    await session.send("go")
    await in_its_turn(model, session)
    first = await session.send("stop", mode="interrupt", key="k")
    model.go[1].set()
    await first.result(10)
    running = await session.send("on")
    await model.asked[2].wait()
    again = await session.send("stop", mode="interrupt", key="k")
    assert again.is_duplicate
    model.go[2].set()
    assert (await running.result(10)).text == "fine"


async def test_an_idle_session_is_not_interrupted_but_asked(app: App) -> None:
    rt = await app.open(ScriptedModel(say("stopped", exact=True)))
    session = await rt.session("s", agent="a")
    assert (await (await session.send("stop", mode="interrupt")).result(10)).text == "stopped"
    assert (await (await session.send("stop", mode="interrupt")).result(10)).text == "stopped"
    assert not [row for row in await session.journal() if row.kind == "cancel_requested"]


async def test_turn_started_during_the_send_is_interrupted(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender looks, finds nothing running, and writes; meanwhile a turn has begun."""
    model = HeldModel(("go", say("x")), STOP)
    rt = await app.open(model)
    away = await app.open(ScriptedModel(), worker=False)
    session = await rt.session("s", agent="a")
    await session.send("go")
    await in_its_turn(model, session)
    there = await away.session("s", agent="a")

    async def sees_nothing(session: Session) -> tuple[SessionState, Loaded]:
        return SessionState(), Loaded(None, (), ())

    monkeypatch.setattr(verbs, "loaded", sees_nothing)
    waiting = await there.send("stop", mode="interrupt")
    assert (await waiting.result(10)).text == "stopped"
    ends = [row.record for row in await session.journal() if isinstance(row.record, TurnEnded)]
    assert [end.reason for end in ends] == ["cancelled", None]


async def test_two_interruptions_end_two_turns(app: App) -> None:
    model = HeldModel(
        ("go", say("x")),
        STOP,
        ("now", say("fine", exact=True)),
        ("stop\nnow", say("fine", exact=True)),
        ("now\nstop", STOP[1]),
    )
    rt = await app.open(model)
    session = await rt.session("s", agent="a")
    await session.send("go")
    await in_its_turn(model, session)
    one, two = await asyncio.gather(
        session.send("stop", mode="interrupt"), session.send("now", mode="interrupt")
    )  # fmt: skip
    statuses = {(await one.result(10)).status, (await two.result(10)).status}
    assert "finished" in statuses  # whichever came last; the other one may have been ended before it was answered
    history = await session.messages()
    assert complaints(history) == []
    asked = [line for line in texts(history) if line.startswith("user")]
    assert asked[0] == "user: go"
    assert sorted(asked[1:]) == ["user: now", "user: stop"]
    assert history[-1].role == "assistant"


@pytest.mark.parametrize("cancels", ["before it ends", "when it has ended", "at some moment"])
async def test_racing_cancel_and_completion_report_the_same_outcome(app: App, cancels: str) -> None:
    gate = Gate()
    script = {"go": [call("pay"), say("ok", exact=True)], "again": [say("fine", exact=True)]}
    rt = await app.open(ScriptedModel.by_input(script), gate.pay)
    away = await app.open(ScriptedModel(), worker=False)
    for n in range(30 if cancels == "at some moment" else 3):
        gate.entered.clear()
        gate.go.clear()
        session, there = await rt.session(f"s{n}", agent="a"), await away.session(f"s{n}", agent="a")
        sent = await session.send("go")
        await gate.entered.wait()
        if cancels != "before it ends":
            gate.go.set()
        if cancels == "when it has ended":
            assert (await sent.result(10)).text == "ok"
        await asyncio.sleep(n % 10 / 1000)
        answer = await there.cancel(sent.turn_id)
        ended = await sent.result(10)
        expected = {"before it ends": {"requested"}, "when it has ended": {"completion_won"}}
        assert answer in expected.get(cancels, {"requested", "completion_won"})
        assert ended.reason == ("cancelled" if answer == "requested" else None), (n, answer)
        assert await session.cancel(sent.turn_id) == (
            "already_requested" if answer == "requested" else "completion_won"
        )
        known = {"before it ends": {"outcome_unknown"}, "when it has ended": {"paid"}}
        [told] = codes(await session.messages())
        assert told in known.get(cancels, {"outcome_unknown", "paid"}), (n, answer)  # it ran: never "cancelled"
        assert told == "paid" or answer == "requested"
        assert await session.ask("again") == "fine"
        assert len(gate.world) == n + 1


class Dies(Exception):
    """The crash of the caller."""


async def test_cancel_of_a_parked_turn_survives_a_crash(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    @tool(effect="resumable")
    async def ask(ctx: ToolContext) -> str:
        """Ask."""
        return str(await ctx.wait_for_event("answer"))

    rt = await app.open(ScriptedModel(call("ask"), say("no")), ask, tuning=RuntimeOptions(idle_timeout_s=0))
    away = await app.open(ScriptedModel(), worker=False)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await until(lambda: _parked(session))

    async def die(*_: object) -> None:
        raise Dies

    monkeypatch.setattr(core_of(away), "notify_stream", die)
    with pytest.raises(Dies):
        await (await away.session("s", agent="a")).cancel()
    assert (await sent.result(10)).reason == "cancelled"
