"""Leases of this process's workers, and liveness checks of other workers."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

from perdure.clock import Clock
from perdure.ids import WorkerId
from perdure.store.locks import WorkerLocks
from perdure.store.shapes import IDLE_OWNER_GRACE_MS, WorkerInfo
from perdure.vocab.records import FORMAT

RENEWAL_PAUSE_MS = 1_000


@dataclass(frozen=True, slots=True)
class SqliteWorkerRow:
    """A row of `workers`."""

    id: WorkerId
    pid: int
    version: str
    started_at: int
    lease_until: int
    boot: str
    locked: int
    host: str
    lease_ms: int = 0
    concurrency: int = 0
    queues: str | None = None


class SqliteLeases:
    """Leases on the monotonic clock of one boot, so that a change of the wall clock expires nothing."""

    def __init__(self, clock: Clock, lease_ms: int, boot: str, locks: WorkerLocks, format: int = FORMAT) -> None:
        self.format = format  # streams with newer records are not claimed
        self.boot = boot
        self.locks = locks
        self._clock = clock
        self.lease_ms = lease_ms
        self._until: dict[WorkerId, int] = {}
        self.lapses: Counter[WorkerId] = Counter()
        self._abandoned: set[WorkerId] = set()

    def now(self) -> int:
        """Return the time on the clock of leases."""
        return self._clock.monotonic_ms()

    def waited(self) -> int:
        """Return the latest arrival time of an inbox row that makes its idle stream neglected."""
        return self._clock.wall_ms() - IDLE_OWNER_GRACE_MS

    def end(self) -> int:
        """Return the end of a lease that is written now."""
        return self._clock.monotonic_ms() + self.lease_ms

    def remember(self, worker: WorkerId, until: int) -> None:
        """Store the end of a lease that became durable."""
        if not self.live(worker):
            self.lapses[worker] += 1  # before the new end: `lease_live` may be called on another thread
        self._until[worker] = until

    def adopt(self, worker: WorkerId) -> None:
        """Accept the worker as one of this process, also after `abandon`."""
        self._abandoned.discard(worker)

    def forget(self, worker: WorkerId) -> None:
        """Drop the lease of a deregistered worker."""
        self._until.pop(worker, None)

    def forget_all(self) -> None:
        """Drop all leases and locks when the store closes. Workers not deregistered then look dead to others."""
        self._until.clear()
        self.locks.drop_all()

    def abandon(self, worker: WorkerId) -> None:
        """Make the worker look dead."""
        self._abandoned.add(worker)
        self._until.pop(worker, None)
        self.locks.drop(worker)

    def renewable(self, worker: WorkerId) -> bool:
        """Return whether this worker's lease may be extended."""
        return worker not in self._abandoned

    def due(self, worker: WorkerId) -> int | None:
        """Return the new end of a lease whose last renewal is more than a second old, else None."""
        until, end = self._until.get(worker), self.end()
        if worker in self._abandoned or (until is not None and end - until <= RENEWAL_PAUSE_MS):
            return None
        return end

    def live(self, worker: WorkerId) -> bool:
        """Return whether the last durable lease has certainly not lapsed."""
        until = self._until.get(worker)
        return until is not None and self._clock.monotonic_ms() < until

    def is_dead(self, row: SqliteWorkerRow | None) -> bool:
        """Return whether this worker has certainly ended."""
        if row is None or row.boot != self.boot:
            return True
        return bool(row.locked) and self.locks.is_free(row.id)

    def is_gone(self, row: SqliteWorkerRow | None) -> bool:
        """Return whether the worker's streams may be claimed: it is dead, or its lease has lapsed."""
        return row is None or row.lease_until <= self._clock.monotonic_ms() or self.is_dead(row)

    def info(self, row: SqliteWorkerRow, load: tuple[int, int]) -> WorkerInfo:
        """Return a worker as others see it; `load` is the number of its streams, and of those with an open turn."""
        alive = not self.is_gone(row)
        left = row.lease_until - self._clock.monotonic_ms() if row.boot == self.boot else 0
        queues = None if row.queues is None else tuple(json.loads(row.queues))
        return WorkerInfo(
            row.id, row.pid, row.version, row.started_at, row.lease_until, alive, row.host, left, *load, row.lease_ms,
            row.concurrency, queues
        )  # fmt: skip
