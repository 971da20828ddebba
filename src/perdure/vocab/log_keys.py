"""Log keys: names that are unique among the records of a stream.

The second record with a key is refused and the first one returned. A key makes an event happen once, and decides races
between records that exclude each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from perdure.ids import InputId, PromiseId, Seq, SessionId, TurnId, join
from perdure.vocab.children import ChildClaimed, ChildEnded, ChildRegistered
from perdure.vocab.effects import AwaitEvent, PreparedToolCall
from perdure.vocab.records import (
    AbandonRequested,
    CancelRequested,
    EffectStarted,
    GrantRevoked,
    InputAdmitted,
    InputCancelled,
    ProcessEvent,
    ProcessFirstStarted,
    Record,
    RecordRedacted,
    TurnAgentChanged,
    TurnEnded,
    TurnOpened,
)
from perdure.vocab.schedules import ScheduleChanged, ScheduleFired, ScheduleSkipped
from perdure.vocab.triggers import SubscriptionChanged, TriggerDeliveryFailed, TriggerOccurred


def open_key(turn: TurnId) -> str:
    """Return the log key of a turn's start."""
    return f"open:{turn}"


def hands_key(turn: TurnId, n: int) -> str:
    """Return the log key of a turn's n-th handoff."""
    return f"hands:{turn}:{n}"


def gate_key(turn: TurnId) -> str:
    """Return the log key for which completion and cancellation of a turn race: exactly one gets it."""
    return f"gate:{turn}"


def end_key(turn: TurnId) -> str:
    """Return the log key of the end of a turn whose gate a cancel request took."""
    return f"end:{turn}"


def ask_key(promise: PromiseId) -> str:
    """Return the log key of a request for a person's decision: each promise is requested once."""
    return f"ask:{promise}"


def input_key(input: InputId) -> str:
    """Return the log key of an input that opened no turn: it joined a turn or was cancelled."""
    return f"input:{input}"


def revocation_key(grant: PromiseId) -> str:
    """Return the log key that forbids every further use of a grant."""
    return f"revoke:{grant}"


def claim_key(number: int) -> str:
    """Return the log key of the n-th descendant of a stream."""
    return f"child:{number}"


def registration_key(handle: str) -> str:
    """Return the log key of a call's child session."""
    return f"registered:{handle}"


def report_key(child: SessionId, turn: TurnId) -> str:
    """Return the log key of the end of a descendant's turn: each counts once."""
    return f"ended:{child}:{turn}"


def redaction_key(seq: Seq) -> str:
    """Return the log key of a record's redaction: each happens once."""
    return f"redact:{seq}"


FIRST_STARTED = "process:first-started"
PROCESS_END = "process:end"
"""The log key for which all ways to end a process race."""
ABANDON = "process:abandon"


def event_key(event: str, replay: str) -> str:
    """Return the log key of a process event. Its prefix names the event, so events of one kind can be counted."""
    return join("event", event, replay)


SCHEDULE_END = "ended"
"""The log key of a schedule's end."""


def run_key(due_at: int, request: str) -> str:
    """Return the log key of a schedule's run: each due time and each request is handled once."""
    return f"run:{request}" if request else f"due:{due_at}"


def revision_key(subscription: str, revision: int) -> str:
    """Return the log key of a subscription's revision: concurrent changes race for it."""
    return join("sub", subscription, str(revision))


def occurrence_key(occurrence: str) -> str:
    """Return the log key of a trigger occurrence."""
    return join("occ", occurrence)


def failure_key(occurrence: str, subscription: str) -> str:
    """Return the log key of a process start that failed."""
    return join("failed", occurrence, subscription)


R = TypeVar("R")


def _keyed(type: type[R], key: Callable[[R], str | None]) -> tuple[type[R], Callable[[Record], str | None]]:
    return type, cast("Callable[[Record], str | None]", key)


def _asked(started: EffectStarted) -> str | None:
    match started.command:
        case AwaitEvent(key=key, about=PreparedToolCall()):
            return ask_key(key.key_id)
        case _:
            return None


def _of_schedule(change: ScheduleChanged) -> str | None:
    match change.change:
        case "run":
            return f"ask:{change.request}"
        case "ended":
            return SCHEDULE_END
        case _:
            return None


_KEYS: dict[type, Callable[[Record], str | None]] = dict(
    (
        _keyed(EffectStarted, _asked),
        _keyed(TurnOpened, lambda it: open_key(it.turn)),
        _keyed(TurnEnded, lambda it: end_key(it.turn) if it.reason == "cancelled" else gate_key(it.turn)),
        _keyed(CancelRequested, lambda it: gate_key(it.turn)),
        _keyed(InputAdmitted, lambda it: input_key(it.input) if it.joins else None),
        _keyed(InputCancelled, lambda it: input_key(it.input)),
        _keyed(RecordRedacted, lambda it: redaction_key(it.seq)),
        _keyed(GrantRevoked, lambda it: revocation_key(it.grant)),
        _keyed(ProcessEvent, lambda it: PROCESS_END if it.output is not None else event_key(it.event, it.replay)),
        _keyed(ProcessFirstStarted, lambda _: FIRST_STARTED),
        _keyed(AbandonRequested, lambda _: ABANDON),
        _keyed(ScheduleFired, lambda it: run_key(it.due_at, it.request)),
        _keyed(ScheduleSkipped, lambda it: run_key(it.due_at, it.request)),
        _keyed(ScheduleChanged, _of_schedule),
        _keyed(ChildClaimed, lambda it: claim_key(it.number)),
        _keyed(ChildRegistered, lambda it: registration_key(it.handle)),
        _keyed(ChildEnded, lambda it: report_key(it.child, it.turn)),
        _keyed(TurnAgentChanged, lambda it: hands_key(it.turn, it.n)),
        _keyed(SubscriptionChanged, lambda it: revision_key(it.subscription.id, it.subscription.revision)),
        _keyed(TriggerOccurred, lambda it: occurrence_key(it.occurrence)),
        _keyed(TriggerDeliveryFailed, lambda it: failure_key(it.occurrence, it.subscription)),
    )
)


def key_of(record: Record) -> str | None:
    """Return the log key that a record claims, or None."""
    key = _KEYS.get(type(record))
    return None if key is None else key(record)
