"""Conversion of a function's type hints and docstring into a JSON schema and an argument check.

pydantic does the work and is loaded on first use, so programs that only declare tools do not import it.
"""

from __future__ import annotations

import inspect
import logging
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, cast

from perdure import codec
from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.offload import LARGE_BYTES, offload
from perdure.tools.context import ToolContext
from perdure.tools.docstring import explain
from perdure.tools.json_schema import SchemaCheck, checked_here
from perdure.vocab.outcomes import FailureDetail

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic.fields import FieldInfo

logger = logging.getLogger("perdure.tools")

_MAX_PROBLEMS = 10
_SHOWN_CHARS = 120
_VALUES_HERE = 500
"""Most values in the arguments of a call that are checked in a step of the event loop. A step begins many calls."""
_CONTEXT_NAME = "ctx"


@dataclass(frozen=True, slots=True)
class Arguments:
    """The accepted arguments of a tool: as a schema, and as a check."""

    parameters: Json
    context: str | None
    checker: type[BaseModel]
    names: Mapping[str, str]
    """Parameter of the function, by field of the checker."""
    filled: frozenset[str]
    """Fields whose default the checker fills in. Other defaults are left to the function."""

    def bind(self, args: Json) -> dict[str, object] | FailureDetail:
        """Return the keyword arguments for the function, or a failure whose text helps to repair the call.

        If `unchecked` returns a check, the result is empty, and the check returns the arguments.
        """
        return {} if _is_wide(args) else self.convert(args)

    def convert(self, args: Json) -> dict[str, object] | FailureDetail:
        """Return the keyword arguments for the function, or a failure. Takes as long as the arguments are large."""
        from pydantic import ValidationError

        try:
            checked = self.checker.model_validate_json(codec.encode(args))
        except ValidationError as problem:
            return _invalid(_problems(problem, list(self.names.values())))
        except Exception as problem:
            # A validator of the application failed. The model learns only that the check failed.
            logger.exception("tool argument validation failed")
            return FailureDetail(
                code="internal_error",
                message="An internal error occurred while checking the arguments; the tool was not run",
                failure_class="internal",
                error_type=type(problem).__name__,
            )
        given = checked.model_fields_set | self.filled
        return {name: getattr(checked, field) for field, name in self.names.items() if field in given}

    def unchecked(self, args: Json) -> WideArguments | None:
        """Return the check of many values, which runs in a thread, or None."""
        return WideArguments(self, args) if _is_wide(args) else None


@dataclass(frozen=True, slots=True)
class WideArguments:
    """Arguments with many values, still to be checked: each value can be an error to format."""

    arguments: Arguments
    args: Json

    @property
    def schema(self) -> Json:
        """The schema of the arguments."""
        return self.arguments.parameters

    async def bound(self, _: dict[str, object]) -> dict[str, object] | FailureDetail:
        """Return the keyword arguments for the function, or a failure."""
        return await offload(LARGE_BYTES + 1, self.arguments.convert, self.args)


def _is_wide(args: Json) -> bool:
    """Return True if a value contains more values than a step of the event loop may check."""
    # threat: T-TOOL-03
    count, layer = 0, [args]
    while layer:
        following: list[Json] = []
        for one in layer:
            if isinstance(one, dict | list):
                count += len(cast("list[Json]", one))
                if count > _VALUES_HERE:
                    return True
                following.extend(
                    cast("dict[str, Json]", one).values() if isinstance(one, dict) else cast("list[Json]", one)
                )
        layer = following
    return False


@dataclass(frozen=True, slots=True)
class RawArguments:
    """Unconverted arguments: a JSON object, validated against the schema if `checked`."""

    parameters: Json
    checked: bool = True
    context: str | None = _CONTEXT_NAME

    def bind(self, args: Json) -> dict[str, object] | FailureDetail:
        """Return all arguments under one name. If `unchecked` returns a check, they are valid only if it succeeds."""
        if not isinstance(args, dict):
            return _invalid(f"The arguments are not one JSON object; the tool was not run. Given: {_shown(args)}")
        found = checked_here(self.parameters, args) if self.checked else None
        return found if isinstance(found, FailureDetail) else {"arguments": args}

    def unchecked(self, args: Json) -> SchemaCheck | None:
        """Return the check that `bind` leaves to a child process, or None."""
        found = checked_here(self.parameters, args) if self.checked else None
        return found if isinstance(found, SchemaCheck) else None


def result_schema(annotation: object, tool: str) -> Json:
    """Return the JSON schema of a type, for checking a client's results.

    Raises:
        Error: `tool_invalid` if the type has no schema.
    """
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        adapter = cast("Callable[[object], TypeAdapter[object]]", TypeAdapter)(annotation)
        return codec.to_json(adapter.json_schema(), where="the result schema")
    except (PydanticUserError, TypeError, NameError) as problem:
        raise Error(
            Code.TOOL_INVALID,
            f"the tool {tool}: its result has no JSON schema",
            because=str(problem).partition("\n")[0],
            hint="annotate the type that the client posts, or omit the annotation",
            tool=tool,
        ) from None


