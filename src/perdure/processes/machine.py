"""What is owed to a process, from its record alone: to run it, to end it, or to leave it alone.

Laws: abandoned is not failed, and failed is not cancelled. A lapsed lease alone ends nothing. Who goes on with a
process whose worker is gone is what its registration says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from perdure.ids import WorkerId
from perdure.processes.events import COMPLETED, select
from perdure.processes.record import ProcessRecord
from perdure.vocab.records import ProcessEvent
from perdure.vocab.registrations import (
    Pointer,
    ProcessFailure,
    ProcessOutput,
    ProcessWasAbandoned,
    ProcessWasCancelled,
    Succeeded,
)


@dataclass(frozen=True, slots=True)
class Run:
    """Enter its body; `first` if nobody has."""

    first: bool


@dataclass(frozen=True, slots=True)
class End:
    """Record its end."""

    event: ProcessEvent


@dataclass(frozen=True, slots=True)
class Rest:
    """There is nothing to do for it until somebody says something."""

    why: str


Owed: TypeAlias = Run | End | Rest


def owed(record: ProcessRecord, worker: WorkerId, *, stuck_for: int = 0, watched: bool = False) -> Owed:
    """What whoever holds the process has to do now. `stuck_for` workers in a row got it no further, if any. What is
    done outside may be `watched` from here: then it is run as long as it is not over, whoever dies of it."""
    if record.output is not None:
        return Rest("it has ended")
    if record.abandon is not None:
        return End(abandoned(record))
    registration = record.known
    if registration.recovery == "externally_owned":
        if not watched:
            return Rest("it is done outside")
        unseen = record.first_worker is None
        return End(cancelled(record)) if unseen and record.cancel is not None else Run(first=unseen)
    if record.first_worker is None:
        if record.cancel is not None:
            return End(cancelled(record))
        if not stuck_for:
            return Run(first=True)
    elif registration.recovery == "owner_bound" and record.first_worker != worker:
        return Rest("its worker is gone, and nobody else may go on with it")
    if stuck_for:
        message = f"the process was taken over {stuck_for} times without getting any further"
        return End(ending(record, ProcessFailure(code="no_forward_progress", message=message)))
    return Run(first=False)


def cancelled(record: ProcessRecord) -> ProcessEvent:
    """The end of a process that was asked to end, and did."""
    reason = select(Pointer(path="/reason"), record.cancel.payload) if record.cancel is not None else ""
    reason = reason if isinstance(reason, str) else ""
    return ending(record, ProcessWasCancelled(reason=reason))


def abandoned(record: ProcessRecord) -> ProcessEvent:
    """The end of a process that was given up, and that nobody runs."""
    by, reason = (record.abandon.by, record.abandon.reason) if record.abandon is not None else ("", "")
    return ending(record, ProcessWasAbandoned(by=by, reason=reason), authority="reconciled_abandon")


def ending(record: ProcessRecord, output: ProcessOutput, *, authority: str = "") -> ProcessEvent:
    """The end of a process, by whoever owns it."""
    match output:
        case Succeeded():
            event = COMPLETED["completed"]
        case ProcessFailure():
            event = COMPLETED["failed"]
        case ProcessWasCancelled():
            event = COMPLETED["cancelled"]
        case ProcessWasAbandoned():
            event = COMPLETED["abandoned"]
    replay = f"process:{record.known.process_id}:terminal:{event}"
    return ProcessEvent(event=event, replay=replay, output=output, authority=authority)
