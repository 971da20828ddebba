"""The streams that a worker serves: one task for each that has work, none for the others.

After any fault of a stream, its state in memory is dropped. The log has everything that counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from perdure.errors import Code, Error
from perdure.ids import Fence, StreamId, TurnId, stream_names
from perdure.inbox.admit import Admission, Admitted, Delivery, is_news
from perdure.inbox.items import Input
from perdure.runtime.processes.process_host import ProcessHost
from perdure.runtime.schedules.schedule_host import ScheduleHost
from perdure.runtime.shared import Shared
from perdure.runtime.triggers.trigger_host import TriggerHost
from perdure.runtime.turns.session_host import SessionHost
from perdure.runtime.work import checks_queues
from perdure.runtime.worker.offers import Offer
from perdure.runtime.worker.orphans import Orphans
from perdure.runtime.worker.quarantine import Quarantine
from perdure.store.shapes import AlreadyOwned, Claim, ReadyStream

log = logging.getLogger("perdure.runtime")

MAX_IDLE = 128
MAX_BEGINNING = 16
"""Most sessions that a worker claims before the first of them has begun.

The rest stays for other workers. If this worker dies, few streams have been claimed without progress.
"""
_FIRST_BACKOFF_S = 0.1
_LAST_BACKOFF_S = 30.0
_STORE_BACKOFF_S = 1.0
"""Longest backoff while the store is unavailable, in seconds.

