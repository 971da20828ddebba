"""What goes into a store and comes out of it: workers, work, claims, rows, streams in a list, verdicts."""

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
Suspects: TypeAlias = Literal["also", "only", "not"]
PATIENCE_MS = 2_000
"""For how long what waits for an idle stream is left to whoever holds it."""
HISTORY_MS = 86_400_000


class WorkerInfo(msgspec.Struct, frozen=True, gc=False):
    """A worker as others see it. `lease_until` is on the store's own lease clock, which has `lease_left_ms` to go (less
    than nothing: so long ago has it lapsed). It holds `held` streams, of which `active` have an unfinished turn; it
    drives `concurrency` at once at most, of these `queues` (None: of all).
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
        """How long ago it was heard of last, as far as its lease tells."""
        return max(0, self.lease_ms - self.lease_left_ms)

    @property
    def is_history(self) -> bool:
        """Whether it holds nothing and was not heard of for a day. It is remembered, because nobody can be certain that
        it does nothing any more."""
        return not self.alive and not self.held and self.seen_ms_ago > HISTORY_MS


@dataclass(frozen=True, slots=True)
class Place:
    """Where the work of an agent or a session stands: in which queue, and how urgent it is (more is sooner)."""

    queue: str = "default"
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Serves:
    """Which work a worker takes, and whose turn it is.

    `agents` are those it can run, each with the place of its sessions that have none of their own (None: any agent,
    all at the ordinary place); `queues` those it serves (None: all), `without` those it leaves alone. `besides` names
    streams that it leaves alone, `only` the ones it is after (None: all). `recent` are the tenants it has served, the
    latest last: among equals those come first that are not in it, or further ahead.

    `suspects` are streams whose owner is gone, and was not the first that went since the last record: what they do may
    be what kills.
    """

    tenant: Tenant | None = None
    agents: Mapping[str, Place] | None = None
    queues: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()
    besides: tuple[StreamId, ...] = ()
    only: tuple[StreamId, ...] | None = None
    recent: tuple[Tenant, ...] = ()
    suspects: Suspects = "also"


EVERYTHING = Serves()


@dataclass(frozen=True, slots=True)
class Ready:
    """A stream that has work. Its `claim` if it was free, and is ours now; without one somebody holds it who is gone,
    or we do."""

    stream: StreamId
    queue: str
    claim: Claim | None = None


class Claim(msgspec.Struct, frozen=True, gc=False):
    """The stream is ours under this fence. `previous` is the worker that held it before, if any; `parked` tells that
    its turn waits.

    `takeovers` is more than 0 if it was taken from a worker that did not give it back: how often that has happened
    since an owner last wrote a record or gave it back. Who claims what it has already is told the same again.
    `loaded` is what is in it, if whoever claimed it has put it there.
    """

    stream: StreamId
    fence: Fence
    last_seq: Seq
    previous: WorkerId | None = None
    parked: bool = False
    takeovers: int = 0
    loaded: Loaded | None = None


class Held(msgspec.Struct, frozen=True, gc=False):
    """Another worker, alive, has it."""

    by: WorkerId


class Loaded(msgspec.Struct, frozen=True, gc=False):
    """What a cold claim reads: the snapshot (if this code may trust it), the rows after it, the waiting inbox."""

    snapshot: Snapshot | None
    rows: tuple[Row, ...]
    inbox: tuple[InboxRow, ...]


class InboxRow(msgspec.Struct, frozen=True, gc=False):
    """An item that waits, as it is stored."""

    id: int
    stream: StreamId
    source_key: str
    data: bytes
    at: int

    @property
    def item(self) -> Item:
        """The item itself."""
        return read(self.data)


def claimed(new: Delivery, admission: Admitted) -> Claim | None:
    """What the sender was given with its delivery, if anything. A stream that this opened need not be read."""
    if admission.fence is None:
        return None
    loaded = None
    if admission.opened:
        first = first_entry(new)
        row = Row(new.stream, Seq(1), first.at, first.kind, first.data, first.key, first.version)
        loaded = Loaded(None, (row,), (InboxRow(admission.inbox_id, new.stream, new.source_key, new.data, new.at),))
    return Claim(new.stream, admission.fence, Seq(0), loaded=loaded)


class StreamInfo(msgspec.Struct, frozen=True, gc=False):
    """A stream in a list. Of two streams, the one that was made later has the higher `number`."""

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
    """Where a stream ends. One that was made another time is another stream of the same name."""

    number: int
    created_at: int
    last_seq: Seq


class Annotated(msgspec.Struct, frozen=True, gc=False):
    """An admitted record: `row` is in the log under its key; `new` tells whether this call put it there."""

    row: Row
    new: bool


class Intervened(msgspec.Struct, frozen=True, gc=False):
    """What became of an intervention: the verdict on its delivery, and its notes. `done` is False if nothing was
    written, because the delivery was known, a log key was taken, or the stream was paused (or not) already.
    """

    done: bool
    admission: Admission | None = None
    notes: tuple[Annotated, ...] = ()


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """This resolution is the one."""


class AlreadyResolved(msgspec.Struct, frozen=True, gc=False):
    """Somebody was first; this is what they said."""

    resolution: Resolution


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """No such promise, or it was revoked: the two look the same."""


Resolved: TypeAlias = Accepted | AlreadyResolved | Unknown


@dataclass(slots=True)
class Counters:
    """What was done, for tests and benchmarks: commits are transactions made durable, `awaited` how often an owner had
    to wait for one."""

    commits: int = 0
    statements: int = 0
    plans: int = 0
    awaited: int = 0


class Diagnosis(msgspec.Struct, frozen=True, gc=False):
    """One line of `doctor` and `db check`."""

    status: Literal["ok", "warn", "fail"]
    what: str
    detail: str
