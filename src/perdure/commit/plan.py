"""The commit plan: everything one append changes, as a value, and the rules by which a store judges it.

Laws: a plan is applied whole or not at all. A plan names (stream, fence, n): the same plan again returns the first
receipt, another plan under that name is a conflict. A stale fence writes nothing. A record key belongs to the first
record that takes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import msgspec

from perdure.errors import Code, Error
from perdure.ids import BlobHash, Fence, PromiseId, Seq, StreamId, WorkerId
from perdure.inbox.admit import Admission, Admitted, Conflict, Delivery
from perdure.vocab.blobs import Blob, blob_of
from perdure.vocab.log_keys import PROCESS_END, key_of
from perdure.vocab.promises import Ok, PromiseState, Resolution
from perdure.vocab.records import FORMAT, Record, Row, SessionOpened, kind_of, write_readable

__all__ = [  # blobs are said in one breath with plans
    "MAX_COMMIT_BYTES",
    "MAX_COMMIT_ROWS",
    "AlreadyApplied",
    "Apply",
    "Ask",
    "Blob",
    "ClearTimer",
    "Entry",
    "Judgement",
    "Plan",
    "Receipt",
    "Refuse",
    "Sent",
    "SetTimer",
    "Snapshot",
    "StreamState",
    "blob_of",
    "check_budget",
    "check_use",
    "ends",
    "first_entry",
    "inbox_gone",
    "judge",
    "key_taken",
    "lease_lost",
    "other_content",
    "recall",
    "same_content",
    "sent_as",
]

MAX_COMMIT_BYTES = 1_048_576
MAX_COMMIT_ROWS = 512
NOTHING_YET = Seq(0)


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A record on its way into a log."""

    kind: str
    data: bytes
    at: int
    key: str | None = None
    version: int = FORMAT

    @staticmethod
    def of(record: Record, *, at: int) -> Entry:
        """Encode a record once, under the key it claims.

        Raises:
            Error: `invalid_argument` for a record that could be written and never be read again.
        """
        try:
            kind, data = write_readable(record)
        except Error as problem:
            raise Error(
                Code.INVALID_ARGUMENT,
                f"a {kind_of(record)} record has a value of the wrong kind; nothing was written",
                because=problem.because,
            ) from None
        return Entry(kind, data, at, key_of(record))


def first_entry(new: Delivery) -> Entry:
    """The first record of the stream that a delivery opens."""
    if new.opening is None:
        return Entry.of(SessionOpened(agent=new.agent or ""), at=new.at)
    return Entry(new.opening.kind, new.opening.data, new.at)


def ends(entries: Iterable[Entry]) -> bool:
    """Whether one of these ends its stream: its tags that begin with `LIVE` go in the same transaction."""
    return bool([True for entry in entries if entry.key == PROCESS_END])


class SetTimer(msgspec.Struct, frozen=True, gc=False):
    """Make the stream claimable at a moment. Setting a timer that exists keeps its original moment."""

    name: str
    due_at: int


class ClearTimer(msgspec.Struct, frozen=True, gc=False):
    """Delete a timer: it fired, or is not needed any more."""

    name: str


class Ask(msgspec.Struct, frozen=True, gc=False):
    """A promise that people are asked to answer, made with the record that says what they are asked."""

    promise: PromiseId
    kind: str
    at: int
    deadline_at: int | None = None


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """A fold at a moment: droppable, and only for the code version that wrote it."""

    seq: Seq
    code: str
    data: bytes


class Prune(msgspec.Struct, frozen=True, gc=False):
    """What an append takes out of its own stream, physically: records by their places, and the source keys of what was
    admitted, so that these may be used again. The places stay empty. Whoever prunes must leave a log that folds to the
    same."""

    places: tuple[Seq, ...] = ()
    source_keys: tuple[str, ...] = ()


