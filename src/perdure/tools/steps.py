"""Execution of a step's function, on the event loop or in a thread, while its body is open."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from types import CoroutineType, FunctionType
from typing import Literal, TypeGuard

from perdure.effects.controller import DispatchPolicy, EffectLog, NotDispatched
from perdure.tools.body_lifetime import BodyLifetime
from perdure.tools.step_outcomes import Parked
from perdure.tools.threads import Ended, NotStarted, Raised, Returned, ToolThreads

StepEffect = Literal["once", "idempotent", "pure"]

STEP_POLICY: dict[StepEffect, DispatchPolicy] = {
    "once": DispatchPolicy(effect="once"),
    "idempotent": DispatchPolicy(effect="idempotent"),
    "pure": DispatchPolicy(effect="pure"),
}

THREAD_PAUSE_S = 0.05
"""Delay in seconds before a retry of a step that had no thread or no lease."""


async def run(
    call: Callable[[], object], *, in_loop: bool, life: BodyLifetime, ledger: EffectLog, threads: ToolThreads
) -> Ended:
    """Call the function, await its result, and return the outcome.

    Raises:
        NotDispatched: the function was not called.
    """
    life.check_open()
    if not in_loop:
        ended = await _in_thread(call, life, ledger, threads)
        if not (isinstance(ended, Returned) and inspect.isawaitable(ended.value)):
            return ended
        begun: Awaitable[object] = ended.value
        call = lambda: begun  # noqa: E731 - started in the thread, continued here
    try:
        value = call()
        for _ in range(2):  # an awaited function may return an awaitable; bounded, because a pool may return itself
            if _is_awaitable(value):
                value = await value
        return Returned(value)
    except (asyncio.CancelledError, Parked):
        raise
    except BaseException as error:  # noqa: BLE001 - the caller judges the outcome
        return Raised(error)


def runs_in_loop(fn: Callable[..., object]) -> bool:
    """Return True if the function runs on the event loop. A fast path skips `inspect` for `async def`."""
    if type(fn) is FunctionType and fn.__code__.co_flags & inspect.CO_COROUTINE:
        return True
    return inspect.iscoroutinefunction(fn)


_PLAIN = frozenset({type(None), bool, int, float, str, list, dict, tuple})


def _is_awaitable(value: object) -> TypeGuard[Awaitable[object]]:
    """Return True if the value is awaitable. A fast path by type skips `inspect` for most values."""
    kind = type(value)
    return kind is CoroutineType or (kind not in _PLAIN and inspect.isawaitable(value))


async def _in_thread(call: Callable[[], object], life: BodyLifetime, ledger: EffectLog, threads: ToolThreads) -> Ended:
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
