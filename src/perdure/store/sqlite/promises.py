"""Promises: creation and single resolution; the secret that signs their keys."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.codec import decode, encode
from perdure.ids import PromiseId
from perdure.inbox.admit import stream_unknown, wake
from perdure.store.shapes import Accepted, AlreadyResolved, PromiseUnknown, Resolved
from perdure.store.sqlite.streams import put
from perdure.store.sqlite.tx import Cells, Statements, Tx
from perdure.vocab.promises import PromiseState, Resolution, TimedOut


def make_promise(tx: Tx, promise: PromiseState) -> PromiseState:
    """Create a promise, or return the existing one."""
    known = read_promise(tx, promise.id)
    if known is not None:
        return known
    target = tx.one("stream_target", (promise.stream,))
    if target is None:
        raise stream_unknown(promise.stream)
    resolution = encode(promise.resolution) if promise.resolution is not None else None
    tx.run("promise_insert", (promise.id, target[0], resolution, promise.deadline_at))
    return promise


def resolve(tx: Tx, promise: PromiseId, resolution: Resolution, now: int, make: PromiseState | None = None) -> Resolved:
    """Resolve a promise unless it is resolved, and wake the waiting streams; create it first with `make`."""
    if make is not None:
        make_promise(tx, make)
    if tx.run("promise_resolve", (encode(resolution), promise, tx.clock.wall_ms())).rowcount == 1:
        wake_waiting(tx, promise, now)
        return Accepted()
    known = read_promise(tx, promise)
    if known is None:
        return PromiseUnknown()
    if known.resolution is None:  # too late
        tx.run("promise_lapse", (encode(TimedOut()), promise))
        wake_waiting(tx, promise, now)
        return Accepted() if isinstance(resolution, TimedOut) else AlreadyResolved(TimedOut())
    return AlreadyResolved(known.resolution)


def resolve_all(tx: Tx, answers: Sequence[tuple[PromiseState, Resolution]], now: int) -> dict[PromiseId, Resolution]:
    """Resolve several promises, all or none, creating missing ones; return the resolutions that prevented it."""
    moment = tx.clock.wall_ms()
    closed: dict[PromiseId, Resolution] = {}
    for made, _ in answers:
        known = read_promise(tx, made.id) or made
        late = known.deadline_at is not None and known.deadline_at <= moment
        if ended := known.resolution or (TimedOut() if late else None):
            closed[made.id] = ended
    for made, resolution in answers if not closed else ():
        make_promise(tx, made)
        tx.run("promise_resolve", (encode(resolution), made.id, moment))
        wake_waiting(tx, made.id, now)
    return closed


def wake_waiting(tx: Tx, promise: PromiseId, now: int) -> None:
    """Wake every stream that waits for a promise."""
    for stream, name in tx.all("wait_streams", (promise,)):
        put(tx, stream, wake(name, promise, at=now))
    tx.run("wait_end", (promise,))


def read_promise(tx: Statements, promise: PromiseId) -> PromiseState | None:
    """Return a promise's current state, or None."""
    found = tx.one("promise_read", (promise,))
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


def secret(tx: Tx, name: str, new: bytes) -> bytes:
    """Return the secret of this name, `new` if there was none."""
    tx.run("secret_put", (name, new))
    (value,) = tx.one("secret_read", (name,))
    return value
