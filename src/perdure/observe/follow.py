"""The only read path: all durable facts after a cursor, in order, followed by live events.

Law: each durable fact is delivered once, in order, without gaps. An observer reads the store whenever an in-process
notification is not exactly the next record. Each character of a model's live text is shown once, in whichever process
the model call runs. If the call is repeated, the text shown before is first marked as superseded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from perdure.errors import Error
from perdure.ids import EffectId, Seq, StreamId, TurnId
from perdure.observe.events import Cursor, DeltasDropped, Event, Live, RecordEvent, TextDelta, TextReset
from perdure.observe.hub import Hub, HubSubscription
from perdure.store.live import Piece
from perdure.store.protocol import Store
from perdure.vocab.outcomes import LlmCallOutcome
from perdure.vocab.records import EffectSettled, EffectStarted, Row, TurnEnded, TurnOpened

PAGE = 256
LOOK_S = 0.1
"""Poll interval for live text while a model call may be running in another process."""


class Here(Protocol):
    """Live text of the model calls in this process."""

    def so_far(self, stream: StreamId) -> tuple[Piece, ...] | None:
        """Return the text of the model call running for a stream in this process; None without such a call."""
        ...


@dataclass(frozen=True, slots=True)
class Sources:
    """Sources of events: the store, the hub of this process, and the live text of its model calls."""

    store: Store
    hub: Hub
    here: Here


async def follow(
    sources: Sources, stream: StreamId, after: Cursor, *, while_there: bool = False
) -> AsyncIterator[Event]:
    """Yield the events of a stream after a cursor, without end; with `while_there`, until the stream is deleted."""
    observer = _Observer(sources, stream, after)
    with sources.hub.subscribe(stream) as news:
        while True:
            for event in observer.on_notify(news):
                yield event
            if news.look_again:
                news.look_again, before = False, observer.seq
                async for event in observer.poll():
                    yield event
                if while_there and observer.seq == before and await sources.store.stream(stream) is None:
                    return
            elif not news.items:
                await observer.wait(news)


class _Observer:
    """The read position of one observer of a stream: `seq` is the last delivered fact."""

    def __init__(self, sources: Sources, stream: StreamId, after: Cursor) -> None:
        self.seq = after.seq
        self._sources = sources
        self._stream = stream
        self._live = _Live(after)

    def on_notify(self, news: HubSubscription) -> Iterator[Event]:
        """Yield the events published in this process. A gap comes first, because the consumer may stop after the last
        remaining item."""
        while news.items or news.dropped:
            if news.dropped:
                dropped, news.dropped = news.dropped, 0
                yield DeltasDropped(Cursor(self.seq), dropped)
                continue
            item = news.items.popleft()
            if isinstance(item, TextDelta):
                yield from self._show(_piece_of(self._stream, item), self._sources.here.so_far(self._stream) or ())
            elif not isinstance(item, Row):
                if not self._live.is_saved(item):
                    yield replace(item, cursor=replace(item.cursor, seq=self.seq))
            elif item.seq == self.seq + 1:
                yield from self._fact(item)
            elif item.seq > self.seq:
                news.look_again = True

    async def poll(self) -> AsyncIterator[Event]:
        """Yield the events in the store: facts, then the live text of the running model call."""
        async for row in _pages(self._sources.store, self._stream, self.seq):
            for event in self._fact(row):
                yield event
        for piece in await self._written():
            for event in self._show(piece):
                yield event

    async def wait(self, news: HubSubscription) -> None:
        """Wait for a notification. Live text of another process sends none, so the wait then ends after `LOOK_S`."""
        elsewhere = self._live.asked and self._sources.here.so_far(self._stream) is None
        try:
            async with asyncio.timeout(LOOK_S if elsewhere else None):
                await news.wait()
        except TimeoutError:
            news.look_again = True

    def _fact(self, row: Row) -> Iterator[Event]:
        self.seq = row.seq
        yield from self._live.note(_fact(row))

    def _show(self, piece: Piece, behind: tuple[Piece, ...] = ()) -> Iterator[Event]:
        for event in self._live.show(piece, behind):
            yield replace(event, cursor=replace(event.cursor, seq=self.seq))

    async def _written(self) -> tuple[Piece, ...]:
        """Return the live text of the running model call, from any process; on a store error, no text."""
        live, store = self._live, self._sources.store
        if not live.asked:
            return ()
        if (here := self._sources.here.so_far(self._stream)) is not None:
            return here
        try:
            pieces = await store.live.read(self._stream)
            if pieces and live.unseen_before(pieces[-1]):  # the call began before the cursor and may have ended since
                between = await store.read(self._stream, after=pieces[-1].seq, until=live.since)
                live.recall([_fact(row) for row in between])
        except Error:
            return ()
        return tuple(one for one in pieces if (one.turn, one.effect, one.run) == _call_of(pieces[-1]))


async def _pages(store: Store, stream: StreamId, seq: Seq) -> AsyncIterator[Row]:
    while rows := await store.read(stream, after=seq, limit=PAGE):
        for row in rows:
            yield row
        seq = rows[-1].seq
        if len(rows) < PAGE:
            return


def _call_of(piece: Piece) -> tuple[TurnId, EffectId, int]:
    return piece.turn, piece.effect, piece.run


def _fact(row: Row) -> RecordEvent:
    return RecordEvent(Cursor(row.seq), row.at, row.record)


def _piece_of(stream: StreamId, item: TextDelta) -> Piece:
    cursor = item.cursor
    start = cursor.offset - len(item.text)
    return Piece(stream, item.turn, item.effect, cursor.run, cursor.seq, start, item.text, thinking=item.thinking)


class _Live:
    """The live text of the open turn shown to this observer, and the settled effects of the turn."""

    def __init__(self, after: Cursor) -> None:
        self.since = after.seq
        self.asked = True  # unknown at first, so a model call is assumed
        self._turn: TurnId | None = None
        self._saved: set[EffectId] = set()
        self._effect, self._run, self._offset = after.effect, after.run, after.offset
        self._of: TurnId | None = None  # the turn of the shown text; None if the text is known only from the cursor

    def note(self, fact: RecordEvent) -> Iterator[Event]:
        """Yield a fact, preceded by `TextReset` if the fact voids the shown text."""
        match fact.record:
            case TurnOpened(turn=turn):
                self._turn, self._saved = turn, set()
            case EffectStarted(id=effect) if effect.startswith("m"):
                self.asked = True
            case EffectSettled(id=effect, outcome=outcome):
                self._saved.add(effect)
                if isinstance(outcome, LlmCallOutcome):
                    self.asked = False
                    if outcome.reply is None and effect == self._effect and self._offset:
                        yield self._supersede(fact.cursor)
                    self._effect, self._offset = EffectId(""), 0
            case TurnEnded():
                self.asked = False
            case _:
                pass
        yield fact

    def recall(self, facts: list[RecordEvent]) -> None:
        """Take note of the facts between the start of a model call and the cursor."""
        for fact in facts:
            if isinstance(fact.record, EffectSettled):
                self._saved.add(fact.record.id)

    def unseen_before(self, piece: Piece) -> bool:
        """Return whether the call of a piece began before the first record that this observer reads."""
        return self._turn is None and piece.seq < self.since

    def is_saved(self, piece: Live | Piece) -> bool:
        """Return whether the effect is settled, so that its later live pieces are outdated."""
        watched_from_the_middle = self._turn is None
        return (watched_from_the_middle or piece.turn == self._turn) and piece.effect in self._saved

    def show(self, piece: Piece, behind: tuple[Piece, ...]) -> Iterator[TextDelta | TextReset]:
        """Yield the new part of a piece. Missed text before it is taken from `behind`, all text of the call so far."""
        if self.is_saved(piece) or (self._turn is not None and piece.turn != self._turn):
            return
        if (piece.effect, piece.run) != (self._effect, self._run) or self._of not in (None, piece.turn):
            if self._older(piece):
                return
            if self._offset:
                yield self._supersede(Cursor(self.since))
            self._effect, self._run, self._offset = piece.effect, piece.run, 0
        self._of = piece.turn
        if piece.start > self._offset:
            for one in behind:
                if (one.effect, one.run) == (piece.effect, piece.run) and one.start < piece.start:
                    yield from self._rest(one)
        if piece.start <= self._offset:  # after a hole, show nothing: the saved reply contains the text
            yield from self._rest(piece)

    def _older(self, piece: Piece) -> bool:
        """Return whether a piece belongs to an earlier run than the one shown last."""
        return piece.effect == self._effect and self._of == piece.turn and piece.run < self._run

    def _rest(self, piece: Piece) -> Iterator[TextDelta]:
        if piece.end <= self._offset:
            return
        text = piece.text[max(0, self._offset - piece.start) :]
        self._offset = piece.end
        cursor = Cursor(piece.seq, piece.effect, piece.end, piece.run)
        yield TextDelta(cursor, piece.turn, piece.effect, text, piece.thinking)

    def _supersede(self, cursor: Cursor) -> TextReset:
        effect, chars, self._offset = self._effect, self._offset, 0
        return TextReset(cursor, self._of or self._turn or TurnId(""), effect, chars)
