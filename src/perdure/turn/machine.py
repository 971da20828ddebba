"""The turn machine. `advance` folds one record into a turn; `owed` returns the effects that must run next.

Laws: no I/O, no clock, no randomness. `owed` depends only on recorded facts, so it is the same after a step and after a
crash. A cancel request is admitted: it changes only what is owed, so its order among the records cannot matter.
Parallel calls run first; calls that share a concurrency group run one at a time, in the model's order. Serial calls run
last and alone. Client-side calls follow when all of these are done. Results keep the model's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from msgspec.structs import replace

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.ids import WorkerId
from perdure.turn.state import (
    Acting,
    AskModel,
    AwaitApproval,
    AwaitCompletion,
    AwaitingReply,
    AwaitVerdict,
    Backoff,
    Call,
    Concluding,
    Ended,
    EndTurn,
    Owed,
    Probe,
    RetryWait,
    RunCall,
    Turn,
    opened,
)
from perdure.vocab.approvals import approved, did_not_happen, happened, refused
from perdure.vocab.children import ChildClaimed, ChildEnded, ChildRegistered
from perdure.vocab.effects import AwaitEvent, ToolChoice
from perdure.vocab.messages import Reply, ToolCall
from perdure.vocab.outcomes import (
    AwaitEventOutcome,
    CompletedToolCall,
    DirectOutcome,
    Done,
    DurableStepOutcome,
    Failed,
    FailureDetail,
    InDoubt,
    LlmCallOutcome,
    LlmError,
    Pending,
    SleepOutcome,
    Success,
    ToolCallOutcome,
    ToolOutput,
    completed,
)
from perdure.vocab.promises import Resolution
from perdure.vocab.records import (
    ApprovalGranted,
    AttachmentStored,
    CancelRequested,
    EffectSettled,
    EffectStarted,
    GrantRevoked,
    HandedOver,
    InputAdmitted,
    InputCancelled,
    Limits,
    ModelJobBegun,
    ModelSet,
    OutcomeArrivedLate,
    Record,
    RecordRedacted,
    SessionImported,
    SessionPaused,
    SessionResumed,
    StopReason,
    TagsSet,
    TitleSet,
    ToolMembershipChanged,
    TurnEnded,
    TurnOpened,
)
from perdure.vocab.refs import PART, EffectRef
from perdure.vocab.tools import RetryPolicy

MAX_REDISPATCHES = 3
"""How often a call may be dispatched again after a probe's "did not happen"."""
MAX_LOST_REPLIES = 5
"""Model calls of one iteration that may be lost before the turn stops. Each may have been paid for."""

REFUSALS_AT_ONCE = 64
"""Most calls above a limit that are owed, and so refused, at a time."""

TOO_MANY_CALLS = "too_many_calls"

_EFFECTS = (EffectStarted, EffectSettled)

MODEL_RETRY = RetryPolicy(kind="safe", base_delay_ms=500, max_delay_ms=20_000)


# --- owed ---------------------------------------------------------------------------------------------------------


def owed(turn: Turn) -> tuple[Owed, ...]:
    """Return the effects that must be in flight now, and no others."""
    if (turn.cancel and not turn.ended) or turn.changes_hands:
        return ()
    match turn.phase:
        case AwaitingReply(attempt=attempt, backoff=Backoff(duration_ms=duration, due_at=due)):
            return (RetryWait(EffectRef(turn.iteration, None, attempt, "sleep"), duration, due),)
        case AwaitingReply(attempt=attempt, tool_choice=choice, job=job):
            return (AskModel(EffectRef(turn.iteration, None, attempt), choice, job),)
        case Acting(calls=calls):
            before = turn.called - len(calls)
            allowed = _allowed(turn.limits, before)
            startable = _startable(calls[:allowed], turn.limits.max_parallel_calls)
            if len(startable) < turn.limits.max_parallel_calls:
                excess = (call for call in islice(calls, allowed, None) if call.output is None)
                startable += tuple(islice(excess, REFUSALS_AT_ONCE))
            return tuple(_owed_by_call(turn, call, before) for call in startable)
        case Concluding(status_reason=reason, message=message, hint=hint):
            status = "stopped" if reason else "finished"
            end = TurnEnded(turn=turn.id, status=status, reason=reason, message=message, hint=hint, usage=turn.usage)
            return (EndTurn(end),)
        case Ended():
            return ()


