import datetime as dt
import enum
import threading
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Literal, Optional, Union, cast

import pytest
from pydantic import AfterValidator, BaseModel, Field

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.tools.context import ToolContext
from perdure.tools.decorator import AnyTool, tool
from perdure.vocab.outcomes import FailureDetail


class Line(BaseModel):
    sku: str
    quantity: int = 1


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass
class Box:
    width: int
    tags: list[str] = field(default_factory=list[str])


def bound(one: AnyTool, **args: Json) -> dict[str, object]:
    found = one.bind(args)
    assert not isinstance(found, FailureDetail), found
    return found


def problem(one: AnyTool, args: Json) -> str:
    found = one.bind(args)
    assert isinstance(found, FailureDetail)
    assert (found.code, found.failure_class, found.retry_safe) == ("invalid_tool_args", "invalid", False)
    assert "http" not in found.message
    assert "pydantic" not in found.message
    return found.message


@tool
def order(
    ctx: ToolContext[str],
    lines: list[Line],
    grid: list[list[int]],
    size: Size,
    kind: Literal["gift", "plain"],
    due: dt.date,
    total: Decimal,
    count: Annotated[int, Field(ge=1, le=9, description="From the hint.")] = 1,
    note: str | None = None,
    old: Optional[int] = None,  # noqa: UP045 - as people still write it
    either: Union[int, str] = "x",  # noqa: UP007 - as people still write it
) -> str:
    """Order things.

    They arrive
    some day.

    Args:
        lines: What to order.
        grid (list[list[int]]): Where,
            on the map: in rows.
        count: From the docstring.
        note: With a colon: kept.

    Returns:
        The order number.
    """
    return "ord_1"


GOOD: dict[str, Json] = {
    "lines": [{"sku": "a"}, {"sku": "b", "quantity": 2}],
    "grid": [[1, 2], []],
    "size": "l",
    "kind": "gift",
    "due": "2026-01-02",
    "total": "12.30",
}


def test_hints_and_docstring_are_the_schema() -> None:
    schema = order.contract.definition.parameters
    properties = schema["properties"]
    assert order.description == "Order things.\n\nThey arrive\nsome day."
    assert schema["required"] == ["lines", "grid", "size", "kind", "due", "total"]
    assert schema["additionalProperties"] is False
    assert "ctx" not in properties
    assert "title" not in schema
    assert properties["lines"]["description"] == "What to order."
    assert properties["grid"] == {
        "description": "Where, on the map: in rows.",
        "items": {"items": {"type": "integer"}, "type": "array"},
        "type": "array",
    }
    assert properties["count"]["description"] == "From the hint."
    assert (properties["count"]["minimum"], properties["count"]["default"]) == (1, 1)
    assert properties["kind"]["enum"] == ["gift", "plain"]
    assert properties["note"]["description"] == "With a colon: kept."


def test_arguments_arrive_as_the_types_they_are_annotated_with() -> None:
    given = bound(order, **GOOD, count=3)
    assert given["lines"] == [Line(sku="a"), Line(sku="b", quantity=2)]
    assert given["grid"] == [[1, 2], []]
    assert given["size"] is Size.LARGE
    assert given["due"] == dt.date(2026, 1, 2)
    assert given["total"] == Decimal("12.30")
    assert given["count"] == 3


def test_defaults_are_left_to_the_function() -> None:
    assert bound(order, **GOOD).keys() == GOOD.keys()


def test_every_problem_is_told_with_its_path() -> None:
    args = {**GOOD, "lines": [{"quantity": "many"}], "kind": "x", "grid": [[1], ["y"]], "count": 11, "colour": "red"}
    del args["due"]
    told = problem(order, args)
    assert "The arguments are not valid; the tool was not run." in told
    assert "$.lines[0].sku is required" in told
    assert "$.lines[0].quantity: Input should be a valid integer" in told
    assert '(given: "many")' in told
    assert "$.grid[1][0]" in told
    assert "$.kind: Input should be 'gift' or 'plain'" in told
    assert "$.count" in told
    assert "$.due is required" in told
    assert "$.colour is not an argument; the arguments are: lines, grid, size" in told


def test_hundreds_of_problems_are_not_all_told() -> None:
    told = problem(order, {**GOOD, "grid": [["x"] * 400]})
    assert "and 390 more" in told
    assert len(told) < 5000


def test_a_huge_argument_is_not_repeated_to_the_model() -> None:
    assert len(problem(order, {**GOOD, "count": "9" * 100_000})) < 1000


@pytest.mark.parametrize("args", [[], None, "x", 3])
def test_arguments_that_are_not_an_object_are_refused(args: Json) -> None:
    assert "$: Input should be an object" in problem(order, args)


def test_a_tool_without_arguments() -> None:
    @tool
    def now() -> str:
        return ""

    assert now.contract.definition.parameters == {"additionalProperties": False, "properties": {}, "type": "object"}
    assert bound(now) == {}
    assert "the arguments are: none" in problem(now, {"x": 1})


def test_parameters_may_have_the_names_pydantic_uses_itself() -> None:
    @tool
    def odd(schema: int, copy: int, json: int, model_config: int, _hidden: int, self_: int, p1: int) -> None:
        pass

    names = list(odd.contract.definition.parameters["properties"])
    assert names == ["schema", "copy", "json", "model_config", "_hidden", "self_", "p1"]
    assert bound(odd, **dict.fromkeys(names, 1)) == dict.fromkeys(names, 1)


