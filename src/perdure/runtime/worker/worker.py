"""The worker: finds streams with work and serves them. Recovery is nothing else.

It looks when it is told of work, when another process has committed something, and four times a second.
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
from perdure.runtime.schedules.resident import OWNER as SCHEDULES
from perdure.runtime.shared import Shared
from perdure.runtime.worker.serving import Serving
from perdure.store.shapes import Claim, Place, Serves, Suspects

log = logging.getLogger("perdure.runtime")

SCAN_S = 0.25
MAX_TENANTS = 1000  # whose turns are remembered
MANY = 32
LONGEST_LINE = 256
MOST_LINES = 2
"""Where others have taken, or hold on to, whatever stands in so many lines, it is looked again later."""
LINE_S = 1.0
LOOK_SHARE = 0.02
"""Where more than MANY are ready, finding out whose turn it is may cost more than serving. The order that was found
stands then until no more than this share of the time has gone into looking, and for a second at most."""


class Worker:
    """Serves the sessions and processes of one runtime."""

    def __init__(self, shared: Shared, *, renew_s: float) -> None:
        self._shared = shared
        self._renew_s = renew_s
        self._awake = asyncio.Event()
        self._news = False
        self._stopped = False
        self._recent: dict[Tenant, None] = {}
        self._line: deque[StreamId] = deque()
        self._line_until = 0.0
        self._known = {name: agent.place for name, agent in shared.agents.items()}
        self._known |= {owner_of(name): code.place for name, code in shared.processes.items()}
        self._known |= {owner_of(EXTERNAL): Place(), SCHEDULES: Place(), TRIGGERS: Place()}
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
                await self._scan()
                self._shared.permits.look()
                if changed:
                    await self.serving.look()
            except Error as problem:  # the store is away: it may come back
                log.warning("%s", problem)
            except Exception:  # of a store that broke its promise; a worker that stops looking would look alive
                log.exception("the worker could not look for work; it tries again")
            with suppress(TimeoutError):
                async with asyncio.timeout(min(SCAN_S, self._renew_s)):
                    await self._awake.wait()

    async def _scan(self) -> None:
        """Take up what is ready, as far as there are seats: here, and in queues that have a number of them."""
        full: list[str] = []
        try:
            if not await self._try_a_suspect(full):
                await self._scan_without(full)
        finally:
            self._shared.permits.wait_only_for(full)
        self.serving.make_room(full)

    async def _try_a_suspect(self, full: list[str]) -> bool:
        """Take up one suspect, if there is any and it is calm here. Whether everything else has to wait."""
        serving, trials = self.serving, self.serving.trials
        if trials.hot:
            return True
        if serving.closed or not trials.due or not serving.room:
            return False
        found = await self._look(1, suspects="only")
        if not found:
            trials.none_waits()
            return False
        if not trials.calm(serving.running):
            return True
        taken = await self._take_up(found, full, suspects="only")
        for stream in taken:
            serving.on_trial(stream)
        if not taken:
            trials.none_waits()
        return True

    async def _scan_without(self, full: list[str]) -> None:
        """Take up what is ready; `full` are the queues that turn out to have no seat."""
        serving, crowd, lines = self.serving, self._shared.crowd, set[float]()
        while not serving.closed:
            free, room = serving.free, serving.room
            if free and not room:
                serving.more_waits = True  # enough to begin with; there may be others
                return
            found = await self._first(room + 1, without=tuple(full))
            serving.more_waits = len(found) > room
            crowd.full = serving.more_waits and room == free
            lines.add(self._line_until)
            if not found or not room or len(lines) > MOST_LINES:
                return
            known = len(full)
            taken = await self._take_up(found[:room], full, suspects="not")
            if len(full) == known and (taken or not self._line):
                return

    async def _first(self, limit: int, *, without: tuple[str, ...]) -> tuple[StreamId, ...]:
        """The first that are ready, in order. Of very many the order may be a moment old; queues with a number of seats
        are looked at each time."""
        if self._shared.work.caps:
            return await self._look(limit, without=without)
        loop = asyncio.get_running_loop()
        now = loop.time()
        if len(self._line) < limit or now >= self._line_until:
            self._line.clear()
            found = await self._look(max(limit, LONGEST_LINE))
            if len(found) <= max(limit, MANY):
                return found[:limit]
            self._line.extend(found)
            looked = loop.time()
            self._line_until = looked + min(LINE_S, (looked - now) / LOOK_SHARE)
        return tuple(islice(self._line, limit))

    async def _take_up(self, found: tuple[StreamId, ...], full: list[str], *, suspects: Suspects) -> set[StreamId]:
        """Claim as many as were found, those that need a seat of their queue if they get one: which were taken."""
        seats, taken = dict.fromkeys(found, ""), set[StreamId]()
        try:
            await self._sit_down(seats, full, suspects)
            for queue in dict.fromkeys(seats.values()):
                seated = tuple(stream for stream in seats if seats[stream] == queue)
                await self._take_of(queue, seated, taken, suspects)
        finally:
            left = (stream for stream, queue in seats.items() if queue and stream not in taken)
            self._shared.permits.leave(*left)
        return taken

    async def _look(
        self,
        limit: int,
        *,
        without: tuple[str, ...] = (),
        queue: str = "",
        only: Sequence[StreamId] | None = None,
        suspects: Suspects = "not",
    ) -> tuple[StreamId, ...]:
        serves = replace(self._serves(suspects), without=without, only=None if only is None else tuple(only))
        if queue:
            serves = replace(serves, queues=(queue,))
        shared = self._shared
        return await shared.store.claimable(shared.worker, limit=limit, now=shared.clock.wall_ms(), serves=serves)

    def _serves(self, suspects: Suspects) -> Serves:
        shared = self._shared
        return Serves(
            tenant=None if shared.work.all_tenants else shared.tenant,
            agents=self._known,
            queues=shared.work.served,
            besides=self.serving.busy,
            recent=tuple(self._recent),
            suspects=suspects,
        )

    async def _sit_down(self, seats: dict[StreamId, str], full: list[str], suspects: Suspects) -> None:
        """Find out who has a seat: in `seats` stays who needs none, or has one of the queue that is noted there. Queues
        that have none left are added to `full`."""
        for queue in self._shared.work.caps:
            if not seats:
                return
            waiting = await self._look(len(seats), queue=queue, only=tuple(seats), suspects=suspects)
            granted = await self._shared.permits.seats(queue, waiting) if waiting else set[StreamId]()
            for stream in waiting:
                if stream in granted:
                    seats[stream] = queue
                else:
                    del seats[stream]
            if len(granted) < len(waiting):
                full.append(queue)

    async def _take_of(
        self, queue: str, streams: tuple[StreamId, ...], taken: set[StreamId], suspects: Suspects
    ) -> None:
        """Claim them, each only if it is still in the queue in which it has its seat."""
        shared, caps, serves = self._shared, self._shared.work.caps, self._serves(suspects)
        if queue:
            serves = replace(serves, only=streams, queues=(queue,))
        elif caps or self._line:
            serves = replace(serves, only=streams, without=tuple(caps))
        if suspects == "not" and not queue:
            for _ in range(min(len(streams), len(self._line))):
                self._line.popleft()  # whoever is not taken now was taken by somebody else
        now = shared.clock.wall_ms()
        for ready in await shared.store.claim_ready(shared.worker, limit=len(streams), now=now, serves=serves):
            taken.add(ready.stream)
            tenant = Tenant(stream_names(ready.stream)[0])
            self._recent.pop(tenant, None)
            self._recent[tenant] = None
            self.serving.found(ready, seat_of=queue)
        while len(self._recent) > MAX_TENANTS:
            del self._recent[next(iter(self._recent))]

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

    def stir(self, streams: Collection[StreamId]) -> None:
        """Something was put into the inboxes of these streams. What is not in hand here is looked for: this worker may
        not serve it."""
        if not self.serving.stir(streams):
            self._awake.set()

    async def drain(self, timeout_s: float, *, retiring: bool) -> None:
        """Take no more work, let turns finish for a while, then hand over what is left."""
        self._shared.permits.leave_line()
        await self.serving.close(timeout_s, retiring=retiring)
        self._stopped = True
        self._awake.set()
