"""Calls that a body makes of other tools, and people: who must allow one, and who says what became of one in doubt.

Laws: the same as for calls of the model. An approval is used up by the append that starts what it allows; a call in
doubt goes out again only after somebody said that it did not happen, under the same idempotency key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from perdure.clock import Clock
from perdure.commit.plan import Ask
from perdure.effects.controller import Begun, Care
from perdure.effects.promises import unsigned_key
from perdure.ids import TurnId
from perdure.runtime.calls.runners import still_holds
from perdure.runtime.turns.starts import APPROVAL_MS
from perdure.runtime.worker.owned import OwnedStream
from perdure.store.protocol import Store
from perdure.tools.body import Body
from perdure.vocab.approvals import Decision, approved, consent_to, decision_of, did_not_happen, refused
from perdure.vocab.effects import AwaitEvent, PreparedToolCall
from perdure.vocab.log_keys import gate_key, revocation_key
from perdure.vocab.outcomes import AwaitEventOutcome, ToolOutput, into_await_event
from perdure.vocab.promises import DoubtVerdict, Resolution
from perdure.vocab.records import GrantMade
from perdure.vocab.tools import Durability


@dataclass(frozen=True, slots=True)
class Leave:
    """A call that may run: with these arguments, and what its start uses up (None: that was done before)."""

    call: PreparedToolCall
    use: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class People:
    """Who is asked about the calls of bodies of one turn."""

    owned: OwnedStream
    store: Store
    clock: Clock
    turn: TurnId
    grant: Callable[[str], GrantMade | None]

    async def allow(self, body: Body, step: str, call: PreparedToolCall, promises: Durability) -> Leave | ToolOutput:
        """Ask somebody to allow a call, exactly as it would run, unless that was done before."""
        now = self.clock.wall_ms()
        key = unsigned_key(body.place.scope_id, consent_to(call.call_id, call.tool_name, call.args))
        due_at = now + (APPROVAL_MS if promises.approval_ms is None else promises.approval_ms)
        care = Care(effect="pure", record_start=True, due_at=due_at)
        known = body.outcome_of("approval", step) is not None
        asked_before = body.controller.journal.started(body.place.part("approval", step)) is not None
        begun = body.open_part("approval", step, AwaitEvent(key=key, about=call), care)
        if not isinstance(begun, Begun):
            assert known
            return _judged(call, into_await_event(begun))
        grant = None if asked_before else self.grant(call.tool_name)
        if grant is not None:
            use = Decision(verdict="approve", by=grant.by, at=now, via="grant", grant=grant.grant).resolution
            return Leave(call, lambda: self._use(body, begun, use, (gate_key(self.turn), revocation_key(grant.grant))))
        if not asked_before:
            self.owned.ask(Ask(key.key_id, "approval", now, due_at))
        await body.controller.ledger.durable()  # nobody can answer what is not there
        resolution = await still_holds(self.store, key, await body.answer_to(key, begun.care.due_at))
        decision = approved(resolution)
        if decision is None:
            body.close_part(begun, AwaitEventOutcome(resolution=resolution))
            return refused(resolution)
        allowed = call if decision.args is None else replace(call, args=decision.args)
        return Leave(allowed, lambda: self._use(body, begun, resolution, (gate_key(self.turn),)))

    def given(self, body: Body, step: str, call: PreparedToolCall) -> Leave | ToolOutput:
        """The leave with which a call began before, whoever would be asked about it now."""
        outcome = body.outcome_of("approval", step)
        return Leave(call) if outcome is None else _judged(call, into_await_event(outcome))

    def _use(self, body: Body, begun: Begun, resolution: Resolution, unless: tuple[str, ...]) -> None:
        """The decision and the start of what it allows are one append, alone, which the store judges."""
        decision = approved(resolution)
        assert decision is not None
        assert isinstance(begun.envelope.command, AwaitEvent)
        key = begun.envelope.command.key
        self.owned.flush()
        body.close_part(begun, AwaitEventOutcome(resolution=resolution))
        if decision.for_session and begun.envelope.command.about is not None:
            tool = begun.envelope.command.about.tool_name
            made = GrantMade(grant=key.key_id, tool=tool, by=decision.by, at=decision.at, via=decision.via)
            body.controller.ledger.submit(made)
        self.owned.need(() if decision.grant else (key.key_id,), unless, on_trial=True)

    async def answer(self, body: Body, step: str, about: PreparedToolCall) -> Decision | None:
        """What somebody says to a question that allows nothing by itself."""
        now = self.clock.wall_ms()
        key = unsigned_key(body.place.scope_id, consent_to(about.call_id, about.tool_name, about.args))
        asked_before = body.controller.journal.started(body.place.part("approval", step)) is not None
        care = Care(effect="pure", record_start=True, due_at=now + APPROVAL_MS)
        begun = body.open_part("approval", step, AwaitEvent(key=key, about=about), care)
        if not isinstance(begun, Begun):
            return decision_of(into_await_event(begun))
        if not asked_before:
            self.owned.ask(Ask(key.key_id, "approval", now, now + APPROVAL_MS))
        await body.controller.ledger.durable()
        resolution = await body.answer_to(key, begun.care.due_at)
        body.close_part(begun, AwaitEventOutcome(resolution=resolution))
        return decision_of(resolution)

    async def settle(self, body: Body, step: str, call: PreparedToolCall, promises: Durability, *, dead: bool) -> None:
        """Ask somebody what became of a call in doubt, unless that was done before; the answer is recorded."""
        now = self.clock.wall_ms()
        key = unsigned_key(body.place.scope_id, DoubtVerdict(call_id=f"{call.call_id}:{step}"))
        due_at = now + (APPROVAL_MS if promises.approval_ms is None else promises.approval_ms)
        asked_before = body.controller.journal.started(body.place.part("doubt", step)) is not None
        care = Care(effect="pure", record_start=True, due_at=due_at)
        begun = body.open_part("doubt", step, AwaitEvent(key=key, about=call), care)
        if not isinstance(begun, Begun):
            return
        if not asked_before:
            self.owned.ask(Ask(key.key_id, "doubt", now, due_at))
        await body.controller.ledger.durable()
        resolution = await body.answer_to(key, begun.care.due_at)
        decision = decision_of(resolution)
        if decision is not None and did_not_happen(resolution) and not dead:
            reason = "not done, it was said; but the former worker may still be doing it"
            resolution = replace(decision, verdict="unknown", reason=reason).resolution
        body.close_part(begun, AwaitEventOutcome(resolution=resolution))


def _judged(call: PreparedToolCall, resolution: Resolution) -> Leave | ToolOutput:
    """A decision that was recorded before: the start that it allowed was recorded with it."""
    decision = approved(resolution)
    if decision is None:
        return refused(resolution)
    return Leave(call if decision.args is None else replace(call, args=decision.args))
