"""Consistency check of a session's log, its row and its snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from perdure.codec import encode
from perdure.errors import Error
from perdure.ids import EffectId, InputId, TurnId
from perdure.session.fold import SessionState, fold_all
from perdure.store.shapes import Loaded, StreamInfo
from perdure.vocab.log_keys import key_of, revocation_key
from perdure.vocab.messages import Reply
from perdure.vocab.outcomes import (
    CompletedToolCall,
    Done,
    DurableStepOutcome,
    LlmCallOutcome,
    Outcome,
    Success,
    ToolCallOutcome,
)
from perdure.vocab.records import (
    ApprovalGranted,
    EffectSettled,
    EffectStarted,
    InputAdmitted,
    InputCancelled,
    OutcomeArrivedLate,
    Record,
    RecordRedacted,
    Row,
    SessionOpened,
    TurnEnded,
    TurnOpened,
)
from perdure.vocab.refs import is_part


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The counts of a verified log, and the problems found."""

    records: int
    turns: int
    effects: int
    snapshot_seq: int | None
    problems: tuple[str, ...]


@dataclass(slots=True)
class _Turn:
    id: TurnId
    started: dict[EffectId, EffectStarted] = field(default_factory=dict[EffectId, EffectStarted])
    settled: dict[EffectId, EffectSettled] = field(default_factory=dict[EffectId, EffectSettled])
    late: set[EffectId] = field(default_factory=set[EffectId])
    """Effects whose outcome a former owner delivered late, before they were recorded as in doubt."""


def verify(info: StreamInfo, rows: Sequence[Row], loaded: Loaded) -> VerifyReport:
    """Fold a whole log and compare it with the session's row, keys and snapshot."""
    problems = [*_order(rows, info)]
    records: list[tuple[Row, Record]] = []
    for row in rows:
        try:
            records.append((row, row.record))
        except Error as problem:
            problems.append(f"#{row.seq}: {problem.message}: {problem.because}")
    problems += _labels(records)
    reading = _VerifyFold()
    for row, record in records:
        problems += reading.take(row, record)
    if len(records) == len(rows):
        problems += _snapshot(info, rows, loaded)
    snapshot = loaded.snapshot.seq if loaded.snapshot else None
    return VerifyReport(len(rows), reading.turns, reading.effects, snapshot, tuple(problems))


