"""The worker: finds streams with work, claims them, serves them. Recovery is nothing else.

A worker looks for work when it is told of some, when another process has committed, and four times a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import suppress

from perdure.errors import Code, Error
from perdure.ids import StreamId
from perdure.runtime.orphans import Orphans
from perdure.runtime.resident import Resident
from perdure.runtime.shared import Shared
from perdure.store.protocol import Claim

log = logging.getLogger("perdure.runtime")

SCAN_S = 0.25
RENEW_S = 3.0
MAX_SESSIONS = 256
MAX_IDLE = 128
_LAST_BACKOFF_S = 30.0


class Worker:
    """Serves the sessions of one runtime."""

    def __init__(self, shared: Shared, *, renew_s: float = RENEW_S) -> None:
        self._shared = shared
        self._renew_s = renew_s
        self.orphans = Orphans(shared.store, shared.clock)
        self.serving: dict[StreamId, asyncio.Task[None]] = {}
        self.residents: dict[StreamId, Resident] = {}
        self._claims: dict[StreamId, Claim] = {}
        self._failures: dict[StreamId, int] = {}
        self._not_before: dict[StreamId, float] = {}
        self._again: set[StreamId] = set()
        self._unserved: set[StreamId] = set()
        self._changed = asyncio.Event()
        self.stopping = False

    # --- finding work

    async def run(self) -> None:
        """Look for work until stopped."""
        loop = asyncio.get_running_loop()
        next_renewal = loop.time()
        while not self.stopping:
            if loop.time() >= next_renewal:
                next_renewal = loop.time() + self._renew_s
                await self._quietly(self._shared.store.renew(self._shared.worker))
            changed = self._changed.is_set()
            self._changed.clear()
            await self._quietly(self._scan(changed=changed))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), min(SCAN_S, self._renew_s))

    def changed(self) -> None:
        """Another process has committed something: look at once."""
        self._changed.set()

    async def _scan(self, *, changed: bool) -> None:
        shared = self._shared
        free = MAX_SESSIONS - len(self.serving)
        now = shared.clock.wall_ms()
        for stream in await shared.store.claimable(shared.worker, limit=max(0, free) + len(self._unserved), now=now):
            self.poke(stream)
        if changed:
            for resident in tuple(self.residents.values()):
                await resident.look()

    # --- serving

    def poke(self, stream: StreamId, claim: Claim | None = None) -> None:
        """There may be work on this stream: serve it, or serve it once more."""
        if claim:
            self._claims[stream] = claim
        loop = asyncio.get_running_loop()
        if self.stopping or stream in self._unserved or loop.time() < self._not_before.get(stream, 0.0):
            return
        if stream in self.serving:
            self._again.add(stream)
            return
        task = asyncio.create_task(self._serve(stream), name=f"perdure:serve:{stream}")
        self.serving[stream] = task
        task.add_done_callback(lambda _: self._served(stream))  # also when it is cancelled before it begins

    async def _serve(self, stream: StreamId) -> None:
        resident: Resident | None = None
        try:
            resident = self.residents.get(stream) or await self._claim(stream)
            if resident is not None:
                await resident.serve()
                self._failures.pop(stream, None)
        except Error as problem:
            self._give_up(stream, resident, problem)
        except Exception:
            log.exception("a session could not be served; it will be tried again", extra={"stream": stream})
            self._give_up(stream, resident, None)

    def _served(self, stream: StreamId) -> None:
        del self.serving[stream]
        if stream in self._again:
            self._again.discard(stream)
            self.poke(stream)
        self._evict()

    async def _claim(self, stream: StreamId) -> Resident | None:
        claim = self._claims.pop(stream, None) or await self._shared.store.claim(stream, self._shared.worker)
        if not isinstance(claim, Claim):
            return None
        resident = self.residents[stream] = Resident(self._shared, claim)
        return resident

    def _give_up(self, stream: StreamId, resident: Resident | None, problem: Error | None) -> None:
        """Drop what we hold in memory; the log knows everything that counts."""
        self.residents.pop(stream, None)
        if resident and resident.driver:
            self.orphans.adopt(stream, resident.driver)
        if problem is not None and problem.code is Code.AGENT_UNKNOWN:
            self._unserved.add(stream)
            log.warning("%s", problem, extra={"stream": stream})
        elif problem is not None and problem.code in (Code.GATE_CLOSED, Code.LEASE_LOST):
            self._again.add(stream)
        else:
            self._try_later(stream, problem)

    def _try_later(self, stream: StreamId, problem: Error | None) -> None:
        failures = self._failures[stream] = self._failures.get(stream, 0) + 1
        delay = min(0.05 * 2**failures, _LAST_BACKOFF_S)
        loop = asyncio.get_running_loop()
        self._not_before[stream] = loop.time() + delay
        if problem is not None:
            log.warning("%s; trying again in %.1f s", problem, delay, extra={"stream": stream})
        loop.call_later(delay, self._retry, stream)

    def _retry(self, stream: StreamId) -> None:
        self._not_before.pop(stream, None)
        self.poke(stream)

    def forget(self, stream: StreamId) -> None:
        """The stream is gone: stop serving it."""
        self.residents.pop(stream, None)
        if task := self.serving.get(stream):
            task.cancel()

    async def look(self, stream: StreamId) -> None:
        """Something was written into a stream by others: the running turn should know."""
        if resident := self.residents.get(stream):
            await resident.look()

    def _evict(self) -> None:
        """Idle sessions beyond the limit are forgotten, oldest first; the stream stays ours until somebody asks."""
        idle = [stream for stream in self.residents if stream not in self.serving]
        for stream in idle[: max(0, len(idle) - MAX_IDLE)]:
            del self.residents[stream]

    async def _quietly(self, work: Awaitable[None]) -> None:
        try:
            await work
        except Error as problem:
            log.warning("%s", problem)

    # --- stopping

    async def drain(self, timeout_s: float) -> None:
        """Take no more work, let turns finish for a while, then hand over what is left."""
        self.stopping = True
        self._changed.set()
        if self.serving:
            await asyncio.wait(tuple(self.serving.values()), timeout=timeout_s)
        for stream, task in tuple(self.serving.items()):
            task.cancel()
            await asyncio.wait([task])
            if resident := self.residents.get(stream):
                await self._quietly(resident.hand_over())
        await self.orphans.settle(timeout_s)
        self.residents.clear()
