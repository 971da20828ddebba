"""Threads for sync tools: our own and bounded, so that a stuck tool can starve neither asyncio nor its siblings.

A thread cannot be stopped from outside. One that does not come back is abandoned: counted, reported, and its place
given to a new one.
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
    """The function came back with a value."""

    value: object


class Raised(msgspec.Struct, frozen=True):
    """The function came back with an exception, of whatever kind."""

    error: BaseException


class NotStarted(msgspec.Struct, frozen=True):
    """The function was never called."""

    reason: str


Ended: TypeAlias = Returned | Raised | NotStarted


@dataclass(slots=True, eq=False)
class Job:
    """One function on its way through a thread. `future` belongs to the loop that submitted it."""

    call: Callable[[], object]
    future: asyncio.Future[Ended]
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    state: Literal["queued", "running", "abandoned", "done"] = "queued"
    thread: threading.Thread | None = None

    def run(self) -> Ended:
        """Call the function, on this thread, in the context of whoever submitted it."""
        try:
            return Returned(self.context.run(self.call))
        except BaseException as error:  # noqa: BLE001 - SystemExit of a tool must not end our thread
            return Raised(error)

    def deliver(self, ended: Ended) -> None:
        """Hand the end to the loop, if there still is one."""
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
        self._queue: deque[Job] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._closed = False
        self._started = 0
        self._abandoned_threads = 0
        self._abandoned_tasks: set[asyncio.Future[Ended]] = set()
        self._abandoned_tasks_ever = 0

    @property
    def abandoned(self) -> int:
        """How many calls, of sync and async tools, were left running because they ignored their cancellation."""
        return self._abandoned_threads + self._abandoned_tasks_ever

    @property
    def size(self) -> int:
        """How many threads serve calls now, without the abandoned."""
        return len(self._threads)

    def submit(self, call: Callable[[], object]) -> Job:
        """Queue a function; its end arrives in the job's future. Call from a running loop."""
        job = Job(call, asyncio.get_running_loop().create_future())
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
        """Make sure that somebody takes the queue; with the lock held."""
        self._changed.notify()
        if len(self._queue) <= self._idle or len(self._threads) >= self._max:
            return
        self._started += 1
        thread = threading.Thread(target=self._work, name=f"perdure-tool-{self._started}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system is out of threads; those we have will come to it
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

    def _next(self, me: threading.Thread) -> Job | None:
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

    def _finish(self, job: Job) -> bool:
        """Free again, before anybody hears of the end: whoever does may submit the next job at once."""
        with self._changed:
            replaced = job.state == "abandoned"
            job.state = "done"
            self._idle += not replaced
            return replaced

    def withdraw(self, job: Job, reason: str) -> bool:
        """Take back a job that has not started. False if it has: then it runs on."""
        with self._changed:
            if job.state != "queued":
                return False
            self._queue.remove(job)
            job.state = "done"
        job.deliver(NotStarted(reason))
        return True

    def abandon(self, job: Job) -> bool:
        """Give up on a running job and fill its place. False if it has just come back."""
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
        """Accept nothing more, drop what has not started, wait for what has. Returns how many threads still run."""
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
