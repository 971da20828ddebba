"""A stream we own: facts go in one by one and reach the store in order, as few appends as possible.

Laws: what is durable is always a prefix of what was submitted. Facts of one tick of the event loop are one append.
The first refused append ends the ownership: nothing is submitted after it, and its owner is told once. Except for one
on trial, which needs somebody's leave: nothing is handed over behind it before it is judged, and if it has no leave,
its facts are withdrawn and everything else goes on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, TypeAlias, TypeGuard

from msgspec.structs import replace

from perdure.clock import Clock
from perdure.commit.plan import (
    MAX_COMMIT_BYTES,
    MAX_COMMIT_ROWS,
    Ask,
    Blob,
    ClearTimer,
    Entry,
    Plan,
    Prune,
    Receipt,
    SetTimer,
    Snapshot,
)
from perdure.errors import Code, Error
from perdure.ids import BlobHash, Fence, PromiseId, Seq, StreamId, WorkerId
from perdure.inbox.admit import Delivery
from perdure.runtime.worker.baton import Baton
from perdure.store.answer import Answer
from perdure.store.protocol import Store
from perdure.vocab.records import Record, Row, TurnEnded, TurnOpened

_EDGES = frozenset({TurnOpened, TurnEnded})

SOFT_BYTES = MAX_COMMIT_BYTES // 2
SOFT_ROWS = MAX_COMMIT_ROWS // 2
"""Facts beyond these go into an append of their own, well before the store would refuse."""

PARK = "park"
"""The timer of a parked stream: the earliest moment at which one of its waits ends by itself."""


Stir: TypeAlias = Callable[[Collection[StreamId]], None]
"""Who is told that something was put into the inboxes of these streams."""


class Listener(Protocol):
    """Who is told what becomes of the appends."""

    def durable(self, records: tuple[Record, ...], plan: Plan, receipt: Receipt) -> None:
        """These facts are durable."""
        ...

    def admitted(self, rows: tuple[Row, ...]) -> None:
        """Others wrote these before them."""
        ...

    def refused(self, error: Error) -> None:
        """The ownership is over."""
        ...

    def withdrawn(self, records: tuple[Record, ...], error: Error) -> None:
        """These facts needed somebody's leave and have none: they never were. All that others wrote is known."""
        ...


class _Nobody:
    def durable(self, records: tuple[Record, ...], plan: Plan, receipt: Receipt) -> None: ...
    def admitted(self, rows: tuple[Row, ...]) -> None: ...
    def refused(self, error: Error) -> None: ...
    def withdrawn(self, records: tuple[Record, ...], error: Error) -> None: ...


def _nobody_to_tell(_: TurnEnded) -> tuple[Delivery, ...]:
    return ()


@dataclass(slots=True)
class _Besides:
    """What an append does besides writing down facts. Most do nothing, so this is made by the first that does."""

    consume: tuple[int, ...] = ()
    timers: tuple[SetTimer | ClearTimer, ...] = ()
    sends: tuple[Delivery, ...] = ()
    blobs: tuple[Blob, ...] = ()
    drops: tuple[BlobHash, ...] = ()
    snapshot: Snapshot | None = None
    asks: tuple[Ask, ...] = ()
    uses: tuple[PromiseId, ...] = ()
    unless: tuple[str, ...] = ()
    prunes: Prune | None = None
    on_trial: bool = False
    recovers: bool = False

    def added_to(self, plan: Plan) -> Plan:
        """A plan of facts, with all of this."""
        return replace(
            plan,
            consume=self.consume,
            timers=self.timers,
            sends=self.sends,
            blobs=self.blobs,
            drops=self.drops,
            snapshot=self.snapshot,
            asks=self.asks,
            uses=self.uses,
            unless=self.unless,
            prunes=self.prunes,
            recovers=self.recovers,
        )


