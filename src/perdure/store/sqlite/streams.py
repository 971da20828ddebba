"""Writes to a stream's row and its dependent rows: creation, title, tags, blob references, inbox."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.commit.changes import Label
from perdure.commit.plan import Blob, Entry
from perdure.ids import BlobHash, Seq, StreamId, stream_names
from perdure.inbox.admit import Delivery, is_news
from perdure.store.sqlite.log import write_log
from perdure.store.sqlite.tx import Tx
from perdure.vocab.records import FORMAT


def begin_stream(
    tx: Tx,
    name: StreamId,
    agent: str,
    entries: tuple[Entry, ...],
    place: tuple[str | None, int | None] = (None, None),
) -> int:
    """Create a stream with these records; return its row id."""
    tenant, kind, short = stream_names(name)
    values = {"stream": name, "tenant": tenant, "kind": kind, "name": short, "agent": agent}
    values |= {"queue": place[0], "priority": place[1]}
    now = tx.clock.wall_ms()
    format = max([FORMAT, *(entry.version for entry in entries)])
    stream = tx.run("stream_open", values | {"format": format, "now": now}).lastrowid
    assert stream is not None
    head = write_log(tx, (name, stream), (Seq(0), tx.chain.empty(name)), entries, by=None)
    tx.run("stream_annotated", (len(entries), head, format, now, stream))
    return stream


def refer(tx: Tx, stream: int, blobs: Iterable[Blob]) -> None:
    """Store missing bytes, and let a stream refer to them."""
    for blob in blobs:
        known = tx.one("blob_find", (blob.hash,))
        stored = known[0] if known else tx.run("blob_insert", (blob.hash, blob.media_type, blob.data)).lastrowid
        tx.run("blob_refer", (stream, stored))


def unrefer(tx: Tx, stream: int, hashes: Iterable[BlobHash]) -> None:
    """Remove a stream's blob references; bytes without a reference are deleted."""
    for hash in hashes:
        if (known := tx.one("blob_find", (hash,))) is not None:
            tx.run("blob_unrefer", (stream, known[0]))
            tx.run("blob_collect", known)


def relabel(tx: Tx, stream: int, name: StreamId, label: Label) -> None:
    """Change a stream's title and tags."""
    if label.title is not None:
        tx.run("title_put", (stream, label.title))
    if label.tags is not None:
        tx.run("tags_clear", (stream,))
    tenant = stream_names(name)[0]
    for tag in label.drops:
        tx.run("tag_drop", (tenant, tag, stream))
    for tag in (*(label.tags or ()), *label.adds):
        tx.run("tag_put", {"tenant": tenant, "tag": tag, "stream": stream})


def put(tx: Tx, stream: int, new: Delivery) -> int:
    """Put a delivery into a stream's inbox without any check; return the id of its row."""
    values = (stream, new.source_key, new.at, tx.clock.wall_ms(), is_news(new.item), new.input_bytes, new.data)
    inbox_id = tx.run("inbox_insert", values).lastrowid
    assert inbox_id is not None
    return inbox_id
