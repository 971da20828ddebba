"""Approval predicates (`needs_approval=`): whether a call needs a person's approval. A failed predicate means yes."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace

from perdure.errors import Error
from perdure.ids import EffectId
from perdure.runtime.turns.preparing import UNDER_WAY, Preparing, ReadyCall
from perdure.tools.contained import contained
from perdure.tools.decorator import Tool
from perdure.tools.prepare import ToolPrepareContext
from perdure.tools.threads import NotStarted, Raised, Returned
from perdure.turn.state import RunCall

log = logging.getLogger("perdure.tools")

PREDICATE_TIMEOUT_S = 30.0
"""Time limit of a predicate, in seconds. After it, approval is required."""


class ApprovalPolicy:
    """The approval decisions for the calls of one turn."""

    def __init__(
        self,
        context: Callable[[RunCall], ToolPrepareContext],
        durable: Callable[[], Awaitable[None]],
        on_news: Callable[[], None],
    ) -> None:
        self._context = context
        self._durable = durable
        self._on_news = on_news
        self._asked: dict[EffectId, asyncio.Task[bool]] = {}

    def needed(self, item: RunCall, ready: ReadyCall) -> bool | Preparing:
        """Return True if a person must approve this call, or `UNDER_WAY` while its predicate runs."""
        tool = ready.prepared.tool
        if ready.prepared.always_asks:
            return True
        predicate = tool.needs_approval if isinstance(tool, Tool) else None
        if predicate is None:
            return False
        task = self._asked.get(item.ref.id)
        if task is not None:
            if not task.done():
                return UNDER_WAY
            del self._asked[item.ref.id]
            return task.cancelled() or task.result()
        arguments = SimpleNamespace(**ready.prepared.arguments)
        given = (arguments, self._context(item))[: _arity(predicate)]
        return self._ask(item, lambda: predicate(*given))

    def _ask(self, item: RunCall, ask: Callable[[], object]) -> bool | Preparing:
        try:
            answer = ask()
        except BaseException as problem:  # noqa: BLE001 - user code; a failed predicate requires approval
            return _failed(item, problem)
        if not inspect.isawaitable(answer):
            return answer is not False

        async def think() -> bool:
            try:
                await self._durable()  # it may call external systems: the reply must be durable first
                async with asyncio.timeout(PREDICATE_TIMEOUT_S):
                    ended = await contained(lambda: answer, name=f"perdure:approve:{item.ref.id}")
            except (Error, TimeoutError) as problem:
                return _failed(item, problem)
            return ended.value is not False if isinstance(ended, Returned) else _failed(item, ended)

        task = self._asked[item.ref.id] = asyncio.create_task(think(), name=f"perdure:approve:{item.ref.id}")
        task.add_done_callback(lambda _: self._on_news())
        return UNDER_WAY

    @property
    def under_way(self) -> bool:
        """True while a predicate runs."""
        return any(not task.done() for task in self._asked.values())

    def stop(self) -> None:
        """Cancel all running predicates."""
        for task in self._asked.values():
            task.cancel()
        self._asked.clear()


def _failed(item: RunCall, problem: Raised | NotStarted | BaseException) -> bool:
    error = problem.error if isinstance(problem, Raised) else problem
    cause = error if isinstance(error, BaseException) else None
    log.error("approve predicate failed, approval required tool=%s", item.call.name, exc_info=cause)
    return True


async def asks(predicate: Callable[..., object], arguments: Mapping[str, object], context: ToolPrepareContext) -> bool:
    """Run a predicate with a time limit. Return True unless it returns False in time."""
    given = (SimpleNamespace(**arguments), context)[: _arity(predicate)]
    try:
        async with asyncio.timeout(PREDICATE_TIMEOUT_S):
            ended = await contained(lambda: predicate(*given), name="perdure:approve")
    except TimeoutError:
        return True
    return not (isinstance(ended, Returned) and ended.value is False)


def _arity(predicate: Callable[..., object]) -> int:
    """Return how many positional arguments a predicate takes, at most 2: the call's arguments and the context."""
    try:
        parameters = inspect.signature(predicate).parameters.values()
    except (TypeError, ValueError):
        return 1
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return 2
    return min(2, sum(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in parameters))
