"""The only read path: from any cursor, everything durable in order, then live.

Law: durable facts are delivered once each, in order, without gaps, whatever was missed in between; they come from the
store whenever the in-process news is not exactly the next record.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from perdure.ids import Seq, StreamId
from perdure.observe.events import Cursor, Delta, Event, Fact, Gap
from perdure.observe.hub import Hub
from perdure.store.protocol import Store
from perdure.vocab.records import Row

PAGE = 256


async def follow(store: Store, hub: Hub, stream: StreamId, after: Cursor) -> AsyncIterator[Event]:
    """Events of a stream after a cursor, endlessly."""
    seq = after.seq
    with hub.subscribe(stream) as news:
        while True:
            while news.look_again:
                news.look_again = False
                async for row in _pages(store, stream, seq):
                    seq = row.seq
                    yield _fact(row)
            while news.items and not news.look_again:
                item = news.items.popleft()
                if isinstance(item, Delta):
                    yield Delta(
                        Cursor(seq, item.effect, item.cursor.offset), item.turn, item.effect, item.text, item.thinking
                    )
                elif item.seq == seq + 1:
                    seq = item.seq
                    yield _fact(item)
                elif item.seq > seq:
                    news.look_again = True
            if news.dropped:
                dropped, news.dropped = news.dropped, 0
                yield Gap(Cursor(seq), dropped)
            if not news.items and not news.look_again:
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
