"""How each kind of effect that a turn owes is begun, settled on the spot, or asked about first."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from perdure.commit.plan import Ask
from perdure.effects.controller import Begun, Care
from perdure.effects.promises import TurnScope, unsigned_key
from perdure.errors import Code, Error
from perdure.ids import PromiseId
from perdure.runtime.calls.honesty import with_steps
from perdure.runtime.turns.envelopes import envelope
from perdure.runtime.turns.preparing import Ready, UnderWay, identity
from perdure.runtime.turns.waiting import opener_of
from perdure.turn.machine import advance, settlement, stopped
from perdure.turn.state import (
    AskModel,
    AwaitApproval,
    AwaitCompletion,
    AwaitVerdict,
    Effect,
    Probe,
    RunCall,
    Wait,
)
from perdure.vocab.approvals import Decision, consent_to, lapsed, refused
from perdure.vocab.effects import AwaitEvent, Envelope
from perdure.vocab.log_keys import gate_key, revocation_key
from perdure.vocab.outcomes import (
    AwaitEventOutcome,
    DurableStepOutcome,
    Failed,
    Failure,
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
"""How long people have to answer, and their answer holds, unless the tool says otherwise."""


@dataclass(frozen=True, slots=True)
class Leave:
    """What allows a call: answers that its start uses up, unless somebody has taken one of these log keys."""

    uses: tuple[PromiseId, ...]
    unless: tuple[str, ...]


def begin(driver: TurnDriver, item: Effect) -> bool:
    """Begin one effect. True if it was settled on the spot, so that what is owed has changed."""
    try:
        if isinstance(item, RunCall):
            return _begin_call(driver, item)
        ran = driver.preparations.sealed(item) if isinstance(item, AwaitVerdict) else None
        described = envelope(driver.where, driver.turn, item, ran)
        match item:
            case AskModel():
                _take_in(driver)
                care = Care(effect="pure", record_start=True, keep_command=False)
                return driver.start(item, described, care, driver.runners.model(item))
            case Wait():
                return _begin_wait(driver, item, described)
            case AwaitCompletion():
                care = Care(effect="pure", record_start=True, due_at=item.pending.due_at)
                return driver.start(item, described, care, driver.runners.completion(item))
            case AwaitApproval():
                care = Care(effect="pure", record_start=True, due_at=item.due_at)
                return driver.start(item, described, care, driver.runners.approval(item))
            case AwaitVerdict():
                return _begin_verdict(driver, item, described)
            case Probe():
                return _begin_probe(driver, item, described)
    except Error as problem:
        if problem.code is not Code.REPLAY_MISMATCH:
            raise
        return _mismatch(driver, item, problem)


def _take_in(driver: TurnDriver) -> None:
    """The model is about to be asked: whatever was sent to the running turn is said to it now, and is not waiting
    any more. In an append of its own, which fails if somebody took such an input back or cancelled it this moment.
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
    if isinstance(ready, UnderWay):
        return False
    if not isinstance(ready, Ready):
        told = with_steps(ready, driver.controller.journal.steps(body_of(item)))
        driver.controller.record(settlement(item.ref, item.call, told))
        return True
    if ready.prepared.contract.client_side:
        driver.controller.record(_left_to_client(driver, item, ready))
        return True
    begun_before = has_begun(driver, item)
    if item.decision is None and not begun_before:
        match driver.consents.needed(item, ready):
            case UnderWay():
                return False
            case True:
                return _ask(driver, item, ready)
            case False:
                pass
    described = envelope(driver.where, driver.turn, item, ready.call)
    durability = ready.prepared.contract.durability
    timeout = durability.timeout_ms
    care = Care(
        effect=durability.effect,
        doubt=durability.doubt,
        deadline_at=driver.around.clock.wall_ms() + timeout if timeout else None,
        record_start=ready.recorded or ready.prepared.has_predicate,
        keep_command=ready.recorded,
        leave=item.decision is not None,
    )
    if not driver.permits.may_begin(item, driver.turn.composition.model):
        return False  # before anybody's leave is used up: that belongs to the append that begins it
    if item.decision is not None and not begun_before:
        leave = _leave(driver, item, item.decision)
        if not isinstance(leave, Leave):
            driver.controller.record(settlement(item.ref, item.call, leave))
            return True
        driver.owned.need(leave.uses, leave.unless, on_trial=True)
        driver.leaves.update(dict.fromkeys(leave.uses, (item, item.decision)))
    return driver.start(item, described, care, driver.runners.tool(item, ready))


def _left_to_client(driver: TurnDriver, item: RunCall, ready: Ready) -> EffectSettled:
    """A call that is run elsewhere is pending from the start: nothing is dispatched, so nothing can be in doubt."""
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
    """Whether an attempt of this call has begun: then nobody is asked about it any more."""
    refs = (replace(item.ref, attempt=attempt) for attempt in range(1, item.ref.attempt + 1))
    return any(driver.controller.journal.started(ref.id) for ref in refs)


