"""Changes to a stream without a fence: admitted records, control writes, redaction, deletion, creation with history."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.codec import encode
from perdure.commit.changes import (
    REDACTED,
    Amendment,
    Audit,
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
from perdure.commit.plan import Entry
from perdure.ids import Seq, StreamId, stream_names
from perdure.inbox.admit import Admitted, Delivery, delivery, stream_unknown
from perdure.inbox.items import Wake
from perdure.store.digest_chain import ChainedRow
from perdure.store.shapes import Annotated, Intervened
from perdure.store.sqlite.admissions import deliver, send
from perdure.store.sqlite.log import find_row, log_rows, write_log
from perdure.store.sqlite.promises import wake_waiting
from perdure.store.sqlite.streams import begin_stream, put, refer, relabel, unrefer
from perdure.store.sqlite.tx import Tx


def create(tx: Tx, new: NewStream) -> None:
    """Create a stream with its history."""
    check_admissions(new)
    if new.beside is not None and tx.one("stream_target", (new.beside,)) is None:
        raise stream_unknown(new.beside)
    if tx.one("stream_target", (new.stream,)) is not None:
        raise stream_exists(new.stream)
    stream = begin_stream(tx, new.stream, new.agent, new.entries)
    refer(tx, stream, new.blobs)
    for known in new.admissions:
        tx.run("admission_insert", (stream, known.source_key, known.content, known.turn, known.input))
    relabel(tx, stream, new.stream, new.label)
    put_audit(tx, new.audit)


def annotate(tx: Tx, name: StreamId, entry: Entry, label: Label | None = None) -> Annotated:
    """Append an admitted record, or return the record that already has its log key."""
    found = tx.one("stream_state", (name,))
    if found is None:
        raise stream_unknown(name)
    stream, _owner, _fence, _n, last_seq, format, head = found
    known = find_row(tx, name, entry.key) if entry.key is not None else None
    if known is not None:
        return Annotated(known, new=False)
    seq = Seq(last_seq + 1)
    head = write_log(tx, (name, stream), (last_seq, head), (entry,), by=None)
    tx.run("stream_annotated", (seq, head, max(format, entry.version), tx.clock.wall_ms(), stream))
    if label is not None:
        relabel(tx, stream, name, label)
    row = (seq, entry.at, entry.kind, entry.data, entry.key, entry.version)
    return Annotated(log_rows(name, [row])[0], new=True)


def amend(tx: Tx, amendment: Amendment) -> Annotated:
    """Append one record to an unowned stream, or return the record that already has its log key."""
    noted = annotate(tx, amendment.stream, amendment.entry)
    if not noted.new:
        return noted
    stream, snapshot = tx.one("stream_target", (amendment.stream,))[0], amendment.snapshot
    refer(tx, stream, amendment.blobs)
    unrefer(tx, stream, amendment.drops)
    if snapshot is not None:
        tx.run("snapshot_put", (stream, snapshot.seq, snapshot.code, snapshot.data))
    return noted


def intervene(tx: Tx, intervention: Intervention) -> Intervened:
    """Apply a control write, all or nothing."""
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
    if any(find_row(tx, name, key) is not None for key in intervention.unless):
        return Intervened(done=False)
    admission = deliver(tx, new) if new is not None else None
    if new is not None and not isinstance(admission, Admitted):
        return Intervened(done=False, admission=admission)
    for row in intervention.withdraw:
        if tx.run("inbox_consume", (row, stream)).rowcount != 1:
            raise stream_moved(name)
    if pause is not None:
        _pause(tx, stream, pause)
    for other in intervention.outbox:
        send(tx, other)
    noted = tuple(annotate(tx, name, entry) for entry in intervention.notes)
    put_audit(tx, intervention.audit if all(one.new for one in noted) else ())
    return Intervened(True, admission, noted)


def _pause(tx: Tx, stream: int, pause: Pause) -> None:
    tx.run("stream_pause", (pause.since, pause.by if pause.since is not None else None, stream))
    if pause.since is not None:
        tx.run("stream_take_back", (stream,))


def redact(tx: Tx, redaction: Redaction) -> Annotated:
    """Replace a record's content once; delete the snapshot and the blob references of this record alone."""
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
    found = tx.one("log_one", (stream, redaction.seq)) if redaction.seq <= last_seq else None
    if found is None:
        raise record_unknown(name, redaction.seq)
    original = tx.chain.redacted(ChainedRow(*found), name, redaction.data)
    tx.run("log_rewrite", (redaction.data, original, stream, redaction.seq))
    tx.run("snapshot_drop", (name,))
    unrefer(tx, stream, redaction.drops)
    for promise, told in redaction.answers:
        tx.run("promise_rewrite", (encode(told), promise, stream))
    wake_owner = delivery(name, f"{REDACTED}:{redaction.seq}", Wake(reason=REDACTED), at=redaction.at)
    put(tx, stream, wake_owner)
    put_audit(tx, redaction.audit)
    return noted


def delete(tx: Tx, name: StreamId) -> bool:
    """Delete a stream and everything it owns; wake streams that wait for its promises, which are unknown then."""
    found = tx.one("stream_ownership", (name,))
    if found is None:
        return False
    stream, _owner, fence = found[:3]
    blobs = tx.all("blob_owned", (stream,))
    promises = tx.all("promise_owned", (stream,))
    tx.run("tombstone_put", (name, fence))
    tx.run("stream_delete", (stream,))
    for blob in blobs:
        tx.run("blob_collect", blob)
    for (promise,) in promises:
        wake_waiting(tx, promise, tx.clock.wall_ms())
    return True


def delete_all(
    tx: Tx, names: tuple[StreamId, ...], also: tuple[Iterable[str], Iterable[Delivery], Audit]
) -> list[bool]:
    """Delete streams; return which of them existed.

    `also` contains prefixes of the tenant's tags to remove and, if the first stream existed, deliveries to other
    streams and the audit records."""
    edges, outbox, audit = also
    deleted = [delete(tx, name) for name in names]
    for begins in edges:
        tx.run("tags_cut", (stream_names(names[0])[0], begins, f"{begins}\U0010ffff"))
    for new in outbox if deleted[0] else ():
        send(tx, new)
    put_audit(tx, audit if deleted[0] else ())
    return deleted


def put_audit(tx: Tx, audit: Audit) -> None:
    """Append the audit records of a change that took effect."""
    for note in audit:  # threat: S25, T-AUD-01
        annotate(tx, note.stream, note.entry)
