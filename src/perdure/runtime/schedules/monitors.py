"""Monitors: a schedule and the task that stands for it in its session.

Law: the task ends before the schedule does. A schedule whose task has ended makes no further run.
"""

from __future__ import annotations

from typing import Literal

from perdure.ids import SessionId
from perdure.services.tasks import KIND_MONITOR, SessionTaskRegistry, SessionTaskUpdate, monitor_task_id


async def end_monitor(
    tasks: SessionTaskRegistry, session: str, schedule: str, state: Literal["succeeded", "canceled"]
) -> None:
    """End the task of a schedule, if there is one. A task that has ended keeps its outcome."""
    if session:
        await tasks.update(SessionId(session), monitor_task_id(schedule), SessionTaskUpdate(state=state))


async def is_monitor_over(tasks: SessionTaskRegistry, session: str, schedule: str) -> bool:
    """Return whether the schedule has a task, and that has ended."""
    task = await tasks.get(SessionId(session), monitor_task_id(schedule)) if session else None
    return task is not None and task.kind == KIND_MONITOR and task.is_over
