"""Workers, claims and permits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perdure.errors import Code, Error
from perdure.ids import Fence, StreamId, WorkerId
from perdure.store.permits import Permit, PermitRequest, allot
from perdure.store.postgres.columns import numbers
from perdure.store.postgres.driver import Cells
from perdure.store.postgres.leases import PgLeases, PgWorkerRow
from perdure.store.postgres.tx import PgTransaction
from perdure.store.shapes import AlreadyOwned, Claim, ReadyStream, Serves


async def find_worker(on: PgTransaction, worker: WorkerId) -> PgWorkerRow | None:
    """Return one worker's row, or None."""
    found = await on.one("worker_read", worker)
    return PgWorkerRow(*found) if found else None


async def list_workers(on: PgTransaction) -> list[PgWorkerRow]:
    """Return the rows of all workers, oldest first."""
    return [PgWorkerRow(*found) for found in await on.all("worker_list")]


async def _living(on: PgTransaction, leases: PgLeases, by: WorkerId | None = None) -> set[WorkerId]:
    """Return the workers that are alive as far as worker `by` can judge."""
    rows = [PgWorkerRow(*found) for found in await on.all("worker_list" if leases.patient(by) else "worker_living")]
    return {row.id for row in rows if not leases.is_gone(row, by)}


async def loads(on: PgTransaction) -> dict[WorkerId, tuple[int, int]]:
    """Return the number of streams that each worker owns, and the number of those with an open turn."""
    return {WorkerId(owner): (held, active) for owner, held, active in await on.all("worker_loads")}


async def register(on: PgTransaction, leases: PgLeases, row: PgWorkerRow) -> None:
    """Register a worker, and delete the rows of dead workers without unfinished work."""
    until = leases.end()
    known = (row.id, row.pid, row.version, row.started_at, leases.lease_ms, row.boot, row.lock, row.host)
    values = (*known, row.concurrency, row.queues)
    async with on.transaction():
        await on.all("worker_put", *values)
        dead = [other.id for other in await list_workers(on) if other.id != row.id and leases.is_dead(other)]
        if dead:
            await on.all("worker_let_go", dead)
        forgotten = await on.all("worker_forget", dead) if dead else []
    leases.remember(row.id, until)
    for (gone,) in forgotten:
        if leases.locks is not None:
            leases.locks.release(WorkerId(gone))


async def renew(on: PgTransaction, leases: PgLeases, worker: WorkerId) -> None:
    """Extend a worker's lease, regardless of the number of its streams."""
    if not leases.renewable(worker):
        return
    until = leases.end()
    renewed = await on.one("worker_renew", worker, leases.lease_ms)
    on.counters.commits += 1
    if renewed is not None:
        leases.remember(worker, until)


async def deregister(on: PgTransaction, worker: WorkerId, *, remove: bool) -> None:
    """Release a worker's streams. Delete its row with `remove`; otherwise end its lease and let its lock decide."""
    async with on.transaction():
        await on.all("worker_free", worker)
        await on.all("worker_remove" if remove else "worker_lapse", worker)


