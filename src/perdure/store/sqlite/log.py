"""Rows of the log: how records are inserted, and how they are read back."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from perdure.commit.plan import Entry, ends, key_taken
from perdure.errors import Error
from perdure.ids import Seq, StreamId
from perdure.store.sqlite.tx import Cells, Statements, Tx
from perdure.vocab.records import Row

Target = tuple[StreamId, int]
"""A stream by its name and by its number in this file."""


def write_log(tx: Tx, target: Target, first: Seq, entries: Sequence[Entry], *, by: tuple[int, int] | None) -> None:
    """Insert records with dense seqs from `first`; `by` is the append they belong to, None for admitted ones.

    Raises:
        Error: `gate_closed` if a key is taken.
    """
    name, stream = target
    fence, n = by or (None, None)
    rows = [(stream, seq, e.at, e.kind, e.version, e.key, fence, n, e.data) for seq, e in enumerate(entries, first)]
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


def _taken(tx: Tx, name: StreamId, entries: Iterable[Entry]) -> Error | None:
    """Which key stood in the way. Rows of this very plan are there too, so a key twice in one plan is found."""
    for entry in entries:
        if entry.key is not None and (found := find_row(tx, name, entry.key)) is not None:
            return key_taken(name, entry.key, found.kind)
    return None


def find_row(tx: Statements, stream: StreamId, key: str) -> Row | None:
    """The row with this log key."""
    found = tx.all("log_find", (key, stream))
    return log_rows(stream, found)[0] if found else None


def log_rows(stream: StreamId, cells: Iterable[Cells]) -> tuple[Row, ...]:
    """Rows of the log as values."""
    return tuple(
        Row(stream=stream, seq=seq, at=at, kind=kind, data=data, key=key, version=version)
        for seq, at, kind, data, key, version in cells
    )
