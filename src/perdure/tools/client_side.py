"""Tools that run outside: in the client that shows the session, or as questions to a person.

Law: such a tool never runs in this process. The call is emitted, the session waits, and the client posts the result.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from perdure.codec import Json, to_json
from perdure.errors import Code, Error
from perdure.tools.decorator import AnyTool, raw_tool
from perdure.tools.json_schema import problem_of, schema_problem
from perdure.tools.schema import RawArguments, result_schema
from perdure.vocab.outcomes import FailureDetail
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
    result_type: Json | type[object] = None,
    timeout: float | str | None = None,
    title: str = "",
    hints: ToolHints | None = None,
) -> AnyTool:
    """Return a tool that the client runs: a definition without a body.

    Results are posted with `session.post_result`. `parameters` is the JSON schema of the arguments. `result` is a
    schema or type for posted results; without it they are not checked. Without `timeout`, the session waits forever.

    Raises:
        Error: `tool_invalid` for an invalid schema, name or duration.
    """
    try:
        problem = problem_of(parameters)
    except (Error, TypeError, ValueError) as wrong:
        problem = f"not JSON: {wrong}"
    if problem:
        raise Error(Code.TOOL_INVALID, f"the tool {name}: invalid parameters", because=problem)
    made = raw_tool(
        _elsewhere,
        name,
        RawArguments(parameters),
        description=description,
        client_side=True,
        timeout=timeout,
        title=title,
        hints=hints,
    )
    return made if result_type is None else replace(made, returns=_checked(name, result_type))


def _checked(name: str, result: Json | type[object]) -> Json:
    schema = result_schema(result, name) if isinstance(result, type) else to_json(result, where="the result schema")
    if problem := schema_problem(schema):
        raise Error(Code.TOOL_INVALID, f"the tool {name}: invalid result schema", because=problem, tool=name)
    return schema


class _Questions(RawArguments):
    """The arguments of `ask_user`: the questions of one call."""

    def bind(self, args: Json) -> dict[str, object] | FailureDetail:
        bound = super().bind(args)
        if isinstance(bound, FailureDetail):
            return bound
        if self.unchecked(args) is not None:
            message = "The questions are too long and were not asked. Ask fewer, with shorter texts"
            return FailureDetail(code="invalid_tool_args", message=message, failure_class="invalid")
        questions = questions_of(args)
        problem = problem_of_questions(questions)
        message = f"The questions are invalid and were not asked. {problem}"
        return FailureDetail(code="invalid_tool_args", message=message, failure_class="invalid") if problem else bound


def asking(*, timeout: float | str | None = "1d", name: str = ASK_USER) -> AnyTool:
    """Return a tool by which the model asks the user typed questions, answered with `session.answer`.

    After the timeout, choices with a default count as answered with it. Without any default, the call fails.

    Raises:
        Error: `tool_invalid` for an invalid duration.
    """
    description = (
        "Ask the person you work for, when you cannot go on without their answer. Ask everything you need at once. "
        "kind is choice (with options; default counts if there is no answer), text, or secret: then the answer is "
        "a reference, such as secret:…, to hand to a tool that takes one. Ask for passwords and keys only as secret."
    )
    made = raw_tool(
        _elsewhere,
        name,
        _Questions(QUESTIONS_SCHEMA),
        description=description,
        client_side=True,
        timeout=timeout,
        title="Ask User",
        hints=ToolHints(readonly=True),
    )
    return replace(made, asks_person=True)


ask_user = asking()
"""The tool `ask_user` with a timeout of one day."""
