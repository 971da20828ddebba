"""Read operations: one function per query, rows into values. Nothing here writes."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from perdure.commit.changes import Pause
from perdure.commit.plan import Blob, Snapshot
from perdure.errors import Code, Error
from perdure.ids import BlobHash, PromiseId, Seq, StreamId, Tenant, WorkerId
from perdure.inbox.admit import stream_unknown
from perdure.store.digest_chain import ChainedRow, DigestChain, diagnosis_of
from perdure.store.shapes import Diagnosis, Head, InboxRow, Loaded, StreamInfo, unfinished
from perdure.store.sqlite.claims import find_worker, list_workers
from perdure.store.sqlite.leases import SqliteLeases
from perdure.store.sqlite.log import find_row, log_rows
from perdure.store.sqlite.promises import promise_state
from perdure.store.sqlite.schema import SCHEMA_VERSION
from perdure.store.sqlite.tx import Cells, Statements
from perdure.vocab.promises import PromiseState
from perdure.vocab.records import Row

_MAX = sys.maxsize
_NO_LIMIT = -1


def next_due(on: Statements) -> int | None:
    """Return the earliest due time of all timers, or None."""
    (due_at,) = on.one("timer_next")
    return due_at


def load(on: Statements, chain: DigestChain, stream: StreamId, code: str, *, few: int | None = None) -> Loaded | None:
    """Return the snapshot of this code version, the rows after it and the inbox.

    Return None for more than `few` rows.

    Raises:
        Error: `codec_failed` or `store_corrupt` for a record that does not fit the digest chain.
    """
    found = on.one("stream_load", (code, stream))
    if found is None:
        return Loaded(None, (), inbox(on, stream))
    last_seq, head, *stored = found
    snapshot = Snapshot(*stored) if stored[0] is not None else None
    first = Seq(snapshot.seq if snapshot else 1)  # the row of the snapshot has the digest that its successor continues
    rows = chained(on, stream, after=Seq(first - 1), until=last_seq, limit=few)
    if few is not None and len(rows) >= few:
        return None
    chain.check(stream, rows, head=head, last_seq=last_seq, first=first)
    tail = [row[:6] for row in rows if snapshot is None or row.seq > snapshot.seq]
    return Loaded(snapshot, log_rows(stream, tail), inbox(on, stream))


def chained(on: Statements, stream: StreamId, *, after: Seq, until: Seq, limit: int | None) -> list[ChainedRow]:
    """Return log rows with their digests; `after` is exclusive, `until` inclusive."""
    return [ChainedRow(*row) for row in on.all("log_chained", (stream, after, until, limit or _NO_LIMIT))]


def check_log(on: Statements, chain: DigestChain, stream: StreamId) -> str:
    """Check a stream against the digest chain; return the digest of the last record."""
    found = on.one("stream_load", ("", stream))
    if found is None:
        raise stream_unknown(stream)
    last_seq, head, *_ = found
    with closing(on.run("log_chained", (stream, 0, last_seq, _NO_LIMIT))) as found:  # an open cursor keeps its view
        return chain.check(stream, (ChainedRow(*row) for row in found), head=head, last_seq=last_seq).hex()


def read(on: Statements, stream: StreamId, *, after: Seq, until: Seq | None, limit: int | None) -> tuple[Row, ...]:
    """Return log rows in order; `after` is exclusive, `until` inclusive."""
    bounds = (stream, after, _MAX if until is None else until, _NO_LIMIT if limit is None else limit)
    return log_rows(stream, on.all("log_read", bounds))


def find(on: Statements, stream: StreamId, key: str) -> Row | None:
    """Return the row with this log key, or None."""
    return find_row(on, stream, key)


def count(on: Statements, stream: StreamId, begins: str, until: Seq) -> int:
    """Return the number of rows up to `until` whose log key begins with `begins`."""
    return on.one("log_count", (begins, f"{begins}\U0010ffff", until, stream))[0]


def inbox(on: Statements, stream: StreamId) -> tuple[InboxRow, ...]:
    """Return a stream's queued inbox rows, oldest first."""
    return tuple(
        InboxRow(id, stream, source_key, data, at) for id, source_key, data, at in on.all("inbox_read", (stream,))
    )


def stream(on: Statements, leases: SqliteLeases, name: StreamId) -> StreamInfo | None:
    """Return one stream's row, or None."""
    found = on.one("stream_read", (name,))
    if found is None:
        return None
    owner: WorkerId | None = found[7]
    alive = {owner} if owner is not None and not leases.is_gone(find_worker(on, owner)) else set[WorkerId]()
    return _info(found, alive)


def asked(on: Statements, tenant: Tenant, limit: int, after: tuple[int, PromiseId] | None) -> tuple[PromiseState, ...]:
    """Return unresolved requests to people, oldest first."""
    found = on.all("promises_requested", (tenant, *(after or (-1, "")), limit))
    return tuple(promise_state(row) for row in found)


def asked_as(on: Statements, tenant: Tenant, prefix: str, limit: int) -> tuple[PromiseState, ...]:
    """Return requests to people whose promise id begins with `prefix`."""
    found = on.all("promises_requested_as", (prefix, f"{prefix}\U0010ffff", tenant, limit))
    return tuple(promise_state(row) for row in found)


@dataclass(frozen=True, slots=True)
class SqlitePage:
    """A page of a stream list: filters, position and limit."""

    tenant: Tenant
    kind: str
    limit: int
    before: tuple[int, StreamId] | None
    tag: str | None


