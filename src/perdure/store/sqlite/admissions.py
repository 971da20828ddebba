"""What enters a stream from outside, inside one transaction: deliveries, admitted records, promises, removal."""

from __future__ import annotations

import os

from perdure.codec import decode, encode
from perdure.commit.plan import Entry
from perdure.ids import PromiseId, Seq, StreamId, WorkerId, stream_names
from perdure.inbox.admit import (
    Admission,
    Admitted,
    Delivery,
    decide,
    ids_of,
    is_news,
    opens,
    stream_unknown,
    wake,
)
from perdure.store.protocol import Accepted, AlreadyResolved, Annotated, Resolved, Unknown
from perdure.store.sqlite.claims import claim_idle
from perdure.store.sqlite.log import find_row, log_rows, whole, write_log
from perdure.store.sqlite.tx import Statements, Tx
from perdure.vocab.promises import PromiseState, Resolution
from perdure.vocab.records import FORMAT, SessionOpened


def admit(tx: Tx, new: Delivery, claim_for: WorkerId | None) -> Admission:
    """Deliver, and hand the stream to the sender if nobody drives it."""
    admission = deliver(tx, new)
    if claim_for is None or not isinstance(admission, Admitted):
        return admission
    return Admitted(admission.inbox_id, claim_idle(tx, new.stream, claim_for))


def deliver(tx: Tx, new: Delivery) -> Admission:
    """Put something into a stream's inbox, once; open the stream if it does not exist and the delivery says so."""
    target = tx.one("stream_target", (new.stream,))
    stream = _open_stream(tx, new) if opens(target[1] if target else None, new) else target[0]
    judged = decide(tx.one("admission_find", (stream, new.source_key)), new)
    if judged is not None:
        return judged
    tx.run("admission_insert", (stream, new.source_key, new.content, *ids_of(new.item)))
    return Admitted(_put(tx, stream, new))


def _open_stream(tx: Tx, new: Delivery) -> int:
    tenant, kind, name = stream_names(new.stream)
    opened = Entry.of(SessionOpened(agent=new.agent or ""), at=new.at)
    values = {"stream": new.stream, "tenant": tenant, "kind": kind, "name": name, "agent": new.agent}
    now = tx.clock.wall_ms()
    stream = tx.run("stream_open", values | {"format": FORMAT, "now": now}).lastrowid
    assert stream is not None
    write_log(tx, (new.stream, stream), Seq(1), (opened,), by=None)
    tx.run("stream_annotated", (1, FORMAT, now, stream))
    return stream


def _put(tx: Tx, stream: int, new: Delivery) -> int:
    inbox_id = tx.run("inbox_insert", (stream, new.source_key, new.at, is_news(new.item), new.data)).lastrowid
    assert inbox_id is not None
    return inbox_id


def annotate(tx: Tx, name: StreamId, entry: Entry) -> Annotated:
    """Append an admitted record; under a key that is taken, the record that has it."""
    found = tx.one("stream_state", (name,))
    if found is None:
        raise stream_unknown(name)
    stream, _owner, _fence, _n, last_seq, format = found
    known = find_row(tx, name, entry.key) if entry.key is not None else None
    if known is not None:
        return Annotated(known, new=False)
    seq = Seq(last_seq + 1)
    write_log(tx, (name, stream), seq, (entry,), by=None)
    tx.run("stream_annotated", (seq, max(format, entry.version), tx.clock.wall_ms(), stream))
    row = (seq, entry.at, entry.kind, entry.data, entry.key, entry.version)
    return Annotated(log_rows(name, [row])[0], new=True)


def delete(tx: Tx, name: StreamId) -> bool:
    """Remove a stream and everything it owns; whoever waits for one of its promises is woken to find it gone."""
    found = tx.one("stream_ownership", (name,))
    if found is None:
        return False
    stream, _owner, fence = found[:3]
    blobs = tx.all("blob_owned", (stream,))
    promises = tx.all("promise_owned", (stream,))
    tx.run("grave_dig", (name, fence))
    tx.run("log_delete", whole(stream))
    tx.run("stream_delete", (stream,))
    for blob in blobs:
        tx.run("blob_collect", blob)
    for (promise,) in promises:
        _wake(tx, promise, tx.clock.wall_ms())
    return True


def make_promise(tx: Tx, promise: PromiseState) -> PromiseState:
    """Create a promise, or find the one that exists."""
    known = read_promise(tx, promise.id)
    if known is not None:
        return known
    target = tx.one("stream_target", (promise.stream,))
    if target is None:
        raise stream_unknown(promise.stream)
    resolution = encode(promise.resolution) if promise.resolution is not None else None
    tx.run("promise_insert", (promise.id, target[0], resolution, promise.deadline_at))
    return promise


def resolve(tx: Tx, promise: PromiseId, resolution: Resolution, now: int) -> Resolved:
    """Answer a promise, if nobody was first, and wake who waits."""
    if tx.run("promise_resolve", (encode(resolution), promise)).rowcount == 1:
        _wake(tx, promise, now)
        return Accepted()
    known = read_promise(tx, promise)
    return AlreadyResolved(known.resolution) if known and known.resolution is not None else Unknown()


def _wake(tx: Tx, promise: PromiseId, now: int) -> None:
    for stream, name in tx.all("wait_streams", (promise,)):
        _put(tx, stream, wake(name, promise, at=now))
    tx.run("wait_end", (promise,))


def read_promise(tx: Statements, promise: PromiseId) -> PromiseState | None:
    """A promise as it is now."""
    found = tx.one("promise_read", (promise,))
    if found is None:
        return None
    stream, resolution, deadline_at = found
    return PromiseState(
        id=promise,
        stream=stream,
        resolution=decode(resolution, Resolution) if resolution is not None else None,
        deadline_at=deadline_at,
    )


def secret(tx: Tx, name: str) -> bytes:
    """The secret of that name; made if there is none."""
    tx.run("secret_put", (name, os.urandom(32)))
    (value,) = tx.one("secret_read", (name,))
    return value
