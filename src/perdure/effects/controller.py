"""Controllers: the one place that knows replay from run.

An effect passes three moments. *Begin* looks into the journal and submits the intent where the class wants one.
*Dispatch* waits for exactly what must be durable first, checks the lease, and calls the world. *Settle* submits the
outcome. `execute` is the three in a row; the turn loop calls them apart, so that an outcome and the intents it leads
to become one append.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

import msgspec

from perdure.codec import brief
from perdure.effects.journal import AlreadyRunning, AlreadySettled, Claimed, DeterminismViolation, EffectJournal
from perdure.errors import Code, Error
from perdure.ids import EffectId, WorkerId
from perdure.inbox.admit import Delivery
from perdure.vocab.effects import EffectKind, Envelope
from perdure.vocab.outcomes import DirectUsage, DurableStepOutcome, InDoubt, Outcome
from perdure.vocab.records import EffectSettled, EffectStarted, Record
from perdure.vocab.refs import is_within
from perdure.vocab.tools import DoubtPolicy, EffectClass

DurabilityTier = Literal["inline", "durable"]


class NotDispatched(Exception):
    """Raised by a local executor that found the lease lapsed at the last moment. The world has noticed nothing."""


class Local(msgspec.Struct, frozen=True):
    """The local way to perform one kind of effect."""

    kind: EffectKind
    run: Callable[[Envelope], Awaitable[Outcome]]


class Care(msgspec.Struct, frozen=True):
    """How carefully an effect is treated: its class, and what its intent records besides.

    `keep_command` is for commands that cannot be derived from the records before them; it lets a mismatch say what
    exactly differs. `leave`: somebody had to allow it, so its start, which uses that up, is durable before dispatch.
    `asks` is what it buys at least, if its end is never recorded.
    """

    effect: EffectClass = "once"
    doubt: DoubtPolicy = "tell"
    deadline_at: int | None = None
    due_at: int | None = None
    record_start: bool = False
    keep_command: bool = True
    leave: bool = False
    asks: DirectUsage | None = None

    @property
    def has_intent(self) -> bool:
        """Whether a start record is written: always for what must not run twice, for others where it informs."""
        return self.record_start or self.leave or self.effect in ("once", "resumable")

    @property
    def waits(self) -> bool:
        """Whether what came before must be durable before dispatch, and the lease certain."""
        return self.leave or self.effect != "pure"


def asking_care(asks: DirectUsage) -> Care:
    """The care of a model call outside the conversation: it may be asked again, and nothing of it is free."""
    return Care(effect="pure", record_start=True, keep_command=False, asks=asks)


class Controller(Protocol):
    """Whoever performs effects: in memory, on a store, or on an engine of somebody else."""

    @property
    def supports_durable_effects(self) -> bool:
        """Whether a step executed here survives a crash."""
        ...

    @property
    def nests(self) -> bool:
        """Whether an effect may be executed inside another one."""
        ...

    @property
    def durability_tier(self) -> DurabilityTier:
        """How much survives: nothing, or everything that was recorded."""
        ...

    async def execute(self, envelope: Envelope, local: Local | None, care: Care = ...) -> Outcome:
        """Answer an effect: from the record if it was ever answered, else from the world."""
        ...


class Ledger(Protocol):
    """Where a journaled controller writes: the owned stream."""

    worker: WorkerId

    def submit(self, *records: Record, sends: tuple[Delivery, ...] = ()) -> None:
        """Put facts into the stream, in order, now; durable later, together with what they send to other streams."""
        ...

    def durable(self) -> Awaitable[None]:
        """Wait until everything submitted so far is durable."""
        ...

    def lease_live(self) -> bool:
        """Whether this worker's lease has certainly not lapsed. Never waits."""
        ...

    async def reassert(self) -> None:
        """Renew a lapsed lease, or raise `lease_lost`."""
        ...


class InlineController:
    """Runs effects and records nothing: for tests and for work that may be forgotten."""

    supports_durable_effects = False
    nests = True
    durability_tier: DurabilityTier = "inline"

    async def execute(self, envelope: Envelope, local: Local | None, care: Care | None = None) -> Outcome:
        """Run the effect. Twice is twice."""
        return _fitting(envelope, await _asked(envelope, local))


class Begun(msgspec.Struct, frozen=True):
    """An effect that may be dispatched once the right things are durable."""

    envelope: Envelope
    fingerprint: str
    care: Care


