"""Claims: the order of ready streams, and taking ownership."""

from __future__ import annotations

from collections import Counter

from perdure.errors import Code, Error
from perdure.ids import Fence, StreamId, Tenant, WorkerId
from perdure.store.memory.state import Stream, Tables
from perdure.store.shapes import IDLE_OWNER_GRACE_MS, AlreadyOwned, Claim, Placement, Serves
from perdure.vocab.records import FORMAT


def claim(on: Tables, stream: StreamId, worker: WorkerId) -> Claim | AlreadyOwned | None:
    """Claim a stream that no live worker owns, that its owner neglects, or that this worker owns; raise its fence."""
    found = on.streams.get(stream)
    if found is None:
        return None
    holder = found.owner if found.owner != worker and not on.gone(found.owner) else None
    if holder is not None and not _left_waiting(on, found):
        return AlreadyOwned(holder)
    if found.format > FORMAT:
        raise Error(
            Code.FORMAT_NEWER,
            f"the stream has records of format {found.format}; this version reads up to {FORMAT}",
            hint="let a newer worker drive it, or upgrade this one",
            stream=stream,
        )
    if found.paused is not None and found.owner != worker:
        return None
    on.committed()
    return take(on, found, worker, left=holder is not None)


def take(on: Tables, stream: Stream, worker: WorkerId, *, left: bool = False) -> Claim:
    """Make a worker the owner. `left`: a live owner neglects the stream, which does not count as a takeover."""
    previous, stream.owner = stream.owner, worker
    if previous is None:
        stream.takeovers = 0
    takeovers = 0 if left else stream.stuck if previous in (None, worker) else stream.taken_over()
    stream.fence = Fence(stream.fence + 1)
    stream.n = 0
    on.extend(worker)
    return Claim(stream.id, stream.fence, stream.last_seq, previous, stream.parked, takeovers)


def ready(on: Tables, worker: WorkerId, now: int, serves: Serves) -> list[tuple[Stream, Placement]]:
    """Return the streams with work that a worker may drive, in order, with their placement."""
    ready: list[tuple[Stream, Placement, int]] = []
    for stream in on.streams.values():
        since, place = _work_since(stream, now), _place(stream, serves)
        suspected = stream.owner not in (None, worker) and stream.stuck > 0
        if serves.quarantined != "also" and suspected is not (serves.quarantined == "only"):
            continue
        if since is not None and place is not None and _may_drive(on, stream, worker):
            ready.append((stream, place, max(since, stream.served_at)))
    ready.sort(key=lambda found: found[2])
    rounds: Counter[tuple[int, str]] = Counter()
    order: list[tuple[tuple[int, int, int], Stream, Placement]] = []
    for stream, place, _ in ready:
        tenant = Tenant(stream.names[0])
        rounds[place.priority, tenant] += 1
        lately = serves.recent.index(tenant) if tenant in serves.recent else -1
        order.append(((-place.priority, rounds[place.priority, tenant], lately), stream, place))
    order.sort(key=lambda found: found[0])
    return [(stream, place) for _, stream, place in order]


def _work_since(stream: Stream, now: int) -> int | None:
    """Return the time at which the oldest work of a stream arrived, or None without work."""
    if stream.paused is not None:
        return None
    due = [due_at for due_at in stream.timers.values() if due_at <= now]
    waiting = [at for id, at in stream.came_at.items() if id in stream.wakes or not stream.parked]
    left = [stream.served_at] if stream.active else []
    return min([*due, *waiting, *left], default=None)


def _may_drive(on: Tables, stream: Stream, worker: WorkerId) -> bool:
    free = stream.owner == worker or on.gone(stream.owner)
    return (free or _left_waiting(on, stream)) and stream.format <= FORMAT


def _left_waiting(on: Tables, stream: Stream) -> bool:
    """Return whether the owner neglects an idle stream: an inbox row waits, and the owner has written nothing lately.

    An owner that has not written since its claim is just starting and keeps the stream."""
    waited = on.clock.wall_ms() - IDLE_OWNER_GRACE_MS
    idle = not stream.active and not stream.parked and stream.n > 0 and stream.served_at <= waited
    return idle and any(at <= waited for at in stream.came_at.values())


def _place(stream: Stream, serves: Serves) -> Placement | None:
    """Return the placement of a stream, or None if the worker does not serve it."""
    of_agent = Placement() if serves.agents is None else serves.agents.get(stream.agent)
    if of_agent is None or stream.id in serves.driving or serves.tenant not in (None, stream.names[0]):
        return None
    queue = of_agent.queue if stream.queue is None else stream.queue
    priority = of_agent.priority if stream.priority is None else stream.priority
    served = (serves.queues is None or queue in serves.queues) and queue not in serves.without
    return Placement(queue, priority) if served and (serves.only is None or stream.id in serves.only) else None
