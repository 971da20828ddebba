"""The place of execution is part of a tool's contract: a client's definition never selects code here."""

from __future__ import annotations

import pytest

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.ids import CallId
from perdure.runtime.agent import setup_of
from perdure.tools.client_side import ask_user, asking, client_tool
from perdure.tools.decorator import tool
from perdure.tools.toolbox import Prepared, Toolbox
from perdure.vocab.messages import ToolCall
from perdure.vocab.outcomes import FailureDetail

ANY: Json = {"type": "object"}
CALL = ToolCall(id=CallId("t.1.0"), name="look", args={})


@tool
async def look() -> str:
    """Look."""
    return "here"


THERE = client_tool("look", "Look.", ANY)


@pytest.mark.parametrize(("captured", "today"), [(look, THERE), (THERE, look)])
def test_a_tool_that_moved_while_a_call_was_owed_is_not_run(captured: object, today: object) -> None:
    [before] = Toolbox([captured]).contracts()  # pyright: ignore[reportArgumentType] - both are tools
    prepared = Toolbox([today]).prepare(CALL, before)  # pyright: ignore[reportArgumentType]
    assert isinstance(prepared, FailureDetail)
    assert prepared.code == "tool_contract_changed"


def test_a_clients_tool_that_stayed_is_prepared() -> None:
    [contract] = Toolbox([THERE]).contracts()
    assert contract.client_side
    assert isinstance(Toolbox([THERE]).prepare(CALL, contract), Prepared)


def test_uncheckable_schema_is_refused_at_tool_definition() -> None:
    with pytest.raises(Error) as caught:
        client_tool("look", "Look.", {"type": "array"})
    assert caught.value.code is Code.TOOL_INVALID
    for wrong in ({"type": "nonsense"}, 7):
        with pytest.raises(Error) as caught:
            client_tool("look", "Look.", ANY, result_type=wrong)
        assert caught.value.code is Code.TOOL_INVALID
    with pytest.raises(Error):
        client_tool("no spaces", "Look.", ANY)
    with pytest.raises(Error):
        asking(timeout="soon")


def test_a_type_may_say_what_is_posted() -> None:
    made = client_tool("look", "Look.", ANY, result_type=int)
    assert made.contract.returns == {"type": "integer"}
    assert THERE.contract.returns is None
    assert ask_user.contract.client_side


def test_agent_tool_timeout_excludes_client_side_tools() -> None:
    from perdure import Agent

    agent = Agent("a", model="sim:echo", tools=[THERE], tool_timeout="5s")
    [contract] = setup_of(agent).composition("").tools
    assert contract.durability.timeout_ms is None
