"""Leases: what this process remembers of its own workers, and what it concludes about those of others.

The server's clock decides who has lapsed. What this process believes of its own leases counts from before the statement
that renewed them was sent, on its monotonic clock, so it is never believed longer than the server does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perdure.clock import Clock
from perdure.ids import WorkerId
from perdure.store.locks import WorkerLocks
from perdure.store.shapes import WorkerInfo
from perdure.vocab.records import FORMAT

RENEWAL_PAUSE_MS = 1_000


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A row of `workers`, and how much of its lease the server's clock had left. One that is `excused` could perhaps
    not renew it, because the server has only just started."""

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
        """Whether the server's clock had passed its lease, and the server was there to renew it."""
        return self.lease_left <= 0 and not self.excused


class Leases:
    """Leases of this process's workers, and the locks that prove the death of those on this machine."""

    def __init__(self, clock: Clock, lease_ms: int, boot: str, format: int = FORMAT) -> None:
        self.format = format  # what has newer records is not claimed
        self.boot = boot
        self.lease_ms = lease_ms
        self.locks: WorkerLocks | None = None
        self._clock = clock
        self._until: dict[WorkerId, int] = {}
        self._patient_until: dict[WorkerId, int] = {}
        self._abandoned: set[WorkerId] = set()

    def end(self) -> int:
        """When a lease that is asked for now lapses, on this process's clock."""
        return self._clock.monotonic_ms() + self.lease_ms

    def remember(self, worker: WorkerId, until: int) -> None:
        """A lease became durable."""
        if self._was_away(worker):
            self._patient_until[worker] = self.end()
        self._until[worker] = max(until, self._until.get(worker, 0))

    def patient(self, worker: WorkerId | None) -> bool:
        """Whether this worker could not renew its lease for half of it, a lease ago or less. Perhaps the server was
        away, and nobody could: the others get a lease to come back before what they hold is taken."""
        if worker is None:
            return False
        return self._was_away(worker) or self._clock.monotonic_ms() < self._patient_until.get(worker, 0)

    def _was_away(self, worker: WorkerId) -> bool:
        until = self._until.get(worker)
        return until is not None and self.end() - until > self.lease_ms // 2

    def adopt(self, worker: WorkerId) -> None:
        """The worker is (again) ours."""
        self._abandoned.discard(worker)

    def forget(self, worker: WorkerId) -> None:
        """The worker has retired."""
        self._until.pop(worker, None)
        self._patient_until.pop(worker, None)

    def forget_all(self) -> None:
        """The store closes: to others on this machine, whoever has not retired is dead from now on."""
        self._until.clear()
        if self.locks is not None:
            self.locks.drop_all()

    def abandon(self, worker: WorkerId) -> None:
        """The worker shall look dead from now on."""
        self._abandoned.add(worker)
        self._until.pop(worker, None)
        if self.locks is not None:
            self.locks.drop(worker)

    def renewable(self, worker: WorkerId) -> bool:
        """Whether this worker's lease may be extended at all."""
        return worker not in self._abandoned

    def due(self, workers: Iterable[WorkerId]) -> list[WorkerId]:
        """Those whose lease is worth a write."""
        return sorted(worker for worker in set(workers) if self.is_due(worker))

    def is_due(self, worker: WorkerId) -> bool:
        """Whether its lease is worth a write: the last renewal is more than a second old."""
        return worker not in self._abandoned and self.end() - self._until.get(worker, 0) > RENEWAL_PAUSE_MS

    def weak(self, worker: WorkerId) -> bool:
        """Whether so little is left of a lease that what is taken under it now might be taken away at once."""
        return worker not in self._abandoned and self.end() - self._until.get(worker, 0) > self.lease_ms // 2

    def live(self, worker: WorkerId) -> bool:
        """Whether the last lease that became durable has certainly not lapsed."""
        until = self._until.get(worker)
        return until is not None and self._clock.monotonic_ms() < until

    def is_dead(self, row: WorkerRow | None) -> bool:
        """Whether it is certain that this worker does nothing any more.

        A row that is gone was removed by a worker that retired, or that was proved dead. Of the others, only those of
        this boot of this machine can be judged, by their lock. A machine that we cannot see may be alive, whatever its
        lease and its connections say.
        """
        if row is None:
            return True
        if not row.lock or row.boot != self.boot or self.locks is None:
            return False
        return self.locks.is_free(row.id, identity=row.lock)

    def is_gone(self, row: WorkerRow | None, by: WorkerId | None = None) -> bool:
        """Whether its streams may be taken, by that worker: its lease lapsed, or it is dead."""
        return row is None or (row.lapsed and not self.patient(by)) or self.is_dead(row)

    def info(self, row: WorkerRow, load: tuple[int, int]) -> WorkerInfo:
        """A worker as others see it; `load` is how many streams it holds, and how many of them have a turn open."""
        alive = not self.is_gone(row)
        return WorkerInfo(
            row.id, row.pid, row.version, row.started_at, row.lease_until, alive, row.host, row.lease_left, *load,
            row.lease_ms, row.concurrency, None if row.queues is None else tuple(row.queues)
        )  # fmt: skip
