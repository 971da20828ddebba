"""From where a process is seen: weak edges from sessions, and the tags by which processes are found.

Laws: an edge never holds a process up, and taking one away never ends it. A session that is deleted takes its edges
with it, in the same transaction. What is listed is found by index: the tags of a process are a projection of its log,
and those that say that it is live are gone with its end.
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
    """The tag of what is seen from a session, or from one frame of it. It ends with a slash, so that the tags of a
    session and its frames, and no others, begin like that of the session."""
    return f"process:of:{scope.id}/"


def run_by(definition: str) -> str:
    """The tag of what runs with this code."""
    return f"process:by:{definition}"


def tags_of(asked: Registration) -> tuple[str, ...]:
    """What a process is found by from its beginning on: whoever started it sees it."""
    origin = asked.provenance.originator
    names = [ALL, run_by(asked.definition), *([seen_from(origin)] if origin is not None else [])]
    return (*names, *(LIVE + name for name in names))


def listed_by(mode: ProcessListMode, scope: SessionScope | None, definition: str | None) -> str:
    """The tag that finds a list."""
    name = seen_from(scope) if scope is not None else run_by(definition) if definition is not None else ALL
    return LIVE + name if mode == "live" else name


def edge_tags(scope: SessionScope) -> tuple[str, ...]:
    """The tags of an edge: for the list of all, and for that of the live ones as long as it lives. Those of a session's
    frames, and no others, begin like its own."""
    return seen_from(scope), LIVE + seen_from(scope)


def observer_added(scope: SessionScope, *, instead_of: SessionScope | None = None) -> Json:
    """What the event of a new edge says: from where the process is seen, and from where it is not any more."""
    return {"observer": _edge(scope), "instead_of": None if instead_of is None else _edge(instead_of)}


def observer_removed(scope: SessionScope) -> Json:
    """What the event says of an edge that is gone."""
    return {"observer": _edge(scope)}


def observers(known: tuple[SessionScope, ...], event: str, payload: Json) -> tuple[SessionScope, ...]:
    """From where a process is seen after an event: a fold, that counts each edge once."""
    scope = _scope(payload["observer"])
    gone = [scope, *([_scope(payload["instead_of"])] if payload.get("instead_of") else [])]
    rest = tuple(one for one in known if one not in gone)
    return (*rest, scope) if event == OBSERVER_ADDED else rest


def _edge(scope: SessionScope) -> Json:
    return {"session_id": scope.session_id, "frame_id": scope.frame_id}


def _scope(payload: Json) -> SessionScope:
    return SessionScope(session_id=payload["session_id"], frame_id=payload["frame_id"])


def not_visible(process_id: str, scope: SessionScope) -> Error:
    """The refusal of a process that is not seen from here; one that does not exist looks the same."""
    return Error(
        Code.PROCESS_NOT_VISIBLE,
        f"the process {process_id!r} is not visible from here; nothing was done",
        because=f"there is none, or it was not given to {scope.id}",
        hint="a process is seen by the session that started it, and by those it was given to",
        process=process_id,
    )
