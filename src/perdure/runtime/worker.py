"""The worker: finds streams with work and serves them. Recovery is nothing else.

It looks when it is told of work, when another process has committed something, and four times a second.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from perdure.errors import Error
from perdure.ids import StreamId
from perdure.runtime.serving import Serving
from perdure.runtime.shared import Shared
from perdure.store.protocol import Claim

log = logging.getLogger("perdure.runtime")

SCAN_S = 0.25


class Worker:
    """Serves the sessions of one runtime."""

    def __init__(self, shared: Shared, *, renew_s: float) -> None:
        self._shared = shared
        self._renew_s = renew_s
        self._changed = asyncio.Event()
        self._stopped = False
        self.serving = Serving(shared)

    async def run(self) -> None:
        """Keep the lease and look for work, until drained. While draining it keeps the lease and takes no work."""
        loop = asyncio.get_running_loop()
        next_renewal = loop.time()
        while not self._stopped:
            changed = self._changed.is_set()
            self._changed.clear()
            try:
                if loop.time() >= next_renewal:
                    next_renewal = loop.time() + self._renew_s
                    await self._shared.store.renew(self._shared.worker)
                if not self.serving.closed:
                    await self._scan()
                if changed:
                    await self.serving.look()
            except Error as problem:  # the store is away: it may come back
                log.warning("%s", problem)
            with suppress(TimeoutError):
                async with asyncio.timeout(min(SCAN_S, self._renew_s)):
                    await self._changed.wait()

    async def _scan(self) -> None:
        shared, serving = self._shared, self.serving
        limit = serving.free + len(serving.unknown_agents)
        now = shared.clock.wall_ms()
        for stream in await shared.store.claimable(shared.worker, limit=limit, now=now, tenant=shared.tenant):
            serving.found(stream)

    @property
    def loose_ends(self) -> bool:
        """Whether something that this worker started may still be running."""
        return self._shared.loose_ends.any

    def changed(self) -> None:
        """Another process has committed something: look at once."""
        self._changed.set()

    def poke(self, stream: StreamId, claim: Claim | None = None) -> None:
        """There is work on this stream."""
        self.serving.poke(stream, claim)

    async def drain(self, timeout_s: float, *, retiring: bool) -> None:
        """Take no more work, let turns finish for a while, then hand over what is left."""
        await self.serving.close(timeout_s, retiring=retiring)
        self._stopped = True
        self._changed.set()
