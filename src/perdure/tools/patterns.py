"""Patterns in JSON schemas, matched in time linear in the text.

The text comes from a model and the check runs on the event loop, so a pattern must not backtrack endlessly. pydantic's
engine never backtracks; a pattern that it cannot match is rejected with its schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, cast

from perdure.codec import Json
from perdure.services.patterns import matcher


class Validator(Protocol):
    """A validator of the library, as seen by its keywords."""

    def descend(self, instance: Json, schema: Json, *, path: str, schema_path: str) -> Iterable[object]:
        """Check a part of the instance."""
        ...


def refused_pattern(schema: Json) -> str:
    """Return the reason why a pattern in this schema is rejected, or an empty string."""
    for pattern in _patterns(schema):
        try:
            matcher(pattern)
        except ValueError:
            return f"the pattern {pattern!r} cannot be matched in linear time (no look-around, no back-reference)"
    return ""


def _patterns(schema: Json) -> Iterator[str]:
    """Yield every pattern in a schema, including lookalikes in examples."""
    if isinstance(schema, list):
        for value in cast("list[Json]", schema):
            yield from _patterns(value)
    members = _members(schema)
    if isinstance(pattern := members.get("pattern"), str):
        yield pattern
    yield from _members(members.get("patternProperties"))
    for value in members.values():
        yield from _patterns(value)


def _members(value: Json) -> dict[str, Json]:
    return cast("dict[str, Json]", value) if isinstance(value, dict) else {}


# --- the library's pattern keywords, on this engine


def check_pattern(_: Validator, pattern: str, given: Json, __: Json) -> Iterator[object]:
    """Check the keyword `pattern`."""
    from jsonschema import ValidationError

    if isinstance(given, str) and not matcher(pattern)(given):
        yield ValidationError(f"{given!r} does not match {pattern!r}")


def check_pattern_properties(validator: Validator, named: Json, given: Json, _: Json) -> Iterator[object]:
    """Check the keyword `patternProperties`."""
    for pattern, schema in _members(named).items():
        for key, value in _members(given).items():
            if matcher(pattern)(key):
                yield from validator.descend(value, schema, path=key, schema_path=pattern)


def check_additional_properties(validator: Validator, rest: Json, given: Json, schema: Json) -> Iterator[object]:
    """Check the keyword `additionalProperties`, as the library does, for members that match no pattern."""
    from jsonschema import Draft202012Validator

    beside = _members(schema)
    named = [matcher(pattern) for pattern in _members(beside.get("patternProperties"))]
    unmatched = {key: value for key, value in _members(given).items() if not any(matches(key) for matches in named)}
    check = cast("dict[str, Callable[..., Iterator[object]]]", Draft202012Validator.VALIDATORS)["additionalProperties"]
    yield from check(validator, rest, unmatched, {"properties": beside.get("properties", {})})


KEYWORDS = {
    "pattern": check_pattern,
    "patternProperties": check_pattern_properties,
    "additionalProperties": check_additional_properties,
}
