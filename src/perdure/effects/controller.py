"""Controllers: they decide between replaying an effect and performing it.

An effect has three stages. *Begin* queries the journal and submits the intent if the effect class needs one. *Dispatch*
waits until the required records are durable, checks the lease, and calls the external system. *Settle* submits the
outcome. `execute` runs all three. The turn loop calls them separately, so that an outcome and the intents that follow
from it share one append.
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
    """Raised by a local executor whose lease lapsed just before dispatch. No external system was called."""


class Local(msgspec.Struct, frozen=True):
    """The local executor of one kind of effect."""

    kind: EffectKind
    run: Callable[[Envelope], Awaitable[Outcome]]


class DispatchPolicy(msgspec.Struct, frozen=True):
    """The dispatch policy of an effect: its class, and what its intent records.

    `keep_command` is for commands that cannot be derived from earlier records; a mismatch can then list the
    differences. `needs_approval`: the start of the effect consumes an approval and is durable before dispatch.
    `estimated_usage` is the usage charged at least if the end is never recorded.
    """

    effect: EffectClass = "once"
    doubt: DoubtPolicy = "tell"
    deadline_at: int | None = None
    due_at: int | None = None
    record_start: bool = False
    keep_command: bool = True
    needs_approval: bool = False
    estimated_usage: DirectUsage | None = None

    @property
    def has_intent(self) -> bool:
        """True if a start record is written: always for effects that must not run twice, for others on request."""
        return self.record_start or self.needs_approval or self.effect in ("once", "resumable")

    @property
    def waits(self) -> bool:
        """True if dispatch waits until the earlier records are durable and the lease is certain."""
        return self.needs_approval or self.effect != "pure"


def asking_policy(estimate: DirectUsage) -> DispatchPolicy:
    """Return the policy of a model call outside the conversation: it may be repeated, and each attempt is charged."""
    return DispatchPolicy(effect="pure", record_start=True, keep_command=False, estimated_usage=estimate)


class Controller(Protocol):
    """A performer of effects: in memory, on a store, or on an external engine."""

    @property
    def supports_durable_effects(self) -> bool:
        """True if a step executed here survives a crash."""
        ...

    @property
    def nests(self) -> bool:
        """True if an effect may be executed inside another one."""
        ...

    @property
    def durability_tier(self) -> DurabilityTier:
        """The durability of outcomes: `inline` (none) or `durable` (all that were recorded)."""
        ...

    async def execute(self, envelope: Envelope, local: Local | None, policy: DispatchPolicy = ...) -> Outcome:
        """Return the recorded outcome of an effect, or perform it."""
        ...


class EffectLog(Protocol):
    """The log to which a journaled controller writes: the owned stream."""

    worker: WorkerId

    def submit(self, *records: Record, outbox: tuple[Delivery, ...] = ()) -> tuple[Record, ...]:
        """Append records in order; they become durable later, together with their outgoing messages.

        Return the records as written: without secrets.
        """
        ...

    def durable(self) -> Awaitable[None]:
        """Wait until all submitted records are durable."""
        ...

    def lease_live(self) -> bool:
        """Return True if this worker's lease has certainly not lapsed. Never waits."""
        ...

    async def reassert(self) -> None:
        """Renew a lapsed lease, or raise `lease_lost`."""
        ...


class InlineController:
    """A controller that records nothing, for tests and work that may be lost."""

    supports_durable_effects = False
    nests = True
    durability_tier: DurabilityTier = "inline"

    async def execute(self, envelope: Envelope, local: Local | None, policy: DispatchPolicy | None = None) -> Outcome:
        """Run the effect. A repeated call runs it again."""
        return _fitting(envelope, await _asked(envelope, local))


class Begun(msgspec.Struct, frozen=True):
    """An effect that may be dispatched once the required records are durable."""

    envelope: Envelope
    fingerprint: str
    policy: DispatchPolicy


