"""The single writer of a database: all queued jobs become one transaction; a lone job may commit on its caller.

Laws: jobs take effect in submission order. A refused job does not affect the other jobs of its batch. A job's future
ends only after its transaction is durable. No job is delayed to fill a batch.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from perdure.clock import Clock
from perdure.errors import Code, Error
from perdure.offload import LARGE_BYTES
from perdure.store.answer import Answer
from perdure.store.digest_chain import DigestChain
from perdure.store.shapes import Counters
from perdure.store.sqlite.failures import failure, is_busy, is_io
from perdure.store.sqlite.leases import SqliteLeases
from perdure.store.sqlite.migrate import truncate
from perdure.store.sqlite.tx import Tx
from perdure.store.sqlite.write_lock import WriteLock, may_checkpoint, patiently

T = TypeVar("T")

MAX_BATCH = 256
SOLO = 3  # lone jobs in a row before the next one may commit on its caller
FAST_S = 0.005
SLOW_JOBS = 64  # jobs that go to the thread after a slow commit
CHECKPOINT_BYTES = 4_000_000
COMMIT_BYTES = 16_384  # bytes that a small commit adds to the write-ahead log: a few pages
JOB_BYTES = 2_048  # bytes that each job adds to that, without its content: streams share pages
YIELD_FOR_S = 1.0
CLOSING_LOCK_S = 2.0


@dataclass(slots=True, eq=False)
class SqliteWrite(Generic[T]):
    """Work for a transaction, and the future of its result."""

    work: Callable[[Tx], T]
    future: Answer[T]
    weight: int
    checks_first: bool
    result: T | None = None
    error: Exception | None = None

    def run(self, tx: Tx) -> None:
        """Do the work and keep its result; any exception is raised to the caller."""
        self.result = self.work(tx)

    def settle(self) -> None:
        """Complete the future on the event loop, unless its caller was cancelled."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.result)  # pyright: ignore[reportArgumentType] - a T once the work is done
        else:
            self.future.set_exception(self.error)
            self.future.exception()  # mark as retrieved: callers need not await an append
        self.future.tell()


AnyJob = SqliteWrite[object]


