"""Telling the target session: what an event with wake semantics puts into its inbox.

Law: the event and what it tells are one transaction, under a key made of the event: a session is told once.
"""

from __future__ import annotations

from perdure.codec import Json, encode
from perdure.ids import InputId, SessionId, Tenant, TurnId, join, session_stream
from perdure.inbox.admit import Delivery, delivery
from perdure.inbox.items import Input
from perdure.processes.events import type_of, woken
from perdure.vocab.messages import Text
from perdure.vocab.records import ProcessEvent
from perdure.vocab.registrations import (
    ProcessFailure,
    ProcessOutput,
    ProcessWasAbandoned,
    ProcessWasCancelled,
    Registration,
    Succeeded,
)


def wake_of(
    tenant: Tenant, registration: Registration, event: ProcessEvent, *, at: int, turn: TurnId, input: InputId
) -> Delivery | None:
    """What a session is told of an event of a process, if it is to be told."""
    target = registration.wake_target
    told = woken(type_of(registration, event.event).semantics.wake, event.payload)
    if told is None and registration.wake_on_end and event.output is not None:
        told = (_end(registration, event.output),)
    if target is None or told is None:
        return None
    item = Input(
        input=input,
        turn=turn,
        parts=(Text(text=_words(told[0], registration, event)),),
        source=join("process", registration.process_id),
    )
    source_key = f"{join('process', registration.process_id, 'event', event.event, event.replay)}:wake"
    return delivery(session_stream(tenant, SessionId(target.session_id)), source_key, item, at=at)


def _end(registration: Registration, output: ProcessOutput) -> str:
    name = registration.label or registration.process_id
    match output:
        case Succeeded(value=value):
            return f"The process {name} has finished: {encode(value).decode()}"
        case ProcessFailure(code=code, message=message):
            return f"The process {name} has failed ({code}): {message}"
        case ProcessWasCancelled(reason=reason):
            return f"The process {name} was cancelled. {reason}".strip()
        case ProcessWasAbandoned(reason=reason):
            return f"The process {name} was abandoned: nobody knows how far it came. {reason}".strip()


def _words(told: Json, registration: Registration, event: ProcessEvent) -> str:
    said = told if isinstance(told, str) else "" if told is None else encode(told).decode()
    name = registration.label or registration.process_id
    return said or f"The process {name} reports: {event.event}"
