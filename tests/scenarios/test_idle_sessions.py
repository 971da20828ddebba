"""An input to a session that is idle in memory goes straight into the log: one append admits it and opens its turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import NoReturn

import pytest

from perdure import Agent, Error, Runtime, TurnHandle
from perdure.commit.plan import Plan, Receipt
from perdure.errors import Code
from perdure.models.scripted import ScriptedModel, say
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of
from perdure.runtime.work import MAX_SESSIONS
from perdure.store.memory.store import MemoryStore
from perdure.vocab.messages import Text
from perdure.vocab.records import InputAdmitted
from tests.scenarios.conftest import App


def said(text: str) -> ScriptedModel:
    return ScriptedModel(say(text))


async def idle(rt: Runtime) -> None:
    """Until no session is being served."""
    worker = core_of(rt).worker
    assert worker is not None
    while worker.stream_pool.free < MAX_SESSIONS:  # noqa: ASYNC110 - no notification when a task is gone
        await asyncio.sleep(0)


async def test_a_turn_of_an_idle_session_is_two_appends(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    rt = await app.open(said("hello"))
    session = await rt.session("s", agent="a")
    await session.ask("first")
    await idle(rt)

    def admit(*_: object, **__: object) -> NoReturn:
        raise AssertionError("an admission of its own")

    monkeypatch.setattr(core_of(rt).store, "admit", admit)
    before = core_of(rt).store.counters.plans
    for _ in range(5):
        await session.ask("again")
        await idle(rt)
    assert core_of(rt).store.counters.plans - before == 2 * 5
    kinds = [row.kind for row in (await session.journal())[-5:]]
    assert kinds == ["input_admitted", "turn_opened", "effect_started", "effect_settled", "turn_ended"]


async def test_of_two_inputs_at_once_the_second_waits_and_both_are_answered(app: App) -> None:
    rt = await app.open(said("hello"))
    session = await rt.session("s", agent="a")
    await session.ask("first")
    await idle(rt)
    both = await asyncio.gather(session.send("one"), session.send("two"))
    for sent in both:
        assert (await sent.result(timeout=10)).status == "finished"
    inputs = [row.record for row in await session.journal() if row.kind == "input_admitted"]
    assert [_text(record) for record in inputs] == ["first", "one", "two"]
    assert [record.turn for record in inputs[1:] if isinstance(record, InputAdmitted)] == [
        sent.turn_id for sent in both
    ]


def _text(record: object) -> str:
    assert isinstance(record, InputAdmitted)
    (part,) = record.parts
    assert isinstance(part, Text)
    return part.text


async def test_a_key_is_looked_up_however_idle_the_session_is(app: App) -> None:
    rt = await app.open(said("hello"))
    session = await rt.session("s", agent="a")
    await session.ask("first")
    await idle(rt)
    once = await session.send("pay", key="k")
    await once.result(timeout=10)
    await idle(rt)
    again = await session.send("pay", key="k")
    assert (again.turn_id, again.is_duplicate) == (once.turn_id, True)
    with pytest.raises(Error) as caught:
        await session.send("pay more", key="k")
    assert caught.value.code is Code.INPUT_KEY_CONFLICT


async def test_an_input_to_a_session_that_was_deleted_elsewhere_opens_it_anew(app: App) -> None:
    rt = await app.open(said("hello"))
    session = await rt.session("s", agent="a")
    await session.ask("first")
    await idle(rt)
    elsewhere = await app.open(said("hello"), worker=False)
    assert await elsewhere.get_session("s").delete()
    await session.ask("second")
    assert [_text(row.record) for row in await session.journal() if row.kind == "input_admitted"] == ["second"]


async def test_failed_append_raises_in_send_without_resending() -> None:
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
        assert [_text(row.record) for row in await session.journal() if row.kind == "input_admitted"] == [
            "first",
            "third",
        ]


async def test_input_arriving_as_a_turn_ends_is_answered(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """The input arrives after the append that ends the turn found none, and before its receipt is read."""
    rt, elsewhere = await app.open(said("hello")), await app.open(said("hello"), worker=False)
    there = await elsewhere.session("s", agent="a")
    append, sent = core_of(rt).store.append, list[TurnHandle]()

    async def slipped_in(appending: Awaitable[Receipt]) -> Receipt:
        receipt = await appending
        if not sent:
            assert receipt.quiet
            sent.append(await there.send("second"))
        return receipt

    def append_and_send(plan: Plan) -> Awaitable[Receipt]:
        ends = any(entry.kind == "turn_ended" for entry in plan.entries)
        return slipped_in(append(plan)) if ends else append(plan)

    monkeypatch.setattr(core_of(rt).store, "append", append_and_send)
    session = await rt.session("s", agent="a")
    await session.ask("first")
    (second,) = sent
    assert (await second.result(timeout=20)).status == "finished"
    await idle(rt)
    assert (await (await there.send("third")).result(timeout=20)).status == "finished"
    inputs = [row.record for row in await session.journal() if row.kind == "input_admitted"]
    assert [_text(record) for record in inputs] == ["first", "second", "third"]
