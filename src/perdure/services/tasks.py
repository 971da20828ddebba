"""Tasks of a session: work beside its turns, in one form for all kinds.

Law: every registry changes tasks only by `apply_task_update`. An ended task keeps its outcome.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec
from msgspec.structs import replace

from perdure.codec import Json, brief, digest
from perdure.ids import SessionId

TaskState = Literal["queued", "running", "awaiting_input", "succeeded", "failed", "canceled"]
WakePolicy = Literal["silent", "on_terminal", "on_activity"]
"""When a task wakes its session: never, when it ends, or on every message."""
Direction = Literal["inbound", "outbound"]
"""From the session to the task, or from the task to the session."""

TERMINAL: frozenset[TaskState] = frozenset({"succeeded", "failed", "canceled"})
KIND_BACKGROUND_TOOL = "background_tool"
KIND_MONITOR = "monitor"
KIND_SUBAGENT = "subagent"
KIND_EXTERNAL_AGENT = "external_agent"
ORPHANED = "orphaned"
"""Error kind of a task whose worker is dead and that no worker may continue."""


def monitor_task_id(schedule: str) -> str:
    """Return the id of the task that stands for a monitor's schedule."""
    return f"task_{brief(digest(('monitor', schedule)))}"


class TaskError(msgspec.Struct, frozen=True, omit_defaults=True):
    """The reason why a task failed."""

    kind: str
    message: str


class TaskProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """The progress of a task."""

    current: float | None = None
    total: float | None = None
    unit: str | None = None
    label: str | None = None


class TaskLinks(msgspec.Struct, frozen=True, omit_defaults=True):
    """Related objects of a task."""

    child_session_id: str | None = None
    remote_task_id: str | None = None
    resource_ids: tuple[str, ...] = ()

    def merged(self, other: TaskLinks) -> TaskLinks:
        """Merge two sets of links. The other's ids replace, resources accumulate."""
        return TaskLinks(
            child_session_id=other.child_session_id or self.child_session_id,
            remote_task_id=other.remote_task_id or self.remote_task_id,
            resource_ids=tuple(dict.fromkeys((*self.resource_ids, *other.resource_ids))),
        )


class SessionTask(msgspec.Struct, frozen=True):
    """A task. Times are milliseconds since 1970. `attempt` counts from 1 and fences messages of older attempts."""

    id: str
    session_id: SessionId
    kind: str
    display_name: str
    spec: Json
    state: TaskState
    created_at: int
    updated_at: int
    state_detail: str | None = None
    progress: TaskProgress | None = None
    input_request: Json = None
    cancel_requested_at: int | None = None
    summary: str | None = None
    result_path: str | None = None
    artifacts: tuple[str, ...] = ()
    error: TaskError | None = None
    attempt: int = 1
    worker_id: str | None = None
    heartbeat_at: int | None = None
    links: TaskLinks = TaskLinks()
    wake_policy: WakePolicy = "silent"
    started_at: int | None = None
    finished_at: int | None = None

    @property
    def is_over(self) -> bool:
        """True if the task has ended."""
        return self.state in TERMINAL


class CreateSessionTask(msgspec.Struct, frozen=True):
    """A task to create. With an existing `id`, the existing task is returned."""

    session_id: SessionId
    kind: str
    display_name: str
    spec: Json = None
    id: str | None = None
    state: TaskState = "queued"
    links: TaskLinks = TaskLinks()
    wake_policy: WakePolicy = "silent"


class SessionTaskUpdate(msgspec.Struct, frozen=True, omit_defaults=True):
    """Changes to a task; None keeps a field. With `expected_attempt`, they apply to that attempt only."""

    state: TaskState | None = None
    state_detail: str | None = None
    progress: TaskProgress | None = None
    input_request: Json = None
    summary: str | None = None
    result_path: str | None = None
    artifacts: tuple[str, ...] | None = None
    error: TaskError | None = None
    worker_id: str | None = None
    heartbeat_at: int | None = None
    links: TaskLinks | None = None
    expected_attempt: int | None = None
    increment_attempt: bool = False


