"""The only read path: from any cursor, everything durable in order, then live.

Law: durable facts are delivered once each, in order, without gaps, whatever was missed in between; they come from the
store whenever the in-process news is not exactly the next record. Of what a model writes, every place is shown once,
wherever it runs; if it is asked again, what was shown before is told to be superseded first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from perdure.errors import Error
from perdure.ids import EffectId, Seq, StreamId, TurnId
from perdure.observe.events import Cursor, Delta, Event, Fact, Gap, Live, Superseded
from perdure.observe.hub import Hub, Subscription
from perdure.store.live import Piece
from perdure.store.protocol import Store
from perdure.vocab.outcomes import LlmCallOutcome
from perdure.vocab.records import EffectSettled, EffectStarted, Row, TurnEnded, TurnOpened

PAGE = 256
LOOK_S = 0.1
"""How often an observer looks for what a model writes in another process, while one is asked there."""


class Here(Protocol):
    """What models are writing in this process."""

    def so_far(self, stream: StreamId) -> tuple[Piece, ...] | None:
        """What is being written in a stream here; None if nothing is."""
        ...


@dataclass(frozen=True, slots=True)
class Sources:
    """Where an observer looks: what is durable, who tells in this process, and what models write in it."""

    store: Store
    hub: Hub
    here: Here


async def follow(
    sources: Sources, stream: StreamId, after: Cursor, *, while_there: bool = False
) -> AsyncIterator[Event]:
    """Events of a stream after a cursor, endlessly; or `while_there`, until it is deleted."""
    observer = _Observer(sources, stream, after)
    with sources.hub.subscribe(stream) as news:
        while True:
            for event in observer.hear(news):
                yield event
            if news.look_again:
                news.look_again, before = False, observer.seq
                async for event in observer.look():
                    yield event
                if while_there and observer.seq == before and await sources.store.stream(stream) is None:
                    return
            elif not news.items:
                await observer.wait(news)


class _Observer:
    """How far somebody has read a stream: `seq` is the last fact."""

    def __init__(self, sources: Sources, stream: StreamId, after: Cursor) -> None:
        self.seq = after.seq
        self._sources = sources
        self._stream = stream
        self._live = _Live(after)

    def hear(self, news: Subscription) -> Iterator[Event]:
        """What was told in this process. That something was dropped comes first: after the last of what is left,
        nobody may be listening."""
        while news.items or news.dropped:
            if news.dropped:
                dropped, news.dropped = news.dropped, 0
                yield Gap(Cursor(self.seq), dropped)
                continue
            item = news.items.popleft()
            if isinstance(item, Delta):
                yield from self._show(_piece_of(self._stream, item), self._sources.here.so_far(self._stream) or ())
            elif not isinstance(item, Row):
                if not self._live.is_saved(item):
                    yield replace(item, cursor=replace(item.cursor, seq=self.seq))
            elif item.seq == self.seq + 1:
                yield from self._fact(item)
            elif item.seq > self.seq:
                news.look_again = True

    async def look(self) -> AsyncIterator[Event]:
        """What is in the store: facts, and then what a model is writing."""
        async for row in _pages(self._sources.store, self._stream, self.seq):
            for event in self._fact(row):
                yield event
        for piece in await self._written():
            for event in self._show(piece):
                yield event

    async def wait(self, news: Subscription) -> None:
        """Until there is something to look at. Who writes in another process does not tell, so then we look."""
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
        """What a model has written so far, here or elsewhere. What may be lost is not worth an error."""
        live, store = self._live, self._sources.store
        if not live.asked:
            return ()
        if (here := self._sources.here.so_far(self._stream)) is not None:
            return here
        try:
            pieces = await store.live.read(self._stream)
            if pieces and live.unseen_before(pieces[-1]):  # it began before our cursor: perhaps it is over since
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


def _fact(row: Row) -> Fact:
    return Fact(Cursor(row.seq), row.at, row.record)


def _piece_of(stream: StreamId, item: Delta) -> Piece:
    cursor = item.cursor
    start = cursor.offset - len(item.text)
    return Piece(stream, item.turn, item.effect, cursor.run, cursor.seq, start, item.text, thinking=item.thinking)


class _Live:
    """What of the running turn this observer has been shown, and which of its effects are settled."""

    def __init__(self, after: Cursor) -> None:
        self.since = after.seq
        self.asked = True  # a model may be at work: nobody knows yet
        self._turn: TurnId | None = None
        self._saved: set[EffectId] = set()
        self._effect, self._run, self._offset = after.effect, after.run, after.offset
        self._of: TurnId | None = None  # the turn of what was shown; None if only a cursor tells of it

    def note(self, fact: Fact) -> Iterator[Event]:
        """A fact, and before it what it makes of the text that was shown."""
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

    def recall(self, facts: list[Fact]) -> None:
        """What happened before the cursor, since the call began of which we have pieces."""
        for fact in facts:
            if isinstance(fact.record, EffectSettled):
                self._saved.add(fact.record.id)

    def unseen_before(self, piece: Piece) -> bool:
        """Whether a call began before what this observer reads."""
        return self._turn is None and piece.seq < self.since

    def is_saved(self, piece: Live | Piece) -> bool:
        """Whether the effect is settled: live pieces of it that come after that are old news."""
        watched_from_the_middle = self._turn is None
        return (watched_from_the_middle or piece.turn == self._turn) and piece.effect in self._saved

    def show(self, piece: Piece, behind: tuple[Piece, ...]) -> Iterator[Delta | Superseded]:
        """What of a piece is new. If places before it were missed, they are taken from all there is: `behind`."""
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
        if piece.start <= self._offset:  # a hole is not passed over: the saved reply has it
            yield from self._rest(piece)

    def _older(self, piece: Piece) -> bool:
        """Whether it is of a run that this observer has left behind."""
        return piece.effect == self._effect and self._of == piece.turn and piece.run < self._run

    def _rest(self, piece: Piece) -> Iterator[Delta]:
        if piece.end <= self._offset:
            return
        text = piece.text[max(0, self._offset - piece.start) :]
        self._offset = piece.end
        cursor = Cursor(piece.seq, piece.effect, piece.end, piece.run)
        yield Delta(cursor, piece.turn, piece.effect, text, piece.thinking)

    def _supersede(self, cursor: Cursor) -> Superseded:
        effect, chars, self._offset = self._effect, self._offset, 0
        return Superseded(cursor, self._of or self._turn or TurnId(""), effect, chars)
