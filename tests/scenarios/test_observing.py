"""Watching: everything durable once and in order, live text while it is written, and no way to hurt what is watched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from perdure import Code, Delta, Error, Event, Fact, Gap, Runtime, ToolContext, Tuning, tool
from perdure.models.scripted import ScriptedModel, call, cut, say
from perdure.runtime.sessions.sent import Sent
from perdure.vocab.records import EffectSettled, EffectStarted, TurnEnded, TurnOpened
from tests.scenarios.conftest import Desk, until
from tests.scenarios.test_streaming import Typist


async def facts(rt: Runtime, after: str = "", *, until: int) -> list[Fact]:
    found: list[Fact] = []
    async with asyncio.timeout(10):
        async for event in rt.existing("s").events(after=after):
            if isinstance(event, Fact):
                found.append(event)
                if event.cursor.seq >= until:
                    return found
    raise AssertionError


async def test_events_of_a_turn_end_with_it(desk: Desk) -> None:
    model = Typist(("one ", "two ", "three"))
    rt = await desk.open(model)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    events: list[Event] = []
    async for event in sent.events():
        events.append(event)
        if _is_asking(event):
            model.go_on()
    records = [type(event.record) for event in events if isinstance(event, Fact)]
    assert records[-1] is TurnEnded
    assert TurnOpened in records
    assert "".join(event.text for event in events if isinstance(event, Delta)) == "one two three"


def _is_asking(event: Event) -> bool:
    """A model was asked, and whoever watches has heard of it."""
    return isinstance(event, Fact) and isinstance(event.record, EffectStarted)


async def test_text_streams_and_equals_the_saved_reply(desk: Desk) -> None:
    rt = await desk.open(ScriptedModel(say("one two three", chunks=4)))
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    text = "".join([piece async for piece in sent.text_stream()])
    assert text == (await sent.result(timeout=5)).text


async def test_a_reply_that_broke_off_is_followed_by_the_whole_new_one(desk: Desk) -> None:
    @tool(effect="pure")
    async def dawdle() -> None:
        """So that the observer is there in time."""
        await asyncio.sleep(0.1)

    rt = await desk.open(ScriptedModel(call("dawdle"), cut(after="one t"), say("one two", exact=True)), dawdle)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    text = "".join([piece async for piece in sent.text_stream()])
    assert text in ("one t\none two", "one two"), "what broke off before its start was durable is never shown"


async def test_any_cursor_resumes_exactly_after_it(desk: Desk) -> None:
    rt = await desk.open(ScriptedModel(say("ok")))
    session = await rt.session("s", agent="a")
    for n in range(5):
        await session.ask(f"input {n}")
    last = (await session.rows())[-1].seq
    everything = await facts(rt, until=last)
    assert [fact.cursor.seq for fact in everything] == list(range(1, last + 1))
    for index in (0, 3, last - 2):
        rest = await facts(rt, after=str(everything[index].cursor), until=last)
        assert [fact.cursor.seq for fact in rest] == list(range(index + 2, last + 1))


async def test_another_runtime_sees_the_same_and_can_send(desk: Desk) -> None:
    """An application that only talks, and a worker somewhere else."""
    worker = await desk.open(ScriptedModel(say("ok", exact=True)))
    talker = await desk.open(ScriptedModel(say("never asked")), worker=False)
    session = await talker.session("s", agent="a")
    sent = await session.send("go")
    assert (await sent.result(timeout=10)).text == "ok"
    last = (await session.rows())[-1].seq
    assert [f.cursor.seq for f in await facts(talker, until=last)] == [
        f.cursor.seq for f in await facts(worker, until=last)
    ]


async def test_an_observer_that_never_reads_delays_nothing_and_is_told_of_its_gap(desk: Desk) -> None:
    model = Typist(["word "] * 3000)
    rt = await desk.open(model)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    slow = session.events()
    seen = [await anext(slow)]
    while not _is_asking(seen[-1]):
        seen.append(await anext(slow))
    model.go_on(3001)
    assert (await sent.result(timeout=20)).status == "finished", "although its observer does not read"
    seen += [event async for event in _until_end(slow)]
    gaps = [event for event in seen if isinstance(event, Gap)]
    deltas = [event for event in seen if isinstance(event, Delta)]
    assert sum(gap.dropped for gap in gaps) > 900
    assert len(deltas) <= 1024
    assert ("word " * 3000).startswith("".join(event.text for event in deltas)), "what was missed is not passed over"
    seqs = [event.cursor.seq for event in seen if isinstance(event, Fact)]
    assert seqs == list(range(1, len(await session.rows()) + 1)), "no durable fact is ever dropped"


async def _until_end(events: AsyncIterator[Event]) -> AsyncIterator[Event]:
    async for event in events:
        yield event
        if isinstance(event, Fact) and isinstance(event.record, TurnEnded):
            return


async def test_why_says_what_is_waited_for(desk: Desk) -> None:
    release = asyncio.Event()
    started = asyncio.Event()

    @tool
    async def charge(ctx: ToolContext) -> None:
        """Charge."""
        started.set()
        await release.wait()

    rt = await desk.open(ScriptedModel(call("charge"), say("ok")), charge)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await session.send("second")
    await started.wait()
    why = await session.why()
    assert (why.status, why.queued, why.turn) == ("running", 1, sent.turn)
    assert why.summary == "waiting for tool charge; 1 input waits behind this turn"
    release.set()
    await sent.result(timeout=10)


async def test_a_session_can_be_deleted_and_its_name_used_again(desk: Desk) -> None:
    rt = await desk.open(ScriptedModel(say("ok")))
    session = await rt.session("s", agent="a")
    await session.ask("go", key="k")
    assert await session.delete() is True
    assert await rt.sessions() == ()
    await (await rt.session("s", agent="a")).ask("again", key="k")
    rows = await rt.existing("s").rows()
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    assert sum(isinstance(row.record, TurnEnded) for row in rows) == 1


async def test_the_log_reads_as_the_life_of_a_turn(desk: Desk) -> None:
    @tool
    def charge() -> str:
        """Charge."""
        return "done"

    rt = await desk.open(ScriptedModel(call("charge"), say("ok")), charge)
    session = await rt.session("s", agent="a")
    await session.ask("go")
    told = [
        f"{row.kind} {row.record.id}" if isinstance(row.record, EffectStarted | EffectSettled) else row.kind
        for row in await session.rows()
    ]
    assert told == [
        "session_opened",
        "input_admitted",
        "turn_opened",
        "effect_started m1.1",
        "effect_settled m1.1",
        "effect_started c1.0.1",
        "effect_settled c1.0.1",
        "effect_started m2.1",
        "effect_settled m2.1",
        "turn_ended",
    ]


async def test_the_events_of_a_turn_are_its_own(desk: Desk) -> None:
    """Two inputs right after each other: the second one's stream does not show the first one's replies."""
    model = ScriptedModel.by_input({"one": [say("first", latency_ms=30)], "two": [say("second")]})
    rt = await desk.open(model)
    session = await rt.session("s", agent="a")
    await session.send("one")
    second = await session.send("two")
    text = "".join([piece async for piece in second.text_stream()])
    assert text.startswith("second")
    assert "first" not in text


async def test_watching_a_turn_ends_when_its_session_is_deleted(desk: Desk) -> None:
    @tool(effect="resumable")
    async def wait(ctx: ToolContext) -> None:
        """Wait."""
        await ctx.event("never")

    model = ScriptedModel.by_input({"go": [call("wait")]}, default=[say("ok")])
    rt = await desk.open(model, wait, tuning=Tuning(patience_s=0.0))
    away = await desk.open(ScriptedModel(), worker=False)
    session = await rt.session("s", agent="a")
    sent = [await session.send("go"), await (await away.session("s", agent="a")).send("next")]
    tasks = [asyncio.create_task(watched(one)) for one in sent]

    async def waits() -> bool:
        return (await session.why()).status == "waiting"

    await until(waits)
    assert await away.existing("s").delete()
    async with asyncio.timeout(20):
        assert [await task for task in tasks] == [Code.TURN_UNKNOWN] * 2


async def watched(sent: Sent) -> Code | None:
    """Watch a turn to its end: why that could not be."""
    try:
        async for _ in sent.events():
            pass
    except Error as problem:
        return problem.code
    return None
