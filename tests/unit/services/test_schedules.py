"""Due runs of a schedule, by its policies. Nine o'clock in UTC is due every day; expectations by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.ids import Seq, StreamId
from perdure.services.schedules import (
    KEPT,
    PRUNED_AT_ONCE,
    Due,
    ScheduleState,
    due,
    fold,
    fold_all,
    is_done,
    next_due,
    oldest,
    upcoming,
)
from perdure.vocab.records import Record, Row, kind_of, write
from perdure.vocab.schedules import (
    CatchUp,
    Schedule,
    ScheduleChanged,
    ScheduleCreated,
    ScheduleFired,
    ScheduleSkipped,
    SendInput,
)

SAY = SendInput(session="s", text="hello")


def at(text: str) -> int:
    """A moment of November 2026, in UTC."""
    return int(datetime.fromisoformat(f"2026-11-{text}:00+00:00").timestamp() * 1000)


def told(*facts: tuple[str, Record]) -> ScheduleState:
    state = ScheduleState()
    for seq, (when, record) in enumerate(facts, start=1):
        row = Row(stream=StreamId("s"), seq=Seq(seq), at=at(when), kind=kind_of(record), data=write(record))
        state = fold(state, row)
    return state


def daily(catch_up: CatchUp = "one", *, max_runs: int = 0, max_catch_up: int = 3) -> ScheduleCreated:
    schedule = Schedule(target=SAY, cron="0 9 * * *", catch_up=catch_up, max_runs=max_runs, max_catch_up=max_catch_up)
    return ScheduleCreated(schedule=schedule)


def test_nothing_is_due_before_its_moment_and_one_run_at_it() -> None:
    state = told(("01T10:00", daily()))
    assert next_due(state) == at("02T09:00")
    assert due(state, now=at("02T08:59")) == Due()
    assert due(state, now=at("02T09:00")) == Due(fire=(at("02T09:00"),))


def test_a_run_that_was_made_is_not_due_again() -> None:
    state = told(("01T10:00", daily()), ("02T09:00", ScheduleFired(due_at=at("02T09:00"))))
    assert due(state, now=at("02T09:00")) == Due()
    assert next_due(state) == at("03T09:00")
    assert (state.runs, state.last_run_at) == (1, at("02T09:00"))


@pytest.mark.parametrize(
    ("catch_up", "now", "expected"),
    [
        ("none", "06T12:00", Due(late=at("06T09:00"), missed=5)),
        ("none", "06T09:01", Due(fire=(at("06T09:00"),), missed=4)),
        ("one", "06T12:00", Due(fire=(at("06T09:00"),), missed=4)),
        ("all", "03T12:00", Due(fire=(at("02T09:00"), at("03T09:00")))),
        ("all", "06T12:00", Due(fire=(at("04T09:00"), at("05T09:00"), at("06T09:00")), missed=2)),
    ],
)
def test_missed_runs_follow_the_catch_up_policy(catch_up: CatchUp, now: str, expected: Due) -> None:
    assert due(told(("01T10:00", daily(catch_up))), now=at(now)) == expected


def test_skipped_runs_are_handled_and_counted() -> None:
    late = ScheduleSkipped(due_at=at("06T09:00"), reason="late", missed=5)
    state = told(("01T10:00", daily("none")), ("06T12:00", late))
    assert next_due(state) == at("07T09:00")
    assert (state.runs, state.missed, state.skipped) == (0, 5, 0)
    overlap = ScheduleSkipped(due_at=at("02T09:00"), reason="overlap")
    assert told(("01T10:00", daily()), ("02T09:00", overlap)).skipped == 1


def test_runs_due_during_a_pause_are_not_caught_up() -> None:
    paused = (("01T10:00", daily("all")), ("01T11:00", ScheduleChanged(change="paused")))
    assert due(told(*paused), now=at("05T12:00")) == Due()
    assert upcoming(told(*paused), 5, now=at("05T12:00")) == ()
    state = told(*paused, ("05T12:00", ScheduleChanged(change="resumed")))
    assert due(state, now=at("05T12:01")) == Due()
    assert next_due(state) == at("06T09:00")


def test_a_run_on_request_changes_nothing_about_when_it_is_due() -> None:
    asked = ScheduleChanged(change="run", request="r1")
    state = told(("01T10:00", daily()), ("02T08:00", asked))
    assert state.asked == ("r1",)
    state = told(
        ("01T10:00", daily()), ("02T08:00", asked), ("02T08:01", ScheduleFired(due_at=at("02T08:01"), request="r1"))
    )
    assert (state.asked, next_due(state), state.runs) == ((), at("02T09:00"), 1)


def test_a_request_that_stands_behind_its_run_is_answered() -> None:
    """Admitted records may stand behind what was done because of them."""
    run = ScheduleFired(due_at=at("02T08:01"), request="r1")
    state = told(("01T10:00", daily()), ("02T08:01", run), ("02T08:00", ScheduleChanged(change="run", request="r1")))
    assert state.asked == ()


def test_once_is_once() -> None:
    once = ScheduleCreated(schedule=Schedule(target=SAY, at=at("02T09:00")))
    assert upcoming(told(("01T10:00", once)), 5, now=at("01T10:00")) == (at("02T09:00"),)
    assert due(told(("01T10:00", once)), now=at("04T00:00")) == Due(fire=(at("02T09:00"),))
    done = told(("01T10:00", once), ("02T09:00", ScheduleFired(due_at=at("02T09:00"))))
    assert (is_done(done), next_due(done), due(done, now=at("09T00:00"))) == (True, None, Due())


def test_schedule_is_done_after_its_maximum_runs() -> None:
    two = (("01T10:00", daily("all", max_runs=2)), ("02T09:00", ScheduleFired(due_at=at("02T09:00"))))
    assert upcoming(told(*two), 5, now=at("02T10:00")) == (at("03T09:00"),)
    assert due(told(*two), now=at("09T10:00")).fire == (at("07T09:00"),)
    assert not is_done(told(*two))
    assert is_done(told(*two, ("03T09:00", ScheduleFired(due_at=at("03T09:00")))))


def test_the_next_five_runs() -> None:
    state = told(("01T10:00", daily()))
    days = ("02", "03", "04", "05", "06")
    assert upcoming(state, 5, now=at("01T10:00")) == tuple(at(f"{day}T09:00") for day in days)
    ended = told(("01T10:00", daily()), ("01T11:00", ScheduleChanged(change="ended")))
    assert (upcoming(ended, 5, now=at("01T12:00")), ended.active) == ((), False)


# --- a log whose oldest records are gone


class Log:
    """A log in memory, that is pruned whenever something may go."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.seq = 0

    def write(self, record: Record) -> None:
        self.seq += 1
        data = write(record)
        self.rows.append(Row(stream=StreamId("s"), seq=Seq(self.seq), at=self.seq, kind=kind_of(record), data=data))

    def prune(self) -> bool:
        found = oldest(self.rows)
        if found is None:
            return False
        places, record = found
        self.rows = [row for row in self.rows if row.seq not in places]
        self.write(record)
        return True


