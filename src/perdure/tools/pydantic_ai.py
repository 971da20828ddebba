"""Tools of Pydantic AI as tools of ours: `Agent(tools=[*from_tools(search), *await from_toolset(server)])`.

What such a tool may do twice nobody can see, so it is `once` unless `effects` says otherwise. One that asks for
approval there needs one here. Pydantic AI is imported when one of these functions is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.tools.context import ToolContext
from perdure.tools.errors import ToolError
from perdure.tools.execution_result import IMAGE_TYPES, ToolExecutionResult, ToolResultImage
from perdure.tools.objects import ToolObject
from perdure.vocab.tools import EffectClass

if TYPE_CHECKING:
    from pydantic_ai import RunContext, Tool
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool

Effects = Mapping[str, EffectClass]


def from_tools(*tools: Tool[Any] | Callable[..., Any], effects: Effects | None = None) -> tuple[ToolObject, ...]:
    """Tools, or functions that Pydantic AI would make tools of; `effects` has the classes by name.

    Raises:
        Error: `tool_invalid` for a tool that is run elsewhere, or an effect of a tool that is not there.
    """
    from pydantic_ai.toolsets import FunctionToolset

    toolset: FunctionToolset[Any] = FunctionToolset(list(tools))
    made = [_made(toolset, _listed(toolset, one), effects or {}) for one in toolset.tools.values()]
    return _checked(made, effects or {})


async def from_toolset(toolset: AbstractToolset[Any], *, effects: Effects | None = None) -> tuple[ToolObject, ...]:
    """The tools that a toolset has now. Whoever opens and closes it is the application.

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


def _made(toolset: AbstractToolset[Any], tool: ToolsetTool[Any], effects: Effects) -> ToolObject:
    definition = tool.tool_def
    if definition.kind not in ("function", "unapproved"):
        because = f"it is {definition.kind}: somebody else runs it"
        raise Error(Code.TOOL_INVALID, f"the tool {definition.name} of Pydantic AI cannot be run here", because=because)
    made = PydanticAITool(toolset, tool)
    made.name, made.description = definition.name, definition.description or ""
    made.parameters_schema = definition.parameters_json_schema
    made.policy = "requires_approval" if definition.kind == "unapproved" else "auto"
    made.effect = effects.get(definition.name, "once")
    made.timeout = definition.timeout
    return made


def _checked(made: list[ToolObject], effects: Effects) -> tuple[ToolObject, ...]:
    if unknown := set(effects) - {one.name for one in made}:
        raise Error(Code.TOOL_INVALID, f"there is no tool {', '.join(sorted(unknown))} to have an effect")
    return tuple(made)


class PydanticAITool(ToolObject):
    """One of their tools."""

    requires_context = True

    def __init__(self, toolset: AbstractToolset[Any], tool: ToolsetTool[Any]) -> None:
        self._toolset = toolset
        self._tool = tool

    async def execute(self, arguments: dict[str, Json]) -> ToolExecutionResult:
        """Refuse: it needs to know its call."""
        return ToolExecutionResult.tool_error("This tool can only be called by an agent.")

    async def execute_with_context(
        self, arguments: dict[str, Json], context: ToolContext[object]
    ) -> ToolExecutionResult:
        """Run it, with the dependencies of this runtime as theirs."""
        from pydantic import ValidationError
        from pydantic_ai import exceptions as theirs

        run = _run_context(context)
        try:
            checked = self._tool.args_validator.validate_python(arguments, context=run.validation_context)
            return _result(await self._toolset.call_tool(self.name, checked, run, self._tool))
        except ValidationError as problem:
            message = problem.errors(include_url=False, include_context=False, include_input=False)
            raise ToolError(f"The arguments do not fit: {message}", code="invalid_tool_args") from None
        except (theirs.ModelRetry, theirs.ToolFailed) as problem:
            raise ToolError(problem.message) from None
        except (theirs.CallDeferred, theirs.ApprovalRequired):
            raise ToolError("This tool wants to be answered later, which it cannot be here.") from None


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
        tool_call_approved=True,  # or it would not have begun
        run_id=context.turn_id,
        conversation_id=context.session_id,
    )


def _result(value: object) -> ToolExecutionResult:
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
        ToolResultImage(one.base64, one.media_type)
        for one in parts
        if isinstance(one, BinaryContent) and one.media_type in IMAGE_TYPES
    ]
    plain = "see the picture" if isinstance(value, BinaryContent) else to_jsonable_python(value)
    texts = [one for one in shown if isinstance(one, str)]
    told = {"value": plain, "content": texts} if texts else plain
    return ToolExecutionResult.success_with_images(told, images) if images else ToolExecutionResult.success(told)
