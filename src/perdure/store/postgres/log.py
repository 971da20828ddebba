"""Inserting and reading log rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perdure.commit.changes import Audit
from perdure.commit.plan import Entry, ends, key_taken
from perdure.ids import Seq, StreamId
from perdure.inbox.admit import stream_unknown
from perdure.offload import offload
from perdure.store.postgres.driver import Cells
from perdure.store.postgres.tx import PgTransaction
from perdure.vocab.records import Row

Target = tuple[StreamId, int]
"""A stream's name and its row id."""


def log_rows(stream: StreamId, cells: Iterable[Cells]) -> tuple[Row, ...]:
    """Convert database rows to log rows."""
    return tuple(
        Row(stream=stream, seq=seq, at=at, kind=kind, data=data, key=key, version=version)
        for seq, at, kind, data, key, version in cells
    )


async def write_log(
    on: PgTransaction,
    target: Target,
    end: tuple[Seq, bytes],
    entries: Sequence[Entry],
    *,
    by: tuple[int, int] | None,
) -> bytes:
    """Insert records after the end of a log (its last seq and its head); return the new head.

    `by` is their append as (fence, n), None for admitted records.
    """
    (name, stream), (last_seq, head) = target, end
    if not entries:
        return head
    size = sum([len(entry.data) for entry in entries])
    digests, head = await offload(size, on.heads.chain.extend, name, head, last_seq, entries)
    await on.all(
        "log_insert",
        stream,
        *(by or (None, None)),
        list(range(last_seq + 1, last_seq + 1 + len(entries))),
        [entry.at for entry in entries],
        [entry.kind for entry in entries],
        [entry.version for entry in entries],
        [entry.key for entry in entries],
        [entry.data for entry in entries],
        digests,
    )
    return head


async def check_keys(on: PgTransaction, name: StreamId, stream: int, entries: Sequence[Entry]) -> None:
    """Refuse records whose log keys are taken. The stream must be locked.

    Raises:
        Error: `gate_closed`.
    """
    keyed = [(entry.key, entry.kind) for entry in entries if entry.key is not None]
    if not keyed:
        return
    taken: dict[str, str] = dict(await on.all("log_taken", stream, [key for key, _ in keyed]))
    for key, kind in keyed:
        if key in taken:
            raise key_taken(name, key, taken[key])
        taken[key] = kind


async def append_admitted(on: PgTransaction, name: StreamId, entry: Entry, now: int) -> tuple[int, Seq, Row, bool]:
    """Append an admitted record inside a transaction, or return the record that already has its log key.

    The result is the stream's id, its last seq before, the row, and whether the row is new. The stream stays locked.

    Raises:
        Error: `session_unknown`.
    """
    found = await on.one("stream_lock", name)
    if found is None:
        raise stream_unknown(name)
    stream, _owner, _fence, _n, last_seq, format, head = found
    known = await find_row(on, name, entry.key) if entry.key is not None else None
    if known is not None:
        return stream, last_seq, known, False
    seq = Seq(last_seq + 1)
    head = await write_log(on, (name, stream), (last_seq, head), (entry,), by=None)
    await on.all("stream_annotated", stream, seq, max(format, entry.version), now, head)
    if ends((entry,)):
        await on.all("tags_end", stream)
    return stream, last_seq, admitted_row(name, seq, entry), True


async def put_audit(on: PgTransaction, audit: Audit, now: int) -> None:
    """Append the audit records of a change that took effect.

    The last lock of each transaction is that of the audit stream, so concurrent changes of a tenant cannot deadlock
    over it.
    """
    for note in audit:  # threat: S25, T-AUD-01
        await append_admitted(on, note.stream, note.entry, now)


def admitted_row(name: StreamId, seq: Seq, entry: Entry) -> Row:
    """Return the log row of an admitted entry."""
    return log_rows(name, [(seq, entry.at, entry.kind, entry.data, entry.key, entry.version)])[0]


async def find_row(on: PgTransaction, stream: StreamId, key: str) -> Row | None:
    """Return the row with this log key, or None."""
    found = await on.all("log_find", stream, key)
    return log_rows(stream, found)[0] if found else None
