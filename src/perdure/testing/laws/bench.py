"""Base of the laws: a store under test, and short helpers for the setup."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, Self, TypedDict, Unpack

from msgspec.structs import replace

from perdure.commit.plan import Blob, ClearTimer, Entry, PersonRequest, Plan, Prune, Receipt, SetTimer, Snapshot
from perdure.errors import Code, Error
from perdure.ids import DEFAULT_TENANT, BlobHash, Fence, InputId, PromiseId, Seq, SessionId, StreamId, TurnId, WorkerId
from perdure.ids import session_stream as _session_stream
from perdure.inbox.admit import Delivery, delivery
from perdure.inbox.items import Input
from perdure.store.protocol import Store
from perdure.store.shapes import Claim
from perdure.testing.clock import ManualClock
from perdure.vocab.messages import Text
from perdure.vocab.promises import PromiseState
from perdure.vocab.records import CancelRequested, Row, write

LEASE_MS = 10_000
ANN = WorkerId("ann")
BOB = WorkerId("bob")


class Bench(Protocol):
    """A store with its clock. Leases last `LEASE_MS` on `clock`."""

    @property
    def clock(self) -> ManualClock:
        """The clock of the store and of every handle on it."""
        ...

    @property
    def store(self) -> Store:
        """The store under test, open."""
        ...

    async def reopen(self) -> Store:
        """Open another handle on the same data, as another process does. The bench closes it."""
        ...

    def kill(self, worker: WorkerId) -> None:
        """End a worker's process without cleanup. Its death is then proven to all handles."""
        ...


class StoreBench:
    """A bench made of two functions, open while its context is entered.

    `open_store` returns a handle on the same data at every call; a store in memory is its own only handle. `kill` makes
    a worker of such a handle look dead to all handles, as if its process had ended without cleanup.
    """

    def __init__(self, open_store: Callable[[ManualClock], Store], kill: Callable[[Store, WorkerId], object]) -> None:
        self.clock = ManualClock()
        self._open_store = open_store
        self._kill = kill
        self.store = open_store(self.clock)
        self._opened = [self.store]

    async def reopen(self) -> Store:
        """Open another handle on the same data."""
        other = self._open_store(self.clock)
        await other.open()
        self._opened.append(other)
        return other

    def kill(self, worker: WorkerId) -> None:
        """End a worker's process without cleanup."""
        for store in self._opened:
            self._kill(store, worker)

    async def __aenter__(self) -> Self:
        await self.store.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        for store in self._opened:
            await store.close()


def stream_of(name: str) -> StreamId:
    """Return the stream of a session."""
    return _session_stream(DEFAULT_TENANT, SessionId(name))


def note(text: str, *, key: str | None = None, version: int = 1) -> Entry:
    """Return a small real record that carries a text."""
    data = write(CancelRequested(turn=TurnId("t"), request=text))
    return Entry(kind="cancel_requested", data=data, at=7, key=key, version=version)


def notes(rows: Iterable[Row]) -> list[tuple[int, str]]:
    """Return the seq and text of the notes among these rows."""
    found = ((row.seq, row.record) for row in rows)
    return [(seq, record.request) for seq, record in found if isinstance(record, CancelRequested)]


def said(stream: StreamId, text: str, *, key: str = "", agent: str | None = "agent", turn: str = "") -> Delivery:
    """Return an input for a session. It opens the session unless `agent` is None."""
    turn, key = turn or f"turn-{text}", key or f"key-{text}"
    item = Input(input=InputId(f"input-{turn}"), turn=TurnId(turn), parts=(Text(text=text),), key=key)
    return delivery(stream, key, item, at=5, agent=agent)


def shown(stream: StreamId, *blobs: Blob, refers: tuple[BlobHash, ...] = (), key: str = "k") -> Delivery:
    """Return an input with blobs, or with references to known blobs."""
    return replace(said(stream, f"see {key}", key=key), blobs=blobs, refers=refers)


def repeated(first: Receipt) -> Receipt:
    """Return the receipt of a plan that was written before."""
    return replace(first, replayed=True, quiet=False)


class Extras(TypedDict, total=False):
    """The parts of a plan other than records."""

    consume: tuple[int, ...]
    timers: tuple[SetTimer | ClearTimer, ...]
    waits: tuple[PromiseId, ...]
    outbox: tuple[Delivery, ...]
    blobs: tuple[Blob, ...]
    drops: tuple[BlobHash, ...]
    snapshot: Snapshot
    known_seq: Seq
    active: bool
    parked: bool
    person_requests: tuple[PersonRequest, ...]
    uses: tuple[PromiseId, ...]
    unless: tuple[str, ...]
    recovers: bool
    prunes: Prune


@dataclass(slots=True)
class Hold:
    """A stream owned by a worker. Numbers the plans, and tracks the known and planned records."""

    stream: StreamId
    worker: WorkerId
    fence: Fence
    n: int = 0
    known: Seq = Seq(0)
    ahead: int = 0

    def plan(self, *entries: Entry, **extras: Unpack[Extras]) -> Plan:
        """Return the next plan."""
        self.n += 1
        ahead = 0 if "known_seq" in extras else self.ahead
        extras.setdefault("known_seq", self.known)
        self.ahead += len(entries)
        which = (self.stream, self.worker, self.fence, self.n)
        return Plan(*which, entries=entries, ahead=ahead, **extras)

    def parting(self, *entries: Entry, **extras: Unpack[Extras]) -> Plan:
        """Return the next plan, which also releases the stream as idle."""
        extras.setdefault("active", False)
        return replace(self.plan(*entries, **extras), lease="release")


async def enlist(bench: Bench, *workers: WorkerId, store: Store | None = None) -> None:
    """Register workers."""
    for worker in workers:
        await (store or bench.store).register(worker, pid=1, version="1", now=bench.clock.wall_ms())


async def open_stream(store: Store, name: str, *, stream: StreamId | None = None) -> StreamId:
    """Open a session, or another stream, with one opening record (seq 1) and one input in its inbox."""
    stream = stream or stream_of(name)
    await store.admit(said(stream, "hello"))
    return stream


async def take(store: Store, stream: StreamId, worker: WorkerId) -> Hold:
    """Claim a stream that must be free."""
    claim = await store.claim(stream, worker)
    assert isinstance(claim, Claim), claim
    return Hold(stream, worker, claim.fence, known=claim.last_seq)


async def held(bench: Bench, name: str = "one", worker: WorkerId = ANN, *, stream: StreamId | None = None) -> Hold:
    """Return a new session, or another new stream, owned by a registered worker, with an empty inbox."""
    await enlist(bench, worker)
    hold = await take(bench.store, await open_stream(bench.store, name, stream=stream), worker)
    (opening,) = await bench.store.inbox(hold.stream)
    await bench.store.append(hold.plan(consume=(opening.id,)))
    return hold


async def parked(bench: Bench, name: str = "one", **extras: Unpack[Extras]) -> Hold:
    """Return a session that ann released as idle after a last plan."""
    hold = await held(bench, name)
    await bench.store.append(hold.parting(**extras))
    return hold


async def promised(bench: Bench, id: str, stream: StreamId) -> PromiseId:
    """Create an open promise."""
    promise = PromiseId(id)
    await bench.store.promise(PromiseState(id=promise, stream=stream))
    return promise


async def refusal(bench: Bench, plan: Plan) -> Code:
    """Append a plan that must be refused, and return the error code."""
    try:
        receipt = await bench.store.append(plan)
    except Error as error:
        return error.code
    raise AssertionError(f"not refused: {receipt}")
