"""Schedules: their state as a fold of the log, what is to be done at a moment, and what tools may ask for.

Laws: a due moment is handled once, by firing or by leaving it out, and both are recorded. What was due before the last
change of mind (creation, resumption) is not due any more. A log whose oldest records are gone folds to the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Literal, Protocol

from perdure.errors import Code, Error
from perdure.ids import Seq, SessionId
from perdure.services.cron import due_after
from perdure.vocab.records import Row
from perdure.vocab.schedules import (
    Schedule,
    ScheduleChanged,
    ScheduleCreated,
    ScheduleFired,
    SchedulePruned,
    ScheduleSkipped,
)

MAX_ACTIVE_SCHEDULES_PER_SESSION = 5
MAX_ACTIVE_SCHEDULES_PER_TENANT = 100
LATE_MS = 60_000
"""A run that comes later than this after it was due counts as missed."""
MAX_CATCH_UP = 100
_MAX_MISSED = 100_000
KEPT = 400
"""So many records of a schedule are kept: whoever serves it reads its log, every time it is due."""
PRUNED_AT_ONCE = 200

EndReason = Literal["cancelled", "done", "owner_gone", "target_gone"]


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """What is known of a schedule."""

    schedule: Schedule | None = None
    created_at: int = 0
    updated_at: int = 0
    seq: Seq = Seq(0)
    handled_until: int = 0
    paused: bool = False
    ended: str = ""
    runs: int = 0
    skipped: int = 0
    missed: int = 0
    last_run: ScheduleFired | None = None
    last_run_at: int = 0
    asked: tuple[str, ...] = ()
    """Runs that somebody asked for and that are not made yet."""
    answered: frozenset[str] = field(default_factory=frozenset[str])

    @property
    def known(self) -> Schedule:
        """What was asked for; every schedule begins with it."""
        assert self.schedule is not None
        return self.schedule

    @property
    def active(self) -> bool:
        """Whether it counts: it has not ended."""
        return self.schedule is not None and not self.ended


def fold(state: ScheduleState, row: Row) -> ScheduleState:
    """One more record."""
    if isinstance(row.record, SchedulePruned):  # of what we know already
        return replace(state, seq=row.seq)
    state = replace(state, seq=row.seq, updated_at=row.at)
    match row.record:
        case ScheduleCreated(schedule=schedule):
            return replace(state, schedule=schedule, created_at=row.at, handled_until=row.at)
        case ScheduleFired() as run:
            handled = state.handled_until if run.request else max(state.handled_until, run.due_at)
            return replace(
                _answered(state, run.request),
                handled_until=handled,
                runs=state.runs + 1,
                missed=state.missed + run.missed,
                last_run=run,
                last_run_at=row.at,
            )
        case ScheduleSkipped() as left_out:
            handled = state.handled_until if left_out.request else max(state.handled_until, left_out.due_at)
            missed = state.missed + left_out.missed
            skipped = state.skipped + (left_out.reason == "overlap")
            return replace(
                _answered(state, left_out.request), handled_until=handled, skipped=skipped, missed=missed
            )  # fmt: skip
        case ScheduleChanged(change="paused"):
            return replace(state, paused=True)
        case ScheduleChanged(change="resumed"):
            return replace(state, paused=False, handled_until=max(state.handled_until, row.at))
        case ScheduleChanged(change="run", request=request):
            return state if request in state.answered else replace(state, asked=(*state.asked, request))
        case ScheduleChanged(change="ended", reason=reason):
            return replace(state, ended=reason or "cancelled")
        case _:
            return state


def _answered(state: ScheduleState, request: str) -> ScheduleState:
    if not request:
        return state
    rest = tuple(other for other in state.asked if other != request)
    return replace(state, asked=rest, answered=state.answered | {request})


def fold_all(rows: Sequence[Row]) -> ScheduleState:
    """A whole log, or what is left of it: then what is gone comes first, although it was written later."""
    state = ScheduleState()
    gone = _pruned(rows)
    if gone is not None:
        state = _without(fold(state, rows[0]), gone[1])
    for row in rows:
        if row.seq > state.seq:
            state = fold(state, row)
    return state


def _pruned(rows: Sequence[Row]) -> tuple[Row, SchedulePruned] | None:
    return next(((row, row.record) for row in reversed(rows) if isinstance(row.record, SchedulePruned)), None)


def _without(first: ScheduleState, gone: SchedulePruned) -> ScheduleState:
    return replace(
        first,
        seq=gone.until,
        handled_until=gone.handled_until,
        runs=gone.runs,
        skipped=gone.skipped,
        missed=gone.missed,
        paused=gone.paused,
        asked=gone.asked,
        last_run=gone.last_run,
        last_run_at=gone.last_run_at,
    )


def oldest(rows: Sequence[Row]) -> tuple[tuple[Seq, ...], SchedulePruned] | None:
    """What may go of a log: places, and the record that stands for them. None while there is not much."""
    if len(rows) <= KEPT + PRUNED_AT_ONCE:
        return None
    goes = {row.seq for row in rows[1 : 1 + PRUNED_AT_ONCE]}
    until = max(goes)
    if before := _pruned(rows):
        goes.add(before[0].seq)
    then = fold_all([row for row in rows if row.seq <= until or row.seq in goes])
    return tuple(sorted(goes)), SchedulePruned(
        until=until,
        handled_until=then.handled_until,
        runs=then.runs,
        skipped=then.skipped,
        missed=then.missed,
        paused=then.paused,
        asked=then.asked,
        last_run=then.last_run,
        last_run_at=then.last_run_at,
    )


def upcoming(state: ScheduleState, count: int, *, now: int) -> tuple[int, ...]:
    """The next moments at which it is due."""
    schedule = state.known
    if not state.active or state.paused:
        return ()
    if schedule.max_runs:
        count = min(count, schedule.max_runs - state.runs)
    after = max(state.handled_until, now)
    if not schedule.cron:
        return () if schedule.at is None or state.handled_until >= schedule.at else (schedule.at,)
    return tuple(islice(due_after(schedule.cron, schedule.timezone, after), max(0, count)))


def next_due(state: ScheduleState) -> int | None:
    """The next moment to look at it: the first one that is not handled."""
    schedule = state.known
    if not state.active or state.paused:
        return None
    if not schedule.cron:
        return schedule.at if schedule.at is not None and state.handled_until < schedule.at else None
    return next(due_after(schedule.cron, schedule.timezone, state.handled_until), None)


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be done now: runs to make, and the last moment that is left out, with how many before it."""

    fire: tuple[int, ...] = ()
    late: int | None = None
    missed: int = 0


