"""Contexts, services and processes under the names of the seed documents. Names only, no behaviour."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import fields, replace
from typing import Any, Generic, TypeVar, cast

from perdure.codec import Json
from perdure.effects import keys
from perdure.runtime.internals import core_of
from perdure.runtime.processes import edges
from perdure.runtime.processes.admin import Listed, cancel_listed, list_processes, new_edge, release
from perdure.runtime.processes.context import ProcessContext
from perdure.runtime.processes.handle import ProcessHandle
from perdure.runtime.runtime import Runtime
from perdure.services.tasks import SessionTaskRegistry
from perdure.tools.body import Body
from perdure.tools.clients.completions import DirectCompletions
from perdure.tools.clients.dispatch import Dispatch
from perdure.tools.clients.process_events import ProcessEvents
from perdure.tools.clients.progress import ProgressSender, SandboxMessage
from perdure.tools.clients.sessions import SessionsClient
from perdure.tools.context import Cancellation, ToolContext, completions_of, dispatch_of, origin_of
from perdure.tools.durable import DurableOps, Duration, body_of, event_of_key, json_step
from perdure.tools.origin import CallOrigin
from perdure.tools.provider import payload_as
from perdure.tools.services import missing, required
from perdure.tools.steps import StepEffect
from perdure.vocab.effects import PreparedToolCall
from perdure.vocab.processes import ProcessListMode, SessionScope
from perdure.vocab.promises import EventKey
from perdure.vocab.tools import ToolDefinition

Deps = TypeVar("Deps")
T = TypeVar("T")
Context = TypeVar("Context", bound=DurableOps)

SAME = {
    "attempt_number": "attempt",
    "emit_process_event": "emit",
    "emit_progress": "progress",
    "emit_tool_output": "output",
    "external_event_key": "event_key",
    "org_id": "tenant",
    "replay_key": "readable_key",
    "schedule_store": "schedules",
    "tool_call_id": "call_id",
}
"""Seed name to our name, of a tool's context."""

SERVICES = frozenset(
    {
        "file_store",
        "message_retriever",
        "platform_store",
        "result_reader",
        "session_mutator",
        "session_store",
        "subagent_spawn_store",
        "tool_registry",
    }
)
"""Seed names of services. An absent service raises a `ToolError`."""

ABSENT = frozenset(
    {
        "agent_store",
        "budget_checker",
        "capability_registry",
        "connection_resolver",
        "egress_service",
        "image_store",
        "leased_resource_store",
        "payment_authority",
        "provider_credential_store",
        "session_resource_registry",
        "sqldb_store",
        "storage_store",
        "utility_llm_service",
    }
)
"""Seed names of services that no runtime has yet. Each raises the `ToolError` of an absent service."""

OPTIONAL = frozenset({"network_access", "visible_tool_names"})
"""Seed names of services that may be None."""

ORIGIN = frozenset(
    {
        "agent_frame_id",
        "async_process_id",
        "emit_child_process_started",
        "event_context",
        "event_emitter",
        "on_child_process",
        "own_process_id",
        "parent_call_id",
        "parent_invocation",
        "prepared_payload",
        "process_events_id",
        "runtime_process_id",
        "turn_context",
    }
)
"""Seed names of the call's origin."""

SAME_OF_PROCESS = {
    "append_process_event": "emit",
    "chronological_projection": "timeline",
    "external_event_key": "event_key",
    "named_phase": "phase",
    "protocol_extension": "extension",
    "sleep_process": "sleep",
    "start_child_process": "start",
}
"""Seed name to our name, of a process's context."""


SAME_OF_TASKS = {"list_messages": "messages", "record_message": "send_message", "request_cancel": "cancel"}
"""Seed name to our name, of the tasks of sessions."""


