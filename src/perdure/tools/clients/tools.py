"""The client `ctx.tools`: the other tools of the agent, from inside a tool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from perdure.codec import Json
from perdure.tools.clients.dispatch import ChildCall, ChildResult, Dispatch
from perdure.tools.services import Services, required
from perdure.vocab.tools import ToolDefinition

AskedCall: TypeAlias = tuple[str, Json] | ChildCall
"""A call of a batch: the tool's name and the arguments."""


class ToolsClient:
    """Operations of a tool on the other tools of its turn. Calls of a missing service raise a `ToolError`."""

    def __init__(self, dispatch: Callable[[], Dispatch], services: Services) -> None:
        self._dispatch = dispatch
        self._services = services

    async def call(self, name: str, args: Json = None, *, step: str, call_id: str = "") -> ChildResult:
        """Run one other tool as a named step of a resumable body, or replay it from the log.

        The tool's own class, approval and doubt policy apply. A `resumable` child has a nested body, which is parked
        and re-entered together with this one.

        Raises:
            Error: `durable_effects_unavailable` where the body is not resumable.
            ToolError: `nested_too_deep` in a body that another body has called.
        """
        return await self._dispatch().call(ChildCall(name, {} if args is None else args, call_id), step=step)

    async def batch(self, calls: Sequence[AskedCall]) -> tuple[ChildResult, ...]:
        """Run up to 25 other tools: `batch([("search", {"q": "tea"}), ("clock", {})])`.

        Results are in the order of the calls. A call that cannot run gets a result too. Parallel calls run first, then
        sequential ones, one at a time.

        `pure` tools run anywhere. Other tools need a record: inside a `resumable` body each child is a recorded step,
        including `once` ones. Elsewhere a child that is not `pure` results in `nested_effect_not_recorded`. So does a
        `resumable` child everywhere; use `call`. Outside a resumable body, each child has one attempt.

        Raises:
            ToolError: `nested_too_deep` in a body that another body has called.
        """
        asked = [ChildCall(*one) if isinstance(one, tuple) else one for one in calls] if _listed(calls) else calls
        return await self._dispatch().batch(asked)  # pyright: ignore[reportArgumentType] - the dispatcher checks

    def visible(self) -> tuple[ToolDefinition, ...]:
        """Return the agent's tools that the model can see, as captured for this turn."""
        services = self._services
        visible, found = services.visible_tool_names, services.tool_definitions
        if found is None:
            found = required(services.tool_registry, "tool_registry").tool_definitions()
        return tuple(one for one in found if visible is None or one.name in visible)


def _listed(calls: object) -> bool:
    return isinstance(calls, list | tuple)
