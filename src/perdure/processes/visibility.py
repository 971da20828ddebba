"""Visibility of processes: weak edges from sessions, and the tags that index processes.

Laws: an edge never delays a process, and removing one never ends it. Deleting a session removes its edges in the same
transaction. Lists use an index of tags, a projection of each process's log. The tags of live processes are removed when
the process ends.
"""

from __future__ import annotations

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.vocab.processes import ProcessListMode, SessionScope
from perdure.vocab.records import LIVE
from perdure.vocab.registrations import Registration

ALL = "process"
OBSERVER_ADDED = "process.observer_added"
OBSERVER_REMOVED = "process.observer_removed"


def seen_from(scope: SessionScope) -> str:
    """Return the tag of the processes visible from a session, or from one frame of it.

    The trailing slash makes the session's tag a prefix of exactly its own and its frames' tags.
    """
    return f"process:of:{scope.id}/"


def run_by(definition: str) -> str:
    """Return the tag of the processes with this definition."""
    return f"process:by:{definition}"


def tags_of(asked: Registration) -> tuple[str, ...]:
    """Return the initial tags of a process; the session that started it sees it."""
    origin = asked.provenance.originator
    names = [ALL, run_by(asked.definition), *([seen_from(origin)] if origin is not None else [])]
    return (*names, *(LIVE + name for name in names))


def listed_by(mode: ProcessListMode, scope: SessionScope | None, definition: str | None) -> str:
    """Return the tag that finds a list."""
    name = seen_from(scope) if scope is not None else run_by(definition) if definition is not None else ALL
    return LIVE + name if mode == "live" else name


def edge_tags(scope: SessionScope) -> tuple[str, ...]:
    """Return the tags of an edge: one for the list of all processes, one for that of the live ones.

    A session's tags are prefixes of exactly its own and its frames' tags.
    """
    return seen_from(scope), LIVE + seen_from(scope)


def observer_added(scope: SessionScope, *, instead_of: SessionScope | None = None) -> Json:
    """Return the payload of the event for a new edge: the scope that sees the process, and the scope it replaces."""
    return {"observer": _edge(scope), "instead_of": None if instead_of is None else _edge(instead_of)}


def observer_removed(scope: SessionScope) -> Json:
    """Return the payload of the event for a removed edge."""
    return {"observer": _edge(scope)}


def observers(known: tuple[SessionScope, ...], event: str, payload: Json) -> tuple[SessionScope, ...]:
    """Return the observers of a process after an event. Each edge counts once."""
    scope = _scope(payload["observer"])
    gone = [scope, *([_scope(payload["instead_of"])] if payload.get("instead_of") else [])]
    rest = tuple(one for one in known if one not in gone)
    return (*rest, scope) if event == OBSERVER_ADDED else rest


def _edge(scope: SessionScope) -> Json:
    return {"session_id": scope.session_id, "frame_id": scope.frame_id}


def _scope(payload: Json) -> SessionScope:
    return SessionScope(session_id=payload["session_id"], frame_id=payload["frame_id"])


def not_visible(process_id: str, scope: SessionScope) -> Error:
    """Return the error for a process that is not visible from here. An unknown process gives the same error."""
    return Error(
        Code.PROCESS_NOT_VISIBLE,
        f"the process {process_id!r} is not visible from here; nothing was done",
        because=f"the process does not exist, or it is not visible to {scope.id}",
        hint="a process is visible to the session that started it and to its added observers",
        process=process_id,
    )