def test_the_context_is_found_however_it_is_written() -> None:
    @tool
    def bare(ctx=0, a: int = 1) -> None:  # pyright: ignore[reportMissingParameterType]
        pass

    @tool
    def last(a: int, environment: ToolContext) -> None:
        pass

    @tool
    def annotated(a: int, c: Annotated[ToolContext[int], "x"]) -> None:
        pass

    @tool
    def quoted(a: int, c: "ToolContext[int]") -> None:
        pass

    @tool
    def none(ctx: str) -> None:
        pass

    tools: list[AnyTool] = [bare, last, annotated, quoted]
    assert [one.arguments.context for one in tools] == ["ctx", "environment", "c", "c"]
    assert all(list(one.contract.definition.parameters["properties"]) == ["a"] for one in tools)
    assert none.arguments.context is None


def test_two_contexts_are_one_too_many() -> None:
    @tool
    def two(a: ToolContext, b: ToolContext) -> None:
        pass

    with pytest.raises(Error, match="two context parameters") as caught:
        _ = two.contract
    assert caught.value.code is Code.TOOL_INVALID


def test_a_type_json_cannot_carry_is_named() -> None:
    @tool
    def locked(a: int, lock: threading.Event) -> None:
        pass

    with pytest.raises(Error) as caught:
        _ = locked.contract
    assert caught.value.code is Code.TOOL_INVALID
    assert caught.value.details["parameter"] == "lock"


def test_an_annotation_that_names_nothing_is_told_on_first_use() -> None:
    def later(a: int) -> None:
        pass

    later.__annotations__["a"] = "Nowhere"
    decorated = tool(later)
    with pytest.raises(Error, match="Nowhere") as caught:
        _ = decorated.contract
    assert caught.value.code is Code.TOOL_INVALID


def test_strings_and_field_defaults_describe_too() -> None:
    @tool
    def look(a: Annotated[int, "how many"], b: int = Field(7, description="the b"), c: int = Field(9)) -> None:
        pass

    properties = look.contract.definition.parameters["properties"]
    assert properties["a"]["description"] == "how many"
    assert (properties["b"]["description"], properties["b"]["default"]) == ("the b", 7)
    assert bound(look, a=1) == {"a": 1, "b": 7, "c": 9}


def test_a_default_that_is_not_json_stays_out_of_the_schema() -> None:
    nothing = object()

    @tool
    def look(a: Annotated[int, "x"] = cast("int", nothing)) -> None:
        pass

    assert "default" not in look.contract.definition.parameters["properties"]["a"]
    assert bound(look) == {}


def test_dataclasses_and_nested_optionals_work() -> None:
    @tool
    def pack(boxes: dict[str, list[Box | None]]) -> None:
        pass

    assert bound(pack, boxes={"a": [{"width": 1}, None]}) == {"boxes": {"a": [Box(1), None]}}


def test_a_validator_that_breaks_is_our_problem_not_the_models(caplog: pytest.LogCaptureFixture) -> None:
    def breaks(value: int) -> int:
        raise KeyError("secret")

    @tool
    def look(a: Annotated[int, AfterValidator(breaks)]) -> None:
        pass

    failure = look.bind({"a": 1})
    assert isinstance(failure, FailureDetail)
    assert (failure.code, failure.failure_class, failure.error_type) == ("internal_error", "internal", "KeyError")
    assert "secret" not in failure.message
    assert caplog.records


def test_a_validator_may_explain_itself() -> None:
    def even(value: int) -> int:
        if value % 2:
            raise ValueError("must be even")
        return value

    @tool
    def look(a: Annotated[int, AfterValidator(even)]) -> None:
        pass

    assert "$.a: Value error, must be even (given: 3)" in problem(look, {"a": 3})


def test_a_pydantic_model_can_stand_for_the_hints() -> None:
    @tool(args_schema=Line)
    def look(ctx: ToolContext, sku="", quantity=1) -> None:  # pyright: ignore[reportMissingParameterType]
        pass

    assert list(look.contract.definition.parameters["properties"]) == ["sku", "quantity"]
    assert bound(look, sku="a") == {"sku": "a", "quantity": 1}
    assert "$.sku is required" in problem(look, {})


def test_a_model_that_does_not_fit_the_function_is_refused() -> None:
    @tool(args_schema=Line)
    def look(sku: str) -> None:
        pass

    with pytest.raises(Error, match="quantity") as caught:
        _ = look.contract
    assert caught.value.code is Code.TOOL_INVALID


def test_a_json_schema_can_be_shown_instead_of_the_derived_one() -> None:
    shown = {"type": "object", "properties": {"sku": {"type": "string", "examples": ["a"]}}}

    @tool(args_schema=shown)
    def look(sku: str) -> None:
        pass

    assert look.contract.definition.parameters == shown
    assert "$.sku: Input should be a valid string" in problem(look, {"sku": 1})


def test_a_json_schema_that_offers_something_else_is_refused() -> None:
    @tool(args_schema={"type": "object", "properties": {"other": {}}})
    def look(sku: str) -> None:
        pass

    with pytest.raises(Error, match="other"):
        _ = look.contract
