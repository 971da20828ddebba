"""Execution of one attempt of a call, with an accurate outcome.

Laws: `run_attempt` never raises, except when its own caller is cancelled. It exceeds a deadline by at most the grace
period. The outcome that the tool reports is believed; an unobservable outcome of a `once` call is in doubt.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from perdure.codec import Json
from perdure.effects.attachments import check_bytes
from perdure.errors import Code, Error
from perdure.offload import offload, weight_of
from perdure.services.log_lines import escape_log_lines
from perdure.services.secrets import Redactor
from perdure.tools.catalog import Runnable
from perdure.tools.contained import GRACE_MS, drive, end_of
from perdure.tools.context import ToolContext, end_output, origin_of
from perdure.tools.door import AdmittedCall
from perdure.tools.errors import OutcomeUnknown, ToolError, foremost, message_of, text_of, whole_ms
from perdure.tools.execution_result import (
    INTERNAL_ERROR,
    ConnectionRequired,
    FailedInternally,
    FailedVisibly,
    Image,
    SucceededWithImages,
    ToolResult,
    ToolSucceeded,
    chain_string,
    log_internal,
    without_raw_output,
)
from perdure.tools.result_truncation import MAX_KEPT_BYTES
from perdure.tools.results import Unstorable, keep
from perdure.tools.step_outcomes import Parked
from perdure.tools.threads import Ended, NotStarted, Raised, Returned, ThreadJob, ToolThreads
from perdure.tools.toolbox import Prepared
from perdure.tools.verdicts import CannotTell, DidNotHappen, Happened, Verdict
from perdure.vocab.outcomes import (
    Failed,
    FailureDetail,
    InDoubt,
    NotRun,
    PendingCompletion,
    Success,
    ToolOutput,
)

PROBE_TIMEOUT_MS = 30_000
MAX_IMAGES = 16

logger = logging.getLogger("perdure.tools")
escape_log_lines()

_SHOWN = frozenset(
    code
    for code in Code
    if code.value.startswith(("durable_effect", "tool_completion", "process_signal", "replay_", "await_event"))
    or code in (Code.INVALID_JSON, Code.INVALID_ID, Code.INVALID_TEXT, Code.INPUT_TOO_LARGE)
)
"""Error codes caused by a tool's own use of its context. All other errors are hidden from the model."""


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The deadline passed first. `late` is the outcome if the call ended within the grace period."""

    late: Ended | None = None


@dataclass(slots=True)
class Sidecar:
    """Extras of a result: images, and the full output that the value summarizes."""

    images: list[Image] = field(default_factory=list[Image])
    raw_output: str | None = None


class Withheld(Exception):
    """The call may no longer start. No part of it has run."""


def _always() -> bool:
    return True


async def run_attempt(
    admitted: AdmittedCall,
    ctx: ToolContext[object],
    *,
    threads: ToolThreads,
    left_ms: int | None = None,
    may_start: Callable[[], bool] = _always,
    sidecar: Sidecar | None = None,
) -> ToolOutput | PendingCompletion:
    """Run one attempt and return its outcome, or a pending completion. Extras of the result go into `sidecar`.

    `may_start` is called immediately before the tool's function, on its thread and after any queueing. If it returns
    False, `Withheld` is raised and nothing has run.

    `left_ms` is the rest of the deadline recorded with the call's intent, so that the log shows the true time of the
    stop. A passed deadline does not prove that the call has no later effect.

    On timeout and on cancellation of the caller, the tool is asked to stop: `ctx.cancellation` is set, and an async
    body is cancelled. After a grace period of 50 ms it is left running. An outcome reported within the grace period
    counts; otherwise the caller's own cancellation is raised.
    """
    beside = sidecar or Sidecar()
    try:
        output = await _attempt(admitted, ctx, threads, left_ms, may_start, beside)
    finally:
        end_output(ctx)
    if isinstance(output, PendingCompletion):
        return output
    return await offload(weight_of(output), _redacted, output, beside, ctx.services.redactor)


def _redacted(output: ToolOutput, beside: Sidecar, redactor: Redactor) -> ToolOutput:
    """Redact secrets in the tool's output."""
    if beside.raw_output is not None:
        beside.raw_output = redactor.text(beside.raw_output)
    match output:
        case Success(value=value):
            return replace(output, value=redactor.json(value))
        case Failed(failure=failure):
            hidden = replace(failure, message=redactor.text(failure.message), code=redactor.text(failure.code))
            return replace(output, failure=hidden)
        case InDoubt(message=message):
            return replace(output, message=redactor.text(message))
        case NotRun():
            return output


