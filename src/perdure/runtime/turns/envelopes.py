"""Effect envelopes of a turn: an owed effect has the same identity before and after a crash."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.effects import keys
from perdure.effects.promises import TurnScope, unsigned_key
from perdure.ids import BlobHash, SessionId, Tenant
from perdure.turn.state import (
    AskModel,
    AwaitApproval,
    AwaitCompletion,
    AwaitVerdict,
    Effect,
    Probe,
    RetryWait,
    RunCall,
    Turn,
)
from perdure.vocab.effects import (
    AwaitEvent,
    CallTool,
    Command,
    DurableStep,
    EffectKind,
    Envelope,
    Invocation,
    LlmCall,
    LlmRequestSpec,
    PreparedToolCall,
    Scope,
    Sleep,
    ViewRef,
)
from perdure.vocab.messages import ToolCall
from perdure.vocab.promises import ClientResult, DoubtVerdict, UserAnswer
from perdure.vocab.refs import EffectRef


@dataclass(frozen=True, slots=True)
class Where:
    """The session of a turn, and the hash of its stored composition."""

    tenant: Tenant
    session: SessionId
    composition: BlobHash


def envelope(where: Where, turn: Turn, owed: Effect, prepared: PreparedToolCall | None = None) -> Envelope:
    """Return the envelope of one owed effect.

    `prepared` is the call as prepared. The envelopes of the call and of a question about its doubt contain it.
    """
    scope = Scope(
        session_id=where.session, turn_id=turn.id, turn_index=turn.index, protocol_iteration=owed.ref.iteration
    )
    command = _command(where, turn, owed, prepared)
    key = _key(where.tenant, scope, owed, command.kind)
    return Envelope(invocation=Invocation.effect(scope, owed.ref.id, command.kind, key), command=command)


def _command(where: Where, turn: Turn, owed: Effect, prepared: PreparedToolCall | None) -> Command:
    match owed:
        case AskModel(tool_choice=choice):
            view = ViewRef(from_turn=turn.from_turn, turn=turn.index, iteration=owed.ref.iteration)
            return LlmCall(
                request=LlmRequestSpec(
                    model=turn.composition.model,
                    composition=where.composition,
                    view=view,
                    tool_choice=choice,
                    session_id=where.session,
                    output_spec=turn.composition.output,
                )
            )
        case RunCall(call=call):
            return CallTool(call=prepared or _as_made(call))
        case Probe(call=call):
            return DurableStep(step_id="probe", input={"call": call.id, "tool": call.name})
        case RetryWait(duration_ms=duration_ms):
            return Sleep(duration_ms=duration_ms)
        case AwaitCompletion(call=call, pending=pending):
            told = isinstance(pending.key.wait, ClientResult | UserAnswer)
            return AwaitEvent(key=pending.key, about=_as_made(call) if told else None)
        case AwaitApproval(command=command):
            return command
        case AwaitVerdict(ref=ref, call=call):
            scope = TurnScope(where.tenant, where.session, turn.id)
            wait = DoubtVerdict(call_id=call.id, attempt=ref.attempt)
            return AwaitEvent(key=unsigned_key(scope.id, wait), about=prepared or _as_made(call))


def _as_made(call: ToolCall) -> PreparedToolCall:
    return PreparedToolCall(call_id=call.id, tool_id=f"tool:{call.name}", tool_name=call.name, args=call.args)


def _key(tenant: Tenant, scope: Scope, owed: Effect, kind: EffectKind) -> str:
    match owed:
        case RunCall(ref=ref, call=call):
            return keys.tool_attempt(tenant, scope, call.id, ref.attempt)
        case Probe(ref=ref, call=call):
            return f"{keys.tool_attempt(tenant, scope, call.id, ref.attempt)}:probe"
        case AwaitCompletion(ref=ref, call=call) | AwaitApproval(ref=ref, call=call) | AwaitVerdict(ref=ref, call=call):
            return f"{keys.tool_attempt(tenant, scope, call.id, ref.attempt)}:{ref.tail}"
        case RetryWait(ref=ref):
            return keys.turn_effect(tenant, scope, kind, _place(ref))
        case AskModel(ref=ref):
            return keys.turn_effect(tenant, scope, kind, ref.attempt)


def _place(ref: EffectRef) -> str:
    return f"{'model' if ref.index is None else ref.index}:attempt:{ref.attempt}:sleep"
