"""What enters a stream from outside, inside one transaction: deliveries, admitted records, promises, removal."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from perdure.codec import decode, encode
from perdure.commit.changes import (
    REDACTED,
    Amendment,
    Intervention,
    Label,
    NewStream,
    Pause,
    Redaction,
    check_admissions,
    record_unknown,
    stream_exists,
    stream_moved,
)
from perdure.commit.plan import Blob, Entry, first_entry
from perdure.ids import BlobHash, PromiseId, Seq, StreamId, WorkerId, stream_names
from perdure.inbox.admit import (
    Admission,
    Admitted,
    Conflict,
    Delivery,
    blob_unknown,
    decide,
    delivery,
    ids_of,
    is_news,
    opens,
    stream_unknown,
    wake,
)
from perdure.inbox.items import Wake
from perdure.store.protocol import Accepted, AlreadyResolved, Annotated, Intervened, Resolved, Unknown
from perdure.store.sqlite.claims import claim_idle
from perdure.store.sqlite.log import find_row, log_rows, write_log
from perdure.store.sqlite.tx import Cells, Statements, Tx
from perdure.vocab.promises import PromiseState, Resolution, TimedOut
from perdure.vocab.records import FORMAT


def admit(tx: Tx, new: Delivery, claim_for: WorkerId | None) -> Admission:
    """Deliver, and hand the stream to the sender if nobody drives it."""
    admission = deliver(tx, new)
    if claim_for is None or not isinstance(admission, Admitted):
        return admission
    return Admitted(admission.inbox_id, claim_idle(tx, new.stream, claim_for))


def deliver(tx: Tx, new: Delivery) -> Admission:
    """Put something into a stream's inbox, once; open the stream if it does not exist and the delivery says so."""
    target = tx.one("stream_target", (new.stream,))
    opening = opens(target[1] if target else None, new)
    if opening and new.once and tx.one("grave_find", (new.stream,)) is not None:
        return Conflict(new.source_key)
    judged = None if opening else decide(tx.one("admission_find", (target[0], new.source_key)), new)
    if judged is not None:
        return judged
    known = [_stored(tx, new, hash) for hash in new.refers]  # whatever is refused has written nothing
    stream = _open_stream(tx, new) if opening else target[0]
    refer(tx, stream, new.blobs)
    for blob in known:
        tx.run("blob_refer", (stream, blob))
    tx.run("admission_insert", (stream, new.source_key, new.content, *ids_of(new.item)))
    return Admitted(_put(tx, stream, new))


def _open_stream(tx: Tx, new: Delivery) -> int:
    stream = _begin_stream(tx, new.stream, new.agent or "", (first_entry(new),), (new.queue, new.priority))
    if new.tags:
        _relabel(tx, stream, new.stream, Label(tags=new.tags))
    return stream


def _begin_stream(
    tx: Tx,
    name: StreamId,
    agent: str,
    entries: tuple[Entry, ...],
    place: tuple[str | None, int | None] = (None, None),
) -> int:
    tenant, kind, short = stream_names(name)
    values = {"stream": name, "tenant": tenant, "kind": kind, "name": short, "agent": agent}
    values |= {"queue": place[0], "priority": place[1]}
    now = tx.clock.wall_ms()
    format = max([FORMAT, *(entry.version for entry in entries)])
    stream = tx.run("stream_open", values | {"format": format, "now": now}).lastrowid
    assert stream is not None
    write_log(tx, (name, stream), Seq(1), entries, by=None)
    tx.run("stream_annotated", (len(entries), format, now, stream))
    return stream


def create(tx: Tx, new: NewStream) -> None:
    """A stream with its past."""
    check_admissions(new)
    if new.beside is not None and tx.one("stream_target", (new.beside,)) is None:
        raise stream_unknown(new.beside)
    if tx.one("stream_target", (new.stream,)) is not None:
        raise stream_exists(new.stream)
    stream = _begin_stream(tx, new.stream, new.agent, new.entries)
    refer(tx, stream, new.blobs)
    for known in new.admissions:
        tx.run("admission_insert", (stream, known.source_key, known.content, known.turn, known.input))
    _relabel(tx, stream, new.stream, new.label)


