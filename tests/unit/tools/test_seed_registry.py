"""Seed 004 and the executor of seed 003: registries, definitions, the default tools, and calling them directly."""

from __future__ import annotations

import asyncio
import re

import pytest

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.ids import CallId
from perdure.tools.builtin import AddTool, EchoTool, FailingTool, GetCurrentTimeTool
from perdure.tools.context import ToolContext
from perdure.tools.decorator import Tool, tool
from perdure.tools.execution_result import Image, ToolCallResult, ToolResult
from perdure.tools.objects import BaseTool, as_tool
from perdure.tools.registry import ToolRegistry, ToolRegistryBuilder
from perdure.tools.toolbox import Toolbox
from perdure.vocab.messages import ToolCall
from perdure.vocab.tools import ToolDefinition, ToolHints
from tests.unit.tools.calling import context


def calling(name: str, id: str = "call_1", **args: Json) -> ToolCall:
    return ToolCall(id=CallId(id), name=name, args=args)


def definition(registry: ToolRegistry, name: str) -> ToolDefinition:
    found = registry.get(name)
    assert found is not None
    return found.to_definition()


async def run(registry: ToolRegistry, name: str, **args: Json) -> ToolCallResult:
    return await registry.execute(calling(name, **args), definition(registry, name))


# --- the registry


def test_tool_registry() -> None:
    registry = ToolRegistry()
    assert registry.is_empty
    registry.register(GetCurrentTimeTool())
    registry.register(EchoTool())
    assert len(registry) == 2
    assert registry.has("get_current_time")
    assert registry.has("echo")
    assert not registry.has("nonexistent")
    assert len(registry.tool_definitions()) == 2
    assert not registry.is_empty


def test_tool_registry_builder() -> None:
    registry = ToolRegistry.builder().tool(GetCurrentTimeTool()).tool(EchoTool()).build()
    assert len(registry) == 2
    assert ToolRegistryBuilder().build().is_empty


def test_the_order_is_that_of_registration_and_a_namesake_takes_the_place() -> None:
    @tool(name="echo")
    def mine(message: str) -> str:
        """Mine."""
        return message

    registry = ToolRegistry([EchoTool(), AddTool(), GetCurrentTimeTool()])
    registry.register(mine)
    assert registry.tool_names() == ("echo", "add", "get_current_time")
    assert [one.name for one in registry.tool_definitions()] == ["echo", "add", "get_current_time"]
    assert registry.get("echo") is mine
    assert [one.name for one in registry] == ["echo", "add", "get_current_time"]


def test_unregister_returns_the_tool_and_clear_takes_all() -> None:
    echo = EchoTool()
    registry = ToolRegistry([echo, AddTool()])
    assert registry.unregister("echo") is echo
    assert registry.unregister("echo") is None
    assert registry.tool_names() == ("add",)
    registry.clear()
    assert registry.is_empty


def test_a_registry_shows_names_only() -> None:
    assert repr(ToolRegistry([EchoTool(), AddTool()])) == "ToolRegistry(tools=['echo', 'add'])"


def test_only_tools_can_be_registered() -> None:
    def bare() -> None: ...

    with pytest.raises(Error) as caught:
        ToolRegistry([bare])  # pyright: ignore[reportArgumentType] - the mistake
    assert caught.value.code is Code.TOOL_INVALID


# --- definitions


def test_tool_display_name_in_definition() -> None:
    one = GetCurrentTimeTool()
    assert one.display_name == "Get Current Time"
    assert one.to_definition().display_name == "Get Current Time"


def test_echo_tool_display_name() -> None:
    one = EchoTool()
    assert one.display_name == "Echo"
    assert one.to_definition().display_name == "Echo"


def test_tool_to_definition() -> None:
    told = GetCurrentTimeTool().to_definition()
    assert (told.kind, told.name, told.policy, told.deferrable) == ("builtin", "get_current_time", "auto", "automatic")


def test_echo_and_failing_say_that_they_may_run_twice() -> None:
    for one in (EchoTool(), FailingTool()):
        assert (one.hints.readonly, one.hints.idempotent) == (True, True)
        assert as_tool(one).durability.effect == "pure"


