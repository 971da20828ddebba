"""Promises: the first resolution wins and wakes the waiting streams."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from perdure.ids import PromiseId, Tenant, stream_names
from perdure.inbox.admit import wake
from perdure.store.memory.state import Tables
from perdure.store.shapes import Accepted, AlreadyResolved, PromiseUnknown, Resolved
from perdure.vocab.promises import PromiseState, Resolution, TimedOut


def promise(on: Tables, promise: PromiseState) -> PromiseState:
    """Create a promise unless it exists; return the stored one."""
    if promise.id not in on.promises:
        on.existing(promise.stream)
        on.promises[promise.id] = promise
        on.committed()
    return on.promises[promise.id]


def resolve(on: Tables, promise: PromiseId, resolution: Resolution, now: int) -> Resolved:
    """Resolve a promise and wake every stream that waits for it. The first resolution wins."""
    known = on.promises.get(promise)
    if known is None:
        return PromiseUnknown()
    if known.resolution is not None:
        return AlreadyResolved(known.resolution)
    late = known.deadline_at is not None and known.deadline_at <= on.clock.wall_ms()
    told = TimedOut() if late else resolution
    on.promises[promise] = structs.replace(known, resolution=told)
    notify_streams(on, promise, now)
    on.committed()
    return Accepted() if told == resolution else AlreadyResolved(told)


def resolve_all(
    on: Tables, answers: Sequence[tuple[PromiseState, Resolution]], now: int
) -> dict[PromiseId, Resolution]:
    """Resolve several promises, all or none; return the resolutions that prevented it."""
    closed: dict[PromiseId, Resolution] = {}
    for made, _ in answers:
        known = on.promises.get(made.id) or made
        late = known.deadline_at is not None and known.deadline_at <= on.clock.wall_ms()
        if ended := known.resolution or (TimedOut() if late else None):
            closed[made.id] = ended
    answered = answers if not closed else ()
    for made, _ in answered:
        on.existing(made.stream)
    for made, resolution in answered:
        on.promises[made.id] = structs.replace(on.promises.get(made.id) or made, resolution=resolution)
        notify_streams(on, made.id, now)
    on.committed()
    return closed


def notify_streams(on: Tables, promise: PromiseId, now: int) -> None:
    """Wake every stream that waits for a promise."""
    for stream in on.streams.values():
        if promise in stream.waits:
            stream.waits.discard(promise)
            on.deliver(stream, wake(stream.id, promise, at=now))


def asked(on: Tables, tenant: Tenant, after: tuple[int, PromiseId] | None) -> tuple[PromiseState, ...]:
    """Return unresolved requests to people, oldest first."""
    found = [p for p in on.promises.values() if _asks(p, tenant) and p.resolution is None]
    placed = sorted((p.requested_at or 0, p.id) for p in found)
    return tuple(on.promises[id] for at, id in placed if after is None or (at, id) > after)


def asked_as(on: Tables, tenant: Tenant, prefix: str) -> tuple[PromiseState, ...]:
    """Return requests to people whose promise id begins with `prefix`."""
    found = [p for p in on.promises.values() if _asks(p, tenant) and p.id.startswith(prefix)]
    return tuple(sorted(found, key=lambda p: p.id))


def _asks(promise: PromiseState, tenant: Tenant) -> bool:
    return bool(promise.request_kind) and stream_names(promise.stream)[0] == tenant
