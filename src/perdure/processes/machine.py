"""The next step owed to a process, from its record alone: run it, end it, or do nothing.

Laws: abandoned is not failed, and failed is not cancelled. A lapsed lease alone ends nothing. The registration decides
which worker continues a process whose worker is gone.
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
    ProcessSucceeded,
    ProcessWasAbandoned,
    ProcessWasCancelled,
)


@dataclass(frozen=True, slots=True)
class EnterBody:
    """Enter the body; `first` if it was never entered."""

    first: bool


@dataclass(frozen=True, slots=True)
class End:
    """Record the end."""

    event: ProcessEvent


@dataclass(frozen=True, slots=True)
class Rest:
    """Do nothing until a new record arrives."""

    why: str


Owed: TypeAlias = EnterBody | End | Rest


def owed(record: ProcessRecord, worker: WorkerId, *, stuck_for: int = 0, watched: bool = False) -> Owed:
    """Return the next step of the worker that owns the process.

    `stuck_for` is the number of takeovers in a row without progress. A process executed externally may be `watched`
    from here; its body is then entered until it has ended, regardless of takeovers.
    """
    if record.output is not None:
        return Rest("it has ended")
    if record.abandon is not None:
        return End(abandoned(record))
    registration = record.known
    if registration.recovery == "externally_owned":
        if not watched:
            return Rest("it is executed externally")
        unseen = record.first_worker is None
        return End(cancelled(record)) if unseen and record.cancel is not None else EnterBody(first=unseen)
    if record.first_worker is None:
        if record.cancel is not None:
            return End(cancelled(record))
        if not stuck_for:
            return EnterBody(first=True)
    elif registration.recovery == "owner_bound" and record.first_worker != worker:
        return Rest("its worker is gone, and no other worker may continue it")
    if stuck_for:
        message = f"the process was taken over {stuck_for} times without progress"
        return End(ending(record, ProcessFailure(code="no_forward_progress", message=message)))
    return EnterBody(first=False)


def cancelled(record: ProcessRecord) -> ProcessEvent:
    """Return the end event of a cancelled process."""
    reason = select(Pointer(path="/reason"), record.cancel.payload) if record.cancel is not None else ""
    reason = reason if isinstance(reason, str) else ""
    return ending(record, ProcessWasCancelled(reason=reason))


def abandoned(record: ProcessRecord) -> ProcessEvent:
    """Return the end event of an abandoned process that no worker runs."""
    by, reason = (record.abandon.by, record.abandon.reason) if record.abandon is not None else ("", "")
    return ending(record, ProcessWasAbandoned(by=by, reason=reason), authority="reconciled_abandon")


def ending(record: ProcessRecord, output: ProcessOutput, *, authority: str = "") -> ProcessEvent:
    """Return the end event of a process, as its owner writes it."""
    match output:
        case ProcessSucceeded():
            event = COMPLETED["completed"]
        case ProcessFailure():
            event = COMPLETED["failed"]
        case ProcessWasCancelled():
            event = COMPLETED["cancelled"]
        case ProcessWasAbandoned():
            event = COMPLETED["abandoned"]
    replay = f"process:{record.known.process_id}:terminal:{event}"
    return ProcessEvent(event=event, replay=replay, output=output, authority=authority)
