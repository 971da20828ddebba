"""Permits of one worker: asked for before an effect is recorded as begun, given back when it is over.

Whoever waits is a row in the store and an entry here: no thread, no task. All of a worker are asked for together.
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
from perdure.runtime.work import Limits, Work
from perdure.store.permits import Ask
from perdure.store.protocol import Store
from perdure.turn.state import AskModel, Effect, RunCall

log = logging.getLogger("perdure.runtime")


@dataclass(slots=True)
class Wanted:
    """What one effect needs, and who is told when it has it, or will not have it."""

    ask: Ask
    on_news: Callable[[], None]
    granted: bool = False


class Permits:
    """What this worker holds and waits for."""

    def __init__(self, store: Store, clock: Clock, worker: WorkerId, work: Work) -> None:
        self.work = work
        self._store = store
        self._clock = clock
        self._worker = worker
        self._wanted: dict[str, Wanted] = {}
        self._back: set[str] = set()
        self._in_line: dict[str, str] = {}  # of a queue, the seat that this worker waits for
        self._exchanging = asyncio.Lock()  # what is given back and asked for again must not overtake each other
        self._numbers = itertools.count(1)
        self._dirty = False
        self.leaving = False
        self._task: asyncio.Task[None] | None = None

    def want(self, stream: StreamId, effect: EffectId, limits: Limits, on_news: Callable[[], None]) -> Wanted:
        """Ask for permits; `on_news` is called once they are there."""
        ask = Ask(f"{stream}#{effect}#{self._worker}.{next(self._numbers)}", limits, waits=not self.leaving)
        wanted = self._wanted[ask.holder] = Wanted(ask, on_news)
        self._go()
        return wanted

    def give_back(self, wanted: Wanted) -> None:
        """It is over, or not wanted any more."""
        if self._wanted.pop(wanted.ask.holder, None) is not None:
            self._back.add(wanted.ask.holder)
            self._go()

    @asynccontextmanager
    async def held(self, stream: StreamId, effect: EffectId, what: str) -> AsyncGenerator[None]:
        """Do something within the limits of `what`, for a call that waits for it in memory.

        Whoever waits here may hold a permit of its own only if nobody who holds one of `what` waits for anything.
        """
        limits = self.work.limits_of(what)
        if not limits:
            yield
            return
        news = asyncio.Event()
        wanted = self.want(stream, effect, limits, news.set)
        try:
            while not wanted.granted:  # a worker that leaves cancels its calls in the end
                news.clear()
                await news.wait()
            yield
        finally:
            self.give_back(wanted)

    def leave_line(self) -> None:
        """This worker drains: what has no permit by now, or does not get it at once, is begun by others."""
        self.leaving = True
        self.wait_only_for(())
        for wanted in [wanted for wanted in self._wanted.values() if not wanted.granted]:
            self.give_back(wanted)
            wanted.on_news()

    async def seats(self, queue: str, streams: Sequence[StreamId]) -> set[StreamId]:
        """Those of some sessions of a queue, in their order, that may be driven now. If the first may not it waits,
        and whoever drives another one of the queue lets it go first."""
        first = _seat(streams[0])
        lined = self._in_line.pop(queue, first)
        if lined != first:
            self._back.add(lined)
        granted = await self._sit(queue, streams)
        if streams[0] not in granted:
            self._in_line[queue] = first
        return granted

    async def seat(self, queue: str, stream: StreamId) -> bool:
        """Whether a session that had a seat has one again. If not it is in line, until it leaves."""
        return bool(await self._sit(queue, (stream,)))

    async def _sit(self, queue: str, streams: Sequence[StreamId]) -> set[StreamId]:
        limits = ((f"queue:{queue}", self.work.caps[queue]),)
        asks = tuple(Ask(_seat(stream), limits, waits=stream is streams[0]) for stream in streams)
        try:
            granted = await self._swap(asks)
        except BaseException:
            self.leave(*streams)  # it may have happened, and nobody would know
            raise
        return {stream for stream in streams if _seat(stream) in granted}

    def wait_only_for(self, queues: Collection[str]) -> None:
        """There is nobody any more for whom a seat of any other queue was wanted. Who leaves wants none at all."""
        for queue in self._in_line.keys() - (set() if self.leaving else set(queues)):
            self._back.add(self._in_line.pop(queue))
            self._go()

    def leave(self, *streams: StreamId) -> None:
        """These sessions are not driven any more."""
        self._back.update(_seat(stream) for stream in streams)
        if streams:
            self._go()

    def look(self) -> None:
        """Somebody may have given something back."""
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
            except Error as problem:  # the store is away: the next look tries again
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

    async def _swap(self, asks: tuple[Ask, ...]) -> frozenset[str]:
        """Give back what is over, and ask. What was given back is forgotten once the store has answered."""
        async with self._exchanging:
            back = tuple(self._back)
            if not (asks or back):
                return frozenset()
            granted = await self._store.exchange(self._worker, asks=asks, back=back, now=self._clock.wall_ms())
            self._back.difference_update(back)
            return granted

    async def close(self) -> None:
        """Give back what was not given back yet."""
        while self._task is not None and not self._task.done():
            await asyncio.wait({self._task})


class TurnPermits:
    """What the effects of one turn need before they may begin."""

    def __init__(self, permits: Permits, stream: StreamId, on_news: Callable[[], None]) -> None:
        self._permits = permits
        self._stream = stream
        self._on_news = on_news
        self._asked: dict[EffectId, Wanted] = {}
        self._lent: set[EffectId] = set()

    @property
    def in_line(self) -> bool:
        """Whether something of the turn waits for a permit, or has one and has not begun."""
        return bool(self._asked)

    @property
    def worth_waiting(self) -> bool:
        """Whether something is in line and may stay there: not if the turn holds permits meanwhile, which may be the
        very ones, or those that somebody waits for who has ours; nor if the worker leaves."""
        return self.in_line and not self._lent and not self._permits.leaving

    def may_begin(self, item: Effect, model: str) -> bool:
        """Whether an effect may begin now; if not, there will be news when it may."""
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
        """It begins: its permits are given back when its task is over, and really not before."""
        wanted = self._asked.pop(effect, None)
        if wanted is not None:
            self._lent.add(effect)
            task.add_done_callback(lambda _: self._lent.discard(effect))
            task.add_done_callback(lambda _: self._permits.give_back(wanted))

    def only(self, effects: Collection[EffectId | None]) -> None:
        """Whatever else was asked for is not owed any more."""
        for effect in [effect for effect in self._asked if effect not in effects]:
            self._permits.give_back(self._asked.pop(effect))


def _seat(stream: StreamId) -> str:
    return f"{stream}#seat"
