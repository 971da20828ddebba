"""The side channel: what models are writing this moment, for observers in other processes.

Nothing depends on it: it may lose anything, at any time, and is no part of a commit. What it holds of a stream is gone
once the reply is in the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from perdure.ids import EffectId, Seq, StreamId, TurnId

KEPT_MS = 86_400_000
"""What a worker that died has left behind is swept after a day."""


class Piece(msgspec.Struct, frozen=True, gc=False):
    """Some of what a model writes: from the place `start` of all it has said in this `run` of a call.

    A call that is asked again, because its worker died, is another run of it: the fence of who asks. `seq` is how far
    the log was when the run began. An empty piece tells that the model writes something which is not shown: a call.
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
        """Where it ends."""
        return self.start + len(self.text)


class SideChannel(Protocol):
    """Pieces of texts, by stream."""

    async def put(self, pieces: Sequence[Piece], *, over: Sequence[tuple[StreamId, int]] = (), now: int) -> None:
        """Add pieces, after forgetting those of streams whose call is over: of these runs, and earlier ones."""
        ...

    async def read(self, stream: StreamId) -> tuple[Piece, ...]:
        """What there is of a stream, in the order of its places, the latest run last."""
        ...

    async def forget(self, stream: StreamId) -> None:
        """The stream is gone."""
        ...
