"""The members of the contexts of tools and processes, frozen, and the names of the seed documents."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from perdure import Agent, BaseTool, ProcessContext, Runtime, ToolContext, ToolError
from perdure.codec import Json
from perdure.compat import seeds
from perdure.compat.seeds import SeedProcessContext, SeedToolContext, with_
from perdure.ids import CallId
from perdure.models.scripted import ScriptedModel, call, say
from perdure.providers import ProviderContext
from perdure.testing import tool_context
from perdure.tools import ToolResult
from perdure.tools.builtin import EchoTool
from perdure.tools.origin import CallOrigin
from perdure.tools.registry import ToolRegistry
from perdure.vocab.messages import ToolCall, ToolResultPart

TOOL = [
    "agent", "args", "attachments", "attempt", "call_id", "cancellation", "complete", "completion_key", "deps", "emit",
    "event_key", "files", "idempotency_key", "locale", "map", "max_attempts", "messages", "now", "output", "pending",
    "plugin_input", "processes", "progress", "random", "readable_key", "schedules", "secrets", "services", "session_id",
    "sessions", "sleep", "start_command", "step", "step_key", "tasks", "tenant", "tool_name", "tools", "triggers",
    "turn_id", "uuid", "wait_for_event",
]  # fmt: skip
PROCESS = [
    "agent", "ask", "cancellation", "deps", "emit", "event_key", "extension", "gather", "idempotency_key", "info",
    "map", "now", "phase", "process_id", "race", "random", "session", "sleep", "start", "start_command", "step",
    "step_key", "tenant", "timeline", "triggers", "uuid", "wait_for_event", "wait_for_process", "wait_for_signal",
]  # fmt: skip
PROVIDER = ["decode_prepared_payload", "prepared_call", "prepared_payload", "turn_context"]
METHODS = ["await_event_json", "decode_prepared_payload", "durable_effects", "run_json", "visible_tools"]
ON_SERVICES = ["direct_completions", "dispatch", "process_events", "progress", "sessions"]
ANY: Json = {"type": "object"}


def members(of: type) -> list[str]:
    """Return the public attributes of a class, with fields that have no default."""
    annotated = {name for one in of.__mro__ for name in vars(one).get("__annotations__", {})}
    return sorted(name for name in {*dir(of), *annotated} if not name.startswith("_"))


def test_the_contexts_have_these_members() -> None:
    assert members(ToolContext) == TOOL
    assert len(TOOL) <= 45
    assert members(ProcessContext) == PROCESS
    assert members(ProviderContext) == sorted([*TOOL, *PROVIDER])


@pytest.fixture
def ctx() -> ToolContext[object]:
    return tool_context(args={"a": 1}, deps="desk")


@pytest.mark.parametrize("name", sorted(seeds.SAME))
def test_a_seed_name_of_a_tools_context_is_ours(ctx: ToolContext[object], name: str) -> None:
    if seeds.SAME[name] in ("schedules", "tasks"):
        with pytest.raises(ToolError, match="not available"):
            getattr(SeedToolContext(ctx), name)
        return
    assert getattr(SeedToolContext(ctx), name) == getattr(ctx, seeds.SAME[name])


@pytest.mark.parametrize("name", [*sorted(seeds.SERVICES), *ON_SERVICES])
def test_a_seed_name_of_a_missing_service_is_named(ctx: ToolContext[object], name: str) -> None:
    with pytest.raises(ToolError, match=f"(?i)^{name.replace('_', ' ')} not available"):
        getattr(SeedToolContext(ctx), name)


@pytest.mark.parametrize("name", sorted(seeds.SERVICES))
def test_a_seed_name_of_a_service_is_the_service(ctx: ToolContext[object], name: str) -> None:
    service = object()
    assert getattr(SeedToolContext(seeds.with_services(ctx, **{name: service})), name) is service


@pytest.mark.parametrize("name", sorted(seeds.ORIGIN | seeds.OPTIONAL) + METHODS)
def test_the_other_seed_names_resolve(ctx: ToolContext[object], name: str) -> None:
    getattr(SeedToolContext(ctx), name)


def test_every_part_of_the_origin_can_be_changed(ctx: ToolContext[object]) -> None:
    assert with_(ctx, agent_frame_id="f", attempt=2) == replace(
        ctx, attempt=2, _call=replace(CallOrigin(deps="desk"), agent_frame_id="f")
    )


def test_an_unknown_name_is_an_attribute_error(ctx: ToolContext[object]) -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = SeedToolContext(ctx).no_such_name


def test_the_names_of_a_processs_context_are_methods_of_ours() -> None:
    assert set(seeds.SAME_OF_PROCESS.values()) <= set(PROCESS)
    assert {"run_json", "await_event_json", "durable_effects"} <= set(dir(SeedProcessContext))


async def test_a_class_tool_may_ask_for_the_seed_names() -> None:
    class Seedy(BaseTool):
        name = "seedy"
        description = "reads its context by the seeds' names"
        parameters_schema = ANY
        seed_context = True

        async def execute(self, arguments: dict[str, Json]) -> ToolResult:
            raise NotImplementedError

        async def execute_with_context(
            self, arguments: dict[str, Json], context: ToolContext[object] | SeedToolContext[object]
        ) -> ToolResult:
            assert isinstance(context, SeedToolContext)
            context.emit_progress("half way")
            listed = [one.name for one in context.visible_tools()]
            return ToolResult.success([context.org_id, context.tool_call_id == context.call_id, listed])

    agent = Agent("a", model=ScriptedModel(call("seedy"), say("ok")), tools=[Seedy(), EchoTool()])
    async with Runtime("memory://", agents=[agent]) as rt:
        session = await rt.session("s", agent="a")
        async with asyncio.timeout(20):
            await session.ask("go")
        history = await session.messages()
    (output,) = [part.output for one in history for part in one.parts if isinstance(part, ToolResultPart)]
    assert output == ["default", True, ["seedy", "echo"]]


async def test_a_registry_passes_the_adapter_too() -> None:
    class Seedy(EchoTool):
        seed_context = True

        async def execute_with_context(
            self, arguments: dict[str, Json], context: ToolContext[object] | SeedToolContext[object]
        ) -> ToolResult:
            return ToolResult.success(type(context).__name__)

    asked = ToolCall(id=CallId("x"), name="echo", args={"message": "hi"})
    registry = ToolRegistry([Seedy()])
    told = await registry.execute_with_context(asked, None, tool_context("echo"))
    assert told.result == "SeedToolContext"