def _startable(calls: tuple[Call, ...], cap: int) -> tuple[Call, ...]:
    waiting = [call for call in calls if call.output is None]
    elsewhere = [call for call in waiting if call.client_side]
    if elsewhere and len(elsewhere) == len(waiting):
        return tuple(waiting)  # no worker-side call is left: the client gets all of its calls at once
    waiting = [call for call in waiting if not call.client_side] if elsewhere else waiting
    parallel = [call for call in waiting if not call.durability.serial]
    if not parallel:
        return tuple(waiting[:1])
    taken: set[str] = set()
    startable: list[Call] = []
    for call in parallel:
        name = call.durability.concurrency_class
        if name and name in taken:
            continue
        taken.add(name)
        startable.append(call)
    return tuple(startable[:cap])


def _allowed(limits: Limits, before: int) -> int:
    """Return how many calls of a reply may run. Only their number counts, so the others are the last ones."""
    return max(0, min(limits.calls_per_reply, limits.calls_per_turn - before))


def _excess(limits: Limits, index: int, before: int) -> FailureDetail | None:
    """Return the refusal of a call above a limit, or None. `before` counts the calls of earlier replies."""
    if index >= limits.calls_per_reply:  # threat: S16
        message = f"A reply may make at most {limits.calls_per_reply} calls. This one was not run: ask again"
    elif before + index >= limits.calls_per_turn:  # threat: S16
        message = f"A turn may make at most {limits.calls_per_turn} calls. This one was not run: give your answer"
    else:
        return None
    return FailureDetail(code=TOO_MANY_CALLS, message=message, failure_class="invalid")


def _owed_by_call(turn: Turn, call: Call, before: int) -> Owed:
    ref = EffectRef(turn.iteration, call.index, call.attempt)
    if call.pending:
        return AwaitCompletion(replace(ref, tail="completion"), call.request, call.pending)
    if call.doubt:
        worker = call.started.worker if call.started else WorkerId("")
        if call.policy == "ask":
            return AwaitVerdict(replace(ref, tail="doubt"), call.request, call.contract, worker)
        return Probe(replace(ref, tail="probe"), call.request, call.contract, call.doubt, worker)
    if call.backoff:
        return RetryWait(
            replace(ref, attempt=call.attempt - 1, tail="sleep"), call.backoff.duration_ms, call.backoff.due_at
        )
    match call.undecided:
        case EffectStarted(command=AwaitEvent() as command, due_at=due_at):
            return AwaitApproval(replace(ref, tail="approval"), call.request, call.contract, command, due_at)
        case _:
            refusal = _excess(turn.limits, call.index, before)
            return RunCall(ref, call.request, call.contract, call.decision, refusal)


# --- advance ------------------------------------------------------------------------------------------------------


def advance(turn: Turn, record: Record) -> Turn:
    """Fold one record into the turn. Total: a record that does not fit is an error."""
    if isinstance(record, _EFFECTS) and PART in record.id:  # most records, if bodies have steps
        return turn if isinstance(record, EffectStarted) else _on_settled_part(turn, record)
    match turn.phase, record:
        case _, InputAdmitted(joins=True):
            return replace(turn, fruitless=0)  # a steering input gives a new direction
        case _, (
            InputAdmitted()
            | InputCancelled()
            | ToolMembershipChanged()
            | TitleSet()
            | ModelSet()
            | TagsSet()
            | SessionPaused()
            | SessionResumed()
        ):
            return turn
        case _, ChildEnded(usage=used):
            return replace(turn, children=turn.children + used)
        case (
            _,
            AttachmentStored()
            | ApprovalGranted()
            | GrantRevoked()
            | SessionImported()
            | ChildClaimed()
            | ChildRegistered()
            | RecordRedacted(),
        ):
            return turn
        case _, ModelJobBegun():
            return _on_job(turn, record)
        case _, HandedOver(to=to):
            return replace(turn, to=to)
        case _, OutcomeArrivedLate(output=output):
            call = _call_in_doubt(turn, record)
            return _with_call(turn, _settled(call, output)) if call else turn
        case Ended(), CancelRequested():
            return turn
        case _, CancelRequested(turn=cancelled):
            return replace(turn, cancel=record) if cancelled == turn.id else turn
        case _, TurnEnded(turn=ended) if ended == turn.id:
            return replace(turn, phase=Ended(record))
        case ((AwaitingReply() | Acting()), EffectStarted(id=effect)):
            return _on_started(turn, EffectRef.parse(effect), record)
        case ((AwaitingReply() | Acting()), EffectSettled(id=effect)):
            return _on_settled(turn, EffectRef.parse(effect), record)
        case phase, _:
            raise _unexpected(turn, record, type(phase).__name__)


