"""The commit plan: everything that one append changes, as a value, and the rules by which a store judges the plan.

Laws: a plan is applied whole or not at all. A plan is identified by (stream, fence, n): the same plan again returns the
first receipt, another plan under that identity is a conflict. A stale fence writes nothing. A log key belongs to the
first record that takes it.
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

__all__ = [  # `Blob` and `blob_of` are re-exported: plans carry blobs
    "MAX_COMMIT_BYTES",
    "MAX_COMMIT_ROWS",
    "AlreadyApplied",
    "Apply",
    "Blob",
    "ClearTimer",
    "Entry",
    "Judgement",
    "OutboxResult",
    "PersonRequest",
    "Plan",
    "Receipt",
    "Refuse",
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
        """Encode a record once, under its log key.

        Raises:
            Error: `invalid_argument` for a record that could be written but not read back.
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
    """Return the first record of the stream that a delivery opens."""
    if new.opening is None:
        return Entry.of(SessionOpened(agent=new.agent or ""), at=new.at)
    return Entry(new.opening.kind, new.opening.data, new.at)


def ends(entries: Iterable[Entry]) -> bool:
    """Return whether one of these ends its stream. The append then also removes the tags that begin with `LIVE`."""
    return bool([True for entry in entries if entry.key == PROCESS_END])


class SetTimer(msgspec.Struct, frozen=True, gc=False):
    """Make the stream claimable at `due_at`. An existing timer of this name keeps its original due time."""

    name: str
    due_at: int


class ClearTimer(msgspec.Struct, frozen=True, gc=False):
    """Delete a timer that fired or is no longer needed."""

    name: str


class PersonRequest(msgspec.Struct, frozen=True, gc=False):
    """A promise for a person to resolve, created in the append of the record that contains the request."""

    promise: PromiseId
    kind: str
    at: int
    deadline_at: int | None = None


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """A fold up to `seq`: droppable, and readable only by the code version that wrote it."""

    seq: Seq
    code: str
    data: bytes


class Prune(msgspec.Struct, frozen=True, gc=False):
    """Physical removals from the append's own stream: records by seq, and admitted source keys, which become free.

    The removed seqs stay unused. The remaining log must fold to the same state."""

    seqs: tuple[Seq, ...] = ()
    source_keys: tuple[str, ...] = ()


class Plan(msgspec.Struct, frozen=True, gc=False):
    """One owned append. `n` counts the appends of one fence from 1, without gaps.

    `known_seq` is the last row that the owner has read. `ahead` counts the rows of earlier plans still in flight after
    it. `active`: the stream has unfinished work, so another worker continues if this one dies. `parked`: the turn
    continues when a wait ends, a timer is due or a wake arrives; inputs alone only queue behind it.

    `outbox` is the outbox: deliveries to the inboxes of other streams, in the same transaction. The receipt contains
    the result of each; a rejected one never refuses the plan.

    `drops` removes blob references of the stream; bytes without another reference are deleted.

    `asks` creates promises for people. `uses` names approvals that this append consumes. Each must belong to the
    stream, be given, unused, and not expired by the store's clock. `unless` lists log keys; a taken one refuses the
    plan. `prunes` removes rows in the same transaction.

    `recovers`: the append only settles work of a dead worker and starts it again. The takeover count is not reset,
    because that is not progress.
    """

    stream: StreamId
    worker: WorkerId
    fence: Fence
    n: int
    entries: tuple[Entry, ...] = ()
    consume: tuple[int, ...] = ()
    timers: tuple[SetTimer | ClearTimer, ...] = ()
    waits: tuple[PromiseId, ...] = ()
    outbox: tuple[Delivery, ...] = ()
    blobs: tuple[Blob, ...] = ()
    drops: tuple[BlobHash, ...] = ()
    snapshot: Snapshot | None = None
    known_seq: Seq = NOTHING_YET
    ahead: int = 0
    lease: Literal["keep", "release"] = "keep"
    active: bool = True
    parked: bool = False
    person_requests: tuple[PersonRequest, ...] = ()
    uses: tuple[PromiseId, ...] = ()
    unless: tuple[str, ...] = ()
    recovers: bool = False
    prunes: Prune | None = None

    @property
    def concerns_people(self) -> bool:
        """True if the plan requests or consumes decisions of people, or depends on a free log key."""
        return bool(self.person_requests or self.uses or self.unless)

    @property
    def is_rare(self) -> bool:
        """True if the plan uses a rare feature, so that no fast path has to support it."""
        return self.concerns_people or self.recovers or bool(self.drops) or self.prunes is not None

    @property
    def is_progress(self) -> bool:
        """True if the plan only continues work of its own worker, so that no other worker has to be notified."""
        return self.active and self.lease == "keep" and not (self.outbox or self.person_requests)


class OutboxResult(msgspec.Struct, frozen=True, gc=False):
    """The result of one outbox entry of a plan.

    `accepted`: now in the inbox. `duplicate`: admitted before. `conflict`: the source key has other content.
    `discarded`: not deliverable; `because` is the code (`session_unknown`, `session_agent_conflict`, `blob_unknown`).
    """

    verdict: Verdict
    because: str = ""


Verdict: TypeAlias = Literal["accepted", "duplicate", "conflict", "discarded"]


def sent_as(admission: Admission) -> OutboxResult:
    """Convert an admission into the result of an outbox entry."""
    match admission:
        case Admitted():
            return OutboxResult("accepted")
        case Conflict():
            return OutboxResult("conflict")
        case _:
            return OutboxResult("duplicate")


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """Proof that a plan is durable, with the facts that its owner could not know when it planned.

    `missed` contains admitted records written by others since `known_seq`. `resolved` contains waits that had already
    ended; a plan with such a wait did not park. `sent` has one result per entry of `outbox`. `quiet` is True if the
    stream has no open turn and an empty inbox after the append; a repeated receipt always has False.
    """

    stream: StreamId
    fence: Fence
    n: int
    first_seq: Seq
    last_seq: Seq
    missed: tuple[Row, ...] = ()
    resolved: tuple[tuple[PromiseId, Resolution], ...] = ()
    replayed: bool = False
    sent: tuple[OutboxResult, ...] = ()
    quiet: bool = False


