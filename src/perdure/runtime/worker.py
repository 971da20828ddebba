"""The worker: finds streams with work and serves them. Recovery is nothing else.

It looks when it is told of work, when another process has committed something, and four times a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from perdure.errors import Error
from perdure.ids import StreamId, Tenant, TurnId, stream_names
from perdure.runtime.serving import Serving
from perdure.runtime.shared import Shared
from perdure.store.protocol import Claim, Serves

log = logging.getLogger("perdure.runtime")

SCAN_S = 0.25
MAX_TENANTS = 1000  # whose turns are remembered


class Worker:
    """Serves the sessions of one runtime."""

    def __init__(self, shared: Shared, *, renew_s: float) -> None:
        self._shared = shared
        self._renew_s = renew_s
        self._awake = asyncio.Event()
        self._news = False
        self._stopped = False
        self._recent: dict[Tenant, None] = {}
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
                self._shared.permits.look()
                if changed:
                    await self.serving.look()
            except Error as problem:  # the store is away: it may come back
                log.warning("%s", problem)
            with suppress(TimeoutError):
                async with asyncio.timeout(min(SCAN_S, self._renew_s)):
                    await self._awake.wait()

    async def _scan(self) -> None:
        """Take up what is ready, as far as there are seats: here, and in queues that have a number of them."""
        serving, crowd, full = self.serving, self._shared.crowd, tuple[str, ...]()
        while True:
            free, room = serving.free, serving.room
            if free and not room:
                return  # enough to begin with
            found = await self._look(room + 1, without=full)
            serving.more_waits = len(found) > room
            crowd.waiting = serving.more_waits and room == free
            if not found or not room:
                return
            seated, newly_full = await self._seated(found[:room])
            taken = await self._take(tuple(seated))
            self._shared.permits.leave(*(stream for stream, queue in seated.items() if queue and stream not in taken))
            if not newly_full:
                return
            full = (*full, *newly_full)

    async def _look(
        self, limit: int, *, without: tuple[str, ...] = (), queue: str = "", only: Sequence[StreamId] | None = None
    ) -> tuple[StreamId, ...]:
        serves = replace(self._serves(), without=without, only=None if only is None else tuple(only))
        if queue:
            serves = replace(serves, queues=(queue,))
        shared = self._shared
        return await shared.store.claimable(shared.worker, limit=limit, now=shared.clock.wall_ms(), serves=serves)

    def _serves(self) -> Serves:
        shared = self._shared
        return Serves(
            tenant=None if shared.work.all_tenants else shared.tenant,
            agents={name: agent.place for name, agent in shared.agents.items()},
            queues=shared.work.served,
            besides=self.serving.busy,
            recent=tuple(self._recent),
        )

    async def _seated(self, found: Sequence[StreamId]) -> tuple[dict[StreamId, str], list[str]]:
        """Those of some streams that have a seat, each with its queue if that has a number of them; and the queues that
        have none left."""
        seated = dict.fromkeys(found, "")
        full: list[str] = []
        for queue, most in self._shared.work.caps.items():
            waiting = await self._look(len(found), queue=queue, only=found)
            granted = await self._shared.permits.seats(queue, most, waiting) if waiting else set[StreamId]()
            for stream in waiting:
                if stream in granted:
                    seated[stream] = queue
                else:
                    seated.pop(stream, None)
            if len(granted) < len(waiting):
                full.append(queue)
        return seated, full

    async def _take(self, streams: tuple[StreamId, ...]) -> set[StreamId]:
        if not streams:
            return set()
        shared, limit = self._shared, len(streams)
        serves, now = replace(self._serves(), only=streams if shared.work.caps else None), shared.clock.wall_ms()
        taken: set[StreamId] = set()
        for ready in await shared.store.claim_ready(shared.worker, limit=limit, now=now, serves=serves):
            taken.add(ready.stream)
            tenant = Tenant(stream_names(ready.stream)[0])
            self._recent.pop(tenant, None)
            self._recent[tenant] = None
            self.serving.found(ready, seat=ready.queue in shared.work.caps)
        while len(self._recent) > MAX_TENANTS:
            del self._recent[next(iter(self._recent))]
        return taken

    @property
    def loose_ends(self) -> bool:
        """Whether something that this worker started may still be running."""
        return self._shared.loose_ends.any

    @property
    def crowded(self) -> bool:
        """Whether more is ready than there are seats."""
        return self._shared.crowd.waiting

    def changed(self) -> None:
        """Another process has committed something: look at once."""
        self._news = True
        self._awake.set()

    def poke(self, stream: StreamId, claim: Claim | None = None, turn: TurnId | None = None) -> None:
        """There is work on this stream."""
        self.serving.poke(stream, claim, turn)

    async def drain(self, timeout_s: float, *, retiring: bool) -> None:
        """Take no more work, let turns finish for a while, then hand over what is left."""
        await self.serving.close(timeout_s, retiring=retiring)
        self._stopped = True
        self._awake.set()
