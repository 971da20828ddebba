"""Waits of a turn: in memory up to the idle timeout, then in the store.

A wait ends by an answer, by time, or by being unwound. All waits are registered here, so that the turn knows when
nothing else is in flight and it may park.
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
from perdure.observe.ends import end_and_reply
from perdure.processes.record import PendingSignals
from perdure.store.protocol import Store
from perdure.store.shapes import AlreadyResolved
from perdure.tools.step_outcomes import Parked
from perdure.vocab.log_keys import PROCESS_END
from perdure.vocab.promises import (
    Cancelled,
    EventKey,
    Failure,
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
class StreamWait:
    """A wait for a promise, a deadline, or the earlier of both."""

    owner: EffectId
    key: EventKey | None
    due_at: int | None
    answered: asyncio.Future[Resolution] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    task: asyncio.Task[object] | None = field(default_factory=asyncio.current_task)

    def answer(self, resolution: Resolution) -> None:
        """End the wait with the promise's resolution."""
        if not self.answered.done():
            self.answered.set_result(resolution)

    def stop(self) -> None:
        """Cancel the wait."""
        if not self.answered.done():
            self.answered.set_exception(asyncio.CancelledError("its end was asked for"))
            self.answered.exception()

    def unwind(self) -> None:
        """End the wait with `Parked`, because the idle timeout has passed."""
        if not self.answered.done():
            self.answered.set_exception(Parked())
            self.answered.exception()  # retrieved: a wait that is being set up may never read it
            if self.task:
                self.task.add_done_callback(_look_at)


def _look_at(task: asyncio.Task[object]) -> None:
    """Retrieve the exception of a detached task, so that its unwinding is not logged as an error."""
    if not task.cancelled():
        task.exception()