def test_a_class_tool_becomes_a_tool_with_all_it_says() -> None:
    class Rich(BaseTool):
        name = "rich"
        description = "Rich."
        parameters_schema = EchoTool.parameters_schema
        display_name = "Rich Tool"
        category = "demo"
        deferrable_policy = "never"
        hints = ToolHints(idempotent=True, concurrency_class="c", long_running=True)
        timeout = "2s"
        retries = 2

        async def execute(self, arguments: dict[str, Json]) -> ToolResult:
            return ToolResult.success(arguments)

    made = as_tool(Rich())
    assert made.to_definition() == Rich().to_definition()
    promises = made.durability
    assert (promises.effect, promises.timeout_ms, promises.concurrency_class) == ("idempotent", 2000, "c")
    assert promises.retry.max_attempts == 3


class Typed(BaseTool):
    name = "typed"
    description = "Typed."
    parameters_schema = AddTool.parameters_schema

    async def execute(self, arguments: dict[str, Json]) -> ToolResult:
        return ToolResult.success(arguments)


async def test_class_tool_arguments_are_validated_unless_unchecked() -> None:
    registry = ToolRegistry([Typed()])
    assert (await run(registry, "typed", a=1, b=2)).result == {"a": 1, "b": 2}
    refused = (await run(registry, "typed", a="x", c=1)).error or ""
    assert refused.startswith("The arguments are not valid; the tool was not run.")
    assert "$.a: 'x' is not of type 'number'" in refused
    assert "'b' is a required property" in refused

    class Open(Typed):
        checked = False

    assert (await run(ToolRegistry([Open()]), "typed", a="x", c=1)).result == {"a": "x", "c": 1}


@pytest.mark.parametrize("schema", [None, [], {"type": "string"}, {"type": "object", "properties": {"a": {"type": 7}}}])
def test_invalid_schema_is_refused_before_any_call(schema: Json) -> None:
    class Odd(Typed):
        parameters_schema = schema

    with pytest.raises(Error) as caught:
        Toolbox([Odd()])
    assert caught.value.code is Code.TOOL_INVALID


def test_a_client_side_object_is_a_tool_that_is_never_run_here() -> None:
    class Elsewhere(EchoTool):
        policy = "client_side"

    [contract] = Toolbox([Elsewhere()]).contracts()
    assert (contract.definition.kind, contract.client_side) == ("client_side", True)


def test_a_policy_that_requires_approval_is_part_of_the_contract() -> None:
    class Gated(EchoTool):
        policy = "requires_approval"

    (contract,) = Toolbox([Gated()]).contracts()
    assert contract.definition.policy == "requires_approval"


def test_a_decorated_tool_says_as_much() -> None:
    @tool(title="Refund", category="money", defer_loading="never", hints=ToolHints(destructive=True))
    def refund(order: str) -> str:
        """Refund an order."""
        return order

    told = refund.to_definition()
    assert (told.display_name, told.category, told.deferrable, told.policy) == ("Refund", "money", "never", "auto")
    assert told == refund.contract.definition
    with pytest.raises(Error, match="deferrable"):
        tool(defer_loading="sometimes")(refund.function)  # pyright: ignore[reportArgumentType] - the mistake


# --- the defaults


def test_all_default_tools_have_display_names() -> None:
    for told in ToolRegistry.with_defaults().tool_definitions():
        assert told.display_name, told.name


def test_with_defaults_has_the_tools_of_the_seed_that_need_no_network() -> None:
    assert ToolRegistry.with_defaults().tool_names() == (
        "get_current_time",
        "echo",
        "report_progress",
        "add",
        "subtract",
        "multiply",
        "divide",
        "get_weather",
        "get_forecast",
        "write_todos",
        "read_file",
        "write_file",
        "edit_file",
        "list_directory",
        "grep_files",
        "delete_file",
        "stat_file",
    )


@pytest.mark.parametrize("name", ["bash", "kv_store", "spawn_background"])
def test_with_defaults_excludes_capability_only_tools(name: str) -> None:
    assert not ToolRegistry.with_defaults().has(name)


async def test_with_defaults_tools_are_executable() -> None:
    result = await run(ToolRegistry.with_defaults(), "echo", message="hello from defaults")
    assert result.error is None
    assert result.result["echoed"] == "hello from defaults"


