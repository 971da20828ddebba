"""A lane: everything queued while statements ran goes into the next one.

Laws: jobs are taken in the order in which they were submitted. A job's future ends only after what it asked for is
durable or refused. A caller that is cancelled cancels nothing. Nothing is ever delayed to wait for company.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from perdure.store.answer import Answer

I = TypeVar("I")  # noqa: E741 - the item of a job
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class Job(Generic[I, R]):
    """Something to write, and the future that tells how it went."""

    item: I
    future: Answer[R]
    result: R | None = None
    error: Exception | None = None

    def settle(self) -> None:
        """End the future, unless its caller was cancelled."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.result)  # pyright: ignore[reportArgumentType] - an R once the work is done
        else:
            self.future.set_exception(self.error)
            self.future.exception()  # nobody has to await an append: not an "exception never retrieved"
        self.future.tell()


class Lane(Generic[I, R]):
    """Jobs of one kind, in batches, of which up to `abreast` are under way at a time.

    `commit` takes what it wants from the queue at the call, and answers it. It tells whether there was anything.
    """

    def __init__(self, commit: Callable[[deque[Job[I, R]]], Awaitable[bool]], *, abreast: int = 1) -> None:
        self._commit = commit
        self._abreast = abreast
        self._queue: deque[Job[I, R]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._beginning = False

    def submit(self, item: I) -> Answer[R]:
        """Take a job at the call."""
        job: Job[I, R] = Job(item, Answer(loop=asyncio.get_running_loop()))
        self._queue.append(job)
        if not self._beginning and len(self._tasks) < self._abreast:
            self._beginning = True
            self._tasks.add(asyncio.create_task(self._run(), name="perdure:lane"))
        return job.future

    async def _run(self) -> None:
        self._beginning = False
        try:
            while self._queue and await self._commit(self._queue):
                pass
        finally:
            self._tasks.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    async def finish(self) -> None:
        """Wait until everything that was submitted has been answered."""
        while self._tasks:
            await asyncio.wait(self._tasks)
