"""An owned stream: facts are submitted one by one and reach the store in order, in as few appends as possible.

Laws: what is durable is always a prefix of what was submitted. Facts of one tick of the event loop are one append. The
first refused append ends the ownership: nothing is submitted after it, and the observer is notified once. The exception
is a provisional append, which needs an approval. No append follows it before the store has checked it. Without a valid
approval its facts are withdrawn, and everything else continues.
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
    Blob,
    ClearTimer,
    Entry,
    PersonRequest,
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
from perdure.services.secrets import Redactor
from perdure.store.answer import Answer
from perdure.store.protocol import Store
from perdure.vocab.records import Record, Row, TurnEnded, TurnOpened

_EDGES = frozenset({TurnOpened, TurnEnded})

SOFT_BYTES = MAX_COMMIT_BYTES // 2
SOFT_ROWS = MAX_COMMIT_ROWS // 2
"""Facts beyond these limits go into a separate append, well before the store would refuse."""

PARK = "park"
"""The timer of a parked stream: the earliest time at which one of its waits ends by itself."""


Stir: TypeAlias = Callable[[Collection[StreamId]], None]
"""Callback for streams that have received deliveries."""


class AppendObserver(Protocol):
    """Callbacks for committed, refused and withdrawn appends."""

    def durable(self, records: tuple[Record, ...], plan: Plan, receipt: Receipt) -> None:
        """Handle facts that became durable."""
        ...

    def admitted(self, rows: tuple[Row, ...]) -> None:
        """Handle rows that others wrote before those facts."""
        ...

    def refused(self, error: Error) -> None:
        """Handle the end of the ownership."""
        ...

    def withdrawn(self, records: tuple[Record, ...], error: Error) -> None:
        """Handle facts that were not written for lack of an approval. The rows of others are known by then."""
        ...


class _Nobody:
    def durable(self, records: tuple[Record, ...], plan: Plan, receipt: Receipt) -> None: ...
    def admitted(self, rows: tuple[Row, ...]) -> None: ...
    def refused(self, error: Error) -> None: ...
    def withdrawn(self, records: tuple[Record, ...], error: Error) -> None: ...


def _nobody_to_tell(_: TurnEnded) -> tuple[Delivery, ...]:
    return ()


@dataclass(slots=True)
class _AppendExtras:
    """The parts of an append that are not facts. Most appends have none, so the first part creates this."""

    consume: tuple[int, ...] = ()
    timers: tuple[SetTimer | ClearTimer, ...] = ()
    outbox: tuple[Delivery, ...] = ()
    blobs: tuple[Blob, ...] = ()
    drops: tuple[BlobHash, ...] = ()
    snapshot: Snapshot | None = None
    person_requests: tuple[PersonRequest, ...] = ()
    uses: tuple[PromiseId, ...] = ()
    unless: tuple[str, ...] = ()
    prunes: Prune | None = None
    provisional: bool = False
    recovers: bool = False

    def added_to(self, plan: Plan) -> Plan:
        """Return a plan of facts with all of these parts."""
        return replace(
            plan,
            consume=self.consume,
            timers=self.timers,
            outbox=self.outbox,
            blobs=self.blobs,
            drops=self.drops,
            snapshot=self.snapshot,
            person_requests=self.person_requests,
            uses=self.uses,
            unless=self.unless,
            prunes=self.prunes,
            recovers=self.recovers,
        )


class OwnedStream:
    """The writing end of one stream, while its fence is the current one. It is the ledger of a journaled controller.

    `active` tells the store with every append whether the stream has an unfinished turn. `notify_streams` gets the
    streams to which an append has delivered something. `on_end` returns the deliveries for the end of a turn. The call
    is made here, so that every way to end a turn includes it.
    """

    def __init__(
        self,
        store: Store,
        stream: StreamId,
        worker: WorkerId,
        fence: Fence,
        known_seq: Seq,
        clock: Clock,
        notify_streams: Stir,
    ) -> None:
        self.store = store
        self.stream = stream
        self.worker = worker
        self.fence = fence
        self.known_seq = known_seq
        self.error: Error | None = None
        self.listener: AppendObserver = _Nobody()
        self._clock = clock
        self._stir = notify_streams
        self.redactor = Redactor()
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
        self._lapses = store.lapses(worker)
        self._reset()

    def _reset(self) -> None:
        self._records: list[Record] = []
        self._entries: list[Entry] = []
        self._bytes = 0
        self._extras: _AppendExtras | None = None
        self._dirty = False

    # --- submitting

    def submit(
        self, *records: Record, consume: tuple[int, ...] = (), outbox: tuple[Delivery, ...] = ()
    ) -> tuple[Record, ...]:
        """Submit facts, in order.

        The same append removes the inbox rows in `consume`, and puts `outbox` into the inboxes of other streams. The
        receipt has the verdicts on `outbox`. Secrets in the facts are redacted here, so that observers do not see them
        before the store does. Return the facts as written.
        """
        records = self.redactor.values(records)
        self.submit_all(records, consume, outbox)
        return records

    def submit_all(
        self, records: tuple[Record, ...], consume: tuple[int, ...] = (), outbox: tuple[Delivery, ...] = ()
    ) -> None:
        """Submit facts that are already a tuple and redacted, like `submit`."""
        now, size, active = self._clock.wall_ms(), 0, self.active
        entries: list[Entry] = []
        for record in records:
            entry = Entry.of(record, at=now)
            entries.append(entry)
            size += len(entry.data)
            if type(record) in _EDGES:
                active = isinstance(record, TurnOpened)
                if isinstance(record, TurnEnded):
                    outbox = (*outbox, *self.on_end(record))
        for new in outbox:
            size += len(new.data)
        if (self._entries or self._extras) and not self._has_room(size, len(entries) + len(outbox)):
            self.flush()
        self.active = active
        self._records += records
        self._entries += entries
        self._bytes += size
        if consume or outbox:
            also = self._also()
            also.consume += consume
            also.outbox += outbox
        self._touch()

    def _has_room(self, size: int, rows: int) -> bool:
        """Return True if this much more fits into the append. The first item always fits."""
        there = len(self._entries) + (len(self._extras.outbox) if self._extras else 0)
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
        """Release references to bytes in the same append. Bytes that it was to store are not stored."""
        also = self._also()
        also.blobs = tuple([blob for blob in also.blobs if blob.hash not in hashes])
        also.drops += hashes
        self._touch()

    def ask(self, *asks: PersonRequest) -> None:
        """Request something from people, in the same append as the record of the request."""
        self._also().person_requests += asks
        self._touch()

    def need(self, uses: tuple[PromiseId, ...], unless: tuple[str, ...], *, provisional: bool = False) -> None:
        """Make everything since the last append depend on these approvals, and on log keys that must be free.

        A provisional append that is refused for that reason is withdrawn.
        """
        also = self._also()
        also.uses += uses
        also.unless += unless
        also.provisional = also.provisional or provisional
        self._touch()

    def part(self) -> None:
        """Start a new append if the current one needs an approval, so that later facts are not refused with it."""
        if self._extras and (self._extras.uses or self._extras.unless):
            self.flush()

    def recover(self) -> None:
        """Mark the current append as recovery of what a gone worker left, which is no progress."""
        self._also().recovers = True

    def snapshot(self, snapshot: Snapshot) -> None:
        """Store a snapshot in the same append."""
        self._also().snapshot = snapshot
        self._touch()

    def prune(self, prune: Prune) -> None:
        """Remove rows from the log, in the same append as the record of the removal."""
        self._also().prunes = prune
        self._touch()

    def _also(self) -> _AppendExtras:
        """Return the parts of the next append that are not facts."""
        if self._extras is None:
            self._extras = _AppendExtras()
        return self._extras

    def _touch(self) -> None:
        self._dirty = True
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        self._scheduled = False
        self.flush()

    async def park(self, waits: tuple[PromiseId, ...], due_at: int | None) -> bool:
        """Release the stream until a wait ends or a time comes.

        Return False if a wait had already ended: the stream stays owned.

        Raises:
            Error: why the store refused the append.
        """
        self.timer(ClearTimer(PARK), *((SetTimer(PARK, due_at),) if due_at is not None else ()))
        self._parked = False
        self.flush(lease="release", waits=waits, parked=True)
        await self.durable()
        if not self._parked:
            self.unpark(at_once=False)
        return self._parked

    def unpark(self, *, at_once: bool) -> None:
        """Clear the timer of the parked turn, at once or with the next append."""
        self._also().timers += (ClearTimer(PARK),)
        if at_once:
            self._touch()

    def flush(
        self, *, lease: Literal["keep", "release"] = "keep", waits: tuple[PromiseId, ...] = (), parked: bool = False
    ) -> None:
        """Send what was submitted to the store, as one append. With `release`, the append also releases the stream."""
        if self.error or not (self._dirty or lease == "release"):
            return
        self._n += 1
        records, extras = tuple(self._records), self._extras
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
        provisional = False
        if extras is not None:
            plan, provisional = extras.added_to(plan), extras.provisional
        self._reset()
        if self._held is None:
            self._send(plan, records, provisional=provisional)
        else:
            self._drafts.append((plan, records, provisional))

    def _send(self, plan: Plan, records: tuple[Record, ...], *, provisional: bool) -> None:
        if provisional:
            self._held = plan
        self._in_flight.append(records)
        self._ahead += len(records)
        settle = partial(self._settle, plan, self.store.lapses(self.worker))
        try:
            appended = self.store.append(plan)
        except Error as refusal:
            self._refuse(refusal)
            return
        if isinstance(appended, Answer):
            appended.then = settle
            return
        future = asyncio.ensure_future(appended)
        if future.done() and len(self._in_flight) == 1:
            settle(future)  # already committed: one tick of the event loop is saved
        else:
            future.add_done_callback(settle)

    def _settle(self, plan: Plan, lapses: int, future: asyncio.Future[Receipt]) -> None:
        if future.cancelled():
            return
        problem = future.exception()
        if problem is not None:
            if plan is self._held and not self.error and _lacks_approval(problem, plan):
                self._judging = asyncio.ensure_future(self._withdraw(plan, problem))
            else:
                self._refuse(problem)
            return
        if self.error:
            return
        receipt = future.result()
        self._lapses = lapses
        self._parked = plan.parked and not receipt.resolved
        records = self._in_flight.popleft()
        self._ahead -= len(records)
        if receipt.missed and (missed := tuple(row for row in receipt.missed if row.seq > self.known_seq)):
            self.listener.admitted(missed)
        self.known_seq = max(self.known_seq, receipt.last_seq)
        self.listener.durable(records, plan, receipt)
        if plan.outbox:
            told = zip(plan.outbox, receipt.sent, strict=True)
            self._stir({new.stream for new, sent in told if sent.verdict == "accepted"})
        if plan is self._held:
            self._go_on()
        self._let_on(plan.n, at_once=isinstance(future, Answer) and future.alone)

    def _let_on(self, n: int, *, at_once: bool) -> None:
        """Resume the waiters of append `n`. With `at_once`, what they then submit becomes one append."""
        ticks, self._scheduled = self._scheduled, self._scheduled or at_once
        try:
            self._wake_up_to(n, at_once=at_once)
        finally:
            self._wake_up_to(n)  # waiters are left only if a resumed task has raised out of the event loop
            if at_once and not ticks:
                self._tick()

    def _wake_up_to(self, n: int, *, at_once: bool = False) -> None:
        """Resume the waiters of append `n` and of earlier ones."""
        while self._waiting and self._waiting[0][0] <= n:
            _wake(self._waiting.popleft()[1], at_once=at_once)

    async def _withdraw(self, plan: Plan, problem: Error) -> None:
        """Withdraw an append whose approval is invalid. Nothing of it was written, and no append was sent after it.

        The rows that others wrote are read first: they have the reason.
        """
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
        """Send the appends that waited for the check of the provisional one."""
        self._held = None
        while self._drafts and self._held is None and not self.error:
            plan, records, provisional = self._drafts.popleft()
            n = self._n - len(self._drafts)
            plan = replace(plan, n=n, known_seq=self.known_seq, ahead=self._ahead)
            self._send(plan, records, provisional=provisional)

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
            Error: why the store refused an append.
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
        """Return a future that ends with None once everything submitted so far is durable, or with the store's refusal.

        The fate of later appends does not affect it.
        """
        waiter: asyncio.Future[Error | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._n + 1 if self._dirty else self._n, waiter))
        return waiter

    def lease_live(self) -> bool:
        """Return True if our lease has certainly not lapsed since the last append was sent. Never waits.

        After a lapse another worker may have claimed the stream, although the heartbeat has renewed the lease since.
        """
        # threat: S3
        return self.store.lease_live(self.worker) and self.store.lapses(self.worker) == self._lapses

    async def reassert(self) -> None:
        """Renew a lapsed lease with an empty append. Success proves that no other worker claimed the stream."""
        await self.store.renew(self.worker)
        self._dirty = True
        await self.durable()

    @property
    def settled(self) -> bool:
        """True if everything submitted is durable."""
        return not (self._in_flight or self._drafts or self._dirty)

    def undurable(self) -> tuple[Record, ...]:
        """Return the facts that the store has not confirmed."""
        waiting = (records for _, records, _ in self._drafts)
        return (*(record for records in (*self._in_flight, *waiting) for record in records), *self._records)


def _lacks_approval(problem: BaseException, plan: Plan) -> TypeGuard[Error]:
    """Return True if a plan was refused because its approval is invalid, and for no other reason."""
    if not isinstance(problem, Error):
        return False
    forbidden = problem.code is Code.GATE_CLOSED and problem.details.get("key") in plan.unless
    return forbidden or problem.code is Code.APPROVAL_STALE


def rows_of(plan: Plan, receipt: Receipt) -> tuple[Row, ...]:
    """Return the rows that an append has written."""
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
