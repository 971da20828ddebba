"""A process as a fold of its log: what it is, how far it came, what others asked of it, and how it ended.

Law: the record is a fold of the log and nothing else. Admitted records (signals, requests, an end that came from
outside) only add, so their place among owned ones cannot matter; how the process ended is decided by one log key.
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
from perdure.vocab.promises import AwaitEventKey, Ok, ProcessSignal
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
    ProcessWasAbandoned,
    ProcessWasCancelled,
    Registration,
    Succeeded,
)
from perdure.vocab.wire import Value

CODE = "process-1"
"""The version of this fold."""

Status = Literal["registered", "running", "waiting", "completed", "failed", "cancelled", "abandoned"]


class Waiting(Value, frozen=True):
    """Something that a process waits for: an effect of it that has begun."""

    effect: EffectId
    kind: str
    since: int
    until: int | None = None


class Phase(Value, frozen=True):
    """A named stretch of a process: since when, and until when if it is over."""

    name: str
    since: int
    until: int | None = None


class ProcessRecord(Value, frozen=True):
    """What is known of a process. `unused_steps` are recorded, and the code that ended it does not have them.
    `observers` are the sessions that it is seen from, as long as they exist: that of whoever started it, and those it
    was given to.
    """

    registration: Registration | None = None
    hash: str = ""
    seq: Seq = Seq(0)
    registered_at: int = 0
    first_worker: WorkerId | None = None
    first_started_at: int = 0
    waiting: tuple[Waiting, ...] = ()
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
        """Where it is."""
        match self.output:
            case Succeeded():
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
        """What it is; only of a log that begins as it must."""
        assert self.registration is not None
        return self.registration


def fold(record: ProcessRecord, row: Row) -> ProcessRecord:
    """Fold one record, at its place in the log."""
    return advance(record, row.record, seq=row.seq, at=row.at)


def advance(record: ProcessRecord, fact: Record, *, seq: Seq, at: int) -> ProcessRecord:
    """Fold one fact."""
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
            wait = Waiting(effect=id, kind=fact.kind.value, since=at, until=due_at)
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
    """The phases with one that began, or without the latest open one of that name being open."""
    name = payload["phase"]
    if payload["edge"] == "begun":
        return (*known, Phase(name=name, since=at))
    last = max((i for i, one in enumerate(known) if one.name == name and one.until is None), default=None)
    return tuple(replace(one, until=at) if i == last else one for i, one in enumerate(known))


def fold_all(rows: Iterable[Row]) -> ProcessRecord:
    """The fold of a whole log."""
    record = ProcessRecord()
    for row in rows:
        record = fold(record, row)
    return record


class Signals:
    """The signals of a process that it has not taken yet, by name, oldest first: a fold of its log.

    Law: every signal is taken by one wait, in the order in which they came. A burst loses none, and a wait that ran out
    of time takes none.
    """

    def __init__(self) -> None:
        self._came: dict[str, list[Json]] = {}
        self._given: dict[PromiseId, Ok] = {}
        self._waits: dict[EffectId, AwaitEventKey] = {}

    def fold(self, record: Record) -> None:
        """Take notice of a record."""
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

    def _take(self, key: AwaitEventKey, payload: Json) -> None:
        """A wait was answered before we looked: with the first signal that said so."""
        assert isinstance(key.wait, ProcessSignal)
        self._came[key.wait.name].remove(payload)

    def give(self, key: AwaitEventKey) -> Ok | None:
        """The signal for a wait: the same whenever it asks, until the wait is settled."""
        assert isinstance(key.wait, ProcessSignal)
        if key.key_id not in self._given:
            came = self._came.get(key.wait.name)
            if not came:
                return None
            self._given[key.key_id] = Ok(value=came.pop(0))
        return self._given[key.key_id]

    def take_back(self, key: AwaitEventKey) -> bool:
        """Whoever was given a signal goes without it: it is the next one again. False if there was none."""
        assert isinstance(key.wait, ProcessSignal)
        given = self._given.pop(key.key_id, None)
        if given is not None:
            self._came.setdefault(key.wait.name, []).insert(0, given.value)
        return given is not None
