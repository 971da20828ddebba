"""Serving sessions: one task for each that has something to do, none for those that have not.

Whatever goes wrong with a session, what we hold of it in memory is dropped; the log knows everything that counts.
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
from perdure.runtime.processes.resident import ProcessResident
from perdure.runtime.schedules.resident import ScheduleResident
from perdure.runtime.shared import Shared
from perdure.runtime.triggers.resident import TriggerResident
from perdure.runtime.turns.resident import Resident
from perdure.runtime.worker.offers import Offer
from perdure.runtime.worker.orphans import Orphans
from perdure.runtime.worker.trials import Trials
from perdure.store.shapes import Claim, Held, Ready

log = logging.getLogger("perdure.runtime")

MAX_IDLE = 128
MAX_BEGINNING = 16
"""How many sessions a worker takes before it has begun with the first of them. The rest is for others, and were this
worker to die, few would have been taken and not got any further."""
_FIRST_BACKOFF_S = 0.1
_LAST_BACKOFF_S = 30.0
_STORE_BACKOFF_S = 1.0
"""The store was away, which says nothing about the session: it is ours, nobody else may try, and somebody waits."""
_STORE_AWAY = {Code.STORE_UNAVAILABLE, Code.STORE_LOCKED, Code.STORE_CONNECTIONS_EXHAUSTED}
_SEAT_S = 0.25


class Served(Protocol):
    """A stream in the hands of this worker: a session, or a process."""

    stream: StreamId
    stopping: bool
    parked: bool
    offered: Offer | None
    on_record: Callable[[], None] | None

    @property
    def under_way(self) -> bool:
        """Whether something of it runs."""
        ...

    async def load(self) -> None:
        """Read and fold what the log says, once."""
        ...

    async def serve(self, *, once: bool = False) -> None:
        """Do what there is to do."""
        ...

    async def look(self) -> None:
        """Something changed in the store."""
        ...

    async def let_go(self) -> None:
        """Give it up as it was found."""
        ...

    async def hand_over(self) -> None:
        """The worker stops: record what is in doubt, and let it go."""
        ...

    def offer(self, item: Input) -> Offer | None:
        """Take an input without an inbox, if that can be."""
        ...

    def drives(self, turn: TurnId) -> bool | None:
        """Whether this turn runs; None if none does."""
        ...

    def leave_to(self, orphans: Orphans) -> None:
        """It was given up: what still runs tells others how it ended."""
        ...

    def forbid_starts(self) -> None:
        """What has not begun yet shall not begin."""
        ...

    def abandon(self) -> None:
        """Stop what runs, and record nothing."""
        ...


class Serving:
    """The sessions and processes this worker has in hand."""

    def __init__(self, shared: Shared, *, on_room: Callable[[], None] = lambda: None) -> None:
        self._shared = shared
        self._on_room = on_room
        self.more_waits = False  # the last look for work found as much as there was room for
        self.trials = Trials(shared.crowd, on_room=on_room)
        self._orphans = Orphans(shared.store, shared.clock, shared.loose_ends)
        self._tasks: dict[StreamId, asyncio.Task[None]] = {}
        self._claims: dict[StreamId, Claim] = {}
        self._admitting: Counter[StreamId] = Counter()
        self._newest: dict[StreamId, Fence] = {}  # of those, what was claimed meanwhile
        self._coming: dict[StreamId, TurnId] = {}
        self._again: set[StreamId] = set()
        self._refold: set[StreamId] = set()
        self._seats: dict[StreamId, str] = {}  # with the queue
        self._found: set[StreamId] = set()
        self._backoff_s: dict[StreamId, float] = {}
        self._resting: dict[StreamId, str] = {}  # with the queue of which each needs a seat, if any
        self._deferred: dict[StreamId, None] = {}  # those of them for which there was no room, in order
        self._waking: set[asyncio.Task[None]] = set()
        self._aborted = False
        self.residents: dict[StreamId, Served] = {}
        self.unknown_agents: set[StreamId] = set()
        self.closed = False

    @property
    def free(self) -> int:
        """How many more sessions may be served at once."""
        return max(0, self._shared.work.concurrency - len(self._tasks))

    @property
    def room(self) -> int:
        """How many more sessions may be taken now."""
        return min(self.free, max(0, MAX_BEGINNING - len(self._found)))

    def make_room(self, full: Collection[str]) -> None:
        """Who only waits leaves its seat to who could go on: one after the other, here and in queues that are full."""
        if self._shared.crowd.full:
            self._shared.lounge.make_room()
        if full:
            self._shared.lounge.make_room([stream for stream, queue in self._seats.items() if queue in full])

    @property
    def idle(self) -> bool:
        """Whether something may be taken up out of order: there is a seat, and nobody who waits for one."""
        may = not self.closed and not self._shared.work.picky and not self._shared.crowd.waiting
        return may and self.free > 0

    @property
    def running(self) -> int:
        """How many sessions are being served."""
        return len(self._tasks)

    @property
    def busy(self) -> tuple[StreamId, ...]:
        """What is being served, or cannot be now."""
        return (*self._tasks, *self.unknown_agents, *self._resting)

    def serves(self, stream: StreamId) -> bool:
        """Whether this stream is being served, or about to."""
        return stream in self._tasks

    def found(self, ready: Ready, *, seat_of: str = "") -> None:
        """It is the turn of this stream: nobody who may come first waits for longer. It may have a seat of a queue."""
        stream, served = ready.stream, ready.stream in self._tasks
        if seat_of:
            self._seats[stream] = seat_of
        self.poke(stream, ready.claim, in_order=True)
        if stream not in self._tasks:
            self._leave(stream)
        elif not served:
            self._found.add(stream)

    def on_trial(self, stream: StreamId) -> None:
        """It was found, and is a suspect."""
        if stream in self._tasks:
            self.trials.begin(stream)

    def poke(
        self, stream: StreamId, claim: Claim | None = None, turn: TurnId | None = None, *, in_order: bool = False
    ) -> None:
        """There may be work on this stream: serve it, or serve it once more, when it is its turn.

        `claim` is what was claimed when the work was admitted, and `turn` what waits there.
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
        if not in_order and not self.idle:
            self._on_room()  # whose turn it is, the store knows
            return
        if turn is not None:
            self._coming[stream] = turn
            self._shared.results.expect(turn)
        task = self._tasks[stream] = asyncio.create_task(self._serve(stream), name=f"perdure:serve:{stream}")
        task.add_done_callback(lambda _: self._served(stream))  # also when it is cancelled before it begins

    async def admit(self, new: Delivery) -> Admission:
        """Put something into an inbox, and claim the stream with it if it is free. Before we are told, we may have
        found there what we put there: then that claim is over, and is not told."""
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

    def stir(self, streams: Collection[StreamId]) -> bool:
        """Something was put into the inboxes of these streams; whether we have all of them in hand."""
        here = [stream for stream in streams if stream in self.residents or stream in self._tasks]
        for stream in here:
            self.poke(stream)
            if (resident := self.residents.get(stream)) is not None and resident.under_way:
                self._wake(self._look_again(stream), f"perdure:look:{stream}")
        return len(here) == len(streams)

    def _wake(self, work: Coroutine[None, None, None], name: str) -> None:
        """Do something that nobody waits for."""
        if self._aborted:
            work.close()
            return
        task = asyncio.create_task(work, name=name)
        self._waking.add(task)
        task.add_done_callback(self._waking.discard)

    async def _look_again(self, stream: StreamId) -> None:
        try:
            await self.look(stream)
        except Error as problem:  # the store is away: whoever drives it finds out too
            log.warning("%s", problem, extra={"stream": stream})

    def offer(self, stream: StreamId, item: Input) -> Offer | None:
        """Hand an input to a session that is idle in memory; None if it must wait its turn in the inbox."""
        resident, task = self.residents.get(stream), self._tasks.get(stream)
        here = task is not None and not task.done()  # it looks for more to do, and finds this
        if stream in self._seats:
            return None  # it leaves its seat after each turn
        if resident is None or not (self._goes_on if here else self.idle):
            return None
        offer = resident.offer(item)
        if offer is not None and not here:
            self.poke(stream, in_order=True)
        return offer

    @property
    def _goes_on(self) -> bool:
        return not self.closed and not self._shared.crowd.waiting

    def offered(self, stream: StreamId) -> Offer | None:
        """The input that was handed to a session and is not yet taken."""
        resident = self.residents.get(stream)
        return resident.offered if resident else None

    def drives(self, stream: StreamId, turn: TurnId) -> bool:
        """Whether this turn is running here, or about to."""
        resident = self.residents.get(stream) if stream in self._tasks else None
        drives = resident.drives(turn) if resident is not None else None
        return self._shared.results.is_coming(turn) if drives is None else drives

    async def look(self, stream: StreamId | None = None) -> None:
        """Others wrote into a stream, or into any: running turns should know."""
        residents = (self.residents.get(stream),) if stream is not None else tuple(self.residents.values())
        for resident in residents:
            if resident is not None:
                await resident.look()

    async def _serve(self, stream: StreamId) -> None:
        resident: Served | None = None
        try:
            resident = self.residents.get(stream) or await self._claim(stream)
            if resident is not None:
                await resident.load()
                self._begun(stream)
                await resident.serve(once=stream in self._seats)
                self._backoff_s.pop(stream, None)
                if resident.parked:
                    del self.residents[stream]
        except Error as problem:
            await self._give_up(stream, resident, problem)
        except Exception:
            log.exception("a session could not be served; it will be tried again", extra={"stream": stream})
            await self._give_up(stream, resident, None)

    async def _claim(self, stream: StreamId) -> Served | None:
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
        resident = self.residents[stream] = self._resident(claim)
        if self.trials.claimed(claim):
            log.warning("what ended its last workers is tried once more, alone", extra={"stream": stream})
            resident.on_record = partial(self.trials.over, stream)
        return resident

    async def _ask_for(self, stream: StreamId) -> Claim | Held | None:
        asked = asyncio.ensure_future(self._shared.store.claim(stream, self._shared.worker))
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:  # it is written all the same
            asked.add_done_callback(self._came_too_late)
            raise

    def _came_too_late(self, asked: asyncio.Future[Claim | Held | None]) -> None:
        """Whoever wanted a stream is gone: so it is not for us."""
        if asked.cancelled() or asked.exception() is not None:
            return
        claim = asked.result()
        if isinstance(claim, Claim):
            self._free(claim)

    def _free(self, claim: Claim) -> None:
        """It was claimed for nothing: others may have it at once, and need not wait until our lease lapses."""
        self._wake(_hand_over(self._resident(claim)), f"perdure:free:{claim.stream}")

    def _resident(self, claim: Claim) -> Served:
        match stream_names(claim.stream)[1]:
            case "process":
                return ProcessResident(self._shared, claim)
            case "schedule":
                return ScheduleResident(self._shared, claim)
            case "trigger":
                return TriggerResident(self._shared, claim)
            case _:
                return Resident(self._shared, claim)

    def _begun(self, stream: StreamId) -> None:
        """It is not one of those that were only found any more. Look for others, if there may be some."""
        self._found.discard(stream)
        if self.more_waits and len(self._found) <= MAX_BEGINNING // 2:
            self.more_waits = False
            self._on_room()

    async def _must_wait(self, stream: StreamId) -> bool:
        """Whether the turn is parked and nothing has happened to it: an input that was sent meanwhile is not enough. Or
        its owner is gone: it may be a suspect, and whose turn it is then, the store knows."""
        info = await self._shared.store.stream(stream)
        if info is None:
            return False
        if info.owner not in (None, self._shared.worker) and not info.owner_alive:
            self._on_room()
            return True
        return info.parked and not any(is_news(row.item) for row in await self._shared.store.inbox(stream))

    def _served(self, stream: StreamId) -> None:
        del self._tasks[stream]
        self._begun(stream)
        self.trials.over(stream)
        if (turn := self._coming.pop(stream, None)) is not None:
            self._shared.results.leave(turn)  # if it has not run by now, it may run elsewhere
        left = stream not in self._refold and self._leave(stream)
        if stream in self._refold or stream in self._again:
            in_order = stream in self._refold or self.offered(stream) is not None  # nobody else would find that
            self._refold.discard(stream)
            self._again.discard(stream)
            self.poke(stream, in_order=in_order)
        elif left or self._shared.crowd.waiting:
            self._on_room()
        idle = [name for name in self.residents if name not in self._tasks]
        for name in idle[: max(0, len(idle) - MAX_IDLE)]:  # oldest first; the stream stays ours until somebody asks
            del self.residents[name]

    def _leave(self, stream: StreamId) -> bool:
        """Give back its seat, if it has one."""
        if self._seats.pop(stream, None) is None:
            return False
        self._shared.permits.leave(stream)
        return True

    async def _give_up(self, stream: StreamId, resident: Served | None, problem: Error | None) -> None:
        self.residents.pop(stream, None)
        if resident:
            resident.leave_to(self._orphans)
        match problem.code if problem else None:
            case Code.AGENT_UNKNOWN | Code.PROCESS_DEFINITION_UNKNOWN if resident:
                log.warning("%s", problem, extra={"stream": stream})
                self.unknown_agents.add(stream)
                await resident.hand_over()
            case Code.CODEC_FAILED if resident:
                log.error("%s", problem, extra={"stream": stream})
                self.unknown_agents.add(stream)  # whoever has the key shall have it
                await resident.let_go()
            case Code.GATE_CLOSED | Code.LEASE_LOST:
                self._refold.add(stream)  # fold the log again: it says what happened
            case Code.COMMIT_CONFLICT if problem is not None and "inbox" in problem.details:
                self._refold.add(stream)  # somebody took back an input that we were taking
            case _:
                self._rest(stream, problem)

    def _rest(self, stream: StreamId, problem: Error | None) -> None:
        longest = _STORE_BACKOFF_S if problem is not None and problem.code in _STORE_AWAY else _LAST_BACKOFF_S
        delay = self._backoff_s[stream] = min(self._backoff_s.get(stream, _FIRST_BACKOFF_S / 2) * 2, longest)
        self._resting[stream] = self._seats.get(stream, "")
        if problem is not None and problem.code is Code.TASK_LIMIT_EXCEEDED:
            self._deferred[stream] = None
        if problem is not None:
            log.warning("%s; trying again in %.1f s", problem, delay, extra={"stream": stream})
        asyncio.get_running_loop().call_later(delay, self._rested, stream)

    def _rested(self, stream: StreamId) -> None:
        queue = self._resting.get(stream)
        if queue and not self.closed:
            self._wake(self._sit_again(stream, queue), f"perdure:seat:{stream}")
        elif queue is not None:
            del self._resting[stream]
            self._deferred.pop(stream, None)
            self.poke(stream, in_order=True)

    def has_room(self) -> None:
        """A run in the background is over: whoever has waited for that longest need not rest any longer."""
        first = next((stream for stream in self._deferred if stream in self._resting), None)
        if first is not None and not self.closed:
            del self._deferred[first]
            self._rested(first)

    async def _sit_again(self, stream: StreamId, queue: str) -> None:
        """It has rested, and others had its seat meanwhile: wait for one."""
        try:
            seated = await self._shared.permits.seat(queue, stream)
        except Error as problem:
            log.warning("%s", problem)
            seated = False
        if stream not in self._resting or self.closed:
            self._shared.permits.leave(stream)
        elif seated:
            del self._resting[stream]
            self._seats[stream] = queue
            self.poke(stream, in_order=True)
        else:
            asyncio.get_running_loop().call_later(_SEAT_S, self._rested, stream)

    def forget(self, stream: StreamId) -> None:
        """The stream is gone: stop serving it."""
        resident = self.residents.pop(stream, None)
        self.unknown_agents.discard(stream)
        if self._resting.pop(stream, None):
            self._shared.permits.leave(stream)
        if task := self._tasks.get(stream):
            task.cancel()
        if resident:
            resident.abandon()

    def abort(self) -> None:
        """Stop at once whatever an interrupted `close` left; the log knows what became of it."""
        self.closed = self._aborted = True
        for task in (*self._tasks.values(), *self._waking):
            task.cancel()
        for resident in self.residents.values():
            resident.abandon()

    async def close(self, timeout_s: float, *, retiring: bool) -> None:
        """Let turns finish for a while, then hand over what is left.

        A worker that retires right afterwards frees its idle sessions by that; otherwise they are handed over here,
        and at once if others take long.
        """
        self.closed = True
        self._shared.lounge.close()
        self._shared.permits.leave(*(stream for stream, queue in self._resting.items() if queue))
        for resident in self.residents.values():
            resident.stopping = True
        idle = [resident for stream, resident in self.residents.items() if stream not in self._tasks]
        if retiring and not self._tasks:
            idle = []
        await asyncio.gather(*(_hand_over(resident) for resident in idle))
        if self._tasks:
            await asyncio.wait(tuple(self._tasks.values()), timeout=timeout_s)
        rest = [resident for resident in self.residents.values() if resident not in idle]
        for resident in rest:
            resident.forbid_starts()
        if left := tuple(self._tasks.values()):
            for task in left:
                task.cancel()
            await asyncio.wait(left)
        await asyncio.gather(*(_hand_over(resident) for resident in rest if resident.under_way or not retiring))
        for claim in self._claims.values():
            self._free(claim)
        self._claims.clear()
        await self._orphans.settle(timeout_s)
        self.residents.clear()


async def _hand_over(resident: Served) -> None:
    try:
        await resident.hand_over()
    except Error as problem:
        if problem.code is not Code.LEASE_LOST:  # somebody has it already
            log.warning("a session could not be handed over: %s", problem, extra={"stream": resident.stream})