def refer(tx: Tx, stream: int, blobs: Iterable[Blob]) -> None:
    """Store bytes that are not there yet, and let a stream refer to them."""
    for blob in blobs:
        known = tx.one("blob_find", (blob.hash,))
        stored = known[0] if known else tx.run("blob_insert", (blob.hash, blob.media_type, blob.data)).lastrowid
        tx.run("blob_refer", (stream, stored))


def _stored(tx: Tx, new: Delivery, hash: BlobHash) -> int:
    """Bytes may be referred to again by whose tenant has them."""
    known = tx.one("blob_of_tenant", (hash, stream_names(new.stream)[0]))
    if known is None:
        raise blob_unknown(hash)
    return known[0]


def _put(tx: Tx, stream: int, new: Delivery) -> int:
    values = (stream, new.source_key, new.at, tx.clock.wall_ms(), is_news(new.item), new.data)
    inbox_id = tx.run("inbox_insert", values).lastrowid
    assert inbox_id is not None
    return inbox_id


def annotate(tx: Tx, name: StreamId, entry: Entry, label: Label | None = None) -> Annotated:
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
    if label is not None:
        _relabel(tx, stream, name, label)
    row = (seq, entry.at, entry.kind, entry.data, entry.key, entry.version)
    return Annotated(log_rows(name, [row])[0], new=True)


def amend(tx: Tx, amendment: Amendment) -> Annotated:
    """Add a record, with the bytes it brings and without those it lets go; nothing if its key is taken."""
    noted = annotate(tx, amendment.stream, amendment.entry)
    if not noted.new:
        return noted
    stream, snapshot = tx.one("stream_target", (amendment.stream,))[0], amendment.snapshot
    refer(tx, stream, amendment.blobs)
    _unrefer(tx, stream, amendment.drops)
    if snapshot is not None:
        tx.run("snapshot_put", (stream, snapshot.seq, snapshot.code, snapshot.data))
    return noted


def intervene(tx: Tx, intervention: Intervention) -> Intervened:
    """Do something to a stream from outside: all of it or nothing."""
    name, new, pause = intervention.stream, intervention.delivery, intervention.pause
    found = tx.one("stream_ownership", (name,))
    if found is None:
        raise stream_unknown(name)
    stream, paused_at = found[0], found[-1]
    (last_inbox,) = tx.one("inbox_last", (stream,))
    if intervention.known_inbox is not None and last_inbox > intervention.known_inbox:
        raise stream_moved(name)
    if pause is not None and (pause.since is None) == (paused_at is None):
        return Intervened(done=False)
    admission = deliver(tx, new) if new is not None else None
    if new is not None and not isinstance(admission, Admitted):
        return Intervened(done=False, admission=admission)
    for row in intervention.withdraw:
        if tx.run("inbox_consume", (row, stream)).rowcount != 1:
            raise stream_moved(name)
    if pause is not None:
        _pause(tx, stream, pause)
    return Intervened(True, admission, tuple(annotate(tx, name, entry) for entry in intervention.notes))


def _pause(tx: Tx, stream: int, pause: Pause) -> None:
    tx.run("stream_pause", (pause.since, pause.by if pause.since is not None else None, stream))
    if pause.since is not None:
        tx.run("stream_take_back", (stream,))


def _relabel(tx: Tx, stream: int, name: StreamId, label: Label) -> None:
    if label.title is not None:
        tx.run("title_put", (stream, label.title))
    if label.tags is not None:
        tx.run("tags_clear", (stream,))
    tenant = stream_names(name)[0]
    for tag in label.drops:
        tx.run("tag_drop", (tenant, tag, stream))
    for tag in (*(label.tags or ()), *label.adds):
        tx.run("tag_put", {"tenant": tenant, "tag": tag, "stream": stream})


