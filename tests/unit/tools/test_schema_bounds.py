"""Schemas from outside are bounded when they are accepted, and checked within a budget."""

from __future__ import annotations

import asyncio
import sys

import pytest

from perdure.codec import Json
from perdure.services.budgeted import Evaluated, Exceeded, evaluate
from perdure.tools.json_schema import SchemaCheck, checked_here, foreign_problem, mismatches, problem_of
from perdure.tools.outputs import schema_problem_of
from perdure.tools.schema_shape import shape_problem


def doubling(times: int) -> Json:
    """Return a schema that applies 2**times subschemas to one value."""
    both: dict[str, Json] = {
        f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}, {"$ref": f"#/$defs/a{i + 1}"}]} for i in range(times)
    }
    return {"type": "object", "$defs": {**both, f"a{times}": {"type": "object"}}, "$ref": "#/$defs/a0"}


def deep(levels: int) -> Json:
    schema: Json = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "not": schema}
    return schema


def unbounded_by_shape() -> Json:
    """Return a schema that is small, and takes 2**depth steps for a nested value."""
    again: Json = {"allOf": [{"additionalProperties": {"$ref": "#"}}, {"additionalProperties": {"$ref": "#"}}]}
    return {"type": "object", **again}


def nested(levels: int) -> Json:
    value: Json = {}
    for _ in range(levels):
        value = {"a": value}
    return value


REFUSED: dict[str, tuple[Json, str]] = {
    "doubling": (doubling(16), "subschemas"),
    "doubling deeper": (doubling(32), "levels deep"),
    "itself": ({"type": "object", "$ref": "#"}, "refers to itself"),
    "itself by allOf": ({"type": "object", "allOf": [{"$ref": "#"}]}, "refers to itself"),
    "itself by anchor": ({"type": "object", "$dynamicRef": "#x", "$dynamicAnchor": "x"}, "refers to itself"),
    "missing": ({"type": "object", "$ref": "#/$defs/Missing"}, "leads nowhere"),
    "missing below": ({"type": "object", "properties": {"a": {"items": {"$ref": "#no"}}}}, "leads nowhere"),
    "remote": ({"type": "object", "$ref": "http://169.254.169.254/latest"}, "another document"),
    "file": ({"type": "object", "$ref": "file:///etc/passwd"}, "another document"),
    "no text": ({"type": "object", "$ref": 3}, "another document"),
    "deep": (deep(3000), "levels deep"),
    "wide": ({"type": "object", "anyOf": [{"type": "string"}] * 1_001}, "subschemas"),
    "no utf-8": ({"type": "object", "description": "\udfff"}, "surrogate"),
    "long": ({"type": "object", "description": "x" * 200_000}, "bytes"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_s4_t_tool_03_unbounded_schema_is_refused_when_it_is_accepted(name: str) -> None:
    schema, reason = REFUSED[name]
    assert reason in (problem_of(schema) or "")
    assert reason in (await foreign_problem(schema, arguments=True) or "")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {
            "type": "object",
            "$defs": {"T": {"items": {"$ref": "#/$defs/T"}}},
            "properties": {"a": {"$ref": "#/$defs/T"}},
        },
        {
            "type": "object",
            "$defs": {"a/b": {"$anchor": "here"}},
            "allOf": [{"$ref": "#/$defs/a~1b"}, {"$ref": "#here"}],
        },
        {"type": "object", "properties": {"$ref": {"type": "string"}}},
        {"type": "object", "additionalProperties": False, "anyOf": [True, {"required": ["a"]}]},
        doubling(7),
    ],
)
async def test_s4_t_tool_03_bounded_schema_is_accepted(schema: Json) -> None:
    assert problem_of(schema) is None
    assert await foreign_problem(schema, arguments=True) is None


def test_s4_t_tool_03_expansion_counts_references() -> None:
    assert shape_problem(doubling(7)) is None
    assert "subschemas" in (shape_problem(doubling(8)) or "")


@pytest.mark.parametrize(
    "schema", [doubling(32), {"$ref": "#"}, {"$ref": "#/$defs/Missing"}, {"$ref": "http://localhost:1"}]
)
async def test_s4_t_tool_03_check_with_a_stored_schema_ends_as_a_mismatch(schema: Json) -> None:
    """A schema that was accepted before it was bounded may be in a store."""
    (told,) = await mismatches(schema, {})
    assert "cannot be checked" in told


async def test_s4_t_tool_03_check_exceeds_its_budget_as_a_failure_of_the_call() -> None:
    assert await foreign_problem(unbounded_by_shape()) is None
    check = checked_here(unbounded_by_shape(), nested(40))
    assert isinstance(check, SchemaCheck)
    failure = await check.refusal()
    assert failure is not None
    assert (failure.code, failure.failure_class) == ("invalid_tool_args", "invalid")
    assert "0.5 s of CPU time" in failure.message


async def test_s4_check_of_an_answer_exceeds_its_budget_as_an_output_problem() -> None:
    text = str(nested(40)).replace("'", '"')
    problem = await schema_problem_of({"name": "result", "schema": unbounded_by_shape()}, text)
    assert problem is not None
    assert "cannot be checked" in problem.message


async def test_check_on_the_loop_is_bounded_by_sizes() -> None:
    plain: Json = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert checked_here(plain, {"a": 1}) is None
    assert isinstance(checked_here(plain, {"a": list(range(5_000))}), SchemaCheck)
    assert isinstance(checked_here(plain, {"a": "x" * 5_000}), SchemaCheck)
    assert isinstance(checked_here({"type": "object", "properties": {"a": {"pattern": "x"}}}, {"a": "x"}), SchemaCheck)
    assert await mismatches(plain, {"a": "x" * 5_000}) == [f"- $.a: '{'x' * 492}…"]


# --- the child process


def spend() -> None:
    while True:
        pass


def fill() -> int:
    return len(bytearray(8 << 30))


def abandon() -> None:
    sys.exit(3)


def environment() -> Json:
    import os

    return dict(os.environ)


def fail() -> None:
    raise RecursionError("too deep")


async def test_child_is_replaced_after_each_budget() -> None:
    assert await evaluate(spend, cpu_s=0.05) == Exceeded("cpu", "more than 0.05 s of CPU time")
    assert await evaluate(fill) == Exceeded("memory", "more than 1024 MiB of memory")
    assert isinstance(await evaluate(abandon), Exceeded)
    assert await evaluate(fail) == Exceeded("error", "RecursionError: too deep")
    assert await evaluate(len, "abc") == Evaluated(3)


async def test_child_has_no_environment() -> None:
    answer = await evaluate(environment)
    assert isinstance(answer, Evaluated)
    assert not set(answer.value) - {"LC_CTYPE", "PWD", "_"}


async def test_loop_continues_while_a_child_evaluates() -> None:
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0)
            beats += 1

    beating = asyncio.create_task(beat())
    assert isinstance(await evaluate(spend, cpu_s=0.05), Exceeded)
    beating.cancel()
    assert beats > 10
