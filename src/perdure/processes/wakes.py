"""Wakes of the target session: inputs made from process events with wake semantics.

Law: the event and its wake are one transaction, under a key derived from the event, so a session is woken once.
"""

from __future__ import annotations

from perdure.codec import Json, encode
from perdure.ids import InputId, SessionId, Tenant, TurnId, join, session_stream
from perdure.inbox.admit import Delivery, delivery
from perdure.inbox.items import Input
from perdure.processes.events import type_of, woken
from perdure.vocab.causes import TriggerOccurrenceCause
from perdure.vocab.messages import Text
from perdure.vocab.notifications import notification
from perdure.vocab.records import ProcessEvent
from perdure.vocab.registrations import (
    ProcessFailure,
    ProcessOutput,
    ProcessSucceeded,
    ProcessWasAbandoned,
    ProcessWasCancelled,
    Registration,
)


def wake_of(
    tenant: Tenant, registration: Registration, event: ProcessEvent, *, at: int, turn: TurnId, input: InputId
) -> Delivery | None:
    """Return the delivery that wakes the target session for an event, or None."""
    target = registration.wake_target
    told = woken(type_of(registration, event.event).semantics.wake, event.payload)
    if told is None and registration.wake_on_end and event.output is not None:
        told = (_end(event.output),)
    if target is None or told is None:
        return None
    item = Input(
        input=input,
        turn=turn,
        parts=(Text(text=notification("Process news.", _fields(told[0], registration, event), text="text")),),
        source=join("process", registration.process_id),
        by_session=_is_own(registration),
    )
    source_key = f"{join('process', registration.process_id, 'event', event.event, event.replay)}:wake"
    return delivery(session_stream(tenant, SessionId(target.session_id)), source_key, item, at=at)


def _is_own(registration: Registration) -> bool:
    """Return whether the session that a process wakes has started it, and no occurrence of the host has."""
    started = registration.provenance
    return started.originator == registration.wake_target and not isinstance(started.caused_by, TriggerOccurrenceCause)


def _end(output: ProcessOutput) -> str:
    match output:
        case ProcessSucceeded(value=value):
            return f"finished: {encode(value).decode()}"
        case ProcessFailure(code=code, message=message):
            return f"failed ({code}): {message}"
        case ProcessWasCancelled(reason=reason):
            return f"cancelled. {reason}".strip()
        case ProcessWasAbandoned(reason=reason):
            return f"abandoned: its progress is unknown. {reason}".strip()


def _fields(told: Json, registration: Registration, event: ProcessEvent) -> dict[str, str]:
    said = told if isinstance(told, str) else "" if told is None else encode(told).decode()
    return {
        "process": registration.process_id,
        **({"label": registration.label} if registration.label else {}),
        "text": said or f"reports {event.event}",
    }
