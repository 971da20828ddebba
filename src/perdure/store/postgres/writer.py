"""A lane: a write queue with group commit. Jobs queued while statements run go into the next statement.

Laws: jobs are taken in submission order. A job's future ends only after the job is durable or refused. A cancelled
caller cancels no job. No job is delayed to fill a batch.
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
"""Lone jobs in a row before the next one takes the shortcut."""


@dataclass(slots=True, eq=False)
class PgWrite(Generic[I, R]):
    """An item to write, and the future of its result."""

    item: I
    future: Answer[R]
    result: R | None = None
    error: Exception | None = None

    def settle(self, *, alone: bool = False) -> None:
        """Complete the future, unless its caller was cancelled. `alone`: no other future is completed with it."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.result)  # pyright: ignore[reportArgumentType] - an R once the work is done
        else:
            self.future.set_exception(self.error)
            self.future.exception()  # mark as retrieved: callers need not await an append
        self.future.alone = alone
        self.future.tell()


class Lane(Generic[I, R]):
    """A queue of jobs of one kind, written in batches; up to `abreast` batches are in flight.

    `commit` takes jobs from the queue, completes them, and returns whether it took any. Jobs of one turn of the event
    loop share a batch. After several lone jobs in a row, a job is sent before `submit` returns, if `shortcut` returns
    a coroutine for it. The coroutine sets the result of the job, or returns False: then the job is queued.
    """

    def __init__(
        self,
        commit: Callable[[deque[PgWrite[I, R]]], Awaitable[bool]],
        *,
        abreast: int = 1,
        shortcut: Callable[[PgWrite[I, R]], Coroutine[Any, Any, bool] | None] = lambda _: None,
    ) -> None:
        self._commit = commit
        self._shortcut = shortcut
        self._abreast = abreast
        self._queue: deque[PgWrite[I, R]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way = 0
        self._beginning: Coroutine[Any, Any, None] | None = None
        self._solo = 0
        self._over: asyncio.Future[None] | None = None

    def submit(self, item: I) -> Answer[R]:
        """Submit an item at the call; return the future of its result."""
        job: PgWrite[I, R] = PgWrite(item, Answer(loop=asyncio.get_running_loop()))
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
        if run is self._beginning:  # the task was cancelled before its first step
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

    def _went(self, job: PgWrite[I, R], done: bool) -> None:
        """Finish a job of the shortcut. The future ends last, because the caller may submit the next job at once."""
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
        """Wait until all submitted jobs are completed."""
        while self._under_way:
            if self._over is None or self._over.done():
                self._over = asyncio.get_running_loop().create_future()
            await asyncio.wait({self._over})  # shared with concurrent calls


def _drive(run: Coroutine[Any, Any, R], then: Callable[[R], None]) -> None:
    """Start a coroutine at once, without a task, and pass its result to `then`.

    The coroutine usually waits for the server once; a task would cost more than its work."""
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
    then(
        result
    )  # outside the except block: user code may run here, and StopIteration would be the context of its exceptions