def refolded(turn: Turn, records: Sequence[Record]) -> Turn:
    """Return the same turn, folded again from its own records."""
    begun = False
    for record in records:
        if begun:
            turn = advance(turn, record)
        elif isinstance(record, TurnOpened) and record.turn == turn.id:
            turn, begun = opened(record, turn.composition), True
    return turn


def _on_settled_part(turn: Turn, record: EffectSettled) -> Turn:
    """Add the usage of a body's part to the turn.

    Parts matter for the re-entry of a body, not for what the turn owes.
    """
    if isinstance(record.outcome, DirectOutcome):
        return replace(turn, usage=turn.usage + record.outcome.bought)
    return turn


def _unexpected(turn: Turn, record: Record, where: str) -> Error:
    named = f" {record.id}" if isinstance(record, EffectStarted | EffectSettled) else ""
    return Error(Code.TURN_EVENT_UNEXPECTED, f"{type(record).__name__}{named} does not fit {where}", turn=turn.id)


def _call_in_doubt(turn: Turn, late: OutcomeArrivedLate) -> Call | None:
    """Return the call of the current reply that a late outcome settles: its outcome must be unknown."""
    if not isinstance(turn.phase, Acting):
        return None
    ref = EffectRef.parse(late.id)
    for call in turn.phase.calls:
        if call.request.id == late.call and call.attempt == ref.attempt:
            unknown = isinstance(call.output, InDoubt) if call.output else call.started is not None
            return call if unknown else None
    return None


def _call_of(turn: Turn, calls: tuple[Call, ...], ref: EffectRef) -> Call:
    """Return the unanswered call of the current reply that a reference names."""
    if ref.iteration != turn.iteration or ref.index is None or ref.index >= len(calls):
        raise Error(Code.TURN_EVENT_UNEXPECTED, f"{ref.id} is not a call of the current reply", turn=turn.id)
    if calls[ref.index].output is not None:
        raise Error(Code.TURN_EVENT_UNEXPECTED, f"{ref.id} has an outcome already", turn=turn.id)
    return calls[ref.index]


def _on_started(turn: Turn, ref: EffectRef, record: EffectStarted) -> Turn:
    match turn.phase:
        case AwaitingReply(attempt=attempt, backoff=None) as asking if ref == EffectRef(turn.iteration, None, attempt):
            return replace(turn, phase=replace(asking, started=True))
        case AwaitingReply(attempt=attempt, backoff=Backoff() as backoff) as asking if ref == _model_sleep(
            turn, attempt
        ):
            return replace(turn, phase=replace(asking, backoff=replace(backoff, due_at=record.due_at)))
        case Acting(calls=calls):
            call = _call_of(turn, calls, ref)
            match ref.tail:
                case "" if ref.attempt == call.attempt:
                    return _with_call(turn, replace(call, started=record))
                case "sleep" if call.backoff and ref.attempt == call.attempt - 1:
                    return _with_call(turn, replace(call, backoff=replace(call.backoff, due_at=record.due_at)))
                case "probe" if call.doubt and ref.attempt == call.attempt:
                    return turn
                case "completion" if ref.attempt == call.attempt:
                    return _with_call(turn, replace(call, completion=record))
                case "approval" if ref.attempt == call.attempt and not (call.approval or call.started):
                    return _with_call(turn, replace(call, approval=record))
                case "doubt" if call.doubt and ref.attempt == call.attempt:
                    return turn
                case _:
                    pass
        case _:
            pass
    raise _unexpected(turn, record, type(turn.phase).__name__)