async def test_with_defaults_math_tools() -> None:
    registry = ToolRegistry.with_defaults()
    assert (await run(registry, "add", a=5, b=3)).result == {"result": 8.0, "operation": "add", "a": 5.0, "b": 3.0}
    assert (await run(registry, "subtract", a=5, b=3)).result["result"] == 2.0
    assert (await run(registry, "multiply", a=5, b=3)).result["result"] == 15.0
    assert (await run(registry, "divide", a=6, b=3)).result["result"] == 2.0
    assert (await run(registry, "divide", a=6, b=0)).error == "Cannot divide by zero"
    assert (await run(registry, "add", a=10**400, b=0)).error == "The numbers are too large to compute with"
    assert (await run(registry, "multiply", a=1e308, b=10)).error == "The result is too large to be written down"
    assert (await run(registry, "add", a="five")).result == {"result": 0.0, "operation": "add", "a": 0.0, "b": 0.0}


async def test_the_time_in_three_formats() -> None:
    registry = ToolRegistry([GetCurrentTimeTool(now=lambda: 1_700_000_000.5)])
    assert (await run(registry, "get_current_time")).result == {
        "time": "2023-11-14T22:13:20Z",
        "format": "iso8601",
        "timezone": "UTC",
    }
    assert (await run(registry, "get_current_time", format="unix")).result["time"] == 1_700_000_000
    human = (await run(registry, "get_current_time", format="human")).result["time"]
    assert human == "Tuesday, 14 November 2023, 22:13:20 UTC"
    assert (await run(registry, "get_current_time", format="x")).error == "format must be one of: iso8601, unix, human"


async def test_the_weather_follows_from_the_name_of_the_place() -> None:
    registry = ToolRegistry.with_defaults()
    weather = (await run(registry, "get_weather", location="Oslo")).result
    assert weather["temperature_c"] == sum(b"Oslo") % 35 + 5
    assert weather["simulated"] is True
    forecast = (await run(registry, "get_forecast", location="Oslo")).result["forecast"]
    assert [day["temperature_c"] for day in forecast] == [(sum(b"Oslo") + 7 * day) % 35 + 5 for day in range(3)]
    assert len((await run(registry, "get_forecast", location="Oslo", days=30)).result["forecast"]) == 7
    assert (await run(registry, "get_weather")).error == "Missing required parameter: location"


async def test_todos_are_checked_and_counted() -> None:
    registry = ToolRegistry.with_defaults()
    todo = {"content": "Run the tests", "activeForm": "Running the tests", "status": "in_progress"}
    told = await run(registry, "write_todos", todos=[todo, {**todo, "status": "pending"}])
    assert told.result == {
        "total": 2,
        "pending": 1,
        "in_progress": 1,
        "completed": 0,
        "todos": [todo, {**todo, "status": "pending"}],
    }
    both = (await run(registry, "write_todos", todos=[todo, todo])).result
    assert both["warning"] == "2 tasks are in progress; exactly one should be"
    idle = (await run(registry, "write_todos", todos=[{**todo, "status": "pending"}])).result
    assert idle["warning"] == "No task is in progress; exactly one should be"
    assert "warning" not in (await run(registry, "write_todos", todos=[{**todo, "status": "completed"}])).result
    assert (await run(registry, "write_todos", todos=[todo, {**todo, "content": " "}])).error == (
        "Task 2: content must not be empty"
    )
    odd = (await run(registry, "write_todos", todos=[{**todo, "status": "later"}])).error
    assert odd == "Task 1: status must be one of: pending, in_progress, completed"
    assert (await run(registry, "write_todos")).error == "Missing required parameter: todos (list expected)"


async def test_a_report_of_progress_is_checked() -> None:
    registry = ToolRegistry.with_defaults()
    told = await run(registry, "report_progress", status="blocked", summary="no key", details=["asked Ann"])
    assert told.result == {"reported": True, "status": "blocked", "summary": "no key", "details": ["asked Ann"]}
    bad = await run(registry, "report_progress", status="fine", summary="x")
    assert bad.error == "status must be one of: progress, blocked, completed"
    assert (await run(registry, "report_progress", status="progress", summary=" ")).error == "summary must not be empty"
    points = await run(registry, "report_progress", status="progress", summary="x", details=[""])
    assert points.error == "details must be a list of texts that are not empty"


# --- as an executor


async def test_tool_registry_as_executor() -> None:
    registry = ToolRegistry([EchoTool()])
    result = await run(registry, "echo", message="test")
    assert result.error is None
    assert result.result["echoed"] == "test"
    assert result.tool_call_id == "call_1"