class JournaledController:
    """Answers effects once: the journal decides, the ledger remembers."""

    supports_durable_effects = True
    nests = True
    durability_tier: DurabilityTier = "durable"

    def __init__(self, journal: EffectJournal, ledger: Ledger) -> None:
        self.journal = journal
        self.ledger = ledger

    def record(self, *records: Record) -> None:
        """Submit facts, and fold those that are about effects."""
        self.ledger.submit(*records)
        for record in records:
            self.journal.fold(record)

    def begin(self, envelope: Envelope, care: Care) -> Begun | Outcome:
        """Look the effect up and submit its intent; an outcome if it was settled before.

        Raises:
            Error: `replay_mismatch`; `runtime_effect_in_doubt` for an unsettled `once` effect of an earlier run.
        """
        fingerprint = envelope.fingerprint()
        match self.journal.claim(envelope, fingerprint):
            case Claimed():  # as almost always
                if care.has_intent:
                    self.record(_started(envelope, fingerprint, care, self.ledger.worker))
            case DeterminismViolation() as violation:
                raise violation.error(envelope)
            case AlreadySettled(outcome):
                return outcome
            case AlreadyRunning(started) if started.effect == "once":
                raise Error(
                    Code.RUNTIME_EFFECT_IN_DOUBT,
                    f"effect {envelope.id} was dispatched before and its outcome is unknown",
                    because="the worker that ran it is gone",
                    hint="settle the doubt first: by a probe, by a person, or by telling the model",
                )
            case AlreadyRunning(started):
                care = Care(effect=care.effect, due_at=started.due_at, record_start=care.record_start, leave=care.leave)
        return Begun(envelope, fingerprint, care)

    async def dispatch(self, begun: Begun, local: Local | None) -> Outcome:
        """Call the world, once what must be durable is durable and the lease certainly holds."""
        waits = begun.care.waits
        if waits:
            await self.ledger.durable()
        while True:
            if waits:
                while not self.ledger.lease_live():
                    await self.ledger.reassert()
            try:
                return _fitting(begun.envelope, await _asked(begun.envelope, local))
            except NotDispatched:  # the lease lapsed while the call waited for its turn to start
                await self.ledger.reassert()

    def settle(self, begun: Begun, outcome: Outcome) -> EffectSettled:
        """Submit the outcome."""
        effect = EffectId(begun.envelope.id)
        fingerprint = "" if self.journal.started(effect) else brief(begun.fingerprint)
        settled = EffectSettled(id=effect, outcome=outcome, fingerprint=fingerprint)
        self.record(settled)
        return settled

    async def execute(self, envelope: Envelope, local: Local | None, care: Care | None = None) -> Outcome:
        """Begin, dispatch, settle. Returns before the outcome is durable: what comes next will wait for it."""
        begun = self.begin(envelope, care or Care())
        if not isinstance(begun, Begun):
            return begun
        outcome = await self.dispatch(begun, local)
        self.settle(begun, outcome)
        return outcome

    def doubt_unsettled_steps(self, doubt: InDoubt, *, body: str = "") -> None:
        """Nobody waits any more for the `once` steps (of one body and those inside it, if it is named) that were
        dispatched and not settled: their outcome is unknown."""
        for started in self.journal.unsettled():
            step = started.effect == "once" and started.kind is EffectKind.DURABLE_STEP
            if step and is_within(started.id, body):
                self.record(EffectSettled(id=started.id, outcome=DurableStepOutcome(in_doubt=doubt)))

    def end_inner_bodies(self, *, body: str = "") -> None:
        """Nobody enters the bodies again that steps (of one body, if it is named) had begun to run: each ends as what
        is known of its own steps, which have their outcomes by now."""
        for started in self.journal.unfinished_inner_bodies():
            if is_within(started.id, body):
                self.record(EffectSettled(id=started.id, outcome=self.journal.cut_short(started)))


def _started(envelope: Envelope, fingerprint: str, care: Care, worker: WorkerId) -> EffectStarted:
    return EffectStarted(
        id=EffectId(envelope.id),
        kind=envelope.kind,
        fingerprint=brief(fingerprint),
        command=envelope.command if care.keep_command else None,
        effect=care.effect,
        doubt=care.doubt,
        worker=worker if care.effect in ("once", "resumable") else WorkerId(""),
        deadline_at=care.deadline_at,
        due_at=care.due_at,
        asks=care.asks,
    )


def _asked(envelope: Envelope, local: Local | None) -> Awaitable[Outcome]:
    """The world's answer, to be awaited by whoever asks: a coroutine around it would be one more to wake."""
    if local is None:
        raise Error(
            Code.RUNTIME_EFFECT_LOCAL_EXECUTOR_UNAVAILABLE, f"nobody here can perform a {envelope.kind.value} effect"
        )
    if local.kind is not envelope.kind:
        raise Error(
            Code.RUNTIME_EFFECT_LOCAL_EXECUTOR_MISMATCH,
            f"a {local.kind.value} executor was given a {envelope.kind.value} effect",
        )
    return local.run(envelope)


def _fitting(envelope: Envelope, outcome: Outcome) -> Outcome:
    if outcome.kind is not envelope.kind:
        raise Error(
            Code.RUNTIME_EFFECT_WRONG_OUTCOME,
            f"a {envelope.kind.value} effect was answered with the outcome of {outcome.kind.value}",
            expected=envelope.kind.value,
            actual=outcome.kind.value,
        )
    return outcome
