"""A lane: everything queued while statements ran goes into the next one; who comes alone need not wait for company.

Laws: jobs are taken in the order in which they were submitted. A job's future ends only after what it asked for is
durable or refused. A caller that is cancelled cancels nothing. Nothing is ever delayed to wait for company.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from perdure.store.answer import Answer

I = TypeVar("I")  # noqa: E741 - the item of a job
R = TypeVar("R")

SOLO = 3
"""After so many jobs in a row that had no company, the next one is not expected to have any."""


@dataclass(slots=True, eq=False)
class Job(Generic[I, R]):
    """Something to write, and the future that tells how it went."""

    item: I
    future: Answer[R]
    result: R | None = None
    error: Exception | None = None

    def settle(self, *, alone: bool = False) -> None:
        """End the future, unless its caller was cancelled. `alone`: nobody else is answered with it."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.result)  # pyright: ignore[reportArgumentType] - an R once the work is done
        else:
            self.future.set_exception(self.error)
            self.future.exception()  # nobody has to await an append: not an "exception never retrieved"
        self.future.alone = alone
        self.future.tell()


class Lane(Generic[I, R]):
    """Jobs of one kind, in batches, of which up to `abreast` are under way at a time.

    `commit` takes what it wants from the queue at the call, and answers it. It tells whether there was anything.
    Jobs of one turn of the event loop go together; but once they keep coming one by one, each is on its way before
    `submit` returns, if there is a `shortcut` for it: that gives the job its result, or tells that it has none and must
    go as all others do.
    """

    def __init__(
        self,
        commit: Callable[[deque[Job[I, R]]], Awaitable[bool]],
        *,
        abreast: int = 1,
        shortcut: Callable[[Job[I, R]], Coroutine[Any, Any, bool] | None] = lambda _: None,
    ) -> None:
        self._commit = commit
        self._shortcut = shortcut
        self._abreast = abreast
        self._queue: deque[Job[I, R]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way = 0
        self._beginning: Coroutine[Any, Any, None] | None = None
        self._solo = 0
        self._over: asyncio.Future[None] | None = None

    def submit(self, item: I) -> Answer[R]:
        """Take a job at the call."""
        job: Job[I, R] = Job(item, Answer(loop=asyncio.get_running_loop()))
        self._solo = 0 if self._queue or self._under_way else self._solo + 1
        if self._solo > SOLO and (way := self._shortcut(job)) is not None:
            self._under_way += 1
            _drive(way, partial(self._went, job))
        else:
            self._queue.append(job)
            self._begin()
        return job.future

    def _begin(self) -> None:
        if self._queue and self._beginning is None and self._under_way < self._abreast:
            self._beginning = run = self._run()
            self._under_way += 1
            task = asyncio.create_task(run, name="perdure:lane")
            self._tasks.add(task)
            task.add_done_callback(partial(self._ran, run))

    def _ran(self, run: Coroutine[Any, Any, None], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if run is self._beginning:  # it was cancelled before it began
            self._beginning = None
            self._leave()
            self._begin()

    async def _run(self) -> None:
        self._beginning = None
        try:
            while self._queue and await self._commit(self._queue):
                pass
        finally:
            self._leave()

    def _went(self, job: Job[I, R], done: bool) -> None:
        """It went alone. Who waits for it is told last, and may go on at once: with the next job."""
        self._leave()
        if not done:
            self._queue.appendleft(job)
        self._begin()
        if done:
            job.settle(alone=True)

    def _leave(self) -> None:
        self._under_way -= 1
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    async def finish(self) -> None:
        """Wait until everything that was submitted has been answered."""
        while self._under_way:
            if self._over is None or self._over.done():
                self._over = asyncio.get_running_loop().create_future()
            await asyncio.wait({self._over})  # which others may wait for, too


def _drive(run: Coroutine[Any, Any, R], then: Callable[[R], None]) -> None:
    """Begin a coroutine here and now, and tell what it returns. It waits for the server, mostly once and for nothing
    else: a task would cost more than all it does besides."""
    try:
        waits_for: asyncio.Future[object] | None = run.send(None)
    except StopIteration as end:
        result: R = end.value
    else:
        if waits_for is None:
            asyncio.get_running_loop().call_soon(_drive, run, then)
        else:
            waits_for.add_done_callback(lambda _: _drive(run, then))
        return
    then(result)  # not while the end is handled: other people's code may run there, and would have it as its context
