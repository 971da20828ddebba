"""Workers, claims and permits, inside one transaction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from perdure.errors import Code, Error
from perdure.ids import Fence, StreamId, WorkerId
from perdure.store.permits import Permit, PermitRequest, allot
from perdure.store.shapes import AlreadyOwned, Claim, ReadyStream, Serves
from perdure.store.sqlite.leases import SqliteLeases, SqliteWorkerRow
from perdure.store.sqlite.tx import Statements, Tx


def find_worker(tx: Statements, worker: WorkerId) -> SqliteWorkerRow | None:
    """Return one worker's row, or None."""
    found = tx.one("worker_read", (worker,))
    return SqliteWorkerRow(*found) if found else None


def list_workers(tx: Statements) -> list[SqliteWorkerRow]:
    """Return the rows of all workers, oldest first."""
    return [SqliteWorkerRow(*found) for found in tx.all("worker_list")]


def loads(tx: Statements) -> dict[WorkerId, tuple[int, int]]:
    """Return the number of streams that each worker owns, and the number of those with an open turn."""
    return {WorkerId(owner): (held, active) for owner, held, active in tx.all("worker_loads")}


def register(tx: Tx, row: SqliteWorkerRow) -> None:
    """Register a worker, and delete the rows of dead workers without unfinished work."""
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
    """Extend a worker's lease, regardless of the number of its streams."""
    if tx.leases.renewable(worker):
        _write_lease(tx, worker, tx.leases.end())


def extend(tx: Tx, worker: WorkerId) -> None:
    """Renew a lease within another write, if the last renewal is old enough."""
    end = tx.leases.due(worker)
    if end is not None:
        _write_lease(tx, worker, end)


def _write_lease(tx: Tx, worker: WorkerId, end: int) -> None:
    if tx.run("worker_renew", (end, tx.leases.boot, worker)).rowcount == 1:
        tx.once_durable.append(lambda: tx.leases.remember(worker, end))


def deregister(tx: Tx, worker: WorkerId, *, remove: bool) -> None:
    """Release a worker's streams. Delete its row with `remove`; otherwise end its lease and let its lock decide."""
    tx.run("worker_free", (worker,))
    if remove:
        tx.run("worker_remove", (worker,))
    else:
        tx.run("worker_lapse", (tx.leases.now(), worker))


def claim(tx: Tx, name: StreamId, worker: WorkerId) -> Claim | AlreadyOwned | None:
    """Claim a stream that no live worker owns, that its owner neglects, or that this worker owns; raise its fence."""
    found = tx.one("stream_ownership", (name,))
    if found is None:
        return None
    stream, owner, fence, last_seq, format, _active, parked, paused_at = found
    other: WorkerId | None = owner if owner != worker else None
    alive = other if other and not tx.leases.is_gone(find_worker(tx, other)) else None
    if alive is not None and tx.one("stream_left_waiting", {"id": stream, "waited": tx.leases.waited()}) is None:
        return AlreadyOwned(alive)
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
class SqliteClaimQuery:
    """A query for claimable streams: worker, limit, time, and the work that the worker serves."""

    worker: WorkerId
    limit: int
    now: int
    serves: Serves


def claimable(
    on: Statements, leases: SqliteLeases, asked: SqliteClaimQuery
) -> list[tuple[int, StreamId, WorkerId | None, str]]:
    """Return claimable streams in order: id, name, owner and queue."""
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
        "driving": json.dumps(serves.driving),
        "recent": json.dumps(serves.recent),
        "quarantined": serves.quarantined,
    }
    if serves.only is None:
        return on.all("claimable", values)
    return on.all("claimable_of", values | {"only": json.dumps(serves.only)})


def claim_ready(tx: Tx, asked: SqliteClaimQuery) -> tuple[ReadyStream, ...]:
    """Return claimable streams and claim those without an owner."""
    found: list[ReadyStream] = []
    for _, name, owner, queue in claimable(tx, tx.leases, asked):
        claimed = claim(tx, name, asked.worker) if owner is None else None
        found.append(ReadyStream(name, queue, claimed if isinstance(claimed, Claim) else None))
    return tuple(found)


def claim_idle(tx: Tx, name: StreamId, worker: WorkerId) -> Fence | None:
    """Claim an idle stream without an owner. A stream with a dead owner is left to `claim`, which counts takeovers."""
    stream, owner, fence, _last_seq, format, active, parked, paused_at = tx.one("stream_ownership", (name,))
    if owner is not None or active or parked or paused_at is not None or format > tx.leases.format:
        return None
    _take(tx, stream, worker)
    return Fence(fence + 1)


def permits(on: Statements, leases: SqliteLeases) -> tuple[Permit, ...]:
    """Return all permits, in request order."""
    gone = {row.id for row in list_workers(on) if leases.is_gone(row)}
    rows = on.all("permit_read")
    return tuple(Permit(name, by, worker, at, bool(ok), worker not in gone) for name, by, worker, at, ok in rows)


def exchange(tx: Tx, worker: WorkerId, asks: Sequence[PermitRequest], back: Sequence[str], now: int) -> frozenset[str]:
    """Release permits and request others; return the holders whose permits are granted."""
    tx.many("permit_end", [(worker, holder) for holder in back])
    granted, changed = allot(permits(tx, tx.leases), asks, worker)
    tx.many("permit_put", [(row.name, row.holder, worker, now, row.granted) for row in changed])
    return granted


def _taken_over(tx: Tx, stream: int, *, again: bool) -> int:
    """Return the takeover count, incremented unless the same worker claims `again`.

    The count restarts at 1 if an owner has written since the last takeover."""
    takeovers, stuck_seq, last_owned = tx.one("stream_stuck", (stream,))
    stuck = takeovers if stuck_seq == last_owned else 0
    if not again:
        tx.run("stream_taken_over", (stuck + 1, last_owned, stream))
    return stuck if again else stuck + 1


def _take(tx: Tx, stream: int, worker: WorkerId) -> None:
    tx.run("stream_claim", (worker, stream))
    extend(tx, worker)
