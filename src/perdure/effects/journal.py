"""The effect journal: started and settled effects by id, which decide whether an effect may run.

Laws: a settled effect is answered from the journal and never performed again. Another fingerprint under the same id is
a mismatch, reported before anything else. A `once` effect that was started and not settled may not run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from perdure.codec import Json, decode, differences, encode
from perdure.errors import Code, Error
from perdure.ids import EffectId
from perdure.vocab.effects import Command, DurableStep, EffectKind, Envelope
from perdure.vocab.outcomes import (
    CompletedToolCall,
    Done,
    DurableStepOutcome,
    InDoubt,
    Outcome,
    StepFailure,
    ToolCallOutcome,
)
from perdure.vocab.records import EffectSettled, EffectStarted, ModelJobBegun, Record
from perdure.vocab.refs import PART, PartRef, first_time, inner_body, is_part, is_within, outer_body, part_id


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """The effect may run."""


class AlreadySettled(msgspec.Struct, frozen=True, gc=False):
    """The effect has an outcome."""

    outcome: Outcome


class AlreadyRunning(msgspec.Struct, frozen=True, gc=False):
    """The effect was started and has no outcome yet."""

    started: EffectStarted


@dataclass(frozen=True, slots=True)
class DeterminismViolation:
    """The effect id was used before with a different command."""

    stored_fingerprint: str
    current_fingerprint: str
    paths: tuple[str, ...] = ()
    count: int = 0

    def error(self, envelope: Envelope) -> Error:
        """Return the `replay_mismatch` error for this violation."""
        shown = "; ".join(self.paths) or "the recorded command was not stored"
        return Error(
            Code.REPLAY_MISMATCH,
            f"effect {envelope.id} differs from its recorded command",
            because=f"{self.count or 'some'} differing JSON paths: {shown}",
            hint="pass equal input to a recorded effect every time; give changed work a new name",
            effect=envelope.id,
            paths=", ".join(path.partition(": ")[0] for path in self.paths) or "unknown, not stored",
            stored=self.stored_fingerprint,
            current=self.current_fingerprint,
        )


ClaimResult: TypeAlias = Claimed | AlreadySettled | AlreadyRunning | DeterminismViolation


@dataclass(frozen=True, slots=True)
class Settled:
    """The effect has its outcome."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The effect was dispatched and its outcome is unknown."""

    doubt: InDoubt


@dataclass(frozen=True, slots=True)
class Running:
    """The effect was started and not settled."""

    started: EffectStarted


EffectStatus: TypeAlias = Settled | Interrupted | Running


