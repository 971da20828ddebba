"""Read operations; nothing here writes."""

from __future__ import annotations

from perdure.commit.plan import Blob
from perdure.errors import Code, Error
from perdure.ids import BlobHash, Seq, StreamId, Tenant
from perdure.store.digest_chain import diagnosis_of
from perdure.store.memory.state import Stream, Tables
from perdure.store.shapes import Diagnosis, Loaded, StreamInfo, unfinished


def load(on: Tables, stream: StreamId, code: str) -> Loaded:
    """Return the data that a new owner folds. Snapshots of another code version are ignored."""
    found = on.streams.get(stream)
    if found is None:
        return Loaded(None, (), ())
    snapshot = found.snapshot if found.snapshot and found.snapshot.code == code else None
    check_log(found, Seq(snapshot.seq) if snapshot else Seq(1))
    tail = found.rows(snapshot.seq if snapshot else Seq(0))
    return Loaded(snapshot, tuple(tail), tuple(found.inbox.values()))


def check_log(stream: Stream, first: Seq = Seq(1)) -> bytes:
    """Check a stream, from seq `first` on, against the digest chain; return the digest of the last record."""
    rows = (stored.chained for stored in stream.log[first - 1 :] if not stored.pruned)
    return stream.chain.check(stream.id, rows, head=stream.head, last_seq=stream.last_seq, first=first)


def listed(on: Tables, tenant: Tenant, kind: str, tag: str | None) -> list[Stream]:
    """Return the streams of a tenant and a kind; with a tag, only streams that have it."""
    mine = (s for s in on.streams.values() if s.names[:2] == (tenant, kind))
    return [s for s in mine if tag is None or tag in s.tags]


def changed(
    on: Tables, tenant: Tenant, kind: str, before: tuple[int, StreamId] | None, tag: str | None
) -> list[Stream]:
    """Return streams, most recently changed first."""
    found = [s for s in listed(on, tenant, kind, tag) if before is None or (s.updated_at, s.id) < before]
    return sorted(found, key=lambda s: (s.updated_at, s.id), reverse=True)


def newest(on: Tables, tenant: Tenant, kind: str, before: int | None, tag: str, agent: str | None) -> list[Stream]:
    """Return streams, most recently created first."""
    found = [s for s in listed(on, tenant, kind, tag) if agent in (None, s.agent)]
    return sorted([s for s in found if before is None or s.number < before], key=lambda s: s.number, reverse=True)


def info(on: Tables, s: Stream) -> StreamInfo:
    """Return a stream's row."""
    tenant, kind, name = s.names
    return StreamInfo(
        stream=s.id,
        tenant=Tenant(tenant),
        kind=kind,
        name=name,
        agent=s.agent,
        last_seq=s.last_seq,
        fence=s.fence,
        owner=s.owner,
        owner_alive=s.owner is not None and not on.gone(s.owner),
        active=s.active,
        parked=s.parked,
        waiting_inputs=len(s.inbox),
        created_at=s.created_at,
        updated_at=s.updated_at,
        title=s.title,
        tags=s.tags,
        paused=s.paused,
        queue=s.queue,
        priority=s.priority,
        number=s.number,
    )


def blob(on: Tables, hash: BlobHash, stream: StreamId | None) -> Blob:
    """Return stored bytes; with `stream`, only if that stream refers to them."""
    known = on.blobs.get(hash)
    if known is None or (stream is not None and stream not in known.owners):
        raise Error(Code.BLOB_UNKNOWN, "unknown blob", blob=hash)
    return known.blob


def check(on: Tables) -> tuple[Diagnosis, ...]:
    """Check the logs, and for unfinished streams without a live worker."""
    problems = list[Error]()
    for stream in on.streams.values():
        try:
            check_log(stream)
        except Error as problem:
            problems.append(problem)
    stuck = [s.id for s in on.streams.values() if s.active and (s.owner is None or on.gone(s.owner))]
    return diagnosis_of(problems), unfinished(len(stuck))
