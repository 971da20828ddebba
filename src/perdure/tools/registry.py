"""Tools by name, for an agent or for direct calls.

A direct call gets the same checks and outcomes as a call in a turn, but is not recorded. An agent's calls go through
its session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence

from perdure.errors import Code, Error
from perdure.ids import SessionId, TurnId
from perdure.session.view import message_for_model
from perdure.tools.context import ToolContext
from perdure.tools.decorator import Tool
from perdure.tools.door import admit_direct
from perdure.tools.execute import Sidecar, ToolThreads, run_to_end
from perdure.tools.execution_result import ToolCallResult
from perdure.tools.objects import BaseTool, SomeTool, as_tool
from perdure.tools.toolbox import Toolbox
from perdure.vocab.messages import ToolCall
from perdure.vocab.outcomes import Failed, FailureDetail, Success, ToolOutput
from perdure.vocab.tools import ToolDefinition


class ToolRegistry:
    """Tools in registration order. A name registered again replaces the tool in its position."""

    def __init__(self, tools: Iterable[SomeTool] = ()) -> None:
        self._tools: dict[str, SomeTool] = {}
        for one in tools:
            self.register(one)

    @staticmethod
    def builder() -> ToolRegistryBuilder:
        """Return a builder with chained calls."""
        return ToolRegistryBuilder()

    @staticmethod
    def with_defaults() -> ToolRegistry:
        """Return a registry of the tools without services and the file tools."""
        from perdure.tools.builtin import default_tools
        from perdure.tools.files import file_tools

        return ToolRegistry((*default_tools(), *file_tools()))

    def register(self, tool: SomeTool) -> None:
        """Add a tool, or replace the one with the same name.

        Raises:
            Error: `tool_invalid` for something that is not a tool.
        """
        if not isinstance(tool, Tool | BaseTool):  # pyright: ignore[reportUnnecessaryIsInstance] - from outside
            shown = getattr(tool, "__name__", type(tool).__name__)
            raise Error(Code.TOOL_INVALID, f"{shown} is not a tool", hint="decorate it with @tool")
        self._tools[tool.name] = tool

    def unregister(self, name: str) -> SomeTool | None:
        """Remove and return a tool, or return None."""
        return self._tools.pop(name, None)

    def clear(self) -> None:
        """Remove all tools."""
        self._tools.clear()

    def get(self, name: str) -> SomeTool | None:
        """Return the tool with this name, or None."""
        return self._tools.get(name)

    def has(self, name: str) -> bool:
        """Return True if a tool with this name is registered."""
        return name in self._tools

    def tool_names(self) -> tuple[str, ...]:
        """Return the names, in order."""
        return tuple(self._tools)

    def tool_definitions(self) -> tuple[ToolDefinition, ...]:
        """Return the definitions for a model, in order."""
        return tuple(one.to_definition() for one in self._tools.values())

    @property
    def is_empty(self) -> bool:
        """True if no tool is registered."""
        return not self._tools

    def __len__(self) -> int:
        return len(self._tools)

    def __iter__(self) -> Iterator[SomeTool]:
        return iter(tuple(self._tools.values()))

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __repr__(self) -> str:
        return f"ToolRegistry(tools={list(self._tools)})"

    # --- direct calls; a tool that needs approval is refused, because no approver can be asked

    async def execute(self, call: ToolCall, definition: ToolDefinition | None = None) -> ToolCallResult:
        """Call a tool with only its arguments.

        Raises:
            Error: `tool_unknown`. All other failures are in the result.
        """
        return await self._call(call, None)

    async def execute_with_context(
        self, call: ToolCall, definition: ToolDefinition | None, context: ToolContext[object]
    ) -> ToolCallResult:
        """Call a tool with a context.

        Raises:
            Error: `tool_unknown`. All other failures are in the result.
        """
        return await self._call(call, context)

    async def execute_batch(
        self, calls: Sequence[ToolCall], definitions: Iterable[ToolDefinition]
    ) -> tuple[ToolCallResult, ...]:
        """Call tools one after the other. A call without a definition stops the batch; earlier calls have run.

        Raises:
            Error: `tool_unknown`.
        """
        known = {definition.name: definition for definition in definitions}
        return tuple([await self.execute(call, _defined(call, known)) for call in calls])

    async def execute_parallel(
        self, calls: Sequence[ToolCall], definitions: Iterable[ToolDefinition]
    ) -> tuple[ToolCallResult, ...]:
        """Call tools concurrently. Results are in the order of the calls. All calls run, regardless of failures.

        Raises:
            Error: `tool_unknown`, for the first unknown tool.
        """
        known = {definition.name: definition for definition in definitions}

        async def one(call: ToolCall) -> ToolCallResult:
            return await self.execute(call, _defined(call, known))

        ended = await asyncio.gather(*(one(call) for call in calls), return_exceptions=True)
        return tuple(_result(end) for end in ended)

    async def _call(self, call: ToolCall, context: ToolContext[object] | None) -> ToolCallResult:
        found = self._tools.get(call.name)
        if found is None:
            raise _unknown("Tool not found", call.name)
        tool = as_tool(found, with_context=context is not None)
        if context is None and isinstance(found, Tool) and tool.arguments.context is not None:
            return _failed(call, f"The tool {call.name} needs a context: use execute_with_context")
        prepared = Toolbox((tool,)).prepare(call, tool.contract)
        if isinstance(prepared, FailureDetail):
            return _failed(call, prepared.message)
        checked = await prepared.checked()
        admitted = checked if isinstance(checked, FailureDetail) else admit_direct(checked)
        if isinstance(admitted, FailureDetail):
            return _failed(call, admitted.message)
        sidecar = Sidecar()
        threads = ToolThreads(1)
        try:
            output = await run_to_end(admitted, context or _detached(call), threads=threads, sidecar=sidecar)
        finally:
            threads.close()
        return _answer(call, output, sidecar)


class ToolRegistryBuilder:
    """Builder of a registry: `ToolRegistry.builder().tool(a).tool(b).build()`."""

    def __init__(self) -> None:
        self._registry = ToolRegistry()

    def tool(self, tool: SomeTool) -> ToolRegistryBuilder:
        """Add a tool."""
        self._registry.register(tool)
        return self

    def build(self) -> ToolRegistry:
        """Return the registry."""
        return self._registry


def _defined(call: ToolCall, known: dict[str, ToolDefinition]) -> ToolDefinition:
    if call.name not in known:
        raise _unknown("Tool definition not found", call.name)
    return known[call.name]


def _unknown(what: str, name: str) -> Error:
    return Error(Code.TOOL_UNKNOWN, f"{what}: {name}", hint="register it first", tool=name)


def _result(end: ToolCallResult | BaseException) -> ToolCallResult:
    if isinstance(end, BaseException):
        raise end
    return end


def _detached(call: ToolCall) -> ToolContext[object]:
    return ToolContext(session_id=SessionId(""), turn_id=TurnId(""), call_id=call.id, tool_name=call.name)


def _failed(call: ToolCall, message: str) -> ToolCallResult:
    return ToolCallResult(call.id, result={"error": message}, error=message)


def _answer(call: ToolCall, output: ToolOutput, sidecar: Sidecar) -> ToolCallResult:
    match output:
        case Success(value=value, connection_required=provider):
            return ToolCallResult(
                call.id,
                result=value,
                images=tuple(sidecar.images) or None,
                connection_required=provider or None,
                raw_output=sidecar.raw_output,
            )
        case Failed(failure=failure):
            return _failed(call, failure.message)
        case _:
            return _failed(call, message_for_model(output)[0]["error"])