class EffectJournal:
    """The effects of one turn or one process, folded from its records."""

    def __init__(self) -> None:
        self._started: dict[EffectId, EffectStarted] = {}
        self._settled: dict[EffectId, EffectSettled] = {}
        self._settled_parts: dict[EffectId, EffectSettled] = {}
        self._jobs: dict[EffectId, Json] = {}

    def fold(self, record: Record) -> None:
        """Fold one record."""
        if isinstance(record, EffectStarted):
            self._started[record.id] = record
        elif isinstance(record, EffectSettled):
            self._settled[record.id] = record
            if PART in record.id:
                self._settled_parts[record.id] = record
        elif isinstance(record, ModelJobBegun):
            self._jobs[record.id] = record.job

    def unfold(self, record: Record) -> None:
        """Undo the fold of a record that was withdrawn before it was written."""
        if isinstance(record, EffectStarted):
            self._started.pop(record.id, None)
        elif isinstance(record, EffectSettled):
            self._settled.pop(record.id, None)
            self._settled_parts.pop(record.id, None)

    def claim(self, envelope: Envelope, fingerprint: str) -> ClaimResult:
        """Decide whether an effect may run. The fingerprint is compared first; the record stores its prefix."""
        effect = EffectId(envelope.id)
        started, settled = self._started.get(effect), self._settled.get(effect)
        if started is None and settled is None:
            return Claimed()  # the usual case: nothing to compare
        stored = (settled and settled.fingerprint) or (started and started.fingerprint) or ""
        if not fingerprint.startswith(stored):
            return _violation(envelope, fingerprint, stored, started.command if started else None)
        if settled:
            return AlreadySettled(settled.outcome)
        return AlreadyRunning(started) if started else Claimed()

    def status(self, effect: EffectId) -> EffectStatus | None:
        """Return the status of an effect, or None if it was never started."""
        if settled := self._settled.get(effect):
            doubt = _doubt_of(settled.outcome)
            return Interrupted(doubt) if doubt else Settled(settled.outcome)
        started = self._started.get(effect)
        return Running(started) if started else None

    def started(self, effect: EffectId) -> EffectStarted | None:
        """Return the start record of an effect, or None."""
        return self._started.get(effect)

    def outcome(self, effect: EffectId) -> Outcome | None:
        """Return the outcome of an effect, or None."""
        settled = self._settled.get(effect)
        return settled.outcome if settled else None

    def job(self, effect: EffectId) -> Json:
        """Return the provider's background job of an effect, or None."""
        return self._jobs.get(effect)

    def ids(self) -> tuple[EffectId, ...]:
        """Return all effects that were started or settled."""
        return tuple({**self._started, **self._settled})

    def doubtful(self) -> tuple[EffectId, ...]:
        """Return the effects that were dispatched and ended in doubt."""
        return tuple(id for id, settled in self._settled.items() if _doubt_of(settled.outcome))

    def steps(self, body: str) -> dict[str, bool]:
        """Return the settled steps of a body by name, each with True if its outcome is known."""
        begins = part_id(body, "step", "")
        return {
            effect.removeprefix(begins): _doubt_of(settled.outcome) is None
            for effect, settled in self._settled_parts.items()
            if effect.startswith(begins)
        }

    def tool_of(self, step: EffectId) -> str | None:
        """Return the tool that a started step calls, or None."""
        started = self._started.get(step)
        match started.command if started else None:
            case DurableStep(input={"tool": str(tool)}):
                return tool.removeprefix("tool:")
            case _:
                return None

    def tool_around(self, part: EffectId) -> str | None:
        """Return the tool whose inner body contains a part, or None for parts of other bodies."""
        inside = PartRef.parse(part).inside if is_part(part) else ""
        return self.tool_of(part_id(outer_body(part), "step", inside)) if inside else None

    def unsettled(self) -> tuple[EffectStarted, ...]:
        """Return the effects that were started and have no outcome."""
        return tuple(s for s in self._started.values() if s.id not in self._settled)

    def unfinished_inner_bodies(self) -> tuple[EffectStarted, ...]:
        """Return the steps with bodies of their own that have no outcome."""
        return tuple(
            one for one in self.unsettled() if one.effect == "resumable" and one.kind is EffectKind.DURABLE_STEP
        )

    def cut_short(self, step: EffectStarted) -> DurableStepOutcome:
        """Return the outcome of a step whose body was stopped before its end."""
        ref = PartRef.parse(step.id)
        body = inner_body(step.id.partition("/")[0], first_time(ref.name))
        for id in self.doubtful():
            if is_part(id) and is_within(id, body):
                message = f"it was stopped during the step {PartRef.parse(id).name}"
                return DurableStepOutcome(in_doubt=InDoubt(reason="cancelled", message=message))
        message = "it was stopped before its end; the steps it had finished stand"
        return DurableStepOutcome(error=StepFailure(code="tool_cancelled", message=message))


def journal_of(records: Iterable[Record]) -> EffectJournal:
    """Fold records into a journal."""
    journal = EffectJournal()
    for record in records:
        journal.fold(record)
    return journal


def _violation(envelope: Envelope, current: str, stored: str, command: Command | None) -> DeterminismViolation:
    if command is None:
        return DeterminismViolation(stored, current)
    recorded: Json = decode(encode(Envelope(invocation=envelope.invocation, command=command)))
    paths, count = differences(recorded, decode(encode(envelope)))
    return DeterminismViolation(stored, current, tuple(paths), count)


def _doubt_of(outcome: Outcome) -> InDoubt | None:
    match outcome:
        case ToolCallOutcome(launch=Done(result=CompletedToolCall(output=InDoubt() as doubt))):
            return doubt
        case DurableStepOutcome(in_doubt=InDoubt() as doubt):
            return doubt
        case _:
            return None
