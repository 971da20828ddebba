"""The heartbeat of a worker: a thread that renews the lease for as long as the event loop of the worker answers.

A busy loop cannot renew the lease itself, and must not lose its sessions. A loop that never answers again must lose
them: past the limit the thread stops renewing, and other workers take the sessions over one lease later.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from contextlib import suppress

from perdure.errors import Error
from perdure.ids import WorkerId
from perdure.store.protocol import Store

log = logging.getLogger("perdure.runtime")

RENEWAL_SHARE = 0.3  # of a lease: two renewals may fail before it lapses
SLOW_S = 1.0
"""Time without an answer after which the stack of the loop is logged as a warning."""
STACK_FRAMES = 30


class Heartbeat:
    """The renewals of one worker's lease. Create it on the event loop that it watches."""

    def __init__(self, store: Store, worker: WorkerId, *, lease_s: float, stall_limit_s: float) -> None:
        self._store = store
        self._worker = worker
        self._every_s = lease_s * RENEWAL_SHARE
        self._limit_s = stall_limit_s
        self._nap_s = min(SLOW_S, stall_limit_s / 4)
        self._watched = asyncio.get_running_loop()
        self._watched_thread = threading.get_ident()
        self._ended = asyncio.Event()  # for the watched loop; the other events are for the thread's own
        self._own = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._answers = asyncio.Event()
        self._answers.set()
        self._answered = False
        # threat: S3
        self._thread = threading.Thread(target=self._run, name="perdure-heartbeat", daemon=True)

    def start(self) -> None:
        """Renew the lease from now on."""
        try:
            self._thread.start()
        except RuntimeError:  # the system has no more threads
            self._own.close()
            raise

    def stop(self, _: object = None) -> None:
        """Begin no more renewals. The call does not wait for the one in flight."""
        with suppress(RuntimeError):  # the thread has ended
            self._own.call_soon_threadsafe(self._stopping.set)

    async def close(self) -> None:
        """Stop, and wait until the thread has ended."""
        self.stop()
        if self._thread.is_alive():  # not in a forked child, which has no copy of the thread
            await self._ended.wait()
            self._thread.join()

    # --- on the thread

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._own) as runner:
                runner.run(self._beat())
        finally:
            with suppress(RuntimeError):  # the watched loop is closed
                self._watched.call_soon_threadsafe(self._ended.set)

    async def _beat(self) -> None:
        try:
            async with asyncio.TaskGroup() as beating:
                renewing, watching = beating.create_task(self._renew()), beating.create_task(self._watch())
                await self._stopping.wait()
                renewing.cancel()
                watching.cancel()
        finally:
            await self._store.stop_renewing()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self._answers.wait()
            try:
                await self._store.renew(self._worker)
            except Error as problem:  # the store is unavailable: the next renewal tries again
                log.warning("lease not renewed: %s", problem)
            except Exception:  # a fault of the store: without renewals the worker would lose everything
                log.exception("lease not renewed, retrying")

    async def _watch(self) -> None:
        while not self._watched.is_closed():
            self._answered = False
            with suppress(RuntimeError):  # closed at this instant
                self._watched.call_soon_threadsafe(self._answer)
            await self._wait_for_the_answer()
        self._stopping.set()  # nothing of this worker runs any more, although its process lives

    def _answer(self) -> None:
        """Answer, on the watched loop."""
        self._answered = True

    async def _wait_for_the_answer(self) -> None:
        """Wait until the watched loop answers or is closed. Past the limit, no lease is renewed meanwhile."""
        naps = 0
        while True:
            await asyncio.sleep(self._nap_s)
            if self._answered or self._watched.is_closed():
                break
            naps += 1  # naps, not time: a frozen process froze this thread as well, and its loop is not to blame
            silent_s = naps * self._nap_s
            if silent_s >= self._limit_s and self._answers.is_set():
                self._answers.clear()
                self._report(logging.CRITICAL, "event loop stalled, lease no longer renewed", silent_s)
            elif silent_s - self._nap_s < SLOW_S <= silent_s:
                self._report(logging.WARNING, "event loop blocked", silent_s)
        if not self._answers.is_set():
            log.warning("event loop answers again, lease renewed worker=%s", self._worker)
            self._answers.set()

    def _report(self, level: int, event: str, silent_s: float) -> None:
        """Log what the watched loop is doing: its task, whose name has the tool and the session, and its stack."""
        task = asyncio.current_task(self._watched)
        running = task.get_name() if task else "no task"
        frame = sys._current_frames().get(self._watched_thread)  # pyright: ignore[reportPrivateUsage] - its public name
        stack = "".join(traceback.format_stack(frame, STACK_FRAMES)) if frame else "the thread has ended"
        text, fields = "%s seconds=%g worker=%s running=%s", (event, silent_s, self._worker, running)
        if log.isEnabledFor(level):  # the stack of another thread, so not the one that `stack_info=True` would log
            log.handle(log.makeRecord(log.name, level, __file__, 0, text, fields, None, sinfo=stack.rstrip()))
