"""The visibility of processes in sessions: adding, removing and moving entries, as events of the process.

Laws: a change of several processes applies to all or none. Removing an entry ends no process. The same change under the
same key applies once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perdure.codec import Json
from perdure.commit.changes import Label, Note
from perdure.commit.plan import Entry
from perdure.errors import Code, Error
from perdure.ids import SessionId, check_id, session_stream
from perdure.processes.registration import unknown
from perdure.processes.visibility import (
    OBSERVER_ADDED,
    OBSERVER_REMOVED,
    edge_tags,
    not_visible,
    observer_added,
    observer_removed,
    seen_from,
)
from perdure.vocab.processes import SessionScope
from perdure.vocab.records import ProcessEvent

if TYPE_CHECKING:
    from perdure.runtime.core import RuntimeCore
    from perdure.runtime.processes.handle import ProcessHandle


async def check_visible(rt: RuntimeCore, handles: Sequence[ProcessHandle], scope: SessionScope) -> None:
    """Raise if a process is not visible in a session, whether or not the process exists.

    Raises:
        Error: `process_not_visible`.
    """
    for handle in handles:
        info = await rt.store.stream(handle.stream)
        if info is None or seen_from(scope) not in info.tags:
            raise not_visible(handle.id, scope)


async def check_session(rt: RuntimeCore, scope: SessionScope) -> None:
    """Raise if a session does not exist: a later session of the same name must not see the process by accident.

    Raises:
        Error: `session_unknown`.
    """
    if await rt.store.stream(session_stream(rt.tenant, SessionId(scope.session_id))) is None:
        raise Error(
            Code.SESSION_UNKNOWN,
            f"unknown session {scope.session_id!r}; nothing was changed",
            hint="await session.send(...)",
            session=scope.session_id,
        )


async def existing_scope(rt: RuntimeCore, session: str, frame: str = "") -> SessionScope:
    """Return the scope of a session or frame.

    Raises:
        Error: `session_unknown`, `invalid_id`.
    """
    scope = SessionScope(session_id=check_id(session, what="the session id"), frame_id=frame)
    await check_session(rt, scope)
    return scope


async def add(rt: RuntimeCore, handles: Sequence[ProcessHandle], scope: SessionScope, *, replay: str) -> None:
    """Make processes visible in a session."""
    label = Label(adds=edge_tags(scope))
    await _write(rt, handles, OBSERVER_ADDED, observer_added(scope), label, replay)


async def remove(rt: RuntimeCore, handles: Sequence[ProcessHandle], scope: SessionScope, *, replay: str) -> None:
    """Make processes invisible in a session."""
    label = Label(drops=edge_tags(scope))
    await _write(rt, handles, OBSERVER_REMOVED, observer_removed(scope), label, replay)


async def move(
    rt: RuntimeCore, handles: Sequence[ProcessHandle], old: SessionScope, new: SessionScope, *, replay: str
) -> None:
    """Make processes visible in one session instead of another."""
    label = Label(adds=edge_tags(new), drops=tuple(tag for tag in edge_tags(old) if tag not in edge_tags(new)))
    await _write(rt, handles, OBSERVER_ADDED, observer_added(new, instead_of=old), label, replay)


async def _write(
    rt: RuntimeCore, handles: Sequence[ProcessHandle], event: str, payload: Json, label: Label, replay: str
) -> None:
    now, said = rt.clock.wall_ms(), ProcessEvent(event=event, payload=payload, replay=replay)
    entry = Entry.of(said, at=now)
    one_each = {handle.stream: handle for handle in handles}
    try:
        await rt.store.annotate_all([Note(stream, entry, label) for stream in one_each])
    except Error as problem:
        if problem.code is not Code.SESSION_UNKNOWN:
            raise
        gone = [handle for handle in one_each.values() if await rt.store.stream(handle.stream) is None]
        raise unknown(gone[0].id if gone else "") from None
    for stream in one_each:
        await rt.notify_stream(stream)
