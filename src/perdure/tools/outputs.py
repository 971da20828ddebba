"""The type of a final answer: the schema a model is shown, and the check its answer must pass.

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
"""A type: a pydantic model, a dataclass, a TypedDict, a msgspec Struct, or any other type that has a JSON schema."""

_FENCED = re.compile(r"\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*", re.DOTALL)
_MAX_PROBLEM_CHARS = 1000


@dataclass(frozen=True, slots=True)
class OutputProblem:
    """Why a text is not the wanted output, in words that help a model to repair it."""

    message: str


@dataclass(frozen=True, slots=True)
class Output:
    """A type that answers must have. `wrapped`: it is no object, so a model is asked for an object with one `value`."""

    type: OutputType
    name: str
    schema: Json
    wrapped: bool

    @property
    def spec(self) -> Json:
        """What a model is told."""
        return {"name": self.name, "schema": self.schema}

    def parse(self, text: str) -> object | OutputProblem:
        """The value a text stands for, or what is wrong with it."""
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
            # A validator of the application failed: its bug, of which the model learns only that it happened.
            log.exception("the validation of an output failed")
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
    """The JSON in an answer; models like to fence it.

    Raises:
        Error: `invalid_json`.
    """
    fenced = _FENCED.fullmatch(text)
    return decode(fenced.group(1) if fenced else text)


def schema_problem_of(spec: Json, text: str) -> OutputProblem | None:
    """What is wrong with an answer of which only the schema is known; None if nothing is."""
    from perdure.tools.json_schema import mismatches

    try:
        value: Json = plain(text)
    except Error as problem:
        return OutputProblem(f"it is not JSON: {problem.because}"[:_MAX_PROBLEM_CHARS])
    found = mismatches(cast("dict[str, Json]", spec)["schema"], value)
    return OutputProblem("; ".join(found)[:_MAX_PROBLEM_CHARS]) if found else None


def output_of(type: OutputType) -> Output:
    """A type as an output.

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
            because=f"it has no JSON schema: {problem}",
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
    """A schema whose top is no reference: providers want to see an object there."""
    if "$ref" in schema:
        schema = {**definitions[schema["$ref"].rpartition("/")[2]]}
    return (
        {**schema, "$defs": definitions}
        if definitions and '"$ref"' in encode((schema, definitions)).decode()
        else schema
    )


def _is_struct(type: OutputType) -> bool:
    """What msgspec knows better: its own structs, and before 3.12 the TypedDict of `typing`."""
    if is_typeddict(type):
        return sys.version_info < (3, 12) and type.__class__.__module__ == "typing"
    try:
        return issubclass(type, msgspec.Struct)
    except TypeError:
        return False
