"""Changes to a stream without a fence: annotation, control write, redaction, conditional append, creation, deletion."""

from __future__ import annotations

from msgspec import structs

from perdure.commit.changes import (
    REDACTED,
    Amendment,
    Audit,
    Intervention,
    Label,
    NewStream,
    Note,
    Pause,
    Redaction,
    check_admissions,
    record_unknown,
    stream_exists,
    stream_moved,
)
from perdure.commit.plan import Entry, key_taken
from perdure.ids import Fence, StreamId, stream_names
from perdure.inbox.admit import Admitted, Delivery, delivery
from perdure.inbox.items import Wake
from perdure.store.memory.admissions import send, take_in
from perdure.store.memory.promises import notify_streams
from perdure.store.memory.state import Stream, Tables
from perdure.store.shapes import Annotated, Intervened


def annotate(on: Tables, note: Note) -> Annotated:
    """Append an admitted record, without a fence. The first record under its key wins."""
    stream = on.existing(note.stream)
    noted = _note(stream, note.entry)
    if noted.new:
        stream.updated_at = on.clock.wall_ms()
        if note.label is not None:
            _relabel(stream, note.label)
        on.committed()
    return noted


def intervene(on: Tables, intervention: Intervention) -> Intervened:
    """Apply a control write, all or nothing."""
    stream, new, pause = on.existing(intervention.stream), intervention.delivery, intervention.pause
    check_audit(on, intervention.audit)
    newer = intervention.known_inbox is not None and max(stream.inbox, default=0) > intervention.known_inbox
    if newer or any(row not in stream.inbox for row in intervention.withdraw):
        raise stream_moved(stream.id)
    if pause is not None and (pause.since is None) == (stream.paused is None):
        return Intervened(done=False)
    if any(key in stream.keys for key in intervention.unless):
        return Intervened(done=False)
    admission = take_in(on, new) if new is not None else None
    if new is not None and not isinstance(admission, Admitted):
        return Intervened(done=False, admission=admission)
    for row in intervention.withdraw:
        stream.take_out(row)
    if pause is not None:
        _pause(stream, pause)
    for other in intervention.outbox:
        send(on, other)
    stream.updated_at = on.clock.wall_ms()
    noted = tuple(_note(stream, entry) for entry in intervention.notes)
    put_audit(on, intervention.audit if all(one.new for one in noted) else ())
    on.committed()
    return Intervened(True, admission, noted)


def _pause(stream: Stream, pause: Pause) -> None:
    stream.paused = pause if pause.since is not None else None
    if pause.since is not None and not stream.active:
        stream.owner, stream.fence, stream.n = None, Fence(stream.fence + 1), 0


def redact(on: Tables, redaction: Redaction) -> Annotated:
    """Replace a record's content once; delete the snapshot and the blob references of this record alone."""
    stream = on.existing(redaction.stream)
    check_audit(on, redaction.audit)
    note = redaction.note
    if note.key is not None and note.key in stream.keys:
        return Annotated(stream.keys[note.key], new=False)
    if not 1 <= redaction.seq <= stream.last_seq:
        raise record_unknown(redaction.stream, redaction.seq)
    moved = stream.last_seq != redaction.known_seq or max(stream.inbox, default=0) > redaction.known_inbox
    if redaction.drops and moved:
        raise stream_moved(redaction.stream)
    stream.rewrite(redaction.seq, redaction.data)
    stream.snapshot = None
    on.unrefer(stream, redaction.drops)
    for promise, told in redaction.answers:
        known = on.promises.get(promise)
        if known is not None and known.stream == stream.id and known.resolution is not None:
            on.promises[promise] = structs.replace(known, resolution=told)
    wake_owner = delivery(stream.id, f"{REDACTED}:{redaction.seq}", Wake(reason=REDACTED), at=redaction.at)
    on.deliver(stream, wake_owner)
    stream.updated_at = on.clock.wall_ms()
    put_audit(on, redaction.audit)
    on.committed()
    return Annotated(stream.write(note), new=True)


def amend(on: Tables, amendment: Amendment) -> Annotated:
    """Append one record to an unowned stream, or return the record that already has its log key."""
    stream = on.existing(amendment.stream)
    noted = _note(stream, amendment.entry)
    if noted.new:
        on.refer(stream, amendment.blobs)
        on.unrefer(stream, amendment.drops)
        stream.snapshot = amendment.snapshot or stream.snapshot
        stream.updated_at = on.clock.wall_ms()
        on.committed()
    return noted


def create(on: Tables, new: NewStream) -> None:
    """Create a stream with its history."""
    check_admissions(new)
    check_audit(on, new.audit)
    if new.beside is not None:
        on.existing(new.beside)
    if new.stream in on.streams:
        raise stream_exists(new.stream)
    now = on.clock.wall_ms()
    stream = on.begin(new.stream, new.agent, now)
    keys: dict[str, str] = {}
    for entry in new.entries:
        if entry.key is not None and entry.key in keys:
            raise key_taken(new.stream, entry.key, keys[entry.key])
        if entry.key is not None:
            keys[entry.key] = entry.kind
    for entry in new.entries:
        stream.write(entry)
    for known in new.admissions:
        stream.admissions[known.source_key] = (known.content, known.turn, known.input)
    _relabel(stream, new.label)
    stream.number = next(on.numbers)
    on.streams[new.stream] = stream
    on.refer(stream, new.blobs)
    put_audit(on, new.audit)
    on.committed()


def delete(
    on: Tables,
    stream: StreamId,
    also: tuple[tuple[StreamId, ...], tuple[str, ...], tuple[Delivery, ...], Audit],
) -> bool:
    """Delete a stream and everything it owns; wake streams that wait for its promises, which are unknown then.

    `also` contains further streams to delete, prefixes of tags to remove, deliveries to other streams, and the audit
    records."""
    beside, edges, outbox, audit = also
    check_audit(on, audit)
    deleted = _delete_one(on, stream)
    for other in beside:
        _delete_one(on, other)
    for one in on.streams.values() if edges else ():
        if one.names[0] == stream_names(stream)[0]:
            one.tags = tuple(tag for tag in one.tags if not tag.startswith(edges))
    for new in outbox if deleted else ():
        send(on, new)
    put_audit(on, audit if deleted else ())
    return deleted


def _delete_one(on: Tables, stream: StreamId) -> bool:
    found = on.streams.pop(stream, None)
    if found is None:
        return False
    on.tombstones[stream] = found.fence
    on.unrefer(found, tuple(found.blobs))
    for promise in [p.id for p in on.promises.values() if p.stream == stream]:
        del on.promises[promise]
        notify_streams(on, promise, on.clock.wall_ms())
    on.committed()
    return True


def check_audit(on: Tables, audit: Audit) -> None:
    """Raise before the change if the stream of an audit record does not exist: nothing here is rolled back."""
    for note in audit:
        on.existing(note.stream)


def put_audit(on: Tables, audit: Audit) -> None:
    """Append the audit records of a change that took effect."""
    for note in audit:  # threat: S25, T-AUD-01
        _note(on.existing(note.stream), note.entry)


def _note(stream: Stream, entry: Entry) -> Annotated:
    if entry.key is not None and entry.key in stream.keys:
        return Annotated(stream.keys[entry.key], new=False)
    return Annotated(stream.write(entry), new=True)


def _relabel(stream: Stream, label: Label) -> None:
    if label.title is not None:
        stream.title = label.title
    if label.tags is not None:
        stream.tags = ()
    stream.tags = tuple(tag for tag in stream.tags if tag not in label.drops)
    stream.tag(*(label.tags or ()), *label.adds)
