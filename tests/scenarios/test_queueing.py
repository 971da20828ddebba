"""What waits: seen in order, taken back alone or with all that came after it, replaced, drained together."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Agent, Code, Error, Runtime, ToolContext, tool
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.sessions.session import Session
from perdure.vocab.messages import Text
from perdure.vocab.records import InputAdmitted
from tests.scenarios.conftest import Desk, NewStore
from tests.scenarios.verbs import HeldModel, in_its_turn, texts

OK = say("ok", exact=True)


async def busy(desk: Desk, *inputs: str) -> tuple[HeldModel, Session]:
    """A session whose first turn runs until it is let go."""
    model = HeldModel(("go", OK), *((text, OK) for text in inputs))
    session = await (await desk.open(model)).session("s", agent="a")
    await session.send("go")
    await in_its_turn(model, session)
    return model, session


async def waiting(session: Session) -> list[str]:
    return [part.text for one in await session.queue() for part in one.parts if isinstance(part, Text)]


async def test_why_says_behind_what_an_input_waits(desk: Desk) -> None:
    model, session = await busy(desk, "one")
    sent = await session.send("one", source="web")
    why = await session.why()
    assert why.status == "running"
    assert why.queued == 1
    assert "1 input waits behind this turn" in why.summary
    [one] = await session.queue()
    assert (one.input, one.turn, one.mode, one.source) == (sent.input, sent.turn, "queue", "web")
    model.go[0].set()
    await sent.result(10)


async def test_an_input_that_waits_can_be_taken_back(desk: Desk) -> None:
    model, session = await busy(desk, "one", "two")
    one, two = await session.send("one", key="k"), await session.send("two")
    assert (await session.cancel_input(one, reason="never mind", origin="maria")).outcome == "cancelled"
    assert (await session.cancel_input(one)).outcome == "already_cancelled"
    assert (await session.cancel_input("in_nothing")).outcome == "not_found"
    model.go[0].set()
    assert (await two.result(10)).text == "ok"
    assert (await session.cancel_input(two.input)).outcome == "completed"
    ended = await one.result(10)
    assert (ended.status, ended.reason, ended.message) == ("stopped", "cancelled", "never mind")
    assert texts(await session.history()) == ["user: go", "assistant: ok", "user: two", "assistant: ok"]
    again = await session.send("one", key="k")  # the same input: it was cancelled, and stays so
    assert again.duplicate
    assert (await again.result(10)).reason == "cancelled"


async def test_an_input_that_a_turn_has_taken_cannot_be(desk: Desk) -> None:
    model, session = await busy(desk)
    [taken] = [row.record.input for row in await session.rows() if isinstance(row.record, InputAdmitted)]
    assert (await session.cancel_input(taken)).outcome == "already_claimed"
    model.go[0].set()


async def test_an_input_and_all_behind_it_are_taken_back_together(desk: Desk) -> None:
    model, session = await busy(desk, "a")
    sent = [await session.send(text) for text in ("a", "b", "c")]
    done = await session.cancel_input(sent[1], and_behind=True)
    assert (done.outcome, done.inputs) == ("cancelled", (sent[1].input, sent[2].input))
    assert await waiting(session) == ["a"]
    model.go[0].set()
    assert (await sent[0].result(10)).text == "ok"
    assert {(await one.result(10)).reason for one in sent[1:]} == {"cancelled"}


async def test_taken_back_or_answered_never_both_and_never_neither(desk: Desk) -> None:
    rt = await desk.open(ScriptedModel(say("ok", latency_ms=1, exact=True)))
    away = await desk.open(ScriptedModel(), worker=False)
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
        said = texts(await session.history())
        assert said.count("user: next") == (done.outcome != "cancelled")


async def test_a_later_input_with_the_same_merge_key_takes_the_place_of_the_one_that_waits(desk: Desk) -> None:
    model, session = await busy(desk, "v3", "other")
    sent = [await session.send(text, merge_key="doc") for text in ("v1", "v2", "v3")]
    other = await session.send("other")
    assert await waiting(session) == ["v3", "other"]
    model.go[0].set()
    assert {(await one.result(10)).turn for one in sent} == {sent[2].turn}
    assert (await other.result(10)).text == "ok"
    assert [line for line in texts(await session.history()) if "v" in line] == ["user: v3"]


async def test_a_merge_key_never_replaces_what_a_turn_has_taken(desk: Desk) -> None:
    rt = await desk.open(ScriptedModel(OK))
    session = await rt.session("s", agent="a")
    for text in ("v1", "v2"):
        assert (await (await session.send(text, merge_key="doc")).result(10)).text == "ok"
    assert texts(await session.history()) == ["user: v1", "assistant: ok", "user: v2", "assistant: ok"]


async def test_a_merge_key_does_not_bring_back_what_was_cancelled(desk: Desk) -> None:
    model, session = await busy(desk, "v2")
    first = await session.send("v1", merge_key="doc")
    assert await session.cancel(first.turn) == "requested"
    second = await session.send("v2", merge_key="doc")
    model.go[0].set()
    assert (await first.result(10)).reason == "cancelled"
    assert (await second.result(10)).text == "ok"


async def test_many_senders_of_one_merge_key_leave_one_input(desk: Desk) -> None:
    model, session = await busy(desk, *(f"v{n}" for n in range(8)))
    sent = await asyncio.gather(*(session.send(f"v{n}", merge_key="doc") for n in range(8)))
    [left] = await waiting(session)
    model.go[0].set()
    assert {(await one.result(10)).status for one in sent} == {"finished"}
    assert [line for line in texts(await session.history()) if "v" in line] == [f"user: {left}"]


async def test_queued_inputs_can_be_answered_together(new_store: NewStore) -> None:
    model = HeldModel(("go", OK), ("one\ntwo\nthree", OK), ("three", OK))
    async with Runtime(new_store(), agents=[Agent("a", model=model, drain="together")]) as rt:
        session = await rt.session("s", agent="a")
        await session.send("go")
        await in_its_turn(model, session)
        sent = [await session.send(text) for text in ("one", "two", "three")]
        model.go[0].set()
        assert {(await one.result(10)).turn for one in sent} == {sent[0].turn}
        assert texts(await session.history()) == [
            *("user: go", "assistant: ok", "user: one", "user: two", "user: three", "assistant: ok")
        ]


async def test_only_inputs_that_ask_for_the_same_are_answered_together_and_none_overtakes(new_store: NewStore) -> None:
    """Another model, or something else that the host says with it, is not lost, nor held against other words."""
    seen: list[int] = []

    @tool(effect="pure")
    async def look(ctx: ToolContext) -> str:
        """Look."""
        seen.append(ctx.plugin_input("crm", int) or 0)
        return "seen"

    inputs = ("one", "two\nthree", "four", "six")
    model = HeldModel(("go", OK), *((text, step) for text in inputs for step in (call("look"), OK)))
    async with Runtime(new_store(), agents=[Agent("a", model=model, tools=[look], drain="together")]) as rt:
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
        turns = [(await one.result(10)).turn for one in sent]
        own = [one.turn for one in sent]
        assert turns == [own[0], own[1], own[1], own[3], own[4], own[5]]
        assert seen == [1, 2, 0, 0]
        said = [line for line in texts(await session.history()) if line.startswith("user")]
        assert said == [f"user: {word}" for word in ("go", "one", "two", "three", "four", "five", "six")]


async def test_one_of_those_that_wait_together_can_be_cancelled(new_store: NewStore) -> None:
    model = HeldModel(("go", OK), ("one\nthree", OK), ("three", OK))
    async with Runtime(new_store(), agents=[Agent("a", model=model, drain="together")]) as rt:
        session = await rt.session("s", agent="a")
        await session.send("go")
        await in_its_turn(model, session)
        one, two, three = [await session.send(text) for text in ("one", "two", "three")]
        assert await session.cancel(two.turn) == "requested"
        model.go[0].set()
        assert {(await sent.result(10)).turn for sent in (one, three)} == {one.turn}
        assert (await two.result(10)).reason == "cancelled"


async def test_with_no_turn_open_what_comes_next_is_cancelled(desk: Desk) -> None:
    rt = await desk.open(ScriptedModel(OK))
    session = await rt.session("s", agent="a")
    await session.ask("hello")
    await session.pause()
    queued = await session.send("queued")
    urgent = await session.send("urgent", mode="interrupt")
    assert await session.cancel() == "requested"
    await session.resume()
    assert (await urgent.result(10)).reason == "cancelled"
    assert (await queued.result(10)).text == "ok"


async def test_the_same_key_in_another_mode_is_another_thing(desk: Desk) -> None:
    model, session = await busy(desk, "one")
    await session.send("one", key="k")
    with pytest.raises(Error) as caught:
        await session.send("one", key="k", mode="steer")
    assert caught.value.code is Code.INPUT_KEY_CONFLICT
    model.go[0].set()


async def test_a_mode_that_does_not_exist_is_refused(desk: Desk) -> None:
    rt = await desk.open(ScriptedModel(OK))
    session = await rt.session("s", agent="a")
    with pytest.raises(Error) as caught:
        await session.send("one", mode="shout")  # pyright: ignore[reportArgumentType]
    assert caught.value.code is Code.INVALID_ARGUMENT
