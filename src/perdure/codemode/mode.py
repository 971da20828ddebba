"""The tool through which a model writes programs."""

from __future__ import annotations

from importlib.util import find_spec

import msgspec

from perdure.codec import Json
from perdure.codemode.limits import Limits
from perdure.codemode.program import Failure, Program
from perdure.errors import Code, Error
from perdure.tools.context import ToolContext
from perdure.tools.decorator import Tool, tool
from perdure.tools.errors import ToolError

DESCRIPTION = (
    "Run a Python program. Every other tool you have is a function in it: call it with keyword arguments, as in "
    '`rows = search(query="x")`; it returns the tool\'s result and raises RuntimeError if the tool fails. '
    'To make several calls at once: `import asyncio` and `await asyncio.gather(search(query="x"), search(query="y"))`. '
    "Use a program when a task takes several calls, loops, or results that you do not have to see: only what you print "
    "and the value of the last expression come back. Variables and functions stay for your next program. There are no "
    "files, no network, and few modules (json, re, math, datetime, random). After an error, fix the program: calls "
    "that were made stay made, so do not make them again."
)


def code_mode(*, name: str = "run_python", limits: Limits | None = None, description: str = "") -> Tool[..., object]:
    """Code mode as a tool: `Agent(tools=[search, refund, code_mode()])`.

    The model writes Python that calls the agent's other tools as functions. Each such call is an effect of its own,
    with the class, the approval and the doubt policy of its tool; a crash resumes inside the program and repeats none.

    Raises:
        Error: `tool_package_missing` without the extra `code`.
    """
    most = limits or Limits()
    if find_spec("pydantic_monty") is None:
        raise Error(
            Code.TOOL_PACKAGE_MISSING,
            "code mode needs an interpreter that is not installed",
            because="pydantic_monty cannot be imported",
            hint="pip install 'perdure[code]'",
        )

    @tool(effect="resumable", serial=True, name=name, description=description or DESCRIPTION)
    async def run_python(ctx: ToolContext, code: str) -> Json:
        if ctx.durable_effects().place.inner:
            message = f"{ctx.tool_name} is no function of a program: write what it shall do into this one"
            raise ToolError(message, code="nested_too_deep")
        told = await Program(ctx, code, most).run()
        if isinstance(told, Failure):
            raise ToolError(told.message, code=told.code)
        return msgspec.to_builtins(told)

    return run_python
