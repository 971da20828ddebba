"""A step's function, run: in the event loop or in a thread, and only while its body counts."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from types import CoroutineType, FunctionType
from typing import Literal, TypeGuard

from perdure.effects.controller import Care, Ledger, NotDispatched
from perdure.tools.endings import Parked
from perdure.tools.life import Life
from perdure.tools.threads import Ended, NotStarted, Raised, Returned, ToolThreads

StepEffect = Literal["once", "idempotent", "pure"]

STEP_CARE: dict[StepEffect, Care] = {
    "once": Care(effect="once"),
    "idempotent": Care(effect="idempotent"),
    "pure": Care(effect="pure"),
}

THREAD_PAUSE_S = 0.05
"""Between two tries of a step for which there was no thread, or no lease."""


async def run(call: Callable[[], object], *, in_loop: bool, life: Life, ledger: Ledger, threads: ToolThreads) -> Ended:
    """Call it, await what it returns, and say how that ended.

    Raises:
        NotDispatched: it did not begin.
    """
    life.check_open()
    if not in_loop:
        ended = await _in_thread(call, life, ledger, threads)
        if not (isinstance(ended, Returned) and inspect.isawaitable(ended.value)):
            return ended
        begun: Awaitable[object] = ended.value
        call = lambda: begun  # noqa: E731 - it has begun in the thread, and goes on here
    try:
        value = call()
        for _ in range(2):  # a function that is awaited may return what must be; not for ever: a pool returns itself
            if _is_awaitable(value):
                value = await value
        return Returned(value)
    except (asyncio.CancelledError, Parked):
        raise
    except BaseException as error:  # noqa: BLE001 - how a step ended is judged by the caller
        return Raised(error)


def runs_in_loop(fn: Callable[..., object]) -> bool:
    """Whether it is called in the event loop: as `inspect` says, which need not be asked about an `async def`."""
    if type(fn) is FunctionType and fn.__code__.co_flags & inspect.CO_COROUTINE:
        return True
    return inspect.iscoroutinefunction(fn)


_PLAIN = frozenset({type(None), bool, int, float, str, list, dict, tuple})


def _is_awaitable(value: object) -> TypeGuard[Awaitable[object]]:
    """As `inspect` says; what almost every step gives is known by its type, without asking that."""
    kind = type(value)
    return kind is CoroutineType or (kind not in _PLAIN and inspect.isawaitable(value))


async def _in_thread(call: Callable[[], object], life: Life, ledger: Ledger, threads: ToolThreads) -> Ended:
    def begin() -> object:
        if not life.is_open or not ledger.lease_live():
            raise NotDispatched
        return call()

    job = threads.submit(begin)
    try:
        ended = await asyncio.shield(job.future)
    except asyncio.CancelledError:
        threads.withdraw(job, "the call was stopped")
        if not job.future.done():
            threads.abandon(job)
        raise
    if isinstance(ended, NotStarted) or (isinstance(ended, Raised) and isinstance(ended.error, NotDispatched)):
        await asyncio.sleep(THREAD_PAUSE_S)
        life.check_open()
        raise NotDispatched
    return ended