async def _attempt(
    admitted: AdmittedCall,
    ctx: ToolContext[object],
    threads: ToolThreads,
    left_ms: int | None,
    may_start: Callable[[], bool],
    beside: Sidecar,
) -> ToolOutput | PendingCompletion:
    prepared, body = admitted.prepared, origin_of(ctx).body

    def call() -> object:
        if not may_start():
            raise Withheld
        if body is not None:
            body.life.enter()
        return admitted.enter(ctx)

    limit_ms = prepared.durability.timeout_ms if left_ms is None else left_ms
    if limit_ms is not None and limit_ms <= 0:
        return _timed_out(DeadlinePassed(NotStarted("its time was over before it could start")), prepared, ctx, beside)
    ended = await _run(call, prepared.tool.is_async, ctx, threads, limit_ms)
    if isinstance(ended, Raised) and isinstance(ended.error, Withheld):
        raise Withheld
    if body is not None:
        life = body.life
        await life.end()
        if life.parked:
            raise Parked
        if life.broken is not None:
            return _refused(life.broken)
    if isinstance(ended, DeadlinePassed):
        return _timed_out(ended, prepared, ctx, beside)
    if isinstance(ended, Returned) and isinstance(ended.value, PendingCompletion):
        return _pending(ended.value, ctx)
    size = weight_of(ended.value) if isinstance(ended, Returned) else 0
    return await offload(size, _output, ended, prepared, ctx, beside)  # threat: T-TOOL-03


async def run_to_end(
    admitted: AdmittedCall,
    ctx: ToolContext[object],
    *,
    threads: ToolThreads,
    left_ms: int | None = None,
    sidecar: Sidecar | None = None,
) -> ToolOutput:
    """Run one attempt in a context that cannot wait for an external completion."""
    output = await run_attempt(admitted, ctx, threads=threads, left_ms=left_ms, sidecar=sidecar)
    if not isinstance(output, PendingCompletion):
        return output
    message = f"{ctx.tool_name} is pending, and nothing here can wait for an external completion"
    return _failed(code="pending_tool_not_supported_here", message=message, failure_class="invalid")


def _pending(pending: PendingCompletion, ctx: ToolContext[object]) -> ToolOutput | PendingCompletion:
    completion = origin_of(ctx).completion
    if completion is not None and completion.key is not None:
        return pending
    return _failed(
        code="pending_tool_missing_completion_key",
        message=f"{ctx.tool_name} is pending, but no completion key was created",
        failure_class="invalid",
    )


async def run_probe(
    tool: Runnable,
    ctx: ToolContext[object],
    *,
    threads: ToolThreads | None = None,
    timeout_ms: int = PROBE_TIMEOUT_MS,
) -> Verdict:
    """Ask the tool's probe about a call in doubt. Anything but a clear verdict is `Unknown`.

    A sync probe runs in `threads`, or in a separate thread.
    """
    probe = tool.probe
    if probe is None:
        return CannotTell("the tool has no probe")
    pool = threads or ToolThreads(1)
    try:
        is_async = inspect.iscoroutinefunction(probe)
        ended = await _run(functools.partial(probe, ctx), is_async, ctx, pool, timeout_ms)
    finally:
        if pool is not threads:
            pool.close()
    match _verdict(ended, ctx):
        case Happened(value=value):
            return Happened(ctx.services.redactor.json(value))
        case CannotTell(reason=reason):
            return CannotTell(ctx.services.redactor.text(reason))
        case verdict:
            return verdict


