"""The side channel of a store in memory."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.ids import StreamId
from perdure.store.live import KEPT_MS, Piece


class MemoryChannel:
    """Pieces by stream."""

    def __init__(self) -> None:
        self._pieces: dict[StreamId, list[Piece]] = {}
        self._told_at: dict[StreamId, int] = {}

    async def put(self, pieces: Sequence[Piece], *, over: Sequence[tuple[StreamId, int]] = (), now: int) -> None:
        """Forget, then add."""
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
        """What there is of a stream."""
        return tuple(sorted(self._pieces.get(stream, ()), key=lambda piece: (piece.run, piece.seq, piece.start)))

    async def forget(self, stream: StreamId) -> None:
        """The stream is gone."""
        self._pieces.pop(stream, None)
        self._told_at.pop(stream, None)
