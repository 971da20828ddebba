"""Runners: how the effects a turn owes are really performed. Other people's code is called here and nowhere else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from perdure.clock import Clock
from perdure.codec import Json, decode, encode
from perdure.commit.plan import Blob, blob_of
from perdure.effects.controller import NotDispatched
from perdure.models.protocol import (
    Model,
    ModelError,
    ModelReply,
    ModelRequest,
    TextDelta,
    ThinkingDelta,
    adopt,
)
from perdure.tools.context import ToolContext
from perdure.tools.execute import ToolThreads, Withheld, run_attempt, run_probe
from perdure.tools.toolbox import Prepared
from perdure.tools.verdicts import DidNotHappen, Happened, Unknown, Verdict
from perdure.turn.state import AskModel, RunCall, Turn
from perdure.vocab.messages import AttachmentRef, Message, Reply
from perdure.vocab.outcomes import (
    CompletedToolCall,
    Done,
    DurableStepOutcome,
    LlmCallOutcome,
    LlmError,
    Success,
    ToolCallOutcome,
    ToolOutput,
)

log = logging.getLogger("perdure.runtime")

MAX_VALUE_BYTES = 65_536
"""A larger tool result is kept as a blob; the model sees its head and a hint."""

MAX_KEPT_BYTES = 16_777_216
MAX_REPLY_BYTES = 524_288

MODEL_TIMEOUT_S = 600

OnDelta = Callable[[str, bool], None]


async def ask_model(
    model: Model, turn: Turn, owed: AskModel, messages: tuple[Message, ...], on_delta: OnDelta
) -> LlmCallOutcome:
    """One attempt of one model call. Whatever goes wrong in it is an outcome, not an exception."""
    composition = turn.composition
    request = ModelRequest(
        model=composition.model,
        instructions=composition.instructions,
        messages=messages,
        tools=tuple(contract.definition for contract in composition.tools),
        tool_choice=owed.tool_choice,
        settings=composition.settings,
    )
    streamed = False

    def show(text: str, thinking: bool) -> None:
        nonlocal streamed
        streamed = True
        on_delta(text, thinking)

    try:
        async with asyncio.timeout(MODEL_TIMEOUT_S):
            reply = await _stream(model, request, show)
        adopted = decode(encode(adopt(reply, turn=turn.id, iteration=turn.iteration)), Reply)
    except TimeoutError:
        message = f"no complete reply within {MODEL_TIMEOUT_S} s"
        error = LlmError(kind="stall", message=message, retryable=True)
        return LlmCallOutcome(error=error, text_streamed=streamed)
    except ModelError as problem:
        return LlmCallOutcome(error=problem.error, text_streamed=streamed)
    except Exception:
        log.exception("the model client failed", extra={"turn": turn.id, "effect": owed.ref.id})
        return LlmCallOutcome(error=LlmError(kind="internal", message="the model client failed; the log has the cause"))
    if (size := len(encode(adopted))) > MAX_REPLY_BYTES:
        message = f"the reply is {size} bytes, more than the {MAX_REPLY_BYTES} that are kept"
        return LlmCallOutcome(error=LlmError(kind="too_large", message=message))
    return LlmCallOutcome(reply=adopted, text_streamed=streamed)


async def _stream(model: Model, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
    events = model.stream(request)
    try:
        async for item in events:
            match item:
                case TextDelta(text=text):
                    on_delta(text, False)
                case ThinkingDelta(text=text):
                    on_delta(text, True)
                case ModelReply():
                    return item
    finally:
        if isinstance(events, AsyncGenerator):
            await events.aclose()
    raise ModelError(LlmError(kind="stream_cut", message="the stream ended without a reply", retryable=True))


@dataclass(frozen=True, slots=True)
class ToolRun:
    """The outcome of an attempt, and the bytes that were too many for the log."""

    outcome: ToolCallOutcome
    spilled: Blob | None = None


async def run_tool(
    owed: RunCall,
    prepared: Prepared,
    ctx: ToolContext[object],
    threads: ToolThreads,
    clock: Clock,
    *,
    deadline_at: int | None,
    may_start: Callable[[], bool],
) -> ToolRun:
    """One attempt of one tool call, over by the deadline that its intent recorded.

    Raises:
        NotDispatched: `may_start` said no at the last moment.
    """
    started = clock.monotonic_ms()
    left_ms = None if deadline_at is None else deadline_at - clock.wall_ms()
    try:
        output = await run_attempt(prepared, ctx, threads=threads, left_ms=left_ms, may_start=may_start)
    except Withheld:
        raise NotDispatched from None
    output, spilled = _spill(output)
    result = CompletedToolCall(
        call_id=owed.call.id,
        tool_name=owed.call.name,
        output=output,
        duration_ms=max(0, clock.monotonic_ms() - started),
    )
    return ToolRun(ToolCallOutcome(launch=Done(result=result)), spilled)


def _spill(output: ToolOutput) -> tuple[ToolOutput, Blob | None]:
    if not isinstance(output, Success):
        return output, None
    data = encode(output.value)
    if len(data) <= MAX_VALUE_BYTES:
        return output, None
    kept = len(data) <= MAX_KEPT_BYTES
    blob = blob_of(data, "application/json") if kept else None
    head = data[: MAX_VALUE_BYTES // 2].decode(errors="ignore")
    shown: Json = {
        "truncated": True,
        "bytes_total": len(data),
        "bytes_returned": len(head.encode()),
        "head": head,
        "resume_hint": f"the rest is {'kept' if kept else 'not kept'}; ask for a narrower part",
    }
    ref = AttachmentRef(hash=blob.hash, media_type=blob.media_type, size=len(data)) if blob else None
    return Success(value=shown, spilled=ref), blob


async def ask_outside(
    prepared: Prepared, ctx: ToolContext[object], threads: ToolThreads, *, certain: bool
) -> DurableStepOutcome:
    """Probe a call in doubt. "Did not happen" counts only if nobody can still make it happen."""
    verdict = await run_probe(prepared.tool, ctx, threads=threads)
    return DurableStepOutcome(value=_verdict(verdict, certain))


def _verdict(verdict: Verdict, certain: bool) -> Json:
    match verdict:
        case Happened(value=value):
            return {"verdict": "happened", "value": value}
        case DidNotHappen() if certain:
            return {"verdict": "did_not_happen"}
        case DidNotHappen():
            return {"verdict": "unknown", "reason": "not done yet, but the former worker may still be doing it"}
        case Unknown(reason=reason):
            return {"verdict": "unknown", "reason": reason}