Such an error says nothing about the session. No other worker may try it meanwhile, so the retry comes soon.
"""
_STORE_AWAY = {Code.STORE_UNAVAILABLE, Code.STORE_LOCKED, Code.STORE_CONNECTIONS_EXHAUSTED}
_SLOT_S = 0.25


class StreamHost(Protocol):
    """A stream owned by this worker: a session, a process, a schedule or a trigger source."""

    stream: StreamId
    stopping: bool
    parked: bool
    offered: Offer | None
    on_record: Callable[[], None] | None

    @property
    def under_way(self) -> bool:
        """True if work runs in the stream."""
        ...

    async def load(self) -> None:
        """Read and fold the log, once."""
        ...

    async def serve(self, *, once: bool = False) -> None:
        """Do all work that is there, or one turn with `once`."""
        ...

    async def poll(self) -> None:
        """Read what has changed in the store."""
        ...

    async def let_go(self) -> None:
        """Release the stream as it was found."""
        ...

    async def hand_over(self) -> None:
        """Record what is in doubt and release the stream, because the worker stops."""
        ...

    def offer(self, item: Input) -> Offer | None:
        """Accept a direct input, or return None."""
        ...

    def drives(self, turn: TurnId) -> bool | None:
        """Return True if this turn runs, False if another one does, or None if none does."""
        ...

    def leave_to(self, orphans: Orphans) -> None:
        """Leave the running calls of a released stream to `orphans`, which report their outcomes."""
        ...

    def forbid_starts(self) -> None:
        """Keep effects that have not begun from beginning."""
        ...

    def abandon(self) -> None:
        """Stop what runs, and record nothing."""
        ...


def _is_unreadable(problem: Error | None) -> bool:
    """Return whether this process can never load a log: it lacks the key, or a record is damaged."""
    return problem is not None and (problem.code is Code.CODEC_FAILED or "seq" in problem.details)


class StreamPool:
    """The sessions and processes that this worker owns."""

    def __init__(self, shared: Shared, *, on_room: Callable[[], None] = lambda: None) -> None:
        self._shared = shared
        self._on_room = on_room
        self.more_waits = False  # the last poll found more work than could be claimed
        self.quarantine = Quarantine(shared.crowd, on_room=on_room)
        self._orphans = Orphans(shared.store, shared.clock, shared.abandoned_calls)
        self._tasks: dict[StreamId, asyncio.Task[None]] = {}
        self._claims: dict[StreamId, Claim] = {}
        self._admitting: Counter[StreamId] = Counter()
        self._newest: dict[StreamId, Fence] = {}  # the fences claimed during these admissions
        self._coming: dict[StreamId, TurnId] = {}
        self._again: set[StreamId] = set()
        self._refold: set[StreamId] = set()
        self._slots: dict[StreamId, str] = {}  # by stream, its queue
        self._found: set[StreamId] = set()
        self._orphaned: set[StreamId] = set()  # streams of dead owners: only the order of work starts them
        self._backoff_s: dict[StreamId, float] = {}
        self._resting: dict[StreamId, str] = {}  # by stream, the queue whose slot it needs, or ""
        self._deferred: dict[StreamId, None] = {}  # those that rest for lack of background capacity, oldest first
        self._waking: set[asyncio.Task[None]] = set()
        self._aborted = False
        self.hosts: dict[StreamId, StreamHost] = {}
        self.unknown_agents: set[StreamId] = set()
        self.closed = False

    @property
    def free(self) -> int:
        """The number of free slots."""
        return max(0, self._shared.work.concurrency - len(self._tasks))

    @property
    def room(self) -> int:
        """The number of sessions that may be claimed now."""
        return min(self.free, max(0, MAX_BEGINNING - len(self._found)))

    def evict_one(self, full: Collection[str]) -> None:
        """Evict one waiting turn if this worker is full, and one in the queues that are full."""
        if self._shared.crowd.full:
            self._shared.lounge.evict_one()
        if full:
            self._shared.lounge.evict_one([stream for stream, queue in self._slots.items() if queue in full])

    @property
    def idle(self) -> bool:
        """True if work may be taken out of order: a slot is free, and no other work waits for it."""
        may = not self.closed and not checks_queues(self._shared.work) and not self._shared.crowd.waiting
        return may and self.free > 0

    @property
    def running(self) -> int:
        """The number of sessions that are being served."""
        return len(self._tasks)

    @property
    def busy(self) -> tuple[StreamId, ...]:
        """The streams that are being served, or cannot be served now."""
        return (*self._tasks, *self.unknown_agents, *self._resting)

    def serves(self, stream: StreamId) -> bool:
        """Return True if this stream is being served, or is about to be."""
        return stream in self._tasks

    def found(self, ready: ReadyStream, *, slot_of: str = "") -> None:
        """Serve a stream whose turn it is in the order of work. `slot_of` is the queue of which it holds a slot."""
        stream, served = ready.stream, ready.stream in self._tasks
        self._orphaned.discard(stream)
        if slot_of:
            self._slots[stream] = slot_of
        self.notify(stream, ready.claim, in_order=True)
        if stream not in self._tasks:
            self._leave(stream)
        elif not served:
            self._found.add(stream)

    def begin_quarantined(self, stream: StreamId) -> None:
        """Begin the quarantine of a claimed stream."""
        if stream in self._tasks:
            self.quarantine.begin(stream)

    def notify(
        self, stream: StreamId, claim: Claim | None = None, turn: TurnId | None = None, *, in_order: bool = False
    ) -> None:
        """Serve a stream that may have work, or serve it once more, when it is its turn.

        `claim` is the claim made when the work was admitted. `turn` is the turn that waits there.
        """
        if claim and self.closed:
            self._free(claim)
        elif claim:
            self._claims[stream] = claim
        if self.closed or stream in self.unknown_agents or stream in self._resting:
            return
        if stream in self._tasks:
            self._again.add(stream)
            return
        if not in_order and (not self.idle or (claim is None and stream in self._orphaned)):
            self._on_room()  # the store decides which stream comes next
            return
        if turn is not None:
            self._coming[stream] = turn
            self._shared.results.expect(turn)
        task = self._tasks[stream] = asyncio.create_task(self._serve(stream), name=f"perdure:serve:{stream}")
        task.add_done_callback(lambda _: self._served(stream))  # also when it is cancelled before it begins

    async def admit(self, new: Delivery) -> Admission:
        """Admit a delivery, and claim its stream with it if that is free.

        This worker may have claimed the stream again before the reply arrived. The older claim is then left out.
        """
        self._admitting[new.stream] += 1
        try:
            admission = await self._shared.store.admit(new, claim_for=self._shared.worker)
            if isinstance(admission, Admitted) and (admission.fence or 0) < self._newest.get(new.stream, 0):
                return replace(admission, fence=None)
            return admission
        finally:
            self._admitting[new.stream] -= 1
            if not self._admitting[new.stream]:
                del self._admitting[new.stream]
                self._newest.pop(new.stream, None)

    def notify_streams(self, streams: Collection[StreamId]) -> bool:
        """Notify streams that have received deliveries. Return True if all of them have a host here."""
        here = [stream for stream in streams if stream in self.hosts or stream in self._tasks]
        for stream in here:
            self.notify(stream)
            if (host := self.hosts.get(stream)) is not None and host.under_way:
                self._wake(self._poll_again(stream), f"perdure:look:{stream}")
        return len(here) == len(streams)

    def _wake(self, work: Coroutine[None, None, None], name: str) -> None:
        """Run a coroutine as a detached task."""
        if self._aborted:
            work.close()
            return
        task = asyncio.create_task(work, name=name)
        self._waking.add(task)
        task.add_done_callback(self._waking.discard)

    async def _poll_again(self, stream: StreamId) -> None:
        try:
            await self.poll(stream)
        except Error as problem:  # the store is unavailable: the stream's own task notices too
            log.warning("%s", problem, extra={"stream": stream})

    def offer(self, stream: StreamId, item: Input) -> Offer | None:
        """Offer a direct input to a session that is idle in memory.

        Return None if the input must go through the inbox.
        """
        host, task = self.hosts.get(stream), self._tasks.get(stream)
        here = task is not None and not task.done()  # its task still checks for work, and finds this input
        if stream in self._slots:
            return None  # it leaves its slot after each turn
        if host is None or not (self._goes_on if here else self.idle):
            return None
        offer = host.offer(item)
        if offer is not None and not here:
            self.notify(stream, in_order=True)
        return offer

    @property
    def _goes_on(self) -> bool:
        return not self.closed and not self._shared.crowd.waiting

    def offered(self, stream: StreamId) -> Offer | None:
        """Return the direct input that a session has not yet taken, or None."""
        host = self.hosts.get(stream)
        return host.offered if host else None

    def drives(self, stream: StreamId, turn: TurnId) -> bool:
        """Return True if this turn runs here, or is about to."""
        host = self.hosts.get(stream) if stream in self._tasks else None
        drives = host.drives(turn) if host is not None else None
        return self._shared.results.is_coming(turn) if drives is None else drives

    async def poll(self, stream: StreamId | None = None) -> None:
        """Poll one stream or all of them, so that running turns learn what others wrote."""
        hosts = (self.hosts.get(stream),) if stream is not None else tuple(self.hosts.values())
        for host in hosts:
            if host is not None:
                await host.poll()

    async def _serve(self, stream: StreamId) -> None:
        host: StreamHost | None = None
        try:
            host = self.hosts.get(stream) or await self._claim(stream)
            if host is not None:
                await host.load()
                self._begun(stream)
                await host.serve(once=stream in self._slots)
                self._backoff_s.pop(stream, None)
                if host.parked:
                    del self.hosts[stream]
        except Error as problem:
            await self._give_up(stream, host, problem)
        except Exception:
            log.exception("serving failed, retrying", extra={"stream": stream})
            await self._give_up(stream, host, None)

    async def _claim(self, stream: StreamId) -> StreamHost | None:
        claim = self._claims.pop(stream, None)
        if claim is None and stream not in self._found and await self._must_wait(stream):
            return None
        claim = claim or await self._ask_for(stream)
        if not isinstance(claim, Claim):
            return None
        if (other := self._claims.get(stream)) is not None and other.fence < claim.fence:
            del self._claims[stream]
        if stream in self._admitting:
            self._newest[stream] = claim.fence
        host = self.hosts[stream] = self._host(claim)
        if self.quarantine.claimed(claim):
            log.warning("quarantined turn runs alone", extra={"stream": stream})
            host.on_record = partial(self.quarantine.over, stream)
        return host

    async def _ask_for(self, stream: StreamId) -> Claim | AlreadyOwned | None:
        asked = asyncio.ensure_future(self._shared.store.claim(stream, self._shared.worker))
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:  # the claim is written all the same
            asked.add_done_callback(self._came_too_late)
            raise

    def _came_too_late(self, asked: asyncio.Future[Claim | AlreadyOwned | None]) -> None:
        """Release a stream whose claim was answered after its task had been cancelled."""
        if asked.cancelled() or asked.exception() is not None:
            return
        claim = asked.result()
        if isinstance(claim, Claim):
            self._free(claim)

    def _free(self, claim: Claim) -> None:
        """Release a claim that is not used, so that other workers need not wait until our lease lapses."""
        self._wake(_hand_over(self._host(claim)), f"perdure:free:{claim.stream}")

    def _host(self, claim: Claim) -> StreamHost:
        match stream_names(claim.stream)[1]:
            case "process":
                return ProcessHost(self._shared, claim)
            case "schedule":
                return ScheduleHost(self._shared, claim)
            case "trigger":
                return TriggerHost(self._shared, claim)
            case _:
                return SessionHost(self._shared, claim)

    def _begun(self, stream: StreamId) -> None:
        """Note that a claimed stream has begun, and poll for others if there may be some."""
        self._found.discard(stream)
        if self.more_waits and len(self._found) <= MAX_BEGINNING // 2:
            self.more_waits = False
            self._on_room()

    async def _must_wait(self, stream: StreamId) -> bool:
        """Return True if this stream must not be claimed out of order.

        Either its turn is parked, and the inbox has no news for it; a queued or steering input is no news. Or its owner
        is gone: the stream may be quarantined, and the store decides when it comes next. Until then notifications start
        no further task for the stream, because the poll for work leaves out streams that have one.
        """
        info = await self._shared.store.stream(stream)
        if info is None:
            return False
        if info.owner not in (None, self._shared.worker) and not info.owner_alive:
            if len(self._orphaned) >= MAX_IDLE:
                self._orphaned.clear()
            self._orphaned.add(stream)
            return True
        return info.parked and not any(is_news(row.item) for row in await self._shared.store.inbox(stream))

    def _served(self, stream: StreamId) -> None:
        del self._tasks[stream]
        self._begun(stream)
        self.quarantine.over(stream)
        if (turn := self._coming.pop(stream, None)) is not None:
            self._shared.results.leave(turn)  # if it has not run by now, it may run elsewhere
        left = stream not in self._refold and self._leave(stream)
        if stream in self._refold or stream in self._again:
            in_order = stream in self._refold or self.offered(stream) is not None  # a direct input is only in memory
            self._refold.discard(stream)
            self._again.discard(stream)
            self.notify(stream, in_order=in_order)
        elif left or self._shared.crowd.waiting or stream in self._orphaned:
            self._on_room()
        idle = [name for name in self.hosts if name not in self._tasks]
        for name in idle[: max(0, len(idle) - MAX_IDLE)]:  # oldest first; the worker still owns the stream
            del self.hosts[name]

    def _leave(self, stream: StreamId) -> bool:
        """Release the queue slot of a stream. Return False if it had none."""
        if self._slots.pop(stream, None) is None:
            return False
        self._shared.permits.leave(stream)
        return True

    async def _give_up(self, stream: StreamId, host: StreamHost | None, problem: Error | None) -> None:
        self.hosts.pop(stream, None)
        if host:
            host.leave_to(self._orphans)
        match problem.code if problem else None:
            case Code.AGENT_UNKNOWN | Code.PROCESS_DEFINITION_UNKNOWN if host:
                log.warning("%s", problem, extra={"stream": stream})
                self.unknown_agents.add(stream)
                await host.hand_over()
            case Code.CODEC_FAILED | Code.STORE_CORRUPT if host and _is_unreadable(problem):
                log.error("%s", problem, extra={"stream": stream})
                self.unknown_agents.add(stream)  # left to a worker that has the key, or to a repair
                await host.let_go()
            case Code.GATE_CLOSED | Code.LEASE_LOST:
                self._refold.add(stream)  # fold the log again: it has the reason
            case Code.COMMIT_CONFLICT if problem is not None and "inbox" in problem.details:
                self._refold.add(stream)  # an input was withdrawn while it was being taken
            case _:
                self._rest(stream, problem)

    def _rest(self, stream: StreamId, problem: Error | None) -> None:
        longest = _STORE_BACKOFF_S if problem is not None and problem.code in _STORE_AWAY else _LAST_BACKOFF_S
        delay = self._backoff_s[stream] = min(self._backoff_s.get(stream, _FIRST_BACKOFF_S / 2) * 2, longest)
        self._resting[stream] = self._slots.get(stream, "")
        if problem is not None and problem.code is Code.TASK_LIMIT_EXCEEDED:
            self._deferred[stream] = None
        if problem is not None:
            log.warning("%s; trying again in %.1f s", problem, delay, extra={"stream": stream})
        asyncio.get_running_loop().call_later(delay, self._rested, stream)

    def _rested(self, stream: StreamId) -> None:
        queue = self._resting.get(stream)
        if queue and not self.closed:
            self._wake(self._sit_again(stream, queue), f"perdure:slot:{stream}")
        elif queue is not None:
            del self._resting[stream]
            self._deferred.pop(stream, None)
            self.notify(stream, in_order=True)

    def has_capacity(self) -> None:
        """Retry the session that has waited longest for a background run, because one has ended."""
        first = next((stream for stream in self._deferred if stream in self._resting), None)
        if first is not None and not self.closed:
            del self._deferred[first]
            self._rested(first)

    async def _sit_again(self, stream: StreamId, queue: str) -> None:
        """Request a queue slot again after the backoff, because other sessions had it meanwhile."""
        try:
            in_slot = await self._shared.permits.slot(queue, stream)
        except Error as problem:
            log.warning("%s", problem)
            in_slot = False
        if stream not in self._resting or self.closed:
            self._shared.permits.leave(stream)
        elif in_slot:
            del self._resting[stream]
            self._slots[stream] = queue
            self.notify(stream, in_order=True)
        else:
            asyncio.get_running_loop().call_later(_SLOT_S, self._rested, stream)

    def forget(self, stream: StreamId) -> None:
        """Stop serving a stream that was deleted."""
        host = self.hosts.pop(stream, None)
        self.unknown_agents.discard(stream)
        if self._resting.pop(stream, None):
            self._shared.permits.leave(stream)
        if task := self._tasks.get(stream):
            task.cancel()
        if host:
            host.abandon()

    def abort(self) -> None:
        """Stop at once what an interrupted `close` has left. The log has all that counts."""
        self.closed = self._aborted = True
        for task in (*self._tasks.values(), *self._waking):
            task.cancel()
        for host in self.hosts.values():
            host.abandon()

    async def close(self, timeout_s: float, *, retiring: bool) -> None:
        """Let turns finish for `timeout_s` seconds, then hand over the rest.

        Idle sessions are released at once, because turns may take long. With `retiring` and no running turn, that is
        skipped: deregistering the worker frees them.
        """
        self.closed = True
        self._shared.lounge.close()
        self._shared.permits.leave(*(stream for stream, queue in self._resting.items() if queue))
        for host in self.hosts.values():
            host.stopping = True
        idle = [host for stream, host in self.hosts.items() if stream not in self._tasks]
        if retiring and not self._tasks:
            idle = []
        await asyncio.gather(*(_hand_over(host) for host in idle))
        if self._tasks:
            await asyncio.wait(tuple(self._tasks.values()), timeout=timeout_s)
        rest = [host for host in self.hosts.values() if host not in idle]
        for host in rest:
            host.forbid_starts()
        if left := tuple(self._tasks.values()):
            for task in left:
                task.cancel()
            await asyncio.wait(left)
        await asyncio.gather(*(_hand_over(host) for host in rest if host.under_way or not retiring))
        for claim in self._claims.values():
            self._free(claim)
        self._claims.clear()
        await self._orphans.settle(timeout_s)
        self.hosts.clear()


async def _hand_over(host: StreamHost) -> None:
    try:
        await host.hand_over()
    except Error as problem:
        if problem.code is not Code.LEASE_LOST:  # another worker owns it already
            log.warning("stream release failed: %s", problem, extra={"stream": host.stream})
