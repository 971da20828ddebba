"""How long one entry of a body counts: until its function comes back, or it is unwound, whichever is first.

A body may live inside another one: what ends that ends it too, and while it can only wait, so does a task of the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from perdure.errors import Code, Error
from perdure.tools import branches
from perdure.tools.endings import Parked


class Life:
    """The life of one entry. `running` is how much of it touches the world right now, `main` the task that entered it,
    and `broken` why it may not go on. One that `minds` counts whatever its own tasks do as running, but where
    such a task can only wait. Those `inside` it are the lives of bodies that its own steps run; `on_rest` is told when
    such a body can only wait.
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

    def __init__(self, called: str, changed: Callable[[], None], above: Life | None = None) -> None:
        self._above = above
        self._waiting = 0
        self._resting = False
        self.inside: set[Life] = set()
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
        """The function is about to be called, by this task."""
        try:
            self.main = asyncio.current_task()
        except RuntimeError:  # a plain function, in a thread: it can wait for nothing that we know of
            self.main = None
        if self._above is not None:
            self._above.inside.add(self)

    async def end(self) -> None:
        """The function came back: wait for steps that it left running, and refuse new ones."""
        self.close()
        await self._quiet.wait()

    def close(self) -> None:
        """It does no more, however it came to that."""
        if self._state == "open":
            self._state = "ended"
        if self._above is not None:
            self._above.inside.discard(self)
            self._tell_above()

    def unwind(self) -> None:
        """Nothing that this entry does counts any more."""
        self._state = "parked"

    @property
    def parked(self) -> bool:
        """Whether it was unwound: however it ends, that is not its call's outcome."""
        return self._state == "parked" or (self._above is not None and self._above.parked)

    @property
    def is_open(self) -> bool:
        """Whether its function has neither come back nor been unwound."""
        return self._state == "open" and (self._above is None or self._above.is_open)

    def check_open(self) -> None:
        """Raise unless it may do more."""
        if self._above is not None:
            self._above.check_open()
        if self._state == "parked":
            raise Parked
        if self.broken is not None:
            raise self.broken
        if self._state == "ended":
            raise Error(
                Code.DURABLE_EFFECT_STATE_POISONED,
                f"{self._called} is over; its context cannot be used any more",
                hint="await everything that uses ctx before the function returns",
            )

    def stop(self) -> None:
        """Somebody asked for its end: what it waits for now, or does next that is not recorded, raises
        `CancelledError`. Once: cleaning up is its own business. What runs is not interrupted."""
        self._stopping = True

    def check_wanted(self) -> None:
        """Raise, once, if its end was asked for or its branch has lost."""
        if self._stopping and not self._stopped:
            self._stopped = True
            raise asyncio.CancelledError("its end was asked for")
        branches.check_not_lost()

    def was_cancelled(self) -> None:
        """A wait of it was cancelled; if its end was asked for, it has been told by that."""
        self._stopped = self._stopping

    def began(self) -> None:
        """It touches the world."""
        self.running += 1
        self._quiet.clear()
        if self._above is not None:
            self._tell_above()

    def ended(self) -> None:
        """What it had begun is over."""
        self.running -= 1
        if not self.running:
            self._quiet.set()
        if self._above is not None:
            self._tell_above()
        self._changed()

    def rest(self) -> None:
        """One of its own tasks can only wait."""
        self._waiting += 1
        if self.minds:
            self.ended()
        self._tell_above()

    def rise(self) -> None:
        """That task can go on: told by whoever makes it so, or the body would seem to wait meanwhile."""
        self._waiting -= 1
        if self.minds:
            self.began()
        self._tell_above()

    def _tell_above(self) -> None:
        """The body around it counts the step that this one is as running, but while this one can only wait."""
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
