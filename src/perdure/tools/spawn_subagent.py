"""The tool `spawn_subagent`: a model gives a task to another agent."""

from __future__ import annotations

from typing import Literal, cast

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.tools.context import ToolContext
from perdure.tools.decorator import AnyTool, raw_tool
from perdure.tools.errors import ToolError
from perdure.tools.json_schema import foreign_problem
from perdure.tools.outputs import Output
from perdure.tools.schema import RawArguments

NAME = "spawn_subagent"

_DESCRIPTION = (
    "Give a task to another agent, which works on it in a separate session and sees nothing of this conversation: "
    "say everything it needs. In the foreground you wait for its answer. In the background you get the name of its "
    "session at once and continue; you receive its answer when it is done."
)


def spawn_subagent(*agents: str, mode: Literal["foreground", "background"] = "background") -> AnyTool:
    """Return a tool by which a model starts these agents. `mode` is the default for calls without a mode.

    Raises:
        Error: `tool_invalid` if no agent is named.
    """
    if not agents:
        raise Error(Code.TOOL_INVALID, f"{NAME} needs at least one agent", hint='spawn_subagent("writer", "critic")')
    parameters: Json = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "enum": list(agents), "description": "Which agent"},
            "task": {"type": "string", "minLength": 1, "description": "The task"},
            "mode": {"type": "string", "enum": ["foreground", "background"], "description": f"{mode} if not given"},
            "result_schema": {"type": "object", "description": "Optional JSON schema that the answer must match"},
        },
        "required": ["name", "task"],
        "additionalProperties": False,
    }

    async def run(ctx: ToolContext[object], arguments: dict[str, Json]) -> Json:
        agent, task = cast("str", arguments["name"]), cast("str", arguments["task"])
        wanted = await _output(arguments.get("result_schema"))
        client = ctx.agent(agent)
        if arguments.get("mode", mode) == "background":
            child = await client.start(task, output=wanted)
            return {"agent": agent, "session": child.session, "status": "running"}
        return await client.ask(task, output=cast("type[object]", wanted))

    return raw_tool(
        run, NAME, RawArguments(parameters), description=_DESCRIPTION, effect="resumable", title="Spawn Subagent"
    )


async def _output(schema: Json) -> Output | None:
    if schema is None:
        return None
    if problem := await foreign_problem(schema):
        raise ToolError(f"invalid result_schema: {problem}", code="invalid_argument")
    return Output(object, "result", schema, wrapped=False)