class OwnedStream:
    """The writing end of one stream, for as long as the fence holds. It is the ledger of a journaled controller.

    `active` tells the store, with every append, whether the stream has a turn that somebody must finish. `stir` is
    told which streams an append of ours has sent something to. `on_end` says what the end of a turn sends to others:
    it is asked here, so that no way to end one can forget it.
    """

    def __init__(
        self,
        store: Store,
        stream: StreamId,
        worker: WorkerId,
        fence: Fence,
        known_seq: Seq,
        clock: Clock,
        stir: Stir,
    ) -> None:
        self.store = store
        self.stream = stream
        self.worker = worker
        self.fence = fence
        self.known_seq = known_seq
        self.error: Error | None = None
        self.listener: Listener = _Nobody()
        self._clock = clock
        self._stir = stir
        self.on_end: Callable[[TurnEnded], tuple[Delivery, ...]] = _nobody_to_tell
        self.active = False
        self._n = 0
        self._waiting: deque[tuple[int, asyncio.Future[Error | None]]] = deque()
        self._in_flight: deque[tuple[Record, ...]] = deque()
        self._ahead = 0
        self._scheduled = False
        self._parked = False
        self._held: Plan | None = None
        self._drafts: deque[tuple[Plan, tuple[Record, ...], bool]] = deque()
        self._judging: asyncio.Task[None] | None = None
        self._reset()

    def _reset(self) -> None:
        self._records: list[Record] = []
        self._entries: list[Entry] = []
        self._bytes = 0
        self._besides: _Besides | None = None
        self._dirty = False

    # --- submitting

    def submit(self, *records: Record, consume: tuple[int, ...] = (), sends: tuple[Delivery, ...] = ()) -> None:
        """Put facts into the stream, in order. `consume` takes their inbox rows away in the same append, and `sends`
        are put into the inboxes of other streams by it; the verdicts are in its receipt.
        """
        self.submit_all(records, consume, sends)

    def submit_all(
        self, records: tuple[Record, ...], consume: tuple[int, ...] = (), sends: tuple[Delivery, ...] = ()
    ) -> None:
        """The same, for whoever has them together."""
        now, size, active = self._clock.wall_ms(), 0, self.active
        entries: list[Entry] = []
        for record in records:
            entry = Entry.of(record, at=now)
            entries.append(entry)
            size += len(entry.data)
            if type(record) in _EDGES:
                active = isinstance(record, TurnOpened)
                if isinstance(record, TurnEnded):
                    sends = (*sends, *self.on_end(record))
        for new in sends:
            size += len(new.data)
        if (self._entries or self._besides) and not self._has_room(size, len(entries) + len(sends)):
            self.flush()
        self.active = active
        self._records += records
        self._entries += entries
        self._bytes += size
        if consume or sends:
            also = self._also()
            also.consume += consume
            also.sends += sends
        self._touch()

    def _has_room(self, size: int, rows: int) -> bool:
        """Whether this much more may be written with what there is. Whatever comes first always may."""
        there = len(self._entries) + (len(self._besides.sends) if self._besides else 0)
        return not there or (self._bytes + size <= SOFT_BYTES and there + rows <= SOFT_ROWS)

    def timer(self, *timers: SetTimer | ClearTimer) -> None:
        """Set or clear timers in the same append."""
        self._also().timers += timers
        self._touch()

    def blob(self, *blobs: Blob) -> None:
        """Store bytes in the same append."""
        also = self._also()
        also.blobs += blobs
        also.drops = tuple([hash for hash in also.drops if hash not in {blob.hash for blob in blobs}])
        self._touch()

    def drop(self, *hashes: BlobHash) -> None:
        """Give up references to bytes in the same append; what was to be stored by it is not."""
        also = self._also()
        also.blobs = tuple([blob for blob in also.blobs if blob.hash not in hashes])
        also.drops += hashes
        self._touch()

    def ask(self, *asks: Ask) -> None:
        """Ask people, in the same append as the record that says what."""
        self._also().asks += asks
        self._touch()

    def need(self, uses: tuple[PromiseId, ...], unless: tuple[str, ...], *, on_trial: bool = False) -> None:
        """What was submitted since the last append needs these answers, and that nobody has forbidden it. If it is
        refused for that, and was on trial, it is withdrawn."""
        also = self._also()
        also.uses += uses
        also.unless += unless
        also.on_trial = also.on_trial or on_trial
        self._touch()

    def part(self) -> None:
        """If what was submitted needs somebody's leave, nothing that comes later shall be refused with it."""
        if self._besides and (self._besides.uses or self._besides.unless):
            self.flush()

    def recover(self) -> None:
        """What is submitted until the next append is what a worker that is gone has left: no progress."""
        self._also().recovers = True

    def snapshot(self, snapshot: Snapshot) -> None:
        """Keep a fold in the same append."""
        self._also().snapshot = snapshot
        self._touch()

    def prune(self, prune: Prune) -> None:
        """Take something out of the log, in the same append as the record that says so."""
        self._also().prunes = prune
        self._touch()

    def _also(self) -> _Besides:
        """What the next append does besides."""
        if self._besides is None:
            self._besides = _Besides()
        return self._besides

    def _touch(self) -> None:
        self._dirty = True
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        self._scheduled = False
        self.flush()

    async def park(self, waits: tuple[PromiseId, ...], due_at: int | None) -> bool:
        """Give the stream up until a wait ends or it is due. False if a wait had ended: then it is still ours.

        Raises:
            Error: why the store refused it.
        """
        self.timer(ClearTimer(PARK), *((SetTimer(PARK, due_at),) if due_at is not None else ()))
        self._parked = False
        self.flush(lease="release", waits=waits, parked=True)
        await self.durable()
        if not self._parked:
            self.unpark(at_once=False)
        return self._parked

    def unpark(self, *, at_once: bool) -> None:
        """The turn goes on: forget when it should have been woken, at once or with whatever is written next."""
        self._also().timers += (ClearTimer(PARK),)
        if at_once:
            self._touch()

    def flush(
        self, *, lease: Literal["keep", "release"] = "keep", waits: tuple[PromiseId, ...] = (), parked: bool = False
    ) -> None:
        """Hand what was submitted to the store, as one append; `release` gives the stream up with it."""
        if self.error or not (self._dirty or lease == "release"):
            return
        self._n += 1
        records, besides = tuple(self._records), self._besides
        plan = Plan(
            stream=self.stream,
            worker=self.worker,
            fence=self.fence,
            n=self._n,
            entries=tuple(self._entries),
            known_seq=self.known_seq,
            ahead=self._ahead,
            waits=waits,
            lease=lease,
            active=self.active and not parked,
            parked=parked,
        )
        on_trial = False
        if besides is not None:
            plan, on_trial = besides.added_to(plan), besides.on_trial
        self._reset()
        if self._held is None:
            self._send(plan, records, on_trial=on_trial)
        else:
            self._drafts.append((plan, records, on_trial))

    def _send(self, plan: Plan, records: tuple[Record, ...], *, on_trial: bool) -> None:
        if on_trial:
            self._held = plan
        self._in_flight.append(records)
        self._ahead += len(records)
        try:
            appended = self.store.append(plan)
        except Error as refusal:
            self._refuse(refusal)
            return
        if isinstance(appended, Answer):
            appended.then = partial(self._settle, plan)
            return
        future = asyncio.ensure_future(appended)
        if future.done() and len(self._in_flight) == 1:
            self._settle(plan, future)  # committed on the spot: no need for another turn of the event loop
        else:
            future.add_done_callback(partial(self._settle, plan))

    def _settle(self, plan: Plan, future: asyncio.Future[Receipt]) -> None:
        if future.cancelled():
            return
        problem = future.exception()
        if problem is not None:
            if plan is self._held and not self.error and _has_no_leave(problem, plan):
                self._judging = asyncio.ensure_future(self._withdraw(plan, problem))
            else:
                self._refuse(problem)
            return
        if self.error:
            return
        receipt = future.result()
        self._parked = plan.parked and not receipt.resolved
        records = self._in_flight.popleft()
        self._ahead -= len(records)
        if receipt.missed and (missed := tuple(row for row in receipt.missed if row.seq > self.known_seq)):
            self.listener.admitted(missed)
        self.known_seq = max(self.known_seq, receipt.last_seq)
        self.listener.durable(records, plan, receipt)
        if plan.sends:
            told = zip(plan.sends, receipt.sent, strict=True)
            self._stir({new.stream for new, sent in told if sent.verdict == "accepted"})
        if plan is self._held:
            self._go_on()
        self._let_on(plan.n, at_once=isinstance(future, Answer) and future.alone)

    def _let_on(self, n: int, *, at_once: bool) -> None:
        """Whoever waits for the n-th append goes on. At once: with what they submit then as one append."""
        ticks, self._scheduled = self._scheduled, self._scheduled or at_once
        try:
            self._wake_up_to(n, at_once=at_once)
        finally:
            self._wake_up_to(n)  # whoever went on has ended the event loop, if there is anybody left
            if at_once and not ticks:
                self._tick()

    def _wake_up_to(self, n: int, *, at_once: bool = False) -> None:
        """Wake those who wait for the n-th append, or one before."""
        while self._waiting and self._waiting[0][0] <= n:
            _wake(self._waiting.popleft()[1], at_once=at_once)

    async def _withdraw(self, plan: Plan, problem: Error) -> None:
        """It was judged, and has no leave: nothing of it was written, nothing was handed over behind it. Whoever
        forbade it has written so: that is learned first."""
        try:
            rows = await self.store.read(self.stream, after=self.known_seq)
        except Error as failure:
            self._refuse(failure)
            return
        if rows:
            self.listener.admitted(rows)
            self.known_seq = rows[-1].seq
        records = self._in_flight.pop()
        self._ahead -= len(records)
        self._n -= 1
        if plan.timers:
            also = self._also()
            also.timers = (*plan.timers, *also.timers)
        self._waiting = deque((n - 1 if n >= plan.n else n, waiter) for n, waiter in self._waiting)
        self.listener.withdrawn(records, problem)
        self._go_on()
        self._wake_up_to(plan.n - 1)

    def _go_on(self) -> None:
        """What was on trial is judged: hand over what had to wait for that."""
        self._held = None
        while self._drafts and self._held is None and not self.error:
            plan, records, on_trial = self._drafts.popleft()
            n = self._n - len(self._drafts)
            plan = replace(plan, n=n, known_seq=self.known_seq, ahead=self._ahead)
            self._send(plan, records, on_trial=on_trial)

    def _refuse(self, problem: BaseException) -> None:
        if self.error is None:
            self.error = problem if isinstance(problem, Error) else _internal(problem)
            self.listener.refused(self.error)
            while self._waiting:
                _wake(self._waiting.popleft()[1], self.error)

    # --- waiting

    async def durable(self) -> None:
        """Wait until everything submitted so far is durable.

        Raises:
            Error: why the store refused it.
        """
        if self._in_flight or self._dirty:
            self.store.counters.awaited += 1
        self.flush()
        if self._in_flight and not self.error:
            waiter: Baton[Error | None] = Baton(loop=asyncio.get_running_loop())
            self._waiting.append((self._n, waiter))
            await waiter
        if self.error:
            raise self.error

    def confirm(self) -> asyncio.Future[Error | None]:
        """A future that ends once everything submitted so far is durable (None), or refused (why).

        What becomes of later appends says nothing about it.
        """
        waiter: asyncio.Future[Error | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._n + 1 if self._dirty else self._n, waiter))
        return waiter

    def lease_live(self) -> bool:
        """Whether our lease has certainly not lapsed. Never waits."""
        return self.store.lease_live(self.worker)

    async def reassert(self) -> None:
        """Renew a lapsed lease by an empty append: it proves that nobody took the stream meanwhile."""
        await self.store.renew(self.worker)
        self._dirty = True
        await self.durable()

    @property
    def settled(self) -> bool:
        """Whether everything submitted is durable."""
        return not (self._in_flight or self._drafts or self._dirty)

    def undurable(self) -> tuple[Record, ...]:
        """The facts that the store has not confirmed."""
        waiting = (records for _, records, _ in self._drafts)
        return (*(record for records in (*self._in_flight, *waiting) for record in records), *self._records)


def _has_no_leave(problem: BaseException, plan: Plan) -> TypeGuard[Error]:
    """Whether a plan was refused because somebody's leave is not there, and not for anything else."""
    if not isinstance(problem, Error):
        return False
    forbidden = problem.code is Code.GATE_CLOSED and problem.details.get("key") in plan.unless
    return forbidden or problem.code is Code.APPROVAL_STALE


def rows_of(plan: Plan, receipt: Receipt) -> tuple[Row, ...]:
    """The rows an append became."""
    return tuple(
        Row(
            stream=plan.stream,
            seq=Seq(receipt.first_seq + index),
            at=entry.at,
            kind=entry.kind,
            data=entry.data,
            key=entry.key,
            version=entry.version,
        )
        for index, entry in enumerate(plan.entries)
    )


def _wake(waiter: asyncio.Future[Error | None], error: Error | None = None, *, at_once: bool = False) -> None:
    if waiter.done():
        return
    if at_once and isinstance(waiter, Baton):
        waiter.pass_on(error)
    else:
        waiter.set_result(error)


def _internal(problem: BaseException) -> Error:
    return Error(
        Code.STORE_FAILED, "the store failed in an unexpected way", because=f"{type(problem).__name__}: {problem}"
    )