class JournaledController:
    """A controller that answers each effect once: the journal decides, the log stores."""

    supports_durable_effects = True
    nests = True
    durability_tier: DurabilityTier = "durable"

    def __init__(self, journal: EffectJournal, ledger: EffectLog) -> None:
        self.journal = journal
        self.ledger = ledger

    def record(self, *records: Record) -> tuple[Record, ...]:
        """Submit records, and fold those about effects into the journal. Return them as written."""
        written = self.ledger.submit(*records)
        for record in written:
            self.journal.fold(record)
        return written

    def begin(self, envelope: Envelope, policy: DispatchPolicy) -> Begun | Outcome:
        """Return the recorded outcome of an effect, or submit its intent.

        Raises:
            Error: `replay_mismatch`; `runtime_effect_in_doubt` for an unsettled `once` effect of an earlier run.
        """
        fingerprint = envelope.fingerprint()
        match self.journal.claim(envelope, fingerprint):
            case Claimed():  # the usual case
                if policy.has_intent:
                    self.record(_started(envelope, fingerprint, policy, self.ledger.worker))
            case DeterminismViolation() as violation:
                raise violation.error(envelope)
            case AlreadySettled(outcome):
                return outcome
            case AlreadyRunning(started) if started.effect == "once":
                raise Error(
                    Code.RUNTIME_EFFECT_IN_DOUBT,
                    f"effect {envelope.id} was dispatched before and its outcome is unknown",
                    because="the worker that dispatched it is gone",
                    hint="settle the doubt first: by a probe, by a person, or by telling the model",
                )
            case AlreadyRunning(started):
                policy = DispatchPolicy(
                    effect=policy.effect,
                    due_at=started.due_at,
                    record_start=policy.record_start,
                    needs_approval=policy.needs_approval,
                )
        return Begun(envelope, fingerprint, policy)

    async def dispatch(self, begun: Begun, local: Local | None) -> Outcome:
        """Call the external system once the required records are durable and the lease is certain."""
        waits = begun.policy.waits
        if waits:
            await self.ledger.durable()
        while True:
            if waits:
                while not self.ledger.lease_live():
                    await self.ledger.reassert()
            try:
                return _fitting(begun.envelope, await _asked(begun.envelope, local))
            except NotDispatched:  # the lease lapsed while the call was queued
                await self.ledger.reassert()

    def settle(self, begun: Begun, outcome: Outcome) -> EffectSettled:
        """Submit the outcome, and return it as written."""
        effect = EffectId(begun.envelope.id)
        fingerprint = "" if self.journal.started(effect) else brief(begun.fingerprint)
        settled = EffectSettled(id=effect, outcome=outcome, fingerprint=fingerprint)
        [written] = self.record(settled)
        return written if isinstance(written, EffectSettled) else settled

    async def execute(self, envelope: Envelope, local: Local | None, policy: DispatchPolicy | None = None) -> Outcome:
        """Begin, dispatch and settle an effect. Return before the outcome is durable; later dispatches wait for it.

        The result is the outcome as written, so that a replay returns the same.
        """
        begun = self.begin(envelope, policy or DispatchPolicy())
        if not isinstance(begun, Begun):
            return begun
        outcome = await self.dispatch(begun, local)
        return self.settle(begun, outcome).outcome

    def doubt_unsettled_steps(self, doubt: InDoubt, *, body: str = "") -> None:
        """Settle as in doubt all `once` steps that were dispatched and have no outcome.

        With `body`, only the steps of that body and of those inside it.
        """
        for started in self.journal.unsettled():
            step = started.effect == "once" and started.kind is EffectKind.DURABLE_STEP
            if step and is_within(started.id, body):
                self.record(EffectSettled(id=started.id, outcome=DurableStepOutcome(in_doubt=doubt)))

    def end_inner_bodies(self, *, body: str = "") -> None:
        """Settle steps whose own bodies will not be entered again, each by the recorded outcomes of its inner steps.

        With `body`, only the steps within that body.
        """
        for started in self.journal.unfinished_inner_bodies():
            if is_within(started.id, body):
                self.record(EffectSettled(id=started.id, outcome=self.journal.cut_short(started)))


def _started(envelope: Envelope, fingerprint: str, policy: DispatchPolicy, worker: WorkerId) -> EffectStarted:
    return EffectStarted(
        id=EffectId(envelope.id),
        kind=envelope.kind,
        fingerprint=brief(fingerprint),
        command=envelope.command if policy.keep_command else None,
        effect=policy.effect,
        doubt=policy.doubt,
        worker=worker if policy.effect in ("once", "resumable") else WorkerId(""),
        deadline_at=policy.deadline_at,
        due_at=policy.due_at,
        estimated_usage=policy.estimated_usage,
    )


def _asked(envelope: Envelope, local: Local | None) -> Awaitable[Outcome]:
    """Return the awaitable of the local executor. The caller awaits it directly, which saves a coroutine."""
    if local is None:
        raise Error(
            Code.RUNTIME_EFFECT_LOCAL_EXECUTOR_UNAVAILABLE, f"no executor for effect kind {envelope.kind.value}"
        )
    if local.kind is not envelope.kind:
        raise Error(
            Code.RUNTIME_EFFECT_LOCAL_EXECUTOR_MISMATCH,
            f"the executor for {local.kind.value} cannot perform effect kind {envelope.kind.value}",
        )
    return local.run(envelope)


def _fitting(envelope: Envelope, outcome: Outcome) -> Outcome:
    if outcome.kind is not envelope.kind:
        raise Error(
            Code.RUNTIME_EFFECT_WRONG_OUTCOME,
            f"effect kind {envelope.kind.value} was answered with an outcome of {outcome.kind.value}",
            expected=envelope.kind.value,
            actual=outcome.kind.value,
        )
    return outcome
