"""Read operations: one function per query, rows into values. Nothing here writes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perdure.commit.changes import Pause
from perdure.commit.plan import Blob, Snapshot
from perdure.errors import Code, Error
from perdure.ids import BlobHash, PromiseId, Seq, StreamId, Tenant, WorkerId
from perdure.inbox.admit import Waiting, stream_unknown
from perdure.offload import offload
from perdure.store.digest_chain import ChainedRow, LogCheck, diagnosis_of
from perdure.store.postgres.claims import find_worker, list_workers
from perdure.store.postgres.columns import texts
from perdure.store.postgres.driver import Cells
from perdure.store.postgres.leases import PgLeases, PgWorkerRow
from perdure.store.postgres.log import log_rows
from perdure.store.postgres.migrate import read_version
from perdure.store.postgres.promises import promise_state
from perdure.store.postgres.schema import SCHEMA_VERSION
from perdure.store.postgres.tx import PgTransaction
from perdure.store.shapes import Diagnosis, Head, InboxRow, Loaded, StreamInfo, unfinished
from perdure.vocab.promises import PromiseState
from perdure.vocab.records import Row

_MAX = sys.maxsize
_WORKER_CELLS = 13
_PAGE = 1_000
_ROW_BYTES = 500  # a digest costs as much as the hash of so many bytes


async def next_due(on: PgTransaction) -> int | None:
    """Return the earliest due time of all timers, or None."""
    (due_at,) = await on.one("timer_next")
    return due_at


async def load(on: PgTransaction, stream: StreamId, code: str) -> Loaded:
    """Return the snapshot of this code version, the rows after it and the inbox.

    Raises:
        Error: `codec_failed` or `store_corrupt` for a record that does not fit the digest chain.
    """
    snapshot: Snapshot | None = None
    rows: list[ChainedRow] = []
    waiting: list[InboxRow] = []
    last_seq, head = Seq(0), b""
    for part, seq, at, kind, data, key, version, digest, original in await on.all("load", stream, code):
        if part == 0:
            snapshot = Snapshot(seq, kind, data)
        elif part == 1:
            rows.append(ChainedRow(seq, at, kind, data, key, version, digest, original))
        elif part == 2:
            waiting.append(InboxRow(seq, stream, kind, data, at))
        else:
            last_seq, head = seq, data
    if not last_seq and not rows:  # an unknown stream, or one without records
        return Loaded(None, (), tuple(waiting))
    first = Seq(snapshot.seq if snapshot else 1)  # the row of the snapshot has the digest that its successor continues
    check = LogCheck(on.heads.chain, stream, first)
    await offload(_ROW_BYTES * len(rows) + sum([len(row.data) for row in rows]), check.add, rows)
    check.end(head, last_seq)
    on.heads.note(stream, last_seq, head)
    tail = [row[:6] for row in rows if snapshot is None or row.seq > snapshot.seq]
    return Loaded(snapshot, log_rows(stream, tail), tuple(waiting))


async def check_log(on: PgTransaction, stream: StreamId) -> str:
    """Check a stream against the digest chain; return the digest of the last record."""
    end = await on.one("stream_head", stream)
    if end is None:
        raise stream_unknown(stream)
    (last_seq, head), after = end, Seq(0)
    check = LogCheck(on.heads.chain, stream)
    try:
        while rows := [ChainedRow(*row) for row in await on.all("log_chained", stream, after, last_seq, _PAGE)]:
            await offload(_ROW_BYTES * len(rows) + sum([len(row.data) for row in rows]), check.add, rows)
            after = rows[-1].seq
        return check.end(head, last_seq).hex()
    except Error:
        if await on.one("stream_head", stream) is None:
            raise stream_unknown(stream) from None  # it was deleted meanwhile
        raise


async def _records(on: PgTransaction) -> Diagnosis:
    problems, after = list[Error](), ""
    while names := [name for (name,) in await on.all("stream_names", after)]:
        for name in names:
            try:
                await check_log(on, name)
            except Error as problem:
                if problem.code is not Code.SESSION_UNKNOWN:  # deleted meanwhile
                    problems.append(problem)
        after = names[-1]
    return diagnosis_of(problems)


async def read(
    on: PgTransaction, stream: StreamId, *, after: Seq, until: Seq | None, limit: int | None
) -> tuple[Row, ...]:  # fmt: skip
    """Return log rows in order; `after` is exclusive, `until` inclusive."""
    found = await on.all("log_read", stream, after, _MAX if until is None else until, limit)
    return log_rows(stream, found)


async def inbox(on: PgTransaction, stream: StreamId) -> tuple[InboxRow, ...]:
    """Return a stream's queued inbox rows, oldest first."""
    found = await on.all("inbox_read", stream)
    return tuple(InboxRow(id, stream, source_key, data, at) for id, source_key, data, at in found)


async def waiting(on: PgTransaction, tenant: Tenant) -> Waiting:
    """Return the inputs that wait in all streams of a tenant, and their bytes."""
    return Waiting(*await on.one("tenant_waiting", tenant))


async def count(on: PgTransaction, stream: StreamId, begins: str, until: Seq) -> int:
    """Return the number of rows up to `until` whose log key begins with `begins`."""
    return (await on.one("log_count", stream, begins, until))[0]


