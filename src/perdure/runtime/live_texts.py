"""Model output in progress in this process: kept until the reply is saved, and published in the side channel.

Laws: `say` returns at once, even if the store is slow. Texts go to the side channel at most every `INTERVAL_S` (or when
`MANY_CHARS` have gathered), all in one write, one write at a time. A call that ends earlier costs no write.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from perdure.clock import Clock
from perdure.errors import Error
from perdure.ids import EffectId, StreamId, TurnId
from perdure.store.live import Piece, SideChannel

log = logging.getLogger("perdure.runtime")

INTERVAL_S = 0.05
MANY_CHARS = 2048
MAX_CHARS = 4_194_304
"""The limit of kept text per call. A longer reply is refused when it ends."""


@dataclass(slots=True)
class _Call:
    """One run of a model call, and how much of its text is published."""

    turn: TurnId
    effect: EffectId
    run: int
    said: list[Piece] = field(default_factory=list[Piece])
    end: int = 0
    told: int = 0

    @property
    def name(self) -> tuple[TurnId, EffectId, int]:
        return self.turn, self.effect, self.run

    def untold(self) -> list[Piece]:
        """Return the unpublished pieces, joined, and mark them as published."""
        first = next((i for i, piece in enumerate(self.said) if piece.start >= self.told), len(self.said))
        fresh = joined(self.said[first:])
        self.said[first:] = fresh
        self.told = self.end
        return fresh


def joined(pieces: list[Piece]) -> list[Piece]:
    """Join adjacent pieces of the same kind."""
    texts: list[list[str]] = []
    firsts: list[Piece] = []
    end = 0
    for piece in pieces:
        if firsts and piece.text and firsts[-1].text and firsts[-1].thinking == piece.thinking and end == piece.start:
            texts[-1].append(piece.text)
        else:
            firsts.append(piece)
            texts.append([piece.text])
        end = piece.end
    return [
        Piece(p.stream, p.turn, p.effect, p.run, p.seq, p.start, "".join(text), thinking=p.thinking)
        for p, text in zip(firsts, texts, strict=True)
    ]


class LiveTexts:
    """The model output in progress in this process, by stream. A session has one model call at a time."""

    def __init__(self, channel: SideChannel, clock: Clock) -> None:
        self._channel = channel
        self._clock = clock
        self._calls: dict[StreamId, _Call] = {}
        self._dirty: set[StreamId] = set()
        self._over: dict[StreamId, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._closed = False

    def say(self, piece: Piece) -> None:
        """Add a piece that a model wrote."""
        call = self._calls.get(piece.stream)
        if call is None or call.name != (piece.turn, piece.effect, piece.run):
            self.over(piece.stream)
            call = self._calls[piece.stream] = _Call(piece.turn, piece.effect, piece.run)
        if call.end >= MAX_CHARS:
            return
        call.said.append(piece)
        call.end = piece.end
        self._dirty.add(piece.stream)
        if self._timer is None and self._writing is None:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._flush)
        elif call.end - call.told >= MANY_CHARS and self._timer is not None:
            self._flush()

    def so_far(self, stream: StreamId) -> tuple[Piece, ...] | None:
        """Return the text in progress in a stream, or None if this process has none."""
        call = self._calls.get(stream)
        return None if call is None else tuple(call.said)

    def over(self, stream: StreamId) -> None:
        """Drop a call whose reply is saved or will never be. The log replaces its text for readers."""
        call = self._calls.pop(stream, None)
        self._dirty.discard(stream)
        if call is not None and call.told:
            self._over[stream] = call.run
            if self._timer is None and self._writing is None and not self._closed:
                self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._flush)

    def leave(self, stream: StreamId) -> None:
        """Drop a call that this worker no longer owns. Its published text stays: the next owner recovers it."""
        self._calls.pop(stream, None)
        self._dirty.discard(stream)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is None and (self._dirty or self._over):
            self._writing = asyncio.create_task(self._write(), name="perdure:live")

    async def _write(self) -> None:
        pieces = [piece for stream in sorted(self._dirty) for piece in self._calls[stream].untold()]
        over = tuple(self._over.items())
        self._dirty.clear()
        self._over.clear()
        try:
            await self._channel.put(pieces, over=over, now=self._clock.wall_ms())
        except Error as problem:  # the next write repeats the pieces; after the last one they are lost
            log.debug("live texts not published error=%s", problem)
            self._untell(pieces)
        finally:
            self._writing = None
            if (self._dirty or self._over) and not self._closed:
                self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._flush)

    def _untell(self, pieces: Iterable[Piece]) -> None:
        """Mark pieces as unpublished after a failed write, so that the next write repeats them. A gap would be
        unreadable.
        """
        for piece in pieces:
            call = self._calls.get(piece.stream)
            if call is not None and call.name == (piece.turn, piece.effect, piece.run):
                call.told = min(call.told, piece.start)

    async def close(self) -> None:
        """Publish the remaining text, for the next owner of an unfinished call."""
        if self._writing is not None:
            await self._writing
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._over or self._dirty:
            await self._write()
