"""The side channel of a database: an unlogged table, which is cheap and empty after a crash of the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from perdure.ids import StreamId
from perdure.store.live import KEPT_MS, Piece
from perdure.store.postgres.columns import flags, numbers, texts
from perdure.store.postgres.tx import PgTransaction

T = TypeVar("T")


class Doing(Protocol):
    """A function that runs work on a connection of the store."""

    async def __call__(self, work: Callable[[PgTransaction], Awaitable[T]]) -> T:
        """Run the work."""
        ...


class PostgresChannel:
    """A side channel in a separate table. Observers poll it; no notification is sent."""

    def __init__(self, do: Doing) -> None:
        self._do = do

    async def put(self, pieces: Sequence[Piece], *, over: Sequence[tuple[StreamId, int]] = (), now: int) -> None:
        """Delete the pieces of ended calls, then add pieces, in one statement."""
        values = (
            texts([stream for stream, _ in over]),
            numbers([run for _, run in over]),
            texts([p.stream for p in pieces]),
            texts([p.turn for p in pieces]),
            texts([p.effect for p in pieces]),
            numbers([p.run for p in pieces]),
            numbers([p.seq for p in pieces]),
            numbers([p.start for p in pieces]),
            texts([_storable(p.text) for p in pieces]),
            flags([p.thinking for p in pieces]),
            now,
            now - KEPT_MS,
        )
        await self._do(lambda on: on.all("live_put", *values))

    async def read(self, stream: StreamId) -> tuple[Piece, ...]:
        """Return the pieces of a stream."""
        return tuple(Piece(stream, *row) for row in await self._do(lambda on: on.all("live_read", stream)))

    async def forget(self, stream: StreamId) -> None:
        """Delete all pieces of a stream that was deleted."""
        await self._do(lambda on: on.all("live_forget", stream))


def _storable(text: str) -> str:
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}")  # same length; Postgres refuses no other character
