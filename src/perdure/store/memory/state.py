"""The tables of the in-memory store, as plain mutable objects."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from perdure.clock import Clock
from perdure.commit.changes import Pause
from perdure.commit.plan import Blob, Entry, OutboxResult, Prune, Snapshot, StreamState, ends
from perdure.ids import BlobHash, Fence, InputId, PromiseId, Seq, StreamId, TurnId, WorkerId, stream_names
from perdure.inbox.admit import Delivery, Waiting, is_news, stream_unknown
from perdure.store.digest_chain import ChainedRow, DigestChain
from perdure.store.permits import Permit
from perdure.store.shapes import Counters, InboxRow
from perdure.vocab.log_keys import PROCESS_END
from perdure.vocab.promises import PromiseState
from perdure.vocab.records import FORMAT, LIVE, Row

UNFENCED = Fence(0)


@dataclass(slots=True)
class Stored:
    """A log row and the append that wrote it; fence and n are 0 for an admitted row."""

    row: Row
    fence: Fence
    n: int
    digest: bytes
    original: bytes | None = None
    pruned: bool = False

    @property
    def chained(self) -> ChainedRow:
        """The columns that the digest covers."""
        row = self.row
        return ChainedRow(row.seq, row.at, row.kind, row.data, row.key, row.version, self.digest, self.original)


@dataclass(slots=True)
class Stream:
    """One stream and everything it owns."""

    id: StreamId
    agent: str
    created_at: int
    updated_at: int
    chain: DigestChain
    head: bytes
    served_at: int = 0
    fence: Fence = UNFENCED
    n: int = 0
    owner: WorkerId | None = None
    active: bool = False
    parked: bool = False
    takeovers: int = 0
    stuck_seq: int = 0
    format: int = FORMAT
    log: list[Stored] = field(default_factory=list[Stored])
    keys: dict[str, Row] = field(default_factory=dict[str, Row])
    admissions: dict[str, tuple[str, TurnId, InputId]] = field(default_factory=dict[str, tuple[str, TurnId, InputId]])
    inbox: dict[int, InboxRow] = field(default_factory=dict[int, InboxRow])
    wakes: set[int] = field(default_factory=set[int])
    came_at: dict[int, int] = field(default_factory=dict[int, int])
    input_bytes: dict[int, int] = field(default_factory=dict[int, int])
    timers: dict[str, int] = field(default_factory=dict[str, int])
    waits: set[PromiseId] = field(default_factory=set[PromiseId])
    blobs: set[BlobHash] = field(default_factory=set[BlobHash])
    outbox_rejections: dict[tuple[Fence, int], tuple[OutboxResult, ...]] = field(
        default_factory=dict[tuple[Fence, int], tuple[OutboxResult, ...]]
    )
    snapshot: Snapshot | None = None
    title: str = ""
    tags: tuple[str, ...] = ()
    number: int = 0
    paused: Pause | None = None
    queue: str | None = None
    priority: int | None = None

    def tag(self, *tags: str) -> None:
        """Add tags; an ended stream gets no tag that begins with `LIVE`."""
        over = PROCESS_END in self.keys
        self.tags = tuple(sorted({*self.tags, *(tag for tag in tags if not (over and tag.startswith(LIVE)))}))

    @property
    def last_seq(self) -> Seq:
        """The last seq of the log: rows are dense, so it equals their number."""
        return Seq(len(self.log))

    @property
    def state(self) -> StreamState:
        """The state that judges a plan."""
        return StreamState(self.owner, self.fence, self.n, self.last_seq, self.format)

    @property
    def waiting(self) -> Waiting:
        """The inputs in the inbox."""
        return Waiting(len(self.input_bytes), sum(self.input_bytes.values()))

    def take_out(self, inbox_id: int) -> None:
        """Delete an inbox row."""
        del self.inbox[inbox_id], self.came_at[inbox_id]
        self.wakes.discard(inbox_id)
        self.input_bytes.pop(inbox_id, None)

    @property
    def names(self) -> tuple[str, str, str]:
        """The stream's tenant, kind and name."""
        return stream_names(self.id)

    def write(self, entry: Entry, *, fence: Fence = UNFENCED, n: int = 0) -> Row:
        """Append one record."""
        row = Row(
            stream=self.id,
            seq=Seq(self.last_seq + 1),
            at=entry.at,
            kind=entry.kind,
            data=entry.data,
            key=entry.key,
            version=entry.version,
        )
        (digest,), self.head = self.chain.extend(self.id, self.head, self.last_seq, (entry,))
        self.log.append(Stored(row, fence, n, digest))
        if entry.key is not None:
            self.keys[entry.key] = row
        if ends((entry,)):
            self.tags = tuple(tag for tag in self.tags if not tag.startswith(LIVE))
        self.format = max(self.format, entry.version)
        return row

    def taken_over(self) -> int:
        """Count a takeover and return the count. The count restarts at 1 if an owner has written since the last one."""
        self.takeovers = self.stuck + 1
        self.stuck_seq = self._last_owned
        return self.takeovers

    @property
    def stuck(self) -> int:
        """The number of takeovers since an owner last wrote a record."""
        return self.takeovers if self.stuck_seq == self._last_owned else 0

    @property
    def _last_owned(self) -> int:
        owned = (s.row.seq for s in reversed(self.log) if s.fence != UNFENCED and not s.pruned)
        return next(owned, 0)

    def rewrite(self, seq: Seq, data: bytes) -> None:
        """Replace the payload of a record."""
        stored = self.log[seq - 1]
        stored.original = self.chain.redacted(stored.chained, self.id, data)
        stored.row = replace(stored.row, data=data)
        if stored.row.key is not None:
            self.keys[stored.row.key] = stored.row

    def rows(self, after: Seq = Seq(0), until: Seq | None = None) -> list[Row]:
        """Return log rows in order; `after` is exclusive, `until` inclusive."""
        return [s.row for s in self.log[after:until] if not s.pruned]

    def prune(self, prune: Prune) -> None:
        """Delete records and source keys; the seqs of the records stay unused."""
        for seq in prune.seqs:
            if seq <= len(self.log):
                stored = self.log[seq - 1]
                stored.pruned = True
                if stored.row.key is not None:
                    self.keys.pop(stored.row.key, None)
                stored.row = replace(stored.row, data=b"", key=None)
        for key in prune.source_keys:
            self.admissions.pop(key, None)

    def written_by(self, fence: Fence, n: int) -> tuple[tuple[Row, ...], Seq]:
        """Return the rows of one append, and the last seq that the same fence wrote before it."""
        rows = tuple(s.row for s in self.log if (s.fence, s.n) == (fence, n) and not s.pruned)
        before = [s.row.seq for s in self.log if s.fence == fence and s.n < n and not s.pruned]
        return rows, Seq(max(before, default=0))

    def admitted_between(self, after: Seq, before: Seq) -> tuple[Row, ...]:
        """Return admitted rows between two seqs, both exclusive."""
        return tuple(s.row for s in self.log[after : before - 1] if s.fence == UNFENCED and not s.pruned)


