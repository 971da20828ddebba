"""Value types of the store protocol: workers, work, claims, rows, listed streams, results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from perdure.commit.changes import Pause
from perdure.commit.plan import Snapshot, first_entry
from perdure.ids import Fence, Seq, StreamId, Tenant, WorkerId
from perdure.inbox.admit import Admission, Admitted, Delivery
from perdure.inbox.items import Item, read
from perdure.vocab.promises import Resolution
from perdure.vocab.records import Row

START = Seq(0)
Quarantined: TypeAlias = Literal["also", "only", "not"]
IDLE_OWNER_GRACE_MS = 2_000
"""How long an inbox row of an idle stream waits for the owner before other workers may claim the stream."""
HISTORY_MS = 86_400_000


class WorkerInfo(msgspec.Struct, frozen=True, gc=False):
    """A worker as others see it.

    `lease_until` is on the store's lease clock; `lease_left_ms` is the time left, negative after the lease has lapsed.
    The worker owns `held` streams, `active` of them with an unfinished turn. At most `concurrency` streams of `queues`
    (None: all) run at once.
    """

    id: WorkerId
    pid: int
    version: str
    started_at: int
    lease_until: int = 0
    alive: bool = True
    host: str = ""
    lease_left_ms: int = 0
    held: int = 0
    active: int = 0
    lease_ms: int = 0
    concurrency: int = 0
    queues: tuple[str, ...] | None = None

    @property
    def seen_ms_ago(self) -> int:
        """Milliseconds since the last heartbeat, derived from the lease."""
        return max(0, self.lease_ms - self.lease_left_ms)

    @property
    def is_history(self) -> bool:
        """True if the worker owns nothing and its lease lapsed over a day ago. The row stays: its death is unproven."""
        return not self.alive and not self.held and self.seen_ms_ago > HISTORY_MS


@dataclass(frozen=True, slots=True)
class Placement:
    """The queue and priority of an agent's or a session's work. A higher priority runs sooner."""

    queue: str = "default"
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Serves:
    """The work that a worker accepts, and the tenants that come last.

    `agents` maps each agent that the worker can run to the placement of sessions without their own (None: any agent,
    default placement). `queues` lists the served queues (None: all), `without` the excluded ones. `driving` lists
    excluded streams, `only` the accepted ones (None: all). `recent` lists the tenants served last, latest at the end:
    among equals, tenants that are absent or further ahead come first.

    `quarantined` includes, isolates or excludes quarantined streams: at least two of their owners died or more last
    record, so the work itself may kill workers.
    """

    tenant: Tenant | None = None
    agents: Mapping[str, Placement] | None = None
    queues: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()
    driving: tuple[StreamId, ...] = ()
    only: tuple[StreamId, ...] | None = None
    recent: tuple[Tenant, ...] = ()
    quarantined: Quarantined = "also"


EVERYTHING = Serves()


@dataclass(frozen=True, slots=True)
class ReadyStream:
    """A stream with work. `claim` is set if the stream was free and is now claimed.

    Without a claim, the stream still has an owner: a dead or neglectful worker, or this one."""

    stream: StreamId
    queue: str
    claim: Claim | None = None


class Claim(msgspec.Struct, frozen=True, gc=False):
    """Ownership of a stream under a fence. `previous` is the former owner, if any. `parked`: the turn waits.

    `takeovers` counts the claims from owners that did not release the stream, since an owner last wrote a record or
    released it. A repeated claim of the same worker returns the same count. `loaded` is the content of the stream, if
    the claim provides it.
    """

    stream: StreamId
    fence: Fence
    last_seq: Seq
    previous: WorkerId | None = None
    parked: bool = False
    takeovers: int = 0
    loaded: Loaded | None = None


class AlreadyOwned(msgspec.Struct, frozen=True, gc=False):
    """The stream is owned by another live worker."""

    by: WorkerId


class Loaded(msgspec.Struct, frozen=True, gc=False):
    """The data for a cold claim: a snapshot of this code version, the rows after it, the queued inbox rows."""

    snapshot: Snapshot | None
    rows: tuple[Row, ...]
    inbox: tuple[InboxRow, ...]


class InboxRow(msgspec.Struct, frozen=True, gc=False):
    """A queued inbox item, as stored."""

    id: int
    stream: StreamId
    source_key: str
    data: bytes
    at: int

    @property
    def item(self) -> Item:
        """The decoded item."""
        return read(self.data)


def claimed(new: Delivery, admission: Admitted) -> Claim | None:
    """Return the claim that an admission granted, if any. For a stream that it opened, the claim has its content."""
    if admission.fence is None:
        return None
    loaded = None
    if admission.opened:
        first = first_entry(new)
        row = Row(new.stream, Seq(1), first.at, first.kind, first.data, first.key, first.version)
        loaded = Loaded(None, (row,), (InboxRow(admission.inbox_id, new.stream, new.source_key, new.data, new.at),))
    return Claim(new.stream, admission.fence, Seq(0), loaded=loaded)


class StreamInfo(msgspec.Struct, frozen=True, gc=False):
    """A stream's row. A stream created later has a higher `number`."""

    stream: StreamId
    tenant: Tenant
    kind: str
    name: str
    agent: str
    last_seq: Seq
    fence: Fence
    owner: WorkerId | None
    owner_alive: bool
    active: bool
    parked: bool
    waiting_inputs: int
    created_at: int
    updated_at: int
    title: str = ""
    tags: tuple[str, ...] = ()
    paused: Pause | None = None
    queue: str | None = None
    priority: int | None = None
    number: int = 0


class Head(NamedTuple):
    """The end of a stream's log. A recreated stream of the same name differs in `number` or `created_at`."""

    number: int
    created_at: int
    last_seq: Seq


class Annotated(msgspec.Struct, frozen=True, gc=False):
    """An admitted record: `row` is the log row under its key; `new` is True if this call wrote it."""

    row: Row
    new: bool


class Intervened(msgspec.Struct, frozen=True, gc=False):
    """The result of a control write: the admission of its delivery, and its notes.

    `done` is False if nothing was written. Reasons are a delivery admitted before, a taken log key of
    `Intervention.unless`, or a pause state that was already as requested.
    """

    done: bool
    admission: Admission | None = None
    notes: tuple[Annotated, ...] = ()


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """The resolution was accepted as the first one."""


class AlreadyResolved(msgspec.Struct, frozen=True, gc=False):
    """The promise was resolved before; carries that resolution."""

    resolution: Resolution


class PromiseUnknown(msgspec.Struct, frozen=True, gc=False):
    """The promise does not exist or was revoked; both look the same to the caller."""


Resolved: TypeAlias = Accepted | AlreadyResolved | PromiseUnknown


@dataclass(slots=True)
class Counters:
    """Operation counts for tests and benchmarks: `commits` counts durable transactions, `awaited` the waits of owners
    for one."""

    commits: int = 0
    statements: int = 0
    plans: int = 0
    awaited: int = 0


class Diagnosis(msgspec.Struct, frozen=True, gc=False):
    """One result line of `doctor` and `db check`."""

    status: Literal["ok", "warn", "fail"]
    what: str
    detail: str


def unfinished(stuck: int) -> Diagnosis:
    """Return the line about this number of unfinished streams without a live worker."""
    if not stuck:
        return Diagnosis("ok", "leases", "no unfinished stream is without a live worker")
    streams, them = ("stream has", "it") if stuck == 1 else ("streams have", "them")
    return Diagnosis("warn", "leases", f"{stuck} unfinished {streams} no live worker; any worker can claim {them}")
