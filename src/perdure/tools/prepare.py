"""Preparation of a call before its first record: the context and the results of hooks.

The `prepared_payload` of a hook becomes part of the recorded intent. Every later attempt of the call, also after a
crash, gets that payload.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar, cast

import msgspec

from perdure.codec import Json, encode
from perdure.ids import CallId, SessionId
from perdure.tools.clients.sessions import SessionsClient, SessionSnapshot
from perdure.tools.clients.turn import TurnContext
from perdure.tools.contained import contained
from perdure.tools.context import NOT_GIVEN
from perdure.tools.errors import ToolError, message_of, text_of, whole_ms
from perdure.tools.results import Unstorable, keep
from perdure.tools.services import missing
from perdure.tools.threads import NotStarted, Raised, Returned
from perdure.vocab.effects import PreparedToolCall
from perdure.vocab.outcomes import Failed, FailureDetail, Success
from perdure.vocab.tools import ToolDefinition

T = TypeVar("T")

logger = logging.getLogger("perdure.tools")

PREPARE_TIMEOUT_S = 30.0
MAX_PAYLOAD_BYTES = 262_144
MAX_ARGS_BYTES = 524_288
"""Limits in bytes. Arguments and payload fit into one append; a reply contains no larger arguments."""

Preparation: TypeAlias = PreparedToolCall | Success | Failed
"""The call to run, or an output that replaces the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPrepareContext:
    """The context of a hook. No part of the call has run."""

    session_id: SessionId
    call_id: CallId | None = None
    turn_context: TurnContext = field(default_factory=TurnContext)
    _deps: object = field(default=NOT_GIVEN, repr=False)
    sessions: SessionsClient | None = field(default=None, repr=False)

    @property
    def deps(self) -> Json:
        """The dependencies passed to `Runtime(deps=...)`."""
        if self._deps is NOT_GIVEN:
            raise missing("deps")
        return self._deps

    def plugin_input(self, plugin_id: str, type: type[T]) -> T | None:
        """Return the host's input to one plugin for this turn, or None if absent or of another type."""
        return self.turn_context.plugin_input(plugin_id, type)

    async def session_snapshot(self) -> SessionSnapshot:
        """Return the durable state of this session."""
        return await self._sessions().snapshot_current()

    async def tool_catalog(self) -> list[Json]:
        """Return the tools of this turn as plain JSON."""
        return await self._sessions().tool_catalog()

    async def shared_tool_catalog(self) -> tuple[ToolDefinition, ...]:
        """Return the tools of this turn as shared values."""
        return await self._sessions().shared_tool_catalog()

    def _sessions(self) -> SessionsClient:
        if self.sessions is None:
            raise missing("sessions")
        return self.sessions


async def answered(asked: PreparedToolCall, answer: Awaitable[object]) -> Preparation:
    """Await a hook with a time limit. Never raises, except when cancelled."""
    try:
        async with asyncio.timeout(PREPARE_TIMEOUT_S):
            ended = await contained(lambda: answer, name=f"perdure:hook:{asked.call_id}")
    except TimeoutError:
        return too_slow(asked)
    match ended:
        case Returned(value=value):
            return judge(asked, value)
        case Raised(error=error):
            return refused(asked, error)
        case NotStarted(reason=reason):
            return _failed("tool_prepare_failed", f"The call could not be prepared: {reason}; the tool was not run")


def judge(asked: PreparedToolCall, answer: object) -> Preparation:
    """Check a hook's result: the same call, with a payload that can be stored, or an output."""
    match answer:
        case PreparedToolCall() as call if (call.call_id, call.tool_id, call.tool_name) != _names(asked):
            return _failed(
                "prepared_tool_id_mismatch",
                f"Preparation turned the call of {asked.tool_id} into one of {call.tool_id}; nothing was run",
            )
        case PreparedToolCall() as call:
            return _captured(call)
        case Success() | Failed():
            return _storable(asked, answer)
        case _:
            logger.error("preparation invalid tool=%s type=%s", asked.tool_name, type(answer).__name__)
            return _failed("tool_prepare_failed", "The preparation of the call went wrong; the tool was not run")