@dataclass(slots=True)
class MemoryWorker:
    """A worker and its lease."""

    id: WorkerId
    pid: int
    version: str
    started_at: int
    host: str = ""
    concurrency: int = 0
    queues: tuple[str, ...] | None = None
    lease_until: int = 0
    lease_ms: int = 0
    lapses: int = 0
    dead: bool = False


@dataclass(slots=True)
class Counted:
    """A blob and the streams that refer to it."""

    blob: Blob
    owners: set[StreamId] = field(default_factory=set[StreamId])


class Tables:
    """The tables of the store, and the operations that all modules share."""

    def __init__(self, clock: Clock, lease_ms: int) -> None:
        self.clock = clock
        self.lease_ms = lease_ms
        self.counters = Counters()
        self.chain = DigestChain()
        self.streams: dict[StreamId, Stream] = {}
        self.tombstones: dict[StreamId, Fence] = {}
        self.workers: dict[WorkerId, MemoryWorker] = {}
        self.permits: list[Permit] = []
        self.promises: dict[PromiseId, PromiseState] = {}
        self.blobs: dict[BlobHash, Counted] = {}
        self.secrets: dict[str, bytes] = {}
        self.numbers = itertools.count(1)
        self._inbox_ids = itertools.count(1)

    def committed(self) -> None:
        """Count a commit."""
        self.counters.commits += 1

    def existing(self, stream: StreamId) -> Stream:
        """Return an existing stream.

        Raises:
            Error: `session_unknown`.
        """
        found = self.streams.get(stream)
        if found is None:
            raise stream_unknown(stream)
        return found

    def begin(self, stream: StreamId, agent: str, now: int) -> Stream:
        """Return a new stream without records. Its fence continues that of a deleted one."""
        fence = self.tombstones.get(stream, UNFENCED)
        return Stream(stream, agent, now, now, self.chain, self.chain.empty(stream), fence=fence)

    # --- leases

    def gone(self, worker: WorkerId | None) -> bool:
        """Return whether a worker is not alive: unknown, killed, or with a lapsed lease."""
        known = self.workers.get(worker) if worker is not None else None
        return known is None or known.dead or known.lease_until <= self.clock.monotonic_ms()

    def extend(self, worker: WorkerId) -> None:
        """Extend a worker's lease to its full length, unless the worker is dead."""
        known = self.workers.get(worker)
        if known is not None and not known.dead:
            known.lapses += self.gone(worker)  # before the new end: a heartbeat renews on another thread
            known.lease_until = self.lease_end()

    def lease_end(self) -> int:
        """Return the end of a lease that begins now."""
        return self.clock.monotonic_ms() + self.lease_ms

    # --- inboxes and bytes

    def deliver(self, stream: Stream, new: Delivery) -> int:
        """Put a delivery into an inbox; return the id of its row."""
        inbox_id = next(self._inbox_ids)
        stream.inbox[inbox_id] = InboxRow(inbox_id, new.stream, new.source_key, new.data, new.at)
        stream.came_at[inbox_id] = self.clock.wall_ms()
        if size := new.input_bytes:
            stream.input_bytes[inbox_id] = size
        if is_news(new.item):
            stream.wakes.add(inbox_id)
        return inbox_id

    def refer(self, stream: Stream, blobs: Iterable[Blob]) -> None:
        """Store bytes and let a stream refer to them."""
        for blob in blobs:
            self.blobs.setdefault(blob.hash, Counted(blob)).owners.add(stream.id)
            stream.blobs.add(blob.hash)

    def unrefer(self, stream: Stream, hashes: Iterable[BlobHash]) -> None:
        """Remove a stream's blob references; bytes without a reference are deleted."""
        for hash in hashes:
            stream.blobs.discard(hash)
            if (counted := self.blobs.get(hash)) is not None:
                counted.owners.discard(stream.id)
                if not counted.owners:
                    del self.blobs[hash]
