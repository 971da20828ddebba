"""A lane: everything queued while statements ran goes into the next one; who comes alone need not wait for company.

Laws: jobs are taken in the order in which they were submitted. A job's future ends only after what it asked for is
durable or refused. A caller that is cancelled cancels nothing. Nothing is ever delayed to wait for company.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass
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
    Jobs of one turn of the event loop go together; but once they keep coming one by one, each is on its way before
    `submit` returns, if `alone` knows a way for it: that answers the job, or tells that it must go as all others do.
    """

    def __init__(
        self,
        commit: Callable[[deque[Job[I, R]]], Awaitable[bool]],
        *,
        abreast: int = 1,
        alone: Callable[[Job[I, R]], Coroutine[Any, Any, bool] | None] = lambda _: None,
    ) -> None:
        self._commit = commit
        self._alone = alone
        self._abreast = abreast
        self._queue: deque[Job[I, R]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way = 0
        self._beginning = False
        self._solo = 0

    def submit(self, item: I) -> Answer[R]:
        """Take a job at the call."""
        job: Job[I, R] = Job(item, Answer(loop=asyncio.get_running_loop()))
        self._solo = 0 if self._queue or self._under_way else self._solo + 1
        if self._solo > SOLO and (going := self._alone(job)) is not None:
            self._under_way += 1
            self._start(_Begun(self._go_alone(job, going)))
            return job.future
        self._queue.append(job)
        if not self._beginning and self._under_way < self._abreast:
            self._beginning = True
            self._under_way += 1
            self._start(self._run())
        return job.future

    def _start(self, run: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(run, name="perdure:lane")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _go_alone(self, job: Job[I, R], going: Coroutine[Any, Any, bool]) -> None:
        if not await going:
            self._queue.appendleft(job)
        await self._run()

    async def _run(self) -> None:
        self._beginning = False
        try:
            while self._queue and await self._commit(self._queue):
                pass
        finally:
            self._under_way -= 1

    async def finish(self) -> None:
        """Wait until everything that was submitted has been answered."""
        while self._tasks:
            await asyncio.wait(self._tasks)


class _Begun(Coroutine[Any, Any, None]):
    """A coroutine whose first part, up to where it waits for the server, is done here and now, in its maker's task.

    The task that gets it begins a turn of the event loop later, while the server works.
    """

    def __init__(self, run: Coroutine[Any, Any, None]) -> None:
        self._run = run
        self._over = False
        self._waits_for: object = None
        try:
            self._waits_for = run.send(None)
        except StopIteration:
            self._over = True

    def send(self, value: object) -> object:
        """The first time: what it waits for already."""
        if self._over:
            raise StopIteration
        waits_for, self._waits_for = self._waits_for, None
        return self._run.send(value) if waits_for is None else waits_for

    def throw(self, *problem: Any) -> object:  # noqa: ANN401 - in one of the forms that coroutines take
        """As the coroutine does."""
        return self._run.throw(*problem)

    def close(self) -> None:
        """As the coroutine does."""
        self._run.close()

    def __await__(self) -> Generator[Any, Any, None]:
        """Only a task has it, and tasks send."""
        raise NotImplementedError
