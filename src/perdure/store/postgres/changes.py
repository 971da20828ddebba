"""Changes to a stream without a fence: admitted records, control writes, redaction, deletion, creation with history."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.codec import encode
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
from perdure.commit.plan import Entry, ends
from perdure.ids import StreamId, stream_names
from perdure.inbox.admit import Admitted, Delivery, delivery, stream_unknown
from perdure.inbox.items import Wake
from perdure.store.digest_chain import ChainedRow
from perdure.store.postgres.admissions import deliver, send_one
from perdure.store.postgres.driver import UniqueViolationError
from perdure.store.postgres.log import admitted_row, append_admitted, find_row, put_audit
from perdure.store.postgres.promises import lock_promises, wake_waiting
from perdure.store.postgres.streams import begin_stream, put, refer, relabel
from perdure.store.postgres.tx import PgTransaction
from perdure.store.shapes import Annotated, Intervened

MAX_MOVED = 3
"""Attempts to annotate a stream without a lock, while others write to it."""


async def create(on: PgTransaction, new: NewStream, now: int) -> None:
    """Create a stream with its history."""
    check_admissions(new)
    async with on.transaction():
        if new.beside is not None and await on.one("stream_keep", new.beside) is None:
            raise stream_unknown(new.beside)
        stream = await begin_stream(on, new.stream, new.agent, new.entries, now)
        if stream is None:
            raise stream_exists(new.stream)
        await refer(on, stream, new.blobs)
        if new.admissions:
            rows = [(a.source_key, a.content, a.turn, a.input) for a in new.admissions]
            await on.all("admissions_put", stream, *([row[i] for row in rows] for i in range(4)))
        await relabel(on, stream, new.stream, new.label)
        await put_audit(on, new.audit, now)


async def annotate(on: PgTransaction, name: StreamId, entry: Entry, label: Label | None, now: int) -> Annotated:
    """Append an admitted record, or return the record that already has its log key."""
    if label is not None or ends((entry,)):
        async with on.transaction():
            stream, _, row, new = await append_admitted(on, name, entry, now)
            if new and label is not None:
                await relabel(on, stream, name, label)
        return Annotated(row, new=new)
    for _ in range(MAX_MOVED):
        last_seq, before = on.heads.known(name) or await on.one("stream_head", name) or (None, b"")
        if last_seq is None:
            raise stream_unknown(name)
        on.heads.forget((name,))
        (digest,), head = on.heads.chain.extend(name, before, last_seq, (entry,))
        values = (entry.at, entry.kind, entry.version, entry.key, entry.data, now, last_seq, before, head, digest)
        try:
            added = await on.one("annotate", name, *values)
        except UniqueViolationError:
            continue  # a concurrent transaction took the key between our read and our write
        if added is not None:
            on.counters.commits += 1
            on.heads.note(name, added[0], head)
            return Annotated(admitted_row(name, added[0], entry), new=True)
        known = await find_row(on, name, entry.key) if entry.key is not None else None
        if known is not None:
            return Annotated(known, new=False)
    async with on.transaction():  # others write all the time
        _, _, row, new = await append_admitted(on, name, entry, now)
    return Annotated(row, new=new)


async def annotate_all(on: PgTransaction, notes: Sequence[Note], now: int) -> tuple[Annotated, ...]:
    """Append admitted records to several streams, all or nothing; lock the streams in the common order."""
    told: dict[int, Annotated] = {}
    async with on.transaction():
        for place in sorted(range(len(notes)), key=lambda place: (notes[place].stream, place)):
            note = notes[place]
            stream, _, row, new = await append_admitted(on, note.stream, note.entry, now)
            if new and note.label is not None:
                await relabel(on, stream, note.stream, note.label)
            told[place] = Annotated(row, new=new)
    return tuple(told[place] for place in range(len(notes)))


async def amend(on: PgTransaction, amendment: Amendment, now: int) -> Annotated:
    """Append one record to an unowned stream, or return the record that already has its log key."""
    snapshot = amendment.snapshot
    async with on.transaction():
        stream, _, row, new = await append_admitted(on, amendment.stream, amendment.entry, now)
        if not new:
            return Annotated(row, new=False)
        await refer(on, stream, amendment.blobs)
        if amendment.drops:
            await on.all("blobs_unrefer", stream, list(amendment.drops))
            await on.all("blob_collect", sorted(amendment.drops))
        if snapshot is not None:
            await on.all("snapshot_put", stream, snapshot.seq, snapshot.code, snapshot.data)
    return Annotated(row, new=True)


async def intervene(on: PgTransaction, intervention: Intervention, now: int) -> Intervened:
    """Apply a control write, all or nothing."""
    name, new, pause = intervention.stream, intervention.delivery, intervention.pause
    async with on.transaction():
        found = await on.one("stream_ownership", name)
        if found is None:
            raise stream_unknown(name)
        stream, paused_at = found[0], found[-1]
        (last_inbox,) = await on.one("inbox_last", stream)
        if intervention.known_inbox is not None and last_inbox > intervention.known_inbox:
            raise stream_moved(name)
        if pause is not None and (pause.since is None) == (paused_at is None):
            return Intervened(done=False)
        for key in intervention.unless:
            if await find_row(on, name, key) is not None:
                return Intervened(done=False)
        admission = await deliver(on, new, now) if new is not None else None
        if new is not None and not isinstance(admission, Admitted):
            return Intervened(done=False, admission=admission)
        if intervention.withdraw:
            gone = await on.all("inbox_consume", list(intervention.withdraw), stream)
            if len(gone) != len(intervention.withdraw):
                raise stream_moved(name)
        if pause is not None:
            await _pause(on, stream, pause)
        noted = [await append_admitted(on, name, entry, now) for entry in intervention.notes]
        for other in sorted(intervention.outbox, key=lambda other: other.stream):
            await send_one(on, other, now)
        await put_audit(on, intervention.audit if all(new for *_, new in noted) else (), now)
    return Intervened(True, admission, tuple(Annotated(row, new=fresh) for _, _, row, fresh in noted))


async def _pause(on: PgTransaction, stream: int, pause: Pause) -> None:
    await on.all("stream_pause", stream, pause.since, pause.by if pause.since is not None else None)
    if pause.since is not None:
        await on.all("stream_take_back", stream)


async def redact(on: PgTransaction, redaction: Redaction, now: int) -> Annotated:
    """Replace a record's content once; delete the snapshot and the blob references of this record alone."""
    name = redaction.stream
    async with on.transaction():
        if redaction.answers:  # lock order everywhere: promises, then the stream
            await on.all("promises_lock", sorted(promise for promise, _ in redaction.answers))
        stream, last_seq, row, new = await append_admitted(on, name, redaction.note, now)
        if not new:
            return Annotated(row, new=False)
        (last_inbox,) = await on.one("inbox_last", stream)
        if redaction.drops and (last_seq != redaction.known_seq or last_inbox > redaction.known_inbox):
            raise stream_moved(name)
        found = await on.one("log_one", stream, redaction.seq) if redaction.seq <= last_seq else None
        if found is None:
            raise record_unknown(name, redaction.seq)
        original = on.heads.chain.redacted(ChainedRow(*found), name, redaction.data)
        await on.all("log_rewrite", stream, redaction.seq, redaction.data, original)
        await on.all("snapshot_drop", name)
        if redaction.drops:
            await on.all("blobs_unrefer", stream, list(redaction.drops))
            await on.all("blob_collect", list(redaction.drops))
        for promise, told in redaction.answers:
            await on.all("promise_rewrite", promise, stream, encode(told))
        wake_owner = delivery(name, f"{REDACTED}:{redaction.seq}", Wake(reason=REDACTED), at=redaction.at)
        await put(on, stream, wake_owner)
        await put_audit(on, redaction.audit, now)
    return Annotated(row, new=True)