class _SeedDurable(Generic[Context]):
    """The durable operations that contexts of tools and processes share."""

    _ctx: Context

    def durable_effects(self) -> Body:
        """Return the body of this call, which records its steps."""
        return body_of(self._ctx)

    async def run_json(
        self, step_id: str, input: Json, fn: Callable[[Json], Json | Awaitable[Json]], *, effect: StepEffect = "once"
    ) -> Json:
        """Run the step `fn(input)` with JSON input and JSON result."""
        return await json_step(self._ctx, step_id, input, fn, effect=effect)

    async def await_event_json(self, key: EventKey, *, timeout: Duration | None = None) -> Json:
        """Wait for the event of this key."""
        return await event_of_key(self._ctx, key, timeout)


class SeedTasks:
    """`ctx.tasks` under the names of the seed documents."""

    def __init__(self, tasks: SessionTaskRegistry) -> None:
        self._tasks = tasks

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the type of any member
        return getattr(self._tasks, SAME_OF_TASKS.get(name, name))


class SeedToolContext(_SeedDurable[ToolContext[Deps]], Generic[Deps]):
    """A `ToolContext` under the names of the seed documents. All other names are those of the context itself."""

    def __init__(self, ctx: ToolContext[Deps]) -> None:
        self._ctx = ctx

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the type of any member
        if name == "_ctx":  # a copy in the making
            raise AttributeError(name)
        if name in SERVICES:
            return required(getattr(self._ctx.services, name), name)
        if name in ABSENT:
            raise missing(name)
        if name in OPTIONAL:
            return getattr(self._ctx.services, name)
        if name in ORIGIN:
            return getattr(origin_of(self._ctx), name)
        return getattr(self._ctx, SAME.get(name, name))

    def __repr__(self) -> str:
        return repr(self._ctx)

    def decode_prepared_payload(self, type: type[T]) -> T:
        """Return the payload of preparation, as `type`."""
        return payload_as(origin_of(self._ctx).prepared_payload, type)

    @property
    def session_task_registry(self) -> SeedTasks:
        """Task client: the background work of sessions."""
        return SeedTasks(self._ctx.tasks)

    def visible_tools(self) -> tuple[ToolDefinition, ...]:
        """Return the agent's tools that the model can see."""
        return self._ctx.tools.visible()

    @property
    def sessions(self) -> SessionsClient:
        """Session client: this session and others."""
        return required(origin_of(self._ctx).clients.sessions, "sessions")

    @property
    def dispatch(self) -> Dispatch:
        """Dispatch client: the other tools of this turn."""
        return dispatch_of(self._ctx)

    @property
    def direct_completions(self) -> DirectCompletions:
        """Completion client: the session's model, outside the conversation."""
        return completions_of(self._ctx)

    @property
    def process_events(self) -> ProcessEvents:
        """Event client of the enclosing process; absent outside a process."""
        return required(origin_of(self._ctx).clients.process_events, "process_events")

    @property
    def progress(self) -> ProgressSender:
        """Sink for progress messages and pieces of output. Raises a `ToolError` if the call has no observers."""
        required(origin_of(self._ctx).event_emitter, "progress")
        return self._send

    def _send(self, message: SandboxMessage) -> None:
        if message.kind in ("stdout", "stderr"):
            self._ctx.output(message.text, message.kind)
        else:
            self._ctx.progress(message.text)


class SeedProcessContext(_SeedDurable[ProcessContext]):
    """A `ProcessContext` under the names of the seed documents. All other names are those of the context itself."""

    def __init__(self, ctx: ProcessContext) -> None:
        self._ctx = ctx

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the type of any member
        if name == "_ctx":  # a copy in the making
            raise AttributeError(name)
        return getattr(self._ctx, SAME_OF_PROCESS.get(name, name))


