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
        self._awake = asyncio.Event()
        self._news = False
        self._stopped = False
        self.serving = Serving(shared, on_room=self._awake.set)

    async def run(self) -> None:
        """Keep the lease and look for work, until drained. While draining it keeps the lease and takes no work."""
        loop = asyncio.get_running_loop()
        next_renewal = loop.time()
        while not self._stopped:
            self._awake.clear()
            changed, self._news = self._news, False
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
                    await self._awake.wait()

    async def _scan(self) -> None:
        shared, serving = self._shared, self.serving
        room = serving.room
        if not room:
            return
        limit = room + len(serving.unknown_agents)
        now = shared.clock.wall_ms()
        found = await shared.store.claimable(shared.worker, limit=limit, now=now, tenant=shared.tenant)
        for stream in found:
            serving.found(stream)
        serving.more_waits = len(found) >= limit

    @property
    def loose_ends(self) -> bool:
        """Whether something that this worker started may still be running."""
        return self._shared.loose_ends.any

    def changed(self) -> None:
        """Another process has committed something: look at once."""
        self._news = True
        self._awake.set()

    def poke(self, stream: StreamId, claim: Claim | None = None) -> None:
        """There is work on this stream."""
        self.serving.poke(stream, claim)

    async def drain(self, timeout_s: float, *, retiring: bool) -> None:
        """Take no more work, let turns finish for a while, then hand over what is left."""
        await self.serving.close(timeout_s, retiring=retiring)
        self._stopped = True
        self._awake.set()
