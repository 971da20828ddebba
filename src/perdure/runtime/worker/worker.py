"""The worker: finds streams with work and serves them. Recovery is ordinary claiming.

The worker polls when it is notified, when another process has committed something, and four times a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice

from perdure.errors import Error
from perdure.ids import StreamId, Tenant, TurnId, stream_names
from perdure.processes.registration import EXTERNAL, owner_of
from perdure.processes.triggers import OWNER as TRIGGERS
from perdure.runtime.agent import setup_of
from perdure.runtime.schedules.schedule_host import OWNER as SCHEDULES
from perdure.runtime.shared import Shared
from perdure.runtime.work import queue_caps
from perdure.runtime.worker.stream_pool import StreamPool
from perdure.store.shapes import Claim, Placement, Quarantined, Serves

log = logging.getLogger("perdure.runtime")

SCAN_S = 0.25
MAX_TENANTS = 1000  # most tenants remembered as recently served
MANY = 32
LONGEST_LINE = 256
MOST_LINES = 2
"""Most candidate lists that one scan reads while other workers hold all their streams. The next scan tries again."""
LINE_S = 1.0
LOOK_SHARE = 0.02
"""Largest share of time spent on finding the order of work.

With more than MANY ready streams, finding the order may cost more than serving. The order is then reused until the
share is kept, for a second at most.
"""


class Worker:
    """The loop that serves the sessions and processes of one runtime."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._awake = asyncio.Event()
        self._news = False
        self._stopped = False
        self._recent: dict[Tenant, None] = {}
        self._line: deque[StreamId] = deque()
        self._line_until = 0.0
        self._known = {name: setup_of(agent).place for name, agent in shared.agents.items()}
        self._known |= {owner_of(name): code.place for name, code in shared.processes.items()}
        self._known |= {owner_of(EXTERNAL): Placement(), SCHEDULES: Placement(), TRIGGERS: Placement()}
        self.stream_pool = StreamPool(shared, on_room=self._awake.set)
        self.permits = shared.permits

    async def run(self) -> None:
        """Poll for work, until drained. The heartbeat keeps the lease until this returns."""
        while not self._stopped:
            self._awake.clear()
            try:
                await self._scan()
                self._shared.permits.check()
                if self._news:
                    await self._poll_hosts()
            except Error as problem:  # the store is unavailable: the next round tries again
                log.warning("%s", problem)
            except Exception:  # a fault of the store: a worker that stopped polling would still appear alive
                log.exception("poll for work failed, retrying")
            with suppress(TimeoutError):
                async with asyncio.timeout(SCAN_S):
                    await self._awake.wait()

    async def _poll_hosts(self) -> None:
        """Let running work learn what other processes have committed. After a failure, the next round does it."""
        self._news = False
        try:
            await self.stream_pool.poll()
        except Exception:
            self._news = True
            raise

    async def _scan(self) -> None:
        """Claim ready work up to the number of free slots, in this worker and in queues with a limit."""
        full: list[str] = []
        try:
            if not await self._try_a_suspect(full):
                await self._scan_without(full)
        finally:
            self._shared.permits.wait_only_for(full)
        self.stream_pool.evict_one(full)

    async def _try_a_suspect(self, full: list[str]) -> bool:
        """Claim one quarantined stream, if one is ready and this worker is calm.

        Return True if all other work must wait.
        """
        pool, quarantine = self.stream_pool, self.stream_pool.quarantine
        if quarantine.hot:
            return True
        if pool.closed or not quarantine.due or not pool.room:
            return False
        found = await self._poll(1, quarantined="only")
        if not found:
            quarantine.none_waits()
            return False
        if not quarantine.calm(pool.running):
            return True
        taken = await self._take_up(found, full, quarantined="only")
        for stream in taken:
            pool.begin_quarantined(stream)
        if not taken:
            quarantine.none_waits()
        return True

    async def _scan_without(self, full: list[str]) -> None:
        """Claim ready work. `full` collects the queues that have no free slot."""
        pool, crowd, lines = self.stream_pool, self._shared.crowd, set[float]()
        while not pool.closed:
            free, room = pool.free, pool.room
            if free and not room:
                pool.more_waits = True  # enough streams are about to begin; more may be ready
                return
            found = await self._first(room + 1, without=tuple(full))
            pool.more_waits = len(found) > room
            crowd.full = pool.more_waits and room == free
            lines.add(self._line_until)
            if not found or not room or len(lines) > MOST_LINES:
                return
            known = len(full)
            taken = await self._take_up(found[:room], full, quarantined="not")
            if len(full) == known and (taken or not self._line):
                return

    async def _first(self, limit: int, *, without: tuple[str, ...]) -> tuple[StreamId, ...]:
        """Return the first ready streams, in order.

        If very many are ready, the order may be up to a second old. Queues with a limit are read each time.
        """
        if queue_caps(self._shared.work):
            return await self._poll(limit, without=without)
        loop = asyncio.get_running_loop()
        now = loop.time()
        if len(self._line) < limit or now >= self._line_until:
            self._line.clear()
            found = await self._poll(max(limit, LONGEST_LINE))
            if len(found) <= max(limit, MANY):
                return found[:limit]
            self._line.extend(found)
            looked = loop.time()
            self._line_until = looked + min(LINE_S, (looked - now) / LOOK_SHARE)
        return tuple(islice(self._line, limit))

    async def _take_up(
        self, found: tuple[StreamId, ...], full: list[str], *, quarantined: Quarantined
    ) -> set[StreamId]:
        """Claim the given streams; those in a queue with a limit need one of its slots. Return the claimed ones."""
        slots, taken = dict.fromkeys(found, ""), set[StreamId]()
        try:
            await self._sit_down(slots, full, quarantined)
            for queue in dict.fromkeys(slots.values()):
                in_slot = tuple(stream for stream in slots if slots[stream] == queue)
                await self._take_of(queue, in_slot, taken, quarantined)
        finally:
            left = (stream for stream, queue in slots.items() if queue and stream not in taken)
            self._shared.permits.leave(*left)
        return taken

    async def _poll(
        self,
        limit: int,
        *,
        without: tuple[str, ...] = (),
        queue: str = "",
        only: Sequence[StreamId] | None = None,
        quarantined: Quarantined = "not",
    ) -> tuple[StreamId, ...]:
        serves = replace(self._serves(quarantined), without=without, only=None if only is None else tuple(only))
        if queue:
            serves = replace(serves, queues=(queue,))
        shared = self._shared
        return await shared.store.claimable(shared.worker, limit=limit, now=shared.clock.wall_ms(), serves=serves)

    def _serves(self, quarantined: Quarantined) -> Serves:
        shared = self._shared
        return Serves(
            tenant=None if shared.work.all_tenants else shared.tenant,
            agents=self._known,
            queues=shared.work.served,
            driving=self.stream_pool.busy,
            recent=tuple(self._recent),
            quarantined=quarantined,
        )

    async def _sit_down(self, slots: dict[StreamId, str], full: list[str], quarantined: Quarantined) -> None:
        """Acquire slots of queues with a limit.

        `slots` keeps the streams that need no slot, and those that got one, with the queue. Queues without a free slot
        are added to `full`.
        """
        for queue in queue_caps(self._shared.work):
            if not slots:
                return
            waiting = await self._poll(len(slots), queue=queue, only=tuple(slots), quarantined=quarantined)
            granted = await self._shared.permits.slots(queue, waiting) if waiting else set[StreamId]()
            for stream in waiting:
                if stream in granted:
                    slots[stream] = queue
                else:
                    del slots[stream]
            if len(granted) < len(waiting):
                full.append(queue)

    async def _take_of(
        self, queue: str, streams: tuple[StreamId, ...], taken: set[StreamId], quarantined: Quarantined
    ) -> None:
        """Claim streams, each only if it is still in the queue in which it has its slot."""
        shared, caps, serves = self._shared, queue_caps(self._shared.work), self._serves(quarantined)
        if queue:
            serves = replace(serves, only=streams, queues=(queue,))
        elif caps or self._line:
            serves = replace(serves, only=streams, without=tuple(caps))
        if quarantined == "not" and not queue:
            for _ in range(min(len(streams), len(self._line))):
                self._line.popleft()  # a stream that is not claimed now was claimed by another worker
        now = shared.clock.wall_ms()
        for ready in await shared.store.claim_ready(shared.worker, limit=len(streams), now=now, serves=serves):
            taken.add(ready.stream)
            tenant = Tenant(stream_names(ready.stream)[0])
            self._recent.pop(tenant, None)
            self._recent[tenant] = None
            self.stream_pool.found(ready, slot_of=queue)
        while len(self._recent) > MAX_TENANTS:
            del self._recent[next(iter(self._recent))]

    @property
    def abandoned_calls(self) -> bool:
        """True if something that this worker started may still be running."""
        return self._shared.abandoned_calls.any

    @property
    def crowded(self) -> bool:
        """True if more streams are ready than slots are free."""
        return self._shared.crowd.waiting

    def changed(self) -> None:
        """Poll at once, because another process has committed something."""
        self._news = True
        self._awake.set()

    def notify(self, stream: StreamId, claim: Claim | None = None, turn: TurnId | None = None) -> None:
        """Serve this stream, because it has work."""
        self.stream_pool.notify(stream, claim, turn)

    def notify_streams(self, streams: Collection[StreamId]) -> None:
        """Notify streams that have received deliveries.

        A poll finds those without a host here, if this worker serves them.
        """
        if not self.stream_pool.notify_streams(streams):
            self._awake.set()

    async def drain(self, timeout_s: float, *, retiring: bool) -> None:
        """Take no more work, let turns finish for `timeout_s` seconds, then hand over the rest."""
        self._shared.permits.leave_line()
        await self.stream_pool.close(timeout_s, retiring=retiring)
        self._stopped = True
        self._awake.set()
