"""What a store must do. Laws: `perdure.testing.laws`."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from perdure.commit.changes import Amendment, Intervention, Label, NewStream, Note, Redaction
from perdure.commit.plan import Blob, Entry, Plan, Receipt
from perdure.ids import BlobHash, PromiseId, Seq, StreamId, Tenant, WorkerId
from perdure.inbox.admit import Admission, Delivery
from perdure.store.live import SideChannel
from perdure.store.permits import Ask, Permit
from perdure.store.shapes import (
    EVERYTHING,
    START,
    Annotated,
    Claim,
    Counters,
    Diagnosis,
    Head,
    Held,
    InboxRow,
    Intervened,
    Loaded,
    Ready,
    Resolved,
    Serves,
    StreamInfo,
    WorkerInfo,
)
from perdure.vocab.promises import PromiseState, Resolution
from perdure.vocab.records import Row


class Store(Protocol):
    """Durable streams with leases, inboxes, promises, timers and blobs, in one transactional place."""

    counters: Counters

    @property
    def live(self) -> SideChannel:
        """What models are writing this moment, for observers in other processes."""
        ...

    async def open(self) -> None:
        """Connect, check that the store is ours and not newer, migrate it forward."""
        ...

    async def close(self) -> None:
        """Finish what was submitted, release connections and locks. Safe to call twice."""
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
        """Make a worker known and alive; `host` is the machine it says it is on. It drives `concurrency` streams at
        once, of these queues (None: of all).
        """
        ...

    async def renew(self, worker: WorkerId) -> None:
        """Extend a worker's lease: one statement, whatever it holds."""
        ...

    def lease_live(self, worker: WorkerId) -> bool:
        """Whether this worker's lease has certainly not lapsed. Reads a local clock; never waits."""
        ...

    async def retire(self, worker: WorkerId, *, loose_ends: bool = False) -> None:
        """The worker ends in order: what it held is free at once.

        With `loose_ends`, something that it started may still be running: it counts as dead only when its process is.
        """
        ...

    async def workers(self) -> tuple[WorkerInfo, ...]:
        """All workers that are known."""
        ...

    async def is_dead(self, worker: WorkerId) -> bool:
        """Whether it is certain that this worker does nothing any more. A lapsed lease alone is not certainty."""
        ...

    async def exchange(
        self, worker: WorkerId, *, asks: Sequence[Ask] = (), back: Sequence[str] = (), now: int
    ) -> frozenset[str]:
        """Give permits back, and ask for others: the holders that have theirs now. The others of `asks` are in line,
        and are looked at again when they are asked for again.

        What a worker holds counts as long as it is not gone.
        """
        ...

    async def permits(self) -> tuple[Permit, ...]:
        """Every permit that is held or waited for, in the order of asking."""
        ...

    # --- streams

    def append(self, plan: Plan) -> Awaitable[Receipt]:
        """Make a plan durable: all of it, or nothing.

        Submitted in the order of the calls, at the call; awaiting waits for durability. Cancelling the awaiting
        caller does not cancel the write. The same plan again returns the first receipt.

        Raises (when awaited):
            Error: `lease_lost` for a stale fence, `gate_closed` for a taken record key (or one that forbids it),
                `commit_conflict` for other content under the same (stream, fence, n), `approval_stale` for an answer
                in `uses` that allows nothing. Nothing was written.
        """
        ...

    async def admit(self, delivery: Delivery, *, claim_for: WorkerId | None = None) -> Admission:
        """Put something into a stream's inbox, once, with the bytes it refers to. With `claim_for`, also claim the
        stream if it is idle and nobody holds it, dead or alive.

        Raises:
            Error: `session_unknown` if the stream does not exist and the delivery opens none;
                `session_agent_conflict` if it belongs to another agent; `blob_unknown` if it refers to bytes that no
                stream of its tenant has. Nothing was written.
        """
        ...

    async def annotate(self, stream: StreamId, entry: Entry, *, label: Label | None = None) -> Annotated:
        """Append an admitted record, by anyone, unfenced. `entry.key` decides: the first one stands.

        With `label`, the stream is listed and found by it from now on.
        """
        ...

    async def annotate_all(self, notes: Sequence[Note]) -> tuple[Annotated, ...]:
        """Append admitted records to several streams, each with its label: all of them, or nothing.

        Raises:
            Error: `session_unknown` if one of the streams does not exist. Nothing was written.
        """
        ...

    async def intervene(self, intervention: Intervention) -> Intervened:
        """Do something to a stream from outside, in one transaction.

        Raises:
            Error: `session_unknown`; `commit_conflict` if what was to be withdrawn does not wait any more, or something
                came behind it; whatever `admit` refuses a delivery for. Nothing was written.
        """
        ...

    async def redact(self, redaction: Redaction) -> Annotated:
        """Take what a record said out of the store, physically; once. Again, it changes nothing.

        The bytes are gone from what the store keeps when this returns, unless somebody is reading them this moment.

        Raises:
            Error: `session_unknown`, `record_unknown`, `commit_conflict` if the stream has moved. Nothing was written.
        """
        ...

    async def amend(self, amendment: Amendment) -> Annotated:
        """Add a record to a stream that nobody drives, with the bytes it brings and without those it lets go; once. If
        its log key is taken, nothing is written, and the record that has it is returned.

        Raises:
            Error: `session_unknown`. Nothing was written.
        """
        ...

    async def create(self, new: NewStream) -> None:
        """A stream with its past, all of it or nothing.

        Raises:
            Error: `session_exists`; `session_unknown` if the stream it belongs to is not there; `gate_closed` or
                `input_key_conflict` for a log key or an input key that is there twice.
        """
        ...

    async def claim(self, stream: StreamId, worker: WorkerId) -> Claim | Held | None:
        """Take a stream that no live worker holds, or that its owner leaves waiting (see `claimable`), or that this
        worker holds. Raises the fence. None: no such stream, or it is paused and not this worker's.

        Raises:
            Error: `format_newer` if the stream has records this version cannot read.
        """
        ...

    async def claimable(
        self, worker: WorkerId, *, limit: int, now: int, serves: Serves = EVERYTHING
    ) -> tuple[StreamId, ...]:
        """Streams with work that this worker may drive: nobody alive holds them, or it holds them itself (those that
        it drives are `besides`), or whoever holds them leaves them waiting.

        Left waiting is what is idle, if its owner has written something under its claim, but nothing in the last
        `PATIENCE_MS` of the store's clock, for which something has been in the inbox. That owner may be full, or too
        old, or not serve that queue any more.

        Work is an inbox row (for a parked stream: one that is news), a due timer, or an unfinished turn (`active`). A
        paused stream has none. The highest priority is first; then one stream of every
        tenant before the second of any; then whoever is ready for longest: since its work came, or since its owner last
        wrote something.
        """
        ...

    async def claim_ready(
        self, worker: WorkerId, *, limit: int, now: int, serves: Serves = EVERYTHING
    ) -> tuple[Ready, ...]:
        """What `claimable` tells, and those that nobody holds are claimed with it. Who does the same at that moment
        gets others."""
        ...

    async def place(self, stream: StreamId, queue: str | None, priority: int | None) -> None:
        """Give a stream a queue and a priority of its own; None: those of its agent.

        Raises:
            Error: `session_unknown`.
        """
        ...

    async def next_due(self) -> int | None:
        """The earliest timer of all streams."""
        ...

    async def load(self, stream: StreamId, *, code: str) -> Loaded:
        """What a new owner folds. Snapshots written by another code version are passed over."""
        ...

    async def inbox(self, stream: StreamId) -> tuple[InboxRow, ...]:
        """What waits for a stream, oldest first. Always all unconsumed rows, never rows after some id."""
        ...

    async def read(
        self, stream: StreamId, *, after: Seq = START, until: Seq | None = None, limit: int | None = None
    ) -> tuple[Row, ...]:
        """Log rows in order, `after` exclusive, `until` inclusive."""
        ...

    async def find(self, stream: StreamId, key: str) -> Row | None:
        """The row with this log key."""
        ...

    async def count(self, stream: StreamId, begins: str, *, until: Seq) -> int:
        """How many rows up to `until` have a log key that begins like this."""
        ...

    async def stream(self, stream: StreamId) -> StreamInfo | None:
        """One stream's row."""
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
        """Streams, the most recently changed first; `before` continues after the last row of the page before. With
        `tag`, only those that have it."""
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
        """Streams that have a tag, the latest made first; `before` continues after the `number` of the last one. With
        `agent`, only those of that agent. A page without `agent` reads as many rows as it has, however many streams
        there are."""
        ...

    async def marks(self, streams: Sequence[StreamId], key: str) -> tuple[Row, ...]:
        """The first record of each of these streams, and the one that has this log key: all in one look."""
        ...

    async def heads(self, streams: Sequence[StreamId]) -> dict[StreamId, Head]:
        """Where these streams end, those that exist: all in one look."""
        ...

    async def drop_snapshot(self, stream: StreamId) -> None:
        """Forget a snapshot; nothing else changes."""
        ...

    async def delete(
        self,
        stream: StreamId,
        *,
        beside: tuple[StreamId, ...] = (),
        edges: tuple[str, ...] = (),
        sends: tuple[Delivery, ...] = (),
    ) -> bool:
        """Remove a stream and everything it owns, physically, and those `beside` it in the same transaction. A later
        stream of that name starts above its fence. Whatever tags of its tenant begin like one of `edges` go too: other
        streams are not found from here any more, and nothing else happens to them. If it was there, `sends` are put
        into the inboxes of other streams with it; one that is not accepted changes nothing."""
        ...

    # --- promises

    async def promise(self, promise: PromiseState) -> PromiseState:
        """Create a promise if it does not exist; the stored one is returned."""
        ...

    async def resolve(
        self, promise: PromiseId, resolution: Resolution, *, now: int, make: PromiseState | None = None
    ) -> Resolved:
        """Answer a promise: the first answer stands, and every stream that waits for it is woken with it.

        An answer that comes after the promise's deadline, by the store's clock, is none: the promise has timed out.
        With `make`, a promise that does not exist is created as that and answered, in one write.

        Raises:
            Error: `session_unknown` if it would be made for a stream that does not exist.
        """
        ...

    async def resolve_all(
        self, answers: Sequence[tuple[PromiseState, Resolution]], *, now: int
    ) -> dict[PromiseId, Resolution]:
        """Answer several promises in one write, each made as given if it does not exist: all of them, or none.

        If one has an answer already, or its time is over by the store's clock, nothing is written, and what stood in
        the way is returned, by promise. Nothing in the way: every answer stands, and whoever waits is woken.

        Raises:
            Error: `session_unknown` if one would be made for a stream that does not exist. Nothing was written.
        """
        ...

    async def peek(self, promise: PromiseId) -> PromiseState | None:
        """A promise as it is now."""
        ...

    async def asked(
        self, *, tenant: Tenant, limit: int, after: tuple[int, PromiseId] | None = None
    ) -> tuple[PromiseState, ...]:
        """What people are asked and have not answered, the longest waiting first; `after` continues a page."""
        ...

    async def asked_as(self, *, tenant: Tenant, prefix: str, limit: int) -> tuple[PromiseState, ...]:
        """What people were asked under ids that begin like this, answered or not."""
        ...

    async def now(self) -> int:
        """The moment on the clock by which this store judges what has expired, in milliseconds."""
        ...

    async def secret(self, name: str) -> bytes:
        """32 random bytes that belong to this store: made on the first call, the same ever after."""
        ...

    # --- blobs

    async def blob(self, hash: BlobHash, *, stream: StreamId | None = None) -> Blob:
        """Stored bytes; with a stream, only if that stream holds a reference to them.

        Raises:
            Error: `blob_unknown`, whichever of the two it is.
        """
        ...

    # --- change and health

    async def version(self) -> int:
        """A number that changes soon after another process (or another user of this object) has committed."""
        ...

    async def check(self) -> tuple[Diagnosis, ...]:
        """Look the store over: integrity, schema, stuck leases."""
        ...