def contradictions(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the contradictions of a log that is not stored yet."""
    reading = _VerifyFold()
    for row in rows:
        yield from reading.take(row, row.record)


def _order(rows: Sequence[Row], info: StreamInfo) -> Iterator[str]:
    for expected, row in enumerate(rows, 1):
        if row.seq != expected:
            yield f"#{row.seq}: expected #{expected} here; the log has a hole"
            return
    last = rows[-1].seq if rows else 0
    if last != info.last_seq:
        yield f"the log ends at #{last}, the session row at #{info.last_seq}"


def _labels(records: Sequence[tuple[Row, Record]]) -> Iterator[str]:
    for row, record in records:
        if row.key != key_of(record):
            yield f"#{row.seq}: filed under key {row.key}, but its key is {key_of(record)}"


def _snapshot(info: StreamInfo, rows: Sequence[Row], loaded: Loaded) -> Iterator[str]:
    whole = fold_all(None, rows)
    quick: SessionState | None = None
    try:
        quick = fold_all(loaded.snapshot.data if loaded.snapshot else None, loaded.rows)
    except Error as problem:
        yield f"the snapshot cannot be read: {problem.message}"
    if quick is not None and encode(quick) != encode(whole):
        yield "the snapshot and the records after it give another state than the whole log"
    if (info.active or info.parked) != (whole.open_turn is not None):
        marked = "active" if info.active else "parked" if info.parked else "inactive"
        yield f"the session is marked {marked}, contrary to its log"


class _VerifyFold:
    """The state that the checks need: turns, inputs, log keys and the open turn's effects."""

    def __init__(self) -> None:
        self.turns = 0
        self.effects = 0
        self._open: _Turn | None = None
        self._inputs: set[InputId] = set()
        self._asked: set[TurnId] = set()
        self._keys: set[str] = set()

    def take(self, row: Row, record: Record) -> Iterator[str]:
        yield from self._claim(row, record)
        match record:
            case SessionOpened():
                if row.seq != 1:
                    yield f"#{row.seq}: the session is opened again"
            case InputAdmitted():
                yield from self._admit(row, record)
            case InputCancelled():
                yield from self._withdraw(row, record)
            case RecordRedacted(seq=seq):
                if not 1 <= seq < row.seq:
                    yield f"#{row.seq}: redacts record {seq}, which is not an earlier record"
            case ApprovalGranted(grant=grant):
                if revocation_key(grant) in self._keys:
                    yield f"#{row.seq}: the grant {grant} is made after it was revoked"
            case TurnOpened():
                yield from self._begin(row, record)
            case TurnEnded():
                yield from self._end(row, record)
            case EffectStarted() | EffectSettled() | OutcomeArrivedLate():
                yield from self._effect(row, record)
            case _:
                pass

    def _effect(self, row: Row, record: EffectStarted | EffectSettled | OutcomeArrivedLate) -> Iterator[str]:
        match record:
            case OutcomeArrivedLate(call=call, id=effect):
                if self._open is not None and call.startswith(f"{self._open.id}."):
                    self._open.late.add(effect)
            case _ if self._open is None:
                yield f"#{row.seq}: effect {record.id} outside of any turn"
            case EffectStarted():
                yield from self._start(row, record)
            case EffectSettled():
                yield from self._settle(row, record)

    def _begin(self, row: Row, record: TurnOpened) -> Iterator[str]:
        if record.turn not in self._asked:
            yield f"#{row.seq}: a turn begins that no input asked for"
        if not 0 <= record.view_seq <= row.seq:
            yield f"#{row.seq}: the model view of the turn starts at #{record.view_seq}, after it"
        if self._open:
            yield f"#{row.seq}: a turn begins before the one before it has ended"
        if record.index != self.turns:
            yield f"#{row.seq}: turn {record.index} begins, expected turn {self.turns}"
        self.turns += 1
        self._open = _Turn(record.turn)

    def _claim(self, row: Row, record: Record) -> Iterator[str]:
        key = key_of(record)
        if key is not None and key in self._keys:
            yield f"#{row.seq}: the log key {key} is claimed a second time"
        if key is not None:
            self._keys.add(key)

    def _admit(self, row: Row, record: InputAdmitted) -> Iterator[str]:
        if record.input in self._inputs:
            yield f"#{row.seq}: input {record.input} was admitted before"
        if record.key and f"input:{record.key}" in self._keys:
            yield f"#{row.seq}: the input key {record.key!r} was used before"
        if record.joins and (self._open is None or self._open.id != record.turn):
            yield f"#{row.seq}: input {record.input} joins a turn that is not open"
        if record.turn in self._asked and not record.joins:
            yield f"#{row.seq}: turn {record.turn} was asked for before"
        self._inputs.add(record.input)
        self._keys.add(f"input:{record.key}")
        self._asked.add(record.turn)

    def _withdraw(self, row: Row, record: InputCancelled) -> Iterator[str]:
        if record.input in self._inputs:
            yield f"#{row.seq}: input {record.input} is cancelled after a turn took it"
        self._inputs.add(record.input)

    def _start(self, row: Row, record: EffectStarted) -> Iterator[str]:
        assert self._open
        if record.id in self._open.started:
            yield f"#{row.seq}: effect {record.id} was started before"
        if record.id in self._open.settled:
            yield f"#{row.seq}: effect {record.id} is started after it was settled"
        if not record.fingerprint:
            yield f"#{row.seq}: effect {record.id} has no fingerprint"
        self._open.started[record.id] = record

    def _settle(self, row: Row, record: EffectSettled) -> Iterator[str]:
        assert self._open
        self.effects += 1
        if record.id in self._open.settled:
            yield f"#{row.seq}: effect {record.id} was settled before"
        started = self._open.started.get(record.id)
        if started and record.fingerprint and started.fingerprint != record.fingerprint:
            yield f"#{row.seq}: effect {record.id} has another fingerprint than its start"
        if not started and not record.fingerprint and _performed(record.outcome):
            yield f"#{row.seq}: effect {record.id} was performed and has no fingerprint"
        self._open.settled[record.id] = record

    def _end(self, row: Row, record: TurnEnded) -> Iterator[str]:
        if self._open is None or self._open.id != record.turn:
            yield f"#{row.seq}: a turn ends that is not open"
            return
        known = {*self._open.settled, *self._open.late}
        missing = [
            effect
            for effect, started in self._open.started.items()
            if effect not in known and not (is_part(effect) and started.effect == "pure")  # a wait may stay unsettled
        ]
        if record.status == "finished" and missing:
            yield f"#{row.seq}: the turn finished without the outcome of {', '.join(missing)}"
        self._open = None


def _performed(outcome: Outcome) -> bool:
    """Return whether the effect was dispatched. An effect refused before dispatch needs no fingerprint."""
    match outcome:
        case LlmCallOutcome(reply=Reply()):
            return True
        case ToolCallOutcome(launch=Done(result=CompletedToolCall(output=Success()))):
            return True
        case DurableStepOutcome(value={"verdict": "happened" | "did_not_happen"}):
            return True
        case _:
            return False
