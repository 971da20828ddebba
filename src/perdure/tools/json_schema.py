"""Check of values against a JSON schema from outside, with messages that help to repair them.

Laws: a schema is bounded when it is accepted. A check runs on the event loop only if its cost is bounded by the size of
schema and value; any other runs in a child process. A check never raises: what cannot be checked is a mismatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Protocol, cast

from perdure import codec
from perdure.codec import Json
from perdure.services.budgeted import Evaluated, evaluate
from perdure.tools.patterns import KEYWORDS, refused_pattern
from perdure.tools.schema_shape import MAX_DEPTH, shape_problem
from perdure.vocab.outcomes import FailureDetail

PRELOADED = ("jsonschema", "referencing", "pydantic_core")
"""Loaded by the child process before it checks anything."""

MAX_STEPS_HERE = 5_000
"""Most steps of a check on the event loop: values of the schema times parts of the value."""
MAX_CHARS_HERE = 4_096
_MAX_PROBLEMS = 10
_MAX_COUNTED = 1_000
_MAX_LINE_CHARS = 500
_MAX_KNOWN = 8_192
_UNBOUNDED = frozenset(
    {
        *("$ref", "$dynamicRef", "$recursiveRef"),
        *("pattern", "patternProperties", "uniqueItems", "unevaluatedProperties", "unevaluatedItems"),
    }
)
"""Keywords that can make a check cost more than its steps."""


class _Problem(Protocol):
    message: str
    json_path: str


class _Validator(Protocol):
    def iter_errors(self, instance: Json) -> Iterable[_Problem]: ...


# --- checking values


@dataclass(frozen=True, slots=True)
class SchemaCheck:
    """The check of a call's arguments, still to be made."""

    schema: Json
    args: Json

    async def bound(self, arguments: dict[str, object]) -> dict[str, object] | FailureDetail:
        """Return the bound arguments if they are valid, or the failure of the call."""
        return await self.refusal() or arguments

    async def refusal(self) -> FailureDetail | None:
        """Return the failure of the call, or None if its arguments are valid."""
        return _refusal(await mismatches(self.schema, self.args))


def checked_here(schema: Json, args: Json) -> FailureDetail | SchemaCheck | None:
    """Return the failure of a call with these arguments, None if they are valid, or the check if it costs too much."""
    found = _mismatches_here(schema, args)
    return SchemaCheck(schema, args) if found is None else _refusal(found)


def _refusal(lines: list[str]) -> FailureDetail | None:
    if not lines:
        return None
    message = "\n".join(["The arguments are not valid; the tool was not run.", *lines])
    return FailureDetail(code="invalid_tool_args", message=message, failure_class="invalid")


async def mismatches(schema: Json, value: Json) -> list[str]:
    """Return the mismatches between a value and a schema, one line each, limited in number."""
    found = _mismatches_here(schema, value)
    if found is not None:
        return found
    answer = await evaluate(evaluated_mismatches, schema, value)
    if isinstance(answer, Evaluated):
        return cast("list[str]", answer.value)
    return [f"- the schema cannot be checked: {answer.problem}"]


def _mismatches_here(schema: Json, value: Json) -> list[str] | None:
    """Return the mismatches, or None if finding them may cost too much for the event loop."""
    left = MAX_STEPS_HERE // _size(value, MAX_STEPS_HERE)
    if left == 0 or _size(schema, left + 1, keywords=True) > left:  # threat: S4, T-TOOL-03
        return None
    return evaluated_mismatches(schema, value)


def _size(value: Json, most: int, *, keywords: bool = False) -> int:
    """Return the number of values in a value, at least 1. More than `most` if it is unsuitable for the event loop."""
    count, chars, layer, depth = 0, 0, [value], 0
    while layer:
        count += len(layer)
        depth += 1
        if count > most or chars > MAX_CHARS_HERE or depth > MAX_DEPTH:
            return most + 1
        following: list[Json] = []
        for one in layer:
            match one:
                case dict():
                    members = cast("dict[str, Json]", one)
                    if keywords and not _UNBOUNDED.isdisjoint(members):
                        return most + 1
                    chars += 0 if keywords else sum(map(len, members))
                    following.extend(members.values())
                case list():
                    following.extend(cast("list[Json]", one))
                case str() if not keywords:
                    chars += len(one)
                case _:
                    pass
        layer = following
    return max(1, count) if chars <= MAX_CHARS_HERE else most + 1


