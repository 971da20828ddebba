"""Schedules: state as a fold of the log, due runs, and the operations for tools.

Laws: a due time is handled once, by a run or a skip, and both are recorded. Due times before the creation or the last
resumption are not due. A log without its pruned records folds to the same state.
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
from perdure.offload import LARGE_BYTES, offload
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
"""A run later than this after its due time counts as missed."""
MAX_CATCH_UP = 100
_MAX_MISSED = 100_000
_COUNTED_HERE_MS = 2 * 86_400_000
"""Longest time whose due times are counted on the event loop: at most 576, which takes a few milliseconds."""
KEPT = 400
"""The number of records kept per schedule. The whole log is read at every due time."""
PRUNED_AT_ONCE = 200

EndReason = Literal["cancelled", "done", "owner_gone", "target_gone"]


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """The state of a schedule."""

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
    """Requested runs that have not started."""
    answered: frozenset[str] = field(default_factory=frozenset[str])

    @property
    def known(self) -> Schedule:
        """The schedule's definition, from its first record."""
        assert self.schedule is not None
        return self.schedule

    @property
    def active(self) -> bool:
        """True if the schedule has not ended."""
        return self.schedule is not None and not self.ended


def fold(state: ScheduleState, row: Row) -> ScheduleState:
    """Fold one record."""
    if isinstance(row.record, SchedulePruned):  # the pruned records are folded already
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
    """Fold a whole log, or a pruned one. The summary of pruned records comes first, although it was written later."""
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
    """Return the positions of prunable records and the record that summarizes them. None if there are few."""
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
    """Return the next due times."""
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
    """Return the first due time that is not handled, or None."""
    schedule = state.known
    if not state.active or state.paused:
        return None
    if not schedule.cron:
        return schedule.at if schedule.at is not None and state.handled_until < schedule.at else None
    return next(due_after(schedule.cron, schedule.timezone, state.handled_until), None)


@dataclass(frozen=True, slots=True)
class Due:
    """The work due now: the runs to start, the last skipped due time, and the number missed before it."""

    fire: tuple[int, ...] = ()
    late: int | None = None
    missed: int = 0


def due(state: ScheduleState, *, now: int) -> Due:
    """Return the work of a schedule that is due at `now`, by its catch-up policy.

    `none`: only a current due time. `one`: one run for all missed ones. `all`: the newest missed ones, up to the cap.
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


async def due_now(state: ScheduleState, *, now: int) -> Due:
    """Return the work due at `now`, like `due`. Many due times are counted in a thread."""
    many = now - state.handled_until > _COUNTED_HERE_MS  # threat: T-TOOL-03
    return await offload(LARGE_BYTES + 1 if many else 0, due, state, now=now)


def _unhandled(state: ScheduleState, now: int) -> tuple[tuple[int, ...], int]:
    """Return the newest unhandled due times, up to the catch-up cap, and the number of all."""
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
    """Return True if no run can follow: a one-time schedule has run, or the run limit is reached."""
    schedule = state.known
    if state.asked or state.paused:
        return False
    if schedule.max_runs and state.runs >= schedule.max_runs:
        return True
    return next_due(state) is None


# --- operations for tools


@dataclass(frozen=True, slots=True)
class SessionSchedule:
    """A schedule as visible to a tool. Times are aware datetimes."""

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
        *,
        id: str | None = None,
    ) -> SessionSchedule:
        """Schedule the description as an input of the session, recurring or once; durable on return.

        With the id of an existing schedule of the session, that schedule is returned.

        Raises:
            ToolError: invalid schedule, or too many schedules.
        """
        ...

    async def cancel_schedule(self, session_id: SessionId, schedule_id: str) -> SessionSchedule:
        """Disable a schedule of this session and return it. A repeated call changes nothing.

        Raises:
            ToolError: unknown schedule.
        """
        ...

    async def list_schedules(self, session_id: SessionId) -> tuple[SessionSchedule, ...]:
        """Return the schedules of this session, newest first."""
        ...

    async def count_active_schedules(self, session_id: SessionId) -> int:
        """Return the number of enabled schedules."""
        ...


def check_schedule(schedule: Schedule, *, now: int) -> None:
    """Reject an invalid schedule, before anything is written.

    Raises:
        Error: `schedule_invalid`, `schedule_zone_unknown`.
    """
    from perdure.services.cron import check_cron, zone_of

    if bool(schedule.cron.strip()) == (schedule.at is not None):
        raise _invalid("a schedule needs either cron= (recurring) or at= (once)", hint="use exactly one of them")
    zone_of(schedule.timezone)
    if schedule.at is not None and schedule.at <= now:
        raise _invalid("at= is in the past", hint="use a later time")
    if schedule.cron:
        check_cron(schedule.cron, schedule.timezone, now)
    if schedule.overlap not in ("skip", "queue", "allow") or schedule.catch_up not in ("none", "one", "all"):
        raise _invalid(
            f"invalid overlap={schedule.overlap!r} or catch_up={schedule.catch_up!r}",
            hint="overlap: skip, queue or allow; catch_up: none, one or all",
        )
    if schedule.max_runs < 0 or not 1 <= schedule.max_catch_up <= MAX_CATCH_UP:
        raise _invalid(
            f"invalid max_runs={schedule.max_runs} or max_catch_up={schedule.max_catch_up}",
            because=f"max_runs must be >= 0, and max_catch_up 1 to {MAX_CATCH_UP}",
        )


def _invalid(what: str, *, because: str = "", hint: str = "") -> Error:
    return Error(Code.SCHEDULE_INVALID, what, because=because, hint=hint)
