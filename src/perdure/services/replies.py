"""Progress of replies while they are streamed, and the partial text of interrupted ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from perdure.ids import SessionId, TurnId


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """The progress of a reply. `last_delta_at` is the time of the last delta, in seconds since 1970."""

    accumulated_len: int
    last_delta_at: int


class StreamHeartbeater(Protocol):
    """A receiver of heartbeats while a model streams."""

    async def heartbeat(self, progress: StreamProgress) -> None:
        """Receive a heartbeat. Best effort: never raises, and may be cancelled anywhere."""
        ...


@dataclass(frozen=True, slots=True)
class PartialStreamState:
    """The partial text of an interrupted reply. Empty if no delta arrived."""

    accumulated: str = ""


class PartialStreamStore(Protocol):
    """A store of interrupted replies. Laws: `perdure.testing.laws.replies.PartialStreamLaws`."""

    async def get_partial_stream(self, session_id: SessionId, turn_id: TurnId) -> PartialStreamState | None:
        """Return the last unfinished reply of a turn, from its first character without gaps, or None if unknown.

        May raise anything.
        """
        ...
