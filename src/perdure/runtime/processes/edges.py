"""From which sessions a process is seen: edges are given, taken away and moved, as events of the process itself.

Laws: what is asked for several processes happens to all of them or to none. Taking an edge away ends nothing. The same
change under the same key is made once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perdure.codec import Json
from perdure.commit.changes import Label, Note
from perdure.commit.plan import Entry
from perdure.errors import Code, Error
from perdure.ids import SessionId, session_stream
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
    from perdure.runtime.processes.handle import ProcessHandle
    from perdure.runtime.runtime import Runtime


async def check_visible(rt: Runtime, handles: Sequence[ProcessHandle], scope: SessionScope) -> None:
    """Refuse processes that are not seen from a session, whether or not they exist.

    Raises:
        Error: `process_not_visible`.
    """
    for handle in handles:
        info = await rt.store.stream(handle.stream)
        if info is None or seen_from(scope) not in info.tags:
            raise not_visible(handle.id, scope)


async def check_session(rt: Runtime, scope: SessionScope) -> None:
    """Refuse a session that does not exist: nobody shall see by accident what was given to a namesake.

    Raises:
        Error: `session_unknown`.
    """
    if await rt.store.stream(session_stream(rt.tenant, SessionId(scope.session_id))) is None:
        raise Error(
            Code.SESSION_UNKNOWN,
            f"there is no session {scope.session_id!r}; nothing was changed",
            hint="a process is given to a session that has had its first input",
            session=scope.session_id,
        )


async def add(rt: Runtime, handles: Sequence[ProcessHandle], scope: SessionScope, *, replay: str) -> None:
    """Let processes be seen from a session too."""
    label = Label(adds=edge_tags(scope))
    await _write(rt, handles, OBSERVER_ADDED, observer_added(scope), label, replay)


async def remove(rt: Runtime, handles: Sequence[ProcessHandle], scope: SessionScope, *, replay: str) -> None:
    """Let them not be seen from there any more."""
    label = Label(drops=edge_tags(scope))
    await _write(rt, handles, OBSERVER_REMOVED, observer_removed(scope), label, replay)


async def move(
    rt: Runtime, handles: Sequence[ProcessHandle], old: SessionScope, new: SessionScope, *, replay: str
) -> None:
    """Let them be seen from one session instead of another."""
    label = Label(adds=edge_tags(new), drops=tuple(tag for tag in edge_tags(old) if tag not in edge_tags(new)))
    await _write(rt, handles, OBSERVER_ADDED, observer_added(new, instead_of=old), label, replay)


async def _write(
    rt: Runtime, handles: Sequence[ProcessHandle], event: str, payload: Json, label: Label, replay: str
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
        await rt.tell(stream)