def _on_job(turn: Turn, begun: ModelJobBegun) -> Turn:
    """Note the provider's job of the awaited reply. Jobs of other model calls are ignored."""
    match turn.phase:
        case AwaitingReply(attempt=attempt) as asking if begun.id == EffectRef(turn.iteration, None, attempt).id:
            return replace(turn, phase=replace(asking, job=begun.job))
        case _:
            return turn


def _model_sleep(turn: Turn, attempt: int) -> EffectRef:
    return EffectRef(turn.iteration, None, attempt, "sleep")


def _on_settled(turn: Turn, ref: EffectRef, record: EffectSettled) -> Turn:
    match turn.phase, record.outcome:
        case AwaitingReply(backoff=Backoff()) as asking, SleepOutcome() if ref == _model_sleep(turn, asking.attempt):
            return replace(turn, phase=replace(asking, backoff=None, attempt=asking.attempt + 1))
        case AwaitingReply(attempt=attempt, backoff=None) as asking, LlmCallOutcome(
            reply=reply, error=error, output=output, problem=problem, spent=spent
        ) if ref == EffectRef(turn.iteration, None, attempt):
            if reply:
                turn = replace(turn, usage=turn.usage + reply.usage)
                return _on_invalid(turn, asking, problem) if output == "invalid" else _on_reply(turn, asking, reply)
            if error:
                return _on_model_error(replace(turn, usage=turn.usage + spent), asking, error)
        case Acting(calls=calls), outcome:
            call = _call_of(turn, calls, ref)
            match ref.tail, outcome:
                case "", ToolCallOutcome(launch=Done(result=result), direct=direct) if ref.attempt == call.attempt:
                    spent = sum((one.usage for one in direct), turn.usage)
                    return _with_call(replace(turn, usage=spent), _on_output(call, result.output))
                case "", ToolCallOutcome(launch=Pending() as pending, direct=direct) if ref.attempt == call.attempt:
                    spent = sum((one.usage for one in direct), turn.usage)
                    return _with_call(replace(turn, usage=spent), replace(call, pending=pending))
                case "completion", AwaitEventOutcome(resolution=resolution) if call.pending:
                    return _with_call(turn, _settled(call, completed(resolution)))
                case "approval", AwaitEventOutcome(resolution=resolution) if call.undecided:
                    decision = approved(resolution)
                    allowed = replace(call, decision=decision) if decision else _settled(call, refused(resolution))
                    return _with_call(turn, allowed)
                case "doubt", AwaitEventOutcome(resolution=resolution) if call.doubt and ref.attempt == call.attempt:
                    return _with_call(turn, _on_word(call, call.doubt, resolution))
                case "sleep", SleepOutcome() if call.backoff and ref.attempt == call.attempt - 1:
                    return _with_call(turn, replace(call, backoff=None))
                case "probe", DurableStepOutcome() if call.doubt and ref.attempt == call.attempt:
                    return _with_call(turn, _on_verdict(call, call.doubt, outcome))
                case _:
                    pass
        case _:
            pass
    raise _unexpected(turn, record, type(turn.phase).__name__)


def _on_reply(turn: Turn, asking: AwaitingReply, reply: Reply) -> Turn:
    if reply.calls and asking.tool_choice != "none":
        calls = tuple(
            Call(request, index, turn.composition.tool(request.name)) for index, request in enumerate(reply.calls)
        )
        return replace(turn, phase=Acting(calls), called=turn.called + len(calls))
    if reply.finish in ("refusal", "content_filter"):
        return replace(turn, phase=Concluding("refused", "the model refused to answer"))
    if asking.tool_choice == "none" and not reply.text:
        message = f"no final reply after {turn.limits.max_iterations} iterations"
        return replace(turn, phase=Concluding("max_iterations", message))
    return replace(turn, phase=Concluding(message=f"the reply is partial: {reply.partial}" if reply.partial else ""))


def _on_invalid(turn: Turn, asking: AwaitingReply, problem: str) -> Turn:
    """Request the final reply again if it lacks the required form, up to the limit of corrections."""
    if turn.corrections >= turn.limits.output_corrections:
        return replace(turn, phase=Concluding("output_invalid", problem))
    turn = replace(turn, corrections=turn.corrections + 1, iteration=turn.iteration + 1)
    forced = asking.tool_choice == "none" or turn.iteration > turn.limits.max_iterations
    return _asking(turn, "none" if forced else "auto")


