"""`MemoryStore`: the store protocol in dicts. All data is lost when the process ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from perdure.clock import Clock
from perdure.commit.changes import Amendment, Audit, Intervention, Label, NewStream, Note, Redaction
from perdure.commit.plan import Blob, Entry, Plan, Receipt
from perdure.errors import Error
from perdure.ids import BlobHash, PromiseId, Seq, StreamId, Tenant, WorkerId
from perdure.inbox.admit import Admission, Delivery, Waiting
from perdure.store.digest_chain import DigestChain
from perdure.store.memory import admissions, appends, changes, claims, leases, promises, reads
from perdure.store.memory.live import MemoryChannel
from perdure.store.memory.state import MemoryWorker, Tables
from perdure.store.permits import Permit, PermitRequest
from perdure.store.shapes import (
    EVERYTHING,
    START,
    Accepted,
    AlreadyOwned,
    Annotated,
    Claim,
    Diagnosis,
    Head,
    InboxRow,
    Intervened,
    Loaded,
    ReadyStream,
    Resolved,
    Serves,
    StreamInfo,
    WorkerInfo,
)
from perdure.vocab.promises import PromiseState, Resolution
from perdure.vocab.records import Row


class MemoryStore:
    """A store whose data lives as long as the object.

    Several runtimes of one process may share it, as processes share a file; each registers its own worker.
    """

    def __init__(self, clock: Clock, *, lease_ms: int = 10_000) -> None:
        self._on = Tables(clock, lease_ms)
        self.counters = self._on.counters
        self.live = MemoryChannel()

    async def open(self) -> None:
        """Do nothing: no connection is needed."""

    def use_chain(self, chain: DigestChain) -> None:
        """Compute and check the digests of logs with this chain."""
        self._on.chain = chain

    async def close(self) -> None:
        """Do nothing: the data lives as long as the object."""

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
        """Register a worker as alive."""
        leases.register(self._on, MemoryWorker(worker, pid, version, now, host, concurrency, queues))

    async def renew(self, worker: WorkerId) -> None:
        """Extend a worker's lease."""
        self._on.extend(worker)
        self._on.committed()

    async def stop_renewing(self) -> None:
        """Do nothing: no connection was opened."""

    def lease_live(self, worker: WorkerId) -> bool:
        """Return whether this worker's lease has certainly not lapsed."""
        return not self._on.gone(worker)

    def lapses(self, worker: WorkerId) -> int:
        """Return how often this worker's lease was renewed after it had lapsed."""
        known = self._on.workers.get(worker)
        return known.lapses if known is not None else 0

    async def deregister(self, worker: WorkerId, *, abandoned_calls: bool = False) -> None:
        """Deregister a worker and release its streams. With `abandoned_calls`, its row stays and is not dead."""
        leases.deregister(self._on, worker, abandoned_calls=abandoned_calls)

    async def workers(self) -> tuple[WorkerInfo, ...]:
        """Return all registered workers."""
        return leases.workers(self._on)

    async def is_dead(self, worker: WorkerId) -> bool:
        """Return whether this worker was killed or deregistered. A lapsed lease does not prove that."""
        known = self._on.workers.get(worker)
        return known is None or known.dead

    def kill(self, worker: WorkerId) -> None:
        """Mark the worker as dead, as if its process had been killed (for tests)."""
        if worker in self._on.workers:
            self._on.workers[worker].dead = True

    async def exchange(
        self, worker: WorkerId, *, asks: Sequence[PermitRequest] = (), back: Sequence[str] = (), now: int
    ) -> frozenset[str]:
        """Release permits and request others; return the holders whose permits are granted."""
        return leases.exchange(self._on, worker, asks, back, now)

    async def permits(self) -> tuple[Permit, ...]:
        """Return all granted and queued permits, in request order."""
        return leases.permits(self._on)

    # --- appends

    def append(self, plan: Plan) -> asyncio.Future[Receipt]:
        """Apply a plan, all or nothing, at the call; the returned future is already completed."""
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(appends.append(self._on, plan))
        except Error as refusal:
            future.set_exception(refusal)
            future.exception()  # mark as retrieved: callers need not await an append
        return future

    # --- admissions

    async def admit(self, delivery: Delivery, *, claim_for: WorkerId | None = None) -> Admission:
        """Put a delivery into a stream's inbox once; also claim the stream if it is idle and unowned."""
        return admissions.admit(self._on, delivery, claim_for)

    # --- changes from outside

    async def waiting(self, tenant: Tenant) -> Waiting:
        """Return the inputs that wait in all streams of a tenant, and their bytes."""
        queues = [stream.waiting for stream in self._on.streams.values() if stream.names[0] == tenant]
        return Waiting(sum(queue.inputs for queue in queues), sum(queue.bytes for queue in queues))

    async def annotate(self, stream: StreamId, entry: Entry, *, label: Label | None = None) -> Annotated:
        """Append an admitted record, without a fence. The first record under its key wins."""
        return changes.annotate(self._on, Note(stream, entry, label))

    async def annotate_all(self, notes: Sequence[Note]) -> tuple[Annotated, ...]:
        """Append admitted records to several streams, all or nothing."""
        for note in notes:
            self._on.existing(note.stream)
        return tuple(changes.annotate(self._on, note) for note in notes)

    async def intervene(self, intervention: Intervention) -> Intervened:
        """Apply a control write, all or nothing."""
        return changes.intervene(self._on, intervention)

    async def redact(self, redaction: Redaction) -> Annotated:
        """Replace a record's content once; delete the snapshot and the blob references of this record alone."""
        noted = changes.redact(self._on, redaction)
        await self.live.forget(redaction.stream)
        return noted

    async def amend(self, amendment: Amendment) -> Annotated:
        """Append one record to an unowned stream, or return the record that already has its log key."""
        return changes.amend(self._on, amendment)

    async def create(self, new: NewStream) -> None:
        """Create a stream with its history."""
        changes.create(self._on, new)

    async def drop_snapshot(self, stream: StreamId) -> None:
        """Delete a stream's snapshot; nothing else changes."""
        if stream in self._on.streams:
            self._on.streams[stream].snapshot = None
            self._on.committed()

    async def delete(
        self,
        stream: StreamId,
        *,
        beside: tuple[StreamId, ...] = (),
        edges: tuple[str, ...] = (),
        outbox: tuple[Delivery, ...] = (),
        audit: Audit = (),
    ) -> bool:
        """Delete a stream and everything it owns; wake streams that wait for its promises, which are unknown then."""
        deleted = changes.delete(self._on, stream, (beside, edges, outbox, audit))
        await self.live.forget(stream)
        return deleted

    # --- claims

    async def claim(self, stream: StreamId, worker: WorkerId) -> Claim | AlreadyOwned | None:
        """Claim a stream that no live worker owns, or that this worker owns; raise its fence."""
        return claims.claim(self._on, stream, worker)

    async def claimable(
        self, worker: WorkerId, *, limit: int, now: int, serves: Serves = EVERYTHING
    ) -> tuple[StreamId, ...]:
        """Return streams with work that this worker may drive, in order."""
        return tuple(stream.id for stream, _ in claims.ready(self._on, worker, now, serves)[:limit])

    async def claim_ready(
        self, worker: WorkerId, *, limit: int, now: int, serves: Serves = EVERYTHING
    ) -> tuple[ReadyStream, ...]:
        """Return claimable streams and claim the free ones in the same transaction."""
        self._on.committed()
        return tuple(
            ReadyStream(stream.id, place.queue, claims.take(self._on, stream, worker) if stream.owner is None else None)
            for stream, place in claims.ready(self._on, worker, now, serves)[:limit]
        )

    async def place(self, stream: StreamId, queue: str | None, priority: int | None) -> None:
        """Set a stream's own queue and priority."""
        found = self._on.existing(stream)
        found.queue, found.priority = queue, priority
        self._on.committed()

    # --- promises

    async def promise(self, promise: PromiseState) -> PromiseState:
        """Create a promise unless it exists; return the stored one."""
        return promises.promise(self._on, promise)

    async def resolve(
        self,
        promise: PromiseId,
        resolution: Resolution,
        *,
        now: int,
        make: PromiseState | None = None,
        audit: Audit = (),
    ) -> Resolved:
        """Resolve a promise and wake every stream that waits for it. The first resolution wins."""
        changes.check_audit(self._on, audit)
        if make is not None:
            promises.promise(self._on, make)
        resolved = promises.resolve(self._on, promise, resolution, now)
        if isinstance(resolved, Accepted):
            changes.put_audit(self._on, audit)
        return resolved

    async def resolve_all(
        self, answers: Sequence[tuple[PromiseState, Resolution]], *, now: int, audit: Audit = ()
    ) -> dict[PromiseId, Resolution]:
        """Resolve several promises, all or none; return the resolutions that prevented it."""
        changes.check_audit(self._on, audit)
        closed = promises.resolve_all(self._on, answers, now)
        changes.put_audit(self._on, () if closed else audit)
        return closed

    async def peek(self, promise: PromiseId) -> PromiseState | None:
        """Return a promise's current state, or None."""
        return self._on.promises.get(promise)

    async def asked(
        self, *, tenant: Tenant, limit: int, after: tuple[int, PromiseId] | None = None
    ) -> tuple[PromiseState, ...]:
        """Return unresolved requests to people, oldest first."""
        return promises.asked(self._on, tenant, after)[:limit]

    async def asked_as(self, *, tenant: Tenant, prefix: str, limit: int) -> tuple[PromiseState, ...]:
        """Return requests to people whose promise id begins with `prefix`."""
        return promises.asked_as(self._on, tenant, prefix)[:limit]

    async def secret(self, name: str, new: bytes) -> bytes:
        """Return 32 random bytes, unchanged as long as the object lives."""
        return self._on.secrets.setdefault(name, new)

    # --- reads

    async def now(self) -> int:
        """Return the time of the clock."""
        return self._on.clock.wall_ms()

    async def next_due(self) -> int | None:
        """Return the earliest due time of all timers, or None."""
        return min((due for s in self._on.streams.values() for due in s.timers.values()), default=None)

    async def check_log(self, stream: StreamId) -> str:
        """Check a stream against the digest chain; return the digest of the last record."""
        return reads.check_log(self._on.existing(stream)).hex()

    async def load(self, stream: StreamId, *, code: str) -> Loaded:
        """Return the data that a new owner folds. Snapshots of another code version are ignored."""
        return reads.load(self._on, stream, code)

    async def inbox(self, stream: StreamId) -> tuple[InboxRow, ...]:
        """Return a stream's queued inbox rows, oldest first."""
        found = self._on.streams.get(stream)
        return tuple(found.inbox.values()) if found else ()

    async def read(
        self, stream: StreamId, *, after: Seq = START, until: Seq | None = None, limit: int | None = None
    ) -> tuple[Row, ...]:
        """Return log rows in order; `after` is exclusive, `until` inclusive."""
        found = self._on.streams.get(stream)
        return tuple(found.rows(after, until)[:limit]) if found else ()

    async def find(self, stream: StreamId, key: str) -> Row | None:
        """Return the row with this log key, or None."""
        found = self._on.streams.get(stream)
        return found.keys.get(key) if found else None

    async def count(self, stream: StreamId, begins: str, *, until: Seq) -> int:
        """Return the number of rows up to `until` whose log key begins with `begins`."""
        found = self._on.streams.get(stream)
        return sum(key.startswith(begins) and row.seq <= until for key, row in found.keys.items()) if found else 0

    async def stream(self, stream: StreamId) -> StreamInfo | None:
        """Return one stream's row, or None."""
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
        """Return streams, most recently changed first."""
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
        """Return streams with a tag, most recently created first."""
        found = reads.newest(self._on, tenant, kind, before, tag, agent)
        return tuple(reads.info(self._on, stream) for stream in found[:limit])

    async def marks(self, streams: Sequence[StreamId], key: str) -> tuple[Row, ...]:
        """Return the first record of each stream and its record under a log key."""
        found = [self._on.streams[name] for name in streams if name in self._on.streams]
        return tuple(row for s in found for row in (*s.rows(until=Seq(1)), s.keys.get(key)) if row is not None)

    async def heads(self, streams: Sequence[StreamId]) -> dict[StreamId, Head]:
        """Return the heads of those streams that exist."""
        found = [reads.info(self._on, self._on.streams[name]) for name in streams if name in self._on.streams]
        return {info.stream: Head(info.number, info.created_at, info.last_seq) for info in found}

    # --- blobs, change, health

    async def blob(self, hash: BlobHash, *, stream: StreamId | None = None) -> Blob:
        """Return stored bytes; with `stream`, only if that stream refers to them."""
        return reads.blob(self._on, hash, stream)

    async def version(self) -> int:
        """Return the number of commits: users of a shared object cannot be distinguished."""
        return self.counters.commits

    async def check(self) -> tuple[Diagnosis, ...]:
        """Check for unfinished streams without a live worker, the only possible problem in memory."""
        return reads.check(self._on)
