"""What is read: rows into values, one function a question. Nothing here writes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perdure.commit.changes import Pause
from perdure.commit.plan import Blob, Snapshot
from perdure.errors import Code, Error
from perdure.ids import BlobHash, PromiseId, Seq, StreamId, Tenant, WorkerId
from perdure.store.postgres.claims import find_worker, list_workers
from perdure.store.postgres.columns import texts
from perdure.store.postgres.driver import Cells
from perdure.store.postgres.leases import Leases, WorkerRow
from perdure.store.postgres.log import log_rows
from perdure.store.postgres.migrate import read_version
from perdure.store.postgres.promises import promise_state
from perdure.store.postgres.schema import SCHEMA_VERSION
from perdure.store.postgres.tx import Session
from perdure.store.shapes import Diagnosis, Head, InboxRow, Loaded, StreamInfo
from perdure.vocab.promises import PromiseState
from perdure.vocab.records import Row

_MAX = sys.maxsize
_WORKER_CELLS = 13


async def next_due(on: Session) -> int | None:
    """The earliest timer."""
    (due_at,) = await on.one("timer_next")
    return due_at


async def load(on: Session, stream: StreamId, code: str) -> Loaded:
    """Snapshot, the rows after it, the inbox."""
    snapshot: Snapshot | None = None
    rows: list[Cells] = []
    waiting: list[InboxRow] = []
    for part, seq, at, kind, data, key, version in await on.all("load", stream, code):
        if part == 0:
            snapshot = Snapshot(seq, kind, data)
        elif part == 1:
            rows.append((seq, at, kind, data, key, version))
        else:
            waiting.append(InboxRow(seq, stream, kind, data, at))
    return Loaded(snapshot, log_rows(stream, rows), tuple(waiting))


async def read(
    on: Session, stream: StreamId, *, after: Seq, until: Seq | None, limit: int | None
) -> tuple[Row, ...]:  # fmt: skip
    """Log rows in order."""
    found = await on.all("log_read", stream, after, _MAX if until is None else until, limit)
    return log_rows(stream, found)


async def inbox(on: Session, stream: StreamId) -> tuple[InboxRow, ...]:
    """What waits for a stream."""
    found = await on.all("inbox_read", stream)
    return tuple(InboxRow(id, stream, source_key, data, at) for id, source_key, data, at in found)


async def count(on: Session, stream: StreamId, begins: str, until: Seq) -> int:
    """How many rows have a log key that begins like this."""
    return (await on.one("log_count", stream, begins, until))[0]


async def named(on: Session, leases: Leases, names: Iterable[StreamId]) -> dict[StreamId, StreamInfo]:
    """The rows of those streams that exist."""
    return {info.stream: info for info in [_held(leases, row) for row in await on.all("stream_read", texts(names))]}


def _held(leases: Leases, cells: Cells) -> StreamInfo:
    row, owner = cells[:-_WORKER_CELLS], cells[-_WORKER_CELLS:]
    if owner[0] is None:  # nobody holds it, or somebody who is not known any more
        return _info(row, ())
    worker = WorkerRow(*owner)
    return _info(row, () if leases.is_gone(worker) else (worker.id,))


@dataclass(frozen=True, slots=True)
class Page:
    """Which streams are listed, after which, and how many."""

    tenant: Tenant
    kind: str
    limit: int
    before: tuple[int, StreamId] | None
    tag: str | None


async def streams(on: Session, leases: Leases, page: Page) -> tuple[StreamInfo, ...]:
    """A page of streams."""
    place = (page.tenant, page.kind, *(page.before or (_MAX, "")), page.limit)
    if page.tag is None:
        rows = await on.all("stream_list", *place)
    else:
        rows = await on.all("stream_list_tagged", *place, page.tag)
    alive = {row.id for row in await list_workers(on) if not leases.is_gone(row)}
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


async def newest(on: Session, leases: Leases, page: NewestPage) -> tuple[StreamInfo, ...]:
    """A page of streams, the latest made first."""
    before = _MAX if page.before is None else page.before
    rows = await on.all("stream_newest", page.tenant, page.kind, page.tag, before, page.agent, page.limit)
    alive = {row.id for row in await list_workers(on) if not leases.is_gone(row)}
    return tuple(_info(row, alive) for row in rows)


async def heads(on: Session, streams: Sequence[StreamId]) -> dict[StreamId, Head]:
    """Where streams end."""
    found = await on.all("stream_heads", texts(streams))
    return {stream: Head(*head) for stream, *head in found}


async def marks(on: Session, streams: Sequence[StreamId], key: str) -> tuple[Row, ...]:
    """The first record of each stream, and the one under a log key."""
    found = await on.all("log_marks", list(streams), key)
    return tuple(row for stream, *cells in found for row in log_rows(stream, [cells]))


def _info(row: Cells, alive: Iterable[WorkerId]) -> StreamInfo:
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
        active=active,
        parked=parked,
        waiting_inputs=waiting,
        created_at=created_at,
        updated_at=updated_at,
        title=title or "",
        tags=tuple(tags),
        paused=Pause(paused_by, paused_at) if paused_at is not None else None,
        queue=queue,
        priority=priority,
        number=number,
    )


async def asked(
    on: Session, tenant: Tenant, limit: int, after: tuple[int, PromiseId] | None
) -> tuple[PromiseState, ...]:
    """What people are asked and have not answered, the longest waiting first."""
    found = await on.all("promises_asked", tenant, *(after or (-1, "")), limit)
    return tuple(promise_state(row) for row in found)


async def asked_as(on: Session, tenant: Tenant, prefix: str, limit: int) -> tuple[PromiseState, ...]:
    """What people were asked under ids that begin like this."""
    found = await on.all("promises_asked_as", prefix, f"{prefix}\U0010ffff", tenant, limit)
    return tuple(promise_state(row) for row in found)


async def blob(on: Session, hash: BlobHash, stream: StreamId | None) -> Blob:
    """Stored bytes; with a stream, only if it holds a reference."""
    found = await on.one("blob_read", hash) if stream is None else await on.one("blob_read_held", hash, stream)
    if found is None:
        raise Error(Code.BLOB_UNKNOWN, "there are no stored bytes of this name", blob=hash)
    return Blob(hash, *found)


async def check(on: Session, leases: Leases) -> tuple[Diagnosis, ...]:
    """Dense logs, references, schema version, the server's own promises, stuck leases."""
    return (await _logs(on), await _references(on), await _schema(on), await _server(on), await _stuck(on, leases))