def _asking(turn: Turn, tool_choice: ToolChoice) -> Turn:
    """Return the turn before its next model call, or concluded if a limit is reached."""
    if reached := turn.spent_up:
        return replace(turn, phase=Concluding("limit_reached", reached))
    return replace(turn, phase=AwaitingReply(tool_choice=tool_choice))


def _on_model_error(turn: Turn, asking: AwaitingReply, error: LlmError) -> Turn:
    if error.kind == "worker_lost":  # not the provider's failure: repeat without backoff
        again = replace(asking, attempt=asking.attempt + 1, lost=asking.lost + 1, started=False)
        if again.lost >= MAX_LOST_REPLIES:
            message = f"{again.lost} model calls in a row were begun and lost"
            return replace(turn, phase=Concluding("no_forward_progress", message))
        reached = turn.spent_up
        return replace(turn, phase=Concluding("limit_reached", reached) if reached else again)
    failures = asking.attempt - asking.lost
    backoff = Backoff(MODEL_RETRY.delay_ms(failures, error.retry_after_ms))
    waited_ms = asking.waited_ms + backoff.duration_ms
    spent = failures >= turn.limits.model_attempts or waited_ms > turn.limits.recovery_ms
    if not error.retryable or spent:
        return replace(turn, phase=Concluding("provider_error", f"{error.kind}: {error.message}", error.hint))
    if reached := turn.spent_up:
        return replace(turn, phase=Concluding("limit_reached", reached))
    job = None if error.kind == "job_lost" else asking.job
    return replace(turn, phase=replace(asking, backoff=backoff, waited_ms=waited_ms, job=job, started=False))


def _on_output(call: Call, output: ToolOutput) -> Call:
    match output:
        case InDoubt() if call.policy in ("probe", "ask"):
            return replace(call, doubt=output)
        case Failed(failure=failure) if may_retry(call.durability.retry, call.failures, failure):
            backoff = Backoff(call.durability.retry.delay_ms(call.failures + 1, failure.retry_after_ms))
            again = replace(call, attempt=call.attempt + 1, failures=call.failures + 1)
            return replace(again, started=None, completion=None, backoff=backoff)
        case Failed(failure=failure):
            return _settled(call, Failed(failure=_counted(failure, call.failures + 1)))
        case _:
            return _settled(call, output)


def may_retry(policy: RetryPolicy, failures: int, failure: FailureDetail) -> bool:
    """Return True if a failed call is retried, given its earlier failures."""
    if failures + 1 >= policy.max_attempts or failure.failure_class == "invalid":
        return False
    return policy.kind == "idempotent" or (policy.kind == "safe" and failure.retry_safe)


def _counted(failure: FailureDetail, attempts: int) -> FailureDetail:
    return FailureDetail(
        code=failure.code,
        message=failure.message,
        failure_class=failure.failure_class,
        retry_safe=failure.retry_safe,
        retry_after_ms=failure.retry_after_ms,
        attempts=attempts,
        error_type=failure.error_type,
    )


def _on_verdict(call: Call, doubt: InDoubt, verdict: DurableStepOutcome) -> Call:
    answer: Json = verdict.value
    match answer:
        case {"verdict": "happened", **rest}:
            return _settled(call, Success(value=rest.get("value")))
        case {"verdict": "did_not_happen"} if call.redispatches < MAX_REDISPATCHES:
            return _out_again(call)
        case _:
            return _settled(call, doubt)


def _on_word(call: Call, doubt: InDoubt, resolution: Resolution) -> Call:
    """Apply a person's verdict on a call in doubt; without one the doubt stays."""
    if did_not_happen(resolution):
        return _out_again(call)
    return _settled(call, happened(resolution) or doubt)


def _out_again(call: Call) -> Call:
    again = replace(call, attempt=call.attempt + 1, redispatches=call.redispatches + 1)
    return replace(again, started=None, completion=None, doubt=None)


