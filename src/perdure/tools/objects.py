"""Tools written as classes, for tools with state, configuration or their own argument checks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from typing import TypeAlias

from perdure.codec import Json, to_json
from perdure.errors import Code, Error
from perdure.tools.context import ToolContext
from perdure.tools.decorator import AnyTool, raw_tool
from perdure.tools.execution_result import ToolResult
from perdure.tools.json_schema import problem_of
from perdure.tools.narration import Phase
from perdure.tools.schema import RawArguments
from perdure.vocab.messages import ToolCall
from perdure.vocab.registrations import EventType
from perdure.vocab.tools import DeferrablePolicy, EffectClass, RetryPolicy, ToolDefinition, ToolHints, ToolPolicy


class BaseTool(ABC):
    """A tool as an object. Calls that do not match its schema are rejected, unless `checked = False`.

    `effect` decides the behaviour after a crash. By default it follows from the hints, and is `once` without any.
    """

    name: str
    description: str
    parameters_schema: Json
    display_name: str = ""
    category: str = ""
    policy: ToolPolicy = "auto"
    deferrable_policy: DeferrablePolicy = "automatic"
    hints: ToolHints = ToolHints()
    effect: EffectClass | None = None
    retries: int | RetryPolicy | None = None
    timeout: float | str | None = None
    checked: bool = True
    requires_context: bool = False
    process_events: tuple[EventType, ...] = ()
    """The events that `ctx.emit` can append to the process of a background run of this tool."""
    seed_context: bool = False
    """True if `execute_with_context` gets a `perdure.compat.seeds.SeedToolContext`."""

    @abstractmethod
    async def execute(self, arguments: dict[str, Json]) -> ToolResult:
        """Run the tool with only its arguments."""

    async def execute_with_context(self, arguments: dict[str, Json], context: ToolContext[object]) -> ToolResult:
        """Run the tool with its context. Agents always call this method; the default calls `execute`."""
        return await self.execute(arguments)

    def narrate(self, call: ToolCall, phase: Phase, locale: str | None = None) -> str | None:
        """Return a sentence for people about a call, or None for a generic one."""
        return None

    def to_definition(self) -> ToolDefinition:
        """Return the definition shown to models and user interfaces."""
        return ToolDefinition(
            name=self.name,
            description=self.description,
            parameters=self.parameters_schema,
            display_name=self.display_name,
            policy=self.policy,
            category=self.category,
            deferrable=self.deferrable_policy,
            hints=self.hints,
        )


def context_for(tool: object, ctx: ToolContext[object]) -> ToolContext[object]:
    """Return the context in the form that a tool expects."""
    if not (isinstance(tool, BaseTool) and tool.seed_context):
        return ctx
    # By name and on first use: the adapter is a front above every layer, and most programs never need it.
    return import_module("perdure.compat.seeds").SeedToolContext(ctx)


SomeTool: TypeAlias = AnyTool | BaseTool


def as_tool(one: SomeTool, *, with_context: bool = True) -> AnyTool:
    """Convert a tool of any supported form to a `Tool`.

    Raises:
        Error: `tool_invalid`.
    """
    if not isinstance(one, BaseTool):
        return one
    if problem := problem_of(to_json(one.parameters_schema)):
        raise Error(
            Code.TOOL_INVALID,
            f"tool {one.name}: parameters_schema is not a valid JSON schema",
            because=problem,
            tool=one.name,
        )

    async def run(ctx: ToolContext[object], arguments: dict[str, Json]) -> ToolResult:
        if not with_context:
            return await one.execute(arguments)
        return await one.execute_with_context(arguments, context_for(one, ctx))

    made = raw_tool(
        run,
        one.name,
        RawArguments(one.parameters_schema, one.checked),
        description=one.description,
        title=one.display_name,
        category=one.category,
        defer_loading=one.deferrable_policy,
        narrate=one.narrate,
        hints=one.hints,
        effect=one.effect,
        retries=one.retries,
        timeout=one.timeout,
        needs_approval=one.policy == "requires_approval",
        client_side=one.policy == "client_side",
    )
    made.written_as = one
    return made
