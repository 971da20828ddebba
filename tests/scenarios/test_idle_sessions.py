"""An input to a session that is idle in memory goes straight into the log: one append admits it and opens its turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import NoReturn

import pytest

from perdure import Agent, Error, Runtime, Sent
from perdure.commit.plan import Plan, Receipt
from perdure.errors import Code
from perdure.models.scripted import ScriptedModel, say
from perdure.runtime.clock import SystemClock
from perdure.runtime.work import MAX_SESSIONS
from perdure.store.memory.store import MemoryStore
from perdure.vocab.messages import Text
from perdure.vocab.records import InputAdmitted
from tests.scenarios.conftest import Desk


def said(text: str) -> ScriptedModel:
    return ScriptedModel(say(text))


async def idle(rt: Runtime) -> None:
    """Until no session is being served."""
    assert rt.worker is not None
    while rt.worker.serving.free < MAX_SESSIONS:  # noqa: ASYNC110 - nobody tells when a task is gone
        await asyncio.sleep(0)


async def test_a_turn_of_an_idle_session_is_two_appends(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    rt = await desk.open(said("hello"))
    session = await rt.session("s", agent="a")
    await session.ask("first")
    await idle(rt)

    def admit(*_: object, **__: object) -> NoReturn:
        raise AssertionError("an admission of its own")

    monkeypatch.setattr(rt.store, "admit", admit)
    before = rt.store.counters.plans
    for _ in range(5):
        await session.ask("again")
        await idle(rt)
    assert rt.store.counters.plans - before == 2 * 5
    kinds = [row.kind for row in (await session.rows())[-5:]]
    assert kinds == ["input_admitted", "turn_opened", "effect_started", "effect_settled", "turn_ended"]


async def test_of_two_inputs_at_once_the_second_waits_and_both_are_answered(desk: Desk) -> None:
    rt = await desk.open(said("hello"))
    session = await rt.session("s", agent="a")
    await session.ask("first")
    await idle(rt)
    both = await asyncio.gather(session.send("one"), session.send("two"))
    for sent in both:
        assert (await sent.result(timeout=10)).status == "finished"
    inputs = [row.record for row in await session.rows() if row.kind == "input_admitted"]
    assert [_text(record) for record in inputs] == ["first", "one", "two"]
    assert [record.turn for record in inputs[1:] if isinstance(record, InputAdmitted)] == [sent.turn for sent in both]


def _text(record: object) -> str:
    assert isinstance(record, InputAdmitted)
    (part,) = record.parts
    assert isinstance(part, Text)
    return part.text


async def test_a_key_is_looked_up_however_idle_the_session_is(desk: Desk) -> None:
    rt = await desk.open(said("hello"))
    session = await rt.session("s", agent="a")
    await session.ask("first")
    await idle(rt)
    once = await session.send("pay", key="k")
    await once.result(timeout=10)
    await idle(rt)
    again = await session.send("pay", key="k")
    assert (again.turn, again.duplicate) == (once.turn, True)
    with pytest.raises(Error) as caught:
        await session.send("pay more", key="k")
    assert caught.value.code is Code.INPUT_KEY_CONFLICT


async def test_an_input_to_a_session_that_was_deleted_elsewhere_opens_it_anew(desk: Desk) -> None:
    rt = await desk.open(said("hello"))
    session = await rt.session("s", agent="a")
    await session.ask("first")
    await idle(rt)
    elsewhere = await desk.open(said("hello"), worker=False)
    assert await elsewhere.existing("s").delete()
    await session.ask("second")
    assert [_text(row.record) for row in await session.rows() if row.kind == "input_admitted"] == ["second"]


async def test_a_store_that_fails_is_told_to_the_sender_and_nothing_is_sent_twice() -> None:
    """Whether the append was written cannot be known, so it is not tried again under another name."""

    class Failing(MemoryStore):
        failures = 0

        def append(self, plan: Plan) -> asyncio.Future[Receipt]:
            if self.failures:
                self.failures -= 1
                lost: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
                lost.set_exception(Error(Code.STORE_FAILED, "the disk is away"))
                return lost
            return super().append(plan)

    store = Failing(SystemClock())
    async with Runtime(store, agents=[Agent("a", model=said("hello"))]) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("first")
        await idle(rt)
        store.failures = 1
        with pytest.raises(Error) as caught:
            await session.send("second")
        assert caught.value.code is Code.STORE_FAILED
        await session.ask("third")
        assert [_text(row.record) for row in await session.rows() if row.kind == "input_admitted"] == ["first", "third"]


async def test_what_comes_from_elsewhere_while_a_turn_ends_is_answered(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the inbox after the append that ends the turn found none, and before its receipt is read."""
    rt, elsewhere = await desk.open(said("hello")), await desk.open(said("hello"), worker=False)
    there = await elsewhere.session("s", agent="a")
    append, sent = rt.store.append, list[Sent]()

    async def slipped_in(appending: Awaitable[Receipt]) -> Receipt:
        receipt = await appending
        if not sent:
            assert receipt.quiet
            sent.append(await there.send("second"))
        return receipt

    def append_and_send(plan: Plan) -> Awaitable[Receipt]:
        ends = any(entry.kind == "turn_ended" for entry in plan.entries)
        return slipped_in(append(plan)) if ends else append(plan)

    monkeypatch.setattr(rt.store, "append", append_and_send)
    session = await rt.session("s", agent="a")
    await session.ask("first")
    (second,) = sent
    assert (await second.result(timeout=20)).status == "finished"
    await idle(rt)
    assert (await (await there.send("third")).result(timeout=20)).status == "finished"
    inputs = [row.record for row in await session.rows() if row.kind == "input_admitted"]
    assert [_text(record) for record in inputs] == ["first", "second", "third"]
