"""The rules by which every store judges an append."""

from __future__ import annotations

import pytest

from perdure.commit.plan import (
    AlreadyApplied,
    Apply,
    Entry,
    Plan,
    Refuse,
    SetTimer,
    StreamState,
    blob_of,
    check_budget,
    inbox_gone,
    judge,
    key_taken,
    other_content,
    recall,
    same_content,
)
from perdure.errors import Code, Error
from perdure.ids import Fence, PromiseId, Seq, StreamId, TurnId, WorkerId
from perdure.inbox.admit import wake
from perdure.vocab.records import FORMAT, CancelRequested, Record, Row, SessionOpened, TurnEnded
from tests.unit.turn.turning import ok, opening

S = StreamId("default:session:s1")
ANN, BOB = WorkerId("ann"), WorkerId("bob")


def plan(*records: Record, worker: WorkerId = ANN, fence: int = 3, n: int = 5, known_seq: int = 0) -> Plan:
    entries = tuple(Entry.of(record, at=1) for record in records)
    return Plan(stream=S, worker=worker, fence=Fence(fence), n=n, entries=entries, known_seq=Seq(known_seq))


def stream(owner: WorkerId | None = ANN, fence: int = 3, n: int = 4, last_seq: int = 10) -> StreamState:
    return StreamState(owner=owner, fence=Fence(fence), n=n, last_seq=Seq(last_seq), format=FORMAT)


def rows(*records: Record, first: int) -> list[Row]:
    entries = [Entry.of(record, at=99) for record in records]
    return [
        Row(stream=S, seq=Seq(first + index), at=e.at, kind=e.kind, data=e.data, key=e.key)
        for index, e in enumerate(entries)
    ]


ACCEPTED: list[tuple[str, Plan, StreamState]] = [
    ("the next append of the owner", plan(), stream()),
    ("the first append of a fence", plan(n=1), stream(n=0)),
]
REPEATED: list[tuple[str, Plan, StreamState]] = [
    ("the last append again", plan(n=4), stream()),
    ("an earlier append again", plan(n=1), stream()),
    ("a stale fence, which may have written", plan(fence=2), stream()),
    ("an append that released the stream, again", plan(n=4), stream(owner=None)),
    ("an append before another owner came, again", plan(fence=2, n=9), stream(owner=BOB)),
    ("the same worker under its former fence", plan(fence=1), stream(owner=ANN)),
]
REFUSED: list[tuple[str, Plan, StreamState | None, Code]] = [
    ("a stream that does not exist", plan(), None, Code.LEASE_LOST),
    ("a fence nobody was given", plan(fence=4), stream(), Code.LEASE_LOST),
    ("another worker under this fence", plan(worker=BOB), stream(), Code.LEASE_LOST),
    ("a stream that was released", plan(), stream(owner=None), Code.LEASE_LOST),
    ("a gap in the numbering", plan(n=6), stream(), Code.COMMIT_CONFLICT),
]


@pytest.mark.parametrize(("plan", "stream"), [row[1:] for row in ACCEPTED], ids=[row[0] for row in ACCEPTED])
def test_new_plan_is_applied(plan: Plan, stream: StreamState) -> None:
    assert judge(plan, stream) == Apply(Seq(11))


@pytest.mark.parametrize(("plan", "stream"), [row[1:] for row in REPEATED], ids=[row[0] for row in REPEATED])
def test_repeated_plan_is_already_applied(plan: Plan, stream: StreamState) -> None:
    assert judge(plan, stream) == AlreadyApplied()


