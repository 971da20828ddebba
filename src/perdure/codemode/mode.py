"""The tool by which a model runs programs."""

from __future__ import annotations

from importlib.util import find_spec

import msgspec

from perdure.codec import Json
from perdure.codemode.limits import ProgramLimits
from perdure.codemode.program import Program, ProgramFailure
from perdure.errors import Code, Error
from perdure.tools.context import ToolContext
from perdure.tools.decorator import Tool, tool
from perdure.tools.durable import body_of
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


def code_mode(
    *, name: str = "run_python", limits: ProgramLimits | None = None, description: str = ""
) -> Tool[..., object]:
    """Return code mode as a tool: `Agent(tools=[search, refund, code_mode()])`.

    The model writes Python that calls the agent's other tools as functions. Each call is a separate effect, with the
    class, approval and doubt policy of its tool. After a crash the program resumes, and no recorded call is repeated.

    Raises:
        Error: `tool_package_missing` without the extra `code`.
    """
    most = limits or ProgramLimits()
    if find_spec("pydantic_monty") is None:
        raise Error(
            Code.TOOL_PACKAGE_MISSING,
            "the interpreter for code mode is not installed",
            because="pydantic_monty cannot be imported",
            hint="pip install 'perdure[code]'",
        )

    @tool(effect="resumable", sequential=True, name=name, description=description or DESCRIPTION)
    async def run_python(ctx: ToolContext, code: str) -> Json:
        if body_of(ctx).place.inner:
            message = f"{ctx.tool_name} cannot be called in a program: include its code in this program"
            raise ToolError(message, code="nested_too_deep")
        told = await Program(ctx, code, most).run()
        if isinstance(told, ProgramFailure):
            raise ToolError(told.message, code=told.code)
        return msgspec.to_builtins(told)

    return run_python
