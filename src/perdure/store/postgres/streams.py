"""Writes to a stream's row and its dependent rows: creation, title, tags, blob references, inbox."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

from perdure.commit.changes import Label
from perdure.commit.plan import Blob, Entry
from perdure.ids import Seq, StreamId, stream_names
from perdure.inbox.admit import Delivery, is_news
from perdure.offload import offload
from perdure.store.postgres.driver import ForeignKeyViolationError
from perdure.store.postgres.log import check_keys, write_log
from perdure.store.postgres.tx import PgTransaction
from perdure.vocab.records import FORMAT

T = TypeVar("T")

MAX_DISTURBED = 100
STATEMENT_BYTES = 4_000_000


async def undisturbed(work: Callable[[], Awaitable[T]]) -> T:
    """Run work on a stream or on bytes, and retry it if a concurrent transaction deletes them in between.

    Each conflict means that another transaction succeeded, so retries end."""
    for _ in range(MAX_DISTURBED):
        with suppress(ForeignKeyViolationError):
            return await work()
    return await work()


async def begin_stream(
    on: PgTransaction,
    name: StreamId,
    agent: str,
    entries: Sequence[Entry],
    now: int,
    place: tuple[str | None, int | None] = (None, None),
) -> int | None:
    """Create a stream with these records and return its id; return None if the name exists."""
    format = max([FORMAT, *(entry.version for entry in entries)])
    size = sum([len(entry.data) for entry in entries])
    empty = on.heads.chain.empty(name)
    _, head = await offload(size, on.heads.chain.extend, name, empty, Seq(0), entries)
    values = (name, *stream_names(name), agent, format, now, len(entries), *place, head)
    opened = await on.one("stream_open", *values)
    if opened is None:
        return None
    await check_keys(on, name, opened[0], entries)
    await write_log(on, (name, opened[0]), (Seq(0), empty), entries, by=None)
    return opened[0]


async def refer(on: PgTransaction, stream: int, blobs: Iterable[Blob]) -> None:
    """Store missing bytes, and let a stream refer to them."""
    by_hash = {blob.hash: blob for blob in blobs}
    for some in _statements([by_hash[hash] for hash in sorted(by_hash)]):
        hashes, media_types, data = [b.hash for b in some], [b.media_type for b in some], [b.data for b in some]
        await on.all("blobs_put", stream, hashes, media_types, data)


def _statements(blobs: Iterable[Blob]) -> list[list[Blob]]:
    """Divide blobs into statements: the driver copies the bytes of one in one step of the event loop."""
    found, size = list[list[Blob]](), 0
    for blob in blobs:
        size += len(blob.data)
        if not found or size > STATEMENT_BYTES:
            found.append([])
            size = len(blob.data)
        found[-1].append(blob)
    return found


async def relabel(on: PgTransaction, stream: int, name: StreamId, label: Label) -> None:
    """Change a stream's title and tags."""
    if label.title is not None:
        await on.all("title_put", stream, label.title)
    if label.tags is not None:
        await on.all("tags_clear", stream)
    if label.drops:
        await on.all("tags_drop", stream, list(label.drops))
    if adds := [*(label.tags or ()), *label.adds]:
        await on.all("tags_put", stream_names(name)[0], stream, adds)


async def put(on: PgTransaction, stream: int, new: Delivery) -> int:
    """Put a delivery into a stream's inbox inside a transaction, without any check; return the id of its row."""
    (inbox_id,) = await on.one(
        "inbox_insert", stream, new.source_key, new.at, is_news(new.item), new.input_bytes, new.data
    )
    return inbox_id
