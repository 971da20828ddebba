"""Waiting on behalf of a turn: in memory while it is worth it, then in the store.

A wait ends by an answer, by time, or by being unwound. Whoever waits here registers that it does, so that the turn
knows when nothing else is under way and it may be parked.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from perdure.clock import Clock
from perdure.codec import Json, decode, encode
from perdure.effects.promises import TurnScope, scope_of
from perdure.errors import Code, Error
from perdure.ids import EffectId, PromiseId
from perdure.observe.ends import told
from perdure.processes.record import Signals
from perdure.store.protocol import Store
from perdure.store.shapes import AlreadyResolved
from perdure.tools.endings import Parked
from perdure.vocab.log_keys import PROCESS_END
from perdure.vocab.promises import (
    AwaitEventKey,
    Cancelled,
    Err,
    Ok,
    ProcessSignal,
    ProcessTerminal,
    PromiseState,
    Resolution,
    TimedOut,
    TurnTerminal,
)
from perdure.vocab.records import ProcessEvent, Row


@dataclass(eq=False, slots=True)
class Wait:
    """Somebody waits: for an answer, for a moment, or for whichever comes first."""

    owner: EffectId
    key: AwaitEventKey | None
    due_at: int | None
    answered: asyncio.Future[Resolution] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    task: asyncio.Task[object] | None = field(default_factory=asyncio.current_task)

    def answer(self, resolution: Resolution) -> None:
        """The promise has ended."""
        if not self.answered.done():
            self.answered.set_result(resolution)

    def stop(self) -> None:
        """Whoever waits is asked to end."""
        if not self.answered.done():
            self.answered.set_exception(asyncio.CancelledError("its end was asked for"))
            self.answered.exception()

    def unwind(self) -> None:
        """It takes too long to wait in memory."""
        if not self.answered.done():
            self.answered.set_exception(Parked())
            self.answered.exception()  # retrieved: a wait that is being set up may never look
            if self.task:
                self.task.add_done_callback(_look_at)


def _look_at(task: asyncio.Task[object]) -> None:
    """A body may leave tasks behind that nobody awaits: that they were unwound is not worth an error in the log."""
    if not task.cancelled():
        task.exception()


class Waits:
    """The open waits of one turn."""

    def __init__(self, store: Store, clock: Clock, changed: Callable[[], None], signals: Signals | None = None) -> None:
        self._store = store
        self._signals = signals or Signals()
        self._clock = clock
        self._changed = changed
        self._open: dict[Wait, None] = {}  # in the order of coming
        self._watched: set[PromiseId] = set()
        self._looking: Counter[EffectId] = Counter()
        self._touched: dict[EffectId, float] = {}

    def of(self, owner: EffectId) -> OwnersWaits:
        """The waits of one effect."""
        return OwnersWaits(self, owner)

    def waiting(self, owner: EffectId) -> bool:
        """Whether this effect waits: it does not just look at what it is about to wait for, and all that was answered
        has reached it.
        """
        if not self._open or self._looking[owner]:
            return False
        mine = [wait for wait in self._open if wait.owner == owner]
        return bool(mine) and not any(wait.answered.done() for wait in mine)

    def holds_up(self, owner: EffectId, task: asyncio.Task[object] | None) -> bool:
        """Whether this task itself waits, so that nothing it does could go on before that wait ends."""
        return any(wait.owner == owner and wait.task is task for wait in self._open)

    def quiet_s(self, owner: EffectId) -> float:
        """For how long nothing has begun or ended on behalf of this effect."""
        return asyncio.get_running_loop().time() - self._touched.get(owner, 0.0)

    def touch(self, owner: EffectId) -> None:
        """Something began or ended on behalf of this effect: news if it waits, as it may have nothing else left."""
        self._touched[owner] = asyncio.get_running_loop().time()
        if self._open and self.waiting(owner):
            self._changed()

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._open)

    @property
    def promises(self) -> tuple[PromiseId, ...]:
        """What is waited for, by promise. Signals are none: they are in the log of who waits. Nor is the end of a turn:
        its session tells who waits for it."""
        keys = [wait.key for wait in self._open if wait.key and not _is_signal(wait.key)]
        return tuple({key.key_id for key in keys if not isinstance(key.wait, TurnTerminal)})

    @property
    def due_at(self) -> int | None:
        """The next moment at which a wait ends by itself."""
        return min((wait.due_at for wait in self._open if wait.due_at is not None), default=None)

    async def until(self, owner: EffectId, key: AwaitEventKey | None, due_at: int | None) -> Resolution | None:
        """Wait here. None if it is time, and there is no answer."""
        wait = Wait(owner, key, due_at)
        self._open[wait] = None  # before looking: what is answered meanwhile is told to those who are here
        try:
            if key and (known := await self._look_first(owner, key)):
                return known
            if wait.answered.done() or due_at is None or due_at > self._clock.wall_ms():
                self.touch(owner)
                if await self._answered_in_time(wait):
                    return wait.answered.result()
        finally:
            self._open.pop(wait, None)
            self.touch(owner)
        return None

    async def give_up(self, key: AwaitEventKey, silence: Json = None) -> Resolution:
        """Time is over for this promise: it ends with that, or with what silence means, unless it was answered in the
        last moment.
        """
        ending = TimedOut() if silence is None else Ok(value=silence)
        if isinstance(key.wait, ProcessSignal | ProcessTerminal | TurnTerminal):
            return ending  # that somebody gave up waiting changes nothing about what will come
        return await resolve(self._store, key, ending, now=self._clock.wall_ms())

    async def withdraw(self, key: AwaitEventKey, *, telling: bool = True) -> Resolution:
        """Nobody waits for this promise any more: it ends with that, unless it was answered before.

        Without `telling`, the promise itself is left alone: whoever has its key finds out when they answer.
        """
        if not telling or isinstance(key.wait, TurnTerminal):
            return await self._known(key) or Cancelled()
        return await resolve(self._store, key, Cancelled(), now=self._clock.wall_ms())

    async def _look_first(self, owner: EffectId, key: AwaitEventKey) -> Resolution | None:
        """What is there must not be parked for; and as long as we look, nothing may be parked without this wait."""
        self._looking[owner] += 1
        try:
            return await self._known(key)
        finally:
            self._looking[owner] -= 1
            self.touch(owner)

    async def _answered_in_time(self, wait: Wait) -> bool:
        if wait.due_at is None:
            await asyncio.wait({wait.answered})
            return True
        alarm = asyncio.ensure_future(self._clock.sleep_until(wait.due_at))
        try:
            await asyncio.wait({wait.answered, alarm}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            alarm.cancel()
        return wait.answered.done()

    async def _known(self, key: AwaitEventKey) -> Resolution | None:
        if _is_signal(key):
            return self._signals.give(key)
        if isinstance(key.wait, ProcessTerminal):
            return await self._end_of(key)
        if isinstance(key.wait, TurnTerminal):
            return await ended_turn(self._store, key)
        state = await self._store.peek(key.key_id)
        return state.resolution if state else None

    async def _end_of(self, key: AwaitEventKey) -> Resolution | None:
        """How a process ended. It tells its end to a promise only if there is one, so that comes first."""
        stream = scope_of(key.scope).stream
        if key.key_id not in self._watched:
            try:
                await self._store.promise(PromiseState(id=key.key_id, stream=stream))
            except Error as problem:
                if problem.code is not Code.SESSION_UNKNOWN:
                    raise
                return Err(code=Code.PROCESS_UNKNOWN.value, message="there is no such process")
            self._watched.add(key.key_id)
        return end_told(await self._store.find(stream, PROCESS_END))

    def let_go(self, key: AwaitEventKey) -> None:
        """Whoever waited for this does not take it: a signal goes to whoever waits for the next one."""
        if _is_signal(key) and self._signals.take_back(key):
            self.hand_out()

    def hand_out(self) -> None:
        """Give the signals that have come to those who wait for them: what would wake a parked process is used up."""
        for wait in [one for one in self._open if not one.answered.done()]:
            if wait.key and _is_signal(wait.key) and (known := self._signals.give(wait.key)):
                wait.answer(known)

    async def look(self) -> None:
        """Somebody may have answered in another process."""
        for wait in tuple(self._open):
            if wait.key and (known := await self._known(wait.key)):
                wait.answer(known)

    def refuse_ends(self, answer: Err) -> None:
        """The ends of processes that are waited for will not come."""
        for wait in tuple(self._open):
            if wait.key and isinstance(wait.key.wait, ProcessTerminal):
                wait.answer(answer)

    def stop(self) -> None:
        """Whoever waits here is asked to end."""
        for wait in tuple(self._open):
            wait.stop()

    def unwind(self, owner: EffectId | None = None) -> None:
        """End the waits of an effect, or all of them, with `Parked`."""
        for wait in tuple(self._open):
            if owner is None or wait.owner == owner:
                wait.unwind()


@dataclass(frozen=True, slots=True)
class OwnersWaits:
    """Waits on behalf of one effect."""

    waits: Waits
    owner: EffectId

    async def until(self, promise: AwaitEventKey | None, due_at: int | None) -> Resolution | None:
        """Wait for an answer or a moment."""
        return await self.waits.until(self.owner, promise, due_at)

    async def give_up(self, promise: AwaitEventKey, silence: Json = None) -> Resolution:
        """Time is over for this promise."""
        return await self.waits.give_up(promise, silence)

    def let_go(self, promise: AwaitEventKey) -> None:
        """Nobody takes what was given for this promise."""
        self.waits.let_go(promise)

    def changed(self) -> None:
        """The effect began or finished something."""
        self.waits.touch(self.owner)


def _is_signal(key: AwaitEventKey) -> bool:
    return isinstance(key.wait, ProcessSignal)


def end_told(row: Row | None) -> Ok | None:
    """What whoever waits for a process is told of its end."""
    if row is None or not isinstance(row.record, ProcessEvent):
        return None
    return Ok(value=decode(encode(row.record.output)))


async def ended_turn(store: Store, key: AwaitEventKey) -> Resolution | None:
    """How the turn of another session ended that a key names; None while it is not over."""
    scope = TurnScope.parse(key.scope)
    over = await told(store, scope.stream, scope.turn)
    if over is None:
        if await store.stream(scope.stream) is not None:
            return None
        return Err(code=Code.SUBAGENT_GONE.value, message=f"session {scope.session} was deleted before it answered")
    ended, answer = over
    text = answer.text if answer else ""
    value: Json = {"status": ended.status, "reason": ended.reason, "message": ended.message, "text": text}
    return Ok(value=value)


async def resolve(store: Store, key: AwaitEventKey, resolution: Resolution, *, now: int) -> Resolution:
    """Answer a promise, unless somebody was first; what it ended with."""
    stream = scope_of(key.scope).stream
    try:
        promise = PromiseState(id=key.key_id, stream=stream)
        answered = await store.resolve(promise.id, resolution, now=now, make=promise)
    except Error as problem:
        if problem.code is not Code.SESSION_UNKNOWN:
            raise
        return resolution  # the session that the promise belonged to was deleted: nobody else will answer
    return answered.resolution if isinstance(answered, AlreadyResolved) else resolution
