"""The tasks of sessions as a view of processes: a task is a process stream in the shape of `SessionTask`.

A background run is executed here. Any other task (a monitor, external work) is a process that only stores its events.
Attempts, heartbeats and re-attaching are fences, leases and ordinary claims.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import msgspec
from msgspec.structs import replace

from perdure.codec import Json, check_readable, decode, encode
from perdure.errors import Code, Error
from perdure.ids import SessionId, process_stream, session_stream
from perdure.inbox.admit import Delivery
from perdure.processes.events import CANCEL_REQUESTED, COMPLETED
from perdure.processes.registration import EXTERNAL, environment
from perdure.runtime.clock import short_id
from perdure.runtime.processes.handle import owners_end
from perdure.runtime.processes.starting import register
from perdure.runtime.tasks.background import TaskNews, definition_of, task_message
from perdure.runtime.tasks.index import TaskIndex, TasksChanged, enter, read_index
from perdure.runtime.tasks.retention import task_in
from perdure.services.background import MAX_ACTIVE_PER_SESSION
from perdure.services.secrets import speaker
from perdure.services.tasks import (
    KIND_BACKGROUND_TOOL,
    KIND_MONITOR,
    ORPHANED,
    TERMINAL,
    CreateSessionTask,
    NewTaskMessage,
    SessionTask,
    SessionTaskFilter,
    SessionTaskRegistry,
    SessionTaskUpdate,
    TaskError,
    TaskMessage,
    answered,
    apply_task_update,
    monitor_task_id,
    new_session_task,
)
from perdure.tools.door import AdmittedRun, RunAdmission
from perdure.vocab.blobs import Blob
from perdure.vocab.log_keys import PROCESS_END
from perdure.vocab.processes import SessionScope
from perdure.vocab.records import ProcessEvent, ProcessFirstStarted, ProcessRegistered, Row
from perdure.vocab.registrations import (
    EngineInput,
    EventType,
    ExternalInput,
    ProcessFailure,
    ProcessOutput,
    ProcessSucceeded,
    ProcessWasAbandoned,
    ProcessWasCancelled,
    Provenance,
    Registration,
)

if TYPE_CHECKING:
    from perdure.runtime.core import RuntimeCore

UPDATED = "task.updated"
MESSAGE = "task.message"
ENTERED_FOR_MS = 60_000
"""How long a task counts after its entry although it has not begun: its creator is about to register it."""

_EVENTS = (EventType(name=UPDATED), EventType(name=MESSAGE))
_ENDINGS: dict[str, Literal["completed", "failed", "cancelled"]] = {
    "succeeded": "completed",
    "failed": "failed",
    "canceled": "cancelled",
}


@dataclass(frozen=True, slots=True)
class StoredTasks(SessionTaskRegistry):
    """The tasks of the sessions of a runtime's tenant."""

    _runtime: RuntimeCore

    # --- making

    async def create(self, new: CreateSessionTask) -> SessionTask:
        """Create a task of work done elsewhere, or return the stored one of that id.

        Raises:
            Error: `invalid_argument` for a background run, which only a call of `spawn_background` starts.
        """
        if new.kind == KIND_BACKGROUND_TOOL:
            raise Error(
                Code.INVALID_ARGUMENT,
                f"a task of kind {KIND_BACKGROUND_TOOL!r} cannot be created directly; nothing was written",
                because="the run of a tool needs the checks and the approval of a call",
                hint="have the model call spawn_background, or create a task of another kind",
            )
        id = new.id or short_id("task", self._runtime.clock.wall_ms())
        return await self._made(new, id, _external(new, id))

    async def start(self, new: CreateSessionTask, run: AdmittedRun) -> SessionTask:
        """Create the task of a background run and start the run, or return the stored task of that id."""
        rt = self._runtime
        id = new.id or short_id("task", rt.clock.wall_ms())
        with rt.background.coming(process_stream(rt.tenant, id)) if rt.wants_worker else nullcontext():
            return await self._made(new, id, *_run(new, id, run.admission))

    async def _made(self, new: CreateSessionTask, id: str, asked: Registration, env: Blob | None = None) -> SessionTask:
        rt = self._runtime
        check_readable(new, what="the task")
        speaker().check_names(new.kind)
        known = await self.get(new.session_id, id)
        if known is not None:
            return known
        if await rt.store.stream(session_stream(rt.tenant, new.session_id)) is None:
            raise Error(Code.SESSION_UNKNOWN, f"unknown session {new.session_id!r}")
        await self._enter(new, id)
        await register(rt, asked, env=env)
        made = await self.get(new.session_id, id)
        assert made is not None
        return made

    async def _enter(self, new: CreateSessionTask, id: str) -> None:
        rt, now = self._runtime, self._runtime.clock.wall_ms()

        async def judge(index: TaskIndex) -> tuple[str, ...]:
            if new.kind != KIND_BACKGROUND_TOOL:
                return ()
            open_runs = [
                task for task, entered in index.tasks.items()
                if entered.kind == KIND_BACKGROUND_TOOL and not entered.ended
            ]  # fmt: skip
            over = [task for task in open_runs if await self._is_over(task, index.tasks[task].at, now)]
            if len(open_runs) - len(over) >= MAX_ACTIVE_PER_SESSION:
                raise Error(
                    Code.TASK_LIMIT_EXCEEDED,
                    f"Maximum {MAX_ACTIVE_PER_SESSION} active background runs per session. "
                    "Wait for an existing run to finish before starting another.",
                )
            return tuple(over)

        await enter(rt.store, rt.tenant, new.session_id, TasksChanged(id, new.kind), now=now, judge=judge)

    async def _is_over(self, task: str, entered_at: int, now: int) -> bool:
        stream = process_stream(self._runtime.tenant, task)
        if await self._runtime.store.find(stream, PROCESS_END) is not None:
            return True
        begun = await self._runtime.store.stream(stream) is not None
        return not begun and now - entered_at > ENTERED_FOR_MS

    # --- looking

    async def get(self, session_id: SessionId, task_id: str) -> SessionTask | None:
        """Return a task of this session."""
        rt = self._runtime
        stream = process_stream(rt.tenant, task_id)
        task = task_of(await rt.store.read(stream))
        if task is None or task.session_id != session_id:
            return None
        if not task.is_over and task.kind == KIND_BACKGROUND_TOOL:
            info = await rt.store.stream(stream)
            if info is not None and info.owner_alive:
                return replace(task, heartbeat_at=rt.clock.wall_ms())
        return task

    async def list(self, session_id: SessionId, filter: SessionTaskFilter | None = None) -> tuple[SessionTask, ...]:
        """Return the tasks of a session, oldest first."""
        index = await read_index(self._runtime.store, self._runtime.tenant, session_id)
        found = [await self.get(session_id, task) for task in index.tasks]
        return tuple(task for task in found if task is not None and (filter is None or filter.takes(task)))

    # --- changing

    async def update(self, session_id: SessionId, task_id: str, update: SessionTaskUpdate) -> SessionTask | None:
        """Update a task, unless nothing would change. Messages to its session, and the task's end if the update is one,
        commit in the same append.

        Raises:
            Error: `invalid_argument` for the end of a background run, which only the run decides.
        """
        check_readable(update, what="the task update")
        while True:
            task = await self.get(session_id, task_id)
            if task is None:
                return None
            if task.kind == KIND_BACKGROUND_TOOL and update.state in TERMINAL and not task.is_over:
                raise _not_over(task)
            changed = apply_task_update(task, update, self._runtime.clock.wall_ms())
            if changed is task:
                return task
            try:
                await self._write(task, changed, update)
            except Error as problem:
                if problem.code is not Code.PROCESS_ALREADY_TERMINAL or task.is_over:
                    raise
                continue  # the task ended just now: read it again
            return await self.get(session_id, task_id)

    async def _write(self, task: SessionTask, changed: SessionTask, update: SessionTaskUpdate) -> None:
        now, handle = self._runtime.clock.wall_ms(), self._runtime.get_process(task.id)
        replay, end = short_id("upd", now), None
        if changed.is_over and not task.is_over and task.kind != KIND_BACKGROUND_TOOL:
            payload: Json = {"code": changed.state, "message": changed.summary or ""}
            end = await owners_end(handle, payload, event=COMPLETED[_ENDINGS[changed.state]])
        await handle.append_event(
            UPDATED,
            msgspec.to_builtins(update),
            replay=replay,
            after_end=task.is_over,
            end=end,
            outbox=() if task.is_over else self._news(task, changed, replay, now),  # its end was sent before
        )

    async def cancel(self, session_id: SessionId, task_id: str) -> SessionTask | None:
        """Request the end of a task. A task without executor ends at once, and a monitor with its schedule."""
        task = await self.get(session_id, task_id)
        if task is None or task.is_over:
            return task
        if task.kind == KIND_MONITOR:
            await self._end_schedule(task)
        await self._runtime.get_process(task_id).cancel("requested by its session", via="task")
        if task.kind != KIND_BACKGROUND_TOOL:
            return await self.update(session_id, task_id, SessionTaskUpdate(state="canceled"))
        return await self.get(session_id, task_id)

    async def _end_schedule(self, monitor: SessionTask) -> None:
        given: Json = monitor.spec
        spec = cast("dict[str, Json]", given if isinstance(given, dict) else {})
        schedule = str(spec.get("schedule_id") or "")
        if schedule and monitor.id == monitor_task_id(schedule):  # another task may name any schedule
            await self._runtime.schedules.get(schedule).delete(by=f"task {monitor.id}")

    # --- talking

    async def send_message(
        self, session_id: SessionId, task_id: str, message: NewTaskMessage, *, id: str | None = None
    ) -> TaskMessage:
        """Append a message to or from a task. The same id is the same message."""
        rt, now = self._runtime, self._runtime.clock.wall_ms()
        task = await self.get(session_id, task_id)
        if task is None:
            raise Error(Code.TASK_UNKNOWN, f"unknown task {task_id!r} in this session")
        if message.expected_attempt not in (None, task.attempt):
            raise Error(Code.TASK_UNKNOWN, f"the task {task_id!r} is now in attempt {task.attempt}")
        id = id or short_id("msg", now)
        told = message.direction == "outbound" and task.wake_policy == "on_activity"
        outbox = (self._said(task, id, task.state, _words(message.content), now),) if told else ()
        await rt.get_process(task_id).append_event(
            MESSAGE, {"id": id, **msgspec.to_builtins(message)}, replay=id, outbox=outbox
        )
        return TaskMessage(id, task_id, message.direction, message.content, now, message.in_reply_to)

    async def messages(
        self, session_id: SessionId, task_id: str, limit: int | None = None, after_id: str | None = None
    ) -> tuple[TaskMessage, ...]:
        """Return the messages in order; with `limit`, the first ones."""
        if await self.get(session_id, task_id) is None:
            return ()
        rows = await self._runtime.store.read(process_stream(self._runtime.tenant, task_id))
        said = [one for row in rows if (one := _message(task_id, row)) is not None]
        known = [one.id for one in said]
        first = known.index(after_id) + 1 if after_id in known else 0
        return tuple(said[first : None if limit is None else first + limit])

    # --- telling the session

    def _news(self, before: SessionTask, after: SessionTask, what: str, now: int) -> tuple[Delivery, ...]:
        """Return the message that the wake policy requires for a change, once per end."""
        if after.is_over and after.wake_policy != "silent":
            return (self._said(after, after.state, after.state, after.summary or "", now),)
        moved = (before.state, before.state_detail) != (after.state, after.state_detail)
        if after.wake_policy == "on_activity" and moved:
            return (self._said(after, what, after.state, after.state_detail or "", now),)
        return ()

    def _said(self, task: SessionTask, what: str, state: str, text: str, now: int) -> Delivery:
        tenant = self._runtime.tenant
        news = TaskNews(task.display_name, state, text)
        return task_message(tenant, task.session_id, task.id, what, news, now)


