"""Approvals and doubt verdicts for the calls that a body makes of other tools.

Laws: the same as for calls of the model. The append that starts a call consumes its approval. A call in doubt is
dispatched again only after a person's verdict that it did not happen, under the same idempotency key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from perdure.clock import Clock
from perdure.commit.plan import PersonRequest
from perdure.effects.controller import Begun, DispatchPolicy
from perdure.effects.promises import unsigned_key
from perdure.runtime.calls.runners import still_holds
from perdure.runtime.turns.starts import APPROVAL_MS
from perdure.runtime.worker.owned import OwnedStream
from perdure.store.protocol import Store
from perdure.tools.body import Body
from perdure.tools.door import Consent
from perdure.tools.toolbox import Prepared
from perdure.turn.state import Turn
from perdure.vocab.approvals import Decision, approved, consent_to, decision_of, did_not_happen, granted, refused
from perdure.vocab.effects import AwaitEvent, PreparedToolCall
from perdure.vocab.log_keys import gate_key, revocation_key
from perdure.vocab.outcomes import AwaitEventOutcome, ToolOutput, into_await_event
from perdure.vocab.promises import DoubtVerdict, Resolution
from perdure.vocab.records import ApprovalGranted
from perdure.vocab.tools import Durability


@dataclass(frozen=True, slots=True)
class Leave:
    """A call that may run with these arguments. `use` consumes its approval; None if nothing is left to consume."""

    call: PreparedToolCall
    consent: Consent
    use: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class ChildApprovals:
    """The requests to people about calls of one turn's bodies."""

    owned: OwnedStream
    store: Store
    clock: Clock
    turn: Turn
    grant: Callable[[Turn, Prepared], ApprovalGranted | None]

    async def allow(self, body: Body, step: str, call: PreparedToolCall, prepared: Prepared) -> Leave | ToolOutput:
        """Request approval for a call, exactly as it would run, unless that was done before."""
        now, promises = self.clock.wall_ms(), prepared.durability
        key = unsigned_key(body.place.scope_id, consent_to(call.call_id, call.tool_name, call.args))
        due_at = now + (APPROVAL_MS if promises.approval_ms is None else promises.approval_ms)
        policy = DispatchPolicy(effect="pure", record_start=True, due_at=due_at)
        known = body.outcome_of("approval", step) is not None
        asked_before = body.controller.journal.started(body.place.part("approval", step)) is not None
        begun = body.open_part("approval", step, AwaitEvent(key=key, about=call), policy)
        if not isinstance(begun, Begun):
            assert known
            return _judged(call, into_await_event(begun))
        grant = None if asked_before else self.grant(self.turn, prepared)
        if grant is not None:
            use = Decision(verdict="approve", by=grant.by, at=now, via="grant", grant=grant.grant).resolution
            unless = (gate_key(self.turn.id), revocation_key(grant.grant))
            return Leave(call, "given", lambda: self._use(body, begun, use, prepared, unless))
        if not asked_before:
            self.owned.ask(PersonRequest(key.key_id, "approval", now, due_at))
        await body.controller.ledger.durable()  # the promise must be durable before it can be answered
        resolution = await still_holds(self.store, key, await body.answer_to(key, begun.policy.due_at))
        decision = approved(resolution)
        if decision is None:
            body.close_part(begun, AwaitEventOutcome(resolution=resolution))
            return refused(resolution)
        allowed = call if decision.args is None else replace(call, args=decision.args)
        return Leave(allowed, "given", lambda: self._use(body, begun, resolution, prepared, (gate_key(self.turn.id),)))

    def given(self, body: Body, step: str, call: PreparedToolCall) -> Leave | ToolOutput:
        """Return the approval with which a call began before, whatever the policy requires now."""
        outcome = body.outcome_of("approval", step)
        return Leave(call, "begun_before") if outcome is None else _judged(call, into_await_event(outcome))

    def _use(
        self, body: Body, begun: Begun, resolution: Resolution, prepared: Prepared, unless: tuple[str, ...]
    ) -> None:
        """Record the decision in one separate append with the start of the call. The store checks that append."""
        decision = approved(resolution)
        assert decision is not None
        assert isinstance(begun.envelope.command, AwaitEvent)
        key = begun.envelope.command.key
        self.owned.flush()
        body.close_part(begun, AwaitEventOutcome(resolution=resolution))
        if decision.for_session:
            agent = self.turn.composition.agent
            body.controller.ledger.submit(granted(key.key_id, agent, prepared.contract, decision))
        self.owned.need(() if decision.grant else (key.key_id,), unless, provisional=True)

    async def answer(self, body: Body, step: str, about: PreparedToolCall) -> Decision | None:
        """Return a person's answer to a question that by itself allows nothing."""
        now = self.clock.wall_ms()
        key = unsigned_key(body.place.scope_id, consent_to(about.call_id, about.tool_name, about.args))
        asked_before = body.controller.journal.started(body.place.part("approval", step)) is not None
        policy = DispatchPolicy(effect="pure", record_start=True, due_at=now + APPROVAL_MS)
        begun = body.open_part("approval", step, AwaitEvent(key=key, about=about), policy)
        if not isinstance(begun, Begun):
            return decision_of(into_await_event(begun))
        if not asked_before:
            self.owned.ask(PersonRequest(key.key_id, "approval", now, now + APPROVAL_MS))
        await body.controller.ledger.durable()
        resolution = await body.answer_to(key, begun.policy.due_at)
        body.close_part(begun, AwaitEventOutcome(resolution=resolution))
        return decision_of(resolution)

    async def settle(self, body: Body, step: str, call: PreparedToolCall, promises: Durability, *, dead: bool) -> None:
        """Ask a person about a call in doubt, unless that was done before. The answer is recorded."""
        now = self.clock.wall_ms()
        key = unsigned_key(body.place.scope_id, DoubtVerdict(call_id=f"{call.call_id}:{step}"))
        due_at = now + (APPROVAL_MS if promises.approval_ms is None else promises.approval_ms)
        asked_before = body.controller.journal.started(body.place.part("doubt", step)) is not None
        policy = DispatchPolicy(effect="pure", record_start=True, due_at=due_at)
        begun = body.open_part("doubt", step, AwaitEvent(key=key, about=call), policy)
        if not isinstance(begun, Begun):
            return
        if not asked_before:
            self.owned.ask(PersonRequest(key.key_id, "doubt", now, due_at))
        await body.controller.ledger.durable()
        resolution = await body.answer_to(key, begun.policy.due_at)
        decision = decision_of(resolution)
        if decision is not None and did_not_happen(resolution) and not dead:
            reason = "reported as not done, but the former worker may still be doing it"
            resolution = replace(decision, verdict="unknown", reason=reason).resolution
        body.close_part(begun, AwaitEventOutcome(resolution=resolution))


def _judged(call: PreparedToolCall, resolution: Resolution) -> Leave | ToolOutput:
    """Return what a recorded decision allows. The start of the call was recorded with it."""
    decision = approved(resolution)
    if decision is None:
        return refused(resolution)
    return Leave(call if decision.args is None else replace(call, args=decision.args), "given")
