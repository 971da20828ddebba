"""What is read: rows into values, one function a question. Nothing here writes."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from perdure.commit.changes import Pause
from perdure.commit.plan import Blob, Snapshot
from perdure.errors import Code, Error
from perdure.ids import BlobHash, PromiseId, Seq, StreamId, Tenant, WorkerId
from perdure.store.shapes import Diagnosis, Head, InboxRow, Loaded, StreamInfo
from perdure.store.sqlite.claims import find_worker, list_workers
from perdure.store.sqlite.leases import Leases
from perdure.store.sqlite.log import find_row, log_rows
from perdure.store.sqlite.promises import promise_state
from perdure.store.sqlite.schema import SCHEMA_VERSION
from perdure.store.sqlite.tx import Cells, Statements
from perdure.vocab.promises import PromiseState
from perdure.vocab.records import Row

_MAX = sys.maxsize
_NO_LIMIT = -1


def next_due(on: Statements) -> int | None:
    """The earliest timer."""
    (due_at,) = on.one("timer_next")
    return due_at


def load(on: Statements, stream: StreamId, code: str, *, limit: int | None = None) -> Loaded:
    """Snapshot, the rows after it, the inbox."""
    found = on.one("snapshot_read", (stream, code))
    snapshot = Snapshot(*found) if found else None
    rows = read(on, stream, after=snapshot.seq if snapshot else Seq(0), until=None, limit=limit)
    return Loaded(snapshot, rows, inbox(on, stream))


def read(on: Statements, stream: StreamId, *, after: Seq, until: Seq | None, limit: int | None) -> tuple[Row, ...]:
    """Log rows in order."""
    bounds = (stream, after, _MAX if until is None else until, _NO_LIMIT if limit is None else limit)
    return log_rows(stream, on.all("log_read", bounds))


def find(on: Statements, stream: StreamId, key: str) -> Row | None:
    """The row with this log key."""
    return find_row(on, stream, key)


def count(on: Statements, stream: StreamId, begins: str, until: Seq) -> int:
    """How many rows have a log key that begins like this."""
    return on.one("log_count", (begins, f"{begins}\U0010ffff", until, stream))[0]


def inbox(on: Statements, stream: StreamId) -> tuple[InboxRow, ...]:
    """What waits for a stream."""
    return tuple(
        InboxRow(id, stream, source_key, data, at) for id, source_key, data, at in on.all("inbox_read", (stream,))
    )


def stream(on: Statements, leases: Leases, name: StreamId) -> StreamInfo | None:
    """One stream's row."""
    found = on.one("stream_read", (name,))
    if found is None:
        return None
    owner: WorkerId | None = found[7]
    alive = {owner} if owner is not None and not leases.is_gone(find_worker(on, owner)) else set[WorkerId]()
    return _info(found, alive)


def asked(on: Statements, tenant: Tenant, limit: int, after: tuple[int, PromiseId] | None) -> tuple[PromiseState, ...]:
    """What people are asked and have not answered, the longest waiting first."""
    found = on.all("promises_asked", (tenant, *(after or (-1, "")), limit))
    return tuple(promise_state(row) for row in found)


def asked_as(on: Statements, tenant: Tenant, prefix: str, limit: int) -> tuple[PromiseState, ...]:
    """What people were asked under ids that begin like this."""
    found = on.all("promises_asked_as", (prefix, f"{prefix}\U0010ffff", tenant, limit))
    return tuple(promise_state(row) for row in found)


@dataclass(frozen=True, slots=True)
class Page:
    """Which streams are listed, after which, and how many."""

    tenant: Tenant
    kind: str
    limit: int
    before: tuple[int, StreamId] | None
    tag: str | None


def streams(on: Statements, leases: Leases, page: Page) -> tuple[StreamInfo, ...]:
    """A page of streams."""
    alive = {row.id for row in list_workers(on) if not leases.is_gone(row)}
    rest = (page.kind, *(page.before or (_MAX, "")), page.limit)
    if page.tag is None:
        rows = on.all("stream_list", (page.tenant, *rest))
    else:
        rows = on.all("stream_list_tagged", (page.tenant, page.tag, *rest))
    return tuple(_info(row, alive) for row in rows)


@dataclass(frozen=True, slots=True)
class NewestPage:
    """Which streams are listed in the order of their making, after which, and how many."""

    tenant: Tenant
    kind: str
    tag: str
    limit: int
    before: int | None
    agent: str | None


def newest(on: Statements, leases: Leases, page: NewestPage) -> tuple[StreamInfo, ...]:
    """A page of streams, the latest made first."""
    alive = {row.id for row in list_workers(on) if not leases.is_gone(row)}
    holes = {"tenant": page.tenant, "kind": page.kind, "tag": page.tag, "agent": page.agent, "limit": page.limit}
    holes |= {"before": _MAX if page.before is None else page.before}
    return tuple(_info(row, alive) for row in on.all("stream_newest", holes))


def marks(on: Statements, streams: Sequence[StreamId], key: str) -> tuple[Row, ...]:
    """The first record of each stream, and the one under a log key."""
    found = on.all("log_marks", {"streams": json.dumps(streams), "key": key})
    return tuple(row for stream, *cells in found for row in log_rows(stream, [tuple(cells)]))


def heads(on: Statements, streams: Sequence[StreamId]) -> dict[StreamId, Head]:
    """Where streams end."""
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


def blob(on: Statements, hash: BlobHash, stream: StreamId | None) -> Blob:
    """Stored bytes; with a stream, only if it holds a reference."""
    found = on.one("blob_read", (hash,)) if stream is None else on.one("blob_read_held", (hash, stream))
    if found is None:
        raise Error(Code.BLOB_UNKNOWN, "there are no stored bytes of this name", blob=hash)
    return Blob(hash, *found)


def check(on: Statements, leases: Leases) -> tuple[Diagnosis, ...]:
    """Integrity, references, schema version, write-ahead log, stuck leases."""
    return (
        _integrity(on),
        _references(on),
        _schema(on),
        _pragma(on, "journal_mode", "wal", "write-ahead log"),
        _stuck(on, leases),
    )


def _integrity(on: Statements) -> Diagnosis:
    found = [text for (text,) in on.connection.execute("PRAGMA quick_check(10)")]
    if found == ["ok"]:
        return Diagnosis("ok", "integrity", "every page and index is sound")
    return Diagnosis("fail", "integrity", "; ".join(found))


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


def _stuck(on: Statements, leases: Leases) -> Diagnosis:
    rows = on.all("stream_unfinished")
    stuck = sum(count for owner, count in rows if owner is None or leases.is_gone(find_worker(on, owner)))
    if stuck:
        detail = f"{stuck} unfinished streams have no live worker; any worker will take them"
        return Diagnosis("warn", "leases", detail)
    return Diagnosis("ok", "leases", "no unfinished stream is without a live worker")
