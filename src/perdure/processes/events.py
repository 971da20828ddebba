"""The events of a process: their types, required data and meaning.

Laws: an undeclared event is refused. An event that ends a process, or requests its end, needs a replay key. The same
key with the same event is that event; with another event it is a conflict.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import cast

from perdure.codec import Json, digest, encode
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
    ProcessSucceeded,
    ProcessWasAbandoned,
    ProcessWasCancelled,
    Registration,
    Selector,
    Semantics,
    Template,
    WakeSpec,
    WholePayload,
)
from perdure.vocab.wire import HIDDEN

CANCEL_REQUESTED = "process.cancel_requested"
STEPS_UNUSED = "process.steps_unused"
WAKE_DISCARDED = "process.wake_discarded"
PHASE = "process.phase"
"""A named phase of a process begins or ends: `ctx.phase(name)`."""
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
"""Event types of every process. Waiting and resuming are not written: they are derived from its effects."""

SIGNAL = "signal."
_SIGNAL = re.compile(r"[A-Za-z0-9_-]+")
_FIELD = re.compile(r"\{([A-Za-z0-9_]+)\}")


def signal_type(name: object) -> str:
    """Return the event type of a signal.

    Raises:
        Error: `process_signal_invalid`.
    """
    if not isinstance(name, str) or not _SIGNAL.fullmatch(name):
        raise Error(
            Code.PROCESS_SIGNAL_INVALID,
            f"{name!r:.120} is not a valid signal name",
            because="a signal name consists of letters, digits, dashes and underscores",
        )
    return SIGNAL + name


def check_event_types(types: Iterable[EventType]) -> None:
    """Raise if the event types are unusable.

    Raises:
        Error: `process_event_type_invalid`.
    """
    seen = set(CORE)
    for one in types:
        if not one.name.strip():
            raise _type_invalid("an event type has a blank name", one.name)
        if one.name in seen:
            raise _type_invalid(f"duplicate event type {one.name}", one.name)
        if one.semantics.terminal not in (None, "completed") and one.semantics.output is None:
            raise _type_invalid(f"the event type {one.name} ends a process and has no output selector", one.name)
        seen.add(one.name)


def type_of(registration: Registration, name: str) -> EventType:
    """Return the declared type of an event.

    Raises:
        Error: `process_event_undeclared`.
    """
    names = (name, f"{SIGNAL}*") if name.startswith(SIGNAL) else (name,)
    declared = CORE.get(name) or next((one for one in registration.event_types if one.name in names), None)
    if declared is None:
        known = ", ".join(one.name for one in registration.event_types) or "none of its own"
        raise Error(
            Code.PROCESS_EVENT_UNDECLARED,
            f"undeclared event {name!r}; nothing was written",
            because=f"the process declares {known}",
            hint="declare it where the process is registered",
            process=registration.process_id,
        )
    return declared


RESERVED = frozenset(
    {STEPS_UNUSED, WAKE_DISCARDED, PHASE, OBSERVER_ADDED, OBSERVER_REMOVED, *(one.name for one in EVENT_TYPES)}
)
"""Events that only the runtime writes, including those of commands."""


def check_sayable(name: str, process_id: str) -> None:
    """Raise if only the runtime may write this event.

    Raises:
        Error: `process_event_undeclared`.
    """
    if name in RESERVED:
        raise Error(
            Code.PROCESS_EVENT_UNDECLARED,
            f"the event {name} is reserved; nothing was written",
            because="only the runtime writes it",
            process=process_id,
        )


def event(registration: Registration, name: str, payload: Json, replay: str) -> ProcessEvent:
    """Return an event as recorded. The payload was validated before.

    Raises:
        Error: `process_event_undeclared`, `process_event_replay_key_required`.
    """
    declared = type_of(registration, name)
    ending = declared.semantics.terminal
    if not replay.strip() and (ending is not None or name == CANCEL_REQUESTED):
        raise Error(
            Code.PROCESS_EVENT_REPLAY_KEY_REQUIRED,
            f"the event {name} needs a replay key; nothing was written",
            because="a repeated send must not count twice",
            process=registration.process_id,
        )
    output = None if ending is None else _output(ending, declared.semantics.output, payload)
    return ProcessEvent(event=name, payload=payload, replay=replay, output=output)


def check_same(known: ProcessEvent, new: ProcessEvent, process_id: str) -> None:
    """Raise if a used replay key comes with another event. A recorded event without its secrets is the same event.

    Raises:
        Error: `process_event_conflict`, or `process_already_terminal` if both events end the process.
    """
    if (known.event, digest(known.payload), known.output) == (new.event, digest(new.payload), new.output):
        return
    if known.event == new.event and HIDDEN.encode() in encode(known):
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
    """Return the value that a selector takes from a payload."""
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
    """Return the input for the target session of an event in a tuple, or None if the session is not woken."""
    if spec is None or (spec.when is not None and not _truthy(select(spec.when, payload))):
        return None
    return (select(spec.input, payload),)


def _truthy(value: Json) -> bool:
    """Return False for null, false and empty values; numbers are always true."""
    if isinstance(value, bool) or value is None:
        return bool(value)
    return True if isinstance(value, int | float) else len(cast("str", value)) > 0


def _words(value: Json) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _at(payload: Json, path: str) -> tuple[Json] | None:
    """Return the value at a JSON pointer in a tuple, or None if there is none; null is a value."""
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
            return ProcessSucceeded(value=value)
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