async def named(on: PgTransaction, leases: PgLeases, names: Iterable[StreamId]) -> dict[StreamId, StreamInfo]:
    """Return the rows of those streams that exist."""
    return {info.stream: info for info in [_held(leases, row) for row in await on.all("stream_read", texts(names))]}


def _held(leases: PgLeases, cells: Cells) -> StreamInfo:
    row, owner = cells[:-_WORKER_CELLS], cells[-_WORKER_CELLS:]
    if owner[0] is None:  # unowned, or owned by a worker without a row
        return _info(row, ())
    worker = PgWorkerRow(*owner)
    return _info(row, () if leases.is_gone(worker) else (worker.id,))


@dataclass(frozen=True, slots=True)
class PgPage:
    """A page of a stream list: filters, position and limit."""

    tenant: Tenant
    kind: str
    limit: int
    before: tuple[int, StreamId] | None
    tag: str | None


async def streams(on: PgTransaction, leases: PgLeases, page: PgPage) -> tuple[StreamInfo, ...]:
    """Return a page of streams, most recently changed first."""
    place = (page.tenant, page.kind, *(page.before or (_MAX, "")), page.limit)
    if page.tag is None:
        rows = await on.all("stream_list", *place)
    else:
        rows = await on.all("stream_list_tagged", *place, page.tag)
    alive = {row.id for row in await list_workers(on) if not leases.is_gone(row)}
    return tuple(_info(row, alive) for row in rows)


@dataclass(frozen=True, slots=True)
class PgNewestPage:
    """A page of a stream list in creation order: filters, position and limit."""

    tenant: Tenant
    kind: str
    tag: str
    limit: int
    before: int | None
    agent: str | None


async def newest(on: PgTransaction, leases: PgLeases, page: PgNewestPage) -> tuple[StreamInfo, ...]:
    """Return a page of streams, most recently created first."""
    before = _MAX if page.before is None else page.before
    rows = await on.all("stream_newest", page.tenant, page.kind, page.tag, before, page.agent, page.limit)
    alive = {row.id for row in await list_workers(on) if not leases.is_gone(row)}
    return tuple(_info(row, alive) for row in rows)


async def heads(on: PgTransaction, streams: Sequence[StreamId]) -> dict[StreamId, Head]:
    """Return the heads of those streams that exist."""
    found = await on.all("stream_heads", texts(streams))
    return {stream: Head(*head) for stream, *head in found}


async def marks(on: PgTransaction, streams: Sequence[StreamId], key: str) -> tuple[Row, ...]:
    """Return the first record of each stream and its record under a log key."""
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
    on: PgTransaction, tenant: Tenant, limit: int, after: tuple[int, PromiseId] | None
) -> tuple[PromiseState, ...]:
    """Return unresolved requests to people, oldest first."""
    found = await on.all("promises_requested", tenant, *(after or (-1, "")), limit)
    return tuple(promise_state(row) for row in found)


async def asked_as(on: PgTransaction, tenant: Tenant, prefix: str, limit: int) -> tuple[PromiseState, ...]:
    """Return requests to people whose promise id begins with `prefix`."""
    found = await on.all("promises_requested_as", prefix, f"{prefix}\U0010ffff", tenant, limit)
    return tuple(promise_state(row) for row in found)


async def blob(on: PgTransaction, hash: BlobHash, stream: StreamId | None) -> Blob:
    """Return stored bytes; with `stream`, only if that stream refers to them."""
    found = await on.one("blob_read", hash) if stream is None else await on.one("blob_read_held", hash, stream)
    if found is None:
        raise Error(Code.BLOB_UNKNOWN, "unknown blob", blob=hash)
    return Blob(hash, *found)


async def check(on: PgTransaction, leases: PgLeases) -> tuple[Diagnosis, ...]:
    """Check logs, references, schema version, durability settings and unfinished streams without a live worker."""
    checks = (_logs, _records, _references, _schema, _server)
    return *[await one(on) for one in checks], await _stuck(on, leases)


async def _logs(on: PgTransaction) -> Diagnosis:
    (broken,) = await on.one("log_holes")
    if broken:
        return Diagnosis("fail", "integrity", f"{broken} logs do not end at the last seq of their streams")
    return Diagnosis("ok", "integrity", "every log ends at the last seq of its stream")


async def _references(on: PgTransaction) -> Diagnosis:
    (lost,) = await on.one("log_lost")
    if lost:
        return Diagnosis("fail", "references", f"records of {lost} unknown streams")
    return Diagnosis("ok", "references", "every row belongs to a stream")


async def _schema(on: PgTransaction) -> Diagnosis:
    version = (await read_version(on)).version
    return Diagnosis("ok" if version >= SCHEMA_VERSION else "fail", "schema", f"{version}, expected {SCHEMA_VERSION}")


async def _server(on: PgTransaction) -> Diagnosis:
    off = [name for name, setting in await on.all("settings_read") if setting == "off"]
    if off:
        return Diagnosis("warn", "durability", f"{', '.join(sorted(off))} off: commits may not survive a power cut")
    return Diagnosis("ok", "durability", "commits are on disk before they are confirmed")


async def _stuck(on: PgTransaction, leases: PgLeases) -> Diagnosis:
    rows = await on.all("stream_unfinished")
    stuck = [count for owner, count in rows if owner is None or leases.is_gone(await find_worker(on, owner))]
    return unfinished(sum(stuck))
