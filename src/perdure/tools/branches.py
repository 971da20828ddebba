"""Concurrent branches of a body: the current branch, and its cancellation by another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Branch:
    """One of several concurrent parts of a body.

    A `lost` branch is cancelled: its next wait or unrecorded operation raises `CancelledError` once, so cleanup can
    run. A `held` branch performs nothing unrecorded.
    """

    above: Branch | None
    lost: bool = False
    stopped: bool = False
    held: asyncio.Event | None = None


_CURRENT: ContextVar[Branch | None] = ContextVar("perdure_branch", default=None)


def branch() -> Branch:
    """Create a branch below the current one."""
    return Branch(_CURRENT.get())


async def along(branch: Branch, work: Awaitable[T]) -> T:
    """Run work as a branch. Call in a separate task."""
    _CURRENT.set(branch)
    return await work


def beside_others() -> bool:
    """Return True if the current code runs in a branch."""
    return _CURRENT.get() is not None


async def while_held(recorded: Callable[[], bool]) -> None:
    """Wait until no enclosing branch is held, unless the next operation is `recorded`."""
    branch = _CURRENT.get()
    while branch is not None:
        if branch.held is not None and not recorded():
            await branch.held.wait()
        branch = branch.above


def check_not_lost() -> None:
    """Raise `CancelledError` once if an enclosing branch has lost."""
    branch = _CURRENT.get()
    while branch is not None:
        if branch.lost and not branch.stopped:
            branch.stopped = True
            raise asyncio.CancelledError("another branch finished first")
        branch = branch.above
