"""The only read path: from any cursor, everything durable in order, then live.

Law: durable facts are delivered once each, in order, without gaps, whatever was missed in between; they come from the
store whenever the in-process news is not exactly the next record.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

from perdure.ids import EffectId, Seq, StreamId, TurnId
from perdure.observe.events import Cursor, Event, Fact, Gap, Live
from perdure.observe.hub import Hub
from perdure.store.protocol import Store
from perdure.vocab.records import EffectSettled, Row, TurnOpened

PAGE = 256


async def follow(
    store: Store, hub: Hub, stream: StreamId, after: Cursor, *, while_there: bool = False
) -> AsyncIterator[Event]:
    """Events of a stream after a cursor, endlessly; or `while_there`, until it is deleted."""
    seq = after.seq
    live = _Live()
    with hub.subscribe(stream) as news:
        while True:
            while news.items:
                item = news.items.popleft()
                if not isinstance(item, Row):
                    if not live.is_saved(item):
                        yield replace(item, cursor=replace(item.cursor, seq=seq))
                elif item.seq == seq + 1:
                    seq = item.seq
                    yield _noted(_fact(item), live)
                elif item.seq > seq:
                    news.look_again = True
            if news.dropped:
                dropped, news.dropped = news.dropped, 0
                yield Gap(Cursor(seq), dropped)
            if news.look_again:
                news.look_again, before = False, seq
                async for row in _pages(store, stream, seq):
                    seq = row.seq
                    yield _noted(_fact(row), live)
                if while_there and seq == before and await store.stream(stream) is None:
                    return
            elif not news.items:
                await news.wait()


async def _pages(store: Store, stream: StreamId, seq: Seq) -> AsyncIterator[Row]:
    while rows := await store.read(stream, after=seq, limit=PAGE):
        for row in rows:
            yield row
        seq = rows[-1].seq
        if len(rows) < PAGE:
            return


def _fact(row: Row) -> Fact:
    return Fact(Cursor(row.seq), row.at, row.record)


class _Live:
    """Which effects are settled: live pieces of them that come after that are old news."""

    def __init__(self) -> None:
        self._turn: TurnId | None = None
        self._saved: set[EffectId] = set()

    def note(self, fact: Fact) -> None:
        match fact.record:
            case TurnOpened(turn=turn):
                self._turn, self._saved = turn, set()
            case EffectSettled(id=effect):
                self._saved.add(effect)
            case _:
                pass

    def is_saved(self, piece: Live) -> bool:
        watched_from_the_middle = self._turn is None
        return (watched_from_the_middle or piece.turn == self._turn) and piece.effect in self._saved


def _noted(fact: Fact, live: _Live) -> Fact:
    live.note(fact)
    return fact
