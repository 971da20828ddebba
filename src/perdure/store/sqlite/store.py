"""`SqliteStore`: the store protocol on one SQLite file. One writer serves all writes; reads run concurrently."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from perdure.clock import Clock
from perdure.commit.changes import Amendment, Audit, Intervention, Label, NewStream, Note, Redaction
from perdure.commit.plan import Blob, Entry, Plan, Receipt, check_budget
from perdure.errors import Code, Error
from perdure.ids import BlobHash, PromiseId, Seq, StreamId, Tenant, WorkerId
from perdure.inbox.admit import Admission, Delivery, Waiting, stream_unknown
from perdure.offload import LARGE_BYTES
from perdure.store.digest_chain import DigestChain
from perdure.store.locks import WorkerLocks, boot_id
from perdure.store.permits import Permit, PermitRequest
from perdure.store.private import diagnose, make_folder
from perdure.store.release import THIS, Release
from perdure.store.shapes import (
    EVERYTHING,
    START,
    Accepted,
    AlreadyOwned,
    Annotated,
    Claim,
    Counters,
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
from perdure.store.sqlite import admissions, appends, changes, claims, promises, reads, write_lock
from perdure.store.sqlite.failures import failure
from perdure.store.sqlite.leases import SqliteLeases, SqliteWorkerRow
from perdure.store.sqlite.live import SqliteChannel
from perdure.store.sqlite.migrate import Synchronous, connect, empty_wal, inspect, prepare
from perdure.store.sqlite.readers import Readers
from perdure.store.sqlite.tx import Statements, Tx
from perdure.store.sqlite.writer import Writer
from perdure.vocab.promises import PromiseState, Resolution
from perdure.vocab.records import Row

T = TypeVar("T")

FEW = 32
"""Maximum number of rows to read on the calling thread: a thread hop would cost more than the read."""

FEW_HEADS = 500
"""Maximum number of stream heads to read on the calling thread."""

FAST_LOOK_S = 0.001
"""Maximum duration of the last work scan for the next one to run on the calling thread."""

_living: weakref.WeakSet[SqliteStore] = weakref.WeakSet()


class SqliteStore:
    """Streams in one file, shared by any number of processes of one machine.

    `synchronous="FULL"` survives a power cut. "NORMAL" is faster, but a power cut may lose the last commits; a crash of
    the application loses none. A store does not survive `os.fork`: every call in the child is refused.
    """

    def __init__(
        self,
        path: str | Path,
        clock: Clock,
        *,
        lease_ms: int = 10_000,
        synchronous: Synchronous = "FULL",
        release: Release = THIS,
    ) -> None:
        self.counters = Counters()
        self.path = Path(path)
        self._clock = clock
        self._synchronous: Synchronous = synchronous
        self._locks = WorkerLocks(self.path.with_name(f"{self.path.name}-workers"))
        self._release = release
        self._leases = SqliteLeases(clock, lease_ms, boot_id(), self._locks, release.format)
        self._writer: Writer | None = None
        self._readers: Readers | None = None
        self._forked = False
        self._look_s = 0.0
        self._chain = DigestChain()
        self.live = SqliteChannel(self.path)
        _living.add(self)

    async def open(self) -> None:
        """Connect, refuse a foreign or newer file, and migrate it forward. Parent folders are created."""
        self._refuse_in_child()
        if self._writer is not None:
            return
        readers = Readers(self.path, self.counters)
        try:
            self._writer = await readers.blocking(self._start)
        except BaseException:
            readers.close()
            raise
        self._readers = readers

    def _start(self) -> Writer:
        try:
            make_folder(self.path.parent)
        except OSError as problem:
            raise Error(
                Code.STORE_UNAVAILABLE,
                "the folder of the store cannot be created",
                because=str(problem),
                hint="check the path and its permissions",
                path=str(self.path),
            ) from problem
        if self.path.is_file() and self.path.stat().st_size:
            inspect(self.path, self._release)  # refuses a foreign file before any file appears beside it
        try:
            return Writer(
                self.path,
                self._connect,
                clock=self._clock,
                leases=self._leases,
                counters=self.counters,
                chain=self._chain,
            )
        except sqlite3.Error as problem:
            raise failure(problem, self.path) from problem

    def _connect(self) -> sqlite3.Connection:
        connection = connect(self.path, synchronous=self._synchronous)
        try:
            prepare(self.path, connection, self._release)
        except BaseException:
            connection.close()
            raise
        return connection

    def use_chain(self, chain: DigestChain) -> None:
        """Compute and check the digests of logs with this chain, from the next write on."""
        self._chain = chain
        if self._writer is not None:
            self._writer.chain = chain

    async def close(self) -> None:
        """Finish submitted writes, release connections and locks. Safe to call twice."""
        writer, self._writer = self._writer, None
        readers, self._readers = self._readers, None
        if self._forked or writer is None or readers is None:
            return
        await readers.blocking(writer.close)
        await readers.blocking(self.live.close)
        readers.close()
        self._leases.forget_all()

    def _write(self, work: Callable[[Tx], T], *, weight: int = 0, checks_first: bool = False) -> asyncio.Future[T]:
        self._refuse_in_child()
        if self._writer is None:
            raise _not_open()
        return self._writer.submit(work, weight=weight, checks_first=checks_first)

    def _reading(self) -> Readers:
        self._refuse_in_child()
        if self._readers is None:
            raise _not_open()
        return self._readers

    def _refuse_in_child(self) -> None:
        if self._forked:
            raise Error(
                Code.RUNTIME_FORKED,
                "this store was opened before the process forked",
                because="connections and locks cannot be shared with a forked child",
                hint="open it in the child, or start the child with the 'spawn' method",
            )

    def _enter_child(self) -> None:
        self._forked = True
        self._locks.drop_all()
        if self._writer is not None:
            self._writer.lock.close()
        self.live.enter_child()

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
        """Register a worker as alive, and take its lock."""
        locked = await self._reading().blocking(lambda: self._locks.hold(worker))
        leases = self._leases
        leases.adopt(worker)
        row = SqliteWorkerRow(
            id=worker,
            pid=pid,
            version=version,
            started_at=now,
            lease_until=leases.end(),
            boot=leases.boot,
            locked=int(locked),
            host=host,
            lease_ms=leases.lease_ms,
            concurrency=concurrency,
            queues=None if queues is None else json.dumps(queues),
        )
        await self._write(lambda tx: claims.register(tx, row))

    async def renew(self, worker: WorkerId) -> None:
        """Extend a worker's lease with one statement, regardless of the number of its streams."""
        await self._write(lambda tx: claims.renew(tx, worker))

    async def stop_renewing(self) -> None:
        """Do nothing: the writer serves all event loops."""

    def lease_live(self, worker: WorkerId) -> bool:
        """Return whether the last durable lease of this worker has certainly not lapsed."""
        self._refuse_in_child()
        return self._leases.live(worker)

    def lapses(self, worker: WorkerId) -> int:
        """Return how often this worker's lease was renewed after it may have lapsed."""
        return self._leases.lapses[worker]

    async def deregister(self, worker: WorkerId, *, abandoned_calls: bool = False) -> None:
        """Deregister a worker: release its streams at once, and remove its lock and lock file.

        With `abandoned_calls`, its row and its lock stay for the lifetime of this process.
        """
        await self._write(lambda tx: claims.deregister(tx, worker, remove=not abandoned_calls))
        self._leases.forget(worker)
        if abandoned_calls:
            self._locks.keep(worker)
        else:
            self._locks.release(worker)

    async def workers(self) -> tuple[WorkerInfo, ...]:
        """Return all registered workers."""
        loads = self._reading().point(claims.loads)
        found = self._reading().point(claims.list_workers)
        return tuple(self._leases.info(row, loads.get(row.id, (0, 0))) for row in found)

    async def is_dead(self, worker: WorkerId) -> bool:
        """Return whether the worker's lock is free, its boot is over, or its row is deleted.

        A lapsed lease proves nothing."""
        return self._leases.is_dead(self._reading().point(lambda on: claims.find_worker(on, worker)))

    async def exchange(
        self, worker: WorkerId, *, asks: Sequence[PermitRequest] = (), back: Sequence[str] = (), now: int
    ) -> frozenset[str]:
        """Release permits and request others; return the holders whose permits are granted."""
        return await self._write(lambda tx: claims.exchange(tx, worker, asks, back, now))

    async def permits(self) -> tuple[Permit, ...]:
        """Return all granted and queued permits, in request order."""
        return self._reading().point(lambda on: claims.permits(on, self._leases))

    def abandon(self, worker: WorkerId) -> None:
        """Make the worker look as if its process had been killed (for tests)."""
        self._leases.abandon(worker)

    # --- streams

    def append(self, plan: Plan) -> asyncio.Future[Receipt]:
        """Make a plan durable, all or nothing. The call submits it; the future ends once it is durable or refused."""
        try:
            weight = check_budget(plan)
            if plan.blobs:
                weight += sum([len(blob.data) for blob in plan.blobs])
            return self._write(
                lambda tx: appends.append(tx, plan), weight=weight, checks_first=appends.checks_first(plan)
            )
        except Error as refusal:
            future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
            future.set_exception(refusal)
            future.exception()  # mark as retrieved: callers need not await an append
            return future

    async def admit(self, delivery: Delivery, *, claim_for: WorkerId | None = None) -> Admission:
        """Put a delivery into a stream's inbox once. With `claim_for`, also claim the stream if idle and unowned."""
        weight = sum(len(blob.data) for blob in delivery.blobs)
        return await self._write(lambda tx: admissions.admit(tx, delivery, claim_for), weight=weight)

    async def annotate(self, stream: StreamId, entry: Entry, *, label: Label | None = None) -> Annotated:
        """Append an admitted record, without a fence. The first record under `entry.key` wins."""
        return await self._write(lambda tx: changes.annotate(tx, stream, entry, label))

    async def annotate_all(self, notes: Sequence[Note]) -> tuple[Annotated, ...]:
        """Append admitted records to several streams, all or nothing."""
        return await self._write(
            lambda tx: tuple(changes.annotate(tx, note.stream, note.entry, note.label) for note in notes)
        )

    async def intervene(self, intervention: Intervention) -> Intervened:
        """Apply a control write in one transaction."""
        new = intervention.delivery
        weight = sum(len(blob.data) for blob in new.blobs) if new is not None else 0
        return await self._write(lambda tx: changes.intervene(tx, intervention), weight=weight)

    async def redact(self, redaction: Redaction) -> Annotated:
        """Delete a record's content from the file and its write-ahead log, once."""
        noted = await self._write(lambda tx: changes.redact(tx, redaction))
        await self._reading().blocking(self._empty_wal)
        await self.live.forget(redaction.stream)
        return noted

    async def amend(self, amendment: Amendment) -> Annotated:
        """Append one record to an unowned stream, or return the record that already has its log key."""
        weight = len(amendment.entry.data) + sum(len(blob.data) for blob in amendment.blobs)
        return await self._write(lambda tx: changes.amend(tx, amendment), weight=weight)

    async def create(self, new: NewStream) -> None:
        """Create a stream with its history, all or nothing."""
        weight = sum(len(entry.data) for entry in new.entries) + sum(len(blob.data) for blob in new.blobs)
        await self._write(lambda tx: changes.create(tx, new), weight=weight)

    async def claim(self, stream: StreamId, worker: WorkerId) -> Claim | AlreadyOwned | None:
        """Claim a stream that no live worker owns, or that this worker owns; raise its fence."""
        return await self._write(lambda tx: claims.claim(tx, stream, worker))

    async def claimable(
        self, worker: WorkerId, *, limit: int, now: int, serves: Serves = EVERYTHING
    ) -> tuple[StreamId, ...]:
        """Return streams with work that this worker may drive, in order."""
        asked = claims.SqliteClaimQuery(worker, limit, now, serves)
        if self._look_s < FAST_LOOK_S:  # as in every idle worker: a thread hop would cost several times as much
            found = self._reading().here(lambda on: self._look(on, asked))
        else:
            found = await self._reading().bulk(lambda on: self._look(on, asked))
        return tuple(stream for _, stream, _, _ in found)

    def _look(self, on: Statements, asked: claims.SqliteClaimQuery) -> list[tuple[int, StreamId, WorkerId | None, str]]:
        began = time.perf_counter()
        found = claims.claimable(on, self._leases, asked)
        self._look_s = time.perf_counter() - began
        return found

    async def claim_ready(
        self, worker: WorkerId, *, limit: int, now: int, serves: Serves = EVERYTHING
    ) -> tuple[ReadyStream, ...]:
        """Return claimable streams and claim the free ones in the same transaction."""
        asked = claims.SqliteClaimQuery(worker, limit, now, serves)
        return await self._write(lambda tx: claims.claim_ready(tx, asked))

    async def place(self, stream: StreamId, queue: str | None, priority: int | None) -> None:
        """Set a stream's own queue and priority."""
        if (await self._write(lambda tx: tx.run("stream_place", (queue, priority, stream)).rowcount)) != 1:
            raise stream_unknown(stream)

    async def next_due(self) -> int | None:
        """Return the earliest due time of all timers, or None."""
        return self._reading().point(reads.next_due)

    async def load(self, stream: StreamId, *, code: str) -> Loaded:
        """Return the data that a new owner folds. Snapshots of another code version are ignored."""
        few = self._reading().here(lambda on: reads.load(on, self._chain, stream, code, few=FEW))
        if few is not None:
            return few
        many = await self._reading().bulk(lambda on: reads.load(on, self._chain, stream, code))
        assert many is not None  # without a limit, all rows are read
        return many

    async def check_log(self, stream: StreamId) -> str:
        """Check a stream against the digest chain; return the digest of the last record."""
        return await self._reading().bulk(lambda on: reads.check_log(on, self._chain, stream))

    async def waiting(self, tenant: Tenant) -> Waiting:
        """Return the inputs that wait in all streams of a tenant, and their bytes."""
        return await self._reading().bulk(lambda on: Waiting(*on.one("tenant_waiting", (tenant,))))

    async def inbox(self, stream: StreamId) -> tuple[InboxRow, ...]:
        """Return a stream's queued inbox rows, oldest first."""
        return self._reading().point(lambda on: reads.inbox(on, stream))

    async def read(
        self, stream: StreamId, *, after: Seq = START, until: Seq | None = None, limit: int | None = None
    ) -> tuple[Row, ...]:
        """Return log rows in order; `after` is exclusive, `until` inclusive."""
        some = FEW + 1 if limit is None else min(limit, FEW + 1)
        few = self._reading().point(lambda on: reads.read(on, stream, after=after, until=until, limit=some))
        if len(few) <= FEW:
            return few
        return await self._reading().bulk(lambda on: reads.read(on, stream, after=after, until=until, limit=limit))

    async def find(self, stream: StreamId, key: str) -> Row | None:
        """Return the row with this log key, or None."""
        return self._reading().point(lambda on: reads.find(on, stream, key))

    async def count(self, stream: StreamId, begins: str, *, until: Seq) -> int:
        """Return the number of rows up to `until` whose log key begins with `begins`."""
        return await self._reading().bulk(lambda on: reads.count(on, stream, begins, until))

    async def stream(self, stream: StreamId) -> StreamInfo | None:
        """Return one stream's row, or None."""
        return self._reading().point(lambda on: reads.stream(on, self._leases, stream))

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
        page = reads.SqlitePage(tenant, kind, limit, before, tag)
        return await self._reading().bulk(lambda on: reads.streams(on, self._leases, page))

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
        page = reads.SqliteNewestPage(tenant, kind, tag, limit, before, agent)
        return await self._reading().bulk(lambda on: reads.newest(on, self._leases, page))

    async def marks(self, streams: Sequence[StreamId], key: str) -> tuple[Row, ...]:
        """Return the first record of each stream and its record under a log key."""
        return await self._reading().bulk(lambda on: reads.marks(on, streams, key))

    async def heads(self, streams: Sequence[StreamId]) -> dict[StreamId, Head]:
        """Return the heads of those streams that exist."""
        reading, read = self._reading(), partial(reads.heads, streams=streams)
        return reading.point(read) if len(streams) <= FEW_HEADS else await reading.bulk(read)

    async def drop_snapshot(self, stream: StreamId) -> None:
        """Delete a stream's snapshot; nothing else changes."""
        await self._write(lambda tx: tx.run("snapshot_drop", (stream,)))

    async def delete(
        self,
        stream: StreamId,
        *,
        beside: tuple[StreamId, ...] = (),
        edges: tuple[str, ...] = (),
        outbox: tuple[Delivery, ...] = (),
        audit: Audit = (),
    ) -> bool:
        """Delete a stream and everything it owns physically, from the file and its write-ahead log."""
        deleted, *others = await self._write(
            lambda tx: changes.delete_all(tx, (stream, *beside), (edges, outbox, audit))
        )
        if deleted or any(others):
            await self._reading().blocking(self._empty_wal)
            await self.live.forget(stream)
        return deleted

    def _empty_wal(self) -> None:
        """Move the write-ahead log into the file and truncate it, because it contains old pages.

        A concurrent reader prevents that; after a time limit the next checkpoint, or `close`, does it.
        """
        connection = connect(self.path, synchronous=self._synchronous)
        try:
            empty_wal(self.path, connection)
        except sqlite3.Error as problem:
            raise failure(problem, self.path) from problem
        finally:
            connection.close()

    # --- promises

    async def promise(self, promise: PromiseState) -> PromiseState:
        """Create a promise unless it exists; return the stored one."""
        return await self._write(lambda tx: promises.make_promise(tx, promise))

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

        def write(tx: Tx) -> Resolved:
            resolved = promises.resolve(tx, promise, resolution, now, make)
            changes.put_audit(tx, audit if isinstance(resolved, Accepted) else ())
            return resolved

        return await self._write(write)

    async def resolve_all(
        self, answers: Sequence[tuple[PromiseState, Resolution]], *, now: int, audit: Audit = ()
    ) -> dict[PromiseId, Resolution]:
        """Resolve several promises, all or none; return the resolutions that prevented it."""

        def write(tx: Tx) -> dict[PromiseId, Resolution]:
            closed = promises.resolve_all(tx, answers, now)
            changes.put_audit(tx, () if closed else audit)
            return closed

        return await self._write(write)

    async def peek(self, promise: PromiseId) -> PromiseState | None:
        """Return a promise's current state, or None."""
        return self._reading().point(lambda on: promises.read_promise(on, promise))

    async def asked(
        self, *, tenant: Tenant, limit: int, after: tuple[int, PromiseId] | None = None
    ) -> tuple[PromiseState, ...]:
        """Return unresolved requests to people, oldest first."""
        return await self._reading().bulk(lambda on: reads.asked(on, tenant, limit, after))

    async def asked_as(self, *, tenant: Tenant, prefix: str, limit: int) -> tuple[PromiseState, ...]:
        """Return requests to people whose promise id begins with `prefix`."""
        return self._reading().point(lambda on: reads.asked_as(on, tenant, prefix, limit))

    async def now(self) -> int:
        """Return the time of the clock."""
        return self._clock.wall_ms()

    async def secret(self, name: str, new: bytes) -> bytes:
        """Return the stored bytes of this name, `new` if there were none."""
        return await self._write(lambda tx: promises.secret(tx, name, new))

    # --- blobs, change, health

    async def blob(self, hash: BlobHash, *, stream: StreamId | None = None) -> Blob:
        """Return stored bytes; with `stream`, only if that stream refers to them."""
        if self._reading().point(lambda on: reads.blob_size(on, hash)) <= LARGE_BYTES:
            return self._reading().point(lambda on: reads.blob(on, hash, stream))
        return await self._reading().bulk(lambda on: reads.blob(on, hash, stream))

    async def version(self) -> int:
        """Return a number that changes when another process or store object has committed, but not this one.

        The writing connection provides the number, without its own commits. While that connection is busy, the last
        known number is returned; a poller sees the change once it is idle, or with the next batch.
        """
        self._refuse_in_child()
        if self._writer is None:
            raise _not_open()
        return self._writer.data_version()

    async def check(self) -> tuple[Diagnosis, ...]:
        """Check integrity, references, schema version, write-ahead log and unfinished streams without a live worker."""
        found = await self._reading().bulk(lambda on: reads.check(on, self._leases, self._chain))
        return *found, write_lock.diagnose(), diagnose(self._files())

    def _files(self) -> tuple[Path, ...]:
        """Return the paths of the files and folders that hold the content of the store."""
        live = f"{self.path.name}-live"
        names = (self.path.name, live, f"{self.path.name}-workers", f"{self.path.name}-commands")
        return tuple(
            self.path.with_name(name)
            for name in (*names, *(f"{file}{part}" for file in names[:2] for part in ("-wal", "-shm")))
        )


def _not_open() -> Error:
    return Error(Code.RUNTIME_CLOSED, "the store is not open", hint="await store.open()")


def _after_fork() -> None:
    for store in _living:
        store._enter_child()  # pyright: ignore[reportPrivateUsage] - the hook belongs to the class


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
