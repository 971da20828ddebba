"""Schedules as values, and their records."""

from __future__ import annotations

from typing import Literal, TypeAlias

from perdure.codec import Json
from perdure.ids import InputId, Seq, TurnId
from perdure.vocab.registrations import EventType
from perdure.vocab.wire import Value

Overlap = Literal["skip", "queue", "allow"]
"""Policy for a due run while the last one has not ended."""
CatchUp = Literal["none", "one", "all"]
"""Policy for runs that were due while no worker was active."""
ScheduleChange = Literal["paused", "resumed", "run", "ended"]


class SendInput(Value, frozen=True, tag="send_input"):
    """Each run sends this text to a session. With `agent`, it creates a missing session.

    `by_session`: a tool of the session wrote the text, so it reaches the model without the authority of a user.
    """

    session: str
    text: str
    agent: str = ""
    by_session: bool = False


class StartsProcess(Value, frozen=True, tag="start_process"):
    """Each run starts a process of this definition with this input."""

    definition: str
    input: Json = None
    event_types: tuple[EventType, ...] = ()


class EmitsOccurrence(Value, frozen=True, tag="emit_occurrence"):
    """Each run emits an occurrence at a trigger source."""

    source_type: str
    payload: Json = None
    source: str = ""


Target: TypeAlias = SendInput | StartsProcess | EmitsOccurrence
"""The action of a run."""


class Schedule(Value, frozen=True):
    """A target and its times: `cron` in a time zone, or once `at` a time (ms since 1970).

    `owner` is the session the schedule belongs to: it counts against that session's limit and ends with it. `max_runs`
    0 means no limit.
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
    """A run: due at `due_at`, or requested (`request`). Its input, process or occurrence is sent in the same append.

    `missed` counts earlier due times that no worker handled and that are not made up for.
    """

    due_at: int
    turn: TurnId = TurnId("")
    input: InputId = InputId("")
    request: str = ""
    missed: int = 0
    process: str = ""
    occurrence: str = ""


class ScheduleSkipped(Value, frozen=True, tag="schedule_skipped"):
    """A due run was skipped: the previous run has not ended, or it was too late."""

    due_at: int
    reason: Literal["overlap", "late"]
    missed: int = 0
    request: str = ""


class ScheduleChanged(Value, frozen=True, tag="schedule_changed"):
    """The schedule was paused, resumed, run on request, or ended. Admitted."""

    change: ScheduleChange
    by: str = ""
    reason: str = ""
    request: str = ""


class SchedulePruned(Value, frozen=True, tag="schedule_pruned"):
    """Totals of the pruned records: all up to `until` except the first. The newest such record applies."""

    until: Seq
    handled_until: int
    runs: int = 0
    skipped: int = 0
    missed: int = 0
    paused: bool = False
    asked: tuple[str, ...] = ()
    last_run: ScheduleFired | None = None
    last_run_at: int = 0
