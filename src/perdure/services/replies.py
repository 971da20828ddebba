"""Replies while they are written: that they still are, and what there is of one that broke off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from perdure.ids import SessionId, TurnId


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """How far a reply is. `last_delta_at` is the moment of the last real piece, in seconds since 1970."""

    accumulated_len: int
    last_delta_at: int


class StreamHeartbeater(Protocol):
    """Whoever wants to know that a model is still writing."""

    async def heartbeat(self, progress: StreamProgress) -> None:
        """Take notice. Best effort: it never raises, and may be cancelled anywhere."""
        ...


@dataclass(frozen=True, slots=True)
class PartialStreamState:
    """What was written of a reply that broke off; empty if it had begun and nothing had come."""

    accumulated: str = ""


class PartialStreamStore(Protocol):
    """Whoever remembers replies that broke off. Laws: `perdure.testing.laws.replies.PartialStreamLaws`."""

    async def get_partial_stream(self, session_id: SessionId, turn_id: TurnId) -> PartialStreamState | None:
        """The last reply of a turn that began and never ended, from its first character on and without a gap; None if
        there is none, or nobody knows of it. May raise anything."""
        ...
