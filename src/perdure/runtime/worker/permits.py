"""Permits of one worker: acquired before the start of an effect is recorded, released when the effect is over.

A waiting request is a row in the store and an entry here, without a thread or task. All requests of a worker go to the
store together.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from perdure.clock import Clock
from perdure.errors import Error
from perdure.ids import EffectId, StreamId, WorkerId
from perdure.runtime.work import Limits, WorkerOptions, queue_caps
from perdure.store.permits import PermitRequest
from perdure.store.protocol import Store
from perdure.turn.state import AskModel, Effect, RunCall

log = logging.getLogger("perdure.runtime")


@dataclass(slots=True)
class PermitWaiter:
    """The permit request of one effect. `on_news` is called when it is granted, or will not be."""

    ask: PermitRequest
    on_news: Callable[[], None]
    granted: bool = False


class Permits:
    """The permits that this worker holds and requests."""

    def __init__(self, store: Store, clock: Clock, worker: WorkerId, work: WorkerOptions) -> None:
        self.work = work
        self._store = store
        self._clock = clock
        self._worker = worker
        self._wanted: dict[str, PermitWaiter] = {}
        self._back: set[str] = set()
        self._in_line: dict[str, str] = {}  # by queue, the slot that this worker waits for
        self._exchanging = asyncio.Lock()  # a release and a new request must not overtake each other
        self._numbers = itertools.count(1)
        self._dirty = False
        self.leaving = False
        self._task: asyncio.Task[None] | None = None

    def want(self, stream: StreamId, effect: EffectId, limits: Limits, on_news: Callable[[], None]) -> PermitWaiter:
        """Request permits; `on_news` is called once they are granted."""
        ask = PermitRequest(f"{stream}#{effect}#{self._worker}.{next(self._numbers)}", limits, waits=not self.leaving)
        wanted = self._wanted[ask.holder] = PermitWaiter(ask, on_news)
        self._go()
        return wanted

    def give_back(self, wanted: PermitWaiter) -> None:
        """Release permits, or withdraw their request."""
        if self._wanted.pop(wanted.ask.holder, None) is not None:
            self._back.add(wanted.ask.holder)
            self._go()

    @asynccontextmanager
    async def held(self, stream: StreamId, effect: EffectId, what: str) -> AsyncGenerator[None]:
        """Hold the permits of `what` during the block, waiting for them in memory.

        The caller may hold other permits only if no holder of `what` waits for anything. Otherwise limits could
        deadlock.
        """
        limits = self.work.limits_of(what)
        if not limits:
            yield
            return
        news = asyncio.Event()
        wanted = self.want(stream, effect, limits, news.set)
        try:
            while not wanted.granted:  # a draining worker cancels its calls in the end
                news.clear()
                await news.wait()
            yield
        finally:
            self.give_back(wanted)

    def leave_line(self) -> None:
        """Withdraw all requests that are not granted at once, because this worker drains.

        Other workers begin that work.
        """
        self.leaving = True
        self.wait_only_for(())
        for wanted in [wanted for wanted in self._wanted.values() if not wanted.granted]:
            self.give_back(wanted)
            wanted.on_news()

    async def slots(self, queue: str, streams: Sequence[StreamId]) -> set[StreamId]:
        """Return those sessions of a queue that may be driven now, in their order.

        If the first one gets no slot, its request waits in the store. A worker that drives another session of the queue
        then gives way to it.
        """
        first = _slot(streams[0])
        lined = self._in_line.pop(queue, first)
        if lined != first:
            self._back.add(lined)
        granted = await self._sit(queue, streams)
        if streams[0] not in granted:
            self._in_line[queue] = first
        return granted

    async def slot(self, queue: str, stream: StreamId) -> bool:
        """Return True if a session that had a slot has one again.

        Otherwise its request waits, until the session leaves.
        """
        return bool(await self._sit(queue, (stream,)))

    async def _sit(self, queue: str, streams: Sequence[StreamId]) -> set[StreamId]:
        limits = ((f"queue:{queue}", queue_caps(self.work)[queue]),)
        asks = tuple(PermitRequest(_slot(stream), limits, waits=stream is streams[0]) for stream in streams)
        try:
            granted = await self._swap(asks)
        except BaseException:
            self.leave(*streams)  # slots may have been granted without a reply
            raise
        return {stream for stream in streams if _slot(stream) in granted}

    def wait_only_for(self, queues: Collection[str]) -> None:
        """Withdraw the slot requests of all other queues, in which no session waits any more.

        A draining worker withdraws all.
        """
        for queue in self._in_line.keys() - (set() if self.leaving else set(queues)):
            self._back.add(self._in_line.pop(queue))
            self._go()

    def leave(self, *streams: StreamId) -> None:
        """Release the slots of these sessions, which are no longer driven."""
        self._back.update(_slot(stream) for stream in streams)
        if streams:
            self._go()

    def check(self) -> None:
        """Retry pending permit requests."""
        if self._back or any(not wanted.granted for wanted in self._wanted.values()):
            self._go()

    def _go(self) -> None:
        self._dirty = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._exchange(), name="perdure:permits")

    async def _exchange(self) -> None:
        while self._dirty:
            self._dirty = False
            asks = tuple(wanted.ask for wanted in self._wanted.values() if not wanted.granted)
            try:
                granted = await self._swap(asks)
            except Error as problem:  # the store is unavailable: the next poll tries again
                log.warning("%s", problem)
                return
            for holder in (ask.holder for ask in asks):
                wanted = self._wanted.get(holder)
                if wanted is None or wanted.granted:
                    continue
                if holder in granted:
                    wanted.granted = True
                    wanted.on_news()
                elif self.leaving:
                    self.give_back(wanted)
                    wanted.on_news()

    async def _swap(self, asks: tuple[PermitRequest, ...]) -> frozenset[str]:
        """Release and request permits in one exchange. Releases are forgotten once the store has replied."""
        async with self._exchanging:
            back = tuple(self._back)
            if not (asks or back):
                return frozenset()
            granted = await self._store.exchange(self._worker, asks=asks, back=back, now=self._clock.wall_ms())
            self._back.difference_update(back)
            return granted

    async def close(self) -> None:
        """Wait until everything has been released."""
        while self._task is not None and not self._task.done():
            await asyncio.wait({self._task})


class TurnPermits:
    """The permits that the effects of one turn need before they begin."""

    def __init__(self, permits: Permits, stream: StreamId, on_news: Callable[[], None]) -> None:
        self._permits = permits
        self._stream = stream
        self._on_news = on_news
        self._asked: dict[EffectId, PermitWaiter] = {}
        self._lent: set[EffectId] = set()

    @property
    def in_line(self) -> bool:
        """True if an effect of the turn waits for a permit, or has one and has not begun."""
        return bool(self._asked)

    @property
    def worth_waiting(self) -> bool:
        """True if a request waits and may stay in line.

        False while the turn holds permits, because requests that wait for each other could deadlock. False also if the
        worker is leaving.
        """
        return self.in_line and not self._lent and not self._permits.leaving

    def may_begin(self, item: Effect, model: str) -> bool:
        """Return True if an effect may begin now. Otherwise the turn is notified when it may."""
        if not self._permits.work.limits or not isinstance(item, AskModel | RunCall):
            return True
        effect = item.ref.id
        if effect not in self._asked:
            what = f"tool:{item.call.name}" if isinstance(item, RunCall) else f"model:{model}"
            limits = self._permits.work.limits_of(what)
            if not limits:
                return True
            self._asked[effect] = self._permits.want(self._stream, effect, limits, self._on_news)
        return self._asked[effect].granted

    def lend(self, effect: EffectId, task: asyncio.Task[None]) -> None:
        """Note that an effect begins. Its permits are released when its task is really over, not before."""
        wanted = self._asked.pop(effect, None)
        if wanted is not None:
            self._lent.add(effect)
            task.add_done_callback(lambda _: self._lent.discard(effect))
            task.add_done_callback(lambda _: self._permits.give_back(wanted))

    def only(self, effects: Collection[EffectId | None]) -> None:
        """Withdraw the requests of all other effects, which are no longer owed."""
        for effect in [effect for effect in self._asked if effect not in effects]:
            self._permits.give_back(self._asked.pop(effect))


def _slot(stream: StreamId) -> str:
    return f"{stream}#slot"