class SessionTaskFilter(msgspec.Struct, frozen=True):
    """A filter for tasks, by kind and state."""

    kind: str | None = None
    state: TaskState | None = None

    def takes(self, task: SessionTask) -> bool:
        """Return True if the task matches."""
        return self.kind in (None, task.kind) and self.state in (None, task.state)


class NewTaskMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A new message to or from a task. `content` is a list of text and data parts."""

    direction: Direction
    content: Json
    in_reply_to: str | None = None
    expected_attempt: int | None = None


class TaskMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message to or from a task."""

    id: str
    task_id: str
    direction: Direction
    content: Json
    created_at: int
    in_reply_to: str | None = None


def new_session_task(new: CreateSessionTask, id: str, now: int) -> SessionTask:
    """Return a new task in its initial state."""
    return SessionTask(
        id=id,
        session_id=new.session_id,
        kind=new.kind,
        display_name=new.display_name,
        spec=new.spec,
        state=new.state,
        created_at=now,
        updated_at=now,
        links=new.links,
        wake_policy=new.wake_policy,
        started_at=None if new.state == "queued" else now,
    )


def apply_task_update(task: SessionTask, update: SessionTaskUpdate, now: int) -> SessionTask:
    """Return the updated task. An update of another attempt, or with a different final state, changes nothing."""
    if update.expected_attempt is not None and update.expected_attempt != task.attempt:
        return task
    if task.is_over and update.state not in (None, task.state):
        return task
    wanted = "awaiting_input" if update.input_request is not None and not task.is_over else update.state
    state = wanted or task.state
    asked = update.input_request if update.input_request is not None else task.input_request
    return replace(
        task,
        state=state,
        state_detail=_or(update.state_detail, task.state_detail),
        progress=_or(update.progress, task.progress),
        input_request=asked if state == "awaiting_input" else None,
        summary=_or(update.summary, task.summary),
        result_path=_or(update.result_path, task.result_path),
        artifacts=task.artifacts if update.artifacts is None else update.artifacts,
        error=_or(update.error, task.error),
        worker_id=_or(update.worker_id, task.worker_id),
        heartbeat_at=_or(update.heartbeat_at, task.heartbeat_at),
        links=task.links if update.links is None else task.links.merged(update.links),
        attempt=task.attempt + 1 if update.increment_attempt else task.attempt,
        started_at=now if task.started_at is None and state != "queued" else task.started_at,
        finished_at=now if task.finished_at is None and state in TERMINAL else task.finished_at,
        updated_at=now,
    )


def answered(task: SessionTask, message: NewTaskMessage, now: int) -> SessionTask:
    """Return the task after a message. An answer to its input request resumes it."""
    if message.direction == "inbound" and message.in_reply_to and task.state == "awaiting_input":
        return apply_task_update(task, SessionTaskUpdate(state="running"), now)
    return replace(task, updated_at=now)


def _or(new: Json, old: Json) -> Json:
    return old if new is None else new


class SessionTaskRegistry(Protocol):
    """Registry of session tasks."""

    async def create(self, new: CreateSessionTask) -> SessionTask:
        """Create a task, or return the existing one with this id.

        Raises:
            Error: `task_limit_exceeded`, `session_unknown`.
        """
        ...

    async def update(self, session_id: SessionId, task_id: str, update: SessionTaskUpdate) -> SessionTask | None:
        """Update a task by `apply_task_update`. Return None for an unknown task."""
        ...

    async def get(self, session_id: SessionId, task_id: str) -> SessionTask | None:
        """Return a task of this session, or None."""
        ...

    async def list(self, session_id: SessionId, filter: SessionTaskFilter | None = None) -> tuple[SessionTask, ...]:
        """Return the tasks of a session, in order of creation."""
        ...

    async def cancel(self, session_id: SessionId, task_id: str) -> SessionTask | None:
        """Request the end of a task. The first request counts."""
        ...

    async def send_message(
        self, session_id: SessionId, task_id: str, message: NewTaskMessage, *, id: str | None = None
    ) -> TaskMessage:
        """Record a message to or from a task. The same id is the same message.

        Raises:
            Error: `task_unknown`.
        """
        ...

    async def messages(
        self, session_id: SessionId, task_id: str, limit: int | None = None, after_id: str | None = None
    ) -> tuple[TaskMessage, ...]:
        """Return the messages of a task, in order."""
        ...