def streams(on: Statements, leases: SqliteLeases, page: SqlitePage) -> tuple[StreamInfo, ...]:
    """Return a page of streams, most recently changed first."""
    alive = {row.id for row in list_workers(on) if not leases.is_gone(row)}
    rest = (page.kind, *(page.before or (_MAX, "")), page.limit)
    if page.tag is None:
        rows = on.all("stream_list", (page.tenant, *rest))
    else:
        rows = on.all("stream_list_tagged", (page.tenant, page.tag, *rest))
    return tuple(_info(row, alive) for row in rows)


@dataclass(frozen=True, slots=True)
class SqliteNewestPage:
    """A page of a stream list in creation order: filters, position and limit."""

    tenant: Tenant
    kind: str
    tag: str
    limit: int
    before: int | None
    agent: str | None


def newest(on: Statements, leases: SqliteLeases, page: SqliteNewestPage) -> tuple[StreamInfo, ...]:
    """Return a page of streams, most recently created first."""
    alive = {row.id for row in list_workers(on) if not leases.is_gone(row)}
    holes = {"tenant": page.tenant, "kind": page.kind, "tag": page.tag, "agent": page.agent, "limit": page.limit}
    holes |= {"before": _MAX if page.before is None else page.before}
    return tuple(_info(row, alive) for row in on.all("stream_newest", holes))


def marks(on: Statements, streams: Sequence[StreamId], key: str) -> tuple[Row, ...]:
    """Return the first record of each stream and its record under a log key."""
    found = on.all("log_marks", {"streams": json.dumps(streams), "key": key})
    return tuple(row for stream, *cells in found for row in log_rows(stream, [tuple(cells)]))


def heads(on: Statements, streams: Sequence[StreamId]) -> dict[StreamId, Head]:
    """Return the heads of those streams that exist."""
    found = on.all("stream_heads", (json.dumps(streams),))
    return {stream: Head(*head) for stream, *head in found}


def _info(row: Cells, alive: set[WorkerId]) -> StreamInfo:
    stream, tenant, kind, name, agent, last_seq, fence, owner, active, parked, *rest = row
    waiting, created_at, updated_at, title, tags, paused_at, paused_by, queue, priority, number = rest
    return StreamInfo(
        stream=stream,
        tenant=tenant,
        kind=kind,
        name=name,
        agent=agent,
        last_seq=last_seq,
        fence=fence,
        owner=owner,
        owner_alive=owner in alive,
        active=bool(active),
        parked=bool(parked),
        waiting_inputs=waiting,
        created_at=created_at,
        updated_at=updated_at,
        title=title or "",
        tags=tuple(json.loads(tags)),
        paused=Pause(paused_by, paused_at) if paused_at is not None else None,
        queue=queue,
        priority=priority,
        number=number,
    )


def blob_size(on: Statements, hash: BlobHash) -> int:
    """Return the size of stored bytes without reading them; 0 if they are unknown."""
    found = on.one("blob_size", (hash,))
    return found[0] if found else 0


def blob(on: Statements, hash: BlobHash, stream: StreamId | None) -> Blob:
    """Return stored bytes; with `stream`, only if that stream refers to them."""
    found = on.one("blob_read", (hash,)) if stream is None else on.one("blob_read_held", (hash, stream))
    if found is None:
        raise Error(Code.BLOB_UNKNOWN, "unknown blob", blob=hash)
    return Blob(hash, *found)


def check(on: Statements, leases: SqliteLeases, chain: DigestChain) -> tuple[Diagnosis, ...]:
    """Check integrity, references, logs, schema version, write-ahead log and streams without a live worker."""
    return (
        _integrity(on),
        _references(on),
        _logs(on, chain),
        _schema(on),
        _pragma(on, "journal_mode", "wal", "write-ahead log"),
        _stuck(on, leases),
    )


def _integrity(on: Statements) -> Diagnosis:
    found = [text for (text,) in on.connection.execute("PRAGMA quick_check(10)")]
    if found == ["ok"]:
        return Diagnosis("ok", "integrity", "every page and index is sound")
    return Diagnosis("fail", "integrity", "; ".join(found))


def _logs(on: Statements, chain: DigestChain) -> Diagnosis:
    problems = list[Error]()
    for (stream,) in on.all("stream_names"):
        try:
            check_log(on, chain, stream)
        except Error as problem:
            problems.append(problem)
    return diagnosis_of(problems)


def _schema(on: Statements) -> Diagnosis:
    (version,) = on.connection.execute("PRAGMA user_version").fetchone()
    return Diagnosis("ok" if version >= SCHEMA_VERSION else "fail", "schema", f"{version}, expected {SCHEMA_VERSION}")


def _references(on: Statements) -> Diagnosis:
    broken = on.connection.execute("PRAGMA foreign_key_check").fetchall()
    if broken:
        return Diagnosis("fail", "references", f"{len(broken)} rows belong to streams that do not exist")
    return Diagnosis("ok", "references", "every row belongs to a stream")


def _pragma(on: Statements, name: str, expected: int | str, what: str) -> Diagnosis:
    (value,) = on.connection.execute(f"PRAGMA {name}").fetchone()
    return Diagnosis("ok" if value == expected else "fail", what, f"{value}, expected {expected}")


def _stuck(on: Statements, leases: SqliteLeases) -> Diagnosis:
    rows = on.all("stream_unfinished")
    return unfinished(sum(count for owner, count in rows if owner is None or leases.is_gone(find_worker(on, owner))))
