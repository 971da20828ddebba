"""The lifetime of one entry of a body: until its function returns or it is unwound, whichever is first.

Bodies nest: the end of the outer body ends the inner one. While the inner one can only wait, so can the task of the
outer one that runs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from perdure.errors import Code, Error
from perdure.tools import branches
from perdure.tools.step_outcomes import Parked


class BodyLifetime:
    """The lifetime of one entry of a body.

    `running` counts its operations in progress, `main` is the task that entered it, and `broken` the error that stops
    it. If `minds` is set, its own tasks count as running except while they can only wait. `inside` holds the lifetimes
    of nested bodies. `on_rest` is called when a nested body can only wait.
    """

    __slots__ = (
        "_above",
        "_called",
        "_changed",
        "_quiet",
        "_resting",
        "_state",
        "_stopped",
        "_stopping",
        "_waiting",
        "broken",
        "inside",
        "main",
        "minds",
        "on_rest",
        "running",
    )

    def __init__(self, called: str, changed: Callable[[], None], above: BodyLifetime | None = None) -> None:
        self._above = above
        self._waiting = 0
        self._resting = False
        self.inside: set[BodyLifetime] = set()
        self.on_rest: Callable[[], None] | None = None
        self.broken: Error | None = None
        self.running = 0
        self.minds = False
        self.main: asyncio.Task[object] | None = None
        self._called = called
        self._changed = changed
        self._state: Literal["open", "ended", "parked"] = "open"
        self._stopping = False
        self._stopped = False
        self._quiet = asyncio.Event()
        self._quiet.set()

    def enter(self) -> None:
        """Record that the current task is about to call the function."""
        try:
            self.main = asyncio.current_task()
        except RuntimeError:  # a plain function in a thread cannot wait through the context
            self.main = None
        if self._above is not None:
            self._above.inside.add(self)

    async def end(self) -> None:
        """Refuse new steps and wait for steps that the function left running."""
        self.close()
        await self._quiet.wait()

    def close(self) -> None:
        """Refuse further operations."""
        if self._state == "open":
            self._state = "ended"
        if self._above is not None:
            self._above.inside.discard(self)
            self._tell_above()

    def unwind(self) -> None:
        """Mark the entry as unwound. Its further actions do not count."""
        self._state = "parked"

    @property
    def parked(self) -> bool:
        """True if the entry was unwound. Its end is then not the outcome of the call."""
        return self._state == "parked" or (self._above is not None and self._above.parked)

    @property
    def is_open(self) -> bool:
        """True if the function has neither returned nor been unwound."""
        return self._state == "open" and (self._above is None or self._above.is_open)

    def check_open(self) -> None:
        """Raise unless further operations are allowed."""
        if self._above is not None:
            self._above.check_open()
        if self._state == "parked":
            raise Parked
        if self.broken is not None:
            raise self.broken
        if self._state == "ended":
            raise Error(
                Code.DURABLE_EFFECT_STATE_POISONED,
                f"{self._called} has ended; its context can no longer be used",
                hint="await everything that uses ctx before the function returns",
            )

    def stop(self) -> None:
        """Request the end of the entry: its current wait or next unrecorded operation raises `CancelledError`.

        Raised once, so cleanup can run. A running operation is not interrupted.
        """
        self._stopping = True

    def check_wanted(self) -> None:
        """Raise `CancelledError` once if the end was requested or the branch has lost."""
        if self._stopping and not self._stopped:
            self._stopped = True
            raise asyncio.CancelledError("the end of the body was requested")
        branches.check_not_lost()

    def was_cancelled(self) -> None:
        """Record a cancelled wait. If the end was requested, the request is delivered."""
        self._stopped = self._stopping

    def began(self) -> None:
        """Record the start of an operation."""
        self.running += 1
        self._quiet.clear()
        if self._above is not None:
            self._tell_above()

    def ended(self) -> None:
        """Record the end of an operation."""
        self.running -= 1
        if not self.running:
            self._quiet.set()
        if self._above is not None:
            self._tell_above()
        self._changed()

    def rest(self) -> None:
        """Record that one of the entry's own tasks can only wait."""
        self._waiting += 1
        if self.minds:
            self.ended()
        self._tell_above()

    def rise(self) -> None:
        """Record that a waiting task can continue. Called by the party that resumes it, so that the body never seems to
        wait in between."""
        self._waiting -= 1
        if self.minds:
            self.began()
        self._tell_above()

    def _tell_above(self) -> None:
        """Notify the outer body, which counts this body's step as running except while it can only wait."""
        resting = self._state == "open" and self._waiting > 0 and not self.running
        if self._above is None or resting == self._resting:
            return
        self._resting = resting
        if resting:
            if self.on_rest is not None:
                self.on_rest()
            self._above.rest()
            self._above.ended()
        else:
            self._above.began()
            self._above.rise()
