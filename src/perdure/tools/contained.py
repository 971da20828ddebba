"""Other people's code, run so that nothing it raises gets past: how it ended is a value.

A SystemExit that leaves a task ends the whole event loop, and a CancelledError that leaks out of somebody's library
looks like our own cancellation. Here neither does.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable

from perdure.tools.threads import Ended, Raised, Returned

GRACE_MS = 50


async def drive(call: Callable[[], object]) -> Ended:
    """Call it, await what it returns, and say how that ended. Raises nothing; run it as a task of its own."""
    try:
        value = call()
        return Returned(await value if inspect.isawaitable(value) else value)
    except BaseException as error:  # noqa: BLE001 - see above; how it ended is judged by the caller
        return Raised(error)


def end_of(future: asyncio.Future[Ended]) -> Ended:
    """How a driven call ended that is over."""
    # Cancelled before its first step, by somebody else. Not "not started": of a wrapper, the first half did run.
    return Raised(asyncio.CancelledError()) if future.cancelled() else future.result()


async def contained(call: Callable[[], object], *, name: str) -> Ended:
    """Run async code in a task of its own, which is cancelled with its caller and gets a grace to clean up.

    A CancelledError that is raised from here is the caller's own.
    """
    task = asyncio.create_task(drive(call), name=name)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task}, timeout=GRACE_MS / 1000)
        raise
    return end_of(task)
