"""Patterns in schemas: matched as the library would, in linear time, or refused."""

from __future__ import annotations

import pytest

from perdure.codec import Json
from perdure.tools.json_schema import mismatches, problem_of


def schema(**members: Json) -> Json:
    return {"type": "object", **members}


async def test_a_pattern_that_backtracks_elsewhere_is_answered_at_once() -> None:
    """`re` would need 2**64 steps for this."""
    evil = schema(
        properties={"a": {"pattern": "^(a+)+$"}}, patternProperties={"^(x+)+$": {}}, additionalProperties=False
    )
    assert problem_of(evil) is None
    told = "\n".join(await mismatches(evil, {"a": "a" * 64 + "!", "x" * 64 + "!": 1}))
    assert "does not match '^(a+)+$'" in told
    assert "Additional properties are not allowed" in told


@pytest.mark.parametrize("pattern", ["^(?=a)", "(a)\\1", "(?<!b)a", "("])
def test_a_pattern_that_needs_backtracking_is_refused_with_its_schema(pattern: str) -> None:
    assert problem_of(schema(properties={"a": {"items": [{"pattern": pattern}]}})) is not None
    assert problem_of(schema(patternProperties={pattern: {}})) is not None


async def test_patterns_mean_what_they_mean_elsewhere() -> None:
    given = schema(
        properties={"id": {"pattern": "[0-9]{3}"}},
        patternProperties={"^x-": {"type": "integer"}},
        additionalProperties={"type": "string"},
    )
    assert await mismatches(given, {"id": "no. 123", "x-a": 1, "other": "text"}) == []
    told = await mismatches(given, {"id": "12", "x-a": "1", "other": 2})
    assert told == [
        "- $.id: '12' does not match '[0-9]{3}'",
        "- $.other: 2 is not of type 'string'",
        "- $['x-a']: '1' is not of type 'integer'",
    ]


def test_a_property_may_be_called_pattern() -> None:
    assert problem_of(schema(properties={"pattern": {"type": "string"}})) is None
