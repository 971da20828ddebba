"""`ctx.process_events`: what a process tells those who watch it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from perdure.codec import Json


@dataclass(frozen=True, slots=True)
class ProcessEventInfo:
    """One event of a process, where it stands."""

    process_id: str
    sequence: int
    event_type: str
    payload: Json
    replay_key: str | None = None


class ProcessEvents(Protocol):
    """The events of the process a tool runs in. Outside a process there is no such service."""

    async def emit(self, event_type: str, payload: Json) -> ProcessEventInfo:
        """Append an event."""
        ...

    async def emit_request(self, event_type: str, payload: Json, *, replay_key: str) -> ProcessEventInfo:
        """Append an event under a key: the same key and content again is the same event."""
        ...

    async def wait_event_after(self, event_type: str, after: int) -> ProcessEventInfo:
        """The first event of a type after a sequence number, once there is one."""
        ...