async def claim(on: PgTransaction, leases: PgLeases, name: StreamId, worker: WorkerId) -> Claim | AlreadyOwned | None:
    """Claim a stream that no live worker owns, that its owner neglects, or that this worker owns; raise its fence."""
    taken = await on.one("claim_free", name, worker, leases.format)
    if taken is not None:
        on.counters.commits += 1
        fence, last_seq, previous, parked, takeovers = taken
        return Claim(name, fence, last_seq, previous, parked, takeovers)
    holder = await on.one("stream_holder", name)  # usually a live worker owns it, which needs no lock
    if holder is not None:
        waiting, *row = holder
        if row[0] != worker and not waiting and not leases.is_gone(PgWorkerRow(*row), worker):
            return AlreadyOwned(row[0])
    async with on.transaction():
        found = await on.one("stream_ownership", name)
        if found is None:
            return None
        stream, owner, fence, last_seq, format, _active, parked, paused_at = found
        # The owner's lease is read with the stream locked, so an append that renews it comes before or after.
        other: WorkerId | None = owner if owner != worker else None
        alive = other if other and not leases.is_gone(await find_worker(on, other), worker) else None
        if alive is not None and await on.one("stream_left_waiting", name) is None:
            return AlreadyOwned(alive)
        if format > leases.format:
            raise Error(
                Code.FORMAT_NEWER,
                f"the stream has records of format {format}; this version reads up to {leases.format}",
                hint="let a newer worker drive it, or upgrade this one",
                stream=name,
            )
        if paused_at is not None and owner != worker:
            return None
        (takeovers,) = (0,) if alive or not other else await on.one("stream_taken_over", stream)
        await on.all("stream_claim", stream, worker)
    return Claim(name, Fence(fence + 1), last_seq, owner, parked, takeovers)


@dataclass(frozen=True, slots=True)
class ClaimQuery:
    """A query for claimable streams: worker, limit, time, and the work that the worker serves."""

    worker: WorkerId
    limit: int
    now: int
    serves: Serves


async def claimable(on: PgTransaction, leases: PgLeases, asked: ClaimQuery) -> tuple[StreamId, ...]:
    """Return claimable streams, in order."""
    found = await _look(on, leases, asked, "claimable")
    return tuple(stream for (stream,) in found)


async def claim_ready(on: PgTransaction, leases: PgLeases, asked: ClaimQuery) -> tuple[ReadyStream, ...]:
    """Return claimable streams and claim those without an owner, in one statement."""
    found = await _look(on, leases, asked, "claim_ready")
    on.counters.commits += 1
    return tuple(
        ReadyStream(stream, queue, None if fence is None else Claim(stream, fence, last_seq, None, parked))
        for stream, queue, fence, last_seq, parked in found
    )


async def _look(on: PgTransaction, leases: PgLeases, asked: ClaimQuery, query: str) -> list[Cells]:
    serves = asked.serves
    alive = sorted(await _living(on, leases, asked.worker) - {asked.worker})
    agents = None if serves.agents is None else list(serves.agents)
    places = list((serves.agents or {}).values())
    queues, priorities = [place.queue for place in places], numbers([place.priority for place in places])
    served = None if serves.queues is None else list(serves.queues)
    values = (
        *(asked.now, leases.format, asked.worker, alive, serves.tenant),
        *(agents, queues, priorities, served, list(serves.driving), list(serves.without)),
        *(serves.quarantined, list(serves.recent), asked.limit),
    )
    if serves.only is None:
        return await on.all(query, *values)
    return await on.all(f"{query}_of", *values, list(serves.only))


async def permits(on: PgTransaction, leases: PgLeases, names: Sequence[str] | None = None) -> tuple[Permit, ...]:
    """Return permits in request order: all, or those of the given names."""
    rows = await on.all("permits_read", names)
    living = await _living(on, leases) if rows else set[WorkerId]()
    return tuple(Permit(name, by, worker, at, ok, worker in living) for name, by, worker, at, ok in rows)


async def exchange(
    on: PgTransaction, leases: PgLeases, worker: WorkerId, asks: Sequence[PermitRequest], back: Sequence[str], now: int
) -> frozenset[str]:
    """Release permits and request others; return the granted holders. The requested names are locked meanwhile."""
    names = sorted({name for ask in asks for name, _ in ask.limits})
    async with on.transaction():
        if back:
            await on.all("permits_end", worker, list(back))
        if not names:
            return frozenset()
        await on.all("permits_lock", names)
        granted, changed = allot(await permits(on, leases, names), asks, worker)
        if changed:
            columns = [[row.name for row in changed], [row.holder for row in changed], [row.granted for row in changed]]
            await on.all("permits_put", worker, now, *columns)
    return granted
