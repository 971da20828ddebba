"""The client behind `ctx.emit`: events of the enclosing process for its observers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from perdure.codec import Json


@dataclass(frozen=True, slots=True)
class ProcessEventInfo:
    """One event of a process with its position."""

    process_id: str
    sequence: int
    event_type: str
    payload: Json
    replay_key: str | None = None


class ProcessEvents(Protocol):
    """The events of the enclosing process. Absent outside a process."""

    async def emit(self, event_type: str, payload: Json) -> ProcessEventInfo:
        """Append an event."""
        ...

    async def emit_request(self, event_type: str, payload: Json, *, replay_key: str) -> ProcessEventInfo:
        """Append an event under a key. Equal key and content give the same event."""
        ...

    async def wait_event_after(self, event_type: str, after: int) -> ProcessEventInfo:
        """Wait for the first event of a type after a sequence number."""
        ...