# --- running ----------------------------------------------------------------------------------------------------


class _RunningBody(Protocol):
    """A running call."""

    future: asyncio.Future[Ended]

    def stop(self) -> None:
        """Ask the call to stop, by the means of its kind."""
        ...

    def abandon(self) -> bool:
        """Abandon the call. Return False if it has just ended."""
        ...


class _AsyncBody:
    def __init__(self, call: Callable[[], object], threads: ToolThreads, name: str) -> None:
        self._threads = threads
        self.future: asyncio.Future[Ended] = asyncio.create_task(drive(call), name=f"perdure:tool:{name}")

    def stop(self) -> None:
        self.future.cancel()

    def abandon(self) -> bool:
        self._threads.abandon_task(self.future)
        return True


class _ThreadBody:
    def __init__(self, call: Callable[[], object], threads: ToolThreads) -> None:
        self._threads = threads
        self._job: ThreadJob = threads.submit(call)
        self.future = self._job.future

    def stop(self) -> None:
        # A running thread reads `ctx.cancellation`. A queued job never starts.
        self._threads.withdraw(self._job, "the call never started: all tool threads were busy")

    def abandon(self) -> bool:
        return self._threads.abandon(self._job)


async def _run(
    call: Callable[[], object],
    is_async: bool,
    ctx: ToolContext[object],
    threads: ToolThreads,
    limit_ms: int | None,
) -> Ended | DeadlinePassed:
    loop = asyncio.get_running_loop()
    deadline = None if limit_ms is None else loop.time() + limit_ms / 1000
    name = f"{ctx.tool_name}:{ctx.session_id}"
    body: _RunningBody = _AsyncBody(call, threads, name) if is_async else _ThreadBody(call, threads)
    ended = await _watch(body, ctx, deadline)
    if isinstance(ended, Returned) and inspect.isawaitable(ended.value):
        # A plain function that returned a coroutine, as many decorators of async functions do.
        second = _AsyncBody(functools.partial(_same, ended.value), threads, name)
        second.future.add_done_callback(functools.partial(_close_unstarted, ended))
        ended = await _watch(second, ctx, deadline)
    return ended


def _same(awaitable: object) -> object:
    return awaitable


def _close_unstarted(ended: Ended, _: object = None) -> None:
    value = ended.value if isinstance(ended, Returned) else None
    if inspect.iscoroutine(value) and inspect.getcoroutinestate(value) == inspect.CORO_CREATED:
        value.close()


async def _watch(body: _RunningBody, ctx: ToolContext[object], deadline: float | None) -> Ended | DeadlinePassed:
    left = None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())
    try:
        await asyncio.wait({body.future}, timeout=left)
    except asyncio.CancelledError:
        await _stop(body, ctx)
        if _said_something(body.future):
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
            return end_of(body.future)
        raise
    if body.future.done():
        return end_of(body.future)
    await _stop(body, ctx)
    late = end_of(body.future) if body.future.done() else None
    return DeadlinePassed(None if isinstance(late, Returned) and inspect.isawaitable(late.value) else late)


def _said_something(future: asyncio.Future[Ended]) -> bool:
    """Return True if a stopped call reported an outcome, not only its cancellation."""
    if not future.done() or future.cancelled():
        return False
    ended = future.result()
    return isinstance(ended, Returned) or (isinstance(ended, Raised) and isinstance(ended.error, ToolError))


async def _stop(body: _RunningBody, ctx: ToolContext[object]) -> None:
    ctx.cancellation.cancel()
    body.stop()
    body.future.add_done_callback(_discard)
    try:
        await asyncio.wait({body.future}, timeout=GRACE_MS / 1000)
    finally:
        if not body.future.done() and body.abandon():
            ctx.cancellation.ignored = True
            logger.warning("cancellation ignored, call left running tool=%s", ctx.tool_name, extra=_of(ctx))