class Plan(msgspec.Struct, frozen=True, gc=False):
    """One owned append. `n` counts the appends of one fence from 1, without gaps.

    `known_seq` is the last row its owner knows of, and `ahead` how many rows of earlier plans were on their way behind
    it. `active`: somebody must go on with the stream, whatever becomes of this worker. `parked`: its turn goes on when
    a wait ends, a timer is due or there is news; inputs alone only queue behind it.

    `sends` are put into the inboxes of other streams in the same transaction. What becomes of each is in the receipt
    and never a reason to refuse the plan.

    `drops` are references to bytes that the stream gives up, so that bytes nobody else refers to are gone.

    `asks` makes promises for people. `uses` are answers that allow what this append records: each must be this
    stream's, given, unused and not expired by the store's clock, and is used up by it. `unless` are log keys that
    would forbid it, if somebody has taken one. `prunes` is what goes with it.

    `recovers`: what it records is what a worker that is gone has left, and that the same is begun again. That is no
    progress: takeovers are counted on.
    """

    stream: StreamId
    worker: WorkerId
    fence: Fence
    n: int
    entries: tuple[Entry, ...] = ()
    consume: tuple[int, ...] = ()
    timers: tuple[SetTimer | ClearTimer, ...] = ()
    waits: tuple[PromiseId, ...] = ()
    sends: tuple[Delivery, ...] = ()
    blobs: tuple[Blob, ...] = ()
    drops: tuple[BlobHash, ...] = ()
    snapshot: Snapshot | None = None
    known_seq: Seq = NOTHING_YET
    ahead: int = 0
    lease: Literal["keep", "release"] = "keep"
    active: bool = True
    parked: bool = False
    asks: tuple[Ask, ...] = ()
    uses: tuple[PromiseId, ...] = ()
    unless: tuple[str, ...] = ()
    recovers: bool = False
    prunes: Prune | None = None

    @property
    def concerns_people(self) -> bool:
        """Whether it asks people or needs their leave: rare, and looked at with care."""
        return bool(self.asks or self.uses or self.unless)

    @property
    def is_rare(self) -> bool:
        """Whether it needs what hardly any append does, so that no fast path has to know of it."""
        return self.concerns_people or self.recovers or bool(self.drops) or self.prunes is not None

    @property
    def is_progress(self) -> bool:
        """Whether it only carries on what stays with its worker: nobody else has anything to do because of it."""
        return self.active and self.lease == "keep" and not (self.sends or self.asks)


class Sent(msgspec.Struct, frozen=True, gc=False):
    """What became of one thing that a plan sent.

    `accepted`: it is in the inbox. `duplicate`: it was admitted before. `conflict`: something else was, under that key.
    `discarded`: nobody is there for it; `because` is the code (`session_unknown`, `session_agent_conflict`,
    `blob_unknown`).
    """

    verdict: Verdict
    because: str = ""


Verdict: TypeAlias = Literal["accepted", "duplicate", "conflict", "discarded"]


def sent_as(admission: Admission) -> Sent:
    """The verdict on something that its stream has looked at."""
    match admission:
        case Admitted():
            return Sent("accepted")
        case Conflict():
            return Sent("conflict")
        case _:
            return Sent("duplicate")


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """Proof that a plan is durable, and what its owner could not know when it planned.

    `missed` are admitted records that others wrote since `known_seq`. `resolved` are waits that had already ended:
    a plan with any of those did not park. `sent` has a verdict for each of its `sends`. `quiet` tells that it left the
    stream with nothing to do: no turn under way, and no row in its inbox. A receipt that is repeated does not know.
    """

    stream: StreamId
    fence: Fence
    n: int
    first_seq: Seq
    last_seq: Seq
    missed: tuple[Row, ...] = ()
    resolved: tuple[tuple[PromiseId, Resolution], ...] = ()
    replayed: bool = False
    sent: tuple[Sent, ...] = ()
    quiet: bool = False


class StreamState(msgspec.Struct, frozen=True, gc=False):
    """What a store must know of a stream to judge a plan."""

    owner: WorkerId | None
    fence: Fence
    n: int
    last_seq: Seq
    format: int


class Apply(msgspec.Struct, frozen=True, gc=False):
    """Write it; its first record gets this seq."""

    first_seq: Seq


class AlreadyApplied(msgspec.Struct, frozen=True, gc=False):
    """It was written before, or its fence is stale: look up the rows of (stream, fence, n), and `recall`."""


class Refuse(msgspec.Struct, frozen=True):  # an error may be part of a cycle: leave it to the collector
    """Write nothing."""

    error: Error


Judgement: TypeAlias = Apply | AlreadyApplied | Refuse


def judge(plan: Plan, state: StreamState | None) -> Judgement:
    """Whether a plan may be written, from the stream's row alone."""
    if state is None or plan.fence > state.fence:
        return Refuse(lease_lost(plan.stream))
    if plan.fence < state.fence or plan.n <= state.n:
        return AlreadyApplied()  # or never: the rows decide, see `recall`
    if state.owner != plan.worker:
        return Refuse(lease_lost(plan.stream))
    if plan.n != state.n + 1:
        return Refuse(
            Error(
                Code.COMMIT_CONFLICT,
                f"append {plan.n} cannot follow append {state.n}",
                because="appends of one owner are numbered without gaps",
                stream=plan.stream,
            )
        )
    return Apply(Seq(state.last_seq + 1))


