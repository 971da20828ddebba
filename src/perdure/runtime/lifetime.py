"""The lifetime of a runtime: opening, watching for commits of other processes, closing."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Literal

from perdure.errors import Code, Error
from perdure.ids import VERSION
from perdure.models.providers import clients
from perdure.observe.head_poller import HeadPoller
from perdure.runtime.agent import setup_of
from perdure.runtime.model_survey import redirected
from perdure.runtime.shared import Compositions, Shared
from perdure.runtime.tuning import RuntimeOptions
from perdure.runtime.worker.heartbeat import Heartbeat
from perdure.runtime.worker.lounge import Lounge
from perdure.runtime.worker.permits import Permits
from perdure.runtime.worker.worker import Worker
from perdure.store.digest_chain import DigestChain
from perdure.tools.execute import ToolThreads

if TYPE_CHECKING:
    from perdure.runtime.core import RuntimeCore

log = logging.getLogger("perdure.runtime")

WATCH_S = 0.025
QUIET_WATCH_S = 0.1
QUIET_AFTER_S = 1.0
"""Poll intervals for commits of other processes. The longer one applies while no observer waits here and nothing
happens: waking up costs more than the poll.
"""
RESPITE = 4
MAX_RESPITE_S = 0.25
"""Pause after a poll, as a multiple of its duration, and its maximum. The pause keeps many observers from loading the
store; the maximum limits the delay after a slow or unavailable store.
"""
SAFETY_LOOK_S = 2.0
IDLE_THREADS_MS = 20  # long enough for an idle thread to notice the shutdown and exit


class Lifetime:
    """The lifetime of one runtime: its tasks, threads and connections."""

    def __init__(self, runtime: RuntimeCore, tuning: RuntimeOptions, deps: object) -> None:
        self._rt = runtime
        self._tuning = tuning
        self._deps = deps
        self._threads = ToolThreads()
        self._connected = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._pid = 0
        self.worker: Worker | None = None
        self._heartbeat: Heartbeat | None = None
        self._state: Literal["new", "open", "draining", "closed"] = "new"

    @property
    def ready(self) -> bool:
        """True if the runtime is open, not draining, and the lease of its worker is live."""
        rt = self._rt
        return self._state == "open" and self.worker is not None and rt.store.lease_live(rt.worker_id)

    def check_usable(self) -> None:
        """Raise if the runtime is closed, not open yet, or inherited through a fork."""
        if self._pid and os.getpid() != self._pid:
            raise Error(
                Code.RUNTIME_FORKED,
                "this runtime belongs to another operating system process",
                because="the process was forked after the runtime was opened",
                hint="open a separate Runtime in each process",
            )
        if self._state not in ("open", "draining"):
            raise Error(
                Code.RUNTIME_CLOSED,
                f"the runtime is {'closed' if self._state == 'closed' else 'not open yet'}",
                hint="use it inside `async with Runtime(...) as rt:`",
            )

    # --- opening

    async def open(self) -> None:
        """Open the store, connect to providers, start the worker and watch for commits."""
        rt = self._rt
        if self._state != "new":
            raise Error(Code.RUNTIME_CLOSED, "a runtime can be opened only once", hint="create a new Runtime")
        if rt.payload_codec is None:
            rt.store.use_chain(DigestChain())  # a store object that a runtime with a codec used before
        await rt.store.open()
        self._pid = os.getpid()
        self._state = "open"
        try:
            await rt.files.open(rt.tenant)
            version = await rt.store.version()
            if rt.wants_worker:
                await self._connect()
                await self._tell_addresses()
                await self._start_worker()
        except BaseException:
            await self._connected.aclose()
            await rt.store.close()
            raise
        clients.hold()
        self._tasks.append(asyncio.create_task(self._watch(version), name="perdure:watch"))

    async def _connect(self) -> None:
        """Connect the tool providers before the worker claims work."""
        toolboxes = [setup_of(agent).toolbox for agent in self._rt.agents.values()]
        for one in {id(one): one for toolbox in toolboxes for one in toolbox.connects}.values():
            await one.connect()
            self._connected.push_async_callback(one.disconnect)

    async def _tell_addresses(self) -> None:
        """Log the providers whose address is not their own: keys and conversations go there."""
        for line in await redirected(self._rt.models, self._rt.agents):
            log.warning("model address configured %s", line)

    async def _start_worker(self) -> None:
        rt, work = self._rt, self._rt.work
        await rt.store.register(
            rt.worker_id,
            pid=self._pid,
            version=VERSION,
            now=rt.clock.wall_ms(),
            host=platform.node(),
            concurrency=work.concurrency,
            queues=work.served,
        )
        worker = self.worker = Worker(self._shared())
        rt.background.has_capacity = worker.stream_pool.has_capacity
        heartbeat = self._heartbeat = Heartbeat(
            rt.store, rt.worker_id, lease_s=self._tuning.lease_s, stall_limit_s=self._tuning.loop_stall_limit_s
        )
        heartbeat.start()
        polling = asyncio.create_task(worker.run(), name="perdure:worker")
        polling.add_done_callback(heartbeat.stop)  # a worker that polls no more must not look alive
        self._tasks.append(polling)

    def _shared(self) -> Shared:
        rt, tuning = self._rt, self._tuning
        return Shared(
            host=rt,
            store=rt.store,
            clock=rt.clock,
            worker=rt.worker_id,
            tenant=rt.tenant,
            agents=rt.agents,
            processes=rt.definitions,
            deps=self._deps,
            hub=rt.hub,
            texts=rt.texts,
            threads=self._threads,
            results=rt.results,
            compositions=Compositions(rt.store),
            secrets=rt.secrets,
            seen_secrets=rt.seen_secrets,
            lounge=Lounge(tuning.max_waiting, tuning.idle_timeout_s),
            work=rt.work,
            permits=Permits(rt.store, rt.clock, rt.worker_id, rt.work),
            files=rt.files,
            spawn_limits=tuning.subagents,
            queues=rt.queues,
            task_retention_ms=int(tuning.task_retention_s * 1000),
            trigger_retention_ms=int(tuning.trigger_retention_s * 1000),
        )

    async def _watch(self, last: int) -> None:
        """Poll for commits of other processes. The heads of watched streams are also read every 2 s in any case,
        because a writer may have died before its notification.
        """
        rt, loop, plans = self._rt, asyncio.get_running_loop(), 0
        movements, respite_s = HeadPoller(rt.store, rt.hub), 0.0
        quiet_from, look_by = loop.time() + QUIET_AFTER_S, loop.time() + SAFETY_LOOK_S
        while True:
            quiet = loop.time() > quiet_from and not rt.hub.watched_at_all
            await asyncio.sleep(QUIET_WATCH_S if quiet else max(WATCH_S, respite_s))
            began = loop.time()
            try:
                version = await rt.store.version()
                if version != last and self.worker:
                    self.worker.changed()
                if version != last or began > look_by:
                    await movements.poll()
                    look_by = began + SAFETY_LOOK_S
            except Error:
                continue
            except Exception:  # an ended watch would miss all later commits
                log.exception("poll for other commits failed; retrying")
                continue
            respite_s = min(MAX_RESPITE_S, RESPITE * (loop.time() - began))
            if version != last or rt.store.counters.plans != plans:
                quiet_from = loop.time() + QUIET_AFTER_S
            plans = rt.store.counters.plans
            last = version

    # --- closing

    async def close(self) -> None:
        """Drain and release everything, last opened first. Each step runs even if another one fails."""
        rt = self._rt
        async with AsyncExitStack() as ending:
            ending.push_async_callback(rt.store.close)
            ending.push_async_callback(rt.audit_log.close)
            ending.push_async_callback(rt.texts.close)
            ending.push_async_callback(rt.queues.close)
            ending.push_async_callback(clients.release)
            ending.push_async_callback(self._connected.aclose)
            ending.callback(self._threads.close)
            ending.callback(rt.command_code.close)
            if self.worker:
                ending.push_async_callback(self._retire, self.worker)
            if self._heartbeat:
                ending.push_async_callback(self._heartbeat.close)
            ending.push_async_callback(self._stop_tasks)
            try:
                await self._drain(self._tuning.drain_s, retiring=True)
            finally:
                self._state = "closed"

    async def drain(self, timeout_s: float | None) -> None:
        """Claim no more work, and hand over the work that does not end within the timeout."""
        await self._drain(self._tuning.drain_s if timeout_s is None else timeout_s, retiring=False)

    async def _drain(self, timeout_s: float, *, retiring: bool) -> None:
        if self.worker and self._state == "open":
            self._state = "draining"
            await self.worker.drain(timeout_s, retiring=retiring)

    async def _retire(self, worker: Worker) -> None:
        """Deregister the worker, and record whether interrupted calls or threads may still act while this process
        lives.
        """
        loose = worker.abandoned_calls or self._threads.close(IDLE_THREADS_MS) > 0
        await self._rt.store.deregister(self._rt.worker_id, abandoned_calls=loose)

    async def _stop_tasks(self) -> None:
        self._rt.hub.close()
        if self.worker:
            self.worker.stream_pool.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