def _not_over(run: SessionTask) -> Error:
    return Error(
        Code.INVALID_ARGUMENT,
        f"the task {run.id!r} cannot be ended by an update; nothing was written",
        because="the run goes on, and decides how the task ends",
        hint="await ctx.tasks.cancel(session_id, task_id)",
    )


# --- a task from its log ----------------------------------------------------------------------------------------


def task_of(rows: Iterable[Row]) -> SessionTask | None:
    """Fold the log of a process into a task, or return None if the process is no task."""
    task: SessionTask | None = None
    for row in rows:
        match row.record:
            case ProcessRegistered(registration=registration):
                task = _begun(registration, row.at)
            case record if task is not None:
                task = _advanced(task, record, row.at)
            case _:
                return None
    return task


def _begun(registration: Registration, at: int) -> SessionTask | None:
    given = task_in(registration)
    if given is None:
        return None
    return new_session_task(decode(encode(given), CreateSessionTask), registration.process_id, at)


def _advanced(task: SessionTask, record: object, at: int) -> SessionTask:
    match record:
        case ProcessFirstStarted(worker=worker):
            return apply_task_update(task, SessionTaskUpdate(state="running", worker_id=worker), at)
        case ProcessEvent(event="task.updated", payload=payload):
            return apply_task_update(task, decode(encode(payload), SessionTaskUpdate), at)
        case ProcessEvent(event="task.message", payload=payload):
            return answered(task, _new_message(payload), at)
        case ProcessEvent(event=event) if event == CANCEL_REQUESTED:
            return replace(task, cancel_requested_at=task.cancel_requested_at or at, updated_at=at)
        case ProcessEvent(output=output) if output is not None:
            return apply_task_update(task, _ended(output), at)
        case _:
            return task


