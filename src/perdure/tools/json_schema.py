"""Checking a call's arguments against a JSON schema that somebody else wrote, in words that help to repair the call."""

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
    """What is wrong with the arguments, one line each; empty if nothing is."""
    from referencing.exceptions import Unresolvable

    try:
        lines = mismatches(schema, args)
    except Unresolvable as problem:
        return f"The arguments cannot be checked; the tool was not run. Its schema refers to {problem.ref}, not in it"
    return "\n".join(["The arguments are not valid; the tool was not run.", *lines]) if lines else ""


def mismatches(schema: Json, value: Json) -> list[str]:
    """Where a value does not fit a schema, one line each, the first few.

    Raises:
        Unresolvable: the schema refers to something that is not in it.
    """
    found = sorted(_validator(codec.canonical(schema)).iter_errors(value), key=lambda one: one.json_path)
    rest = [f"- and {len(found) - _MAX_PROBLEMS} more"] if len(found) > _MAX_PROBLEMS else []
    return [*(f"- {one.json_path}: {one.message}" for one in found[:_MAX_PROBLEMS]), *rest]


def problem_of(schema: Json) -> str | None:
    """Why this is not a schema for the arguments of a tool; None if it is one. Looked at once per content."""
    return _problem(codec.canonical(schema))


@lru_cache(maxsize=512)
def _problem(canonical: bytes) -> str | None:
    schema: Json = codec.decode(canonical)
    if not isinstance(schema, dict) or cast("dict[str, Json]", schema).get("type") != "object":
        return "it is not a JSON schema of type object"
    return schema_problem(schema)


def schema_problem(schema: Json) -> str | None:
    """Why nothing can be held against this schema; None if something can."""
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

    # One that knows nothing: the default registry would fetch a reference from the network.
    nothing: object = cast("Callable[[], object]", Registry)()
    extend = cast("Callable[..., Callable[..., _Validator]]", validators.extend)  # pyright: ignore[reportUnknownMemberType]
    return extend(Draft202012Validator, KEYWORDS)(codec.decode(schema), registry=nothing)