async def _logs(on: Session) -> Diagnosis:
    (broken,) = await on.one("log_holes")
    if broken:
        return Diagnosis("fail", "integrity", f"{broken} logs end elsewhere than their streams say")
    return Diagnosis("ok", "integrity", "every log ends where its stream says")


async def _references(on: Session) -> Diagnosis:
    (lost,) = await on.one("log_lost")
    if lost:
        return Diagnosis("fail", "references", f"records of {lost} streams that do not exist")
    return Diagnosis("ok", "references", "every row belongs to a stream")


async def _schema(on: Session) -> Diagnosis:
    version = (await read_version(on)).version
    return Diagnosis("ok" if version >= SCHEMA_VERSION else "fail", "schema", f"{version}, expected {SCHEMA_VERSION}")


async def _server(on: Session) -> Diagnosis:
    off = [name for name, setting in await on.all("settings_read") if setting == "off"]
    if off:
        return Diagnosis("warn", "durability", f"{', '.join(sorted(off))} off: commits may not survive a power cut")
    return Diagnosis("ok", "durability", "commits are on disk before they are confirmed")


async def _stuck(on: Session, leases: Leases) -> Diagnosis:
    rows = await on.all("stream_unfinished")
    stuck = sum([count for owner, count in rows if owner is None or leases.is_gone(await find_worker(on, owner))])
    if stuck:
        detail = f"{stuck} unfinished streams have no live worker; any worker will take them"
        return Diagnosis("warn", "leases", detail)
    return Diagnosis("ok", "leases", "no unfinished stream is without a live worker")