def redact(tx: Tx, redaction: Redaction) -> Annotated:
    """Replace what a record said, once; its snapshot and the references it alone had go too."""
    name = redaction.stream
    found = tx.one("stream_state", (name,))
    if found is None:
        raise stream_unknown(name)
    stream, last_seq = found[0], found[4]
    noted = annotate(tx, name, redaction.note)
    if not noted.new:
        return noted
    (last_inbox,) = tx.one("inbox_last", (stream,))
    if redaction.drops and (last_seq != redaction.known_seq or last_inbox > redaction.known_inbox):
        raise stream_moved(name)
    if redaction.seq > last_seq or tx.run("log_rewrite", (redaction.data, stream, redaction.seq)).rowcount != 1:
        raise record_unknown(name, redaction.seq)
    tx.run("snapshot_drop", (name,))
    _unrefer(tx, stream, redaction.drops)
    for promise, told in redaction.answers:
        tx.run("promise_rewrite", (encode(told), promise, stream))
    wake_owner = delivery(name, f"{REDACTED}:{redaction.seq}", Wake(reason=REDACTED), at=redaction.at)
    _put(tx, stream, wake_owner)
    return noted


def _unrefer(tx: Tx, stream: int, hashes: Iterable[BlobHash]) -> None:
    for hash in hashes:
        if (known := tx.one("blob_find", (hash,))) is not None:
            tx.run("blob_unrefer", (stream, known[0]))
            tx.run("blob_collect", known)


def delete(tx: Tx, name: StreamId) -> bool:
    """Remove a stream and everything it owns; whoever waits for one of its promises is woken to find it gone."""
    found = tx.one("stream_ownership", (name,))
    if found is None:
        return False
    stream, _owner, fence = found[:3]
    blobs = tx.all("blob_owned", (stream,))
    promises = tx.all("promise_owned", (stream,))
    tx.run("grave_dig", (name, fence))
    tx.run("stream_delete", (stream,))
    for blob in blobs:
        tx.run("blob_collect", blob)
    for (promise,) in promises:
        _wake(tx, promise, tx.clock.wall_ms())
    return True


def delete_all(tx: Tx, names: tuple[StreamId, ...], edges: Iterable[str]) -> list[bool]:
    """Remove streams, and tags that begin like this from whatever streams of the tenant have them."""
    deleted = [delete(tx, name) for name in names]
    for begins in edges:
        tx.run("tags_cut", (stream_names(names[0])[0], begins, f"{begins}\U0010ffff"))
    return deleted


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


def resolve(tx: Tx, promise: PromiseId, resolution: Resolution, now: int, make: PromiseState | None = None) -> Resolved:
    """Answer a promise, made for it if need be, if nobody was first, and wake who waits."""
    if make is not None:
        make_promise(tx, make)
    if tx.run("promise_resolve", (encode(resolution), promise, tx.clock.wall_ms())).rowcount == 1:
        _wake(tx, promise, now)
        return Accepted()
    known = read_promise(tx, promise)
    if known is None:
        return Unknown()
    if known.resolution is None:  # too late
        tx.run("promise_lapse", (encode(TimedOut()), promise))
        _wake(tx, promise, now)
        return Accepted() if isinstance(resolution, TimedOut) else AlreadyResolved(TimedOut())
    return AlreadyResolved(known.resolution)


def resolve_all(tx: Tx, answers: Sequence[tuple[PromiseState, Resolution]], now: int) -> dict[PromiseId, Resolution]:
    """Answer several promises, made for it if need be: all of them or none; what stood in the way."""
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
        _wake(tx, made.id, now)
    return closed


def _wake(tx: Tx, promise: PromiseId, now: int) -> None:
    for stream, name in tx.all("wait_streams", (promise,)):
        _put(tx, stream, wake(name, promise, at=now))
    tx.run("wait_end", (promise,))


def read_promise(tx: Statements, promise: PromiseId) -> PromiseState | None:
    """A promise as it is now."""
    found = tx.one("promise_read", (promise,))
    return None if found is None else promise_state(found)


def promise_state(found: Cells) -> PromiseState:
    """A promise from its row."""
    promise, stream, resolution, deadline_at, asks, asked_at, consumed_at = found
    return PromiseState(
        id=promise,
        stream=stream,
        resolution=decode(resolution, Resolution) if resolution is not None else None,
        deadline_at=deadline_at,
        asks=asks,
        asked_at=asked_at,
        consumed_at=consumed_at,
    )


def secret(tx: Tx, name: str) -> bytes:
    """The secret of that name; made if there is none."""
    tx.run("secret_put", (name, os.urandom(32)))
    (value,) = tx.one("secret_read", (name,))
    return value