def _settled(call: Call, output: ToolOutput) -> Call:
    return replace(call, output=output, doubt=None, backoff=None)


def _with_call(turn: Turn, call: Call) -> Turn:
    if not isinstance(turn.phase, Acting):
        raise Error(Code.TURN_EVENT_UNEXPECTED, "no calls are being answered", turn=turn.id)
    changed = list(turn.phase.calls)
    changed[call.index] = call
    calls = tuple(changed)
    if any(other.output is None for other in reversed(calls)):  # the last call usually is the last one with an output
        return replace(turn, phase=Acting(calls))
    return _checkpoint(turn, calls)


def _checkpoint(turn: Turn, calls: tuple[Call, ...]) -> Turn:
    """Continue after all calls: next model call, last reply without tools, or stop for lack of progress."""
    progressed = any(isinstance(call.output, Success) and not call.output.connection_required for call in calls)
    turn = replace(turn, fruitless=0 if progressed else turn.fruitless + 1, iteration=turn.iteration + 1)
    if turn.fruitless >= turn.limits.no_progress:
        message = f"{turn.fruitless} replies in a row led to no successful call"
        return replace(turn, phase=Concluding("no_progress", message))
    if any(_ends_the_turn(call) for call in calls):
        return replace(turn, phase=Concluding("completion_timeout", "the external completion of a call timed out"))
    forced = turn.iteration > turn.limits.max_iterations
    return _asking(turn, "none" if forced else "auto")


def _ends_the_turn(call: Call) -> bool:
    if call.pending is None or call.pending.pending.on_timeout != "fail_turn":
        return False
    return isinstance(call.output, Failed) and call.output.failure.failure_class == "timeout"


# --- ends that the model did not cause -----------------------------------------------------------------------------


def recovery(turn: Turn) -> tuple[EffectSettled, ...]:
    """Return the settlements that a new owner records at once.

    A `once` call dispatched by a dead worker is in doubt, except one with an open external completion.
    """
    if not isinstance(turn.phase, Acting):
        return ()
    return tuple(
        _left_behind(EffectRef(turn.iteration, call.index, call.attempt), call)
        for call in turn.phase.calls
        if call.output is None and not (call.doubt or call.pending) and call.started and call.started.effect == "once"
    )


def awaited(turn: Turn) -> EffectRef | None:
    """Return the model call that was begun and has no end, or None."""
    match turn.phase:
        case AwaitingReply(attempt=attempt, backoff=None, started=True):
            return EffectRef(turn.iteration, None, attempt)
        case _:
            return None


def left_asking(turn: Turn) -> EffectRef | None:
    """Return the unfinished model call of a dead worker, or None if its provider job can be re-attached."""
    found = isinstance(turn.phase, AwaitingReply) and turn.phase.job is not None
    return None if found else awaited(turn)


def _left_behind(ref: EffectRef, call: Call) -> EffectSettled:
    match call.completion:
        case EffectStarted(command=AwaitEvent(key=key), due_at=due_at):
            return EffectSettled(id=ref.id, outcome=ToolCallOutcome(launch=Pending(key=key, due_at=due_at)))
        case _:
            doubt = InDoubt(reason="worker_lost", message="the worker died before the outcome was recorded")
            return settlement(ref, call.request, doubt)


def settlement(ref: EffectRef, call: ToolCall, output: ToolOutput, *, duration_ms: int = 0) -> EffectSettled:
    """Return the record that ends one attempt of a call."""
    result = CompletedToolCall(call_id=call.id, tool_name=call.name, output=output, duration_ms=duration_ms)
    return EffectSettled(id=ref.id, outcome=ToolCallOutcome(launch=Done(result=result)))


def unanswered(turn: Turn) -> tuple[tuple[EffectRef, Call], ...]:
    """Return the calls without outcome, each with its current attempt."""
    if not isinstance(turn.phase, Acting):
        return ()
    return tuple(
        (EffectRef(turn.iteration, call.index, call.attempt), call) for call in turn.phase.calls if call.output is None
    )


def stopped(turn: Turn, reason: StopReason, message: str) -> TurnEnded:
    """Return the record of a turn that was stopped."""
    return TurnEnded(turn=turn.id, status="stopped", reason=reason, message=message, usage=turn.usage)
