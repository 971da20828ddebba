"""Arguments of recorded steps: JSON in one canonical form, with a size limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from perdure.codec import Json, as_stored
from perdure.effects.promises import unsigned_key
from perdure.errors import Code, Error
from perdure.vocab.promises import EventKey

MAX_STEP_BYTES = 524_288
"""The maximum size in bytes of a step's input, and of its result, in the log."""

MAX_DEPTH = 200
"""The depth limit of the checks below. Deeper values are rejected when they are encoded."""


def checked_input(name: str, given: Json) -> Json:
    """Convert a step's input to its recorded form.

    Raises:
        Error: `invalid_json` for a value without a canonical form, `input_too_large`.
    """
    if given == [] and type(given) is list:
        return []  # a step without arguments
    where = f"the input of step {name!r}"
    refuse_unordered(given, where)
    plain, data = as_stored(_unsigned(given), where=where)
    if len(data) > MAX_STEP_BYTES:
        raise Error(
            Code.INPUT_TOO_LARGE,
            f"{where} is {len(data)} bytes",
            because=f"the limit for recorded values is {MAX_STEP_BYTES} bytes",
            hint="pass a reference and load the content inside the step",
        )
    return plain


def refuse_unordered(value: object, where: str, depth: int = 0) -> None:
    """Reject values without a canonical JSON form: sets, and mappings with keys that are not text."""
    if depth > MAX_DEPTH:
        return
    if isinstance(value, set | frozenset):
        raise Error(
            Code.INVALID_JSON,
            f"{where} is a set",
            because="the order of a set differs from run to run",
            hint="pass a sorted list",
        )
    if isinstance(value, Mapping):
        for key, item in cast("Mapping[object, object]", value).items():
            if not isinstance(key, str):
                raise Error(Code.INVALID_JSON, f"{where} has the key {key!r}", because="JSON keys are text")
            refuse_unordered(item, f"{where}.{key}", depth + 1)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(cast("Sequence[object]", value)):
            refuse_unordered(item, f"{where}[{index}]", depth + 1)


def _unsigned(value: Json, depth: int = 0) -> Json:
    """Remove signatures from keys, so that recorded keys authorize nothing."""
    if depth > MAX_DEPTH:
        return value
    if isinstance(value, EventKey):
        return unsigned_key(value.scope, value.wait)
    if isinstance(value, list | tuple):
        return [_unsigned(item, depth + 1) for item in cast("Sequence[Json]", value)]
    if isinstance(value, dict):
        return {key: _unsigned(item, depth + 1) for key, item in cast("dict[str, Json]", value).items()}
    return value