@pytest.mark.parametrize(("plan", "stream", "code"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_conflicting_plan_is_refused(plan: Plan, stream: StreamState | None, code: Code) -> None:
    judged = judge(plan, stream)
    assert isinstance(judged, Refuse)
    assert judged.error.code is code
    assert judged.error.details["stream"] == S


# --- the same append again


def test_an_append_made_before_is_answered_with_its_seqs() -> None:
    written = rows(ok("c1.0.1"), ok("c1.1.1"), first=7)
    assert recall(plan(ok("c1.0.1"), ok("c1.1.1"), n=4), stream(), written, Seq(6)) == (7, 8)


def test_a_stale_fence_that_wrote_it_is_answered_too() -> None:
    written = rows(ok("c1.0.1"), first=7)
    assert recall(plan(ok("c1.0.1"), fence=2), stream(owner=BOB), written, Seq(6)) == (7, 7)


def test_a_stale_fence_that_wrote_nothing_has_lost() -> None:
    with pytest.raises(Error) as caught:
        recall(plan(ok("c1.0.1"), fence=2), stream(owner=BOB), [], Seq(6))
    assert caught.value.code is Code.LEASE_LOST


def test_an_append_without_records_stands_behind_what_came_before() -> None:
    assert recall(plan(n=4, known_seq=3), stream(), [], Seq(6)) == (7, 6)
    assert recall(plan(n=4, known_seq=9), stream(), [], Seq(6)) == (10, 9)


@pytest.mark.parametrize(
    "written",
    [
        rows(ok("c1.0.1", "other"), first=7),
        rows(ok("c1.0.1"), ok("c1.1.1"), first=7),
        [],
    ],
    ids=["other bytes", "one more", "none"],
)
def test_other_content_under_the_same_name_is_a_conflict(written: list[Row]) -> None:
    with pytest.raises(Error) as caught:
        recall(plan(ok("c1.0.1"), n=4), stream(), written, Seq(6))
    assert caught.value.code is Code.COMMIT_CONFLICT
    assert caught.value.message == other_content(plan(n=4)).message == "append 4 was made before, with other content"


def test_content_is_kind_key_and_bytes_and_nothing_else() -> None:
    record = opening()
    asked = plan(record)
    (row,) = rows(record, first=7)
    assert same_content(asked, [row])
    assert not same_content(asked, [])
    for changed in (
        Row(stream=S, seq=Seq(7), at=99, kind="other", data=row.data, key=row.key),
        Row(stream=S, seq=Seq(7), at=99, kind=row.kind, data=b"{}", key=row.key),
        Row(stream=S, seq=Seq(7), at=99, kind=row.kind, data=row.data, key=None),
    ):
        assert not same_content(asked, [changed])


def test_the_order_of_records_is_content() -> None:
    one, other = ok("c1.0.1"), ok("c1.1.1")
    assert not same_content(plan(one, other), rows(other, one, first=1))


# --- budgets


def sized(size: int) -> Plan:
    entry = Entry(kind="x", data=b"x" * size, at=1)
    return Plan(stream=S, worker=ANN, fence=Fence(1), n=1, entries=(entry,))


def test_an_append_of_one_mebibyte_fits_and_one_byte_more_does_not() -> None:
    check_budget(sized(1_048_576))
    with pytest.raises(Error) as caught:
        check_budget(sized(1_048_577))
    assert caught.value.code is Code.STORE_COMMIT_BYTE_BUDGET_EXCEEDED
    assert caught.value.message == "one append would write 1048577 bytes"


def test_the_bytes_of_all_records_count() -> None:
    half = Entry(kind="x", data=b"x" * 600_000, at=1)
    with pytest.raises(Error) as caught:
        check_budget(Plan(stream=S, worker=ANN, fence=Fence(1), n=1, entries=(half, half)))
    assert caught.value.code is Code.STORE_COMMIT_BYTE_BUDGET_EXCEEDED


def counted(entries: int = 0, timers: int = 0, waits: int = 0, outbox: int = 0) -> Plan:
    return Plan(
        stream=S,
        worker=ANN,
        fence=Fence(1),
        n=1,
        entries=tuple(Entry(kind="x", data=b"{}", at=1) for _ in range(entries)),
        timers=tuple(SetTimer(f"t{index}", 1) for index in range(timers)),
        waits=tuple(PromiseId(f"p{index}") for index in range(waits)),
        outbox=tuple(wake(S, PromiseId(f"p{index}"), at=1) for index in range(outbox)),
    )


def test_an_append_of_512_rows_fits_and_one_more_does_not() -> None:
    check_budget(counted(509, 1, 1, 1))
    for too_many in (counted(510, 1, 1, 1), counted(509, 2, 1, 1), counted(509, 1, 2, 1), counted(509, 1, 1, 2)):
        with pytest.raises(Error) as caught:
            check_budget(too_many)
        assert caught.value.code is Code.STORE_COMMIT_ROW_BUDGET_EXCEEDED
        assert caught.value.message == "one append would write 513 rows"


# --- entries, blobs, refusals


def test_a_record_is_encoded_once_under_the_key_it_claims() -> None:
    assert Entry.of(SessionOpened(agent="a"), at=5) == Entry(
        kind="session_opened", data=b'{"agent":"a"}', at=5, key=None, version=1
    )
    assert Entry.of(CancelRequested(turn=TurnId("t"), request="r"), at=5).key == "gate:t"
    assert Entry.of(TurnEnded(turn=TurnId("t"), status="finished"), at=5).key == "gate:t"


def test_bytes_are_named_by_their_content() -> None:
    blob = blob_of(b"hello", "text/plain")
    assert blob.hash == "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    assert (blob.media_type, blob.data) == ("text/plain", b"hello")


def test_refusals_name_what_is_in_the_way() -> None:
    gate = key_taken(S, "gate:t", "cancel_requested")
    assert gate.code is Code.GATE_CLOSED
    assert gate.details == {"stream": S, "key": "gate:t", "by": "cancel_requested"}
    gone = inbox_gone(plan(), 7)
    assert gone.code is Code.COMMIT_CONFLICT
    assert "inbox row 7" in gone.message
