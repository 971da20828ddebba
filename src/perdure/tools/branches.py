"""Things that a body does beside others: which of them we are in, and whether it has lost to another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Branch:
    """Something that a body does beside other things. Once it has `lost`, it gets no further: whatever it waits for, or
    does next that is not recorded, raises `CancelledError`. Once: cleaning up is its own business. While it is `held`,
    it does nothing that is not recorded."""

    above: Branch | None
    lost: bool = False
    stopped: bool = False
    held: asyncio.Event | None = None


_CURRENT: ContextVar[Branch | None] = ContextVar("perdure_branch", default=None)


def branch() -> Branch:
    """One more thing that is done beside others, below what runs now."""
    return Branch(_CURRENT.get())


async def along(branch: Branch, work: Awaitable[T]) -> T:
    """Do something as a branch; in a task of its own."""
    _CURRENT.set(branch)
    return await work


def beside_others() -> bool:
    """Whether what runs now is one of several things."""
    return _CURRENT.get() is not None


async def while_held(recorded: Callable[[], bool]) -> None:
    """Wait until nothing holds what runs now, unless what it does next is `recorded`."""
    branch = _CURRENT.get()
    while branch is not None:
        if branch.held is not None and not recorded():
            await branch.held.wait()
        branch = branch.above


def check_not_lost() -> None:
    """Stop what runs now, once, if something beside it was first."""
    branch = _CURRENT.get()
    while branch is not None:
        if branch.lost and not branch.stopped:
            branch.stopped = True
            raise asyncio.CancelledError("something beside it was first")
        branch = branch.above
