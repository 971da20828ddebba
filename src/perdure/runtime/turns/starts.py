"""Starting the effects that a turn owes: each kind is begun, settled at once, or held for an approval."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from perdure.commit.plan import PersonRequest
from perdure.effects.controller import Begun, DispatchPolicy
from perdure.effects.promises import TurnScope, unsigned_key
from perdure.errors import Code, Error
from perdure.ids import PromiseId
from perdure.runtime.calls.failure_context import with_steps
from perdure.runtime.turns.envelopes import envelope
from perdure.runtime.turns.preparing import Preparing, ReadyCall, identity
from perdure.runtime.turns.waiting import opener_of
from perdure.tools.door import Consent, admit
from perdure.turn.machine import advance, settlement, stopped
from perdure.turn.state import (
    AskModel,
    AwaitApproval,
    AwaitCompletion,
    AwaitVerdict,
    Effect,
    Probe,
    RetryWait,
    RunCall,
)
from perdure.vocab.approvals import Decision, consent_to, lapsed, refused
from perdure.vocab.effects import AwaitEvent, Envelope
from perdure.vocab.log_keys import gate_key, revocation_key
from perdure.vocab.outcomes import (
    AwaitEventOutcome,
    DurableStepOutcome,
    Failed,
    FailureDetail,
    Pending,
    PendingCompletion,
    ToolCallOutcome,
    ToolOutput,
)
from perdure.vocab.promises import Cancelled, ClientResult, UserAnswer
from perdure.vocab.questions import questions_of, silence
from perdure.vocab.records import EffectSettled
from perdure.vocab.refs import call_body

if TYPE_CHECKING:
    from perdure.runtime.turns.loop import TurnDriver

log = logging.getLogger("perdure.runtime")

APPROVAL_MS = 24 * 3_600_000
"""Default time limit of an approval, for the answer and for its use. A tool can set its own."""


@dataclass(frozen=True, slots=True)
class ApprovalUse:
    """The approval behind a call: its start consumes the promises in `uses`. A taken log key in `unless` forbids it."""

    uses: tuple[PromiseId, ...]
    unless: tuple[str, ...]


def begin(driver: TurnDriver, item: Effect) -> bool:
    """Begin one effect. Return True if it was settled at once, so that the owed effects have changed."""
    try:
        if isinstance(item, RunCall):
            return _begin_call(driver, item)
        ran = driver.preparations.captured(item) if isinstance(item, AwaitVerdict) else None
        described = envelope(driver.where, driver.turn, item, ran)
        match item:
            case AskModel():
                _take_in(driver)
                policy = DispatchPolicy(effect="pure", record_start=True, keep_command=False)
                return driver.start(item, described, policy, driver.runners.model(item))
            case RetryWait():
                return _begin_wait(driver, item, described)
            case AwaitCompletion():
                policy = DispatchPolicy(effect="pure", record_start=True, due_at=item.pending.due_at)
                return driver.start(item, described, policy, driver.runners.completion(item))
            case AwaitApproval():
                policy = DispatchPolicy(effect="pure", record_start=True, due_at=item.due_at)
                return driver.start(item, described, policy, driver.runners.approval(item))
            case AwaitVerdict():
                return _begin_verdict(driver, item, described)
            case Probe():
                return _begin_probe(driver, item, described)
    except Error as problem:
        if problem.code is not Code.REPLAY_MISMATCH:
            raise
        return _mismatch(driver, item, problem)


def _take_in(driver: TurnDriver) -> None:
    """Admit the inputs that join the running turn, before its model call.

    They get a separate append. The store refuses it if such an input was withdrawn or cancelled meanwhile.
    """
    joining = driver.around.joining(driver.turn, opener_of(driver.turn, driver.records))
    if joining:
        driver.owned.flush()
    for one in joining:
        driver.turn = advance(driver.turn, one.said)
        driver.records.append(one.said)
        driver.owned.submit(one.said, consume=(one.row,))
    driver.owned.need((), tuple(gate_key(one.asked_for) for one in joining))


def _begin_call(driver: TurnDriver, item: RunCall) -> bool:
    ready = driver.preparations.of(item)
    if isinstance(ready, Preparing):
        return False
    if not isinstance(ready, ReadyCall):
        told = with_steps(ready, driver.controller.journal.steps(body_of(item)))
        driver.controller.record(settlement(item.ref, item.call, told))
        return True
    if ready.prepared.contract.client_side:
        driver.controller.record(_left_to_client(driver, item, ready))
        return True
    begun_before = has_begun(driver, item)
    if item.decision is None and not begun_before:
        match driver.consents.needed(item, ready):
            case Preparing():
                return False
            case True:
                return _ask(driver, item, ready)
            case False:
                pass
    admitted = admit(ready.prepared, driver.turn.composition, _consent(item, ready, begun_before=begun_before))
    if isinstance(admitted, FailureDetail):
        driver.controller.record(settlement(item.ref, item.call, Failed(failure=admitted)))
        return True
    described = envelope(driver.where, driver.turn, item, ready.call)
    durability = ready.prepared.contract.durability
    timeout = durability.timeout_ms
    policy = DispatchPolicy(
        effect=durability.effect,
        doubt=durability.doubt,
        deadline_at=driver.around.clock.wall_ms() + timeout if timeout else None,
        record_start=ready.recorded or ready.prepared.has_predicate,
        keep_command=ready.recorded,
        needs_approval=item.decision is not None,
    )
    if not driver.permits.may_begin(item, driver.turn.composition.model):
        return False  # checked first: the append that starts the call also consumes its approval
    if item.decision is not None and not begun_before:
        leave = _leave(driver, item, ready, item.decision)
        if not isinstance(leave, ApprovalUse):
            driver.controller.record(settlement(item.ref, item.call, leave))
            return True
        driver.owned.need(leave.uses, leave.unless, provisional=True)
        driver.leaves.update(dict.fromkeys(leave.uses, (item, item.decision)))
    return driver.start(item, described, policy, driver.runners.tool(item, ready, admitted))


def _consent(item: RunCall, ready: ReadyCall, *, begun_before: bool) -> Consent:
    """Return how the approval policy of a call was met that is about to start."""
    if begun_before:
        return "begun_before"
    if item.decision is not None:
        return "given"
    return "predicate_declined" if ready.prepared.has_predicate else "not_needed"


def _left_to_client(driver: TurnDriver, item: RunCall, ready: ReadyCall) -> EffectSettled:
    """Return the outcome of a client-side call: pending. Nothing is dispatched, so the call cannot be in doubt."""
    call, timeout = item.call, ready.prepared.durability.timeout_ms
    asked = questions_of(call.args) if getattr(ready.prepared.tool, "asks_person", False) else ()
    wait = UserAnswer(call_id=call.id) if asked else ClientResult(call_id=call.id)
    pending = Pending(
        key=unsigned_key(TurnScope(driver.where.tenant, driver.where.session, driver.turn.id).id, wait),
        pending=PendingCompletion(deadline_ms=timeout),
        due_at=driver.around.clock.wall_ms() + timeout if timeout else None,
        silence=silence(asked),
    )
    return EffectSettled(id=item.ref.id, outcome=ToolCallOutcome(launch=pending))


def has_begun(driver: TurnDriver, item: RunCall) -> bool:
    """Return True if an attempt of this call has begun. Such a call needs no further approval."""
    refs = (replace(item.ref, attempt=attempt) for attempt in range(1, item.ref.attempt + 1))
    return any(driver.controller.journal.started(ref.id) for ref in refs)


def _ask(driver: TurnDriver, item: RunCall, ready: ReadyCall) -> bool:
    """Request approval for a call, exactly as it would run. A session-wide grant counts as the answer."""
    now = driver.around.clock.wall_ms()
    patience = ready.prepared.durability.approval_ms
    due_at = now + (APPROVAL_MS if patience is None else patience)
    scope = TurnScope(driver.where.tenant, driver.where.session, driver.turn.id)
    key = unsigned_key(scope.id, consent_to(item.call.id, item.call.name, ready.call.args))
    command = AwaitEvent(key=key, about=ready.call)
    wait = AwaitApproval(replace(item.ref, tail="approval"), item.call, item.contract, command, due_at)
    described = envelope(driver.where, driver.turn, wait)
    policy = DispatchPolicy(effect="pure", record_start=True, due_at=due_at)
    grant = driver.around.grant(driver.turn, ready.prepared)
    if grant is None:
        settled = driver.start(wait, described, policy, driver.runners.approval(wait))
        driver.owned.ask(PersonRequest(key.key_id, "approval", now, due_at))
        return settled
    driver.owned.flush()  # one separate append uses the grant and starts the call
    begun = driver.controller.begin(described, policy)
    if isinstance(begun, Begun):
        use = Decision(verdict="approve", by=grant.by, at=now, via="grant", grant=grant.grant)
        driver.controller.settle(begun, AwaitEventOutcome(resolution=use.resolution))
    return True


def _leave(driver: TurnDriver, item: RunCall, ready: ReadyCall, decision: Decision) -> ApprovalUse | ToolOutput:
    """Return what the start of an approved call consumes, and the log keys that forbid it.

    Those keys are taken when the turn is cancelled or the grant is revoked. If the approval is no longer valid and the
    call has not started, return the call's output instead.
    """
    gate = gate_key(driver.turn.id)
    if decision.grant:
        grant = driver.around.grant(driver.turn, ready.prepared)
        if grant is None or grant.grant != decision.grant:
            return refused(Cancelled())
        return ApprovalUse((), (gate, revocation_key(decision.grant)))
    asked = driver.preparations.question(item)
    if asked is None or not isinstance(asked.command, AwaitEvent):
        return refused(Cancelled())
    if asked.due_at is not None and asked.due_at <= driver.around.clock.wall_ms():
        return refused(lapsed(decision))
    return ApprovalUse((asked.command.key.key_id,), (gate,))


def _begin_verdict(driver: TurnDriver, item: AwaitVerdict, described: Envelope) -> bool:
    patience = item.contract.durability.approval_ms if item.contract else None
    now = driver.around.clock.wall_ms()
    due_at = now + (APPROVAL_MS if patience is None else patience)
    new = driver.controller.journal.started(item.ref.id) is None
    policy = DispatchPolicy(effect="pure", record_start=True, due_at=due_at)
    settled = driver.start(item, described, policy, driver.runners.verdict(item))
    if new and isinstance(described.command, AwaitEvent):
        driver.owned.ask(PersonRequest(described.command.key.key_id, "doubt", now, due_at))
    return settled


def _begin_probe(driver: TurnDriver, item: Probe, described: Envelope) -> bool:
    captured = driver.preparations.captured(item)
    prepared = driver.around.toolbox.prepare(item.call, item.contract, captured)
    if isinstance(prepared, FailureDetail) or prepared.tool.probe is None:
        unknown = DurableStepOutcome(value={"verdict": "unknown", "reason": "the probe does not exist any more"})
        driver.controller.record(EffectSettled(id=item.ref.id, outcome=unknown))
        return True

    ready = ReadyCall(prepared, captured or identity(item, prepared.contract), recorded=False)
    return driver.start(item, described, DispatchPolicy(effect="pure"), driver.runners.probe(item, ready))


def _begin_wait(driver: TurnDriver, item: RetryWait, described: Envelope) -> bool:
    due_at = item.due_at if item.due_at is not None else driver.around.clock.wall_ms() + item.duration_ms
    policy = DispatchPolicy(effect="pure", record_start=True, due_at=due_at)
    return driver.start(item, described, policy, driver.runners.sleep(due_at))


def _mismatch(driver: TurnDriver, item: Effect, problem: Error) -> bool:
    log.error("%s", problem, extra={"session": driver.where.session, "turn": driver.turn.id})
    if isinstance(item, RunCall):
        failure = FailureDetail(code=problem.code.value, message=problem.message, failure_class="invalid")
        driver.controller.record(settlement(item.ref, item.call, Failed(failure=failure)))
    else:
        driver.submit(stopped(driver.turn, "replay_mismatch", problem.message))
    return True


def body_of(item: RunCall) -> str:
    """Return the body name of a call, the prefix of its parts' ids."""
    assert item.ref.index is not None
    return call_body(item.ref.iteration, item.ref.index)