def due(state: ScheduleState, *, now: int) -> Due:
    """What a schedule owes at a moment, by its policy about what was missed.

    `none`: only what is due just now. `one`: one run for all that was missed. `all`: each, up to the cap, the newest.
    """
    moments, count = _unhandled(state, now)
    if not moments:
        return Due()
    latest, schedule = moments[-1], state.known
    if schedule.catch_up == "all":
        fire = moments
    elif schedule.catch_up == "one" or now - latest <= LATE_MS:
        fire = (latest,)
    else:
        return Due(late=latest, missed=count)
    if schedule.max_runs:
        fire = fire[: schedule.max_runs - state.runs]
    return Due(fire=fire, missed=count - len(fire))


def _unhandled(state: ScheduleState, now: int) -> tuple[tuple[int, ...], int]:
    """The newest moments that are due and not handled, as many as could be made up for, and how many there are."""
    first = next_due(state)
    if first is None or first > now:
        return (), 0
    schedule = state.known
    if not schedule.cron:
        return (first,), 1
    newest: deque[int] = deque(maxlen=max(1, schedule.max_catch_up))
    count = 0
    for moment in due_after(schedule.cron, schedule.timezone, state.handled_until):
        if moment > now or count >= _MAX_MISSED:
            break
        newest.append(moment)
        count += 1
    return tuple(newest), count


def is_done(state: ScheduleState) -> bool:
    """Whether it has nothing left to do, ever: it was for once, or has made its runs."""
    schedule = state.known
    if state.asked or state.paused:
        return False
    if schedule.max_runs and state.runs >= schedule.max_runs:
        return True
    return next_due(state) is None


# --- what tools may ask for


@dataclass(frozen=True, slots=True)
class SessionSchedule:
    """A schedule as a tool sees it. Moments are aware datetimes."""

    id: str
    session_id: SessionId
    description: str
    cron_expression: str | None
    scheduled_at: datetime | None
    timezone: str
    enabled: bool
    schedule_type: Literal["recurring", "oneshot"]
    next_trigger_at: datetime | None
    last_triggered_at: datetime | None
    trigger_count: int
    created_at: datetime
    updated_at: datetime


class SessionScheduleStore(Protocol):
    """The schedules of a session, for its tools."""

    async def create_schedule(
        self,
        session_id: SessionId,
        description: str,
        cron_expression: str | None = None,
        scheduled_at: datetime | None = None,
        timezone: str = "UTC",
    ) -> SessionSchedule:
        """Say the description to the session, again and again or once; durable when this returns.

        Raises:
            ToolError: what is wrong with it, or that the session has as many as it may.
        """
        ...

    async def cancel_schedule(self, session_id: SessionId, schedule_id: str) -> SessionSchedule:
        """Disable a schedule of this session, and tell what it was. Again, it changes nothing.

        Raises:
            ToolError: the session has no such schedule.
        """
        ...

    async def list_schedules(self, session_id: SessionId) -> tuple[SessionSchedule, ...]:
        """Those of this session, the newest first."""
        ...

    async def count_active_schedules(self, session_id: SessionId) -> int:
        """How many of them are enabled."""
        ...


def check_schedule(schedule: Schedule, *, now: int) -> None:
    """Refuse what makes no sense, before anything is written.

    Raises:
        Error: `schedule_invalid`, `schedule_zone_unknown`.
    """
    from perdure.services.cron import check_cron, zone_of

    if bool(schedule.cron.strip()) == (schedule.at is not None):
        raise _invalid("a schedule is either recurring (cron=) or for once (at=)", hint="give exactly one of them")
    zone_of(schedule.timezone)
    if schedule.at is not None and schedule.at <= now:
        raise _invalid("the moment of the schedule has passed", hint="name a moment that is yet to come")
    if schedule.cron:
        check_cron(schedule.cron, schedule.timezone, now)
    if schedule.overlap not in ("skip", "queue", "allow") or schedule.catch_up not in ("none", "one", "all"):
        raise _invalid(
            f"overlap={schedule.overlap!r} and catch_up={schedule.catch_up!r} cannot work",
            hint="overlap is skip, queue or allow; catch_up is none, one or all",
        )
    if schedule.max_runs < 0 or not 1 <= schedule.max_catch_up <= MAX_CATCH_UP:
        raise _invalid(
            f"max_runs={schedule.max_runs} and max_catch_up={schedule.max_catch_up} cannot work",
            because=f"runs are counted from 1, and at most {MAX_CATCH_UP} are made up for",
        )


def _invalid(what: str, *, because: str = "", hint: str = "") -> Error:
    return Error(Code.SCHEDULE_INVALID, what, because=because, hint=hint)