def _ended(output: ProcessOutput) -> SessionTaskUpdate:
    match output:
        case ProcessSucceeded(value=value):
            said = cast("dict[str, Json]", value) if isinstance(value, dict) else {}
            summary, path = said.get("summary"), said.get("result_path")
            artifacts = tuple(str(said[name]) for name in ("log_path", "result_path") if said.get(name))
            return SessionTaskUpdate(
                state="succeeded", summary=summary, result_path=path, artifacts=artifacts or None
            )  # fmt: skip
        case ProcessFailure(code=code, message=message, raw=raw):
            path = cast("dict[str, Json]", raw).get("result_path") if isinstance(raw, dict) else None
            kind = ORPHANED if code == ORPHANED else "error"
            return SessionTaskUpdate(
                state="failed", summary=message, result_path=path, error=TaskError(kind, message)
            )  # fmt: skip
        case ProcessWasCancelled():
            return SessionTaskUpdate(state="canceled", summary="Canceled by request.")
        case ProcessWasAbandoned(reason=reason):
            error = TaskError(ORPHANED, reason)
            return SessionTaskUpdate(state="failed", summary=reason, error=error)


def _new_message(payload: Json) -> NewTaskMessage:
    return decode(encode({key: value for key, value in payload.items() if key != "id"}), NewTaskMessage)


