"""Execution of model calls, tool calls and probes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from msgspec.structs import replace

from perdure.clock import Clock
from perdure.codec import Json
from perdure.commit.plan import Blob, blob_of
from perdure.effects.controller import NotDispatched
from perdure.effects.promises import unsigned_key
from perdure.errors import Error
from perdure.ids import BlobHash, CallId
from perdure.models.protocol import Model, ModelError, ModelRequest, kept, made_files
from perdure.offload import offload, weight_of
from perdure.runtime.calls.orphaned_calls import PartialReply, cost_of, partial_reply
from perdure.runtime.calls.reading import ReplySink, StallPolicy, stream_reply
from perdure.runtime.turns.hydrate import Fetch, hydrated
from perdure.runtime.turns.transcript import VisibleMessages
from perdure.tools.context import ToolContext, origin_of
from perdure.tools.door import AdmittedCall
from perdure.tools.execute import Sidecar, ToolThreads, Withheld, run_attempt, run_probe
from perdure.tools.outputs import OutputProblem
from perdure.tools.read_result import read_result
from perdure.tools.result_truncation import fit
from perdure.tools.toolbox import Prepared
from perdure.tools.verdicts import CannotTell, DidNotHappen, Happened, Verdict
from perdure.turn.state import AskModel, RunCall, Turn
from perdure.vocab.messages import AttachmentRef, Reply, ToolCall
from perdure.vocab.outcomes import (
    CompletedToolCall,
    Done,
    DurableStepOutcome,
    Failed,
    FailureDetail,
    LlmCallOutcome,
    LlmError,
    Pending,
    PendingCompletion,
    Success,
    ToolCallOutcome,
    ToolOutput,
)
from perdure.vocab.tools import Composition, ToolDefinition

log = logging.getLogger("perdure.runtime")

MAX_JOB_BYTES = 131_072

MODEL_TIMEOUT_S = 600
JOB_TIMEOUT_S = 3600
"""Longest wait of one attempt for a provider job, in seconds. The next attempt waits for the same job."""


@dataclass(frozen=True, slots=True)
class ModelAccess:
    """A model and what its calls need: attachments, a check of final answers (None: no check), a stall policy."""

    model: Model
    fetch: Fetch
    check: Callable[[str], Awaitable[OutputProblem | None]] | None
    patience: StallPolicy


async def ask_model(
    access: ModelAccess,
    turn: Turn,
    owed: AskModel,
    shown: VisibleMessages,
    hearing: ReplySink,
    said: PartialReply,
    keep: Callable[[Blob], None],
) -> LlmCallOutcome:
    """Run one attempt of a model call. Every failure is an outcome, not an exception.

    `said` collects the model's output as it arrives. `keep` gets the files that the model made, once its reply is
    complete.
    """
    composition = turn.composition
    messages, attachments = shown.messages, dict[BlobHash, bytes]()
    try:
        if shown.refers:
            messages, attachments = await hydrated(messages, access.fetch)
    except Error as problem:
        log.error("%s", problem, extra={"turn": turn.id, "effect": owed.ref.id})
        message = f"an attachment of the conversation cannot be read ({problem.code})"
        return LlmCallOutcome(error=LlmError(kind="internal", message=message))
    request = ModelRequest(
        model=composition.model,
        instructions=composition.instructions,
        messages=messages,
        tools=_offered(composition, cut=shown.cut),
        tool_choice=owed.tool_choice,
        settings=composition.settings,
        output_spec=composition.output,
        attachments=attachments,
        job=owed.job,
    )
    limit_s = MODEL_TIMEOUT_S if owed.job is None else JOB_TIMEOUT_S

    def show(text: str, thinking: bool) -> None:
        if said.add(text, thinking):
            hearing.said(text, thinking)

    async def wait_longer(job: Json) -> None:
        nonlocal limit_s
        limit_s = JOB_TIMEOUT_S
        limit.reschedule(asyncio.get_running_loop().time() + limit_s)
        if hearing.job is not None:
            await hearing.job(job)

    try:
        async with asyncio.timeout(limit_s) as limit:
            said.asked = True
            hears = ReplySink(show, wait_longer, said.cost)
            reply = await stream_reply(access.model, request, hears, access.patience)
        adopted = kept(reply, turn=turn.id, iteration=turn.iteration)
    except TimeoutError:
        message = f"no complete reply within {limit_s} s"
        problem = ModelError(LlmError(kind="stall", message=message, retryable=True))
        return await _broken(access.model, turn, shown, said, problem)
    except ModelError as problem:
        return await _broken(access.model, turn, shown, said, problem)
    except (Exception, SystemExit, KeyboardInterrupt):  # the latter two would end the event loop
        log.exception("the model client failed", extra={"turn": turn.id, "effect": owed.ref.id})
        failed = LlmError(kind="internal", message="the model client failed; the log has the cause")
        return await _broken(access.model, turn, shown, said, ModelError(failed))
    for made in made_files(reply):
        keep(made)
    return await _checked(LlmCallOutcome(reply=adopted, text_streamed=said.chars > 0), adopted, access.check)


async def _broken(
    model: Model, turn: Turn, shown: VisibleMessages, said: PartialReply, problem: ModelError
) -> LlmCallOutcome:
    """Return the outcome of an interrupted attempt. Usage that the provider does not report is estimated."""
    error, spent = problem.error, problem.spent
    if not spent.calls and (said.anything or error.kind == "stall"):
        spent = await cost_of(model, turn, shown, said.written)
    may_stand = error.retryable and error.kind != "job_lost" and not said.hidden
    if may_stand and (reply := partial_reply(turn, said.text, error.kind, spent)):
        return LlmCallOutcome(reply=reply, text_streamed=True)
    return LlmCallOutcome(error=error, text_streamed=said.chars > 0, spent=spent)


async def _checked(
    outcome: LlmCallOutcome, reply: Reply, check: Callable[[str], Awaitable[OutputProblem | None]] | None
) -> LlmCallOutcome:
    """Check a final reply against the requested output type. The outcome stores the result of the check."""
    if check is None or reply.calls or reply.finish in ("refusal", "content_filter"):
        return outcome
    try:
        problem = await check(reply.answer)
    except Exception:  # the reply is paid for: no fault of its check may lose it
        log.exception("the check of a reply failed")
        problem = OutputProblem("it could not be checked")
    if problem is None:
        return replace(outcome, output="valid")
    return replace(outcome, output="invalid", problem=problem.message)


def _offered(composition: Composition, *, cut: bool) -> tuple[ToolDefinition, ...]:
    """Return the turn's tools. Once a result was too long to be shown whole, `read_result` is one of them."""
    tools = tuple(contract.definition for contract in composition.tools)
    if not cut or not tools or composition.tool(read_result.name) is not None:
        return tools
    return (*tools, read_result.to_definition())


