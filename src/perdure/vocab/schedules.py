"""Schedules as values: when, what, and what is recorded of it."""

from __future__ import annotations

from typing import Literal, TypeAlias

from perdure.codec import Json
from perdure.ids import InputId, Seq, TurnId
from perdure.vocab.registrations import EventType
from perdure.vocab.wire import Value

Overlap = Literal["skip", "queue", "allow"]
"""What to do when it is due and its last run is not over."""
CatchUp = Literal["none", "one", "all"]
"""What to do about runs that were due while nobody could look."""
ScheduleChange = Literal["paused", "resumed", "run", "ended"]


class SayToSession(Value, frozen=True, tag="say_to_session"):
    """Each run says this to a session; with `agent`, it opens the session if there is none."""

    session: str
    text: str
    agent: str = ""


class StartsProcess(Value, frozen=True, tag="start_process"):
    """Each run starts a process of this definition with this input."""

    definition: str
    input: Json = None
    event_types: tuple[EventType, ...] = ()


class EmitsOccurrence(Value, frozen=True, tag="emit_occurrence"):
    """Each run says that something happened at a trigger source."""

    source_type: str
    payload: Json = None
    source: str = ""


Target: TypeAlias = SayToSession | StartsProcess | EmitsOccurrence
"""What a run does."""


class Schedule(Value, frozen=True):
    """What somebody wants done, and when: by `cron` in a time zone, or once `at` a moment (ms since 1970).

    `owner` is the session it belongs to: it counts there, and ends with it. `max_runs` 0 is without end.
    """

    target: Target
    cron: str = ""
    at: int | None = None
    timezone: str = "UTC"
    description: str = ""
    owner: str = ""
    overlap: Overlap = "skip"
    catch_up: CatchUp = "one"
    max_catch_up: int = 10
    max_runs: int = 0


class ScheduleCreated(Value, frozen=True, tag="schedule_created"):
    """The first record of a schedule."""

    schedule: Schedule
    by: str = ""


class ScheduleFired(Value, frozen=True, tag="schedule_fired"):
    """A run: what was due at `due_at`, or what somebody asked for (`request`). What it says or starts is sent with it.

    `missed` are moments before it that nobody could look at and that are not made up for.
    """

    due_at: int
    turn: TurnId = TurnId("")
    input: InputId = InputId("")
    request: str = ""
    missed: int = 0
    process: str = ""
    occurrence: str = ""


class ScheduleSkipped(Value, frozen=True, tag="schedule_skipped"):
    """A run that was due and is left out: the one before is not over, or it came too late."""

    due_at: int
    reason: Literal["overlap", "late"]
    missed: int = 0
    request: str = ""


class ScheduleChanged(Value, frozen=True, tag="schedule_changed"):
    """Somebody paused or resumed it, asked for a run now, or it ended. Admitted."""

    change: ScheduleChange
    by: str = ""
    reason: str = ""
    request: str = ""


class SchedulePruned(Value, frozen=True, tag="schedule_pruned"):
    """What the records said that are gone, all in all: those up to `until`, but for the first. The newest counts."""

    until: Seq
    handled_until: int
    runs: int = 0
    skipped: int = 0
    missed: int = 0
    paused: bool = False
    asked: tuple[str, ...] = ()
    last_run: ScheduleFired | None = None
    last_run_at: int = 0
