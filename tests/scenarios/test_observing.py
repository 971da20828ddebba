"""Watching: everything durable once and in order, live text while it is written, and no way to hurt what is watched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from perdure import Code, Error, Runtime, RuntimeOptions, ToolContext, tool
from perdure.events import DeltasDropped, Event, RecordEvent, TextDelta
from perdure.models.scripted import ScriptedModel, call, say, truncate
from perdure.runtime.sessions.sent import TurnHandle
from perdure.vocab.records import EffectSettled, EffectStarted, TurnEnded, TurnOpened
from tests.scenarios.conftest import App, until
from tests.scenarios.test_streaming import Typist


async def facts(rt: Runtime, after: str = "", *, until: int) -> list[RecordEvent]:
    found: list[RecordEvent] = []
    async with asyncio.timeout(10):
        async for event in rt.get_session("s").events(after=after):
            if isinstance(event, RecordEvent):
                found.append(event)
                if event.cursor.seq >= until:
                    return found
    raise AssertionError


async def test_events_of_a_turn_end_with_it(app: App) -> None:
    model = Typist(("one ", "two ", "three"))
    rt = await app.open(model)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    events: list[Event] = []
    async for event in sent.events():
        events.append(event)
        if _is_asking(event):
            model.go_on()
    records = [type(event.record) for event in events if isinstance(event, RecordEvent)]
    assert records[-1] is TurnEnded
    assert TurnOpened in records
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "one two three"


def _is_asking(event: Event) -> bool:
    """Return whether the event shows the start of a model call."""
    return isinstance(event, RecordEvent) and isinstance(event.record, EffectStarted)


async def test_text_streams_and_equals_the_saved_reply(app: App) -> None:
    rt = await app.open(ScriptedModel(say("one two three", chunks=4)))
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    text = "".join([piece async for piece in sent.stream_text()])
    assert text == (await sent.result(timeout=5)).text


async def test_a_reply_that_broke_off_is_followed_by_the_whole_new_one(app: App) -> None:
    @tool(effect="pure")
    async def dawdle() -> None:
        """So that the observer is there in time."""
        await asyncio.sleep(0.1)

    rt = await app.open(ScriptedModel(call("dawdle"), truncate(after="one t"), say("one two", exact=True)), dawdle)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    text = "".join([piece async for piece in sent.stream_text()])
    assert text in ("one t\none two", "one two"), "text cut off before its start was durable is never shown"


async def test_any_cursor_resumes_exactly_after_it(app: App) -> None:
    rt = await app.open(ScriptedModel(say("ok")))
    session = await rt.session("s", agent="a")
    for n in range(5):
        await session.ask(f"input {n}")
    last = (await session.journal())[-1].seq
    everything = await facts(rt, until=last)
    assert [fact.cursor.seq for fact in everything] == list(range(1, last + 1))
    for index in (0, 3, last - 2):
        rest = await facts(rt, after=str(everything[index].cursor), until=last)
        assert [fact.cursor.seq for fact in rest] == list(range(index + 2, last + 1))


async def test_another_runtime_sees_the_same_and_can_send(app: App) -> None:
    """An application that only talks, and a worker somewhere else."""
    worker = await app.open(ScriptedModel(say("ok", exact=True)))
    talker = await app.open(ScriptedModel(say("never asked")), worker=False)
    session = await talker.session("s", agent="a")
    sent = await session.send("go")
    assert (await sent.result(timeout=10)).text == "ok"
    last = (await session.journal())[-1].seq
    assert [f.cursor.seq for f in await facts(talker, until=last)] == [
        f.cursor.seq for f in await facts(worker, until=last)
    ]


async def test_slow_observer_delays_nothing_and_sees_its_gap(app: App) -> None:
    model = Typist(["word "] * 3000)
    rt = await app.open(model)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    slow = session.events()
    seen = [await anext(slow)]
    while not _is_asking(seen[-1]):
        seen.append(await anext(slow))
    model.go_on(3001)
    assert (await sent.result(timeout=20)).status == "finished", "although its observer does not read"
    seen += [event async for event in _until_end(slow)]
    gaps = [event for event in seen if isinstance(event, DeltasDropped)]
    deltas = [event for event in seen if isinstance(event, TextDelta)]
    assert sum(gap.dropped for gap in gaps) > 900
    assert len(deltas) <= 1024
    assert ("word " * 3000).startswith("".join(event.text for event in deltas)), "missed text is not skipped"
    seqs = [event.cursor.seq for event in seen if isinstance(event, RecordEvent)]
    assert seqs == list(range(1, len(await session.journal()) + 1)), "no durable fact is ever dropped"


async def _until_end(events: AsyncIterator[Event]) -> AsyncIterator[Event]:
    async for event in events:
        yield event
        if isinstance(event, RecordEvent) and isinstance(event.record, TurnEnded):
            return


async def test_why_says_what_is_waited_for(app: App) -> None:
    release = asyncio.Event()
    started = asyncio.Event()

    @tool
    async def charge(ctx: ToolContext) -> None:
        """Charge."""
        started.set()
        await release.wait()

    rt = await app.open(ScriptedModel(call("charge"), say("ok")), charge)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await session.send("second")
    await started.wait()
    why = await session.why()
    assert (why.status, why.queued, why.turn) == ("running", 1, sent.turn_id)
    assert why.summary == "waiting for tool charge; 1 input waits behind this turn"
    release.set()
    await sent.result(timeout=10)


async def test_a_session_can_be_deleted_and_its_name_used_again(app: App) -> None:
    rt = await app.open(ScriptedModel(say("ok")))
    session = await rt.session("s", agent="a")
    await session.ask("go", key="k")
    assert await session.delete() is True
    assert await rt.list_sessions() == ()
    await (await rt.session("s", agent="a")).ask("again", key="k")
    rows = await rt.get_session("s").journal()
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    assert sum(isinstance(row.record, TurnEnded) for row in rows) == 1


async def test_the_log_reads_as_the_life_of_a_turn(app: App) -> None:
    @tool
    def charge() -> str:
        """Charge."""
        return "done"

    rt = await app.open(ScriptedModel(call("charge"), say("ok")), charge)
    session = await rt.session("s", agent="a")
    await session.ask("go")
    told = [
        f"{row.kind} {row.record.id}" if isinstance(row.record, EffectStarted | EffectSettled) else row.kind
        for row in await session.journal()
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


async def test_the_events_of_a_turn_are_its_own(app: App) -> None:
    """Two inputs right after each other: the second one's stream does not show the first one's replies."""
    model = ScriptedModel.by_input({"one": [say("first", latency_ms=30)], "two": [say("second")]})
    rt = await app.open(model)
    session = await rt.session("s", agent="a")
    await session.send("one")
    second = await session.send("two")
    text = "".join([piece async for piece in second.stream_text()])
    assert text.startswith("second")
    assert "first" not in text


async def test_watching_a_turn_ends_when_its_session_is_deleted(app: App) -> None:
    @tool(effect="resumable")
    async def wait(ctx: ToolContext) -> None:
        """Wait."""
        await ctx.wait_for_event("never")

    model = ScriptedModel.by_input({"go": [call("wait")]}, default=[say("ok")])
    rt = await app.open(model, wait, tuning=RuntimeOptions(idle_timeout_s=0.0))
    away = await app.open(ScriptedModel(), worker=False)
    session = await rt.session("s", agent="a")
    sent = [await session.send("go"), await (await away.session("s", agent="a")).send("next")]
    tasks = [asyncio.create_task(watched(one)) for one in sent]

    async def waits() -> bool:
        return (await session.why()).status == "waiting"

    await until(waits)
    assert await away.get_session("s").delete()
    async with asyncio.timeout(20):
        assert [await task for task in tasks] == [Code.TURN_UNKNOWN] * 2


async def watched(sent: TurnHandle) -> Code | None:
    """Watch a turn to its end: why that could not be."""
    try:
        async for _ in sent.events():
            pass
    except Error as problem:
        return problem.code
    return None
