"""Workers and the streams they hold, inside one transaction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from perdure.errors import Code, Error
from perdure.ids import Fence, StreamId, WorkerId
from perdure.store.permits import Ask, Permit, allot
from perdure.store.shapes import Claim, Held, Ready, Serves
from perdure.store.sqlite.leases import Leases, WorkerRow
from perdure.store.sqlite.tx import Statements, Tx


def find_worker(tx: Statements, worker: WorkerId) -> WorkerRow | None:
    """One worker's row."""
    found = tx.one("worker_read", (worker,))
    return WorkerRow(*found) if found else None


def list_workers(tx: Statements) -> list[WorkerRow]:
    """Every known worker, the oldest first."""
    return [WorkerRow(*found) for found in tx.all("worker_list")]


def loads(tx: Statements) -> dict[WorkerId, tuple[int, int]]:
    """How many streams each worker holds, and how many of them have a turn open."""
    return {WorkerId(owner): (held, active) for owner, held, active in tx.all("worker_loads")}


def register(tx: Tx, row: WorkerRow) -> None:
    """Make a worker known, and forget the dead that left nothing behind."""
    tx.run("worker_put", astuple(row))
    for other in list_workers(tx):
        if other.id == row.id or not tx.leases.is_dead(other):
            continue
        tx.run("worker_let_go", (other.id,))
        if tx.one("worker_owns", (other.id,)) is None:
            tx.run("worker_remove", (other.id,))
            tx.once_durable.append(lambda gone=other.id: tx.leases.locks.release(gone))
    tx.once_durable.append(lambda: tx.leases.remember(row.id, row.lease_until))


def renew(tx: Tx, worker: WorkerId) -> None:
    """Extend a worker's lease, whatever it holds."""
    if tx.leases.renewable(worker):
        _write_lease(tx, worker, tx.leases.end())


def extend(tx: Tx, worker: WorkerId) -> None:
    """Let a lease ride on a write that happens anyway, if the last renewal is old enough to be worth it."""
    end = tx.leases.due(worker)
    if end is not None:
        _write_lease(tx, worker, end)


def _write_lease(tx: Tx, worker: WorkerId, end: int) -> None:
    if tx.run("worker_renew", (end, tx.leases.boot, worker)).rowcount == 1:
        tx.once_durable.append(lambda: tx.leases.remember(worker, end))


def retire(tx: Tx, worker: WorkerId, *, remove: bool) -> None:
    """Free what a worker holds, and forget it or leave it to its lock."""
    tx.run("worker_free", (worker,))
    if remove:
        tx.run("worker_remove", (worker,))
    else:
        tx.run("worker_lapse", (tx.leases.now(), worker))


def claim(tx: Tx, name: StreamId, worker: WorkerId) -> Claim | Held | None:
    """Take a stream that no live worker holds, that its owner leaves waiting, or that this worker holds."""
    found = tx.one("stream_ownership", (name,))
    if found is None:
        return None
    stream, owner, fence, last_seq, format, _active, parked, paused_at = found
    other: WorkerId | None = owner if owner != worker else None
    alive = other if other and not tx.leases.is_gone(find_worker(tx, other)) else None
    if alive is not None and tx.one("stream_left_waiting", {"id": stream, "waited": tx.leases.waited()}) is None:
        return Held(alive)
    if format > tx.leases.format:
        raise Error(
            Code.FORMAT_NEWER,
            f"the stream has records of format {format}; this version reads up to {tx.leases.format}",
            hint="let a newer worker drive it, or upgrade this one",
            stream=name,
        )
    if paused_at is not None and owner != worker:
        return None
    takeovers = 0 if alive or owner is None else _taken_over(tx, stream, again=owner == worker)
    _take(tx, stream, worker)
    return Claim(name, Fence(fence + 1), last_seq, owner, bool(parked), takeovers)


@dataclass(frozen=True, slots=True)
class Asked:
    """Who looks for work, when, which, and how much of it."""

    worker: WorkerId
    limit: int
    now: int
    serves: Serves


def claimable(on: Statements, leases: Leases, asked: Asked) -> list[tuple[int, StreamId, WorkerId | None, str]]:
    """Streams with work that nobody alive holds, or that this worker holds and does not drive: id, name, who holds
    it, and its queue."""
    serves = asked.serves
    alive = [row.id for row in list_workers(on) if row.id != asked.worker and not leases.is_gone(row)]
    places = None if serves.agents is None else {name: [p.queue, p.priority] for name, p in serves.agents.items()}
    values = {
        "now": asked.now,
        "waited": leases.waited(),
        "format": leases.format,
        "worker": asked.worker,
        "alive": json.dumps(alive),
        "limit": asked.limit,
        "tenant": serves.tenant,
        "agents": None if places is None else json.dumps(places),
        "queues": None if serves.queues is None else json.dumps(serves.queues),
        "without": json.dumps(serves.without),
        "besides": json.dumps(serves.besides),
        "recent": json.dumps(serves.recent),
        "suspects": serves.suspects,
    }
    if serves.only is None:
        return on.all("claimable", values)
    return on.all("claimable_of", values | {"only": json.dumps(serves.only)})


def claim_ready(tx: Tx, asked: Asked) -> tuple[Ready, ...]:
    """Look for work and take what nobody holds."""
    found: list[Ready] = []
    for _, name, owner, queue in claimable(tx, tx.leases, asked):
        claimed = claim(tx, name, asked.worker) if owner is None else None
        found.append(Ready(name, queue, claimed if isinstance(claimed, Claim) else None))
    return tuple(found)


def claim_idle(tx: Tx, name: StreamId, worker: WorkerId) -> Fence | None:
    """Take a stream on which nothing runs and which nobody holds. One whose holder is gone is left to `claim`, which
    counts that."""
    stream, owner, fence, _last_seq, format, active, parked, paused_at = tx.one("stream_ownership", (name,))
    if owner is not None or active or parked or paused_at is not None or format > tx.leases.format:
        return None
    _take(tx, stream, worker)
    return Fence(fence + 1)


def permits(on: Statements, leases: Leases) -> tuple[Permit, ...]:
    """Every permit, in the order of asking."""
    gone = {row.id for row in list_workers(on) if leases.is_gone(row)}
    rows = on.all("permit_read")
    return tuple(Permit(name, by, worker, at, bool(ok), worker not in gone) for name, by, worker, at, ok in rows)


def exchange(tx: Tx, worker: WorkerId, asks: Sequence[Ask], back: Sequence[str], now: int) -> frozenset[str]:
    """Give permits back, and ask for others."""
    tx.many("permit_end", [(worker, holder) for holder in back])
    granted, changed = allot(permits(tx, tx.leases), asks, worker)
    tx.many("permit_put", [(row.name, row.holder, worker, now, row.granted) for row in changed])
    return granted


def _taken_over(tx: Tx, stream: int, *, again: bool) -> int:
    """Count that nobody gave it back, unless that was counted for us; from 1 again if an owner has written anything
    since the last time."""
    takeovers, stuck_seq, last_owned = tx.one("stream_stuck", (stream,))
    stuck = takeovers if stuck_seq == last_owned else 0
    if not again:
        tx.run("stream_taken_over", (stuck + 1, last_owned, stream))
    return stuck if again else stuck + 1


def _take(tx: Tx, stream: int, worker: WorkerId) -> None:
    tx.run("stream_claim", (worker, stream))
    extend(tx, worker)
