"""The tool `spawn_background`: starts another tool that outlives the turn.

The tool checks its arguments in the documented order. The target then passes the checks of a direct call, and its
approval if it needs one, before its task of kind `background_tool` exists. The run id is derived from the call, so a
repeated call after a crash finds its run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

from perdure.codec import Json, brief, digest
from perdure.errors import Code, Error
from perdure.services.background import RunAttempt
from perdure.services.tasks import (
    KIND_BACKGROUND_TOOL,
    KIND_MONITOR,
    ORPHANED,
    CreateSessionTask,
    SessionTask,
    monitor_task_id,
)
from perdure.tools.clients.dispatch import ChildCall, ChildResult, Dispatch
from perdure.tools.context import ToolContext, origin_of
from perdure.tools.door import BackgroundExecutableTool, executor_of
from perdure.tools.errors import ToolError
from perdure.tools.execution_result import ToolResult
from perdure.tools.objects import BaseTool, SomeTool
from perdure.tools.registry import ToolRegistry
from perdure.vocab.outcomes import Failed, InDoubt, NotRun, Success
from perdure.vocab.tools import ToolHints

SPAWN_BACKGROUND = "spawn_background"


@dataclass(frozen=True, slots=True)
class ScheduleRequest:
    """The start times of a monitor: recurring or once."""

    cron_expression: str | None
    scheduled_at: datetime | None
    timezone: str


class _Refused(Exception):
    """A refusal whose text the model reads."""


_SCHEMA: Json = {
    "type": "object",
    "properties": {
        "tool": {"type": "string", "description": "Name of the tool to run in the background"},
        "args": {"type": "object", "description": "Arguments of that tool"},
        "title": {"type": "string", "description": "A label for people"},
        "schedule": {
            "type": "object",
            "description": "Run it later, or again and again, instead of now",
            "properties": {
                "cron_expression": {"type": "string", "description": "Five fields, e.g. `*/10 * * * *`"},
                "scheduled_at": {"type": "string", "description": "Once, e.g. `2026-04-16T15:30:00Z`"},
                "timezone": {"type": "string", "description": "An IANA time zone; UTC unless said"},
            },
            "additionalProperties": False,
        },
        "signal_on_completion": {
            "type": "boolean",
            "description": "Send a message to the session when the run is over",
            "default": True,
        },
    },
    "required": ["tool", "args"],
    "additionalProperties": False,
}


class SpawnBackgroundTool(BaseTool):
    """Starts a tool in the background, now or by a schedule."""

    name = SPAWN_BACKGROUND
    display_name = "Spawn Background"
    description = "Run a background-capable tool asynchronously. Returns at once; the session is told when it is over."
    parameters_schema = _SCHEMA
    hints = ToolHints(idempotent=True)
    effect = "resumable"  # it may wait for the target's approval
    checked = False  # the tool words its own errors
    requires_context = True

    async def execute(self, arguments: dict[str, Json]) -> ToolResult:
        """Refuse: a run belongs to a session."""
        return ToolResult.tool_error(
            "spawn_background requires context. This tool must be executed with session context."
        )

    async def execute_with_context(self, arguments: dict[str, Json], context: ToolContext[object]) -> ToolResult:
        """Check the arguments and start the run."""
        try:
            return ToolResult.success(await self._spawned(arguments, context))
        except _Refused as refusal:
            return ToolResult.tool_error(str(refusal))

    async def _spawned(self, arguments: dict[str, Json], ctx: ToolContext[object]) -> dict[str, Json]:
        name, args = arguments.get("tool"), arguments.get("args")
        if not isinstance(name, str) or not name.strip():
            raise _Refused("Missing required parameter: tool")
        if not isinstance(args, dict):
            raise _Refused("Missing required parameter: args (object expected)")
        signal = arguments.get("signal_on_completion")
        signal = signal if isinstance(signal, bool) else True
        schedule = parse_schedule(arguments)
        if (registry := ctx.services.tool_registry) is None:
            raise _Refused(
                "Tool registry not available in this context. spawn_background requires worker-side tool execution."
            )
        tool = _capable(registry, name := name.strip())
        given = arguments.get("title")
        title = given.strip() if isinstance(given, str) else ""
        title = title or tool.to_definition().display_name or f"Background {name}"
        asked = _SpawnArguments(name, cast("dict[str, Json]", args), title, signal)
        if schedule is not None:
            return await _scheduled(ctx, asked, schedule)
        return await _started(ctx, asked, tool.hints)


def _door(ctx: ToolContext[object]) -> Dispatch:
    dispatch = origin_of(ctx).clients.dispatch
    if dispatch is None:
        raise _Refused("Tool calls are not available in this context. Background runs are started from a turn.")
    return dispatch(ctx)


@dataclass(frozen=True, slots=True)
class _SpawnArguments:
    tool: str
    args: dict[str, Json]
    title: str
    signal: bool


def _capable(registry: ToolRegistry, name: str) -> SomeTool:
    tool = registry.get(name)
    if tool is None:
        raise _Refused(f"Unknown tool: {name}")
    if name == SPAWN_BACKGROUND:
        raise _Refused("spawn_background cannot target itself recursively")
    if tool.hints.supports_background is not True:
        raise _Refused(f"Tool does not support background execution: {name}")
    if executor_of(tool) is None:
        raise _Refused(f"Tool declared background support but has no background executor: {name}")
    return tool


async def _started(ctx: ToolContext[object], asked: _SpawnArguments, hints: ToolHints) -> dict[str, Json]:
    if ctx.services.session_task_registry is None:
        raise _Refused("Session task registry not available in this context. Background runs require task tracking.")
    if ctx.services.file_store is None:
        raise _Refused(
            "Session file store not available in this context. spawn_background requires artifact persistence."
        )
    run = RunAttempt(f"bg_{brief(digest(('background', ctx.idempotency_key)))}", asked.title, asked.tool)

    def task(args: dict[str, Json]) -> CreateSessionTask:
        spec: Json = {
            "tool": asked.tool,
            "arguments": args,
            "reattachable": is_reattachable(hints),
            "signal_on_completion": asked.signal,
            "run_id": run.run_id,
        }
        return CreateSessionTask(
            session_id=ctx.session_id,
            id=f"task_{run.run_id.removeprefix('bg_')}",
            kind=KIND_BACKGROUND_TOOL,
            display_name=asked.title,
            spec=spec,
            state="running",
        )

    started = await _door(ctx).start_run(ChildCall(asked.tool, asked.args), step="start", task=task)
    made = _made(started)
    return {
        "run_id": run.run_id,
        "resource_id": run.run_id,
        "task_id": made["task_id"],
        "title": asked.title,
        "tool": asked.tool,
        "status": "running",
        "signal_on_completion": asked.signal,
        "artifact_dir": run.artifact_dir,
        "log_path": run.log_path,
        "result_path": run.result_path,
        **({"args": made["args"]} if made["args"] != asked.args else {}),  # an approver changed them
    }


def _made(started: ChildResult) -> dict[str, Json]:
    """Return the value of a started run, or raise the failure of its target."""
    match started.output:
        case Success(value=value):
            return cast("dict[str, Json]", value)
        case Failed(failure=failure) if failure.code == Code.TASK_LIMIT_EXCEEDED:
            raise _Refused(failure.message)
        case Failed(failure=failure):
            raise ToolError(failure.message, code=failure.code, retry_safe=failure.retry_safe)
        case InDoubt(message=message):
            raise ToolError(message, code="outcome_unknown")
        case NotRun(reason=reason):
            raise ToolError(reason, code="cancelled")


def is_reattachable(hints: ToolHints) -> bool:
    """Return True if another worker may restart the run: its tool is read-only or idempotent."""
    return bool(hints.idempotent) or bool(hints.readonly)


def reattach_background_run(spec: Json, context: ToolContext[object]) -> BackgroundExecutableTool:
    """Return the executor that continues a run of a dead worker.

    The tool's current hints must allow it, not only those at the spawn. Capacity was checked when the run was claimed.

    Raises:
        ToolError: `orphaned`; the message explains why the run cannot continue.
    """
    if context.services.file_store is None:
        raise _orphan("file store not available; cannot re-attach background run")
    if context.services.session_task_registry is None:
        raise _orphan("task registry not available; cannot re-attach background run")
    given = cast("dict[str, Json]", spec if isinstance(spec, dict) else {})
    name = given.get("tool")
    if not isinstance(name, str) or not name:
        raise _orphan("background_tool spec missing 'tool' field; cannot re-attach")
    registry = context.services.tool_registry
    if (tool := registry.get(name) if registry is not None else None) is None:
        raise _orphan(f"tool '{name}' not found in registry; cannot re-attach")
    if (executor := executor_of(tool)) is None:
        raise _orphan(f"tool '{name}' does not support background execution; cannot re-attach")
    if given.get("reattachable") is not True or not is_reattachable(tool.hints):
        raise _orphan(f"tool '{name}' is not idempotent or readonly; re-attach declined")
    return executor


def _orphan(message: str) -> ToolError:
    return ToolError(message, code=ORPHANED)


# --- schedules --------------------------------------------------------------------------------------------------


def parse_schedule(arguments: dict[str, Json]) -> ScheduleRequest | None:
    """Return the requested schedule, or None."""
    if "schedule" not in arguments:
        return None
    given = arguments["schedule"]
    if not isinstance(given, dict):
        raise _Refused("schedule must be an object")
    schedule = cast("dict[str, Json]", given)
    cron, at = _text(schedule, "cron_expression"), _text(schedule, "scheduled_at")
    moment = _moment(at) if at else None
    if not cron and not moment:
        raise _Refused("schedule must include exactly one of cron_expression (recurring) or scheduled_at (one-shot)")
    if cron and moment:
        raise _Refused("schedule must not include both cron_expression and scheduled_at; provide exactly one")
    return ScheduleRequest(cron or None, moment, _text(schedule, "timezone") or "UTC")


def _text(given: dict[str, Json], name: str) -> str:
    value = given.get(name)
    return value.strip() if isinstance(value, str) else ""


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _Refused("scheduled_at must be RFC3339") from None
    if moment.tzinfo is None:
        raise _Refused("scheduled_at must be RFC3339")
    return moment.astimezone(UTC)


def monitor_description(asked_tool: str, args: Json, title: str, signal: bool) -> str:
    """Return the message sent to the session when a monitor fires."""
    payload = {"tool": asked_tool, "title": title, "signal_on_completion": signal, "args": args}
    shown = json.dumps(payload, indent=2, ensure_ascii=False)
    return (
        f"Monitor: {title}\n\nThis scheduled monitor fired. Start the background run now.\n\n"
        f"spawn_background payload:\n{shown}"
    )


async def _scheduled(ctx: ToolContext[object], asked: _SpawnArguments, schedule: ScheduleRequest) -> dict[str, Json]:
    if ctx.services.schedule_store is None:
        raise _Refused("Schedule store not available in this context. Scheduled monitors require session schedules.")
    refusal = await _door(ctx).refusal(ChildCall(asked.tool, asked.args))
    if refusal is not None:
        raise ToolError(refusal.message, code=refusal.code)
    made = await ctx.schedules.create_schedule(
        ctx.session_id,
        monitor_description(asked.tool, asked.args, asked.title, asked.signal),
        schedule.cron_expression,
        schedule.scheduled_at,
        schedule.timezone,
    )
    when: dict[str, Json] = {
        "schedule_id": made.id,
        "schedule_type": made.schedule_type,
        "cron_expression": made.cron_expression,
        "scheduled_at": _shown(made.scheduled_at),
        "timezone": made.timezone,
    }
    task = await _monitor(ctx, asked, when)
    return {
        "created": True,
        "status": "scheduled",
        "title": asked.title,
        "tool": asked.tool,
        "signal_on_completion": asked.signal,
        **when,
        "next_trigger_at": _shown(made.next_trigger_at),
        "enabled": made.enabled,
        "task_id": task.id if task else None,
    }


async def _monitor(ctx: ToolContext[object], asked: _SpawnArguments, when: dict[str, Json]) -> SessionTask | None:
    """Create the task of a monitor if possible. Without a task the schedule still works."""
    tasks = ctx.services.session_task_registry
    if tasks is None:
        return None
    spec: Json = {"tool": asked.tool, "arguments": asked.args, **when, "signal_on_completion": asked.signal}
    try:
        return await tasks.create(
            CreateSessionTask(
                session_id=ctx.session_id,
                id=monitor_task_id(str(when["schedule_id"])),
                kind=KIND_MONITOR,
                display_name=asked.title,
                spec=spec,
                state="running",
            )
        )
    except Error:
        return None


def _shown(moment: datetime | None) -> str | None:
    return moment.isoformat().replace("+00:00", "Z") if moment is not None else None