def _ask(driver: TurnDriver, item: RunCall, ready: Ready) -> bool:
    """Ask people to allow a call, exactly as it would run; a grant that they gave for the session is an answer."""
    now = driver.around.clock.wall_ms()
    patience = ready.prepared.durability.approval_ms
    due_at = now + (APPROVAL_MS if patience is None else patience)
    scope = TurnScope(driver.where.tenant, driver.where.session, driver.turn.id)
    key = unsigned_key(scope.id, consent_to(item.call.id, item.call.name, ready.call.args))
    wait = AwaitApproval(replace(item.ref, tail="approval"), item.call, AwaitEvent(key=key, about=ready.call), due_at)
    described = envelope(driver.where, driver.turn, wait)
    care = Care(effect="pure", record_start=True, due_at=due_at)
    grant = driver.around.grant(item.call.name)
    if grant is None:
        settled = driver.start(wait, described, care, driver.runners.approval(wait))
        driver.owned.ask(Ask(key.key_id, "approval", now, due_at))
        return settled
    driver.owned.flush()  # using a grant and the start of what it allows are one append, alone
    begun = driver.controller.begin(described, care)
    if isinstance(begun, Begun):
        use = Decision(verdict="approve", by=grant.by, at=now, via="grant", grant=grant.grant)
        driver.controller.settle(begun, AwaitEventOutcome(resolution=use.resolution))
    return True


def _leave(driver: TurnDriver, item: RunCall, decision: Decision) -> Leave | ToolOutput:
    """What the start of an allowed call uses up, and what would forbid it: that it was cancelled or revoked.

    The output of a call whose leave is over, if its decision was recorded and its start was not.
    """
    gate = gate_key(driver.turn.id)
    if decision.grant:
        grant = driver.around.grant(item.call.name)
        if grant is None or grant.grant != decision.grant:
            return refused(Cancelled())
        return Leave((), (gate, revocation_key(decision.grant)))
    asked = driver.preparations.question(item)
    if asked is None or not isinstance(asked.command, AwaitEvent):
        return refused(Cancelled())
    if asked.due_at is not None and asked.due_at <= driver.around.clock.wall_ms():
        return refused(lapsed(decision))
    return Leave((asked.command.key.key_id,), (gate,))


def _begin_verdict(driver: TurnDriver, item: AwaitVerdict, described: Envelope) -> bool:
    patience = item.contract.durability.approval_ms if item.contract else None
    now = driver.around.clock.wall_ms()
    due_at = now + (APPROVAL_MS if patience is None else patience)
    new = driver.controller.journal.started(item.ref.id) is None
    care = Care(effect="pure", record_start=True, due_at=due_at)
    settled = driver.start(item, described, care, driver.runners.verdict(item))
    if new and isinstance(described.command, AwaitEvent):
        driver.owned.ask(Ask(described.command.key.key_id, "doubt", now, due_at))
    return settled


def _begin_probe(driver: TurnDriver, item: Probe, described: Envelope) -> bool:
    sealed = driver.preparations.sealed(item)
    prepared = driver.around.toolbox.prepare(item.call, item.contract, sealed)
    if isinstance(prepared, Failure) or prepared.tool.probe is None:
        unknown = DurableStepOutcome(value={"verdict": "unknown", "reason": "the probe does not exist any more"})
        driver.controller.record(EffectSettled(id=item.ref.id, outcome=unknown))
        return True

    ready = Ready(prepared, sealed or identity(item, prepared.contract), recorded=False)
    return driver.start(item, described, Care(effect="pure"), driver.runners.probe(item, ready))


def _begin_wait(driver: TurnDriver, item: Wait, described: Envelope) -> bool:
    due_at = item.due_at if item.due_at is not None else driver.around.clock.wall_ms() + item.duration_ms
    care = Care(effect="pure", record_start=True, due_at=due_at)
    return driver.start(item, described, care, driver.runners.sleep(due_at))


def _mismatch(driver: TurnDriver, item: Effect, problem: Error) -> bool:
    log.error("%s", problem, extra={"session": driver.where.session, "turn": driver.turn.id})
    if isinstance(item, RunCall):
        failure = Failure(code=problem.code.value, message=problem.message, failure_class="invalid")
        driver.controller.record(settlement(item.ref, item.call, Failed(failure=failure)))
    else:
        driver.submit(stopped(driver.turn, "replay_mismatch", problem.message))
    return True


def body_of(item: RunCall) -> str:
    """What the parts of a call are named after."""
    assert item.ref.index is not None
    return call_body(item.ref.iteration, item.ref.index)
