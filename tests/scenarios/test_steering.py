"""Steering: what is sent to a running turn is shown to its model exactly once, in this turn or the next."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from perdure import RuntimeOptions, ToolContext, tool
from perdure.inbox.items import Input
from perdure.models.scripted import ScriptedModel, call, fail, say
from perdure.observe.events import RecordEvent
from perdure.runtime import lifetime
from perdure.runtime.internals import ref_of
from perdure.runtime.sessions.sent import TurnHandle
from perdure.runtime.sessions.session import Session
from perdure.runtime.turns.waiting import InboxView
from perdure.store.shapes import InboxRow
from perdure.testing.validity import complaints
from perdure.vocab.messages import Text
from perdure.vocab.records import InputAdmitted, TurnEnded, kind_of
from tests.scenarios.conftest import App, until
from tests.scenarios.verbs import Gate, HeldModel, in_its_turn, texts

GO_LOOK = {"go": [call("look"), say("done", exact=True)], "quietly": [say("hush", exact=True)]}


async def test_steering_reaches_the_next_model_call_of_the_running_turn(app: App) -> None:
    gate, model = Gate(), ScriptedModel.by_input(GO_LOOK)
    rt = await app.open(model, gate.look)
    session = await rt.session("s", agent="a")
    first = await session.send("go")
    await gate.entered.wait()
    steered = await session.send("quietly", mode="steer", sent_by="web")
    gate.go.set()
    ended, answered = await first.result(10), await steered.result(10)
    assert ended == answered
    assert (ended.turn_id, ended.text) == (first.turn_id, "hush")
    assert texts(await session.messages()) == ["user: go", "user: quietly", "assistant: hush"]
    [one, two] = [row.record for row in await session.journal() if isinstance(row.record, InputAdmitted)]
    assert (one.mode, one.joins, two.mode, two.joins, two.source) == ("queue", False, "steer", True, "web")
    assert texts(model.requests[1].messages) == ["user: go", "user: quietly"]
    assert await session.queued_inputs() == ()


async def test_steering_from_another_process_reaches_it_too(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, model = Gate(), ScriptedModel.by_input(GO_LOOK)
    rt = await app.open(model, gate.look)
    away = await app.open(ScriptedModel(), worker=False)
    session, there = await rt.session("s", agent="a"), await away.session("s", agent="a")
    first = await session.send("go")
    await gate.entered.wait()
    see, heard = InboxView.see, asyncio.Event()

    def listening(waiting: InboxView, rows: Iterable[InboxRow]) -> None:
        found = tuple(rows)
        see(waiting, found)
        if any(isinstance(row.item, Input) and row.item.mode == "steer" for row in found):
            heard.set()

    monkeypatch.setattr(InboxView, "see", listening)
    steered = await there.send("quietly", mode="steer")
    await heard.wait()  # its worker looks at what others write
    gate.go.set()
    assert await steered.result(10) == await first.result(10)
    assert texts(await session.messages()) == ["user: go", "user: quietly", "assistant: hush"]


async def test_steering_that_was_cancelled_while_it_waited_is_not_shown(app: App) -> None:
    gate, model = Gate(), ScriptedModel.by_input(GO_LOOK)
    rt = await app.open(model, gate.look)
    session = await rt.session("s", agent="a")
    first = await session.send("go")
    await gate.entered.wait()
    steered = await session.send("quietly", mode="steer")
    assert await session.cancel(steered.turn_id) == "requested"
    gate.go.set()
    assert (await first.result(10)).text == "done"
    ended = await steered.result(10)
    assert (ended.turn_id, ended.reason) == (steered.turn_id, "cancelled")
    assert [texts(request.messages) for request in model.requests] == [["user: go"], ["user: go"]]


async def test_steering_that_comes_too_late_opens_the_next_turn(app: App) -> None:
    model = HeldModel(("go", say("one", exact=True)), ("quietly", say("two", exact=True)))
    rt = await app.open(model)
    session = await rt.session("s", agent="a")
    first = await session.send("go")
    await in_its_turn(model, session)
    steered = await session.send("quietly", mode="steer")
    assert [(one.input, one.mode) for one in await session.queued_inputs()] == [(steered.input_id, "steer")]
    model.go[0].set()
    assert (await first.result(10)).text == "one"
    late = await steered.result(10)
    assert (late.text, late.turn_id) == ("two", steered.turn_id)
    assert texts(await session.messages()) == ["user: go", "assistant: one", "user: quietly", "assistant: two"]


async def test_steering_an_idle_session_is_an_input_like_any_other(app: App) -> None:
    rt = await app.open(ScriptedModel(say("ok", exact=True)))
    session = await rt.session("s", agent="a")
    assert (await (await session.send("one", mode="steer")).result(10)).text == "ok"
    sent = await session.send("two", mode="steer")
    assert (await sent.result(10)).turn_id == sent.turn_id


async def test_steered_input_during_backoff_reaches_the_next_attempt(app: App) -> None:
    model = ScriptedModel.by_input({"go": [fail(503), say("late")], "quietly": [say("hush", exact=True)]})
    rt = await app.open(model)
    session = await rt.session("s", agent="a")
    first = await session.send("go")
    await until(lambda: _count(model, 1))
    await session.send("quietly", mode="steer")
    assert (await first.result(10)).text == "hush"
    assert texts(model.requests[1].messages) == ["user: go", "user: quietly"]


async def _count(model: ScriptedModel, requests: int) -> bool:
    return len(model.requests) >= requests


async def test_several_are_shown_in_the_order_in_which_they_came(app: App) -> None:
    gate = Gate()
    model = ScriptedModel.by_input({"go": [call("look")]}, default=[say("ok", exact=True)])
    rt = await app.open(model, gate.look)
    session = await rt.session("s", agent="a")
    first = await session.send("go")
    await gate.entered.wait()
    sent = [await session.send(f"n{n}", mode="steer") for n in range(5)]
    gate.go.set()
    assert {(await one.result(10)).turn_id for one in sent} == {first.turn_id}
    assert texts(model.requests[1].messages) == ["user: go", *(f"user: n{n}" for n in range(5))]


async def test_a_missed_one_joins_the_turn_of_what_was_queued_before_it(app: App) -> None:
    model = HeldModel(("go", say("one", exact=True)), ("next", say("two", exact=True)), ("also\nnext", say("x")))
    rt = await app.open(model)
    session = await rt.session("s", agent="a")
    await session.send("go")
    await in_its_turn(model, session)
    queued = await session.send("next")
    steered = await session.send("next", mode="steer")
    model.go[0].set()
    assert (await queued.result(10)).turn_id == (await steered.result(10)).turn_id == queued.turn_id
    assert texts(await session.messages()) == [
        *("user: go", "assistant: one", "user: next", "user: next", "assistant: two")
    ]


async def test_the_same_key_is_steered_once_and_has_one_answer(app: App) -> None:
    gate, model = Gate(), ScriptedModel.by_input(GO_LOOK)
    rt = await app.open(model, gate.look)
    session = await rt.session("s", agent="a")
    first = await session.send("go")
    await gate.entered.wait()
    one = await session.send("quietly", mode="steer", key="k")
    two = await session.send("quietly", mode="steer", key="k")
    gate.go.set()
    assert two.is_duplicate
    assert await one.result(10) == await two.result(10) == await first.result(10)
    again = await session.send("quietly", mode="steer", key="k")
    assert again.is_duplicate
    assert (await again.result(10)).turn_id == first.turn_id


async def test_events_of_a_steered_input_come_from_its_turn(app: App) -> None:
    gate = Gate()
    rt = await app.open(ScriptedModel.by_input(GO_LOOK), gate.look)
    session = await rt.session("s", agent="a")
    first = await session.send("go")
    await gate.entered.wait()
    steered = await session.send("quietly", mode="steer")
    live = asyncio.create_task(_facts(steered))
    await asyncio.sleep(0.05)
    gate.go.set()
    for kinds in (await live, await _facts(steered)):
        assert kinds[0] == "input_admitted"
        assert kinds[-1] == "turn_ended"
    ends = [row.record for row in await session.journal() if isinstance(row.record, TurnEnded)]
    assert [end.turn for end in ends] == [first.turn_id]


async def _facts(sent: TurnHandle) -> list[str]:
    return [kind_of(event.record) async for event in sent.events() if isinstance(event, RecordEvent)]


async def test_a_parked_turn_is_steered_once_it_goes_on(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifetime, "SAFETY_LOOK_S", 3600.0)  # waiters are notified, and need not poll

    @tool(effect="resumable")
    async def ask(ctx: ToolContext) -> str:
        """Ask."""
        return str(await ctx.wait_for_event("answer"))

    model = ScriptedModel.by_input({"go": [call("ask")], "quietly": [say("hush", exact=True)]})
    rt = await app.open(model, ask, tuning=RuntimeOptions(idle_timeout_s=0))
    session = await rt.session("s", agent="a")
    first = await session.send("go")
    await until(lambda: _parked(session))
    steered = await session.send("quietly", mode="steer")
    await session.resolve("answer", 7)
    assert await steered.result(10) == await first.result(10)
    assert texts(await session.messages()) == ["user: go", "user: quietly", "assistant: hush"]


async def _parked(session: Session) -> bool:
    info = await ref_of(session).runtime.store.stream(ref_of(session).stream)
    return info is not None and info.parked


async def test_racing_the_end_of_the_turn_it_is_shown_exactly_once(app: App) -> None:
    rt = await app.open(ScriptedModel(say("ok", latency_ms=2)))
    away = await app.open(ScriptedModel(), worker=False)
    for n in range(40):
        session, there = await rt.session(f"s{n}", agent="a"), await away.session(f"s{n}", agent="a")
        first = await session.send("go")
        await asyncio.sleep(n % 8 / 1000)
        steered = await (session if n % 2 else there).send("left", mode="steer")
        assert (await steered.result(10)).status == "finished"
        assert (await first.result(10)).status == "finished"
        history = await session.messages()
        said = [part.text for message in history for part in message.parts if isinstance(part, Text)]
        assert said.count("left") == 1
        assert complaints(history) == []
        assert history[-1].role == "assistant"
        assert await session.queued_inputs() == ()
