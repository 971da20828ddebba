"""Ids for what a call writes to services, so that a repeated attempt changes nothing.

Law: an attempt that a crash repeats makes no second schedule, task, session or message. Equal writes of one attempt are
counted, so that a call can still make several.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime

import msgspec

from perdure.codec import Json, brief, digest
from perdure.ids import SessionId
from perdure.services.schedules import SessionSchedule, SessionScheduleStore
from perdure.services.tasks import (
    CreateSessionTask,
    NewTaskMessage,
    SessionTask,
    SessionTaskFilter,
    SessionTaskRegistry,
    SessionTaskUpdate,
    TaskMessage,
)


class CallWrites:
    """The ids of one attempt's writes. The same attempt elsewhere gives the same ids."""

    def __init__(self, call_key: str) -> None:
        self._call_key = call_key
        self._made: Counter[str] = Counter()

    def id(self, prefix: str, *content: Json) -> str | None:
        """Return the id of a write with this content, or None outside a call."""
        if not self._call_key:
            return None
        told = digest((prefix, self._call_key, content))
        self._made[told] += 1
        return f"{prefix}_{brief(digest((told, self._made[told])))}"


@dataclass(frozen=True, slots=True)
class CallSchedules:
    """`ctx.schedules`: schedules whose ids are derived from the call."""

    store: SessionScheduleStore
    writes: CallWrites

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

        The default id is derived from the call and everything but the time. A repeated attempt returns its schedule.
        """
        own = id or self.writes.id("sch", session_id, description, cron_expression, timezone)
        return await self.store.create_schedule(
            session_id, description, cron_expression, scheduled_at, timezone, id=own
        )

    async def cancel_schedule(self, session_id: SessionId, schedule_id: str) -> SessionSchedule:
        """Disable a schedule of this session and return it. A repeated call changes nothing."""
        return await self.store.cancel_schedule(session_id, schedule_id)

    async def list_schedules(self, session_id: SessionId) -> tuple[SessionSchedule, ...]:
        """Return the schedules of this session, newest first."""
        return await self.store.list_schedules(session_id)

    async def count_active_schedules(self, session_id: SessionId) -> int:
        """Return the number of enabled schedules."""
        return await self.store.count_active_schedules(session_id)


@dataclass(frozen=True, slots=True)
class CallTasks:
    """`ctx.tasks`: tasks and messages whose ids are derived from the call."""

    registry: SessionTaskRegistry
    writes: CallWrites

    async def create(self, new: CreateSessionTask) -> SessionTask:
        """Create a task, or return the existing one with this id. The default id is derived from the call."""
        if new.id is None:
            new = msgspec.structs.replace(new, id=self.writes.id("task", msgspec.to_builtins(new)))
        return await self.registry.create(new)

    async def update(self, session_id: SessionId, task_id: str, update: SessionTaskUpdate) -> SessionTask | None:
        """Update a task. Return None for an unknown task."""
        return await self.registry.update(session_id, task_id, update)

    async def get(self, session_id: SessionId, task_id: str) -> SessionTask | None:
        """Return a task of this session, or None."""
        return await self.registry.get(session_id, task_id)

    async def list(self, session_id: SessionId, filter: SessionTaskFilter | None = None) -> tuple[SessionTask, ...]:
        """Return the tasks of a session, in order of creation."""
        return await self.registry.list(session_id, filter)

    async def cancel(self, session_id: SessionId, task_id: str) -> SessionTask | None:
        """Request the end of a task. The first request counts."""
        return await self.registry.cancel(session_id, task_id)

    async def send_message(
        self, session_id: SessionId, task_id: str, message: NewTaskMessage, *, id: str | None = None
    ) -> TaskMessage:
        """Record a message to or from a task. The default id is derived from the call."""
        own = id or self.writes.id("msg", session_id, task_id, msgspec.to_builtins(message))
        return await self.registry.send_message(session_id, task_id, message, id=own)

    async def messages(
        self, session_id: SessionId, task_id: str, limit: int | None = None, after_id: str | None = None
    ) -> tuple[TaskMessage, ...]:
        """Return the messages of a task, in order."""
        return await self.registry.messages(session_id, task_id, limit, after_id)
