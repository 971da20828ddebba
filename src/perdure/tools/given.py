"""What may be passed to a recorded step: JSON that is equal whenever the values are, and not too much of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from perdure.codec import Json, as_stored
from perdure.effects.promises import unsigned_key
from perdure.errors import Code, Error
from perdure.vocab.promises import AwaitEventKey

MAX_STEP_BYTES = 524_288
"""A step's input and its result are kept in the log, each up to this size."""

MAX_DEPTH = 200
"""What is nested deeper is refused when it is written; looking for what else is wrong with it ends here."""


def checked_input(name: str, given: Json) -> Json:
    """A step's input as it is recorded.

    Raises:
        Error: `invalid_json` for what has no such form, `input_too_large`.
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
            because=f"it is recorded, and the limit is {MAX_STEP_BYTES}",
            hint="pass a reference, and load the content inside the step",
        )
    return plain


def refuse_unordered(value: object, where: str, depth: int = 0) -> None:
    """Refuse what has no one form in JSON: sets, and keys that are not text."""
    if depth > MAX_DEPTH:
        return
    if isinstance(value, set | frozenset):
        raise Error(
            Code.INVALID_JSON,
            f"{where} is a set",
            because="its order differs from run to run",
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
    """Keys are recorded without what makes them worth something."""
    if depth > MAX_DEPTH:
        return value
    if isinstance(value, AwaitEventKey):
        return unsigned_key(value.scope, value.wait)
    if isinstance(value, list | tuple):
        return [_unsigned(item, depth + 1) for item in cast("Sequence[Json]", value)]
    if isinstance(value, dict):
        return {key: _unsigned(item, depth + 1) for key, item in cast("dict[str, Json]", value).items()}
    return value
