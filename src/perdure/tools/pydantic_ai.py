"""Adapter for Pydantic AI tools: `Agent(tools=[*from_tools(search), *await from_toolset(server)])`.

Such a tool does not declare its safety, so it is `once` unless `effects` overrides it. A Pydantic AI tool that requires
approval requires it here too. Pydantic AI is imported when one of these functions is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.tools.context import ToolContext
from perdure.tools.errors import ToolError
from perdure.tools.execution_result import IMAGE_TYPES, Image, ToolResult
from perdure.tools.objects import BaseTool
from perdure.vocab.tools import EffectClass

if TYPE_CHECKING:
    from pydantic_ai import RunContext, Tool
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool

Effects = Mapping[str, EffectClass]


def from_tools(*tools: Tool[Any] | Callable[..., Any], effects: Effects | None = None) -> tuple[BaseTool, ...]:
    """Convert Pydantic AI tools, or functions it accepts as tools. `effects` maps names to effect classes.

    Raises:
        Error: `tool_invalid` for a tool that runs elsewhere, or an effect for an unknown tool.
    """
    from pydantic_ai.toolsets import FunctionToolset

    toolset: FunctionToolset[Any] = FunctionToolset(list(tools))
    made = [_made(toolset, _listed(toolset, one), effects or {}) for one in toolset.tools.values()]
    return _checked(made, effects or {})


async def from_toolset(toolset: AbstractToolset[Any], *, effects: Effects | None = None) -> tuple[BaseTool, ...]:
    """Convert the current tools of a toolset. The application opens and closes the toolset.

    Raises:
        Error: as `from_tools`.
    """
    listed = await toolset.get_tools(_run_context(None))
    return _checked([_made(toolset, one, effects or {}) for one in listed.values()], effects or {})


def _listed(toolset: AbstractToolset[Any], tool: Tool[Any]) -> ToolsetTool[Any]:
    from pydantic_ai.toolsets.function import FunctionToolsetTool

    schema = tool.function_schema
    return FunctionToolsetTool(
        toolset=toolset,
        tool_def=tool.tool_def,
        max_retries=0,
        args_validator=schema.validator,
        args_validator_func=tool.args_validator,
        call_func=schema.call,
        is_async=schema.is_async,
    )


def _made(toolset: AbstractToolset[Any], tool: ToolsetTool[Any], effects: Effects) -> BaseTool:
    definition = tool.tool_def
    if definition.kind not in ("function", "unapproved"):
        because = f"its kind is {definition.kind}, which runs outside this process"
        raise Error(Code.TOOL_INVALID, f"the tool {definition.name} of Pydantic AI cannot be run here", because=because)
    made = PydanticAITool(toolset, tool)
    made.name, made.description = definition.name, definition.description or ""
    made.parameters_schema = definition.parameters_json_schema
    made.policy = "requires_approval" if definition.kind == "unapproved" else "auto"
    made.effect = effects.get(definition.name, "once")
    made.timeout = definition.timeout
    return made


def _checked(made: list[BaseTool], effects: Effects) -> tuple[BaseTool, ...]:
    if unknown := set(effects) - {one.name for one in made}:
        raise Error(Code.TOOL_INVALID, f"effects= names an unknown tool: {', '.join(sorted(unknown))}")
    return tuple(made)


class PydanticAITool(BaseTool):
    """A Pydantic AI tool as a tool object."""

    requires_context = True

    def __init__(self, toolset: AbstractToolset[Any], tool: ToolsetTool[Any]) -> None:
        self._toolset = toolset
        self._tool = tool

    async def execute(self, arguments: dict[str, Json]) -> ToolResult:
        """Refuse: the tool needs a context."""
        return ToolResult.tool_error("This tool can only be called by an agent.")

    async def execute_with_context(self, arguments: dict[str, Json], context: ToolContext[object]) -> ToolResult:
        """Run the tool with the dependencies of this runtime."""
        from pydantic import ValidationError
        from pydantic_ai import exceptions as theirs

        run = _run_context(context)
        try:
            checked = self._tool.args_validator.validate_python(arguments, context=run.validation_context)
            return _result(await self._toolset.call_tool(self.name, checked, run, self._tool))
        except ValidationError as problem:
            message = problem.errors(include_url=False, include_context=False, include_input=False)
            raise ToolError(f"The arguments are not valid: {message}", code="invalid_tool_args") from None
        except (theirs.ModelRetry, theirs.ToolFailed) as problem:
            raise ToolError(problem.message) from None
        except (theirs.CallDeferred, theirs.ApprovalRequired):
            raise ToolError("This tool deferred its result, which is not supported here.") from None


def _run_context(context: ToolContext[object] | None) -> RunContext[Any]:
    from pydantic_ai import RunContext
    from pydantic_ai.models.test import TestModel
    from pydantic_ai.usage import RunUsage

    if context is None:
        return RunContext(deps=None, model=TestModel(), usage=RunUsage())
    return RunContext(
        deps=context.deps,
        model=TestModel(),
        usage=RunUsage(),
        tool_call_id=context.call_id,
        tool_name=context.tool_name,
        retry=context.attempt - 1,
        tool_call_approved=True,  # the call was approved before it started
        run_id=context.turn_id,
        conversation_id=context.session_id,
    )


def _result(value: object) -> ToolResult:
    from pydantic_ai.messages import BinaryContent, ToolReturn
    from pydantic_core import to_jsonable_python

    shown: list[object] = []
    if isinstance(value, ToolReturn):
        returned = cast("ToolReturn[Any]", value)
        content = returned.content
        shown = [content] if isinstance(content, str) else list(content or ())
        value = cast("object", returned.return_value)
    parts = [value, *shown] if isinstance(value, BinaryContent) else shown
    images = [
        Image(one.base64, one.media_type)
        for one in parts
        if isinstance(one, BinaryContent) and one.media_type in IMAGE_TYPES
    ]
    plain = "see the picture" if isinstance(value, BinaryContent) else to_jsonable_python(value)
    texts = [one for one in shown if isinstance(one, str)]
    told = {"value": plain, "content": texts} if texts else plain
    return ToolResult.success_with_images(told, images) if images else ToolResult.success(told)
