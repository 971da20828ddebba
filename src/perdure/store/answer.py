"""The answer to a write, for whoever can use it in the same turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Answer(asyncio.Future[T]):
    """A future with one listener that is told at once. A callback is told a turn of the loop later, which costs one.

    `alone`: nobody else is answered together with it, and no task is in the middle of anything.
    """

    then: Callable[[asyncio.Future[T]], None] | None = None
    alone: bool = False

    def tell(self) -> None:
        """The future has ended: call the listener, once. What goes wrong there is no business of other answers."""
        then, self.then = self.then, None  # whoever keeps the answer need not keep its listener
        if then is None:
            return
        try:
            then(self)
        except Exception as problem:  # noqa: BLE001 - as the event loop does with callbacks
            context = {"message": "the listener of an answer failed", "exception": problem, "future": self}
            self.get_loop().call_exception_handler(context)
