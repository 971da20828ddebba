"""Tools written as classes: for those that hold something, come from a configuration, or check their own arguments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import TypeAlias

from perdure.codec import Json, canonical, decode, to_json
from perdure.errors import Code, Error
from perdure.tools.context import ToolContext
from perdure.tools.decorator import AnyTool, raw_tool
from perdure.tools.execution_result import ToolExecutionResult
from perdure.tools.json_schema import problem_of
from perdure.tools.narration import Phase
from perdure.tools.schema import RawArguments
from perdure.vocab.messages import ToolCall
from perdure.vocab.tools import DeferrablePolicy, EffectClass, RetryPolicy, ToolDefinition, ToolHints, ToolPolicy


class ToolObject(ABC):
    """A tool as an object. Calls that do not fit its schema are answered, not run, unless it says `checked = False`.

    `effect` decides what a crash may do to a call; left out, it follows from the hints, and is `once` without any.
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

    @abstractmethod
    async def execute(self, arguments: dict[str, Json]) -> ToolExecutionResult:
        """Do it, knowing nothing of the call but its arguments."""

    async def execute_with_context(
        self, arguments: dict[str, Json], context: ToolContext[object]
    ) -> ToolExecutionResult:
        """Do it. Calls `execute` unless a tool says otherwise; agents always use this one."""
        return await self.execute(arguments)

    def narrate(self, call: ToolCall, phase: Phase, locale: str | None = None) -> str | None:
        """A sentence for people about a call; None for a plain one that names the tool."""
        return None

    def to_definition(self) -> ToolDefinition:
        """The tool as a model and a user interface see it."""
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


@lru_cache(maxsize=512)
def _schema_problem(schema: bytes) -> str | None:
    return problem_of(decode(schema))


SomeTool: TypeAlias = AnyTool | ToolObject


def as_tool(one: SomeTool, *, with_context: bool = True) -> AnyTool:
    """Whatever somebody wrote as a tool, in the one form that is run.

    Raises:
        Error: `tool_invalid`.
    """
    if not isinstance(one, ToolObject):
        return one
    if problem := _schema_problem(canonical(to_json(one.parameters_schema))):
        raise Error(
            Code.TOOL_INVALID, f"the parameters_schema of the tool {one.name} is none", because=problem, tool=one.name
        )

    async def run(ctx: ToolContext[object], arguments: dict[str, Json]) -> ToolExecutionResult:
        return await (one.execute_with_context(arguments, ctx) if with_context else one.execute(arguments))

    made = raw_tool(
        run,
        one.name,
        RawArguments(one.parameters_schema, one.checked),
        description=one.description,
        display_name=one.display_name,
        category=one.category,
        deferrable=one.deferrable_policy,
        narrate=one.narrate,
        hints=one.hints,
        effect=one.effect,
        retries=one.retries,
        timeout=one.timeout,
        approve=one.policy == "requires_approval",
        client_side=one.policy == "client_side",
    )
    made.written_as = one
    return made
