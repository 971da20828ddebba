"""The description of a session, as `session.info()` and `rt.list_sessions()` return it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from perdure.errors import Code, Error
from perdure.ids import SessionId, StreamId, Tenant, session_stream
from perdure.observe.why import Status
from perdure.runtime.clock import moment_of
from perdure.store.shapes import StreamInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """A session in a list. `queue` and `priority` are None unless the session has its own.

    `rt.list_sessions(after=info.cursor)` continues a list after this session.
    """

    id: SessionId
    agent: str
    title: str
    tags: tuple[str, ...]
    queue: str | None
    priority: int | None
    is_paused: bool
    created_at: datetime
    updated_at: datetime
    cursor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDetails(SessionInfo):
    """One session. `model` is the model chosen for it, or an empty string if the agent's model answers."""

    model: str
    status: Status


def info_of(row: StreamInfo) -> SessionInfo:
    """Return the description of a session from its stream's row."""
    return SessionInfo(
        id=SessionId(row.name),
        agent=row.agent,
        title=row.title,
        tags=row.tags,
        queue=row.queue,
        priority=row.priority,
        is_paused=row.paused is not None,
        created_at=moment_of(row.created_at),
        updated_at=moment_of(row.updated_at),
        cursor=f"{row.updated_at}:{row.name}",
    )


def details_of(row: StreamInfo, model: str, status: Status) -> SessionDetails:
    """Return the description of a session with its model and status."""
    known = info_of(row)
    return SessionDetails(**{name: getattr(known, name) for name in known.__slots__}, model=model, status=status)


def place_after(cursor: str, tenant: Tenant) -> tuple[int, StreamId] | None:
    """Return the place in a list after which it continues, or None for its start.

    Raises:
        Error: `invalid_cursor`.
    """
    if not cursor:
        return None
    at, _, name = cursor.partition(":") if isinstance(cursor, str) else ("", "", "")  # pyright: ignore[reportUnnecessaryIsInstance] - any input
    if not (at.isascii() and at.isdecimal() and name):
        raise Error(Code.INVALID_CURSOR, f"invalid cursor {cursor!r:.60}", hint="the cursor of a SessionInfo")
    return int(at), session_stream(tenant, SessionId(name))
