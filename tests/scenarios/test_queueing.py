"""Queued inputs: listed in order, cancelled alone or with all later ones, replaced, drained together."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Agent, Code, Error, Runtime, ToolContext, tool
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.sessions.session import Session
from perdure.vocab.messages import Text
from perdure.vocab.records import InputAdmitted
from tests.scenarios.conftest import App, NewStore
from tests.scenarios.verbs import HeldModel, in_its_turn, texts

OK = say("ok", exact=True)


async def busy(app: App, *inputs: str) -> tuple[HeldModel, Session]:
    """A session whose first turn runs until it is let go."""
    model = HeldModel(("go", OK), *((text, OK) for text in inputs))
    session = await (await app.open(model)).session("s", agent="a")
    await session.send("go")
    await in_its_turn(model, session)
    return model, session


async def waiting(session: Session) -> list[str]:
    return [part.text for one in await session.queued_inputs() for part in one.parts if isinstance(part, Text)]


async def test_why_says_behind_what_an_input_waits(app: App) -> None:
    model, session = await busy(app, "one")
    sent = await session.send("one", sent_by="web")
    why = await session.why()
    assert why.status == "running"
    assert why.queued == 1
    assert "1 input waits behind this turn" in why.summary
    [one] = await session.queued_inputs()
    assert (one.input, one.turn, one.mode, one.sent_by) == (sent.input_id, sent.turn_id, "queue", "web")
    model.go[0].set()
    await sent.result(10)


async def test_an_input_that_waits_can_be_taken_back(app: App) -> None:
    model, session = await busy(app, "one", "two")
    one, two = await session.send("one", key="k"), await session.send("two")
    assert (await session.cancel_input(one, reason="never mind", by="maria")).outcome == "cancelled"
    assert (await session.cancel_input(one)).outcome == "already_cancelled"
    assert (await session.cancel_input("in_nothing")).outcome == "not_found"
    model.go[0].set()
    assert (await two.result(10)).text == "ok"
    assert (await session.cancel_input(two.input_id)).outcome == "completed"
    ended = await one.result(10)
    assert (ended.status, ended.reason, ended.message) == ("stopped", "cancelled", "never mind")
    assert texts(await session.messages()) == ["user: go", "assistant: ok", "user: two", "assistant: ok"]
    again = await session.send("one", key="k")  # the same input: it was cancelled, and stays so
    assert again.is_duplicate
    assert (await again.result(10)).reason == "cancelled"


async def test_an_input_that_a_turn_has_taken_cannot_be(app: App) -> None:
    model, session = await busy(app)
    [taken] = [row.record.input for row in await session.journal() if isinstance(row.record, InputAdmitted)]
    assert (await session.cancel_input(taken)).outcome == "already_claimed"
    model.go[0].set()


async def test_an_input_and_all_behind_it_are_taken_back_together(app: App) -> None:
    model, session = await busy(app, "a")
    sent = [await session.send(text) for text in ("a", "b", "c")]
    done = await session.cancel_input(sent[1], include_later=True)
    assert (done.outcome, done.inputs) == ("cancelled", (sent[1].input_id, sent[2].input_id))
    assert await waiting(session) == ["a"]
    model.go[0].set()
    assert (await sent[0].result(10)).text == "ok"
    assert {(await one.result(10)).reason for one in sent[1:]} == {"cancelled"}


async def test_taken_back_or_answered_never_both_and_never_neither(app: App) -> None:
    rt = await app.open(ScriptedModel(say("ok", latency_ms=1, exact=True)))
    away = await app.open(ScriptedModel(), worker=False)
    for n in range(25):
        session, there = await rt.session(f"s{n}", agent="a"), await away.session(f"s{n}", agent="a")
        first = await session.send("go")
        second = await there.send("next")
        await asyncio.sleep(n % 6 / 1000)
        done = await there.cancel_input(second)
        ended = await second.result(10)
        assert ended.reason == ("cancelled" if done.outcome == "cancelled" else None), (n, done)
        assert (await first.result(10)).text == "ok"
        assert (await session.ask("after")) == "ok"
        said = texts(await session.messages())
        assert said.count("user: next") == (done.outcome != "cancelled")


async def test_input_replaces_a_queued_one_with_its_merge_key(app: App) -> None:
    model, session = await busy(app, "v3", "other")
    sent = [await session.send(text, replace_key="doc") for text in ("v1", "v2", "v3")]
    other = await session.send("other")
    assert await waiting(session) == ["v3", "other"]
    model.go[0].set()
    assert {(await one.result(10)).turn_id for one in sent} == {sent[2].turn_id}
    assert (await other.result(10)).text == "ok"
    assert [line for line in texts(await session.messages()) if "v" in line] == ["user: v3"]


async def test_a_merge_key_never_replaces_what_a_turn_has_taken(app: App) -> None:
    rt = await app.open(ScriptedModel(OK))
    session = await rt.session("s", agent="a")
    for text in ("v1", "v2"):
        assert (await (await session.send(text, replace_key="doc")).result(10)).text == "ok"
    assert texts(await session.messages()) == ["user: v1", "assistant: ok", "user: v2", "assistant: ok"]


async def test_a_merge_key_does_not_bring_back_what_was_cancelled(app: App) -> None:
    model, session = await busy(app, "v2")
    first = await session.send("v1", replace_key="doc")
    assert await session.cancel(first.turn_id) == "requested"
    second = await session.send("v2", replace_key="doc")
    model.go[0].set()
    assert (await first.result(10)).reason == "cancelled"
    assert (await second.result(10)).text == "ok"


async def test_many_senders_of_one_merge_key_leave_one_input(app: App) -> None:
    model, session = await busy(app, *(f"v{n}" for n in range(8)))
    sent = await asyncio.gather(*(session.send(f"v{n}", replace_key="doc") for n in range(8)))
    [left] = await waiting(session)
    model.go[0].set()
    assert {(await one.result(10)).status for one in sent} == {"finished"}
    assert [line for line in texts(await session.messages()) if "v" in line] == [f"user: {left}"]


async def test_queued_inputs_can_be_answered_together(new_store: NewStore) -> None:
    model = HeldModel(("go", OK), ("one\ntwo\nthree", OK), ("three", OK))
    async with Runtime(new_store(), agents=[Agent("a", model=model, batch_inputs=True)]) as rt:
        session = await rt.session("s", agent="a")
        await session.send("go")
        await in_its_turn(model, session)
        sent = [await session.send(text) for text in ("one", "two", "three")]
        model.go[0].set()
        assert {(await one.result(10)).turn_id for one in sent} == {sent[0].turn_id}
        assert texts(await session.messages()) == [
            *("user: go", "assistant: ok", "user: one", "user: two", "user: three", "assistant: ok")
        ]


async def test_equal_requests_are_answered_together_in_order(new_store: NewStore) -> None:
    """Another model, or something else that the host says with it, is not lost, nor held against other words."""
    seen: list[int] = []

    @tool(effect="pure")
    async def look(ctx: ToolContext) -> str:
        """Look."""
        seen.append(ctx.plugin_input("crm", int) or 0)
        return "seen"

    inputs = ("one", "two\nthree", "four", "six")
    model = HeldModel(("go", OK), *((text, step) for text in inputs for step in (call("look"), OK)))
    async with Runtime(new_store(), agents=[Agent("a", model=model, tools=[look], batch_inputs=True)]) as rt:
        session = await rt.session("s", agent="a")
        await session.send("go")
        await in_its_turn(model, session)
        sent = [
            await session.send("one", plugin_input={"crm": 1}),
            await session.send("two", plugin_input={"crm": 2}),
            await session.send("three", plugin_input={"crm": 2}),
            await session.send("four"),
            await session.send("five", model="sim:echo"),
            await session.send("six"),
        ]
        model.go[0].set()
        turns = [(await one.result(10)).turn_id for one in sent]
        own = [one.turn_id for one in sent]
        assert turns == [own[0], own[1], own[1], own[3], own[4], own[5]]
        assert seen == [1, 2, 0, 0]
        said = [line for line in texts(await session.messages()) if line.startswith("user")]
        assert said == [f"user: {word}" for word in ("go", "one", "two", "three", "four", "five", "six")]


async def test_one_of_those_that_wait_together_can_be_cancelled(new_store: NewStore) -> None:
    model = HeldModel(("go", OK), ("one\nthree", OK), ("three", OK))
    async with Runtime(new_store(), agents=[Agent("a", model=model, batch_inputs=True)]) as rt:
        session = await rt.session("s", agent="a")
        await session.send("go")
        await in_its_turn(model, session)
        one, two, three = [await session.send(text) for text in ("one", "two", "three")]
        assert await session.cancel(two.turn_id) == "requested"
        model.go[0].set()
        assert {(await sent.result(10)).turn_id for sent in (one, three)} == {one.turn_id}
        assert (await two.result(10)).reason == "cancelled"


async def test_with_no_turn_open_what_comes_next_is_cancelled(app: App) -> None:
    rt = await app.open(ScriptedModel(OK))
    session = await rt.session("s", agent="a")
    await session.ask("hello")
    await session.pause()
    queued = await session.send("queued")
    urgent = await session.send("urgent", mode="interrupt")
    assert await session.cancel() == "requested"
    await session.resume()
    assert (await urgent.result(10)).reason == "cancelled"
    assert (await queued.result(10)).text == "ok"


async def test_the_same_key_in_another_mode_is_another_thing(app: App) -> None:
    model, session = await busy(app, "one")
    await session.send("one", key="k")
    with pytest.raises(Error) as caught:
        await session.send("one", key="k", mode="steer")
    assert caught.value.code is Code.INPUT_KEY_CONFLICT
    model.go[0].set()


@pytest.mark.any_store
async def test_a_mode_that_does_not_exist_is_refused(app: App) -> None:
    rt = await app.open(ScriptedModel(OK))
    session = await rt.session("s", agent="a")
    with pytest.raises(Error) as caught:
        await session.send("one", mode="shout")  # pyright: ignore[reportArgumentType]
    assert caught.value.code is Code.INVALID_ARGUMENT