def _discard(future: asyncio.Future[Ended]) -> None:
    # A coroutine that is returned after the stop is never awaited.
    if not future.cancelled():
        _close_unstarted(future.result())


# --- outcomes ---------------------------------------------------------------------------------------------------


def _output(ended: Ended, prepared: Prepared, ctx: ToolContext[object], beside: Sidecar) -> ToolOutput:
    match ended:
        case Returned(value=ToolResult() as result):
            return _executed(result, ctx, beside)
        case Returned(value=value):
            return _plain_result(value, ctx, beside)
        case NotStarted(reason=reason):
            return NotRun(reason=reason)
        case Raised(error=error):
            return _raised(foremost(error), prepared, ctx)


def _result(value: object, ctx: ToolContext[object]) -> ToolOutput:
    kept = keep(value)
    if not isinstance(kept, Unstorable):
        return Success(value=kept.value)
    logger.error("tool result not storable tool=%s problem=%s", ctx.tool_name, kept, extra=_of(ctx))
    return _failed(
        code="tool_result_invalid",
        message=f"The tool did run, but its result cannot be stored as JSON, at {kept.path}: {kept.reason}. "
        "The call was not repeated.",
        failure_class="invalid",
    )


def _plain_result(value: object, ctx: ToolContext[object], beside: Sidecar) -> ToolOutput:
    """Return the outcome of a tool that returned no `ToolResult`. A raw output is left out there, too."""
    output = _result(value, ctx)
    if not isinstance(output, Success):
        return output
    shown, beside.raw_output = without_raw_output(output.value)
    return replace(output, value=shown)


def _executed(result: ToolResult, ctx: ToolContext[object], beside: Sidecar) -> ToolOutput:
    match result:
        case ToolSucceeded(value=value):
            shown, beside.raw_output = without_raw_output(value)
            return _result(shown, ctx)
        case SucceededWithImages(value=value, images=images):
            output = _result(value, ctx)
            return _pictured(output, images, ctx, beside) if isinstance(output, Success) else output
        case FailedVisibly(message=message):
            return _failed(code="tool_error", message=text_of(message))
        case FailedInternally(error=error):
            log_internal(error, ctx.tool_name, _of(ctx))
            kind = type(error.source).__name__ if error.source else "ToolInternalError"
            return _failed(code="internal_error", message=INTERNAL_ERROR, failure_class="internal", error_type=kind)
        case ConnectionRequired(provider=provider):
            name = text_of(provider)
            return Success(value={"connection_required": name}, connection_required=name)
        case _:
            return _result(result, ctx)  # a user's own subclass: not JSON


def _pictured(output: Success, images: tuple[Image, ...], ctx: ToolContext[object], beside: Sidecar) -> ToolOutput:
    try:
        size = 0
        for image in images:
            data = image.data()
            check_bytes(data, image.media_type)
            size += len(data)
        problem = f"they are {size} bytes, more than {MAX_KEPT_BYTES}" if size > MAX_KEPT_BYTES else ""
    except Error as error:
        problem = f"{error.message}: {error.because}"
    except Exception as error:  # noqa: BLE001 - not a valid image
        problem = text_of(error)
    if len(images) > MAX_IMAGES:
        problem = f"they are {len(images)}, more than {MAX_IMAGES}"
    if not problem:
        beside.images.extend(images)
        return output
    logger.error("tool images not storable tool=%s problem=%s", ctx.tool_name, problem, extra=_of(ctx))
    message = f"The tool did run, but its images cannot be stored: {problem}. The call was not repeated."
    return _failed(code="tool_result_invalid", message=message, failure_class="invalid")


