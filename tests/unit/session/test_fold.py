"""A session is a fold of its log: from the beginning, or from any snapshot."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from perdure.codec import canonical, encode
from perdure.ids import BlobHash, InputId, Seq, TurnId
from perdure.session.fold import CODE, SessionState, cancel_of, fold_all
from perdure.vocab.messages import Text
from perdure.vocab.records import (
    CancelRequested,
    InputAdmitted,
    Record,
    SessionOpened,
    SessionPaused,
    SessionResumed,
    ToolMembershipChanged,
    TurnEnded,
    TurnOpened,
)
from perdure.vocab.usage import Usage
from tests.unit.session.logs import random_log, rows
from tests.unit.turn.turning import admitted, cancel, intent, late, ok, opening, said

SEEDS = st.integers(0, 2**32 - 1)
T1, T2 = TurnId("t1"), TurnId("t2")


def state(*records: Record) -> SessionState:
    return fold_all(None, rows([*records]))


def test_nothing_is_known_of_an_empty_log() -> None:
    assert state() == SessionState()


def test_a_session_knows_its_agent() -> None:
    assert state(SessionOpened(agent="billing")) == SessionState(agent="billing", seq=Seq(1))


OPEN = TurnOpened(turn=T1, index=0, composition=BlobHash("h"), from_turn=0, view_seq=Seq(2))


def test_an_input_begins_the_next_turn_and_its_opening_opens_it() -> None:
    log: list[Record] = [SessionOpened(agent="a"), admitted()]
    assert state(*log) == SessionState(agent="a", seq=Seq(2), turn_seq=Seq(2))
    log.append(OPEN)
    assert state(*log) == SessionState(
        agent="a", seq=Seq(3), turns=1, open_turn=T1, turn_seq=Seq(2), view_seq=Seq(2), view_turn=0
    )


def test_effects_only_move_the_seq() -> None:
    log: list[Record] = [SessionOpened(agent="a"), admitted(), OPEN]
    before = state(*log)
    after = state(*log, said("x"), intent("c1.0.1"), ok("c1.0.1"))
    assert after == replace(before, seq=Seq(6))


def test_the_end_of_a_turn_closes_it_and_counts_its_usage() -> None:
    log: list[Record] = [SessionOpened(agent="a"), admitted(), OPEN]
    log.append(TurnEnded(turn=T1, status="finished", usage=Usage(input=3, calls=1)))
    assert state(*log) == SessionState(agent="a", seq=Seq(4), turns=1, view_seq=Seq(2), usage=Usage(input=3, calls=1))
    log += [admitted(turn=T2), opening(T2, 1), TurnEnded(turn=T2, status="finished", usage=Usage(input=4, calls=2))]
    assert state(*log).usage == Usage(input=7, calls=3)
    assert state(*log).turns == 2


def test_late_news_between_turns_belongs_to_the_next_turn() -> None:
    log: list[Record] = [SessionOpened(agent="a"), admitted(), OPEN, TurnEnded(turn=T1, status="finished")]
    log += [late("c1.0.1"), admitted(turn=T2), opening(T2, 1)]
    assert state(*log).turn_seq == 5


def test_late_news_in_a_turn_does_not_move_its_beginning() -> None:
    assert state(SessionOpened(agent="a"), admitted(), OPEN, late("c1.0.1")).turn_seq == 2


def test_a_cancel_request_is_kept_until_its_turn_ends() -> None:
    log: list[Record] = [SessionOpened(agent="a"), cancel(T2), admitted(), cancel(T1), OPEN]
    assert [request.turn for request in state(*log).cancels] == ["t2", "t1"]
    assert cancel_of(state(*log), T1) == cancel(T1)
    log.append(TurnEnded(turn=T1, status="stopped", reason="cancelled"))
    assert cancel_of(state(*log), T1) is None
    assert cancel_of(state(*log), T2) == cancel(T2)


def test_the_end_of_a_stopped_turn_is_known_until_another_turn_finishes() -> None:
    log: list[Record] = [SessionOpened(agent="a"), admitted(), OPEN]
    log.append(TurnEnded(turn=T1, status="stopped", reason="refused"))
    assert state(*log).stopped_turn == T1
    log += [admitted(turn=T2), opening(T2, 1), TurnEnded(turn=T2, status="finished")]
    assert state(*log).stopped_turn is None


def test_the_version_of_the_fold_is_known() -> None:
    assert CODE == "session-14"


def test_a_snapshot_is_small_and_holds_no_messages() -> None:
    snapshot = encode(state(*random_log(7, turns=12)))
    assert len(snapshot) < 400
    assert b"question" not in snapshot


PLACES = st.integers(0, 10_000)


@given(SEEDS, PLACES, PLACES, PLACES)
def test_snapshot_and_tail_equal_the_fold_of_the_log(seed: int, end: int, request: int, at: int) -> None:
    log = random_log(seed, turns=3)
    log = log[: end % (len(log) + 1)]
    log.insert(request % (len(log) + 1), cancel(TurnId("t99")))  # for a turn that is still queued
    stored = rows(log)
    at %= len(stored) + 1
    snapshot = encode(fold_all(None, stored[:at]))
    assert canonical(fold_all(snapshot, stored[at:])) == canonical(fold_all(None, stored))


@given(SEEDS, st.lists(PLACES, max_size=6))
def test_snapshots_of_snapshots_give_the_fold_of_the_log(seed: int, places: list[int]) -> None:
    """A session lives long: each snapshot is made from the one before it and the rows since."""
    stored = rows(random_log(seed, turns=3))
    snapshot, done = None, 0
    for at in sorted(place % (len(stored) + 1) for place in places):
        snapshot, done = encode(fold_all(snapshot, stored[done:at])), at
    assert canonical(fold_all(snapshot, stored[done:])) == canonical(fold_all(None, stored))


def test_every_snapshot_of_one_log_gives_the_same_fold() -> None:
    log = rows([*random_log(11, turns=3), admitted(turn=T1), cancel(T1), OPEN, said("x"), intent("c1.0.1")])
    whole = canonical(fold_all(None, log))
    assert b'"request":"r1"' in whole
    assert {canonical(fold_all(encode(fold_all(None, log[:at])), log[at:])) for at in range(len(log) + 1)} == {whole}


def _beginning(records: list[Record], state: SessionState) -> Record | None:
    return records[state.turn_seq - 1] if state.turn_seq else None


@settings(max_examples=60)
@given(SEEDS, st.integers(0, 10_000), st.integers(0, 10_000), st.integers(0, 10_000))
def test_the_place_of_an_admitted_record_among_owned_ones_does_not_matter(
    seed: int, cut: int, one: int, other: int
) -> None:
    log = random_log(seed, turns=3, cancellable=False)
    log = log[: 3 + cut % (len(log) - 2)]
    turn = next(record.turn for record in reversed(log) if isinstance(record, InputAdmitted))
    request = CancelRequested(turn=turn, request="r")
    before_end = next(
        (at for at, record in enumerate(log) if isinstance(record, TurnEnded) and record.turn == turn), len(log)
    )
    folds: list[tuple[SessionState, Record | None]] = []
    for place in (one % (before_end + 1), other % (before_end + 1)):
        placed = [*log[:place], request, *log[place:]]
        found = state(*placed)
        folds.append((replace(found, turn_seq=Seq(0)), _beginning(placed, found)))
    assert canonical(folds[0][0]) == canonical(folds[1][0])
    assert folds[0][1] == folds[1][1]


def test_tools_are_taken_out_and_put_back_and_every_change_counts() -> None:
    log = [
        ToolMembershipChanged(names=("a", "b"), present=False),
        ToolMembershipChanged(names=("b", "c"), present=False),
        ToolMembershipChanged(names=("a", "c"), present=True),
    ]
    assert state(*log) == SessionState(seq=Seq(3), without_tools=("b",), tools_generation=3)


def test_a_session_is_paused_until_it_is_resumed_whatever_else_happens() -> None:
    log: list[Record] = [SessionOpened(agent="a"), SessionPaused(origin="maria"), admitted(), OPEN]
    assert state(*log).paused
    assert not state(*log, SessionResumed(origin="maria")).paused


def test_an_input_that_joins_an_open_turn_does_not_move_its_beginning() -> None:
    joins = InputAdmitted(input=InputId("i2"), turn=T1, parts=(Text(text="left"),), mode="steer", joins=True)
    assert state(SessionOpened(agent="a"), admitted(), OPEN, joins).turn_seq == 2
