"""Bounded thread pool for sync tools, so that a stuck tool can starve neither asyncio nor other tools.

A thread cannot be stopped from outside. A stuck thread is abandoned: counted, reported and replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec


class Returned(msgspec.Struct, frozen=True):
    """The function returned a value."""

    value: object


class Raised(msgspec.Struct, frozen=True):
    """The function raised an exception of any kind."""

    error: BaseException


class NotStarted(msgspec.Struct, frozen=True):
    """The function was never called."""

    reason: str


Ended: TypeAlias = Returned | Raised | NotStarted


@dataclass(slots=True, eq=False)
class ThreadJob:
    """One function queued for or running in a thread. `future` belongs to the loop that submitted it."""

    call: Callable[[], object]
    future: asyncio.Future[Ended]
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    state: Literal["queued", "running", "abandoned", "done"] = "queued"
    thread: threading.Thread | None = None

    def run(self) -> Ended:
        """Call the function on this thread, in the context of the submitter."""
        try:
            return Returned(self.context.run(self.call))
        except BaseException as error:  # noqa: BLE001 - SystemExit of a tool must not end this thread
            return Raised(error)

    def deliver(self, ended: Ended) -> None:
        """Deliver the outcome to the loop, unless the loop is closed."""
        with contextlib.suppress(RuntimeError):
            self.future.get_loop().call_soon_threadsafe(self._settle, ended)

    def _settle(self, ended: Ended) -> None:
        if not self.future.done():
            self.future.set_result(ended)


class ToolThreads:
    """A bounded pool of daemon threads."""

    def __init__(self, max_workers: int = 32) -> None:
        self._max = max(1, max_workers)
        self._changed = threading.Condition()
        self._queue: deque[ThreadJob] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._closed = False
        self._started = 0
        self._abandoned_threads = 0
        self._abandoned_tasks: set[asyncio.Future[Ended]] = set()
        self._abandoned_tasks_ever = 0

    @property
    def abandoned(self) -> int:
        """Number of calls, of sync and async tools, left running because they ignored their cancellation."""
        return self._abandoned_threads + self._abandoned_tasks_ever

    @property
    def size(self) -> int:
        """Number of threads that serve calls, without abandoned ones."""
        return len(self._threads)

    def submit(self, call: Callable[[], object]) -> ThreadJob:
        """Queue a function; its outcome arrives in the job's future. Call from a running loop."""
        job = ThreadJob(call, asyncio.get_running_loop().create_future())
        with self._changed:
            if self._closed:
                job.state = "done"
                job.future.set_result(NotStarted("the runtime is closing"))
                return job
            self._queue.append(job)
            self._provide()
            if not self._threads:
                self._queue.remove(job)
                job.state = "done"
                job.future.set_result(NotStarted("no thread could be started"))
        return job

    def _provide(self) -> None:
        """Ensure that a thread serves the queue. Requires the lock."""
        self._changed.notify()
        if len(self._queue) <= self._idle or len(self._threads) >= self._max:
            return
        self._started += 1
        thread = threading.Thread(target=self._work, name=f"perdure-tool-{self._started}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no more threads; the existing ones will serve the queue
            return
        self._threads.add(thread)
        self._idle += 1

    def _work(self) -> None:
        me = threading.current_thread()
        while job := self._next(me):
            ended = job.run()
            replaced = self._finish(job)
            job.deliver(ended)
            del job, ended  # an idle thread must not keep a result alive
            if replaced:
                return

    def _next(self, me: threading.Thread) -> ThreadJob | None:
        with self._changed:
            while not self._queue and not self._closed:
                self._changed.wait()
            self._idle -= 1
            if not self._queue:
                self._threads.discard(me)
                return None
            job = self._queue.popleft()
            job.state = "running"
            job.thread = me
            return job

    def _finish(self, job: ThreadJob) -> bool:
        """Mark the thread as idle before its outcome is delivered, because the receiver may submit again at once."""
        with self._changed:
            replaced = job.state == "abandoned"
            job.state = "done"
            self._idle += not replaced
            return replaced

    def withdraw(self, job: ThreadJob, reason: str) -> bool:
        """Withdraw a job that has not started. Return False if it has; then it continues."""
        with self._changed:
            if job.state != "queued":
                return False
            self._queue.remove(job)
            job.state = "done"
        job.deliver(NotStarted(reason))
        return True

    def abandon(self, job: ThreadJob) -> bool:
        """Abandon a running job and replace its thread. Return False if it has just returned."""
        with self._changed:
            if job.state != "running":
                return False
            job.state = "abandoned"
            self._abandoned_threads += 1
            if job.thread:
                self._threads.discard(job.thread)
            if self._queue:
                self._provide()
            return True

    def abandon_task(self, task: asyncio.Future[Ended]) -> None:
        """Count an async call that ignores its cancellation, and keep it referenced until it ends."""
        self._abandoned_tasks_ever += 1
        self._abandoned_tasks.add(task)
        task.add_done_callback(self._abandoned_tasks.discard)

    def close(self, wait_ms: int = 0) -> int:
        """Refuse new jobs, drop queued ones, and wait for running ones. Return the number of threads still running."""
        with self._changed:
            self._closed = True
            dropped = list(self._queue)
            self._queue.clear()
            for job in dropped:
                job.state = "done"
            threads = list(self._threads)
            self._changed.notify_all()
        for job in dropped:
            job.deliver(NotStarted("the runtime is closing"))
        until = time.monotonic() + wait_ms / 1000
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        return sum(thread.is_alive() for thread in threads)