async def test_a_tool_that_is_not_there_is_an_error_with_its_name() -> None:
    with pytest.raises(Error) as caught:
        await ToolRegistry().execute(calling("nope"))
    assert (caught.value.code, caught.value.message) == (Code.TOOL_UNKNOWN, "Tool not found: nope")


async def test_context_reaches_tools_only_through_execute_with_context() -> None:
    class Asks(EchoTool):
        async def execute_with_context(self, arguments: dict[str, Json], context: ToolContext[object]) -> ToolResult:
            return ToolResult.success({"session": context.session_id})

    @tool(effect="pure")
    def whose(ctx: ToolContext) -> str:
        """Whose."""
        return ctx.session_id

    registry = ToolRegistry([Asks(), whose])
    assert (await run(registry, "echo", message="m")).result == {"echoed": "m", "length": 1}
    with_context = await registry.execute_with_context(calling("echo"), None, context("echo"))
    assert with_context.result == {"session": "s1"}
    assert (await registry.execute_with_context(calling("whose"), None, context("whose"))).result == "s1"
    assert (await run(registry, "whose")).error == "The tool whose needs a context: use execute_with_context"


async def test_every_failure_is_in_the_result() -> None:
    @tool(effect="pure")
    def breaks() -> None:
        """Breaks."""
        raise RuntimeError("hunter2")

    @tool(effect="pure")
    def typed(count: int) -> int:
        """Typed."""
        return count

    @tool(timeout="20ms")
    async def slow() -> None:
        """Slow."""
        await asyncio.sleep(10)

    @tool
    def draws() -> ToolResult:
        """Draws."""
        return ToolResult.success_with_images({"w": 1}, [Image("iVBORw0KGgo=", "image/png")])

    @tool
    def sums() -> ToolResult:
        """Sums up."""
        return ToolResult.success_with_raw_output("short", "the whole of it")

    registry = ToolRegistry([breaks, typed, slow, draws, sums])
    assert (await run(registry, "breaks")).error == "An internal error occurred while executing the tool"
    assert "$.count" in ((await run(registry, "typed", count="x")).error or "")
    assert "outcome unknown" in ((await run(registry, "slow")).error or "")
    assert (await run(registry, "draws")).images == (Image("iVBORw0KGgo=", "image/png"),)
    summed = await run(registry, "sums")
    assert (summed.result, summed.raw_output) == ("short", "the whole of it")


def noting(log: list[str], name: str, delay: float) -> Tool:
    @tool(name=name, effect="pure")
    async def one() -> str:
        """One."""
        log.append(f"{name} begins")
        await asyncio.sleep(delay)
        log.append(f"{name} ends")
        return name

    return one


async def test_a_batch_runs_one_after_the_other() -> None:
    log: list[str] = []
    registry = ToolRegistry([noting(log, "a", 0.02), noting(log, "b", 0)])
    results = await registry.execute_batch([calling("a", "1"), calling("b", "2")], registry.tool_definitions())
    assert [(one.tool_call_id, one.result) for one in results] == [("1", "a"), ("2", "b")]
    assert log == ["a begins", "a ends", "b begins", "b ends"]


async def test_batch_stops_at_a_call_without_definition() -> None:
    log: list[str] = []
    registry = ToolRegistry([noting(log, "a", 0), noting(log, "b", 0)])
    with pytest.raises(Error, match=re.escape("Tool definition not found: zz")):
        await registry.execute_batch([calling("a"), calling("zz"), calling("b")], registry.tool_definitions())
    assert log == ["a begins", "a ends"]


async def test_parallel_calls_overlap_and_their_results_keep_the_order_of_the_calls() -> None:
    log: list[str] = []
    registry = ToolRegistry([noting(log, "a", 0.05), noting(log, "b", 0)])
    results = await registry.execute_parallel([calling("a", "1"), calling("b", "2")], registry.tool_definitions())
    assert [one.result for one in results] == ["a", "b"]
    assert log[:2] == ["a begins", "b begins"]


async def test_all_parallel_calls_run_and_the_first_error_is_told() -> None:
    log: list[str] = []
    registry = ToolRegistry([noting(log, "a", 0), noting(log, "b", 0.02)])
    calls = [calling("a"), calling("yy"), calling("zz"), calling("b")]
    with pytest.raises(Error, match=re.escape("Tool definition not found: yy")):
        await registry.execute_parallel(calls, registry.tool_definitions())
    assert log[-1] == "b ends"
