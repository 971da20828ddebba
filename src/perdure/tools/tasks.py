"""Tools by which a model manages the tasks of its session."""

from __future__ import annotations

import asyncio
from typing import Literal, cast

import msgspec

from perdure.codec import Json
from perdure.services.tasks import NewTaskMessage, SessionTask, SessionTaskFilter, SessionTaskRegistry, TaskState
from perdure.tools.context import ToolContext
from perdure.tools.decorator import AnyTool, tool
from perdure.tools.errors import ToolError

MAX_WAIT_S = 300.0
LOOK_EVERY_S = 0.2


def task_tools() -> tuple[AnyTool, ...]:
    """Return all task tools, for an agent."""
    return cast("tuple[AnyTool, ...]", (list_tasks, get_task, message_task, cancel_task, wait_task))


def _shown(task: SessionTask) -> Json:
    return {name: value for name, value in msgspec.to_builtins(task).items() if value not in (None, [], {})}


async def _existing(tasks: SessionTaskRegistry, ctx: ToolContext[object], task_id: str) -> SessionTask:
    found = await tasks.get(ctx.session_id, task_id)
    if found is None:
        raise ToolError(f"Task not found: {task_id}", code="task_unknown")
    return found


@tool(effect="pure", title="List Tasks")
async def list_tasks(ctx: ToolContext[object], kind: str | None = None, state: TaskState | None = None) -> Json:
    """List the background tasks of this session.

    Args:
        kind: Only tasks of this kind, e.g. `background_tool`.
        state: Only tasks in this state.
    """
    found = await ctx.tasks.list(ctx.session_id, SessionTaskFilter(kind, state))
    return {"total": len(found), "tasks": [_shown(task) for task in found]}


@tool(effect="pure", title="Get Task")
async def get_task(ctx: ToolContext[object], task_id: str) -> Json:
    """Return a task and its latest messages.

    Args:
        task_id: The task.
    """
    tasks = ctx.tasks
    task = await _existing(tasks, ctx, task_id)
    said = await tasks.messages(ctx.session_id, task_id, limit=20)
    return {"task": _shown(task), "messages": [msgspec.to_builtins(one) for one in said]}


@tool(effect="once", title="Message Task")
async def message_task(
    ctx: ToolContext[object], task_id: str, message: str, in_reply_to: str | None = None
) -> Json:  # fmt: skip
    """Send a message to a task, or answer its request.

    Args:
        task_id: The task.
        message: The text.
        in_reply_to: The id of the request that is answered, if any.
    """
    tasks = ctx.tasks
    task = await _existing(tasks, ctx, task_id)
    if task.is_over:
        raise ToolError(f"Task is over: {task_id} has {task.state}", code="task_over")
    new = NewTaskMessage("inbound", [{"type": "text", "text": message}], in_reply_to)
    said = await tasks.send_message(ctx.session_id, task_id, new)
    return {"message_id": said.id, "task_id": task_id}


@tool(effect="idempotent", title="Cancel Task")
async def cancel_task(ctx: ToolContext[object], task_id: str) -> Json:
    """Request the end of a task. It ends soon afterwards.

    Args:
        task_id: The task.
    """
    tasks = ctx.tasks
    task = await _existing(tasks, ctx, task_id)
    if task.is_over:
        return {"task_id": task_id, "state": task.state, "cancel_requested": False}
    spec: Json = task.spec or {}
    schedule = spec.get("schedule_id")
    if schedule and ctx.services.schedule_store is not None:
        await ctx.services.schedule_store.cancel_schedule(ctx.session_id, str(schedule))
    asked = await tasks.cancel(ctx.session_id, task_id)
    return {"task_id": task_id, "state": asked.state if asked else task.state, "cancel_requested": True}


@tool(effect="pure", title="Wait For Task")
async def wait_task(
    ctx: ToolContext[object], task_id: str, timeout_seconds: float = 60, until: Literal["over", "activity"] = "over"
) -> Json:
    """Wait until a task has ended, or until it changes.

    Args:
        task_id: The task.
        timeout_seconds: Maximum time to wait: at most 300.
        until: `over`, or `activity` for any change.
    """
    tasks = ctx.tasks
    first = task = await _existing(tasks, ctx, task_id)
    loop = asyncio.get_running_loop()
    end = loop.time() + min(max(0.0, timeout_seconds), MAX_WAIT_S)
    while not task.is_over and loop.time() < end:
        if until == "activity" and task.updated_at != first.updated_at:
            break
        await asyncio.sleep(min(LOOK_EVERY_S, max(0.0, end - loop.time())))
        task = await _existing(tasks, ctx, task_id)
    return {"over": task.is_over, "timed_out": loop.time() >= end and not task.is_over, "task": _shown(task)}
