"""Check of arguments against a JSON schema from outside, with messages that help to repair the call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Protocol, cast

from perdure import codec
from perdure.codec import Json
from perdure.tools.patterns import KEYWORDS, refused_pattern

_MAX_PROBLEMS = 10


class _Problem(Protocol):
    message: str
    json_path: str


class _Validator(Protocol):
    def iter_errors(self, instance: Json) -> Iterable[_Problem]: ...


def violations(schema: Json, args: Json) -> str:
    """Return the problems of the arguments, one line each, or an empty string."""
    from referencing.exceptions import Unresolvable

    try:
        lines = mismatches(schema, args)
    except Unresolvable as problem:
        return f"The arguments cannot be checked; the tool was not run. Its schema has a bad reference: {problem.ref}"
    return "\n".join(["The arguments are not valid; the tool was not run.", *lines]) if lines else ""


def mismatches(schema: Json, value: Json) -> list[str]:
    """Return the mismatches between a value and a schema, one line each, limited in number.

    Raises:
        Unresolvable: the schema contains a reference to another document.
    """
    found = sorted(_validator(codec.canonical(schema)).iter_errors(value), key=lambda one: one.json_path)
    rest = [f"- and {len(found) - _MAX_PROBLEMS} more"] if len(found) > _MAX_PROBLEMS else []
    return [*(f"- {one.json_path}: {one.message}" for one in found[:_MAX_PROBLEMS]), *rest]


def problem_of(schema: Json) -> str | None:
    """Return the reason why this is not a schema for tool arguments, or None. Cached by content."""
    return _problem(codec.canonical(schema))


@lru_cache(maxsize=512)
def _problem(canonical: bytes) -> str | None:
    schema: Json = codec.decode(canonical)
    if not isinstance(schema, dict) or cast("dict[str, Json]", schema).get("type") != "object":
        return "it is not a JSON schema of type object"
    return schema_problem(schema)


def schema_problem(schema: Json) -> str | None:
    """Return the reason why this schema cannot validate values, or None."""
    from jsonschema import Draft202012Validator, SchemaError

    if not isinstance(schema, dict):
        return "it is not a JSON schema"
    try:
        cast("Callable[[Json], None]", Draft202012Validator.check_schema)(schema)
    except SchemaError as problem:
        return str(problem.message)
    return refused_pattern(schema) or None


@lru_cache(maxsize=512)
def _validator(schema: bytes) -> _Validator:
    from jsonschema import Draft202012Validator, validators
    from referencing import Registry

    # An empty registry: the default one would fetch references from the network.
    nothing: object = cast("Callable[[], object]", Registry)()
    extend = cast("Callable[..., Callable[..., _Validator]]", validators.extend)  # pyright: ignore[reportUnknownMemberType]
    return extend(Draft202012Validator, KEYWORDS)(codec.decode(schema), registry=nothing)
