"""The store protocol; `perdure.testing.laws` contains its laws."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from perdure.commit.changes import Amendment, Audit, Intervention, Label, NewStream, Note, Redaction
from perdure.commit.plan import Blob, Entry, Plan, Receipt
from perdure.ids import BlobHash, PromiseId, Seq, StreamId, Tenant, WorkerId
from perdure.inbox.admit import Admission, Delivery, Waiting
from perdure.store.digest_chain import DigestChain
from perdure.store.live import SideChannel
from perdure.store.permits import Permit, PermitRequest
from perdure.store.shapes import (
    EVERYTHING,
    START,
    AlreadyOwned,
    Annotated,
    Claim,
    Counters,
    Diagnosis,
    Head,
    InboxRow,
    Intervened,
    Loaded,
    ReadyStream,
    Resolved,
    Serves,
    StreamInfo,
    WorkerInfo,
)
from perdure.vocab.promises import PromiseState, Resolution
from perdure.vocab.records import Row


class Store(Protocol):
    """A transactional store of durable streams, with leases, inboxes, promises, timers and blobs."""

    counters: Counters

    @property
    def live(self) -> SideChannel:
        """The side channel: live model text for observers in other processes."""
        ...

    async def open(self) -> None:
        """Connect, refuse a foreign or newer store, and migrate the store forward."""
        ...

    def use_chain(self, chain: DigestChain) -> None:
        """Compute and check the digests of logs with this chain, from the next write on."""
        ...

    async def close(self) -> None:
        """Finish submitted writes, release connections and locks. Safe to call twice."""
        ...

    # --- workers and leases

    async def register(
        self,
        worker: WorkerId,
        *,
        pid: int,
        version: str,
        now: int,
        host: str = "",
        concurrency: int = 0,
        queues: tuple[str, ...] | None = None,
    ) -> None:
        """Register a worker as alive.

        `host` is the name of its machine. The worker drives up to `concurrency` streams of these queues (None: all).
        """
        ...

    async def renew(self, worker: WorkerId) -> None:
        """Extend a worker's lease with one statement, regardless of the number of its streams.

        Callable on any event loop: a worker's heartbeat has one of its own.
        """
        ...

    async def stop_renewing(self) -> None:
        """Close the connection that `renew` opened for the calling event loop, if it opened one."""
        ...

    def lease_live(self, worker: WorkerId) -> bool:
        """Return whether this worker's lease has certainly not lapsed, by a local clock and without blocking."""
        ...

    def lapses(self, worker: WorkerId) -> int:
        """Return how often this worker's lease was renewed after it may have lapsed, without blocking.

        An unchanged number and a live lease prove that no other worker could claim a stream meanwhile.
        """
        ...

    async def deregister(self, worker: WorkerId, *, abandoned_calls: bool = False) -> None:
        """Deregister a worker and release its streams at once.

        With `abandoned_calls`, a call that it started may still run: the worker is dead only when its process has
        ended.
        """
        ...

    async def workers(self) -> tuple[WorkerInfo, ...]:
        """Return all registered workers."""
        ...

    async def is_dead(self, worker: WorkerId) -> bool:
        """Return whether this worker has certainly ended. A lapsed lease does not prove that."""
        ...

    async def exchange(
        self, worker: WorkerId, *, asks: Sequence[PermitRequest] = (), back: Sequence[str] = (), now: int
    ) -> frozenset[str]:
        """Release the permits of the holders in `back` and request those in `asks`; return the granted holders.

        Other requests are queued; a repeated request checks them again. The permits of a worker count until its lease
        lapses or its process ends.
        """
        ...

    async def permits(self) -> tuple[Permit, ...]:
        """Return all granted and queued permits, in request order."""
        ...

    # --- streams

    def append(self, plan: Plan) -> Awaitable[Receipt]:
        """Make a plan durable, all or nothing.

        The call submits the plan, so plans take effect in call order; awaiting the result waits for durability.
        Cancelling the caller does not cancel the write. The same plan again returns the first receipt.

        Raises (when awaited):
            Error: `lease_lost` for a stale fence, `gate_closed` for a taken log key, `commit_conflict` for a known
                (stream, fence, n) with other content, `approval_stale` for an invalid approval. Nothing was written.
        """
        ...

    async def admit(self, delivery: Delivery, *, claim_for: WorkerId | None = None) -> Admission:
        """Put a delivery into a stream's inbox once, with the bytes that it refers to.

        With `claim_for`, also claim the stream if it is idle and has no owner, dead or alive.

        Raises:
            Error: `session_unknown` if the stream does not exist and the delivery opens none;
                `session_agent_conflict` if the stream belongs to another agent; `blob_unknown` if no stream of the
                tenant has the bytes; `queue_full` if the delivery is an input that its queue has no room for, counted
                exactly for concurrent senders. Nothing was written.
        """
        ...

    async def waiting(self, tenant: Tenant) -> Waiting:
        """Return the inputs that wait in all streams of a tenant, and their bytes."""
        ...

    async def annotate(self, stream: StreamId, entry: Entry, *, label: Label | None = None) -> Annotated:
        """Append an admitted record, without a fence. The first record under `entry.key` wins.

        A new record with `label` also changes the stream's title and tags.
        """
        ...

    async def annotate_all(self, notes: Sequence[Note]) -> tuple[Annotated, ...]:
        """Append admitted records to several streams, each with its label, all or nothing.

        Raises:
            Error: `session_unknown` if one of the streams does not exist. Nothing was written.
        """
        ...

    async def intervene(self, intervention: Intervention) -> Intervened:
        """Apply a control write in one transaction.

        Raises:
            Error: `session_unknown`, `commit_conflict` if an inbox row to withdraw is no longer queued or a later row
                has arrived, or an error of `admit` for the delivery. Nothing was written.
        """
        ...

    async def redact(self, redaction: Redaction) -> Annotated:
        """Delete the content of a record physically, once. A repetition changes nothing.

        The bytes are removed from the store before this returns, unless a concurrent reader delays that.

        Raises:
            Error: `session_unknown`, `record_unknown`, `commit_conflict` if the stream has moved. Nothing was written.
        """
        ...

    async def amend(self, amendment: Amendment) -> Annotated:
        """Append one record to an unowned stream, or return the record that already has its log key.

        The append also adds and removes the stream's blob references.

        Raises:
            Error: `session_unknown`. Nothing was written.
        """
        ...

    async def create(self, new: NewStream) -> None:
        """Create a stream with its history, all or nothing.

        Raises:
            Error: `session_exists`; `session_unknown` if the stream `beside` it does not exist; `gate_closed` or
                `input_key_conflict` for a duplicate log key or input key.
        """
        ...

    async def claim(self, stream: StreamId, worker: WorkerId) -> Claim | AlreadyOwned | None:
        """Claim a stream and raise its fence; return the claim, or the live worker that owns the stream.

        Claimable are a stream without a live owner, a stream of this worker, and a stream that its owner neglects (see
        `claimable`). The result is None for an unknown stream, and for a paused one that this worker does not own.

        Raises:
            Error: `format_newer` if the stream has records that this version cannot read.
        """
        ...

    async def claimable(
        self, worker: WorkerId, *, limit: int, now: int, serves: Serves = EVERYTHING
    ) -> tuple[StreamId, ...]:
        """Return streams with work that this worker may drive, in order.

        A worker may drive streams without a live owner, its own streams that are not in `driving`, and neglected
        streams. A neglected stream is idle and has had an inbox row for `IDLE_OWNER_GRACE_MS` of the store's clock. The
        owner of such a stream has written under its claim before, but not in that time. The owner may be full, too old,
        or no longer serve the queue.

        Work is an inbox row (for a parked stream: a wake), a due timer, or an unfinished turn (`active`). A paused
        stream has no work. The highest priority comes first. Within a priority, one stream of every tenant precedes
        the second of any. Then the longest ready stream comes first, counted from the arrival of its work or the last
        write of its owner.
        """
        ...

    async def claim_ready(
        self, worker: WorkerId, *, limit: int, now: int, serves: Serves = EVERYTHING
    ) -> tuple[ReadyStream, ...]:
        """Return claimable streams and claim the free ones in the same statement.

        Concurrent callers get disjoint sets."""
        ...

    async def place(self, stream: StreamId, queue: str | None, priority: int | None) -> None:
        """Set a stream's own queue and priority; None means those of its agent.

        Raises:
            Error: `session_unknown`.
        """
        ...

    async def next_due(self) -> int | None:
        """Return the earliest due time of all timers, or None."""
        ...

    async def load(self, stream: StreamId, *, code: str) -> Loaded:
        """Return the data that a new owner folds. Snapshots of another code version are ignored.

        Raises:
            Error: `codec_failed` (with a codec) or `store_corrupt` if one of the rows, or the end of the log, does not
                fit the digest chain.
        """
        ...

    async def check_log(self, stream: StreamId) -> str:
        """Check every record of a stream against the digest chain; return the digest of the last record, in hex.

        Raises:
            Error: as `load`, for the first record that does not fit; `session_unknown`.
        """
        ...

    async def inbox(self, stream: StreamId) -> tuple[InboxRow, ...]:
        """Return all unconsumed inbox rows of a stream, oldest first."""
        ...

    async def read(
        self, stream: StreamId, *, after: Seq = START, until: Seq | None = None, limit: int | None = None
    ) -> tuple[Row, ...]:
        """Return log rows in order; `after` is exclusive, `until` inclusive."""
        ...

    async def find(self, stream: StreamId, key: str) -> Row | None:
        """Return the row with this log key, or None."""
        ...

    async def count(self, stream: StreamId, begins: str, *, until: Seq) -> int:
        """Return the number of rows up to `until` whose log key begins with `begins`."""
        ...

    async def stream(self, stream: StreamId) -> StreamInfo | None:
        """Return one stream's row, or None."""
        ...

    async def streams(
        self,
        *,
        tenant: Tenant,
        kind: str,
        limit: int,
        before: tuple[int, StreamId] | None = None,
        tag: str | None = None,
    ) -> tuple[StreamInfo, ...]:
        """Return streams, most recently changed first; with `tag`, only streams that have it.

        `before` continues after the last row of the previous page."""
        ...

    async def newest(
        self,
        *,
        tenant: Tenant,
        kind: str,
        tag: str,
        limit: int,
        before: int | None = None,
        agent: str | None = None,
    ) -> tuple[StreamInfo, ...]:
        """Return streams with a tag, most recently created first; with `agent`, only those of that agent.

        `before` continues after the `number` of the last stream. Without `agent`, a page reads only the rows that it
        returns."""
        ...

    async def marks(self, streams: Sequence[StreamId], key: str) -> tuple[Row, ...]:
        """Return the first record of each of these streams and its record under a log key, in one query."""
        ...

    async def heads(self, streams: Sequence[StreamId]) -> dict[StreamId, Head]:
        """Return the heads of those streams that exist, in one query."""
        ...

    async def drop_snapshot(self, stream: StreamId) -> None:
        """Delete a stream's snapshot; nothing else changes."""
        ...

    async def delete(
        self,
        stream: StreamId,
        *,
        beside: tuple[StreamId, ...] = (),
        edges: tuple[str, ...] = (),
        outbox: tuple[Delivery, ...] = (),
        audit: Audit = (),
    ) -> bool:
        """Delete a stream and the streams `beside` it physically, in one transaction; return whether it existed.

        Everything that the streams own is deleted. A later stream of the same name starts above the old fence. Tags of
        the tenant that begin with one of `edges` are removed from other streams, which only changes how those are
        found. If the stream existed, `outbox` go into the inboxes of other streams; a rejected one changes nothing; and
        `audit` is written."""
        ...

    # --- promises

    async def promise(self, promise: PromiseState) -> PromiseState:
        """Create a promise unless it exists; return the stored one."""
        ...

    async def resolve(
        self,
        promise: PromiseId,
        resolution: Resolution,
        *,
        now: int,
        make: PromiseState | None = None,
        audit: Audit = (),
    ) -> Resolved:
        """Resolve a promise and wake every stream that waits for it. The first resolution wins.

        A resolution after the promise's deadline, by the store's clock, has no effect: the promise has timed out.
        With `make`, a missing promise is created and resolved in one write. `audit` is written with an accepted
        resolution only.

        Raises:
            Error: `session_unknown` if the stream of a promise to create, or of `audit`, does not exist. Nothing was
                written.
        """
        ...

    async def resolve_all(
        self, answers: Sequence[tuple[PromiseState, Resolution]], *, now: int, audit: Audit = ()
    ) -> dict[PromiseId, Resolution]:
        """Resolve several promises in one write, all or none; a missing promise is created as given.

        If a promise is resolved already, or its deadline has passed by the store's clock, nothing is written. The
        result contains these resolutions by promise. An empty result means that all promises were resolved, the
        waiting streams woken, and `audit` written.

        Raises:
            Error: `session_unknown` if the stream of a promise to create does not exist. Nothing was written.
        """
        ...

    async def peek(self, promise: PromiseId) -> PromiseState | None:
        """Return a promise's current state, or None."""
        ...

    async def asked(
        self, *, tenant: Tenant, limit: int, after: tuple[int, PromiseId] | None = None
    ) -> tuple[PromiseState, ...]:
        """Return unresolved requests to people, oldest first; `after` continues a page."""
        ...

    async def asked_as(self, *, tenant: Tenant, prefix: str, limit: int) -> tuple[PromiseState, ...]:
        """Return requests to people whose promise id begins with `prefix`, resolved or not."""
        ...

    async def now(self) -> int:
        """Return the time on the clock that decides about expiry in this store, in milliseconds."""
        ...

    async def secret(self, name: str, new: bytes) -> bytes:
        """Return the stored bytes of this name. The first call stores `new`; later calls change nothing."""
        ...

    # --- blobs

    async def blob(self, hash: BlobHash, *, stream: StreamId | None = None) -> Blob:
        """Return stored bytes; with `stream`, only if that stream refers to them.

        Raises:
            Error: `blob_unknown` for missing bytes and for a missing reference.
        """
        ...

    # --- change and health

    async def version(self) -> int:
        """Return a number that changes soon after another process, or another user of this object, has committed."""
        ...

    async def check(self) -> tuple[Diagnosis, ...]:
        """Check the store: integrity, schema, unfinished streams without a live worker."""
        ...
