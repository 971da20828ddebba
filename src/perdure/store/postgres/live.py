"""The side channel of a database: a table that is not logged, so it is cheap, and empty after a crash of the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from perdure.ids import StreamId
from perdure.store.live import KEPT_MS, Piece
from perdure.store.postgres.columns import flags, numbers, texts
from perdure.store.postgres.tx import Session

T = TypeVar("T")


class Doing(Protocol):
    """How something is done with a connection of the store."""

    async def __call__(self, work: Callable[[Session], Awaitable[T]]) -> T:
        """Do it."""
        ...


class PostgresChannel:
    """Pieces in a table of their own. Nobody is notified: whoever watches looks."""

    def __init__(self, do: Doing) -> None:
        self._do = do

    async def put(self, pieces: Sequence[Piece], *, over: Sequence[tuple[StreamId, int]] = (), now: int) -> None:
        """Forget, then add, in one statement."""
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
        """What there is of a stream."""
        return tuple(Piece(stream, *row) for row in await self._do(lambda on: on.all("live_read", stream)))

    async def forget(self, stream: StreamId) -> None:
        """The stream is gone."""
        await self._do(lambda on: on.all("live_forget", stream))


def _storable(text: str) -> str:
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}")  # as long as it was, and nothing else is refused
