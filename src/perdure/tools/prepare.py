"""Preparing a call before anything of it is recorded: what the hook may know, and what it may answer.

What a hook seals into `prepared_payload` becomes part of the recorded intent: every later attempt of the call, after
whatever crash, gets that payload and not another one.
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
from perdure.tools.clients.sessions import Sessions, SessionSnapshot
from perdure.tools.clients.turn import TurnContext
from perdure.tools.contained import contained
from perdure.tools.context import NOT_GIVEN
from perdure.tools.errors import ToolError, message_of, text_of, whole_ms
from perdure.tools.results import Unstorable, keep
from perdure.tools.services import missing
from perdure.tools.threads import NotStarted, Raised, Returned
from perdure.vocab.effects import PreparedToolCall
from perdure.vocab.outcomes import Failed, Failure, Success
from perdure.vocab.tools import ToolDefinition

T = TypeVar("T")

logger = logging.getLogger("perdure.tools")

PREPARE_TIMEOUT_S = 30.0
MAX_PAYLOAD_BYTES = 262_144
MAX_ARGS_BYTES = 524_288
"""Both together, with what a record has around them, fit into one append; a reply brings no larger arguments."""

Preparation: TypeAlias = PreparedToolCall | Success | Failed
"""A call to run, or the answer to it: then nothing runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPrepareContext:
    """What is known when a call is prepared. Nothing of it has run."""

    session_id: SessionId
    call_id: CallId | None = None
    turn_context: TurnContext = field(default_factory=TurnContext)
    given: object = field(default=NOT_GIVEN, repr=False)
    sessions: Sessions | None = field(default=None, repr=False)

    @property
    def deps(self) -> Json:
        """What the application gave its tools to work with (`Runtime(..., deps=...)`)."""
        if self.given is NOT_GIVEN:
            raise missing("deps")
        return self.given

    def plugin_input(self, plugin_id: str, type: type[T]) -> T | None:
        """What the host said to one plugin with this turn's input; None if nothing of that shape."""
        return self.turn_context.plugin_input(plugin_id, type)

    async def session_snapshot(self) -> SessionSnapshot:
        """This session, as far as it is durable."""
        return await self._sessions().snapshot_current()

    async def tool_catalog(self) -> list[Json]:
        """The tools of this turn, as plain JSON."""
        return await self._sessions().tool_catalog()

    async def shared_tool_catalog(self) -> tuple[ToolDefinition, ...]:
        """The tools of this turn, as shared values."""
        return await self._sessions().shared_tool_catalog()

    def _sessions(self) -> Sessions:
        if self.sessions is None:
            raise missing("sessions")
        return self.sessions


async def answered(asked: PreparedToolCall, answer: Awaitable[object]) -> Preparation:
    """What a hook answers in its own time, which is limited. Never raises, except when it is cancelled."""
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
    """What a hook answered, if it makes sense: the same call, with a payload that can be kept, or an output."""
    match answer:
        case PreparedToolCall() as call if (call.call_id, call.tool_id, call.tool_name) != _names(asked):
            return _failed(
                "prepared_tool_id_mismatch",
                f"Preparation turned the call of {asked.tool_id} into one of {call.tool_id}; nothing was run",
            )
        case PreparedToolCall() as call:
            return _sealed(call)
        case Success() | Failed():
            return _storable(asked, answer)
        case _:
            logger.error("the preparation of %s answered %s", asked.tool_name, type(answer).__name__)
            return _failed("tool_prepare_failed", "The preparation of the call went wrong; the tool was not run")


def _names(call: PreparedToolCall) -> tuple[str, str, str]:
    return call.call_id, call.tool_id, call.tool_name


def _sealed(call: PreparedToolCall) -> Preparation:
    """The call as it will be read back: what cannot be stored cannot be promised to a later attempt."""
    kept = keep({"args": call.args, "payload": call.prepared_payload})
    if isinstance(kept, Unstorable):
        logger.error("what was prepared for %s cannot be stored: %s", call.tool_name, kept)
        return _failed("tool_prepare_failed", f"What was prepared cannot be stored, at {kept.path}: {kept.reason}")
    plain = cast("dict[str, Json]", kept.value)
    for what, limit in (("args", MAX_ARGS_BYTES), ("payload", MAX_PAYLOAD_BYTES)):
        if (size := len(encode(plain[what]))) > limit:
            logger.error("what was prepared for %s is too large: %s of %d bytes", call.tool_name, what, size)
            message = f"What was prepared is too large: {what} of {size} bytes, and the limit is {limit}"
            return _failed("tool_prepare_failed", f"{message}; the tool was not run")
    return msgspec.structs.replace(call, args=plain["args"], prepared_payload=plain["payload"])


def _storable(asked: PreparedToolCall, answer: Success | Failed) -> Success | Failed:
    """An answer as it will be read back, or why it cannot be recorded."""
    kept = keep(answer)
    if isinstance(kept, Unstorable):
        logger.error("the answer prepared for %s cannot be stored: %s", asked.tool_name, kept)
        return _failed("tool_prepare_failed", f"What was prepared cannot be stored, at {kept.path}: {kept.reason}")
    if (size := len(encode(kept.value))) > MAX_PAYLOAD_BYTES:
        logger.error("the answer prepared for %s is %d bytes", asked.tool_name, size)
        message = f"The prepared answer is too large: {size} bytes, and the limit is {MAX_PAYLOAD_BYTES}"
        return _failed("tool_prepare_failed", f"{message}; the tool was not run")
    try:
        return msgspec.convert(kept.value, type=Success | Failed)
    except msgspec.ValidationError as problem:
        logger.error("the answer prepared for %s has the wrong shape: %s", asked.tool_name, problem)
        return _failed("tool_prepare_failed", f"What was prepared cannot be stored: {problem}; the tool was not run")


def refused(asked: PreparedToolCall, problem: BaseException) -> Failed:
    """A hook that raised: a known failure, since nothing was dispatched."""
    if isinstance(problem, ToolError):
        failure = Failure(
            code=text_of(problem.code).strip() or "tool_error",
            message=message_of(problem),
            retry_safe=bool(problem.retry_safe),
            retry_after_ms=whole_ms(problem.retry_after_ms),
            error_type=type(problem).__name__,
        )
        return Failed(failure=failure)
    logger.error("the preparation of %s failed", asked.tool_name, exc_info=problem)
    return _failed("tool_prepare_failed", "The preparation of the call went wrong; the tool was not run")


def too_slow(asked: PreparedToolCall) -> Failed:
    """A hook that did not come back."""
    logger.error("the preparation of %s took more than %s s", asked.tool_name, PREPARE_TIMEOUT_S)
    failure = Failure(
        code="tool_prepare_timeout",
        message=f"The call was not prepared within {PREPARE_TIMEOUT_S:g} s; the tool was not run",
        failure_class="timeout",
        retry_safe=True,
    )
    return Failed(failure=failure)


def _failed(code: str, message: str) -> Failed:
    return Failed(failure=Failure(code=code, message=message, failure_class="internal"))


Answer: TypeAlias = Preparation | Awaitable[Preparation]
