"""Workers, their leases and their permits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perdure.ids import WorkerId
from perdure.store.memory.state import MemoryWorker, Tables
from perdure.store.permits import Permit, PermitRequest, allot
from perdure.store.shapes import WorkerInfo


def register(on: Tables, worker: MemoryWorker) -> None:
    """Register a worker as alive, and remove dead workers without unfinished work."""
    worker.lease_until, worker.lease_ms = on.lease_end(), on.lease_ms
    on.workers[worker.id] = worker
    for dead in [other.id for other in on.workers.values() if other.dead]:
        _forget(on, dead)
    on.committed()


def _forget(on: Tables, dead: WorkerId) -> None:
    """Release a dead worker's streams without work; if it then owns none, delete its row."""
    held = [stream for stream in on.streams.values() if stream.owner == dead]
    for stream in held:
        if not (stream.active or stream.parked or stream.inbox or stream.timers):
            stream.owner = None
    if all(stream.owner is None for stream in held):
        del on.workers[dead]
        on.permits = [permit for permit in on.permits if permit.worker != dead]


def deregister(on: Tables, worker: WorkerId, *, abandoned_calls: bool) -> None:
    """Deregister a worker and release its streams. With `abandoned_calls`, its row stays and is not dead."""
    if abandoned_calls and worker in on.workers:
        left = on.workers[worker]
        left.lease_until, left.lease_ms = on.clock.monotonic_ms(), 0  # the lease ends now, at its last heartbeat
    else:
        on.workers.pop(worker, None)
        on.permits = [permit for permit in on.permits if permit.worker != worker]
    for stream in on.streams.values():
        if stream.owner == worker:
            stream.owner = None
    on.committed()


def _seen(on: Tables, worker: MemoryWorker) -> WorkerInfo:
    held = [stream for stream in on.streams.values() if stream.owner == worker.id]
    return WorkerInfo(
        worker.id,
        worker.pid,
        worker.version,
        worker.started_at,
        worker.lease_until,
        not on.gone(worker.id),
        worker.host,
        worker.lease_until - on.clock.monotonic_ms(),
        len(held),
        sum(stream.active for stream in held),
        worker.lease_ms,
        worker.concurrency,
        worker.queues,
    )


def exchange(
    on: Tables, worker: WorkerId, asks: Sequence[PermitRequest], back: Sequence[str], now: int
) -> frozenset[str]:
    """Release permits and request others; return the holders whose permits are granted."""
    on.permits = [row for row in on.permits if row.worker != worker or row.holder not in back]
    granted, changed = allot(permits(on), asks, worker)
    for row in changed:
        which = (row.worker, row.name, row.holder)
        known = [at for at, old in enumerate(on.permits) if (old.worker, old.name, old.holder) == which]
        if known:
            on.permits[known[0]] = replace(row, at=on.permits[known[0]].at)
        else:
            on.permits.append(replace(row, at=now))
    on.committed()
    return granted


def permits(on: Tables) -> tuple[Permit, ...]:
    """Return all granted and queued permits, in request order."""
    return tuple(replace(permit, alive=not on.gone(permit.worker)) for permit in on.permits)


def workers(on: Tables) -> tuple[WorkerInfo, ...]:
    """Return all registered workers."""
    return tuple(_seen(on, worker) for worker in on.workers.values())
