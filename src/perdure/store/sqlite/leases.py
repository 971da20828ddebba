"""Leases: what this process remembers of its own workers, and what it concludes about those of others."""

from __future__ import annotations

import json
from dataclasses import dataclass

from perdure.clock import Clock
from perdure.ids import WorkerId
from perdure.store.locks import WorkerLocks
from perdure.store.shapes import PATIENCE_MS, WorkerInfo
from perdure.vocab.records import FORMAT

RENEWAL_PAUSE_MS = 1_000


@dataclass(frozen=True, slots=True)
class WorkerRow:
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


class Leases:
    """Leases run on the monotonic clock of one boot, so that setting the wall clock expires nothing."""

    def __init__(self, clock: Clock, lease_ms: int, boot: str, locks: WorkerLocks, format: int = FORMAT) -> None:
        self.format = format  # what has newer records is not claimed
        self.boot = boot
        self.locks = locks
        self._clock = clock
        self.lease_ms = lease_ms
        self._until: dict[WorkerId, int] = {}
        self._abandoned: set[WorkerId] = set()

    def now(self) -> int:
        """The moment, on the clock of leases."""
        return self._clock.monotonic_ms()

    def waited(self) -> int:
        """When what has waited too long for an owner that does nothing must have come at the latest."""
        return self._clock.wall_ms() - PATIENCE_MS

    def end(self) -> int:
        """When a lease that is written now lapses."""
        return self._clock.monotonic_ms() + self.lease_ms

    def remember(self, worker: WorkerId, until: int) -> None:
        """A lease became durable."""
        self._until[worker] = until

    def adopt(self, worker: WorkerId) -> None:
        """The worker is (again) ours."""
        self._abandoned.discard(worker)

    def forget(self, worker: WorkerId) -> None:
        """The worker has retired."""
        self._until.pop(worker, None)

    def forget_all(self) -> None:
        """The store closes: to others, whoever has not retired is dead from now on."""
        self._until.clear()
        self.locks.drop_all()

    def abandon(self, worker: WorkerId) -> None:
        """The worker shall look dead from now on."""
        self._abandoned.add(worker)
        self._until.pop(worker, None)
        self.locks.drop(worker)

    def renewable(self, worker: WorkerId) -> bool:
        """Whether this worker's lease may be extended at all."""
        return worker not in self._abandoned

    def due(self, worker: WorkerId) -> int | None:
        """The new end of a lease if it is worth a write: the last renewal is more than a second old."""
        until, end = self._until.get(worker), self.end()
        if worker in self._abandoned or (until is not None and end - until <= RENEWAL_PAUSE_MS):
            return None
        return end

    def live(self, worker: WorkerId) -> bool:
        """Whether the last lease that became durable has certainly not lapsed."""
        until = self._until.get(worker)
        return until is not None and self._clock.monotonic_ms() < until

    def is_dead(self, row: WorkerRow | None) -> bool:
        """Whether it is certain that this worker does nothing any more."""
        if row is None or row.boot != self.boot:
            return True
        return bool(row.locked) and self.locks.is_free(row.id)

    def is_gone(self, row: WorkerRow | None) -> bool:
        """Whether its streams may be taken: dead, or its lease lapsed."""
        return row is None or row.lease_until <= self._clock.monotonic_ms() or self.is_dead(row)

    def info(self, row: WorkerRow, load: tuple[int, int]) -> WorkerInfo:
        """A worker as others see it; `load` is how many streams it holds, and how many of them have a turn open."""
        alive = not self.is_gone(row)
        left = row.lease_until - self._clock.monotonic_ms() if row.boot == self.boot else 0
        queues = None if row.queues is None else tuple(json.loads(row.queues))
        return WorkerInfo(
            row.id, row.pid, row.version, row.started_at, row.lease_until, alive, row.host, left, *load, row.lease_ms,
            row.concurrency, queues
        )  # fmt: skip