class Writer:
    """The owner of the writing connection. `connect` opens it, and opens it again, with a check, after a disk error."""

    def __init__(
        self,
        path: Path,
        connect: Callable[[], sqlite3.Connection],
        *,
        clock: Clock,
        leases: SqliteLeases,
        counters: Counters,
        chain: DigestChain,
    ) -> None:
        self.chain = chain
        self._path = path
        self._connect = connect
        self._clock = clock
        self._leases = leases
        self._counters = counters
        self.lock = WriteLock(path)
        with self.lock.held():
            connection = connect()
        self._connection: sqlite3.Connection | None = connection
        self._identity = _identity(path)
        self._data_version = patiently(lambda: _data_version(connection), path)
        self._mutex = threading.Lock()
        self._wake = threading.Condition(self._mutex)
        self._queue: deque[AnyJob] = deque()
        self._busy = False  # the thread or a caller is using the connection
        self._in_flight = 0  # jobs with a pending future
        self._solo = SOLO
        self._slow = 0
        self._unchecked_bytes = 0
        self._foreign_until = 0.0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="perdure-writer", daemon=True)
        self._thread.start()

    # --- on the event loop

    def submit(self, work: Callable[[Tx], T], *, weight: int = 0, checks_first: bool = False) -> Answer[T]:
        """Submit a job at the call; `weight` is the approximate number of bytes that it writes.

        `checks_first`: the job refuses only before its first write, so a refusal needs no rollback.
        """
        loop = asyncio.get_running_loop()
        job: SqliteWrite[T] = SqliteWrite(work, Answer(loop=loop), weight, checks_first)
        with self._mutex:
            if self._closing:
                raise Error(Code.RUNTIME_CLOSED, "the store is closed")
            inline = weight <= LARGE_BYTES and self._may_commit_here()  # threat: T-TOOL-03
            self._in_flight += 1
            if inline:
                self._busy = True
            else:
                self._queue.append(job)  # pyright: ignore[reportArgumentType] - jobs of any result
                if len(self._queue) == 1:  # the first job of a queue wakes the thread
                    self._wake.notify()
        if inline:
            self._commit_here(job, loop)  # pyright: ignore[reportArgumentType] - a job of any result
        return job.future

    def _may_commit_here(self) -> bool:
        """Decide whether a job commits on its caller: only after a few lone jobs in a row.

        A thread hop costs as much as an fsync, but concurrent jobs on the thread share one fsync.
        """
        self._slow = max(0, self._slow - 1)
        if self._in_flight:
            self._solo = 0
            return False
        self._solo += 1
        return self._solo > SOLO and not self._slow and not self._busy and self._connection is not None

    def _commit_here(self, job: AnyJob, loop: asyncio.AbstractEventLoop) -> None:
        started = time.perf_counter()
        done = self._try_alone(job)
        took = time.perf_counter() - started
        with self._mutex:
            self._busy = False
            if not done:  # another process is writing: the thread waits, not the event loop
                self._queue.appendleft(job)
            if took > FAST_S:
                self._slow = SLOW_JOBS
            if not done or self._queue or self._closing or self._checkpoint_due():
                self._wake.notify()
        if done:
            loop.call_soon(self._settle, [job])  # one turn of the loop later, so that other tasks can submit jobs

    def _settle(self, jobs: list[AnyJob]) -> None:
        with self._mutex:
            self._in_flight -= len(jobs)
        for job in jobs:
            job.settle()

    def data_version(self) -> int:
        """Return a number that changes when another connection has committed, as of the last idle time."""
        with self._mutex:
            if self._busy or self._queue or self._connection is None or self._closing:
                return self._data_version
            self._data_version = _data_version(self._connection)
            return self._data_version

    # --- one job on its caller

    def _try_alone(self, job: AnyJob) -> bool:
        """Run one job in its own transaction without waiting for locks. Return False if the store is busy."""
        connection = self._connection
        assert connection is not None
        if (gone := self._gone()) is not None:
            job.error = gone
            return True
        if not self.lock.try_hold():
            return False
        try:
            return self._begin_and_commit(job, connection)
        finally:
            self.lock.release()

    def _begin_and_commit(self, job: AnyJob, connection: sqlite3.Connection) -> bool:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as problem:
            if is_busy(problem):
                return False
            self._fail([job], problem)
            return True
        self._commit_one(job, connection)
        return True

    def _commit_one(self, job: AnyJob, connection: sqlite3.Connection) -> None:
        """Run a job in the open transaction, then commit or roll back."""
        tx = Tx(connection, self._counters, self._clock, self._leases, self.chain)
        try:
            job.run(tx)
            connection.execute("COMMIT")
        except sqlite3.Error as problem:
            self._fail([job], problem)
        except Exception as refusal:  # noqa: BLE001 - also a bug: it must not stop the writer
            job.error = refusal
            self._roll_back(connection)
        else:
            self._durable(tx, [job])

    # --- the thread

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(self._something_to_do)
                if not self._queue and self._closing:
                    return
                batch = [self._queue.popleft() for _ in range(min(MAX_BATCH, len(self._queue)))]
                self._busy = True
            if batch:
                self._commit_together(batch)
            with self._mutex:
                due = self._checkpoint_due()
                self._busy = due  # free before the futures end, so that a resumed caller can commit at once
            self._answer(batch)
            if due:
                self._checkpoint()
                with self._mutex:
                    self._busy = False
            if time.monotonic() < self._foreign_until:
                time.sleep(random.uniform(0.0002, 0.001))  # another process writes too: let it get the lock

    def _something_to_do(self) -> bool:
        return not self._busy and (bool(self._queue) or self._closing or self._checkpoint_due())

    def _commit_together(self, batch: list[AnyJob]) -> None:
        try:
            with self.lock.held():
                self._commit_locked(batch)
        except Error as problem:  # the lock was not released in time
            for job in batch:
                job.error = problem

    def _commit_locked(self, batch: list[AnyJob]) -> None:
        try:
            if (gone := self._gone()) is not None:
                raise gone
            connection = self._usable()
            patiently(lambda: connection.execute("BEGIN IMMEDIATE"), self._path)
            self._notice_others(connection)
        except Error as problem:
            for job in batch:
                job.error = problem
            return
        except sqlite3.Error as problem:
            self._fail(batch, problem)
            return
        if len(batch) == 1:
            self._commit_one(batch[0], connection)
        else:
            self._commit_batch(batch, connection)

    def _commit_batch(self, batch: list[AnyJob], connection: sqlite3.Connection) -> None:
        tx = Tx(connection, self._counters, self._clock, self._leases, self.chain)
        try:
            for job in batch:
                if job.checks_first:
                    self._without_savepoint(job, tx)
                else:
                    self._in_savepoint(job, tx)
            connection.execute("COMMIT")
        except sqlite3.Error as problem:
            if is_io(problem):
                self._fail(batch, problem)
            else:
                self._one_by_one(batch, connection)
        except Exception:  # noqa: BLE001 - a bug in a job that may have written something
            self._one_by_one(batch, connection)
        else:
            self._durable(tx, [job for job in batch if job.error is None])

    def _without_savepoint(self, job: AnyJob, tx: Tx) -> None:
        try:
            job.run(tx)
        except Error as refusal:
            job.error = refusal

    def _in_savepoint(self, job: AnyJob, tx: Tx) -> None:
        promised, plans = len(tx.once_durable), tx.plans
        tx.connection.execute("SAVEPOINT job")
        try:
            job.run(tx)
        except sqlite3.Error:
            raise
        except Exception as refusal:  # noqa: BLE001 - also a bug: it must not roll back its neighbours
            job.error = refusal
            del tx.once_durable[promised:]
            tx.plans = plans
            tx.connection.execute("ROLLBACK TO job")
        tx.connection.execute("RELEASE job")

    def _one_by_one(self, batch: list[AnyJob], connection: sqlite3.Connection) -> None:
        """Roll back the batch and commit every job in its own transaction, after an error that spoiled the batch."""
        self._roll_back(connection)
        for job in batch:
            job.error, job.result = None, None
            try:
                patiently(lambda: connection.execute("BEGIN IMMEDIATE"), self._path)
            except Error as problem:
                job.error = problem
            except sqlite3.Error as problem:
                self._fail([job], problem)
            else:
                self._commit_one(job, connection)
            if self._connection is not connection:  # the disk failed: the rest cannot be tried
                for rest in batch[batch.index(job) + 1 :]:
                    rest.error = job.error
                return

    def _answer(self, batch: list[AnyJob]) -> None:
        """Schedule the completion of all futures, once per event loop."""
        loops: dict[asyncio.AbstractEventLoop, list[AnyJob]] = {}
        for job in batch:
            loops.setdefault(job.future.get_loop(), []).append(job)
        for loop, jobs in loops.items():
            try:
                loop.call_soon_threadsafe(self._settle, jobs)
            except RuntimeError:  # that loop is closed: its futures have no reader
                with self._mutex:
                    self._in_flight -= len(jobs)

    # --- both

    def _gone(self) -> Error | None:
        """Return an error if the file at the path was removed or replaced: a commit would not be durable."""
        if _identity(self._path) == self._identity:
            return None
        return Error(
            Code.STORE_UNAVAILABLE,
            "the store file was removed or replaced while it was in use; nothing was written",
            hint="put the file back, or restart with the present file",
            path=str(self._path),
        )

    def _durable(self, tx: Tx, jobs: Iterable[AnyJob]) -> None:
        self._counters.commits += 1
        self._counters.plans += tx.plans
        for promised in tx.once_durable:
            with suppress(OSError):
                promised()
        self._unchecked_bytes += COMMIT_BYTES + sum(job.weight + JOB_BYTES for job in jobs)

    def _fail(self, jobs: Iterable[AnyJob], problem: sqlite3.Error) -> None:
        error = failure(problem, self._path)
        for job in jobs:
            job.error = error
        connection = self._connection
        if connection is None:
            return
        if is_io(problem):
            self._give_up(connection)
        else:
            self._roll_back(connection)

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        try:
            if connection.in_transaction:  # some errors have rolled back already
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._give_up(connection)

    def _give_up(self, connection: sqlite3.Connection) -> None:
        """Close a connection whose cache may differ from the disk; the next batch opens the file again."""
        self._connection = None
        with suppress(sqlite3.Error):
            connection.close()

    def _usable(self) -> sqlite3.Connection:
        """Return the connection; after a disk error, open a new one and check the file."""
        if self._connection is None:
            connection = self._connect()
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                connection.close()
                raise Error(
                    Code.STORE_CORRUPT, "the store file is damaged", because=verdict, hint="restore it from a backup"
                )
            self._connection = connection
        return self._connection

    def _notice_others(self, connection: sqlite3.Connection) -> None:
        version = _data_version(connection)
        if version != self._data_version:
            self._data_version = version
            self._foreign_until = time.monotonic() + YIELD_FOR_S

    def _checkpoint_due(self) -> bool:
        return self._unchecked_bytes >= CHECKPOINT_BYTES

    def _checkpoint(self) -> None:
        """Move the write-ahead log into the file on this thread; the driver would do it on the event loop."""
        self._unchecked_bytes = 0
        if self._connection is None or not may_checkpoint():
            return
        try:
            with self.lock.held():
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except Error:  # another process keeps the lock: the next checkpoint moves the log
            pass
        except sqlite3.Error as problem:
            self._fail([], problem)

    # --- the end

    def close(self) -> None:
        """Finish submitted jobs and truncate the write-ahead log. The call blocks: do not use it on the event loop."""
        with self._mutex:
            self._closing = True
            self._wake.notify()
        self._thread.join()
        connection, self._connection = self._connection, None
        if connection is not None:
            if may_checkpoint():
                with suppress(sqlite3.Error, Error), self.lock.held(CLOSING_LOCK_S):
                    truncate(connection)  # blocked by another reader: the last process to close does it
            with suppress(sqlite3.Error):
                connection.close()
        self.lock.close()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _data_version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA data_version").fetchone()
    return version
