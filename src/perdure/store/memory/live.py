"""The side channel of the in-memory store."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.ids import StreamId
from perdure.store.live import KEPT_MS, Piece


class MemoryChannel:
    """A side channel in memory, with pieces by stream."""

    def __init__(self) -> None:
        self._pieces: dict[StreamId, list[Piece]] = {}
        self._told_at: dict[StreamId, int] = {}

    async def put(self, pieces: Sequence[Piece], *, over: Sequence[tuple[StreamId, int]] = (), now: int) -> None:
        """Delete the pieces of ended calls, then add pieces."""
        for stream, run in over:
            left = [piece for piece in self._pieces.pop(stream, ()) if piece.run > run]
            if left:
                self._pieces[stream] = left
        for piece in pieces:
            self._pieces.setdefault(piece.stream, []).append(piece)
            self._told_at[piece.stream] = now
        for stream in [stream for stream, at in self._told_at.items() if at < now - KEPT_MS]:
            await self.forget(stream)

    async def read(self, stream: StreamId) -> tuple[Piece, ...]:
        """Return the pieces of a stream."""
        return tuple(sorted(self._pieces.get(stream, ()), key=lambda piece: (piece.run, piece.seq, piece.start)))

    async def forget(self, stream: StreamId) -> None:
        """Delete all pieces of a stream that was deleted."""
        self._pieces.pop(stream, None)
        self._told_at.pop(stream, None)
