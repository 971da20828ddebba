"""Tools that are run elsewhere: by the client that shows the session, or by asking the person in front of it.

Law: nothing here is ever run in this process. Such a call is emitted, the session waits, and somebody posts the result.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from perdure.codec import Json, to_json
from perdure.errors import Code, Error
from perdure.tools.decorator import AnyTool, raw_tool
from perdure.tools.json_schema import problem_of, schema_problem
from perdure.tools.schema import RawArguments, result_schema
from perdure.vocab.outcomes import Failure
from perdure.vocab.questions import QUESTIONS_SCHEMA, questions_of
from perdure.vocab.questions import problem_of as problem_of_questions
from perdure.vocab.tools import ToolHints

if TYPE_CHECKING:
    from perdure.tools.context import ToolContext

ASK_USER = "ask_user"


async def _elsewhere(ctx: ToolContext[object], arguments: dict[str, Json]) -> None:
    raise NotImplementedError  # guarded by `run_attempt`


def client_tool(
    name: str,
    description: str,
    parameters: Json,
    *,
    result: Json | type[object] = None,
    timeout: float | str | None = None,
    display_name: str = "",
    hints: ToolHints | None = None,
) -> AnyTool:
    """A tool that the client runs: a definition without a body. Results are posted with `session.post_result`.

    `parameters` is the JSON schema of its arguments; `result` that of what is posted (or a type), if that is to be
    checked. Without `timeout`, the session waits as long as it takes.

    Raises:
        Error: `tool_invalid` for a schema, name or duration that makes no sense.
    """
    try:
        problem = problem_of(parameters)
    except (Error, TypeError, ValueError) as wrong:
        problem = f"they are not JSON: {wrong}"
    if problem:
        raise Error(Code.TOOL_INVALID, f"the tool {name}: its parameters cannot be used", because=problem)
    made = raw_tool(
        _elsewhere,
        name,
        RawArguments(parameters),
        description=description,
        client_side=True,
        timeout=timeout,
        display_name=display_name,
        hints=hints,
    )
    return made if result is None else replace(made, returns=_checked(name, result))


def _checked(name: str, result: Json | type[object]) -> Json:
    schema = result_schema(result, name) if isinstance(result, type) else to_json(result, where="the result's schema")
    if problem := schema_problem(schema):
        raise Error(Code.TOOL_INVALID, f"the tool {name}: its result cannot be checked", because=problem, tool=name)
    return schema


class _Questions(RawArguments):
    """The questions of one call, as `ask_user` takes them."""

    def bind(self, args: Json) -> dict[str, object] | Failure:
        bound = super().bind(args)
        if isinstance(bound, Failure):
            return bound
        questions = questions_of(args)
        problem = problem_of_questions(questions)
        message = f"The questions cannot be asked; nobody was. {problem}"
        return Failure(code="invalid_tool_args", message=message, failure_class="invalid") if problem else bound


def asking(*, timeout: float | str | None = "1d", name: str = ASK_USER) -> AnyTool:
    """A tool by which the model asks the person typed questions; they answer with `session.answer`.

    When nobody answers in time, choices with a default count as answered by it; if there are none, the call fails.

    Raises:
        Error: `tool_invalid` for a duration that makes no sense.
    """
    description = (
        "Ask the person you work for, when you cannot go on without their answer. Ask everything you need at once. "
        "kind is choice (with options; default is what counts if nobody answers), text, or secret: then the answer is "
        "a reference, such as secret:…, to hand to a tool that takes one. Ask for passwords and keys only as secret."
    )
    made = raw_tool(
        _elsewhere,
        name,
        _Questions(QUESTIONS_SCHEMA),
        description=description,
        client_side=True,
        timeout=timeout,
        display_name="Ask User",
        hints=ToolHints(readonly=True),
    )
    return replace(made, asks_person=True)


ask_user = asking()
"""The tool `ask_user`, with a day for the answers."""
