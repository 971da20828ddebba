"""The type of a final answer: the schema shown to a model, and the validation of its answer.

pydantic (or msgspec, for its own structs) does the work and is loaded on first use.
"""

from __future__ import annotations

import logging
import re
import sys
from dataclasses import dataclass
from typing import Any, TypeAlias, cast, is_typeddict

import msgspec

from perdure.codec import Json, decode, encode
from perdure.errors import Code, Error

log = logging.getLogger("perdure.tools")

OutputType: TypeAlias = Any
"""A pydantic model, a dataclass, a TypedDict, a msgspec Struct, or another type with a JSON schema."""

_FENCED = re.compile(r"\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*", re.DOTALL)
_MAX_PROBLEM_CHARS = 1000


@dataclass(frozen=True, slots=True)
class OutputProblem:
    """The reason why a text is not the required output, in words that help a model to repair it."""

    message: str


@dataclass(frozen=True, slots=True)
class Output:
    """The required type of answers. `wrapped`: any type but an object is requested as an object with one `value`."""

    type: OutputType
    name: str
    schema: Json
    wrapped: bool

    @property
    def spec(self) -> Json:
        """The name and schema sent to a model."""
        return {"name": self.name, "schema": self.schema}

    def parse(self, text: str) -> object | OutputProblem:
        """Parse a text into a value, or return the problem."""
        try:
            value: Json = plain(text)
        except Error as problem:
            return OutputProblem(f"it is not JSON: {problem.because}"[:_MAX_PROBLEM_CHARS])
        if self.wrapped:
            if not isinstance(value, dict) or "value" not in value:
                return OutputProblem('it must be a JSON object with the field "value"')
            value = cast("dict[str, Json]", value)["value"]
        return self._checked(encode(value))

    def _checked(self, data: bytes) -> object | OutputProblem:
        try:
            return _struct(self.type, data) if _is_struct(self.type) else _modelled(self.type, data)
        except BaseException:
            # A validator of the application failed. The model learns only that the check failed.
            log.exception("output validation failed")
            return OutputProblem("it could not be checked")


def _struct(type: OutputType, data: bytes) -> object | OutputProblem:
    try:
        return msgspec.json.decode(data, type=type)
    except msgspec.ValidationError as problem:
        return OutputProblem(str(problem)[:_MAX_PROBLEM_CHARS])


def _modelled(type: OutputType, data: bytes) -> object | OutputProblem:
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(type).validate_json(data)
    except ValidationError as problem:
        found = [f"{'.'.join(map(str, one['loc'])) or 'value'}: {one['msg']}" for one in problem.errors()]
        return OutputProblem("; ".join(found)[:_MAX_PROBLEM_CHARS])


def plain(text: str) -> Json:
    """Return the JSON of an answer, with or without a code fence.

    Raises:
        Error: `invalid_json`.
    """
    fenced = _FENCED.fullmatch(text)
    return decode(fenced.group(1) if fenced else text)


async def schema_problem_of(spec: Json, text: str) -> OutputProblem | None:
    """Return the problem of an answer checked by schema alone, or None."""
    from perdure.tools.json_schema import mismatches

    try:
        value: Json = plain(text)
    except Error as problem:
        return OutputProblem(f"it is not JSON: {problem.because}"[:_MAX_PROBLEM_CHARS])
    found = await mismatches(cast("dict[str, Json]", spec)["schema"], value)
    return OutputProblem("; ".join(found)[:_MAX_PROBLEM_CHARS]) if found else None


def output_of(type: OutputType) -> Output:
    """Return the output definition for a type.

    Raises:
        Error: `agent_invalid` if it has no JSON schema.
    """
    name = re.sub(r"[^A-Za-z0-9_-]", "_", getattr(type, "__name__", str(type)))[:64] or "output"
    try:
        schema = _schema(type)
    except Exception as problem:
        raise Error(
            Code.AGENT_INVALID,
            f"{name} cannot be the output of an agent",
            because=f"no JSON schema: {problem}",
            hint="use a pydantic model, a dataclass, a TypedDict, a msgspec Struct or a plain type",
        ) from problem
    if schema.get("type") == "object":
        return Output(type, name, schema, wrapped=False)
    definitions = schema.pop("$defs", None)
    wrapped: Json = {"type": "object", "properties": {"value": schema}, "required": ["value"]}
    if definitions:
        wrapped["$defs"] = definitions
    return Output(type, name, wrapped, wrapped=True)


def _schema(type: OutputType) -> dict[str, Json]:
    if _is_struct(type):
        (schema,), definitions = msgspec.json.schema_components([type], ref_template="#/$defs/{name}")
        return _inlined(schema, definitions)
    from pydantic import TypeAdapter

    found = TypeAdapter(type).json_schema()
    return _inlined(found, found.pop("$defs", {}))


def _inlined(schema: dict[str, Json], definitions: dict[str, Json]) -> dict[str, Json]:
    """Resolve a top-level reference, because providers require an object there."""
    if "$ref" in schema:
        schema = {**definitions[schema["$ref"].rpartition("/")[2]]}
    return (
        {**schema, "$defs": definitions}
        if definitions and '"$ref"' in encode((schema, definitions)).decode()
        else schema
    )


def _is_struct(type: OutputType) -> bool:
    """Return True for types that msgspec handles better: its structs, and before 3.12 the TypedDict of `typing`."""
    if is_typeddict(type):
        return sys.version_info < (3, 12) and type.__class__.__module__ == "typing"
    try:
        return issubclass(type, msgspec.Struct)
    except TypeError:
        return False
