"""Instructions given as a function: called once when a turn opens, and captured with the turn."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from perdure.codec import check_text
from perdure.errors import Error
from perdure.ids import SessionId, Tenant
from perdure.runtime.deps import DepsFailed, TurnDeps
from perdure.tools.contained import contained
from perdure.tools.context import NOT_GIVEN
from perdure.tools.execute import ToolThreads
from perdure.tools.threads import Ended, NotStarted, Raised, Returned

log = logging.getLogger("perdure.runtime")

MAX_INSTRUCTIONS_BYTES = 262_144
TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class InstructionsContext:
    """The turn that needs instructions. `turn_index` counts from 0; `input` is the text of the input."""

    session: SessionId
    tenant: Tenant
    turn_index: int
    input: str
    deps: object = None


Instructions: TypeAlias = str | Callable[[InstructionsContext], str | Awaitable[str]]


class InstructionsFailed(Exception):
    """The instructions of a turn could not be made. The message may be shown to users."""


async def instructions_for(
    given: Instructions, context: InstructionsContext, deps: TurnDeps, threads: ToolThreads
) -> str:
    """Return the instructions of one turn. A plain function runs in a thread, because it may block.

    Raises:
        InstructionsFailed: the function or its dependencies failed. The cause is logged.
    """
    if isinstance(given, str):
        return given
    try:
        async with asyncio.timeout(TIMEOUT_S), deps.use() as found:
            there = None if found is NOT_GIVEN else found
            text = await _ask(given, replace(context, deps=there), threads)
        return _checked(text)
    except InstructionsFailed:
        raise
    except DepsFailed:
        raise InstructionsFailed(
            "the dependencies of the instructions could not be made; the cause is in the log"
        ) from None
    except TimeoutError:
        raise InstructionsFailed(f"the instructions function exceeded {TIMEOUT_S} s") from None


async def _ask(
    function: Callable[[InstructionsContext], str | Awaitable[str]], context: InstructionsContext, threads: ToolThreads
) -> object:
    ask = partial(function, context)
    ended = await (_awaited(ask) if inspect.iscoroutinefunction(function) else _in_a_thread(ask, threads))
    if isinstance(ended, Returned) and inspect.isawaitable(ended.value):
        ended = await _awaited(partial(_same, ended.value))
    match ended:
        case Returned(value=value):
            return value
        case Raised(error=error):
            log.error("instructions function failed", exc_info=error)
            raise InstructionsFailed("the instructions function failed; the cause is in the log") from None
        case NotStarted(reason=reason):
            raise InstructionsFailed(f"the instructions function could not run: {reason}")


async def _awaited(ask: Callable[[], object]) -> Ended:
    return await contained(ask, name="perdure:instructions")


def _same(awaitable: object) -> object:
    return awaitable


async def _in_a_thread(ask: Callable[[], object], threads: ToolThreads) -> Ended:
    job = threads.submit(ask)
    try:
        return await asyncio.shield(job.future)
    except asyncio.CancelledError:
        if not threads.withdraw(job, "the turn did not wait for it"):
            threads.abandon(job)
        raise


def _checked(text: object) -> str:
    if not isinstance(text, str):
        raise InstructionsFailed(f"the instructions must be text, not {type(text).__name__}")
    try:
        text = check_text(text, where="the instructions")
    except Error as problem:
        raise InstructionsFailed(problem.message) from None
    if (size := len(text.encode())) > MAX_INSTRUCTIONS_BYTES:
        raise InstructionsFailed(f"the instructions are {size} bytes; the limit is {MAX_INSTRUCTIONS_BYTES}")
    return text