async def delete(
    on: PgTransaction,
    name: StreamId,
    also: tuple[Sequence[StreamId], Sequence[str], Sequence[Delivery], Audit],
    now: int,
) -> bool:
    """Delete a stream and everything it owns; wake streams that wait for its promises, which are unknown then.

    `also` contains further streams to delete, prefixes of tags to remove, deliveries to other streams, and the audit
    records."""
    beside, edges, outbox, audit = also
    async with on.transaction():
        await lock_promises(on, name)  # lock order everywhere: promises, then the stream
        deleted = await _delete(on, name, now)
        for other in beside:
            await _delete(on, other, now)
        for begins in edges:
            await on.all("tags_cut", stream_names(name)[0], begins, f"{begins}\U0010ffff")
        for new in sorted(outbox, key=lambda new: new.stream) if deleted else ():
            await send_one(on, new, now)
        await put_audit(on, audit if deleted else (), now)
    return deleted


async def _delete(on: PgTransaction, name: StreamId, now: int) -> bool:
    found = await on.one("stream_remove", name)
    if found is None:
        return False
    stream, fence = found
    blobs = [hash for (hash,) in await on.all("blob_owned", stream)]
    promises = await lock_promises(on, name)  # includes promises created meanwhile; the row lock prevents new ones
    await on.all("tombstone_put", name, fence)
    await on.all("log_delete", stream)
    await on.all("stream_delete", stream)
    if blobs:
        await on.all("blob_collect", blobs)
    for promise in promises:
        await wake_waiting(on, promise, now)
    return True
