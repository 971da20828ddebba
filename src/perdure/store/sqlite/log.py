"""Inserting and reading log rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from perdure.commit.plan import Entry, ends, key_taken
from perdure.errors import Error
from perdure.ids import Seq, StreamId
from perdure.store.sqlite.tx import Cells, Statements, Tx
from perdure.vocab.records import Row

Target = tuple[StreamId, int]
"""A stream's name and its row id in this file."""


def write_log(
    tx: Tx, target: Target, end: tuple[Seq, bytes], entries: Sequence[Entry], *, by: tuple[int, int] | None
) -> bytes:
    """Insert records after the end of a log (its last seq and its head); return the new head.

    `by` is their append as (fence, n), None for admitted records.

    Raises:
        Error: `gate_closed` if a key is taken; `codec_failed` if another key sealed the head.
    """
    (name, stream), (last_seq, head) = target, end
    fence, n = by or (None, None)
    digests, head = tx.chain.extend(name, head, last_seq, entries)
    rows = [
        (stream, seq, e.at, e.kind, e.version, e.key, fence, n, e.data, digest)
        for seq, (e, digest) in enumerate(zip(entries, digests, strict=True), last_seq + 1)
    ]
    try:
        if len(rows) == 1:
            tx.run("log_insert", rows[0])
        elif rows:
            tx.many("log_insert", rows)
    except sqlite3.IntegrityError:
        refusal = _taken(tx, name, entries)
        if refusal is None:
            raise
        raise refusal from None
    if ends(entries):
        tx.run("tags_end", {"stream": stream})
    return head


def _taken(tx: Tx, name: StreamId, entries: Iterable[Entry]) -> Error | None:
    """Return the error for the taken key. Rows of this plan are in the log too, so a key used twice in it is found."""
    for entry in entries:
        if entry.key is not None and (found := find_row(tx, name, entry.key)) is not None:
            return key_taken(name, entry.key, found.kind)
    return None


def find_row(tx: Statements, stream: StreamId, key: str) -> Row | None:
    """Return the row with this log key, or None."""
    found = tx.all("log_find", (key, stream))
    return log_rows(stream, found)[0] if found else None


def log_rows(stream: StreamId, cells: Iterable[Cells]) -> tuple[Row, ...]:
    """Convert database rows to log rows."""
    return tuple(
        Row(stream=stream, seq=seq, at=at, kind=kind, data=data, key=key, version=version)
        for seq, at, kind, data, key, version in cells
    )
