"""A process as a fold of its log: registration, progress, requests from others, and end.

Law: the record is a fold of the log and nothing else. Admitted records (signals, requests, an external end) only add,
so their order among owned ones cannot matter. One log key decides how the process ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec.structs import replace

from perdure.codec import Json
from perdure.ids import EffectId, PromiseId, Seq, WorkerId
from perdure.processes.events import CANCEL_REQUESTED, PHASE, SIGNAL, STEPS_UNUSED
from perdure.processes.visibility import OBSERVER_ADDED, OBSERVER_REMOVED, observers
from perdure.vocab.effects import AwaitEvent
from perdure.vocab.outcomes import AwaitEventOutcome
from perdure.vocab.processes import SessionScope
from perdure.vocab.promises import EventKey, Ok, ProcessSignal
from perdure.vocab.records import (
    AbandonRequested,
    EffectSettled,
    EffectStarted,
    ProcessEvent,
    ProcessFirstStarted,
    ProcessRegistered,
    Record,
    Row,
)
from perdure.vocab.registrations import (
    ProcessFailure,
    ProcessOutput,
    ProcessSucceeded,
    ProcessWasAbandoned,
    ProcessWasCancelled,
    Registration,
)
from perdure.vocab.wire import Value

CODE = "process-1"
"""The version of this fold."""

Status = Literal["registered", "running", "waiting", "completed", "failed", "cancelled", "abandoned"]


class ProcessWait(Value, frozen=True):
    """An open wait of a process: an effect of it that has begun."""

    effect: EffectId
    kind: str
    since: int
    until: int | None = None


class Phase(Value, frozen=True):
    """A named phase of a process, with its start and, if it is over, its end."""

    name: str
    since: int
    until: int | None = None


class ProcessRecord(Value, frozen=True):
    """A process as a fold of its log.

    `unused_steps` are recorded steps that the code which ended the process no longer has. `observers` are the existing
    sessions that see the process: that of its creator, and those added later.
    """

    registration: Registration | None = None
    hash: str = ""
    seq: Seq = Seq(0)
    registered_at: int = 0
    first_worker: WorkerId | None = None
    first_started_at: int = 0
    waiting: tuple[ProcessWait, ...] = ()
    cancel: ProcessEvent | None = None
    abandon: AbandonRequested | None = None
    output: ProcessOutput | None = None
    ended_as: str = ""
    ended_at: int = 0
    events: int = 0
    unused_steps: tuple[str, ...] = ()
    observers: tuple[SessionScope, ...] = ()
    phases: tuple[Phase, ...] = ()

    @property
    def status(self) -> Status:
        """The status, derived from output, first start and open waits."""
        match self.output:
            case ProcessSucceeded():
                return "completed"
            case ProcessFailure():
                return "failed"
            case ProcessWasCancelled():
                return "cancelled"
            case ProcessWasAbandoned():
                return "abandoned"
            case None:
                pass
        if self.first_worker is None:
            return "registered"
        return "waiting" if self.waiting else "running"

    @property
    def known(self) -> Registration:
        """The registration. The log must begin with it."""
        assert self.registration is not None
        return self.registration


def fold(record: ProcessRecord, row: Row) -> ProcessRecord:
    """Fold one record at its position in the log."""
    return advance(record, row.record, seq=row.seq, at=row.at)


def advance(record: ProcessRecord, fact: Record, *, seq: Seq, at: int) -> ProcessRecord:
    """Fold one record."""
    record = replace(record, seq=seq)
    match fact:
        case ProcessRegistered(registration=registration, hash=hash):
            origin = registration.provenance.originator
            seen = () if origin is None else (origin,)
            return replace(record, registration=registration, hash=hash, registered_at=at, observers=seen)
        case ProcessFirstStarted(worker=worker):
            return replace(record, first_worker=worker, first_started_at=at)
        case AbandonRequested():
            return replace(record, abandon=record.abandon or fact)
        case ProcessEvent():
            return _event(replace(record, events=record.events + 1), fact, at)
        case EffectStarted(id=id, due_at=due_at) if due_at is not None or isinstance(fact.command, AwaitEvent):
            wait = ProcessWait(effect=id, kind=fact.kind.value, since=at, until=due_at)
            return replace(record, waiting=(*record.waiting, wait))
        case EffectSettled(id=id) if record.waiting:
            return replace(record, waiting=tuple(wait for wait in record.waiting if wait.effect != id))
        case _:
            return record


def _event(record: ProcessRecord, event: ProcessEvent, at: int) -> ProcessRecord:
    if event.output is not None:
        return replace(record, output=event.output, ended_as=event.event, ended_at=at, waiting=())
    if event.event == CANCEL_REQUESTED and record.cancel is None:
        return replace(record, cancel=event)
    if event.event in (OBSERVER_ADDED, OBSERVER_REMOVED):
        return replace(record, observers=observers(record.observers, event.event, event.payload))
    if event.event == PHASE:
        return replace(record, phases=_phases(record.phases, event.payload, at))
    if event.event == STEPS_UNUSED:
        return replace(record, unused_steps=tuple(event.payload["steps"]))
    return record


def _phases(known: tuple[Phase, ...], payload: Json, at: int) -> tuple[Phase, ...]:
    """Return the phases after one began, or after the latest open one of that name ended."""
    name = payload["phase"]
    if payload["edge"] == "begun":
        return (*known, Phase(name=name, since=at))
    last = max((i for i, one in enumerate(known) if one.name == name and one.until is None), default=None)
    return tuple(replace(one, until=at) if i == last else one for i, one in enumerate(known))


def fold_all(rows: Iterable[Row]) -> ProcessRecord:
    """Fold a whole log."""
    record = ProcessRecord()
    for row in rows:
        record = fold(record, row)
    return record


class PendingSignals:
    """The signals that a process has not consumed, by name, oldest first: a fold of its log.

    Law: each signal is consumed by one wait, in order of arrival. A burst loses none, and a wait that timed out
    consumes none.
    """

    def __init__(self) -> None:
        self._came: dict[str, list[Json]] = {}
        self._given: dict[PromiseId, Ok] = {}
        self._waits: dict[EffectId, EventKey] = {}

    def fold(self, record: Record) -> None:
        """Fold one record."""
        match record:
            case ProcessEvent(event=event, payload=payload) if event.startswith(SIGNAL):
                self._came.setdefault(event.removeprefix(SIGNAL), []).append(payload)
            case EffectStarted(id=id, command=AwaitEvent(key=key)) if isinstance(key.wait, ProcessSignal):
                self._waits[id] = key
            case EffectSettled(id=id, outcome=AwaitEventOutcome(resolution=resolution)) if id in self._waits:
                key = self._waits.pop(id)
                if self._given.pop(key.key_id, None) is None and isinstance(resolution, Ok):
                    self._take(key, resolution.value)
            case _:
                pass

    def _take(self, key: EventKey, payload: Json) -> None:
        """Remove the signal of a wait that was settled before `give` was called for it."""
        assert isinstance(key.wait, ProcessSignal)
        self._came[key.wait.name].remove(payload)

    def give(self, key: EventKey) -> Ok | None:
        """Return the signal for a wait, the same on every call until the wait is settled; None if there is none."""
        assert isinstance(key.wait, ProcessSignal)
        if key.key_id not in self._given:
            came = self._came.get(key.wait.name)
            if not came:
                return None
            self._given[key.key_id] = Ok(value=came.pop(0))
        return self._given[key.key_id]

    def take_back(self, key: EventKey) -> bool:
        """Put the signal of a wait back to the front of the queue. Return False if the wait had none."""
        assert isinstance(key.wait, ProcessSignal)
        given = self._given.pop(key.key_id, None)
        if given is not None:
            self._came.setdefault(key.wait.name, []).insert(0, given.value)
        return given is not None