def _invalid(problems: str) -> FailureDetail:
    return FailureDetail(code="invalid_tool_args", message=problems, failure_class="invalid")


# --- reading the function ---------------------------------------------------------------------------------------


def check_signature(function: Callable[..., object], tool: str, *, typed_elsewhere: bool = False) -> None:
    """Reject parameters that cannot be passed by name.

    Raises:
        Error: `tool_invalid` naming the parameter.
    """
    for position, parameter in enumerate(_parameters(function).values()):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise _refused(tool, parameter, "a model passes arguments by name", "use an ordinary parameter")
        if parameter.kind is parameter.VAR_KEYWORD and not typed_elsewhere:
            raise _refused(tool, parameter, "its schema would accept anything", "name the parameters")
        if (
            parameter.annotation is parameter.empty
            and not typed_elsewhere
            and not _is_bare_context(parameter, position)
        ):
            raise _refused(tool, parameter, "a parameter needs a type", f"annotate it, e.g. {parameter.name}: str")


def _parameters(function: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    if sys.version_info >= (3, 14):
        # From 3.14 on, annotations are evaluated lazily and may name later definitions.
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF).parameters
    return inspect.signature(function).parameters


def _is_bare_context(parameter: inspect.Parameter, position: int) -> bool:
    return position == 0 and parameter.name == _CONTEXT_NAME and parameter.annotation is parameter.empty


def _refused(tool: str, parameter: inspect.Parameter, because: str, hint: str) -> Error:
    return Error(
        Code.TOOL_INVALID,
        f"the tool {tool} has an unsupported parameter {parameter}",
        because=because,
        hint=hint,
        tool=tool,
        parameter=parameter.name,
    )


def try_hints(function: Callable[..., object], names: Mapping[str, object]) -> dict[str, object] | None:
    """Return the resolved annotations, or None if a name in them is not defined yet."""
    try:
        return _resolve(function, names)
    except NameError:
        return None


def _hints(function: Callable[..., object], tool: str) -> dict[str, object]:
    try:
        return _resolve(function, {})
    except Exception as problem:
        raise Error(
            Code.TOOL_INVALID,
            f"the annotations of the tool {tool} cannot be resolved",
            because=str(problem),
            hint="import the types at module level, not only for type checking",
            tool=tool,
        ) from problem


def _resolve(function: Callable[..., object], names: Mapping[str, object]) -> dict[str, object]:
    return typing.get_type_hints(function, localns=dict(names), include_extras=True)


def _context_of(function: Callable[..., object], hints: Mapping[str, object], tool: str) -> str | None:
    found = [
        name
        for position, (name, parameter) in enumerate(_parameters(function).items())
        if _is_context(hints.get(name)) or _is_bare_context(parameter, position)
    ]
    if len(found) > 1:
        raise Error(
            Code.TOOL_INVALID,
            f"the tool {tool} has two context parameters: {', '.join(found)}",
            hint="keep one parameter of type ToolContext",
            tool=tool,
        )
    return found[0] if found else None


def _is_context(hint: object) -> bool:
    if typing.get_origin(hint) is Annotated:
        hint = typing.get_args(hint)[0]
    return hint is ToolContext or typing.get_origin(hint) is ToolContext


# --- building the check -----------------------------------------------------------------------------------------


def arguments_of(
    function: Callable[..., object],
    tool: str,
    *,
    hints: Mapping[str, object] | None = None,
    schema: Json | type[object] = None,
) -> Arguments:
    """Return the accepted arguments of a function.

    `schema` is a pydantic model that replaces its hints, or a JSON schema to show instead.

    Raises:
        Error: `tool_invalid` naming the parameter that has no JSON schema.
    """
    if isinstance(schema, type):
        return _arguments_of_model(function, tool, cast("type[BaseModel]", schema))
    hints = hints if hints is not None else _hints(function, tool)
    context = _context_of(function, hints, tool)
    arguments = _arguments_of_hints(function, tool, hints, context)
    return arguments if schema is None else _shown_as(arguments, tool, schema)


def _arguments_of_hints(
    function: Callable[..., object], tool: str, hints: Mapping[str, object], context: str | None
) -> Arguments:
    from pydantic.fields import FieldInfo

    told = explain(inspect.getdoc(function)).arguments
    # Fields are numbered and the parameter is their alias, because names like `schema`, `copy` or `_from` conflict.
    fields: dict[str, tuple[object, object]] = {}
    names: dict[str, str] = {}
    filled: set[str] = set()
    for name, parameter in _parameters(function).items():
        if name == context:
            continue
        field = f"p{len(fields)}"
        names[field] = name
        default = ... if parameter.default is parameter.empty else parameter.default
        if default is ... or isinstance(default, FieldInfo):
            filled.add(field)
        fields[field] = (_described(hints[name], name, told.get(name, "")), default)
    try:
        checker = _checker(tool, fields)
        return Arguments(_schema_of(checker), context, checker, names, frozenset(filled))
    except Exception as problem:
        raise _unusable(tool, fields, names, problem) from problem


