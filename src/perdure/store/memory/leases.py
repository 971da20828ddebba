"""Workers, their leases, and the permits they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perdure.ids import WorkerId
from perdure.store.memory.state import Tables, Worker
from perdure.store.permits import Ask, Permit, allot
from perdure.store.shapes import WorkerInfo


def register(on: Tables, worker: Worker) -> None:
    """Make a worker known and alive."""
    worker.lease_until, worker.lease_ms = on.lease_end(), on.lease_ms
    on.workers[worker.id] = worker
    for dead in [other.id for other in on.workers.values() if other.dead]:
        _forget(on, dead)
    on.committed()


def _forget(on: Tables, dead: WorkerId) -> None:
    """Let go of what a dead worker held and had nothing to do with; if that was all, forget it."""
    held = [stream for stream in on.streams.values() if stream.owner == dead]
    for stream in held:
        if not (stream.active or stream.parked or stream.inbox or stream.timers):
            stream.owner = None
    if all(stream.owner is None for stream in held):
        del on.workers[dead]
        on.permits = [permit for permit in on.permits if permit.worker != dead]


def retire(on: Tables, worker: WorkerId, *, loose_ends: bool) -> None:
    """The worker ends in order: what it held is free at once. With loose ends it is not dead before we are."""
    if loose_ends and worker in on.workers:
        left = on.workers[worker]
        left.lease_until, left.lease_ms = on.clock.monotonic_ms(), 0  # this is when it was last seen
    else:
        on.workers.pop(worker, None)
        on.permits = [permit for permit in on.permits if permit.worker != worker]
    for stream in on.streams.values():
        if stream.owner == worker:
            stream.owner = None
    on.committed()


def _seen(on: Tables, worker: Worker) -> WorkerInfo:
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


def exchange(on: Tables, worker: WorkerId, asks: Sequence[Ask], back: Sequence[str], now: int) -> frozenset[str]:
    """Give permits back, and ask for others."""
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
    """Every permit that is held or waited for, in the order of asking."""
    return tuple(replace(permit, alive=not on.gone(permit.worker)) for permit in on.permits)


def workers(on: Tables) -> tuple[WorkerInfo, ...]:
    """All workers that are known."""
    return tuple(_seen(on, worker) for worker in on.workers.values())