def _message(task_id: str, row: Row) -> TaskMessage | None:
    record = row.record
    if not isinstance(record, ProcessEvent) or record.event != MESSAGE:
        return None
    said = _new_message(record.payload)
    return TaskMessage(record.payload["id"], task_id, said.direction, said.content, row.at, said.in_reply_to)


def _words(content: Json) -> str:
    if isinstance(content, str):
        return content
    parts = cast("list[dict[str, Json]]", content if isinstance(content, list) else [])
    return "\n".join(str(part.get("text", part.get("data", ""))) for part in parts)


def _external(new: CreateSessionTask, id: str) -> Registration:
    """Return the process of a task whose work is done elsewhere."""
    return Registration(
        process_id=id,
        definition=EXTERNAL,
        input=ExternalInput(metadata={"task": msgspec.to_builtins(replace(new, id=id))}),
        recovery="externally_owned",
        event_types=_EVENTS,
        provenance=Provenance(originator=SessionScope(session_id=new.session_id)),
        kind=new.kind,
        label=new.display_name,
    )


def _run(new: CreateSessionTask, id: str, admission: RunAdmission) -> tuple[Registration, Blob]:
    """Return the process of a background run, with its admission."""
    env, blob = environment({}, {})
    payload = {"task": msgspec.to_builtins(replace(new, id=id)), "admission": msgspec.to_builtins(admission)}
    spec: Json = new.spec or {}
    run = Registration(
        process_id=id,
        definition=definition_of(admission.agent),
        input=EngineInput(kind=KIND_BACKGROUND_TOOL, payload=payload),
        recovery="rerunnable" if spec.get("reattachable") is True else "owner_bound",
        env=env,
        event_types=(*_EVENTS, *admission.event_types),
        provenance=Provenance(originator=SessionScope(session_id=new.session_id)),
        kind=new.kind,
        label=new.display_name,
    )
    return run, blob


__all__ = ["MESSAGE", "TERMINAL", "UPDATED", "StoredTasks", "task_of"]