class Waits:
    """The open waits of one turn."""

    def __init__(
        self, store: Store, clock: Clock, changed: Callable[[], None], signals: PendingSignals | None = None
    ) -> None:
        self._store = store
        self._signals = signals or PendingSignals()
        self._clock = clock
        self._changed = changed
        self._open: dict[StreamWait, None] = {}  # oldest first
        self._watched: set[PromiseId] = set()
        self._looking: Counter[EffectId] = Counter()
        self._touched: dict[EffectId, float] = {}

    def of(self, owner: EffectId) -> OwnersWaits:
        """Return the waits of one effect."""
        return OwnersWaits(self, owner)

    def waiting(self, owner: EffectId) -> bool:
        """Return True if this effect only waits: no lookup is in progress, and all answers have reached it."""
        if not self._open or self._looking[owner]:
            return False
        mine = [wait for wait in self._open if wait.owner == owner]
        return bool(mine) and not any(wait.answered.done() for wait in mine)

    def holds_up(self, owner: EffectId, task: asyncio.Task[object] | None) -> bool:
        """Return True if this task itself waits, so that it cannot continue before that wait ends."""
        return any(wait.owner == owner and wait.task is task for wait in self._open)

    def quiet_s(self, owner: EffectId) -> float:
        """Return for how many seconds nothing has begun or ended on behalf of this effect."""
        return asyncio.get_running_loop().time() - self._touched.get(owner, 0.0)

    def touch(self, owner: EffectId) -> None:
        """Note that something began or ended on behalf of this effect.

        If only waits are left of it, its turn is notified.
        """
        self._touched[owner] = asyncio.get_running_loop().time()
        if self._open and self.waiting(owner):
            self._changed()

    @property
    def count(self) -> int:
        """The number of open waits."""
        return len(self._open)

    @property
    def promises(self) -> tuple[PromiseId, ...]:
        """The promises that are waited for.

        Signals are left out, because they are in the waiting process's own log. Ends of turns are left out, because the
        other session notifies its waiters.
        """
        keys = [wait.key for wait in self._open if wait.key and not _is_signal(wait.key)]
        return tuple({key.key_id for key in keys if not isinstance(key.wait, TurnTerminal)})

    @property
    def due_at(self) -> int | None:
        """The next time at which a wait ends by itself."""
        return min((wait.due_at for wait in self._open if wait.due_at is not None), default=None)

    async def until(self, owner: EffectId, key: EventKey | None, due_at: int | None) -> Resolution | None:
        """Wait for an answer or a time. Return None if the time came first."""
        wait = StreamWait(owner, key, due_at)
        self._open[wait] = None  # registered before the lookup, so that an answer in between is not lost
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

    async def give_up(self, key: EventKey, silence: Json = None) -> Resolution:
        """End a promise whose time is over, with a timeout or with the value of `silence`. An earlier answer stands."""
        ending = TimedOut() if silence is None else Ok(value=silence)
        if isinstance(key.wait, ProcessSignal | ProcessTerminal | TurnTerminal):
            return ending  # the end of a wait does not change the event that was waited for
        return await resolve(self._store, key, ending, now=self._clock.wall_ms())

    async def withdraw(self, key: EventKey, *, telling: bool = True) -> Resolution:
        """Cancel a promise that is no longer waited for, unless it has an answer.

        Without `telling`, the promise stays as it is. The bearer of its key then finds out only when answering.
        """
        if not telling or isinstance(key.wait, TurnTerminal):
            return await self._known(key) or Cancelled()
        return await resolve(self._store, key, Cancelled(), now=self._clock.wall_ms())

    async def _look_first(self, owner: EffectId, key: EventKey) -> Resolution | None:
        """Return an existing resolution. The effect cannot be parked during this lookup."""
        self._looking[owner] += 1
        try:
            return await self._known(key)
        finally:
            self._looking[owner] -= 1
            self.touch(owner)

    async def _answered_in_time(self, wait: StreamWait) -> bool:
        if wait.due_at is None:
            await asyncio.wait({wait.answered})
            return True
        alarm = asyncio.ensure_future(self._clock.sleep_until(wait.due_at))
        try:
            await asyncio.wait({wait.answered, alarm}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            alarm.cancel()
        return wait.answered.done()

    async def _known(self, key: EventKey) -> Resolution | None:
        if _is_signal(key):
            return self._signals.give(key)
        if isinstance(key.wait, ProcessTerminal):
            return await self._end_of(key)
        if isinstance(key.wait, TurnTerminal):
            return await ended_turn(self._store, key)
        state = await self._store.peek(key.key_id)
        return state.resolution if state else None

    async def _end_of(self, key: EventKey) -> Resolution | None:
        """Return how a process ended, or None.

        A process notifies only existing promises, so the promise is created first.
        """
        stream = scope_of(key.scope).stream
        if key.key_id not in self._watched:
            try:
                await self._store.promise(PromiseState(id=key.key_id, stream=stream))
            except Error as problem:
                if problem.code is not Code.SESSION_UNKNOWN:
                    raise
                return Failure(code=Code.PROCESS_UNKNOWN.value, message="unknown process")
            self._watched.add(key.key_id)
        return end_told(await self._store.find(stream, PROCESS_END))

    def let_go(self, key: EventKey) -> None:
        """Return a signal that its waiter did not take. The next waiter gets it."""
        if _is_signal(key) and self._signals.take_back(key):
            self.hand_out()

    def hand_out(self) -> None:
        """Deliver the signals that have come to their waiters, because the wakes for a parked process are consumed."""
        for wait in [one for one in self._open if not one.answered.done()]:
            if wait.key and _is_signal(wait.key) and (known := self._signals.give(wait.key)):
                wait.answer(known)

    async def poll(self) -> None:
        """Check for answers given in other processes."""
        for wait in tuple(self._open):
            if wait.key and (known := await self._known(wait.key)):
                wait.answer(known)

    def refuse_ends(self, answer: Failure) -> None:
        """End all waits for the ends of processes with this error."""
        for wait in tuple(self._open):
            if wait.key and isinstance(wait.key.wait, ProcessTerminal):
                wait.answer(answer)

    def stop(self) -> None:
        """Cancel all waits."""
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

    async def until(self, promise: EventKey | None, due_at: int | None) -> Resolution | None:
        """Wait for an answer or a time."""
        return await self.waits.until(self.owner, promise, due_at)

    async def give_up(self, promise: EventKey, silence: Json = None) -> Resolution:
        """End a promise whose time is over."""
        return await self.waits.give_up(promise, silence)

    def let_go(self, promise: EventKey) -> None:
        """Return what was given for this promise and not taken."""
        self.waits.let_go(promise)

    def changed(self) -> None:
        """Note that the effect began or finished something."""
        self.waits.touch(self.owner)


def _is_signal(key: EventKey) -> bool:
    return isinstance(key.wait, ProcessSignal)


def end_told(row: Row | None) -> Ok | None:
    """Return the value for waits on the end of a process, or None."""
    if row is None or not isinstance(row.record, ProcessEvent):
        return None
    return Ok(value=decode(encode(row.record.output)))


async def ended_turn(store: Store, key: EventKey) -> Resolution | None:
    """Return how the turn named by a key ended, in another session. Return None while it is not over."""
    scope = TurnScope.parse(key.scope)
    over = await end_and_reply(store, scope.stream, scope.turn)
    if over is None:
        if await store.stream(scope.stream) is not None:
            return None
        return Failure(code=Code.SUBAGENT_GONE.value, message=f"session {scope.session} was deleted before it answered")
    ended, answer = over
    text = answer.text if answer else ""
    value: Json = {"status": ended.status, "reason": ended.reason, "message": ended.message, "text": text}
    return Ok(value=value)


async def resolve(store: Store, key: EventKey, resolution: Resolution, *, now: int) -> Resolution:
    """Resolve a promise, unless it has a resolution. Return the one that stands."""
    stream = scope_of(key.scope).stream
    try:
        promise = PromiseState(id=key.key_id, stream=stream)
        answered = await store.resolve(promise.id, resolution, now=now, make=promise)
    except Error as problem:
        if problem.code is not Code.SESSION_UNKNOWN:
            raise
        return resolution  # the session of the promise was deleted: no other answer can come
    return answered.resolution if isinstance(answered, AlreadyResolved) else resolution