class StreamState(msgspec.Struct, frozen=True, gc=False):
    """The columns of a stream row that `judge` needs."""

    owner: WorkerId | None
    fence: Fence
    n: int
    last_seq: Seq
    format: int


class Apply(msgspec.Struct, frozen=True, gc=False):
    """The plan may be written; its first record gets `first_seq`."""

    first_seq: Seq


class AlreadyApplied(msgspec.Struct, frozen=True, gc=False):
    """The plan was written before, or its fence is stale: read the rows of (stream, fence, n) and call `recall`."""


class Refuse(msgspec.Struct, frozen=True):  # an error may be part of a cycle: leave it to the collector
    """The plan is refused; nothing is written."""

    error: Error


Judgement: TypeAlias = Apply | AlreadyApplied | Refuse


def judge(plan: Plan, state: StreamState | None) -> Judgement:
    """Decide from the stream's row alone whether a plan may be written."""
    if state is None or plan.fence > state.fence:
        return Refuse(lease_lost(plan.stream))
    if plan.fence < state.fence or plan.n <= state.n:
        return AlreadyApplied()  # or never applied: `recall` decides from the rows
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
    """Return the error for a stale fence."""
    return Error(
        Code.LEASE_LOST,
        "this worker no longer holds the stream; nothing was written",
        because="another worker took it over, or it was deleted",
        stream=stream,
    )


def same_content(plan: Plan, rows: Sequence[Row]) -> bool:
    """Return whether the rows stored under (stream, fence, n) equal the entries of this plan."""
    return [(r.kind, r.key, r.data) for r in rows] == [(e.kind, e.key, e.data) for e in plan.entries]


def recall(plan: Plan, state: StreamState, rows: Sequence[Row], before: Seq) -> tuple[Seq, Seq]:
    """Return the first and last seq of a plan that was written before, from the rows under (stream, fence, n).

    A written plan stays valid after its stream is released or claimed by another worker, so a retry after a lost reply
    gets the receipt. `before` is the last row that this fence wrote before the plan. A plan without records is placed
    after `before` and after the owner's `known_seq`.

    Raises:
        Error: `lease_lost` if the fence is stale and wrote no rows under this number, `commit_conflict` if the content
            differs.
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
    """Return the error for another plan under a used (stream, fence, n)."""
    return Error(
        Code.COMMIT_CONFLICT,
        f"append {plan.n} was made before, with other content",
        stream=plan.stream,
        fence=plan.fence,
    )


def key_taken(stream: StreamId, key: str, by: str) -> Error:
    """Return the error for a record whose log key another record has."""
    return Error(
        Code.GATE_CLOSED,
        f"the log key {key} is taken by a {by} record; nothing was written",
        stream=stream,
        key=key,
        by=by,
    )


def inbox_gone(plan: Plan, inbox_id: int) -> Error:
    """Return the error for a plan that consumes an inbox row which does not exist."""
    return Error(
        Code.COMMIT_CONFLICT,
        f"inbox row {inbox_id} is not queued for this stream; nothing was written",
        because="the row was consumed before, withdrawn by its sender, or belongs to another stream",
        stream=plan.stream,
        inbox=inbox_id,
    )


def check_use(plan: Plan, promise: PromiseId, state: PromiseState | None, now: int) -> None:
    """Refuse a plan that uses an approval which is missing, used or expired. `now` is on the store's clock.

    Raises:
        Error: `approval_stale`.
    """
    if state is None or state.stream != plan.stream:
        raise _stale(plan, promise, "the approval is unknown or was revoked")
    if not isinstance(state.resolution, Ok):
        raise _stale(plan, promise, "the approval was not given")
    if state.consumed_at is not None:
        raise _stale(plan, promise, "the approval was used before")
    if state.deadline_at is not None and state.deadline_at <= now:
        raise _stale(plan, promise, "the approval has expired")


def _stale(plan: Plan, promise: PromiseId, because: str) -> Error:
    return Error(
        Code.APPROVAL_STALE,
        "the approval is not valid; nothing was written",
        because=because,
        hint="request the approval again; nothing was run",
        stream=plan.stream,
        promise=promise,
    )


def check_budget(plan: Plan) -> int:
    """Refuse a plan that is too large, before a transaction opens; return the bytes of its records and sends.

    Raises:
        Error: `store_commit_byte_budget_exceeded` or `store_commit_row_budget_exceeded`.
    """
    size = 0
    for entry in plan.entries:
        size += len(entry.data)
    for new in plan.outbox:
        size += len(new.data)
    if size > MAX_COMMIT_BYTES:
        raise Error(
            Code.STORE_COMMIT_BYTE_BUDGET_EXCEEDED,
            f"one append would write {size} bytes",
            because=f"the limit is {MAX_COMMIT_BYTES}",
            stream=plan.stream,
        )
    rows = len(plan.entries) + len(plan.outbox) + len(plan.timers) + len(plan.waits) + len(plan.person_requests)
    if plan.prunes is not None:
        rows += len(plan.prunes.seqs)
    if rows > MAX_COMMIT_ROWS:
        raise Error(
            Code.STORE_COMMIT_ROW_BUDGET_EXCEEDED,
            f"one append would write {rows} rows",
            because=f"the limit is {MAX_COMMIT_ROWS}",
            stream=plan.stream,
        )
    return size