def _names(call: PreparedToolCall) -> tuple[str, str, str]:
    return call.call_id, call.tool_id, call.tool_name


def _captured(call: PreparedToolCall) -> Preparation:
    """Return the call as it will be read back, or a failure if it cannot be stored."""
    kept = keep({"args": call.args, "payload": call.prepared_payload})
    if isinstance(kept, Unstorable):
        logger.error("prepared call not storable tool=%s problem=%s", call.tool_name, kept)
        return _failed("tool_prepare_failed", f"The prepared call cannot be stored, at {kept.path}: {kept.reason}")
    plain = cast("dict[str, Json]", kept.value)
    for what, limit in (("args", MAX_ARGS_BYTES), ("payload", MAX_PAYLOAD_BYTES)):
        if (size := len(encode(plain[what]))) > limit:
            logger.error("prepared call too large tool=%s field=%s bytes=%d", call.tool_name, what, size)
            message = f"The prepared call is too large: {what} has {size} bytes, and the limit is {limit}"
            return _failed("tool_prepare_failed", f"{message}; the tool was not run")
    return msgspec.structs.replace(call, args=plain["args"], prepared_payload=plain["payload"])


def _storable(asked: PreparedToolCall, answer: Success | Failed) -> Success | Failed:
    """Return an answer as it will be read back, or a failure if it cannot be stored."""
    kept = keep(answer)
    if isinstance(kept, Unstorable):
        logger.error("prepared answer not storable tool=%s problem=%s", asked.tool_name, kept)
        return _failed("tool_prepare_failed", f"The prepared answer cannot be stored, at {kept.path}: {kept.reason}")
    if (size := len(encode(kept.value))) > MAX_PAYLOAD_BYTES:
        logger.error("prepared answer too large tool=%s bytes=%d", asked.tool_name, size)
        message = f"The prepared answer is too large: {size} bytes, and the limit is {MAX_PAYLOAD_BYTES}"
        return _failed("tool_prepare_failed", f"{message}; the tool was not run")
    try:
        return msgspec.convert(kept.value, type=Success | Failed)
    except msgspec.ValidationError as problem:
        logger.error("prepared answer invalid tool=%s problem=%s", asked.tool_name, problem)
        return _failed("tool_prepare_failed", f"The prepared answer cannot be stored: {problem}; the tool was not run")


def refused(asked: PreparedToolCall, problem: BaseException) -> Failed:
    """Convert a hook's exception into a known failure, because the call was not dispatched."""
    if isinstance(problem, ToolError):
        failure = FailureDetail(
            code=text_of(problem.code).strip() or "tool_error",
            message=message_of(problem),
            retry_safe=bool(problem.retry_safe),
            retry_after_ms=whole_ms(problem.retry_after_ms),
            error_type=type(problem).__name__,
        )
        return Failed(failure=failure)
    logger.error("preparation failed tool=%s", asked.tool_name, exc_info=problem)
    return _failed("tool_prepare_failed", "The preparation of the call went wrong; the tool was not run")


def too_slow(asked: PreparedToolCall) -> Failed:
    """Return the failure of a hook that timed out."""
    logger.error("preparation timed out tool=%s limit_s=%s", asked.tool_name, PREPARE_TIMEOUT_S)
    failure = FailureDetail(
        code="tool_prepare_timeout",
        message=f"The call was not prepared within {PREPARE_TIMEOUT_S:g} s; the tool was not run",
        failure_class="timeout",
        retry_safe=True,
    )
    return Failed(failure=failure)


def _failed(code: str, message: str) -> Failed:
    return Failed(failure=FailureDetail(code=code, message=message, failure_class="internal"))


Answer: TypeAlias = Preparation | Awaitable[Preparation]
