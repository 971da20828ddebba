"""`PostgresStore`: the store protocol in a Postgres database. Appends and admissions are batched, each in a lane."""

from __future__ import annotations

import asyncio
import os
import tempfile
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from perdure.clock import Clock
from perdure.commit.changes import Amendment, Audit, Intervention, Label, NewStream, Note, Redaction
from perdure.commit.plan import Blob, Entry, Plan, Receipt, check_budget
from perdure.errors import Code, Error
from perdure.ids import BlobHash, PromiseId, Seq, StreamId, Tenant, WorkerId
from perdure.inbox.admit import Admission, Delivery, Waiting, stream_unknown
from perdure.store.digest_chain import DigestChain
from perdure.store.locks import WorkerLocks, boot_id
from perdure.store.permits import Permit, PermitRequest
from perdure.store.postgres import admissions, appends, changes, claims, promises, reads
from perdure.store.postgres.address import parse
from perdure.store.postgres.commit_notifier import CommitNotifier
from perdure.store.postgres.connections import Connections
from perdure.store.postgres.driver import TROUBLE
from perdure.store.postgres.failures import failure, is_refusal
from perdure.store.postgres.heads import Heads
from perdure.store.postgres.leases import PgLeases, PgWorkerRow
from perdure.store.postgres.live import PostgresChannel
from perdure.store.postgres.log import find_row
from perdure.store.postgres.migrate import prepare, schema_state
from perdure.store.postgres.streams import undisturbed
from perdure.store.postgres.tx import PgTransaction
from perdure.store.postgres.writer import Lane, PgWrite
from perdure.store.private import own_folder
from perdure.store.release import THIS, Release
from perdure.store.shapes import (
    EVERYTHING,
    START,
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
from perdure.store.steps import SchemaState
from perdure.vocab.promises import PromiseState, Resolution
from perdure.vocab.records import Row

T = TypeVar("T")
LookJob = PgWrite[StreamId, StreamInfo | None]

CLOSING_RECONNECT_TIMEOUT_S = 5.0

ABREAST = 2
"""Batches of appends in flight: while the server writes one, the callers of the other continue here."""

MAX_LOOKS = 256
"""Maximum number of stream rows to read in one statement."""

TOLD_AT_ONCE = 25
"""Approximate number of futures to complete in one turn of the event loop. Their callers submit the next batch, which
is sent before the other futures end; otherwise all callers would run, and then all would wait."""

_living: weakref.WeakSet[PostgresStore] = weakref.WeakSet()


class PostgresStore:
    """Streams in one schema of a database, shared by any number of processes on any number of machines.

    A store belongs to one event loop and does not survive `os.fork`: every call in the child is refused.
    """

    def __init__(self, url: str, clock: Clock, *, lease_ms: int = 10_000, release: Release = THIS) -> None:
        self.counters = Counters()
        self.address = parse(url)
        self._clock = clock
        self._release = release
        self._leases = PgLeases(clock, lease_ms, boot_id(), release.format)
        self._connections: Connections | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beside: dict[asyncio.AbstractEventLoop, Connections] = {}
        self._notifier: CommitNotifier | None = None
        self._appends = Lane(self._commit_appends, abreast=ABREAST, shortcut=self._shortcut)
        self._busy: set[StreamId] = set()
        self._heads = Heads()
        self._admits = Lane(self._commit_admits)
        self._looks = Lane(self._look_together, abreast=ABREAST)
        self._writing: set[asyncio.Task[object]] = set()
        self._renewals: dict[WorkerId, asyncio.Task[None]] = {}
        self._forked = False
        self.live = PostgresChannel(self._read)
        _living.add(self)

    async def open(self) -> None:
        """Connect, refuse a foreign, newer or read-only database, and migrate it forward."""
        self._refuse_in_child()
        if self._connections is not None:
            return
        locks = _lock_folder()
        connections = Connections(self.address, self.counters, self._heads)
        try:
            async with connections.borrow() as session:
                version = await prepare(session, self.address, self._release)
                notifier = CommitNotifier(connections, version.id)
                await notifier.open(session)
        except TROUBLE as problem:
            await connections.close()
            raise failure(problem, self.address.shown) from problem
        except BaseException:
            await connections.close()
            raise
        self._leases.locks = WorkerLocks(locks / version.id)
        self._connections, self._notifier, self._loop = connections, notifier, asyncio.get_running_loop()

    async def schema(self) -> SchemaState:
        """Return the schema state of the database, without changing it. The store need not be open.

        Raises:
            Error: `store_not_ours`, `store_newer`, or a connection error.
        """
        connections = Connections(self.address, self.counters)
        try:
            async with connections.borrow() as session:
                return await schema_state(session, self.address, self._release)
        except TROUBLE as problem:
            raise failure(problem, self.address.shown) from problem
        finally:
            await connections.close()

    def use_chain(self, chain: DigestChain) -> None:
        """Compute and check the digests of logs with this chain, from the next write on."""
        self._heads.chain = chain

    async def close(self) -> None:
        """Finish submitted writes, release connections and locks. Safe to call twice."""
        connections = self._connections
        if self._forked or connections is None:
            return
        connections.reconnect_timeout_s = min(connections.reconnect_timeout_s, CLOSING_RECONNECT_TIMEOUT_S)
        await self._appends.finish()
        await self._admits.finish()
        if self._writing:
            await asyncio.wait(self._writing)
        if self._connections is not connections:
            return  # closed by a concurrent call
        self._connections = None
        notifier, self._notifier = self._notifier, None
        if notifier is not None:
            await notifier.close()
        await connections.close()
        self._leases.forget_all()

    # --- how everything is read and written

    def _open(self) -> Connections:
        self._refuse_in_child()
        if self._connections is None:
            raise Error(Code.RUNTIME_CLOSED, "the store is not open", hint="await store.open()")
        return self._connections

    async def _read(self, work: Callable[[PgTransaction], Awaitable[T]]) -> T:
        return await self._open().read(work)

    async def _write(self, work: Callable[[PgTransaction], Awaitable[T]], *, again: bool = True) -> T:
        """Run a write that continues if its caller is cancelled."""
        connections = self._open()

        async def whole() -> T:
            result = await connections.write(work, again=again)
            self._tell()
            return result

        task = asyncio.create_task(whole(), name="perdure:write")
        self._writing.add(task)
        task.add_done_callback(self._written)
        return await asyncio.shield(task)

    def _written(self, task: asyncio.Task[T]) -> None:
        self._writing.discard(task)
        if not task.cancelled():
            task.exception()  # mark as retrieved: the caller may be gone

    def _tell(self, *, pressing: bool = True) -> None:
        if self._notifier is not None:
            self._notifier.tell(pressing=pressing)

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
        if self._leases.locks is not None:
            self._leases.locks.drop_all()

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
        """Register a worker as alive, and take its lock if this machine supports locks."""
        self._open()
        locks = self._leases.locks
        assert locks is not None
        locked = await asyncio.to_thread(_hold, locks, worker)
        self._leases.adopt(worker)
        lock = locks.identity(worker) if locked else ""
        row = PgWorkerRow(
            id=worker,
            pid=pid,
            version=version,
            started_at=now,
            lease_until=0,
            boot=self._leases.boot,
            lock=lock,
            host=host,
            lease_left=self._leases.lease_ms,
            concurrency=concurrency,
            queues=queues,
        )
        await self._write(lambda on: claims.register(on, self._leases, row))

    async def renew(self, worker: WorkerId) -> None:
        """Extend a worker's lease with one statement, regardless of the number of its streams.

        A connection serves one event loop. For another loop than the store's, the first call opens a connection.
        """
        connections, loop = self._open(), asyncio.get_running_loop()
        if loop is not self._loop:
            connections = self._beside.setdefault(loop, Connections(self.address, self.counters))
        await connections.write(lambda on: claims.renew(on, self._leases, worker))

    async def stop_renewing(self) -> None:
        """Close the connection that `renew` opened for the calling event loop, if it opened one."""
        connections = self._beside.pop(asyncio.get_running_loop(), None)
        if connections is not None:
            await connections.close()

    async def _be_alive(self, worker: WorkerId) -> None:
        """Renew a weak lease before a claim under it; concurrent callers share one statement.

        After an outage of the server all leases have lapsed, and workers would take claims from each other.
        """
        if not self._leases.weak(worker):
            return
        renewal = self._renewals.get(worker)
        if renewal is None or renewal.done():
            renewal = self._renewals[worker] = asyncio.create_task(self.renew(worker), name="perdure:renew")
            self._writing.add(renewal)
            renewal.add_done_callback(self._written)
        await asyncio.shield(renewal)

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
        await self._write(lambda on: claims.deregister(on, worker, remove=not abandoned_calls))
        self._leases.forget(worker)
        locks = self._leases.locks
        if locks is not None:
            (locks.keep if abandoned_calls else locks.release)(worker)

    async def workers(self) -> tuple[WorkerInfo, ...]:
        """Return all registered workers."""
        loads = await self._read(claims.loads)
        return tuple(self._leases.info(row, loads.get(row.id, (0, 0))) for row in await self._read(claims.list_workers))

    async def is_dead(self, worker: WorkerId) -> bool:
        """Return whether the worker's row is deleted, or its lock on this machine is free: the only proofs of death."""
        return self._leases.is_dead(await self._read(lambda on: claims.find_worker(on, worker)))

    async def exchange(
        self, worker: WorkerId, *, asks: Sequence[PermitRequest] = (), back: Sequence[str] = (), now: int
    ) -> frozenset[str]:
        """Release permits and request others; return the holders whose permits are granted."""
        return await self._write(lambda on: claims.exchange(on, self._leases, worker, asks, back, now))

    async def permits(self) -> tuple[Permit, ...]:
        """Return all granted and queued permits, in request order."""
        return await self._read(lambda on: claims.permits(on, self._leases))

    def abandon(self, worker: WorkerId) -> None:
        """Make the worker look as if its process had been killed (for tests)."""
        self._leases.abandon(worker)

    # --- appends

    def append(self, plan: Plan) -> asyncio.Future[Receipt]:
        """Make a plan durable, all or nothing. The call submits it; the future ends once it is durable or refused."""
        try:
            check_budget(plan)
            self._open()
            return self._appends.submit(plan)
        except Error as refusal:
            future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
            future.set_exception(refusal)
            future.exception()  # mark as retrieved: callers need not await an append
            return future

    async def _commit_appends(self, queue: deque[appends.AppendJob]) -> bool:
        chains = appends.take(queue, self._busy)
        if not chains:
            return False  # the batch in flight for these streams checks the queue afterwards
        self._busy.update([chain.first.stream for chain in chains])
        await self._commit_chains(chains)
        self._tell(pressing=not all(plan.is_progress for chain in chains for plan in chain.plans))
        return True

    def _shortcut(self, job: appends.AppendJob) -> Coroutine[Any, Any, bool] | None:
        """Return a fast write for a plan of a few records, if a connection is idle and no lease is due for renewal."""
        plan, connections = job.item, self._connections
        if connections is None or not connections.at_hand or self._leases.is_due(plan.worker):
            return None
        write = appends.shortest_way(job, self._leases, self._clock.wall_ms())
        if write is None:
            return None
        self._busy.add(plan.stream)
        connections.vigil.keep(job.future)
        return self._by_shortcut(plan, write)

    async def _by_shortcut(self, plan: Plan, write: Callable[[PgTransaction], Awaitable[bool]]) -> bool:
        """Run the fast write; return False if the plan may not have been written.

        The normal path then writes the plan, or returns the receipt of the first write."""
        try:
            written = await self._open().once(write)
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 - the normal path meets and reports the same error
            written = False
        self._busy.discard(plan.stream)
        if written:
            self._tell(pressing=not plan.is_progress)
        return written

    async def _commit_chains(self, chains: Sequence[appends.Chain]) -> None:
        """Write chains together; if one of them causes an error, find it by halving the batch."""
        now = self._clock.wall_ms()
        left: Sequence[appends.Chain] = ()
        try:
            left = await self._patiently(lambda on: appends.together(on, chains, self._leases, now))
        except TROUBLE as problem:
            if not is_refusal(problem):
                _fail(chains, failure(problem, self.address.shown))
            elif len(chains) > 1:
                await self._commit_chains(chains[: len(chains) // 2])
                await self._commit_chains(chains[len(chains) // 2 :])
                return
            else:
                left = chains
        except Exception as problem:  # noqa: BLE001 - also a bug: it must not stop the lane
            _fail(chains, problem)
        await self._answer([chain for chain in chains if chain not in left] if left else chains)
        for chain in left:
            await self._commit_alone(chain)
            self._busy.discard(chain.first.stream)

    async def _answer(self, chains: Sequence[appends.Chain]) -> None:
        parts = max(1, round(len(chains) / TOLD_AT_ONCE))
        size = -(-len(chains) // parts)
        for place, chain in enumerate(chains, 1):
            for job in chain.jobs:
                job.settle()
            self._busy.discard(chain.first.stream)
            if place % size == 0 and place < len(chains):
                await asyncio.sleep(0)

    async def _commit_alone(self, chain: appends.Chain) -> None:
        for job in chain.jobs:
            work = partial(self._append_alone, job.item, self._clock.wall_ms())
            try:
                job.result = await self._patiently(work)
            except TROUBLE as problem:
                job.error = failure(problem, self.address.shown)
            except Exception as refusal:  # noqa: BLE001 - also a bug: it must not stop the lane
                job.error = refusal
            job.settle()

    async def _append_alone(self, plan: Plan, now: int, on: PgTransaction) -> Receipt:
        return await undisturbed(lambda: appends.alone(on, plan, self._leases, now))

    async def _patiently(self, work: Callable[[PgTransaction], Awaitable[T]]) -> T:
        return await self._open().patiently(work)

    # --- admissions

    async def admit(self, delivery: Delivery, *, claim_for: WorkerId | None = None) -> Admission:
        """Put a delivery into a stream's inbox once. With `claim_for`, also claim the stream if idle and unowned."""
        self._open()
        if claim_for is not None:
            await self._be_alive(claim_for)
        return await self._admits.submit(admissions.AdmitQuery(delivery, claim_for))

    async def _commit_admits(self, queue: deque[admissions.AdmitJob]) -> bool:
        await self._admit_together(admissions.take(queue))
        self._tell()
        return True

    async def _admit_together(self, jobs: Sequence[admissions.AdmitJob]) -> None:
        now = self._clock.wall_ms()
        left: Sequence[admissions.AdmitJob] = ()
        try:
            left = await self._patiently(lambda on: admissions.together(on, jobs, now))
        except TROUBLE as problem:
            if is_refusal(problem):
                left = jobs
            else:
                _fail_jobs(jobs, failure(problem, self.address.shown))
        except Exception as problem:  # noqa: BLE001 - also a bug: it must not stop the lane
            _fail_jobs(jobs, problem)
        for job in jobs:
            if job not in left:
                job.settle()
        for job in left:
            await self._admit_alone(job)

    async def _admit_alone(self, job: admissions.AdmitJob) -> None:
        now = self._clock.wall_ms()

        async def work(on: PgTransaction) -> Admission:
            async with on.transaction():
                return await admissions.deliver(on, job.item.delivery, now)

        try:
            job.result = await self._patiently(lambda on: undisturbed(lambda: work(on)))
        except TROUBLE as problem:
            job.error = failure(problem, self.address.shown)
        except Exception as refusal:  # noqa: BLE001 - also a bug: it must not stop the lane
            job.error = refusal
        job.settle()

    async def annotate(self, stream: StreamId, entry: Entry, *, label: Label | None = None) -> Annotated:
        """Append an admitted record, without a fence. The first record under `entry.key` wins.

        A repeated write without a key cannot be detected, so a connection lost during the write is reported.
        """
        now = self._clock.wall_ms()
        work = partial(changes.annotate, name=stream, entry=entry, label=label, now=now)
        return await self._write(work, again=entry.key is not None)

    async def annotate_all(self, notes: Sequence[Note]) -> tuple[Annotated, ...]:
        """Append admitted records to several streams, all or nothing."""
        now = self._clock.wall_ms()
        return await self._write(
            lambda on: undisturbed(lambda: changes.annotate_all(on, notes, now))
        )  # fmt: skip

    async def intervene(self, intervention: Intervention) -> Intervened:
        """Apply a control write in one transaction.

        After a lost connection the write is repeated only if the delivery, or the log keys of all notes, prevent a
        second effect.
        """
        now = self._clock.wall_ms()
        named = intervention.delivery is not None or all(entry.key is not None for entry in intervention.notes)
        return await self._write(lambda on: undisturbed(lambda: changes.intervene(on, intervention, now)), again=named)

    async def redact(self, redaction: Redaction) -> Annotated:
        """Delete a record's content from the tables, once, and vacuum the tables.

        The server's write-ahead log and its backups contain the old content as long as they are kept.
        """
        now = self._clock.wall_ms()
        noted = await self._write(lambda on: changes.redact(on, redaction, now))
        await self.live.forget(redaction.stream)
        await self._sweep()
        return noted

    async def _sweep(self) -> None:
        """Vacuum dead rows from their pages. Only the owner of the tables may; otherwise autovacuum does it later."""
        schema = self.address.schema
        tables = ", ".join(f"{schema}.{table}" for table in ("log", "blobs", "snapshots", "promises", "live"))
        with suppress(*TROUBLE):
            await self._open().patiently(lambda on: on.script(f"VACUUM (SKIP_LOCKED, TRUNCATE FALSE) {tables}"))

    async def amend(self, amendment: Amendment) -> Annotated:
        """Append one record to an unowned stream, or return the record that already has its log key."""
        now = self._clock.wall_ms()
        return await self._write(lambda on: undisturbed(lambda: changes.amend(on, amendment, now)))

    async def create(self, new: NewStream) -> None:
        """Create a stream with its history, all or nothing."""
        now = self._clock.wall_ms()
        await self._write(lambda on: undisturbed(lambda: changes.create(on, new, now)))

    # --- claims

    async def claim(self, stream: StreamId, worker: WorkerId) -> Claim | AlreadyOwned | None:
        """Claim a stream that no live worker owns, or that this worker owns; raise its fence."""
        await self._be_alive(worker)
        return await self._write(lambda on: claims.claim(on, self._leases, stream, worker))

    async def claimable(
        self, worker: WorkerId, *, limit: int, now: int, serves: Serves = EVERYTHING
    ) -> tuple[StreamId, ...]:
        """Return streams with work that this worker may drive, in order."""
        asked = claims.ClaimQuery(worker, limit, now, serves)
        return await self._read(lambda on: claims.claimable(on, self._leases, asked))

    async def claim_ready(
        self, worker: WorkerId, *, limit: int, now: int, serves: Serves = EVERYTHING
    ) -> tuple[ReadyStream, ...]:
        """Return claimable streams and claim the free ones in the same statement.

        Streams that a concurrent statement is claiming are left out."""
        await self._be_alive(worker)
        asked = claims.ClaimQuery(worker, limit, now, serves)
        return await self._write(lambda on: claims.claim_ready(on, self._leases, asked))

    async def place(self, stream: StreamId, queue: str | None, priority: int | None) -> None:
        """Set a stream's own queue and priority."""
        if not await self._write(lambda on: on.all("stream_place", stream, queue, priority)):
            raise stream_unknown(stream)

    async def next_due(self) -> int | None:
        """Return the earliest due time of all timers, or None."""
        return await self._read(reads.next_due)

    # --- reads

    async def load(self, stream: StreamId, *, code: str) -> Loaded:
        """Return the data that a new owner folds. Snapshots of another code version are ignored."""
        return await self._read(lambda on: reads.load(on, stream, code))

    async def check_log(self, stream: StreamId) -> str:
        """Check a stream against the digest chain; return the digest of the last record."""
        return await self._read(lambda on: reads.check_log(on, stream))

    async def waiting(self, tenant: Tenant) -> Waiting:
        """Return the inputs that wait in all streams of a tenant, and their bytes."""
        return await self._read(lambda on: reads.waiting(on, tenant))

    async def inbox(self, stream: StreamId) -> tuple[InboxRow, ...]:
        """Return a stream's queued inbox rows, oldest first."""
        return await self._read(lambda on: reads.inbox(on, stream))

    async def read(
        self, stream: StreamId, *, after: Seq = START, until: Seq | None = None, limit: int | None = None
    ) -> tuple[Row, ...]:
        """Return log rows in order; `after` is exclusive, `until` inclusive."""
        return await self._read(lambda on: reads.read(on, stream, after=after, until=until, limit=limit))

    async def find(self, stream: StreamId, key: str) -> Row | None:
        """Return the row with this log key, or None."""
        return await self._read(lambda on: find_row(on, stream, key))

    async def count(self, stream: StreamId, begins: str, *, until: Seq) -> int:
        """Return the number of rows up to `until` whose log key begins with `begins`."""
        return await self._read(lambda on: reads.count(on, stream, begins, until))

    async def stream(self, stream: StreamId) -> StreamInfo | None:
        """Return one stream's row, or None."""
        self._open()
        return await self._looks.submit(stream)

    async def _look_together(self, queue: deque[LookJob]) -> bool:
        jobs = [queue.popleft() for _ in range(min(len(queue), MAX_LOOKS))]
        try:
            found = await self._read(lambda on: reads.named(on, self._leases, {job.item for job in jobs}))
        except Exception as problem:  # noqa: BLE001 - also a bug: it must not stop the lane
            _fail_jobs(jobs, problem)
        else:
            for job in jobs:
                job.result = found.get(job.item)
        for job in jobs:
            job.settle()
        return True

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
        page = reads.PgPage(tenant, kind, limit, before, tag)
        return await self._read(lambda on: reads.streams(on, self._leases, page))

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
        page = reads.PgNewestPage(tenant, kind, tag, limit, before, agent)
        return await self._read(lambda on: reads.newest(on, self._leases, page))

    async def marks(self, streams: Sequence[StreamId], key: str) -> tuple[Row, ...]:
        """Return the first record of each stream and its record under a log key."""
        return await self._read(lambda on: reads.marks(on, streams, key))

    async def heads(self, streams: Sequence[StreamId]) -> dict[StreamId, Head]:
        """Return the heads of those streams that exist."""
        return await self._read(lambda on: reads.heads(on, streams))

    async def drop_snapshot(self, stream: StreamId) -> None:
        """Delete a stream's snapshot; nothing else changes."""
        await self._write(lambda on: on.all("snapshot_drop", stream))

    async def delete(
        self,
        stream: StreamId,
        *,
        beside: tuple[StreamId, ...] = (),
        edges: tuple[str, ...] = (),
        outbox: tuple[Delivery, ...] = (),
        audit: Audit = (),
    ) -> bool:
        """Delete a stream and everything it owns. The server's autovacuum removes the dead rows later."""
        now = self._clock.wall_ms()
        deleted = await self._write(
            lambda on: undisturbed(lambda: changes.delete(on, stream, (beside, edges, outbox, audit), now))
        )  # fmt: skip
        await self.live.forget(stream)
        return deleted

    # --- promises and secrets

    async def promise(self, promise: PromiseState) -> PromiseState:
        """Create a promise unless it exists; return the stored one."""
        return await self._write(lambda on: undisturbed(lambda: promises.make_promise(on, promise)))

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
        answer = promises.PgAnswer(promise, resolution, make, audit)
        return await self._write(lambda on: undisturbed(lambda: promises.resolve(on, answer, now)))

    async def resolve_all(
        self, answers: Sequence[tuple[PromiseState, Resolution]], *, now: int, audit: Audit = ()
    ) -> dict[PromiseId, Resolution]:
        """Resolve several promises, all or none; return the resolutions that prevented it."""
        return await self._write(lambda on: undisturbed(lambda: promises.resolve_all(on, answers, now, audit)))

    async def peek(self, promise: PromiseId) -> PromiseState | None:
        """Return a promise's current state, or None."""
        return await self._read(lambda on: promises.read_promise(on, promise))

    async def asked(
        self, *, tenant: Tenant, limit: int, after: tuple[int, PromiseId] | None = None
    ) -> tuple[PromiseState, ...]:
        """Return unresolved requests to people, oldest first."""
        return await self._read(lambda on: reads.asked(on, tenant, limit, after))

    async def asked_as(self, *, tenant: Tenant, prefix: str, limit: int) -> tuple[PromiseState, ...]:
        """Return requests to people whose promise id begins with `prefix`."""
        return await self._read(lambda on: reads.asked_as(on, tenant, prefix, limit))

    async def now(self) -> int:
        """Return the time on the server's clock."""
        return await self._read(promises.server_now)

    async def secret(self, name: str, new: bytes) -> bytes:
        """Return 32 random bytes of this store."""
        return await self._write(lambda on: promises.secret(on, name, new))

    # --- blobs, change, health

    async def blob(self, hash: BlobHash, *, stream: StreamId | None = None) -> Blob:
        """Return stored bytes; with `stream`, only if that stream refers to them."""
        return await self._read(lambda on: reads.blob(on, hash, stream))

    async def version(self) -> int:
        """Return a number that changes soon after another process or store object has committed, but not this one.

        The number counts received notifications; the call sends no query.
        """
        self._open()
        assert self._notifier is not None
        return self._notifier.heard

    async def check(self) -> tuple[Diagnosis, ...]:
        """Check logs, references, schema version, durability settings and unfinished streams without a live worker."""
        return await self._read(lambda on: reads.check(on, self._leases))


def _fail(chains: Sequence[appends.Chain], problem: Exception) -> None:
    for chain in chains:
        _fail_jobs(chain.jobs, problem)


def _fail_jobs(jobs: Sequence[PgWrite[Any, Any]], problem: Exception) -> None:
    for job in jobs:
        job.error = problem


def _lock_folder() -> Path:
    """Return the folder for the locks of this user's workers on this machine.

    Its name is predictable. A lock file of another user there could prove a living worker dead.
    """
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = Path(base) / f"perdure-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
    with suppress(OSError):  # no writable folder for locks: leases alone decide
        own_folder(folder)
    return folder


def _hold(locks: WorkerLocks, worker: WorkerId) -> bool:
    try:
        return locks.hold(worker)
    except OSError:  # no writable folder for locks: leases alone decide
        return False


def _after_fork() -> None:
    for store in _living:
        store._enter_child()  # pyright: ignore[reportPrivateUsage] - the hook belongs to the class


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
