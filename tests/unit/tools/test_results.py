import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import NoReturn
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel, field_serializer

from perdure import codec
from perdure.codec import Json
from perdure.tools.result_bounds import MAX_DEPTH, MAX_RESULT_BYTES, MAX_VALUES
from perdure.tools.results import Kept, Unstorable, keep


class Receipt(BaseModel):
    total: Decimal
    at: dt.date


class Grumpy(BaseModel):
    a: int

    @field_serializer("a")
    def _refuse(self, value: int) -> int:
        raise KeyError(value)


class Dodgy:
    @property
    def model_dump(self) -> NoReturn:
        raise ZeroDivisionError


class Point(msgspec.Struct):
    x: int


@dataclass
class Reading:
    value: object


def nested(depth: int) -> Json:
    value: Json = 1
    for _ in range(depth):
        value = [value]
    return value


def circle() -> Json:
    ring: list[Json] = []
    ring.append({"again": ring})
    return ring


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (None, None),
        ({"a": [1, 2.5, "x", True]}, {"a": [1, 2.5, "x", True]}),
        (Decimal("1.10"), "1.10"),
        (dt.datetime(2026, 1, 2, tzinfo=dt.UTC), "2026-01-02T00:00:00Z"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Receipt(total=Decimal("9.99"), at=dt.date(2026, 1, 2)), {"total": "9.99", "at": "2026-01-02"}),
        ([Reading(Point(1))], [{"value": {"x": 1}}]),
        ((1, {"a": (2,)}), [1, {"a": [2]}]),
        (10**40, 10**40),
        ({1: "one"}, {"1": "one"}),
        (nested(MAX_DEPTH), nested(MAX_DEPTH)),
    ],
)
def test_value_with_json_form_is_stored(value: object, plain: Json) -> None:
    kept = keep(value)
    assert kept == Kept(plain, len(codec.encode(plain)))
    assert codec.decode(codec.encode(plain)) == plain


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda: float("nan"), "$"),
        (lambda: {"a": [{"b": float("inf")}]}, "$.a[0].b"),
        (lambda: [1, Reading(float("-inf"))], "$[1].value"),
        (lambda: object(), "$"),
        (lambda: {"rows": [1, {"client": object()}]}, "$.rows[1].client"),
        (lambda: {"text": ["ok", "bad \ud800"]}, "$.text[1]"),
        (lambda: {"a": {("x", 1): 2}}, "$.a"),
        (lambda: {"n": [10**5000]}, "$.n[0]"),
        (lambda: nested(MAX_DEPTH + 1), "$"),
        (lambda: nested(100_000), "$"),
        (lambda: [Grumpy(a=1)], "$[0]"),
        (lambda: {"x": Dodgy()}, "$.x"),
        (lambda: (n for n in range(3)), "$"),
    ],
)
def test_value_without_json_form_is_located(make: Callable[[], object], path: str) -> None:
    found = keep(make())
    assert isinstance(found, Unstorable)
    assert found.path == path
    assert found.reason
    codec.encode([found.path, found.reason])


def test_something_strange_inside_an_object_is_found_at_least_with_it() -> None:
    found = keep([1, Reading([1, object()])])
    assert isinstance(found, Unstorable)
    assert found.path.startswith("$[1]")


SIZED: list[Callable[[int], object]] = [
    lambda size: "x" * (size // 10_000 * MAX_RESULT_BYTES // 20),
    lambda size: ["x" * (MAX_RESULT_BYTES // 20)] * (size // 10_000),
    lambda size: [1] * size,
    lambda size: dict.fromkeys(map(str, range(size // 2))),
    lambda size: [Reading(1)] * (size // 2),
    lambda size: Reading([Point(1)] * (size // 2 - 1)),
]


@pytest.mark.parametrize("make", SIZED)
def test_s26_x5_results_are_kept_up_to_the_bounds(make: Callable[[int], object]) -> None:
    """S26: 20 parts of the bytes, or all values, are allowed, and one more part is not."""
    assert isinstance(keep(make(MAX_VALUES)), Kept)
    found = keep(make(MAX_VALUES + 10_000))
    assert isinstance(found, Unstorable)
    assert found.path == "$"
    assert "more than" in found.reason


def test_a_circle_is_not_followed_for_ever() -> None:
    found = keep(circle())
    assert isinstance(found, Unstorable)
    assert "itself" in found.reason


def test_a_bad_key_cannot_break_the_message_about_it() -> None:
    found = keep({"\ud800": 1})
    assert isinstance(found, Unstorable)
    codec.encode([found.path, found.reason])
