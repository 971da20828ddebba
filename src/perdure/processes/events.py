"""The events of a process: which there are, what they must carry, and what they mean.

Laws: an undeclared event is refused; one that ends a process, or asks for its end, needs a replay key; the same key
with the same event is that event, with another one a conflict.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import cast

from perdure.codec import Json, digest
from perdure.errors import Code, Error
from perdure.processes.commands import EVENT_TYPES
from perdure.processes.visibility import OBSERVER_ADDED, OBSERVER_REMOVED
from perdure.vocab.records import ProcessEvent
from perdure.vocab.registrations import (
    Constant,
    Ending,
    EventType,
    Pointer,
    Present,
    ProcessFailure,
    ProcessOutput,
    ProcessWasAbandoned,
    ProcessWasCancelled,
    Registration,
    Selector,
    Semantics,
    Succeeded,
    Template,
    WakeSpec,
    WholePayload,
)

CANCEL_REQUESTED = "process.cancel_requested"
STEPS_UNUSED = "process.steps_unused"
WAKE_DISCARDED = "process.wake_discarded"
PHASE = "process.phase"
"""A named stretch of a process begins or ends: `ctx.phase(name)`."""
COMPLETED: dict[Ending, str] = {
    "completed": "process.completed",
    "failed": "process.failed",
    "cancelled": "process.cancelled",
    "abandoned": "process.abandoned",
}

CORE: dict[str, EventType] = {
    one.name: one
    for one in (
        EventType(name=CANCEL_REQUESTED),
        EventType(name="process.waiting"),
        EventType(name="process.resumed"),
        EventType(name=STEPS_UNUSED),
        EventType(name=WAKE_DISCARDED),
        EventType(name=PHASE),
        EventType(name=OBSERVER_ADDED),
        EventType(name=OBSERVER_REMOVED),
        *(EventType(name=name, semantics=Semantics(terminal=ending)) for ending, name in COMPLETED.items()),
    )
}
"""What every process may have. Waiting and resuming are not written: they are read off its effects."""

SIGNAL = "signal."
_SIGNAL = re.compile(r"[A-Za-z0-9_-]+")
_FIELD = re.compile(r"\{([A-Za-z0-9_]+)\}")


def signal_type(name: object) -> str:
    """The event type of a signal.

    Raises:
        Error: `process_signal_invalid`.
    """
    if not isinstance(name, str) or not _SIGNAL.fullmatch(name):
        raise Error(
            Code.PROCESS_SIGNAL_INVALID,
            f"{name!r:.120} cannot be the name of a signal",
            because="it must be letters, digits, dashes or underscores",
        )
    return SIGNAL + name


def check_event_types(types: Iterable[EventType]) -> None:
    """Refuse event types that nobody could use.

    Raises:
        Error: `process_event_type_invalid`.
    """
    seen = set(CORE)
    for one in types:
        if not one.name.strip():
            raise _type_invalid("an event type has a blank name", one.name)
        if one.name in seen:
            raise _type_invalid(f"the event type {one.name} is there twice", one.name)
        if one.semantics.terminal not in (None, "completed") and one.semantics.output is None:
            raise _type_invalid(f"the event type {one.name} ends a process and does not say with what", one.name)
        seen.add(one.name)


def type_of(registration: Registration, name: str) -> EventType:
    """The declared type of an event.

    Raises:
        Error: `process_event_undeclared`.
    """
    names = (name, f"{SIGNAL}*") if name.startswith(SIGNAL) else (name,)
    declared = CORE.get(name) or next((one for one in registration.event_types if one.name in names), None)
    if declared is None:
        known = ", ".join(one.name for one in registration.event_types) or "none of its own"
        raise Error(
            Code.PROCESS_EVENT_UNDECLARED,
            f"the process has no event {name!r}; nothing was written",
            because=f"it declares {known}",
            hint="declare it where the process is registered",
            process=registration.process_id,
        )
    return declared


RESERVED = frozenset(
    {STEPS_UNUSED, WAKE_DISCARDED, PHASE, OBSERVER_ADDED, OBSERVER_REMOVED, *(one.name for one in EVENT_TYPES)}
)
"""Events by which the runtime keeps its books, those of commands included."""


def check_sayable(name: str, process_id: str) -> None:
    """Refuse events by which the runtime itself keeps a process's books: nobody else writes them.

    Raises:
        Error: `process_event_undeclared`.
    """
    if name in RESERVED:
        raise Error(
            Code.PROCESS_EVENT_UNDECLARED,
            f"the event {name} cannot be said; nothing was written",
            because="the runtime writes it by itself",
            process=process_id,
        )


def event(registration: Registration, name: str, payload: Json, replay: str) -> ProcessEvent:
    """An event as it is recorded; its payload was checked against its schema.

    Raises:
        Error: `process_event_undeclared`, `process_event_replay_key_required`.
    """
    declared = type_of(registration, name)
    ending = declared.semantics.terminal
    if not replay.strip() and (ending is not None or name == CANCEL_REQUESTED):
        raise Error(
            Code.PROCESS_EVENT_REPLAY_KEY_REQUIRED,
            f"the event {name} needs a replay key; nothing was written",
            because="it may be sent again, and must not count twice",
            process=registration.process_id,
        )
    output = None if ending is None else _output(ending, declared.semantics.output, payload)
    return ProcessEvent(event=name, payload=payload, replay=replay, output=output)


def check_same(known: ProcessEvent, new: ProcessEvent, process_id: str) -> None:
    """Refuse another event under a replay key that was used.

    Raises:
        Error: `process_event_conflict`, or `process_already_terminal` if each of them would end the process.
    """
    if (known.event, digest(known.payload), known.output) == (new.event, digest(new.payload), new.output):
        return
    if known.output is not None:
        raise Error(
            Code.PROCESS_ALREADY_TERMINAL,
            f"the process has ended ({known.event}); nothing was written",
            process=process_id,
        )
    raise Error(
        Code.PROCESS_EVENT_CONFLICT,
        f"the replay key {known.replay} was used before, for another event; nothing was written",
        process=process_id,
        key=known.replay,
    )


# --- selectors --------------------------------------------------------------------------------------------------


def select(selector: Selector, payload: Json) -> Json:
    """What a selector takes from a payload."""
    match selector:
        case WholePayload():
            return payload
        case Constant(value=value):
            return value
        case Pointer(path=path):
            found = _at(payload, path)
            return found[0] if found else None
        case Present(path=path):
            return bool(_at(payload, path))
        case Template(text=text, fields=fields):
            chosen = {name: select(field, payload) for name, field in fields.items()}
            return _FIELD.sub(lambda match: _words(chosen.get(match[1])), text)


def woken(spec: WakeSpec | None, payload: Json) -> tuple[Json] | None:
    """What a target session is told of an event; None if it is not woken."""
    if spec is None or (spec.when is not None and not _truthy(select(spec.when, payload))):
        return None
    return (select(spec.input, payload),)


def _truthy(value: Json) -> bool:
    """Numbers are; what is empty, null or false is not."""
    if isinstance(value, bool) or value is None:
        return bool(value)
    return True if isinstance(value, int | float) else len(cast("str", value)) > 0


def _words(value: Json) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _at(payload: Json, path: str) -> tuple[Json] | None:
    """What stands at a JSON pointer, in a tuple of its own: null is something."""
    found: Json = payload
    for step in path.split("/")[1:] if path else ():
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = cast("dict[str, Json]", found)[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(cast("list[Json]", found)):
            found = cast("list[Json]", found)[int(name)]
        else:
            return None
    return (found,)


def _output(ending: Ending, selector: Selector | None, payload: Json) -> ProcessOutput:
    value = select(selector or WholePayload(), payload)
    match ending:
        case "completed":
            return Succeeded(value=value)
        case "failed":
            said = cast("dict[str, Json]", value) if isinstance(value, dict) else {"message": value}
            code, message = _words(said.get("code")) or "process_failed", _words(said.get("message"))
            return ProcessFailure(code=code, message=message, failure_class="declared", raw=value)
        case "cancelled":
            return ProcessWasCancelled(reason=_words(value))
        case "abandoned":
            return ProcessWasAbandoned(reason=_words(value))


def _type_invalid(what: str, name: str) -> Error:
    return Error(Code.PROCESS_EVENT_TYPE_INVALID, f"{what}; nothing was written", event=name)
