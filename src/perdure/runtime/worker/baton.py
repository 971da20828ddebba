"""A future whose waiting task goes on at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import TypeVar

T = TypeVar("T")


class Baton(asyncio.Future[T]):
    """What one task waits for. Whoever passes it on runs that task until it waits again, which is a turn of the event
    loop less than to wake it. Not from within another task: then it is woken as usual."""

    _waits: tuple[Callable[[asyncio.Future[T]], object], Context] | None = None

    def add_done_callback(self, fn: Callable[[asyncio.Future[T]], object], *, context: Context | None = None) -> None:
        """As any future; and remember who comes first. A task brings its context."""
        super().add_done_callback(fn, context=context)
        if self._waits is None and context is not None:
            self._waits = fn, context

    def pass_on(self, result: T) -> None:
        """Let whoever waits go on."""
        if self._waits is None or asyncio.current_task() is not None:
            self.set_result(result)
            return
        go_on, context = self._waits
        self.remove_done_callback(go_on)
        self.set_result(result)
        context.run(go_on, self)