def _raised(error: BaseException, prepared: Prepared, ctx: ToolContext[object]) -> ToolOutput:
    match error:
        case ToolError():
            return _failed(
                code=text_of(error.code).strip() or "tool_error",
                message=message_of(error),
                retry_safe=bool(error.retry_safe),
                retry_after_ms=whole_ms(error.retry_after_ms),
                error_type=type(error).__name__,
            )
        case OutcomeUnknown():
            if _reruns(prepared):
                return _failed(code="outcome_unknown", message=message_of(error), retry_safe=True)
            return InDoubt(reason="declared", message=message_of(error))
        case Error(code=code) if code in _SHOWN:
            return _refused(error)
        case Exception():
            chain = chain_string(text_of(error), error)
            logger.error("tool failed tool=%s error=%s", ctx.tool_name, chain, exc_info=error, extra=_of(ctx))
            return _failed(
                code="internal_error",
                message=INTERNAL_ERROR,
                failure_class="internal",
                error_type=type(error).__name__,
            )
        case _:
            name = type(error).__name__
            logger.error("tool panicked tool=%s error=%s", ctx.tool_name, name, exc_info=error, extra=_of(ctx))
            return _failed(
                code="tool_panicked",
                message="The tool broke off instead of returning or failing",
                failure_class="panic",
                error_type=name,
            )


def _refused(error: Error) -> ToolOutput:
    """Report a misuse of the context that cannot be recorded. The tool's author must see the reason."""
    because = f" ({error.because})" if error.because else ""
    if error.code is Code.REPLAY_MISMATCH:
        logger.error("%s", error)  # includes the differing values, which the model must not see
        because = f" (at {error.details['paths']})"
    return _failed(code=error.code.value, message=f"{error.message}{because}", failure_class="invalid")


def _timed_out(ended: DeadlinePassed, prepared: Prepared, ctx: ToolContext[object], beside: Sidecar) -> ToolOutput:
    match ended.late:
        case Returned() | Raised(error=ToolError()):
            return _output(ended.late, prepared, ctx, beside)  # the outcome arrived within the grace period
        case NotStarted(reason=reason):
            return _failed(code="tool_timeout", message=reason, failure_class="timeout", retry_safe=True)
        case _:
            pass
    limit = f"The tool did not finish within {prepared.durability.timeout_ms} ms"
    if _reruns(prepared):
        return _failed(code="tool_timeout", message=limit, failure_class="timeout", retry_safe=True)
    message = f"{limit}; whether it took effect is unknown"
    return InDoubt(reason="timeout", message=message, left_running=ended.late is None)


def _reruns(prepared: Prepared) -> bool:
    return prepared.durability.effect in ("pure", "idempotent")


def _failed(**fields: Json) -> Failed:
    return Failed(failure=FailureDetail(**fields))


def _of(ctx: ToolContext[object]) -> dict[str, object]:
    return {"session": ctx.session_id, "turn": ctx.turn_id, "call": ctx.call_id, "tool": ctx.tool_name}


# --- probe verdicts ---------------------------------------------------------------------------------------------


def _verdict(ended: Ended | DeadlinePassed, ctx: ToolContext[object]) -> Verdict:
    match ended:
        case Returned(value=Happened(value=value)):
            return _happened(value, ctx)
        case Returned(value=DidNotHappen() | CannotTell() as verdict):
            return verdict
        case Returned(value=other):
            reason = f"the probe returned {type(other).__name__}, not a verdict"
        case Raised(error=error):
            reason = f"the probe failed: {type(error).__name__}"
            logger.error("probe failed tool=%s", ctx.tool_name, exc_info=error, extra=_of(ctx))
            return CannotTell(reason)
        case NotStarted(reason=why):
            reason = f"the probe did not run: {why}"
        case DeadlinePassed():
            reason = "the probe timed out"
    logger.error("call stays in doubt tool=%s reason=%s", ctx.tool_name, reason, extra=_of(ctx))
    return CannotTell(reason)


def _happened(value: Json, ctx: ToolContext[object]) -> Happened:
    kept = keep(value)
    if isinstance(kept, Unstorable):
        # The fact that the call happened matters more than its value.
        logger.error("probe value not storable tool=%s problem=%s", ctx.tool_name, kept, extra=_of(ctx))
        return Happened()
    return Happened(kept.value)
