"""The tools of an agent, and the one synchronous step between a model's call and its dispatch."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.errors import Code, Error
from perdure.tools.decorator import AnyTool, Tool
from perdure.tools.objects import SomeTool, as_tool
from perdure.tools.read_result import read_result
from perdure.vocab.messages import ToolCall
from perdure.vocab.outcomes import Failure
from perdure.vocab.tools import Durability, ToolContract

if TYPE_CHECKING:
    from perdure.tools.registry import ToolRegistry

_SHOWN_CHARS = 400


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call that may be dispatched: today's function, with the durability its turn began with."""

    tool: AnyTool
    arguments: dict[str, object]
    contract: ToolContract
    readable: bool = True
    """Whether the model can go on reading a result that is too long to be shown whole."""

    @property
    def durability(self) -> Durability:
        """The promises that govern this call, whatever has been deployed since."""
        return self.contract.durability


class Toolbox:
    """Tools by name, in the order they were given."""

    def __init__(self, tools: Iterable[SomeTool] = ()) -> None:
        self._tools: dict[str, AnyTool] = {}
        for one in tools:
            self._add(as_tool(one))

    @functools.cached_property
    def registry(self) -> ToolRegistry:
        """The same tools for those who look at their siblings."""
        from perdure.tools.registry import ToolRegistry

        return ToolRegistry(self._tools.values())

    def _add(self, one: AnyTool) -> None:
        if not isinstance(one, Tool):  # pyright: ignore[reportUnnecessaryIsInstance] - an undecorated function
            shown = getattr(one, "__name__", type(one).__name__)
            raise Error(Code.TOOL_INVALID, f"{shown} is not a tool", hint="decorate it with @tool")
        if one.name in self._tools:
            raise Error(
                Code.TOOL_INVALID,
                f"two tools are called {one.name}",
                hint='rename one of them: @tool(name="...")',
                tool=one.name,
            )
        self._tools[one.name] = one

    def __iter__(self) -> Iterator[AnyTool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def get(self, name: str) -> AnyTool | None:
        """The tool of that name."""
        return self._tools.get(name)

    def contracts(self) -> tuple[ToolContract, ...]:
        """What a turn captures.

        Raises:
            Error: `tool_invalid` if a tool's arguments have no JSON schema.
        """
        return tuple(one.contract for one in self._tools.values())

    def prepare(self, call: ToolCall, captured: ToolContract | None) -> Prepared | Failure:
        """Everything that can be known about a call before it is dispatched. A `Failure` answers it instead."""
        if call.malformed is not None:
            return _malformed(call, list(self._tools))
        if captured is None and call.name == read_result.name:
            captured, current = read_result.contract, read_result
        elif captured is None:
            return _unavailable(call.name, list(self._tools))
        else:
            current = self._tools.get(call.name)
        if current is None:
            return Failure(
                code="tool_removed",
                message=f"{call.name}: the tool was removed while this call was owed; it was not run",
                failure_class="unavailable",
            )
        bound = current.bind(call.args)
        if not isinstance(bound, Failure):
            own = read_result.name in self._tools
            return Prepared(tool=current, arguments=bound, contract=captured, readable=not own)
        if bound.code == "invalid_tool_args" and captured.arguments_digest != current.contract.arguments_digest:
            return Failure(
                code="tool_contract_changed",
                message=f"The arguments of {call.name} changed while this call was owed; it was not run. "
                + bound.message,
                failure_class="invalid",
            )
        return bound


def _unavailable(name: str, available: list[str]) -> Failure:
    return Failure(
        code="tool_unavailable",
        message=f"There is no tool {name!r}; nothing was run. The tools are: {', '.join(available) or 'none'}",
        failure_class="unavailable",
    )


def _malformed(call: ToolCall, available: list[str]) -> Failure:
    raw = call.malformed or ""
    shown = raw if len(raw) <= _SHOWN_CHARS else f"{raw[:_SHOWN_CHARS]}…"
    if call.name:
        message = f"The arguments are not one JSON object; the tool was not run. Given: {shown}"
    else:
        message = f"The call names no tool; nothing was run. The tools are: {', '.join(available) or 'none'}"
    return Failure(code="invalid_tool_args", message=message, failure_class="invalid")
