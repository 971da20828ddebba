"""The future of a write, with a callback that runs in the same turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Answer(asyncio.Future[T]):
    """A future with one immediate callback. A normal callback runs a turn of the event loop later.

    `alone`: no other future is completed with this one, and no task is running at that time.
    """

    then: Callable[[asyncio.Future[T]], None] | None = None
    alone: bool = False

    def tell(self) -> None:
        """Run the callback of a completed future, once. An exception in it does not affect other futures."""
        then, self.then = self.then, None  # a kept future need not keep its callback alive
        if then is None:
            return
        try:
            then(self)
        except Exception as problem:  # noqa: BLE001 - as the event loop does with callbacks
            context = {"message": "the callback of a commit future failed", "exception": problem, "future": self}
            self.get_loop().call_exception_handler(context)
