"""Leases of this process's workers, and liveness checks of other workers.

The server's clock decides whether a lease has lapsed. This process counts its own leases on its monotonic clock, from
before each renewal is sent. A lease is therefore never considered valid longer than on the server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perdure.clock import Clock
from perdure.ids import WorkerId
from perdure.store.locks import WorkerLocks
from perdure.store.shapes import WorkerInfo
from perdure.vocab.records import FORMAT

RENEWAL_PAUSE_MS = 1_000


@dataclass(frozen=True, slots=True)
class PgWorkerRow:
    """A row of `workers`, with the time left of its lease by the server's clock.

    `excused`: the server has just started, so the worker may have been unable to renew its lease."""

    id: WorkerId
    pid: int
    version: str
    started_at: int
    lease_until: int
    boot: str
    lock: str
    host: str
    lease_left: int
    lease_ms: int = 0
    concurrency: int = 0
    queues: Sequence[str] | None = None
    excused: bool = False

    @property
    def lapsed(self) -> bool:
        """True if the lease has lapsed by the server's clock, and the server was available for a renewal."""
        return self.lease_left <= 0 and not self.excused


class PgLeases:
    """Leases of this process's workers, and the locks that prove the death of workers on this machine."""

    def __init__(self, clock: Clock, lease_ms: int, boot: str, format: int = FORMAT) -> None:
        self.format = format  # streams with newer records are not claimed
        self.boot = boot
        self.lease_ms = lease_ms
        self.locks: WorkerLocks | None = None
        self._clock = clock
        self._until: dict[WorkerId, int] = {}
        self.lapses: Counter[WorkerId] = Counter()
        self._patient_until: dict[WorkerId, int] = {}
        self._abandoned: set[WorkerId] = set()

    def end(self) -> int:
        """Return the end of a lease that is requested now, on this process's clock."""
        return self._clock.monotonic_ms() + self.lease_ms

    def remember(self, worker: WorkerId, until: int) -> None:
        """Store the end of a lease that became durable."""
        if self._was_away(worker):
            self._patient_until[worker] = self.end()
        if not self.live(worker):
            self.lapses[worker] += 1  # before the new end: `lease_live` may be called on another thread
        self._until[worker] = max(until, self._until.get(worker, 0))

    def patient(self, worker: WorkerId | None) -> bool:
        """Return whether this worker missed renewals for half a lease, at most one lease ago.

        The server may have been away for all workers, so others get one lease to renew before their streams are
        claimed."""
        if worker is None:
            return False
        return self._was_away(worker) or self._clock.monotonic_ms() < self._patient_until.get(worker, 0)

    def _was_away(self, worker: WorkerId) -> bool:
        until = self._until.get(worker)
        return until is not None and self.end() - until > self.lease_ms // 2

    def adopt(self, worker: WorkerId) -> None:
        """Accept the worker as one of this process, also after `abandon`."""
        self._abandoned.discard(worker)

    def forget(self, worker: WorkerId) -> None:
        """Drop the lease of a deregistered worker."""
        self._until.pop(worker, None)
        self._patient_until.pop(worker, None)

    def forget_all(self) -> None:
        """Drop all leases and locks when the store closes. Workers not deregistered then look dead on this machine."""
        self._until.clear()
        if self.locks is not None:
            self.locks.drop_all()

    def abandon(self, worker: WorkerId) -> None:
        """Make the worker look dead."""
        self._abandoned.add(worker)
        self._until.pop(worker, None)
        if self.locks is not None:
            self.locks.drop(worker)

    def renewable(self, worker: WorkerId) -> bool:
        """Return whether this worker's lease may be extended."""
        return worker not in self._abandoned

    def due(self, workers: Iterable[WorkerId]) -> list[WorkerId]:
        """Return the workers whose lease is due for renewal, sorted."""
        return sorted(worker for worker in set(workers) if self.is_due(worker))

    def is_due(self, worker: WorkerId) -> bool:
        """Return whether a worker's lease is due for renewal: the last renewal is more than a second old."""
        return worker not in self._abandoned and self.end() - self._until.get(worker, 0) > RENEWAL_PAUSE_MS

    def weak(self, worker: WorkerId) -> bool:
        """Return whether less than half of a lease is left, so that a new claim under it could be lost at once."""
        return worker not in self._abandoned and self.end() - self._until.get(worker, 0) > self.lease_ms // 2

    def live(self, worker: WorkerId) -> bool:
        """Return whether the last durable lease has certainly not lapsed."""
        until = self._until.get(worker)
        return until is not None and self._clock.monotonic_ms() < until

    def is_dead(self, row: PgWorkerRow | None) -> bool:
        """Return whether this worker has certainly ended.

        A missing row belonged to a deregistered worker, or to one proved dead. Other workers can be judged only by
        their lock, on this boot of this machine. A worker on another machine may be alive, regardless of its lease and
        its connections.
        """
        if row is None:
            return True
        if not row.lock or row.boot != self.boot or self.locks is None:
            return False
        return self.locks.is_free(row.id, identity=row.lock)

    def is_gone(self, row: PgWorkerRow | None, by: WorkerId | None = None) -> bool:
        """Return whether worker `by` may claim this worker's streams: it is dead, or its lease has lapsed."""
        return row is None or (row.lapsed and not self.patient(by)) or self.is_dead(row)

    def info(self, row: PgWorkerRow, load: tuple[int, int]) -> WorkerInfo:
        """Return a worker as others see it; `load` is the number of its streams, and of those with an open turn."""
        alive = not self.is_gone(row)
        return WorkerInfo(
            row.id, row.pid, row.version, row.started_at, row.lease_until, alive, row.host, row.lease_left, *load,
            row.lease_ms, row.concurrency, None if row.queues is None else tuple(row.queues)
        )  # fmt: skip