LIFE = st.sampled_from(["due", "late", "overlap", "pause", "resume", "ask", "answer", "answer none"])


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.lists(LIFE, min_size=60, max_size=60), st.integers(8, 40), st.booleans())
def test_a_log_without_its_oldest_records_folds_to_the_same(life: list[str], times: int, at_once: bool) -> None:
    whole, short, asked, pruned = Log(), Log(), list[str](), 0
    for place, what in enumerate(["create", *life * times]):
        record: Record
        match what:
            case "create":
                record = daily()
            case "due":
                record = ScheduleFired(due_at=place, missed=place % 3)
            case "late" | "overlap":
                record = ScheduleSkipped(due_at=place, reason="late" if what == "late" else "overlap", missed=1)
            case "ask":
                asked.append(f"r{place}")
                record = ScheduleChanged(change="run", request=asked[-1])
            case "answer" if asked:
                record = ScheduleFired(due_at=place, request=asked.pop(0))
            case _:
                record = ScheduleChanged(change="paused" if what == "pause" else "resumed")
        for log in (whole, short):
            log.write(record)
        whole.seq = short.seq  # the record that stands for others has a place of its own
        if at_once:
            pruned += short.prune()
            whole.seq = short.seq
    while short.prune():
        pruned += 1
    assert pruned or len(whole.rows) <= KEPT + PRUNED_AT_ONCE
    assert len(short.rows) <= KEPT + PRUNED_AT_ONCE
    told, kept = fold_all(whole.rows), fold_all(short.rows)
    unlike = {"seq": 0, "answered": frozenset[str]()}  # a pruned occurrence is not requested again
    assert replace(kept, **unlike) == replace(told, **unlike)
    assert kept.asked == tuple(asked)


def test_pruning_removes_the_oldest_runs_of_long_logs() -> None:
    log = Log()
    log.write(daily())
    for n in range(KEPT + PRUNED_AT_ONCE - 1):
        log.write(ScheduleFired(due_at=n))
    assert oldest(log.rows) is None
    log.write(ScheduleFired(due_at=10_000))
    found = oldest(log.rows)
    assert found is not None
    places, record = found
    assert places == tuple(range(2, 202))
    assert (record.until, record.runs, record.handled_until) == (201, 200, 199)
