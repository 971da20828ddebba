"""Promises: creation and single resolution; the server's clock; the secret that signs their keys."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from perdure.codec import decode, encode
from perdure.commit.changes import Audit
from perdure.ids import PromiseId, StreamId
from perdure.inbox.admit import is_news, stream_unknown, wake
from perdure.store.postgres.driver import Cells
from perdure.store.postgres.log import put_audit
from perdure.store.postgres.tx import PgTransaction
from perdure.store.shapes import Accepted, AlreadyResolved, PromiseUnknown, Resolved
from perdure.vocab.promises import PromiseState, Resolution, TimedOut


async def make_promise(on: PgTransaction, promise: PromiseState) -> PromiseState:
    """Create a promise, or return the existing one."""
    known = await read_promise(on, promise.id)
    if known is not None:
        return known
    async with on.transaction():
        await on.all("promises_lock", [promise.id])
        return await _make(on, promise)


async def _make(on: PgTransaction, promise: PromiseState) -> PromiseState:
    """Create a promise, or return the existing one. The caller holds its lock."""
    known = await read_promise(on, promise.id)
    if known is not None:
        return known
    target = await on.one("stream_target", promise.stream)
    if target is None:
        raise stream_unknown(promise.stream)
    resolution = encode(promise.resolution) if promise.resolution is not None else None
    await on.all("promise_insert", promise.id, target[0], resolution, promise.deadline_at)
    return promise


@dataclass(frozen=True, slots=True)
class PgAnswer:
    """A resolution on its way to a promise, which is created first with `make`, and its audit records."""

    promise: PromiseId
    resolution: Resolution
    make: PromiseState | None = None
    audit: Audit = ()


async def resolve(on: PgTransaction, answer: PgAnswer, now: int) -> Resolved:
    """Resolve a promise unless it is resolved, and wake the waiting streams."""
    promise, resolution = answer.promise, answer.resolution
    async with on.transaction():
        await on.all("promises_lock", [promise])
        if answer.make is not None:
            await _make(on, answer.make)
        if await on.one("promise_resolve", promise, encode(resolution)) is not None:
            await wake_waiting(on, promise, now)
            await put_audit(on, answer.audit, now)
            return Accepted()
        known = await read_promise(on, promise)
        if known is None:
            return PromiseUnknown()
        if known.resolution is None:  # too late
            await on.all("promise_lapse", promise, encode(TimedOut()))
            await wake_waiting(on, promise, now)
            if not isinstance(resolution, TimedOut):
                return AlreadyResolved(TimedOut())
            await put_audit(on, answer.audit, now)
            return Accepted()
    return AlreadyResolved(known.resolution)


class _Closed(Exception):
    """Raised to roll back a transaction in which a promise was already resolved."""


async def resolve_all(
    on: PgTransaction, answers: Sequence[tuple[PromiseState, Resolution]], now: int, audit: Audit = ()
) -> dict[PromiseId, Resolution]:
    """Resolve several promises, all or none, creating missing ones; return the resolutions that prevented it."""
    closed: dict[PromiseId, Resolution] = {}
    with suppress(_Closed):
        async with on.transaction():
            await on.all("promises_lock", [made.id for made, _ in answers])
            for made, resolution in answers:
                known = await _make(on, made)
                if await on.one("promise_resolve", made.id, encode(resolution)) is None:
                    closed[made.id] = known.resolution or TimedOut()
                else:
                    await wake_waiting(on, made.id, now)
            if closed:
                raise _Closed
            await put_audit(on, audit, now)
    return closed


async def wake_waiting(on: PgTransaction, promise: PromiseId, now: int) -> None:
    """Wake every stream that waits for a promise."""
    new = wake(StreamId(""), promise, at=now)  # the same for every stream that waits
    await on.all("promise_wake", promise, new.source_key, new.at, is_news(new.item), new.data)


async def read_promise(on: PgTransaction, promise: PromiseId) -> PromiseState | None:
    """Return a promise's current state, or None."""
    found = await on.one("promise_read", promise)
    return None if found is None else promise_state(found)


def promise_state(found: Cells) -> PromiseState:
    """Convert a row to a promise."""
    promise, stream, resolution, deadline_at, asks, asked_at, consumed_at = found
    return PromiseState(
        id=promise,
        stream=stream,
        resolution=decode(resolution, Resolution) if resolution is not None else None,
        deadline_at=deadline_at,
        request_kind=asks,
        requested_at=asked_at,
        consumed_at=consumed_at,
    )


async def lock_promises(on: PgTransaction, name: StreamId) -> list[PromiseId]:
    """Lock the promises of a stream and return them. Lock order everywhere: promises, then the stream."""
    promises = [promise for (promise,) in await on.all("promise_owned", name)]
    if promises:
        await on.all("promises_lock", promises)
    return promises


async def server_now(on: PgTransaction) -> int:
    """Return the time on the server's clock."""
    (now,) = await on.one("now")
    return now


async def secret(on: PgTransaction, name: str, new: bytes) -> bytes:
    """Return the secret of this name, `new` if there was none."""
    while (found := await on.one("secret", name, new)) is None:
        pass  # another transaction created it after this statement's snapshot
    return found[0]
