"""Runners: how the effects a turn owes are really performed. Other people's code is called here and nowhere else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from msgspec.structs import replace

from perdure.clock import Clock
from perdure.codec import Json, decode, encode
from perdure.commit.plan import Blob, blob_of
from perdure.effects.controller import NotDispatched
from perdure.ids import CallId
from perdure.models.protocol import (
    Model,
    ModelError,
    ModelReply,
    ModelRequest,
    TextDelta,
    ThinkingDelta,
    adopt,
)
from perdure.tools.ceiling import can_be_continued, fit
from perdure.tools.context import ToolContext
from perdure.tools.execute import Sidecar, ToolThreads, Withheld, run_attempt, run_probe
from perdure.tools.read_result import read_result
from perdure.tools.toolbox import Prepared
from perdure.tools.verdicts import DidNotHappen, Happened, Unknown, Verdict
from perdure.turn.state import AskModel, RunCall, Turn
from perdure.vocab.messages import AttachmentRef, Message, Reply, ToolResult
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
from perdure.vocab.tools import Composition, ToolDefinition

log = logging.getLogger("perdure.runtime")

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
        tools=_offered(composition, messages),
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
            reply = await stream_reply(model, request, show)
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


def _offered(composition: Composition, messages: tuple[Message, ...]) -> tuple[ToolDefinition, ...]:
    """The turn's tools; and once a result was too long to be shown whole, the one that reads on."""
    tools = tuple(contract.definition for contract in composition.tools)
    if not tools or composition.tool(read_result.name) is not None:
        return tools
    parts = (part for message in messages if message.role == "tool" for part in message.parts)
    long = any(isinstance(part, ToolResult) and can_be_continued(part.output) for part in parts)
    return (*tools, read_result.to_definition()) if long else tools


async def stream_reply(model: Model, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
    """The reply a model's stream ends with.

    Raises:
        ModelError: why there is none.
    """
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
    """The outcome of an attempt, and the bytes it refers to."""

    outcome: ToolCallOutcome
    blobs: tuple[Blob, ...] = ()


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
    beside = Sidecar()
    try:
        output = await run_attempt(prepared, ctx, threads=threads, left_ms=left_ms, may_start=may_start, sidecar=beside)
    except Withheld:
        raise NotDispatched from None
    output, blobs = _stored(output, beside, ctx, readable=prepared.readable)
    result = CompletedToolCall(
        call_id=owed.call.id,
        tool_name=owed.call.name,
        output=output,
        duration_ms=max(0, clock.monotonic_ms() - started),
    )
    return ToolRun(ToolCallOutcome(launch=Done(result=result)), blobs)


def _stored(
    output: ToolOutput, beside: Sidecar, ctx: ToolContext[object], *, readable: bool
) -> tuple[ToolOutput, tuple[Blob, ...]]:
    """An output as the log has it: pictures and what is too long by reference."""
    if not isinstance(output, Success):
        return output, ()
    shown = fit(output.value, ctx.call_id, readable=readable)
    pictures = tuple(blob_of(image.data(), image.media_type) for image in beside.images)
    stored = replace(
        output,
        value=shown.value,
        spilled=_ref(shown.rest) if shown.rest else None,
        images=tuple(_ref(picture) for picture in pictures),
    )
    return stored, (*pictures, *([shown.rest] if shown.rest else []))


def _ref(blob: Blob) -> AttachmentRef:
    return AttachmentRef(hash=blob.hash, media_type=blob.media_type, size=len(blob.data))


async def ask_outside(
    prepared: Prepared, ctx: ToolContext[object], threads: ToolThreads, *, certain: bool
) -> DurableStepOutcome:
    """Probe a call in doubt. "Did not happen" counts only if nobody can still make it happen."""
    verdict = await run_probe(prepared.tool, ctx, threads=threads)
    return DurableStepOutcome(value=_verdict(verdict, ctx.call_id, certain))


def _verdict(verdict: Verdict, call: CallId, certain: bool) -> Json:
    match verdict:
        case Happened(value=value):
            return {"verdict": "happened", "value": fit(value, call, readable=False).value}
        case DidNotHappen() if certain:
            return {"verdict": "did_not_happen"}
        case DidNotHappen():
            return {"verdict": "unknown", "reason": "not done yet, but the former worker may still be doing it"}
        case Unknown(reason=reason):
            return {"verdict": "unknown", "reason": reason}