@dataclass(frozen=True, slots=True)
class ToolRun:
    """The outcome of an attempt, and the bytes it refers to."""

    outcome: ToolCallOutcome
    blobs: tuple[Blob, ...] = ()


async def run_tool(
    owed: RunCall,
    admitted: AdmittedCall,
    ctx: ToolContext[object],
    threads: ToolThreads,
    clock: Clock,
    *,
    deadline_at: int | None,
    may_start: Callable[[], bool],
) -> ToolRun:
    """Run one attempt of a tool call, within the deadline that its intent recorded.

    Raises:
        NotDispatched: `may_start` returned False just before dispatch.
    """
    started = clock.monotonic_ms()
    left_ms = None if deadline_at is None else deadline_at - clock.wall_ms()
    beside = Sidecar()
    try:
        output = await run_attempt(admitted, ctx, threads=threads, left_ms=left_ms, may_start=may_start, sidecar=beside)
    except Withheld:
        raise NotDispatched from None
    duration_ms = max(0, clock.monotonic_ms() - started)
    if isinstance(output, PendingCompletion):
        return ToolRun(ToolCallOutcome(launch=_pending(output, ctx, clock, duration_ms)))
    size = weight_of((output, beside.images))
    output, blobs = await offload(size, _stored, output, beside, ctx, readable=admitted.prepared.readable)
    result = CompletedToolCall(call_id=owed.call.id, tool_name=owed.call.name, output=output, duration_ms=duration_ms)
    return ToolRun(ToolCallOutcome(launch=Done(result=result)), blobs)


def _pending(policy: PendingCompletion, ctx: ToolContext[object], clock: Clock, duration_ms: int) -> Pending:
    completion = origin_of(ctx).completion
    key = completion.key if completion else None
    assert key is not None  # `run_attempt` fails a pending call without one
    due_at = None if policy.deadline_ms is None else clock.wall_ms() + policy.deadline_ms
    return Pending(key=unsigned_key(key.scope, key.wait), pending=policy, due_at=due_at, duration_ms=duration_ms)


def _stored(
    output: ToolOutput, beside: Sidecar, ctx: ToolContext[object], *, readable: bool
) -> tuple[ToolOutput, tuple[Blob, ...]]:
    """Return an output as the log stores it: images and long values by reference."""
    if not isinstance(output, Success):
        return output, ()
    shown = fit(output.value, ctx.call_id, readable=readable)
    pictures = tuple(blob_of(ctx.services.redactor.data(image.data()), image.media_type) for image in beside.images)
    stored = replace(
        output,
        value=shown.value,
        spilled=_ref(shown.rest) if shown.rest else None,
        images=tuple(_ref(picture) for picture in pictures),
    )
    return stored, (*pictures, *([shown.rest] if shown.rest else []))


def _ref(blob: Blob) -> AttachmentRef:
    return AttachmentRef(hash=blob.hash, media_type=blob.media_type, size=len(blob.data))


def without_deps(call: ToolCall) -> ToolCallOutcome:
    """Return the outcome of a call whose dependencies could not be made.

    The call never began. The cause is hidden from the model.
    """
    failure = FailureDetail(
        code="internal_error",
        message="An internal error occurred before the tool could run; it was not run",
        failure_class="internal",
        error_type="DepsFailed",
    )
    result = CompletedToolCall(call_id=call.id, tool_name=call.name, output=Failed(failure=failure))
    return ToolCallOutcome(launch=Done(result=result))


async def ask_outside(
    prepared: Prepared, ctx: ToolContext[object], threads: ToolThreads, *, certain: bool
) -> DurableStepOutcome:
    """Probe a call in doubt. "Did not happen" counts only if the call is `certain` to take no effect any more."""
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
        case CannotTell(reason=reason):
            return {"verdict": "unknown", "reason": reason}