def _checker(tool: str, fields: Mapping[str, tuple[object, object]]) -> type[BaseModel]:
    from pydantic import ConfigDict, create_model

    make = cast("Callable[..., type[BaseModel]]", create_model)
    return make(tool, __config__=ConfigDict(extra="forbid", protected_namespaces=()), **fields)


def _described(hint: object, name: str, told: str) -> object:
    """Annotate the hint with its alias. A description in the hint takes precedence over the docstring."""
    from pydantic import Field
    from pydantic.fields import FieldInfo

    extras: tuple[object, ...] = typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ()
    if any(isinstance(extra, FieldInfo) and extra.description for extra in extras):
        own: FieldInfo = Field(alias=name)
    else:
        text = next((extra for extra in extras if isinstance(extra, str)), told)
        own = Field(alias=name, description=text or None)
    return Annotated[hint, own]


def _schema_of(checker: type[BaseModel]) -> Json:
    from pydantic.json_schema import GenerateJsonSchema

    class Untitled(GenerateJsonSchema):
        """Generator without titles, which repeat the names, and without defaults that are not JSON."""

        def emit_warning(self, kind: object, detail: str) -> None:
            pass

        def field_title_should_be_set(self, schema: Json) -> bool:
            return False

    schema = checker.model_json_schema(by_alias=True, schema_generator=Untitled)
    schema.pop("title", None)
    schema.pop("description", None)
    return codec.to_json(schema)


def _unusable(
    tool: str, fields: Mapping[str, tuple[object, object]], names: Mapping[str, str], problem: Exception
) -> Error:
    culprit = ""
    for field, typed in fields.items():
        try:
            _schema_of(_checker(tool, {field: typed}))
        except Exception as found:
            logger.debug("no schema for a parameter", exc_info=found)
            culprit, problem = names[field], found
            break
    return Error(
        Code.TOOL_INVALID,
        f"the parameter {culprit} of the tool {tool} has no JSON schema" if culprit else f"{tool} has no JSON schema",
        because=str(problem).splitlines()[0],
        hint="use types with a JSON schema: str, int, bool, lists and dicts of them, Literal, a pydantic model",
        tool=tool,
        parameter=culprit,
    )


def _arguments_of_model(function: Callable[..., object], tool: str, checker: type[BaseModel]) -> Arguments:
    hints = try_hints(function, {}) or {}
    context = _context_of(function, hints, tool)
    parameters = _parameters(function)
    fields = set(checker.model_fields)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    needed = {
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD and name != context
    }
    wrong = sorted(needed - fields) or ([] if takes_any else sorted(fields - set(parameters)))
    if wrong:
        raise Error(
            Code.TOOL_INVALID,
            f"args_schema of the tool {tool} does not match its function",
            because=f"only one of them has {', '.join(wrong)}",
            hint="the model needs exactly one field per parameter",
            tool=tool,
        )
    return Arguments(_schema_of(checker), context, checker, {name: name for name in fields}, frozenset(fields))


def _shown_as(arguments: Arguments, tool: str, schema: Json) -> Arguments:
    shown = codec.to_json(schema, where="args_schema")
    properties = cast("dict[str, Json]", shown).get("properties", {}) if isinstance(shown, dict) else None
    unknown = sorted(set(properties) - set(arguments.names.values())) if properties is not None else ["no properties"]
    if unknown:
        raise Error(
            Code.TOOL_INVALID,
            f"args_schema of the tool {tool} does not match its function",
            because=f"the function does not take: {', '.join(unknown)}",
            hint="use a JSON schema of type object with the parameters of the function",
            tool=tool,
        )
    return Arguments(shown, arguments.context, arguments.checker, arguments.names, arguments.filled)


# --- problems for the model -------------------------------------------------------------------------------------


def _problems(error: ValidationError, accepted: list[str]) -> str:
    found = error.errors(include_url=False, include_context=False)
    shown = found[:_MAX_PROBLEMS]
    lines = [f"- {_problem(one['type'], one['loc'], one['msg'], one['input'], accepted)}" for one in shown]
    more = len(found) - len(shown)
    rest = [f"- and {more} more"] if more > 0 else []
    return "\n".join(["The arguments are not valid; the tool was not run.", *lines, *rest])


def _problem(kind: str, loc: tuple[int | str, ...], said: str, given: object, accepted: list[str]) -> str:
    path = "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    if kind == "missing":
        return f"{path} is required"
    if kind == "extra_forbidden":
        known = f"; the arguments are: {', '.join(accepted) or 'none'}" if len(loc) == 1 else ""
        return f"{path} is not an argument{known}" if len(loc) == 1 else f"{path} is not expected here"
    return f"{path}: {said} (given: {_shown(given)})"


def _shown(given: object) -> str:
    try:
        text = codec.encode(given).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        return type(given).__name__
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
