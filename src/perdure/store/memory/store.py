"""`MemoryStore`: every law of the store protocol, in dicts. Nothing survives the process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from perdure.clock import Clock
from perdure.commit.changes import Amendment, Intervention, Label, NewStream, Note, Redaction
from perdure.commit.plan import Blob, Entry, Plan, Receipt
from perdure.errors import Error
from perdure.ids import BlobHash, PromiseId, Seq, StreamId, Tenant, WorkerId
from perdure.inbox.admit import Admission, Delivery
from perdure.store.memory import admissions, appends, changes, claims, leases, promises, reads
from perdure.store.memory.live import MemoryChannel
from perdure.store.memory.state import Tables, Worker
from perdure.store.permits import Ask, Permit
from perdure.store.shapes import (
    EVERYTHING,
    START,
    Annotated,
    Claim,
    Diagnosis,
    Head,
    Held,
    InboxRow,
    Intervened,
    Loaded,
    Ready,
    Resolved,
    Serves,
    StreamInfo,
    WorkerInfo,
)
from perdure.vocab.promises import PromiseState, Resolution
from perdure.vocab.records import Row


class MemoryStore:
    """Durable for as long as the object lives. Several runtimes of one process may share it, as several processes
    share a file: each registers its own worker.
    """

    def __init__(self, clock: Clock, *, lease_ms: int = 10_000) -> None:
        self._on = Tables(clock, lease_ms)
        self.counters = self._on.counters
        self.live = MemoryChannel()

    async def open(self) -> None:
        """Nothing to connect."""

    async def close(self) -> None:
        """Nothing to release: the data lives as long as the object."""

    # --- workers and leases

    async def register(
        self,
        worker: WorkerId,
        *,
        pid: int,
        version: str,
        now: int,
        host: str = "",
        concurrency: int = 0,
        queues: tuple[str, ...] | None = None,
    ) -> None:
        """Make a worker known and alive."""
        leases.register(self._on, Worker(worker, pid, version, now, host, concurrency, queues))

    async def renew(self, worker: WorkerId) -> None:
        """Extend a worker's lease."""
        self._on.extend(worker)
        self._on.committed()

    def lease_live(self, worker: WorkerId) -> bool:
        """Whether this worker's lease has certainly not lapsed."""
        return not self._on.gone(worker)

    async def retire(self, worker: WorkerId, *, loose_ends: bool = False) -> None:
        """The worker ends in order: what it held is free at once. With loose ends it is not dead before we are."""
        leases.retire(self._on, worker, loose_ends=loose_ends)

    async def workers(self) -> tuple[WorkerInfo, ...]:
        """All workers that are known."""
        return leases.workers(self._on)

    async def is_dead(self, worker: WorkerId) -> bool:
        """Whether this worker was killed or has retired; a lapsed lease alone is not certainty."""
        known = self._on.workers.get(worker)
        return known is None or known.dead

    def kill(self, worker: WorkerId) -> None:
        """For tests: the worker's process ends without a word, and everybody can tell."""
        if worker in self._on.workers:
            self._on.workers[worker].dead = True

    async def exchange(
        self, worker: WorkerId, *, asks: Sequence[Ask] = (), back: Sequence[str] = (), now: int
    ) -> frozenset[str]:
        """Give permits back, and ask for others."""
        return leases.exchange(self._on, worker, asks, back, now)

    async def permits(self) -> tuple[Permit, ...]:
        """Every permit that is held or waited for, in the order of asking."""
        return leases.permits(self._on)

    # --- appends

    def append(self, plan: Plan) -> asyncio.Future[Receipt]:
        """Make a plan durable: all of it, or nothing. Done at the call; the future has already ended."""
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(appends.append(self._on, plan))
        except Error as refusal:
            future.set_exception(refusal)
            future.exception()  # nobody has to await an append: a refusal is not an "exception never retrieved"
        return future

    # --- admissions

    async def admit(self, delivery: Delivery, *, claim_for: WorkerId | None = None) -> Admission:
        """Put something into a stream's inbox, once; claim the stream too if it is free and idle."""
        return admissions.admit(self._on, delivery, claim_for)

    # --- changes from outside

    async def annotate(self, stream: StreamId, entry: Entry, *, label: Label | None = None) -> Annotated:
        """Append an admitted record, unfenced; the first one under a key stands."""
        return changes.annotate(self._on, Note(stream, entry, label))

    async def annotate_all(self, notes: Sequence[Note]) -> tuple[Annotated, ...]:
        """Append admitted records to several streams: all or nothing."""
        for note in notes:
            self._on.existing(note.stream)
        return tuple(changes.annotate(self._on, note) for note in notes)

    async def intervene(self, intervention: Intervention) -> Intervened:
        """Do something to a stream from outside: all of it or nothing."""
        return changes.intervene(self._on, intervention)

    async def redact(self, redaction: Redaction) -> Annotated:
        """Replace what a record said, once; its snapshot and the references it alone had go too."""
        return changes.redact(self._on, redaction)

    async def amend(self, amendment: Amendment) -> Annotated:
        """Add a record, with the bytes it brings and without those it lets go."""
        return changes.amend(self._on, amendment)

    async def create(self, new: NewStream) -> None:
        """A stream with its past."""
        changes.create(self._on, new)

    async def drop_snapshot(self, stream: StreamId) -> None:
        """Forget a snapshot; nothing else changes."""
        if stream in self._on.streams:
            self._on.streams[stream].snapshot = None
            self._on.committed()

    async def delete(
        self,
        stream: StreamId,
        *,
        beside: tuple[StreamId, ...] = (),
        edges: tuple[str, ...] = (),
        sends: tuple[Delivery, ...] = (),
    ) -> bool:
        """Remove a stream and everything it owns; whoever waits for one of its promises is woken to find it gone."""
        deleted = changes.delete(self._on, stream, beside, edges, sends)
        await self.live.forget(stream)
        return deleted

    # --- claims

    async def claim(self, stream: StreamId, worker: WorkerId) -> Claim | Held | None:
        """Take a stream that no live worker holds, or that this worker holds. Raises the fence."""
        return claims.claim(self._on, stream, worker)

    async def claimable(
        self, worker: WorkerId, *, limit: int, now: int, serves: Serves = EVERYTHING
    ) -> tuple[StreamId, ...]:
        """Streams with work that this worker may drive, in order."""
        return tuple(stream.id for stream, _ in claims.ready(self._on, worker, now, serves)[:limit])

    async def claim_ready(
        self, worker: WorkerId, *, limit: int, now: int, serves: Serves = EVERYTHING
    ) -> tuple[Ready, ...]:
        """What `claimable` tells, and those that nobody holds are claimed with it."""
        self._on.committed()
        return tuple(
            Ready(stream.id, place.queue, claims.take(self._on, stream, worker) if stream.owner is None else None)
            for stream, place in claims.ready(self._on, worker, now, serves)[:limit]
        )

    async def place(self, stream: StreamId, queue: str | None, priority: int | None) -> None:
        """Give a stream a queue and a priority of its own."""
        found = self._on.existing(stream)
        found.queue, found.priority = queue, priority
        self._on.committed()

    # --- promises

    async def promise(self, promise: PromiseState) -> PromiseState:
        """Create a promise if it does not exist; the stored one is returned."""
        return promises.promise(self._on, promise)

    async def resolve(
        self, promise: PromiseId, resolution: Resolution, *, now: int, make: PromiseState | None = None
    ) -> Resolved:
        """Answer a promise: the first answer stands, and every stream that waits for it is woken."""
        if make is not None:
            promises.promise(self._on, make)
        return promises.resolve(self._on, promise, resolution, now)

    async def resolve_all(
        self, answers: Sequence[tuple[PromiseState, Resolution]], *, now: int
    ) -> dict[PromiseId, Resolution]:
        """Answer several promises, all of them or none; what stood in the way."""
        return promises.resolve_all(self._on, answers, now)

    async def peek(self, promise: PromiseId) -> PromiseState | None:
        """A promise as it is now."""
        return self._on.promises.get(promise)

    async def asked(
        self, *, tenant: Tenant, limit: int, after: tuple[int, PromiseId] | None = None
    ) -> tuple[PromiseState, ...]:
        """What people are asked and have not answered, the longest waiting first."""
        return promises.asked(self._on, tenant, after)[:limit]

    async def asked_as(self, *, tenant: Tenant, prefix: str, limit: int) -> tuple[PromiseState, ...]:
        """What people were asked under ids that begin like this."""
        return promises.asked_as(self._on, tenant, prefix)[:limit]

    async def secret(self, name: str) -> bytes:
        """32 random bytes, the same as long as the object lives."""
        return self._on.secrets.setdefault(name, os.urandom(32))

    # --- reads

    async def now(self) -> int:
        """The clock's."""
        return self._on.clock.wall_ms()

    async def next_due(self) -> int | None:
        """The earliest timer of all streams."""
        return min((due for s in self._on.streams.values() for due in s.timers.values()), default=None)

    async def load(self, stream: StreamId, *, code: str) -> Loaded:
        """What a new owner folds; a snapshot of another code version is passed over."""
        return reads.load(self._on, stream, code)

    async def inbox(self, stream: StreamId) -> tuple[InboxRow, ...]:
        """What waits for a stream, oldest first."""
        found = self._on.streams.get(stream)
        return tuple(found.inbox.values()) if found else ()

    async def read(
        self, stream: StreamId, *, after: Seq = START, until: Seq | None = None, limit: int | None = None
    ) -> tuple[Row, ...]:
        """Log rows in order, `after` exclusive, `until` inclusive."""
        found = self._on.streams.get(stream)
        return tuple(found.rows(after, until)[:limit]) if found else ()

    async def find(self, stream: StreamId, key: str) -> Row | None:
        """The row with this log key."""
        found = self._on.streams.get(stream)
        return found.keys.get(key) if found else None

    async def count(self, stream: StreamId, begins: str, *, until: Seq) -> int:
        """How many rows up to `until` have a log key that begins like this."""
        found = self._on.streams.get(stream)
        return sum(key.startswith(begins) and row.seq <= until for key, row in found.keys.items()) if found else 0

    async def stream(self, stream: StreamId) -> StreamInfo | None:
        """One stream's row."""
        found = self._on.streams.get(stream)
        return reads.info(self._on, found) if found else None

    async def streams(
        self,
        *,
        tenant: Tenant,
        kind: str,
        limit: int,
        before: tuple[int, StreamId] | None = None,
        tag: str | None = None,
    ) -> tuple[StreamInfo, ...]:
        """Streams, the most recently changed first."""
        found = reads.changed(self._on, tenant, kind, before, tag)
        return tuple(reads.info(self._on, stream) for stream in found[:limit])

    async def newest(
        self,
        *,
        tenant: Tenant,
        kind: str,
        tag: str,
        limit: int,
        before: int | None = None,
        agent: str | None = None,
    ) -> tuple[StreamInfo, ...]:
        """Streams, the latest made first."""
        found = reads.newest(self._on, tenant, kind, before, tag, agent)
        return tuple(reads.info(self._on, stream) for stream in found[:limit])

    async def marks(self, streams: Sequence[StreamId], key: str) -> tuple[Row, ...]:
        """The first record of each, and the one under a log key."""
        found = [self._on.streams[name] for name in streams if name in self._on.streams]
        return tuple(row for s in found for row in (*s.rows(until=Seq(1)), s.keys.get(key)) if row is not None)

    async def heads(self, streams: Sequence[StreamId]) -> dict[StreamId, Head]:
        """Where these streams end, those that exist."""
        found = [reads.info(self._on, self._on.streams[name]) for name in streams if name in self._on.streams]
        return {info.stream: Head(info.number, info.created_at, info.last_seq) for info in found}

    # --- blobs, change, health

    async def blob(self, hash: BlobHash, *, stream: StreamId | None = None) -> Blob:
        """Stored bytes; with a stream, only if it holds a reference."""
        return reads.blob(self._on, hash, stream)

    async def version(self) -> int:
        """Changes with every commit: who shares the object cannot be told apart."""
        return self.counters.commits

    async def check(self) -> tuple[Diagnosis, ...]:
        """Look the store over: only leases can be stuck here."""
        return reads.check(self._on)
