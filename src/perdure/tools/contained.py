"""Containment of user code: the outcome is a value, and no exception escapes.

A SystemExit that leaves a task would end the event loop. A CancelledError that leaks from a library would look like
cancellation by the runtime.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable

from perdure.tools.threads import Ended, Raised, Returned

GRACE_MS = 50


async def drive(call: Callable[[], object]) -> Ended:
    """Call `call`, await its result, and return the outcome. Never raises; run it as a separate task."""
    try:
        value = call()
        return Returned(await value if inspect.isawaitable(value) else value)
    except BaseException as error:  # noqa: BLE001 - see above; the caller judges the outcome
        return Raised(error)


def end_of(future: asyncio.Future[Ended]) -> Ended:
    """Return the outcome of a finished driven call."""
    # Cancelled before its first step. Not "not started": the first half of a wrapper did run.
    return Raised(asyncio.CancelledError()) if future.cancelled() else future.result()


async def contained(call: Callable[[], object], *, name: str) -> Ended:
    """Run async code in a separate task, which is cancelled with its caller and gets a grace period for cleanup.

    A CancelledError raised from here is the caller's own.
    """
    task = asyncio.create_task(drive(call), name=name)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task}, timeout=GRACE_MS / 1000)
        raise
    return end_of(task)
