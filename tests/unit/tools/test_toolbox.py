from collections.abc import Callable
from typing import cast

import pytest

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.ids import CallId
from perdure.tools.decorator import AnyTool, tool
from perdure.tools.toolbox import Prepared, Toolbox
from perdure.vocab.messages import ToolCall
from perdure.vocab.outcomes import FailureDetail
from perdure.vocab.tools import ToolContract


def charge(amount: int) -> str:
    """Charge."""
    return str(amount)


def look(city: str) -> str:
    """Look."""
    return city


BOX = Toolbox([tool(look), tool(charge)])


def call(name: str, args: Json = None, malformed: str | None = None) -> ToolCall:
    return ToolCall(id=CallId("c"), name=name, args=args or {}, malformed=malformed)


def contract(name: str, box: Toolbox = BOX) -> ToolContract:
    found = box.get(name)
    assert found
    return found.contract


def failure(found: Prepared | FailureDetail) -> FailureDetail:
    assert isinstance(found, FailureDetail)
    assert not found.retry_safe
    return found


def test_tools_keep_the_order_they_were_given_in() -> None:
    assert [one.name for one in BOX] == [one.name for one in BOX.contracts()] == ["look", "charge"]
    assert len(BOX) == 2
    assert BOX.get("nothing") is None


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(Error, match="look") as caught:
        Toolbox([tool(look), tool(name="look")(charge)])
    assert caught.value.code is Code.TOOL_INVALID


def test_a_function_that_was_not_decorated_is_refused() -> None:
    with pytest.raises(Error, match="@tool"):
        Toolbox([cast("AnyTool", look)])


def test_a_good_call_is_prepared_with_the_promises_its_turn_began_with() -> None:
    captured = tool(timeout=3)(charge).contract
    found = BOX.prepare(call("charge", {"amount": "7"}), captured)
    assert isinstance(found, Prepared)
    assert found.arguments == {"amount": 7}
    assert found.tool is BOX.get("charge")
    assert found.durability.timeout_ms == 3000


@pytest.mark.parametrize("raw", ["", "{oops", "[" * 10_000])
def test_malformed_arguments_are_shown_to_the_model_again(raw: str) -> None:
    found = failure(BOX.prepare(call("charge", malformed=raw), contract("charge")))
    assert (found.code, found.failure_class) == ("invalid_tool_args", "invalid")
    assert raw[:50] in found.message
    assert len(found.message) < 1000


def test_a_call_without_a_name_is_told_the_names() -> None:
    found = failure(BOX.prepare(call("", malformed=""), None))
    assert found.code == "invalid_tool_args"
    assert "look, charge" in found.message


def test_a_tool_the_turn_never_had_is_unavailable() -> None:
    for name in ("refund", "look"):
        found = failure(BOX.prepare(call(name), None))
        assert (found.code, found.failure_class) == ("tool_unavailable", "unavailable")
        assert "look, charge" in found.message
    assert "none" in failure(Toolbox().prepare(call("x"), None)).message


def test_a_tool_that_was_removed_is_not_run() -> None:
    found = failure(Toolbox([tool(look)]).prepare(call("charge", {"amount": 1}), contract("charge")))
    assert found.code == "tool_removed"
    assert "was not run" in found.message


def test_bad_arguments_are_the_models_fault_if_nothing_changed() -> None:
    found = failure(BOX.prepare(call("charge", {"amount": "much"}), contract("charge")))
    assert found.code == "invalid_tool_args"
    assert "$.amount" in found.message


def renamed() -> Callable[..., object]:
    def charge(cents: int) -> str:
        """Charge."""
        return str(cents)

    return charge


def test_arguments_that_new_code_refuses_are_not_the_models_fault() -> None:
    found = failure(Toolbox([tool(renamed())]).prepare(call("charge", {"amount": 1}), contract("charge")))
    assert found.code == "tool_contract_changed"
    assert "was not run" in found.message
    assert "$.cents is required" in found.message


def test_arguments_that_new_code_accepts_run_although_it_changed() -> None:
    def charge(amount: int, note: str = "") -> str:
        """Charge, now with a note."""
        return str(amount)

    found = Toolbox([tool(charge)]).prepare(call("charge", {"amount": 1}), contract("charge"))
    assert isinstance(found, Prepared)
