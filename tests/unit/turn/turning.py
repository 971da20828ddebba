"""Facts of a turn, written briefly, for tests of the machine, the fold and the view."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perdure.codec import Json
from perdure.ids import BlobHash, CallId, EffectId, InputId, TurnId, WorkerId
from perdure.turn.machine import advance
from perdure.turn.state import Acting, AskModel, Call, EndTurn, Owed, RetryWait, Turn, opened
from perdure.vocab.effects import EffectKind
from perdure.vocab.messages import FinishReason, Reply, ReplyPart, Text, ToolCall
from perdure.vocab.outcomes import (
    CompletedToolCall,
    Done,
    DurableStepOutcome,
    Failed,
    FailureClass,
    FailureDetail,
    InDoubt,
    LlmCallOutcome,
    LlmError,
    SleepOutcome,
    Success,
    ToolCallOutcome,
    ToolOutput,
)
from perdure.vocab.records import (
    CancelRequested,
    EffectSettled,
    EffectStarted,
    InputAdmitted,
    Limits,
    OutcomeArrivedLate,
    Record,
    TurnOpened,
)
from perdure.vocab.tools import Composition, DoubtPolicy, Durability, EffectClass, ToolContract, ToolDefinition
from perdure.vocab.usage import Usage

T = TurnId("t1")
LOST = InDoubt(reason="worker_lost")


def contract(name: str, durability: Durability | None = None) -> ToolContract:
    definition = ToolDefinition(name=name, description="", parameters={})
    return ToolContract(definition=definition, durability=durability or Durability())


def composition(tools: Mapping[str, Durability]) -> Composition:
    return Composition(agent="a", model="m", tools=tuple(contract(name, how) for name, how in tools.items()))


def admitted(text: str = "go", turn: TurnId = T) -> InputAdmitted:
    return InputAdmitted(input=InputId(f"i-{turn}"), turn=turn, parts=(Text(text=text),))


def opening(turn: TurnId = T, index: int = 0, limits: Limits | None = None) -> TurnOpened:
    return TurnOpened(turn=turn, index=index, composition=BlobHash("h"), limits=limits or Limits())


def begun(*, limits: Limits | None = None, **tools: Durability) -> Turn:
    """A turn at its beginning, that knows these tools."""
    return opened(opening(limits=limits), composition(tools))


def folded(turn: Turn, *records: Record) -> Turn:
    for record in records:
        turn = advance(turn, record)
    return turn


def requests(names: Iterable[str], iteration: int = 1, turn: TurnId = T) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(id=CallId(f"{turn}.{iteration}.{index}"), name=name, args={}) for index, name in enumerate(names)
    )


def said(
    *names: str,
    text: str = "",
    id: str = "m1.1",
    finish: FinishReason = "stop",
    turn: TurnId = T,
    usage: Usage | None = None,
) -> EffectSettled:
    """The model's reply: some text, and calls of these tools."""
    iteration = int(id[1:].split(".")[0])
    parts: tuple[ReplyPart, ...] = ((Text(text=text),) if text else ()) + requests(names, iteration, turn)
    reply = Reply(parts=parts, finish=finish, usage=usage or Usage())
    return EffectSettled(id=EffectId(id), outcome=LlmCallOutcome(reply=reply))


def unsaid(id: str = "m1.1", *, retryable: bool = True, after_ms: int | None = None) -> EffectSettled:
    """The model failed."""
    error = LlmError(kind="unavailable", message="down", retryable=retryable, retry_after_ms=after_ms)
    return EffectSettled(id=EffectId(id), outcome=LlmCallOutcome(error=error))


def intent(
    id: str,
    *,
    effect: EffectClass = "once",
    doubt: DoubtPolicy = "tell",
    worker: str = "w1",
    deadline_at: int | None = None,
) -> EffectStarted:
    return EffectStarted(
        id=EffectId(id),
        kind=EffectKind.TOOL_CALL,
        fingerprint="f",
        effect=effect,
        doubt=doubt,
        worker=WorkerId(worker),
        deadline_at=deadline_at,
    )


def asked(id: str = "m1.1") -> EffectStarted:
    return EffectStarted(id=EffectId(id), kind=EffectKind.LLM_CALL, fingerprint="f")


def backoff(id: str, due_at: int = 5_000) -> EffectStarted:
    return EffectStarted(id=EffectId(id), kind=EffectKind.SLEEP, fingerprint="f", due_at=due_at)


def woke(id: str) -> EffectSettled:
    return EffectSettled(id=EffectId(id), outcome=SleepOutcome())


def ended(id: str, output: ToolOutput, *, tool: str = "x", turn: TurnId = T) -> EffectSettled:
    """One attempt of a call ended."""
    iteration, index, _ = id[1:].split(".")
    result = CompletedToolCall(call_id=CallId(f"{turn}.{iteration}.{index}"), tool_name=tool, output=output)
    return EffectSettled(id=EffectId(id), outcome=ToolCallOutcome(launch=Done(result=result)))


def ok(id: str, value: Json = "ok", *, turn: TurnId = T) -> EffectSettled:
    return ended(id, Success(value=value), turn=turn)


def broke(
    id: str,
    *,
    safe: bool = False,
    after_ms: int | None = None,
    failure_class: FailureClass = "tool",
    turn: TurnId = T,
) -> EffectSettled:
    failure = FailureDetail(
        code="broke", message="it broke", retry_safe=safe, retry_after_ms=after_ms, failure_class=failure_class
    )
    return ended(id, Failed(failure=failure), turn=turn)


def lost(id: str, *, turn: TurnId = T) -> EffectSettled:
    return ended(id, LOST, turn=turn)


def verdict(id: str, answer: str, value: Json = None) -> EffectSettled:
    shape: dict[str, Json] = {"verdict": answer}
    if value is not None:
        shape["value"] = value
    return EffectSettled(id=EffectId(id), outcome=DurableStepOutcome(value=shape))


def late(id: str, value: Json = "late", *, tool: str = "x", turn: TurnId = T) -> OutcomeArrivedLate:
    iteration, index, _ = id[1:].split(".")
    call = CallId(f"{turn}.{iteration}.{index}")
    return OutcomeArrivedLate(call=call, id=EffectId(id), tool=tool, output=Success(value=value))


def cancel(turn: TurnId = T) -> CancelRequested:
    return CancelRequested(turn=turn, request="r1", reason="enough")


def names(items: Iterable[Owed]) -> list[str]:
    """Return the owed effects in words: `ask m1.1`, `run c1.0.1`, `probe …`, `wait …`, `end …`."""
    return [_name(item) for item in items]


def _name(item: Owed) -> str:
    match item:
        case EndTurn(ended=end):
            return f"end {end.reason or end.status}"
        case AskModel():
            return f"ask {item.ref.id}" + ("" if item.tool_choice == "auto" else f" ({item.tool_choice})")
        case RetryWait():
            return f"wait {item.ref.id}"
        case _:
            return f"{'run' if type(item).__name__ == 'RunCall' else 'probe'} {item.ref.id}"


def calls_of(turn: Turn) -> tuple[Call, ...]:
    """The calls being answered."""
    assert isinstance(turn.phase, Acting)
    return turn.phase.calls
