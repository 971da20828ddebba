"""The tool `handoff`: a model gives its conversation to another agent."""

from __future__ import annotations

from typing import cast

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.tools.context import ToolContext
from perdure.tools.decorator import AnyTool, raw_tool
from perdure.tools.schema import RawArguments

NAME = "handoff"

_DESCRIPTION = (
    "Give this conversation to another agent. It sees the whole conversation and answers instead of you, now and "
    "from now on. Nothing you write after this call is read."
)


def handoff(*agents: str) -> AnyTool:
    """Return a tool by which a model hands its conversation over to one of these agents.

    Raises:
        Error: `tool_invalid` if no agent is named.
    """
    if not agents:
        raise Error(Code.TOOL_INVALID, f"{NAME} needs at least one agent", hint='handoff("billing", "refunds")')
    parameters: Json = {
        "type": "object",
        "properties": {
            "to": {"type": "string", "enum": list(agents), "description": "Which agent"},
            "reason": {"type": "string", "description": "What that agent should know"},
        },
        "required": ["to"],
        "additionalProperties": False,
    }

    async def run(ctx: ToolContext[object], arguments: dict[str, Json]) -> Json:
        to, reason = cast("str", arguments["to"]), cast("str", arguments.get("reason", ""))
        await ctx.sessions.hand_over(to, reason)
        return f"The conversation was handed over to {to}." + (f" {reason}" if reason else "")

    return raw_tool(
        run, NAME, RawArguments(parameters), description=_DESCRIPTION, effect="idempotent", title="Hand Off"
    )