class SeedProcesses:
    """`rt.processes` with the operations of the seed documents: frames, transfers, releases."""

    def __init__(self, runtime: Runtime) -> None:
        self._rt = core_of(runtime)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the type of any member
        return getattr(self._rt.processes, name)

    async def list(self, mode: ProcessListMode = "live", *, session: str, frame: str = "") -> tuple[Listed, ...]:
        """Return the processes visible in a session or frame, latest first."""
        return await list_processes(self._rt, mode, scope=SessionScope(session_id=session, frame_id=frame))

    async def share(self, *handles: Json, session: str, frame: str = "") -> None:
        """Make processes visible in a session or frame, all or none."""
        scope = await edges.existing_scope(self._rt, session, frame)
        await edges.add(self._rt, self._handles(handles), scope, replay=new_edge(self._rt))

    async def validate(self, *handles: Json, session: str | None = None, frame: str = "") -> tuple[ProcessHandle, ...]:
        """Return the processes of these handles, if all exist and, with `session`, all are visible there.

        Raises:
            Error: `process_handle_invalid`, `process_unknown`, `process_not_visible`.
        """
        found = self._handles(handles)
        if session is not None:
            await edges.check_visible(self._rt, found, SessionScope(session_id=session, frame_id=frame))
        for one in found:
            await one.journal()
        return found

    async def transfer(
        self, *handles: Json, session: str, to: str, frame: str = "", to_frame: str = "", key: str = ""
    ) -> None:
        """Move the visibility of processes to another session, all or none. The same transfer under the same `key`
        applies once.

        Raises:
            Error: `process_not_visible` if one is not visible in `session`; `session_unknown`. Nothing was changed.
        """
        found = self._handles(handles)
        if not found:
            return
        old = SessionScope(session_id=session, frame_id=frame)
        await edges.check_visible(self._rt, found, old)
        new = await edges.existing_scope(self._rt, to, to_frame)
        await edges.move(self._rt, found, old, new, replay=key or new_edge(self._rt))

    async def release(self, session: str, *, frame: str = "") -> int:
        """Remove the visibility of all processes in a session or frame, and return their number."""
        return await release(self._rt, SessionScope(session_id=session, frame_id=frame))

    async def cancel_unreferenced(self, *keep: Json, session: str, frame: str = "", reason: str = "") -> int:
        """Request the end of all processes visible in a session or frame, except those in `keep`."""
        return await cancel_listed(self._rt, SessionScope(session_id=session, frame_id=frame), reason, keep=keep)

    def _handles(self, values: Iterable[Json]) -> tuple[ProcessHandle, ...]:
        return tuple(self._rt.processes.from_json(value) for value in values)


# --- the builders of the seed documents: each returns a changed copy of a tool's context


def with_(ctx: ToolContext[Deps], **changes: object) -> ToolContext[Deps]:
    """Return a copy of this context with changed fields, or with changed wiring under the seeds' names."""
    names = {one.name for one in fields(CallOrigin)}
    wiring = {name: value for name, value in changes.items() if name in names}
    own = {name: value for name, value in changes.items() if name not in names}
    return _copy(ctx, own, wiring)


def with_services(ctx: ToolContext[Deps], **services: object) -> ToolContext[Deps]:
    """Return a copy of this context with changed services."""
    return _copy(ctx, {}, {"services": replace(ctx.services, **cast("dict[str, Any]", services))})


def prepared_call(ctx: ToolContext[Deps], call: PreparedToolCall) -> ToolContext[Deps]:
    """Return a copy for this prepared call, with its id and payload."""
    return with_(ctx, call_id=call.call_id, prepared_payload=call.prepared_payload)


def with_retry_context(ctx: ToolContext[Deps], tool_name: str, attempt: int, max_attempts: int) -> ToolContext[Deps]:
    """Return a copy for one attempt (both numbers at least 1), under the key shared by all attempts."""
    key = keys.tool_idempotency(ctx.tenant, ctx.session_id, ctx.call_id, tool_name) if ctx.call_id else ""
    return with_(ctx, attempt=max(1, attempt), max_attempts=max(1, max_attempts), idempotency_key=key)


def with_async_process(ctx: ToolContext[Deps], process_id: str, cancellation: Cancellation) -> ToolContext[Deps]:
    """Return a copy for a separate process, with its own cancellation."""
    return with_(ctx, cancellation=cancellation, async_process_id=process_id, own_process_id=process_id)


def _copy(ctx: ToolContext[Deps], own: dict[str, Any], wiring: dict[str, Any]) -> ToolContext[Deps]:
    return replace(ctx, **own, _call=replace(origin_of(ctx), **wiring))
