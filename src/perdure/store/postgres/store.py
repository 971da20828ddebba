"""`PostgresStore`: the store protocol in a Postgres database. Appends and admissions go together, each in its lane."""

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
from perdure.commit.changes import Amendment, Intervention, Label, NewStream, Note, Redaction
from perdure.commit.plan import Blob, Entry, Plan, Receipt, check_budget
from perdure.errors import Code, Error
from perdure.ids import BlobHash, PromiseId, Seq, StreamId, Tenant, WorkerId
from perdure.inbox.admit import Admission, Delivery, stream_unknown
from perdure.store.locks import WorkerLocks, boot_id
from perdure.store.permits import Ask, Permit
from perdure.store.postgres import admissions, appends, changes, claims, promises, reads
from perdure.store.postgres.address import parse
from perdure.store.postgres.connections import Connections
from perdure.store.postgres.driver import TROUBLE
from perdure.store.postgres.failures import failure, is_refusal
from perdure.store.postgres.leases import Leases, WorkerRow
from perdure.store.postgres.live import PostgresChannel
from perdure.store.postgres.log import find_row
from perdure.store.postgres.migrate import prepare, schema_state
from perdure.store.postgres.news import News
from perdure.store.postgres.streams import undisturbed
from perdure.store.postgres.tx import Session
from perdure.store.postgres.writer import Job, Lane
from perdure.store.release import THIS, Release
from perdure.store.shapes import (
    EVERYTHING,
    START,
    Annotated,
    Claim,
    Counters,
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
from perdure.store.steps import SchemaState
from perdure.vocab.promises import PromiseState, Resolution
from perdure.vocab.records import Row

T = TypeVar("T")
LookJob = Job[StreamId, StreamInfo | None]

CLOSING_PATIENCE_S = 5.0

ABREAST = 2
"""Batches of appends under way at a time: while the server writes one, whoever has written the other goes on here."""

MAX_LOOKS = 256
"""Streams whose rows are read in one statement."""

TOLD_AT_ONCE = 25
"""About so many answers are told in one turn of the event loop. Those who get them write the next batch, which is on
its way before the rest are told: otherwise everybody would run, and then everybody would wait."""

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
        self._leases = Leases(clock, lease_ms, boot_id(), release.format)
        self._connections: Connections | None = None
        self._news: News | None = None
        self._appends = Lane(self._commit_appends, abreast=ABREAST, shortcut=self._shortcut)
        self._busy: set[StreamId] = set()
        self._admits = Lane(self._commit_admits)
        self._looks = Lane(self._look_together, abreast=ABREAST)
        self._writing: set[asyncio.Task[object]] = set()
        self._renewals: dict[WorkerId, asyncio.Task[None]] = {}
        self._forked = False
        self.live = PostgresChannel(self._read)
        _living.add(self)

    async def open(self) -> None:
        """Connect, check that the database is ours, not newer and writable, migrate it forward."""
        self._refuse_in_child()
        if self._connections is not None:
            return
        connections = Connections(self.address, self.counters)
        try:
            async with connections.borrow() as session:
                version = await prepare(session, self.address, self._release)
                news = News(connections, version.id)
                await news.open(session)
        except TROUBLE as problem:
            await connections.close()
            raise failure(problem, self.address.shown) from problem
        except BaseException:
            await connections.close()
            raise
        self._leases.locks = WorkerLocks(_lock_folder() / version.id)
        self._connections, self._news = connections, news

    async def schema(self) -> SchemaState:
        """How far the database is. Nothing is changed, and the store need not be open.

        Raises:
            Error: whatever keeps it from being looked at; `store_not_ours`, `store_newer`.
        """
        connections = Connections(self.address, self.counters)
        try:
            async with connections.borrow() as session:
                return await schema_state(session, self.address, self._release)
        except TROUBLE as problem:
            raise failure(problem, self.address.shown) from problem
        finally:
            await connections.close()

    async def close(self) -> None:
        """Finish what was submitted, release connections and locks. Safe to call twice."""
        connections = self._connections
        if self._forked or connections is None:
            return
        connections.patience_s = min(connections.patience_s, CLOSING_PATIENCE_S)
        await self._appends.finish()
        await self._admits.finish()
        if self._writing:
            await asyncio.wait(self._writing)
        if self._connections is not connections:
            return  # somebody else has closed it meanwhile
        self._connections = None
        news, self._news = self._news, None
        if news is not None:
            await news.close()
        await connections.close()
        self._leases.forget_all()

    # --- how everything is read and written

    def _open(self) -> Connections:
        self._refuse_in_child()
        if self._connections is None:
            raise Error(
                Code.RUNTIME_CLOSED, "the store is not open", hint="call open() first, and nothing after close()"
            )
        return self._connections

    async def _read(self, work: Callable[[Session], Awaitable[T]]) -> T:
        return await self._open().read(work)

    async def _write(self, work: Callable[[Session], Awaitable[T]], *, again: bool = True) -> T:
        """Do something that a caller who is cancelled does not cancel."""
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
            task.exception()  # whoever asked may be gone

    def _tell(self, *, pressing: bool = True) -> None:
        if self._news is not None:
            self._news.tell(pressing=pressing)

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
        """Make a worker known and alive, and take its lock if this machine has one to take."""
        self._open()
        locks = self._leases.locks
        assert locks is not None
        locked = await asyncio.to_thread(_hold, locks, worker)
        self._leases.adopt(worker)
        lock = locks.identity(worker) if locked else ""
        row = WorkerRow(
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
        """Extend a worker's lease: one statement, whatever it holds."""
        await self._open().write(lambda on: claims.renew(on, self._leases, worker))

    async def _be_alive(self, worker: WorkerId) -> None:
        """Renew a lease that has lapsed, or nearly, before anything is taken under it: all who ask share one statement.

        After the server was away everybody's lease has lapsed, and what the first one takes the next would take away.
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
        """Whether the last lease of this worker that became durable has certainly not lapsed."""
        self._refuse_in_child()
        return self._leases.live(worker)

    async def retire(self, worker: WorkerId, *, loose_ends: bool = False) -> None:
        """The worker ends in order: what it held is free at once, its lock and lock file are gone.

        With loose ends its row stays, and so does its lock, for as long as this process lives.
        """
        await self._write(lambda on: claims.retire(on, worker, remove=not loose_ends))
        self._leases.forget(worker)
        locks = self._leases.locks
        if locks is not None:
            (locks.keep if loose_ends else locks.release)(worker)

    async def workers(self) -> tuple[WorkerInfo, ...]:
        """All workers that are known."""
        loads = await self._read(claims.loads)
        return tuple(self._leases.info(row, loads.get(row.id, (0, 0))) for row in await self._read(claims.list_workers))

    async def is_dead(self, worker: WorkerId) -> bool:
        """Whether its row is gone, or its lock on this machine is free. Nothing else is certainty."""
        return self._leases.is_dead(await self._read(lambda on: claims.find_worker(on, worker)))

    async def exchange(
        self, worker: WorkerId, *, asks: Sequence[Ask] = (), back: Sequence[str] = (), now: int
    ) -> frozenset[str]:
        """Give permits back, and ask for others."""
        return await self._write(lambda on: claims.exchange(on, self._leases, worker, asks, back, now))

    async def permits(self) -> tuple[Permit, ...]:
        """Every permit that is held or waited for, in the order of asking."""
        return await self._read(lambda on: claims.permits(on, self._leases))

    def abandon(self, worker: WorkerId) -> None:
        """For tests: from now on the worker looks as if its process had been killed."""
        self._leases.abandon(worker)

    # --- appends

    def append(self, plan: Plan) -> asyncio.Future[Receipt]:
        """Make a plan durable: all of it, or nothing. Submitted at the call; the future ends when it is durable."""
        try:
            check_budget(plan)
            self._open()
            return self._appends.submit(plan)
        except Error as refusal:
            future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
            future.set_exception(refusal)
            future.exception()  # nobody has to await it
            return future

    async def _commit_appends(self, queue: deque[appends.AppendJob]) -> bool:
        chains = appends.take(queue, self._busy)
        if not chains:
            return False  # whoever is under way with what these wait for looks again
        self._busy.update([chain.first.stream for chain in chains])
        await self._commit_chains(chains)
        self._tell(pressing=not all(plan.is_progress for chain in chains for plan in chain.plans))
        return True

    def _shortcut(self, job: appends.AppendJob) -> Coroutine[Any, Any, bool] | None:
        """For a few records and nothing else, if nothing has to be opened or renewed first."""
        plan, connections = job.item, self._connections
        if connections is None or not connections.at_hand or self._leases.is_due(plan.worker):
            return None
        write = appends.shortest_way(job, self._leases, self._clock.wall_ms())
        if write is None:
            return None
        self._busy.add(plan.stream)
        connections.vigil.keep(job.future)
        return self._by_shortcut(plan, write)

    async def _by_shortcut(self, plan: Plan, write: Callable[[Session], Awaitable[bool]]) -> bool:
        """False if it is not certain that it was written: then it goes the way of all others, which finds out. If it
        was written all the same, its receipt is there."""
        try:
            written = await self._open().once(write)
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 - whatever it is, it is found again and told
            written = False
        self._busy.discard(plan.stream)
        if written:
            self._tell(pressing=not plan.is_progress)
        return written

    async def _commit_chains(self, chains: Sequence[appends.Chain]) -> None:
        """Write them together; if something in one of them is to blame, find out which by halving."""
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

    async def _append_alone(self, plan: Plan, now: int, on: Session) -> Receipt:
        return await undisturbed(lambda: appends.alone(on, plan, self._leases, now))

    async def _patiently(self, work: Callable[[Session], Awaitable[T]]) -> T:
        return await self._open().patiently(work)

    # --- admissions

    async def admit(self, delivery: Delivery, *, claim_for: WorkerId | None = None) -> Admission:
        """Put something into a stream's inbox, once. With `claim_for`, also claim the stream if it is free and idle."""
        self._open()
        if claim_for is not None:
            await self._be_alive(claim_for)
        return await self._admits.submit(admissions.Asked(delivery, claim_for))

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

        async def work(on: Session) -> Admission:
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
        """Append an admitted record, by anyone, unfenced. `entry.key` decides: the first one stands.

        Without a key there is nothing to tell a repetition by: if the connection breaks meanwhile, that is reported.
        """
        now = self._clock.wall_ms()
        work = partial(changes.annotate, name=stream, entry=entry, label=label, now=now)
        return await self._write(work, again=entry.key is not None)

    async def annotate_all(self, notes: Sequence[Note]) -> tuple[Annotated, ...]:
        """Append admitted records to several streams: all or nothing."""
        now = self._clock.wall_ms()
        return await self._write(
            lambda on: undisturbed(lambda: changes.annotate_all(on, notes, now))
        )  # fmt: skip

    async def intervene(self, intervention: Intervention) -> Intervened:
        """Do something to a stream from outside, in one transaction.

        If the connection breaks meanwhile, it is done again only if a repetition can be told from the first time: by
        its delivery, or by the log keys of all its notes.
        """
        now = self._clock.wall_ms()
        named = intervention.delivery is not None or all(entry.key is not None for entry in intervention.notes)
        return await self._write(lambda on: undisturbed(lambda: changes.intervene(on, intervention, now)), again=named)

    async def redact(self, redaction: Redaction) -> Annotated:
        """Take what a record said out of the tables, once, and let the server sweep what it left.

        The server's own write-ahead log and its backups keep what they have, for as long as they keep anything.
        """
        now = self._clock.wall_ms()
        noted = await self._write(lambda on: changes.redact(on, redaction, now))
        await self._sweep()
        return noted

    async def _sweep(self) -> None:
        """Dead rows stay on their pages until swept. Only the owner of the tables may; else it happens later."""
        schema = self.address.schema
        tables = ", ".join(f"{schema}.{table}" for table in ("log", "blobs", "snapshots", "promises"))
        with suppress(*TROUBLE):
            await self._open().patiently(lambda on: on.script(f"VACUUM (SKIP_LOCKED, TRUNCATE FALSE) {tables}"))

    async def amend(self, amendment: Amendment) -> Annotated:
        """Add a record, with the bytes it brings and without those it lets go."""
        now = self._clock.wall_ms()
        return await self._write(lambda on: undisturbed(lambda: changes.amend(on, amendment, now)))

    async def create(self, new: NewStream) -> None:
        """A stream with its past, all of it or nothing."""
        now = self._clock.wall_ms()
        await self._write(lambda on: undisturbed(lambda: changes.create(on, new, now)))

    # --- claims

    async def claim(self, stream: StreamId, worker: WorkerId) -> Claim | Held | None:
        """Take a stream that no live worker holds (or that this worker holds). Raises the fence."""
        await self._be_alive(worker)
        return await self._write(lambda on: claims.claim(on, self._leases, stream, worker))

    async def claimable(
        self, worker: WorkerId, *, limit: int, now: int, serves: Serves = EVERYTHING
    ) -> tuple[StreamId, ...]:
        """Streams with work that this worker may drive, in order."""
        asked = claims.Asked(worker, limit, now, serves)
        return await self._read(lambda on: claims.claimable(on, self._leases, asked))

    async def claim_ready(
        self, worker: WorkerId, *, limit: int, now: int, serves: Serves = EVERYTHING
    ) -> tuple[Ready, ...]:
        """What `claimable` tells, except those that somebody is just taking; what nobody holds is claimed with it."""
        await self._be_alive(worker)
        asked = claims.Asked(worker, limit, now, serves)
        return await self._write(lambda on: claims.claim_ready(on, self._leases, asked))

    async def place(self, stream: StreamId, queue: str | None, priority: int | None) -> None:
        """Give a stream a queue and a priority of its own."""
        if not await self._write(lambda on: on.all("stream_place", stream, queue, priority)):
            raise stream_unknown(stream)

    async def next_due(self) -> int | None:
        """The earliest timer of all streams."""
        return await self._read(reads.next_due)

    # --- reads

    async def load(self, stream: StreamId, *, code: str) -> Loaded:
        """What a new owner folds. Snapshots written by another code version are passed over."""
        return await self._read(lambda on: reads.load(on, stream, code))

    async def inbox(self, stream: StreamId) -> tuple[InboxRow, ...]:
        """What waits for a stream, oldest first."""
        return await self._read(lambda on: reads.inbox(on, stream))

    async def read(
        self, stream: StreamId, *, after: Seq = START, until: Seq | None = None, limit: int | None = None
    ) -> tuple[Row, ...]:
        """Log rows in order, `after` exclusive, `until` inclusive."""
        return await self._read(lambda on: reads.read(on, stream, after=after, until=until, limit=limit))

    async def find(self, stream: StreamId, key: str) -> Row | None:
        """The row with this log key."""
        return await self._read(lambda on: find_row(on, stream, key))

    async def count(self, stream: StreamId, begins: str, *, until: Seq) -> int:
        """How many rows up to `until` have a log key that begins like this."""
        return await self._read(lambda on: reads.count(on, stream, begins, until))

    async def stream(self, stream: StreamId) -> StreamInfo | None:
        """One stream's row."""
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
        """Streams, the most recently changed first."""
        page = reads.Page(tenant, kind, limit, before, tag)
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
        """Streams, the latest made first."""
        page = reads.NewestPage(tenant, kind, tag, limit, before, agent)
        return await self._read(lambda on: reads.newest(on, self._leases, page))

    async def marks(self, streams: Sequence[StreamId], key: str) -> tuple[Row, ...]:
        """The first record of each, and the one under a log key."""
        return await self._read(lambda on: reads.marks(on, streams, key))

    async def heads(self, streams: Sequence[StreamId]) -> dict[StreamId, Head]:
        """Where these streams end, those that exist."""
        return await self._read(lambda on: reads.heads(on, streams))

    async def drop_snapshot(self, stream: StreamId) -> None:
        """Forget a snapshot; nothing else changes."""
        await self._write(lambda on: on.all("snapshot_drop", stream))

    async def delete(
        self,
        stream: StreamId,
        *,
        beside: tuple[StreamId, ...] = (),
        edges: tuple[str, ...] = (),
        sends: tuple[Delivery, ...] = (),
    ) -> bool:
        """Remove a stream and everything it owns. Its dead rows go when the server sweeps its tables."""
        now = self._clock.wall_ms()
        deleted = await self._write(
            lambda on: undisturbed(lambda: changes.delete(on, stream, (beside, edges, sends), now))
        )  # fmt: skip
        await self.live.forget(stream)
        return deleted

    # --- promises and secrets

    async def promise(self, promise: PromiseState) -> PromiseState:
        """Create a promise if it does not exist; the stored one is returned."""
        return await self._write(lambda on: undisturbed(lambda: promises.make_promise(on, promise)))

    async def resolve(
        self, promise: PromiseId, resolution: Resolution, *, now: int, make: PromiseState | None = None
    ) -> Resolved:
        """Answer a promise: the first answer stands, and every stream that waits for it is woken with it."""
        return await self._write(lambda on: undisturbed(lambda: promises.resolve(on, promise, resolution, now, make)))

    async def resolve_all(
        self, answers: Sequence[tuple[PromiseState, Resolution]], *, now: int
    ) -> dict[PromiseId, Resolution]:
        """Answer several promises, all of them or none; what stood in the way."""
        return await self._write(lambda on: undisturbed(lambda: promises.resolve_all(on, answers, now)))

    async def peek(self, promise: PromiseId) -> PromiseState | None:
        """A promise as it is now."""
        return await self._read(lambda on: promises.read_promise(on, promise))

    async def asked(
        self, *, tenant: Tenant, limit: int, after: tuple[int, PromiseId] | None = None
    ) -> tuple[PromiseState, ...]:
        """What people are asked and have not answered, the longest waiting first."""
        return await self._read(lambda on: reads.asked(on, tenant, limit, after))

    async def asked_as(self, *, tenant: Tenant, prefix: str, limit: int) -> tuple[PromiseState, ...]:
        """What people were asked under ids that begin like this."""
        return await self._read(lambda on: reads.asked_as(on, tenant, prefix, limit))

    async def now(self) -> int:
        """The server's clock."""
        return await self._read(promises.server_now)

    async def secret(self, name: str) -> bytes:
        """32 random bytes of this store."""
        return await self._write(lambda on: promises.secret(on, name))

    # --- blobs, change, health

    async def blob(self, hash: BlobHash, *, stream: StreamId | None = None) -> Blob:
        """Stored bytes; with a stream, only if it holds a reference."""
        return await self._read(lambda on: reads.blob(on, hash, stream))

    async def version(self) -> int:
        """Changes soon after another process, or another store object of this one, has committed; never by our own
        commits. Nothing is asked: it is what was heard.
        """
        self._open()
        assert self._news is not None
        return self._news.heard

    async def check(self) -> tuple[Diagnosis, ...]:
        """Look the store over: logs, references, schema version, the server's durability settings, stuck leases."""
        return await self._read(lambda on: reads.check(on, self._leases))


def _fail(chains: Sequence[appends.Chain], problem: Exception) -> None:
    for chain in chains:
        _fail_jobs(chain.jobs, problem)


def _fail_jobs(jobs: Sequence[Job[Any, Any]], problem: Exception) -> None:
    for job in jobs:
        job.error = problem


def _lock_folder() -> Path:
    """Where the workers of this user and this machine keep their locks."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(base) / f"perdure-{os.getuid() if hasattr(os, 'getuid') else 'user'}"


def _hold(locks: WorkerLocks, worker: WorkerId) -> bool:
    try:
        return locks.hold(worker)
    except OSError:  # no place for locks here: leases alone decide
        return False


def _after_fork() -> None:
    for store in _living:
        store._enter_child()  # pyright: ignore[reportPrivateUsage] - the hook belongs to the class


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
