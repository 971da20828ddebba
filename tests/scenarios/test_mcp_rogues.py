"""Servers that keep to no rule cost their own tools at most, and never say of a call what nobody knows."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from perdure import Agent, Runtime
from perdure.codec import Json
from perdure.models.scripted import ScriptedModel, call, say
from perdure.tools.mcp import McpServers
from perdure.vocab.messages import ToolResult
from tests.scenarios.conftest import NewStore

ROGUE = str(Path(__file__).parents[1] / "mcp" / "rogue.py")
ANSWER_S = 30


def config(how: str, **more: Json) -> dict[str, Json]:
    return {"command": sys.executable, "args": [ROGUE, how], "start_timeout": 50, **more}


async def names_and_answer(
    new_store: NewStore, servers: dict[str, Json], tool: str = "mcp_r__good"
) -> tuple[list[str], Json]:
    """The tools that the model is offered, and what it is told of a call of one."""
    model = ScriptedModel(call(tool), say("done"))
    async with (
        McpServers({"mcpServers": servers}) as mcp,
        Runtime(new_store(), agents=[Agent("a", model=model, tools=[mcp])]) as rt,
    ):
        session = await rt.session("s", agent="a")
        assert (await (await session.send("go")).result(ANSWER_S)).status == "finished"
        told = [part.output for one in await session.history() for part in one.parts if isinstance(part, ToolResult)]
    return [one.name for one in model.requests[0].tools], told[0]


async def test_tools_whose_arguments_nobody_could_check_are_left_out(
    new_store: NewStore, caplog: pytest.LogCaptureFixture
) -> None:
    names, told = await names_and_answer(new_store, {"r": config("uncheckable")})
    assert (names, told) == (["mcp_r__good"], "fine")
    left_out = [one.message for one in caplog.records if "left out" in one.message]
    assert [message.split("'")[1] for message in left_out] == ["strange", "pattern"]


async def test_an_answer_that_cannot_be_read_is_no_failure(new_store: NewStore) -> None:
    _, told = await names_and_answer(new_store, {"r": config("unreadable")})
    assert told["code"] == "outcome_unknown"
    assert "cannot be read" in told["error"]


@pytest.mark.parametrize("how", ["another", "chatters"])
async def test_what_was_not_asked_for_is_passed_over(
    new_store: NewStore, how: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO):
        names, told = await names_and_answer(new_store, {"r": config(how, env={"TOKEN": "secret-of-the-server"})})
    assert (names, told) == (["mcp_r__good"], "fine"), "which is listed twice"
    assert "secret-of-the-server" not in caplog.text + "".join(capfd.readouterr())


async def test_a_server_that_dies_in_its_list_costs_its_own_tools(new_store: NewStore) -> None:
    servers: dict[str, Json] = {"r": config("fine"), "dead": config("dies_in_its_list")}
    names, told = await names_and_answer(new_store, servers)
    assert (names, told) == (["mcp_r__good"], "fine")


async def test_servers_whose_names_would_make_one_name_are_told_apart(new_store: NewStore) -> None:
    servers: dict[str, Json] = {"r": config("nested"), "r__x": config("fine"), "r_": config("nested")}
    names, told = await names_and_answer(new_store, servers, "mcp_r__x__good")
    assert len(names) == len(set(names)) == 5
    assert told == "fine"
