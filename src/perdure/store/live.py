"""The side channel: live model text for observers in other processes.

No correctness depends on the channel: it may lose any piece at any time and is not part of a commit. The pieces of a
reply are deleted once the reply is in the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from perdure.ids import EffectId, Seq, StreamId, TurnId

KEPT_MS = 86_400_000
"""Pieces of a dead worker are deleted after a day."""


class Piece(msgspec.Struct, frozen=True, gc=False):
    """A piece of live model text, from offset `start` in the text of this `run` of a call.

    A model call repeated after its worker died is another run, numbered by the fence of its worker. `seq` is the last
    seq of the log when the run began. An empty piece marks output that is not shown, such as a tool call.
    """

    stream: StreamId
    turn: TurnId
    effect: EffectId
    run: int
    seq: Seq
    start: int
    text: str
    thinking: bool = False

    @property
    def end(self) -> int:
        """The offset after the last character."""
        return self.start + len(self.text)


class SideChannel(Protocol):
    """Pieces of live text, by stream."""

    async def put(self, pieces: Sequence[Piece], *, over: Sequence[tuple[StreamId, int]] = (), now: int) -> None:
        """Delete the pieces of ended calls, given as streams and runs, with those of earlier runs; then add pieces."""
        ...

    async def read(self, stream: StreamId) -> tuple[Piece, ...]:
        """Return the pieces of a stream by run and offset, the latest run last."""
        ...

    async def forget(self, stream: StreamId) -> None:
        """Delete all pieces of a stream that was deleted."""
        ...
