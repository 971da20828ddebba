"""The only read path: every durable fact once and in order, whatever was missed in between."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.ids import Seq, TurnId
from perdure.observe import hub as hub_module
from perdure.observe.events import Cursor, DeltasDropped, RecordEvent, TextDelta
from perdure.observe.follow import PAGE
from perdure.observe.hub import QUEUE_LIMIT, HubSubscription
from tests.unit.observe.watching import Stream, watched
from tests.unit.turn.turning import asked, intent, ok, opening, said, unsaid, woke


@pytest.fixture
async def stream() -> Stream:
    stream = Stream()
    await stream.open()
    return stream


async def test_follower_reads_the_store_and_then_the_hub(stream: Stream) -> None:
    await stream.write(asked(), said("x"))
    async with watched(stream) as watcher:
        assert watcher.seqs == [1, 2, 3]
        await stream.tell(intent("c1.0.1"))
        await watcher.settle()
        assert watcher.seqs == [1, 2, 3, 4]
        fact = watcher.events[-1]
        assert isinstance(fact, RecordEvent)
        assert (fact.record, fact.at, fact.cursor) == (intent("c1.0.1"), 2, Cursor(Seq(4)))


@pytest.mark.parametrize("after", range(6))
async def test_any_cursor_is_a_place_to_go_on_from(stream: Stream, after: int) -> None:
    await stream.write(*[asked()] * 4)
    async with watched(stream, after) as watcher:
        await stream.tell(ok("c1.0.1"))
        await watcher.settle()
        assert watcher.seqs == list(range(after + 1, 7))


async def test_a_cursor_beyond_the_end_waits_for_what_follows_it(stream: Stream) -> None:
    async with watched(stream, after=4) as watcher:
        await stream.tell(asked(), asked(), asked(), asked(), asked())
        await watcher.settle()
        assert watcher.seqs == [5, 6]


async def test_more_than_a_page_is_read_page_by_page(stream: Stream) -> None:
    for _ in range(3):
        await stream.write(*[asked()] * 200)
    async with watched(stream) as watcher:
        assert watcher.seqs == list(range(1, 602))
    assert PAGE == 256


@pytest.mark.parametrize("rows", [255, 256, 257, 512])
async def test_the_edges_of_a_page_lose_nothing(stream: Stream, rows: int) -> None:
    while stream.last < rows:
        await stream.write(*[asked()] * min(100, rows - stream.last))
    async with watched(stream) as watcher:
        assert watcher.seqs == list(range(1, rows + 1))


async def test_records_of_another_writer_are_read_on_notification(stream: Stream) -> None:
    async with watched(stream) as watcher:
        await stream.write(asked(), said("x"))
        await watcher.settle()
        assert watcher.seqs == [1]
        stream.hub.notify(stream.id)
        await watcher.settle()
        assert watcher.seqs == [1, 2, 3]


async def test_records_of_another_writer_precede_later_records(stream: Stream) -> None:
    async with watched(stream) as watcher:
        await stream.write(asked(), said("x"))
        await stream.tell(intent("c1.0.1"))
        await watcher.settle()
        assert watcher.seqs == [1, 2, 3, 4]


async def test_a_row_told_twice_is_delivered_once(stream: Stream) -> None:
    async with watched(stream) as watcher:
        rows = await stream.write(asked())
        for _ in range(3):
            stream.hub.publish(stream.id, *rows)
        stream.hub.notify(stream.id)
        await watcher.settle()
        assert watcher.seqs == [1, 2]


async def test_live_pieces_carry_the_place_they_follow(stream: Stream) -> None:
    async with watched(stream) as watcher:
        stream.type("Hel")
        await stream.tell(asked())
        stream.type("lo")
        await watcher.settle()
        assert [(event.cursor.seq, type(event).__name__) for event in watcher.events] == [
            (1, "RecordEvent"),
            (1, "TextDelta"),
            (2, "RecordEvent"),
            (2, "TextDelta"),
        ]
        assert watcher.texts == ["Hel", "lo"]


async def test_a_slow_observer_is_told_how_many_live_pieces_it_missed(stream: Stream) -> None:
    async with watched(stream) as watcher:
        for index in range(QUEUE_LIMIT + 7):
            stream.type(str(index))
        await stream.tell(said("x"))
        await watcher.settle()
        gaps = [event for event in watcher.events if isinstance(event, DeltasDropped)]
        assert [gap.dropped for gap in gaps] == [7]
        assert watcher.seqs == [1, 2]


async def test_gap_is_reported_before_the_next_fact(stream: Stream) -> None:
    async with watched(stream) as watcher:
        await watcher.settle()
        stream.hub.miss(stream.id, 7)
        await stream.tell(said("x"))
        await watcher.settle()
        assert [
            event.dropped if isinstance(event, DeltasDropped) else event.cursor.seq for event in watcher.events
        ] == [1, 7, 2]


async def test_rows_are_never_dropped_however_slow_the_observer(stream: Stream) -> None:
    async with watched(stream) as watcher:
        watcher.may_read.clear()
        for _ in range(12):
            await stream.tell(*[asked()] * 100)
        watcher.may_read.set()
        await watcher.settle()
        assert watcher.seqs == list(range(1, 1_202))
        assert not any(isinstance(event, DeltasDropped) for event in watcher.events)


async def test_pieces_of_a_reply_never_follow_the_reply(stream: Stream) -> None:
    async with watched(stream) as watcher:
        await stream.tell(opening(TurnId("t")), asked())
        watcher.may_read.clear()
        stream.type("Hel")
        stream.type("lo")
        await stream.tell(said(text="Hello"))
        stream.hub.notify(stream.id)
        stream.type("Hello")
        watcher.may_read.set()
        await watcher.settle()
        assert watcher.seqs == [1, 2, 3, 4]
        assert [type(event).__name__ for event in watcher.events[3:]] == ["TextDelta", "TextDelta", "RecordEvent"]


@pytest.mark.parametrize("after", [0, 2, 3])
async def test_pieces_that_were_held_back_until_their_reply_was_durable_are_old(stream: Stream, after: int) -> None:
    await stream.write(opening(TurnId("t")), asked())
    async with watched(stream, after) as watcher:
        await stream.tell(said(text="Hello"))
        stream.type("Hello", seq=1)
        await watcher.settle()
        assert (watcher.seqs[-1], watcher.texts) == (4, [])


async def test_deltas_of_a_new_attempt_reuse_effect_ids(stream: Stream) -> None:
    async with watched(stream) as watcher:
        await stream.tell(opening(TurnId("t")), unsaid("m1.1"), woke("m1.1.sleep"))
        stream.type("again", effect="m1.2")
        await stream.tell(said(text="again", id="m1.2"), opening(TurnId("t2"), 1))
        stream.type("next", effect="m1.1", turn="t2")
        await watcher.settle()
        assert watcher.texts == ["again", "next"]


async def test_an_observer_that_leaves_is_forgotten(stream: Stream) -> None:
    async with watched(stream):
        assert stream.hub.watched(stream.id)
    assert not stream.hub.watched(stream.id)
    await stream.tell(asked())


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_every_fact_is_delivered_once_and_in_order_on_any_schedule(seed: int) -> None:
    asyncio.run(_any_schedule(Random(seed)))


async def _any_schedule(random: Random) -> None:
    stream = Stream()
    await stream.open()
    await stream.write(*[asked()] * random.randrange(4))
    after = random.randrange(stream.last + 2)
    with patch.object(hub_module, "HubSubscription", partial(HubSubscription, random.choice([1, 2, 5]))):
        async with watched(stream, after) as watcher:
            for _ in range(random.randrange(40)):
                await _something(random, stream, watcher.may_read)
            watcher.may_read.set()
            stream.hub.notify()
            await watcher.settle()
            assert watcher.seqs == list(range(after + 1, stream.last + 1))
            places = [event.cursor.seq for event in watcher.events]
            assert places == sorted(places)
            shown = sum(
                event.dropped if isinstance(event, DeltasDropped) else isinstance(event, TextDelta)
                for event in watcher.events
            )
            assert shown <= stream.typed


async def _something(random: Random, stream: Stream, may_read: asyncio.Event) -> None:
    match random.randrange(7):
        case 0:
            await stream.tell(*[asked()] * random.choice([1, 2, 5]))
        case 1:
            await stream.write(*[asked()] * random.choice([1, 2, 5]))
        case 2:
            for _ in range(random.randrange(5)):
                stream.type("x")
        case 3:
            stream.hub.notify(stream.id if random.random() < 0.5 else None)
        case 4:
            may_read.clear()
        case 5:
            may_read.set()
        case _:
            for _ in range(random.randrange(4)):
                await asyncio.sleep(0)