def lease_lost(stream: StreamId) -> Error:
    """The refusal of a stale fence."""
    return Error(
        Code.LEASE_LOST,
        "this worker no longer holds the stream; nothing was written",
        because="another worker took it over, or it was deleted",
        stream=stream,
    )


def same_content(plan: Plan, rows: Sequence[Row]) -> bool:
    """Whether the rows a store kept under (stream, fence, n) are what this plan says."""
    return [(r.kind, r.key, r.data) for r in rows] == [(e.kind, e.key, e.data) for e in plan.entries]


def recall(plan: Plan, state: StreamState, rows: Sequence[Row], before: Seq) -> tuple[Seq, Seq]:
    """First and last seq of a plan that was written before, from the rows a store kept under (stream, fence, n).

    A plan that released its stream, or was overtaken by another owner after it was written, is still written: a lost
    reply is answered with the receipt, whoever holds the stream now. `before` is the last row that this fence wrote
    before the plan; a plan without records stands behind it and behind what its owner knew.

    Raises:
        Error: `lease_lost` if a stale fence wrote nothing under this name, `commit_conflict` if it wrote other content.
    """
    stale = plan.fence != state.fence
    if stale and not rows:
        raise lease_lost(plan.stream)
    if not same_content(plan, rows):
        raise other_content(plan)
    if rows:
        return rows[0].seq, rows[-1].seq
    last = max(before, plan.known_seq)
    return Seq(last + 1), last


def other_content(plan: Plan) -> Error:
    """The refusal of another plan under a name that was used."""
    return Error(
        Code.COMMIT_CONFLICT,
        f"append {plan.n} was made before, with other content",
        stream=plan.stream,
        fence=plan.fence,
    )


def key_taken(stream: StreamId, key: str, by: str) -> Error:
    """The refusal of a record whose key another record has."""
    return Error(
        Code.GATE_CLOSED,
        f"the log key {key} is taken by a {by} record; nothing was written",
        stream=stream,
        key=key,
        by=by,
    )


def inbox_gone(plan: Plan, inbox_id: int) -> Error:
    """The refusal of a plan that consumes an inbox row which is not there."""
    return Error(
        Code.COMMIT_CONFLICT,
        f"inbox row {inbox_id} does not wait for this stream; nothing was written",
        because="it was consumed before, taken back by its sender, or belongs to another stream",
        stream=plan.stream,
        inbox=inbox_id,
    )


def check_use(plan: Plan, promise: PromiseId, state: PromiseState | None, now: int) -> None:
    """Refuse a plan that relies on an answer which allows nothing (any more). `now` is on the store's clock.

    Raises:
        Error: `approval_stale`.
    """
    if state is None or state.stream != plan.stream:
        raise _stale(plan, promise, "there is none, or it was revoked")
    if not isinstance(state.resolution, Ok):
        raise _stale(plan, promise, "nobody has given it")
    if state.consumed_at is not None:
        raise _stale(plan, promise, "it was used before")
    if state.deadline_at is not None and state.deadline_at <= now:
        raise _stale(plan, promise, "it has expired")


def _stale(plan: Plan, promise: PromiseId, because: str) -> Error:
    return Error(
        Code.APPROVAL_STALE,
        "the approval does not hold; nothing was written",
        because=because,
        hint="nothing was run; ask again",
        stream=plan.stream,
        promise=promise,
    )


def check_budget(plan: Plan) -> int:
    """Refuse a plan that is too large before any transaction opens; how many bytes its records and sends are.

    Raises:
        Error: `store_commit_byte_budget_exceeded` or `store_commit_row_budget_exceeded`.
    """
    size = 0
    for entry in plan.entries:
        size += len(entry.data)
    for new in plan.sends:
        size += len(new.data)
    if size > MAX_COMMIT_BYTES:
        raise Error(
            Code.STORE_COMMIT_BYTE_BUDGET_EXCEEDED,
            f"one append would write {size} bytes",
            because=f"the limit is {MAX_COMMIT_BYTES}",
            stream=plan.stream,
        )
    rows = len(plan.entries) + len(plan.sends) + len(plan.timers) + len(plan.waits) + len(plan.asks)
    if plan.prunes is not None:
        rows += len(plan.prunes.places)
    if rows > MAX_COMMIT_ROWS:
        raise Error(
            Code.STORE_COMMIT_ROW_BUDGET_EXCEEDED,
            f"one append would write {rows} rows",
            because=f"the limit is {MAX_COMMIT_ROWS}",
            stream=plan.stream,
        )
    return size