def evaluated_mismatches(schema: Json, value: Json) -> list[str]:
    """Return the mismatches. The cost has no bound: call `mismatches` for a schema or a value from outside."""
    problems = islice(_validator(codec.canonical(schema)).iter_errors(value), _MAX_COUNTED)
    found = sorted(problems, key=lambda one: one.json_path)
    rest = [f"- and {len(found) - _MAX_PROBLEMS} more"] if len(found) > _MAX_PROBLEMS else []
    return [*(_line(one) for one in found[:_MAX_PROBLEMS]), *rest]


def _line(problem: _Problem) -> str:
    line = f"- {problem.json_path}: {problem.message}"
    return line if len(line) <= _MAX_LINE_CHARS else f"{line[:_MAX_LINE_CHARS]}…"


@lru_cache(maxsize=512)
def _validator(schema: bytes) -> _Validator:
    from jsonschema import Draft202012Validator, validators
    from referencing import Registry

    # An empty registry: the default one would fetch references from the network.
    nothing: object = cast("Callable[[], object]", Registry)()
    extend = cast("Callable[..., Callable[..., _Validator]]", validators.extend)  # pyright: ignore[reportUnknownMemberType]
    return extend(Draft202012Validator, KEYWORDS)(codec.decode(schema), registry=nothing)


# --- accepting schemas


_known: dict[bytes, str] = {}
"""Problems of schemas that were judged, by content. The empty text means none. Oldest first."""


def problem_of(schema: Json) -> str | None:
    """Return the reason why this is not a schema for tool arguments, or None.

    For schemas that the application declares. Those from outside are judged by `foreign_problem` first.
    """
    return _not_an_object(schema) or schema_problem(schema)


def schema_problem(schema: Json) -> str | None:
    """Return the reason why this schema of the application cannot validate values, or None. Cached by content."""
    if (problem := _not_a_schema(schema)) is not None:
        return problem
    name = codec.canonical(schema)
    if name not in _known:
        _remember(name, evaluated_problem(schema))
    return _known[name] or None


async def foreign_problem(schema: Json, *, arguments: bool = False) -> str | None:
    """Return the reason why a schema from outside is rejected, or None. Cached by content.

    With `arguments`, it must be the schema of tool arguments. The judgement runs in a child process.
    """
    problem = (_not_an_object(schema) if arguments else None) or _not_a_schema(schema)
    if problem is not None:
        return problem
    name = codec.canonical(schema)
    if name not in _known:
        answer = await evaluate(evaluated_problem, schema)
        found = cast("str", answer.value) if isinstance(answer, Evaluated) else f"it takes too long: {answer.problem}"
        _remember(name, found)
        return found or None
    return _known[name] or None


def _remember(name: bytes, problem: str) -> None:
    _known[name] = problem
    while len(_known) > _MAX_KNOWN:
        del _known[next(iter(_known))]


def _not_an_object(schema: Json) -> str | None:
    if not isinstance(schema, dict) or cast("dict[str, Json]", schema).get("type") != "object":
        return "it is not a JSON schema of type object"
    return None


def _not_a_schema(schema: Json) -> str | None:
    return shape_problem(schema) if isinstance(schema, dict) else "it is not a JSON schema"


def evaluated_problem(schema: Json) -> str:
    """Return the problem of a bounded schema by the rules of JSON schema, or an empty text."""
    from jsonschema import Draft202012Validator, SchemaError

    try:
        cast("Callable[[Json], None]", Draft202012Validator.check_schema)(schema)
    except SchemaError as problem:
        return str(problem.message)[:_MAX_LINE_CHARS]
    return refused_pattern(schema)
