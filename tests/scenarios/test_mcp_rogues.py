"""Servers that keep to no rule cost their own tools at most, and an unknown outcome is reported as unknown."""

from __future__ import annotations

import gzip
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from perdure import Agent, Runtime, Session
from perdure.codec import Json
from perdure.models.scripted import ScriptedModel, call, say
from perdure.tools.mcp import McpServers
from perdure.tools.mcp import connection as mcp_connection
from perdure.vocab.messages import ToolResultPart
from tests.providers.loopback import Answer, Asked, Loopback
from tests.scenarios.conftest import NewStore, until

pytestmark = pytest.mark.any_store

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
        told = await results(session)
    return [one.name for one in model.requests[0].tools], told[0]


async def results(session: Session) -> list[Json]:
    return [part.output for one in await session.messages() for part in one.parts if isinstance(part, ToolResultPart)]


async def test_tools_with_uncheckable_arguments_are_omitted(
    new_store: NewStore, caplog: pytest.LogCaptureFixture
) -> None:
    names, told = await names_and_answer(new_store, {"r": config("uncheckable")})
    assert (names, told) == (["mcp_r__good"], "fine")
    left_out = [one.message for one in caplog.records if "MCP tool skipped" in one.message]
    assert [message.split("'")[1] for message in left_out] == ["strange", "pattern"]


async def test_an_answer_that_cannot_be_read_is_no_failure(new_store: NewStore) -> None:
    _, told = await names_and_answer(new_store, {"r": config("unreadable")})
    assert told["code"] == "outcome_unknown"
    assert "unreadable answer" in told["error"]


@pytest.mark.parametrize("how", ["another", "chatters", "bytes", "long_line"])
async def test_unsolicited_server_messages_are_ignored(
    new_store: NewStore, how: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO):
        names, told = await names_and_answer(new_store, {"r": config(how, env={"TOKEN": "secret-of-the-server"})})
    assert (names, told) == (["mcp_r__good"], "fine"), "the tool is listed twice"
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


async def test_tools_are_listed_in_the_order_of_the_configuration(new_store: NewStore, tmp_path: Path) -> None:
    env: Json = {"FIRST": str(tmp_path / "first")}
    servers: dict[str, Json] = {"b": config("second", env=env), "a": config("first", env=env)}
    names, _ = await names_and_answer(new_store, servers, "mcp_a__good")
    assert names == ["mcp_b__good", "mcp_a__good"], "else a provider's cache finds other bytes on each worker"


@pytest.mark.parametrize("how", ["lists_once", "lists_once_and_hangs"])
async def test_server_failing_to_list_tools_again_keeps_serving_calls(
    new_store: NewStore, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    def model() -> ScriptedModel:
        return ScriptedModel(call("mcp_r__good"), say("done"))

    async def told_so() -> bool:
        return "MCP tool list not refreshed" in caplog.text

    async with McpServers({"r": config(how, refresh=0)}) as mcp:
        connection = mcp._connections["r"]  # pyright: ignore[reportPrivateUsage]
        connection.config = replace(connection.config, start_timeout=0.2)  # it has started
        agents = [Agent(name, model=model(), tools=[mcp]) for name in ("first", "second")]
        async with Runtime(new_store(), agents=agents) as rt:
            waits, answers = await rt.session("1", agent="first"), await rt.session("2", agent="second")
            sent = await waits.send("go")
            await until(told_so, seconds=ANSWER_S)
            await answers.ask("go")
            await sent.result(ANSWER_S)
            assert (await results(waits), await results(answers)) == (["fine"], ["fine"])
            assert mcp.connected == {"r": True}


async def test_server_error_does_not_end_the_connection(new_store: NewStore) -> None:
    model = ScriptedModel(call("mcp_r__good"), call("mcp_r__good"), say("done"))
    async with (
        McpServers({"r": config("refuses")}) as mcp,
        Runtime(new_store(), agents=[Agent("a", model=model, tools=[mcp])]) as rt,
    ):
        session = await rt.session("s", agent="a")
        await session.ask("go")
        refused = {"error": "sold out", "code": "mcp_error-32000"}
        assert await results(session) == [refused, refused]
        assert mcp.connected == {"r": True}


async def test_a_secret_is_not_seen_wherever_a_server_says_it(
    new_store: NewStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_SECRET", "hunter2-hunter2")
    monkeypatch.setenv("HOW", "telling")
    model = ScriptedModel(call("mcp_r__good"), say("done"))
    server = config("", env={"TOKEN": "${SHOP_SECRET}"}) | {"args": [ROGUE, "${HOW}"]}
    async with (
        McpServers({"r": server}) as mcp,
        Runtime(new_store(), agents=[Agent("a", model=model, tools=[mcp])]) as rt,
    ):
        session = await rt.session("s", agent="a")
        await session.ask("go")
        assert "[secret]" in str(await results(session))
        seen = [model.requests[1], *(row.data for row in await session.journal())]
        assert "hunter2" not in str(seen)


# --- over HTTP

LISTED: Json = [{"name": "good", "inputSchema": {"type": "object"}}]


class OverHttp:
    """A server over HTTP, whose answers to calls are what a test says."""

    def __init__(self, *calls: Callable[[int], Answer]) -> None:
        self.calls = list(calls)
        self.keys: list[str] = []
        self.sessions = 0

    def __call__(self, asked: Asked) -> Answer:
        if asked.method != "POST":
            return Answer(b"", 405)
        message: Json = json.loads(asked.body)
        match message["method"]:
            case "initialize":
                self.sessions += 1
                served: Json = {"name": "r", "version": "1"}
                result: Json = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": served}
                return _answered(message["id"], result, f"session-{self.sessions}")
            case "tools/list":
                return _answered(message["id"], {"tools": LISTED})
            case "tools/call":
                self.keys.append(message["params"]["_meta"]["io.perdure/idempotency-key"])
                return self.calls.pop(0)(message["id"])
            case _:
                return Answer(b"", 202)


def _answered(id: int, result: Json, session: str = "") -> Answer:
    named = {"mcp-session-id": session} if session else {}
    return Answer(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode(), headers=named)


def fine(id: int) -> Answer:
    return _answered(id, {"content": [{"type": "text", "text": "fine"}]})


def page(status: int) -> Callable[[int], Answer]:
    return lambda _: Answer(b"<html>a proxy</html>", status, "text/html")


NO_ANSWERS: dict[str, Callable[[int], Answer]] = {
    "bad gateway": page(502),
    "gateway timeout": page(504),
    "a page": page(200),
    "accepted": lambda _: Answer(b"", 202),
    "no JSON": lambda _: Answer(b"{half"),
    "a stream without an answer": lambda _: Answer(b": ping\n\n", content_type="text/event-stream"),
    "a stream of something else": lambda _: Answer(b"data: {half\n\n", content_type="text/event-stream"),
}


async def called(new_store: NewStore, over_http: OverHttp, calls: int) -> tuple[list[Json], dict[str, bool]]:
    """Return the results of so many calls, and whether the server is connected after them."""
    model = ScriptedModel(*[call("mcp_r__good") for _ in range(calls)], say("done"))
    async with Loopback(always=over_http).running() as server:
        entry: Json = {"url": f"{server.url}/mcp", "start_timeout": 50, "protocol": "legacy"}
        async with (
            McpServers({"r": entry}) as mcp,
            Runtime(new_store(), agents=[Agent("a", model=model, tools=[mcp])]) as rt,
        ):
            session = await rt.session("s", agent="a")
            assert (await (await session.send("go")).result(ANSWER_S)).status == "finished"
            return await results(session), mcp.connected


@pytest.mark.parametrize("what", NO_ANSWERS)
async def test_invalid_http_response_leaves_the_call_in_doubt(new_store: NewStore, what: str) -> None:
    over_http = OverHttp(NO_ANSWERS[what], fine)
    told, connected = await called(new_store, over_http, 2)
    assert told[0]["code"] == "outcome_unknown", "a proxy gave up, and the server may have done it"
    assert told[1] == "fine"
    assert len(set(over_http.keys)) == len(over_http.keys) == 2, "nothing is sent twice"
    assert connected == {"r": True}


async def test_s14_compressed_answer_is_limited_in_bytes(new_store: NewStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def bomb(id: int) -> Answer:
        plain = _answered(id, {"content": [{"type": "text", "text": "A" * 1_000_000}]})
        return Answer(gzip.compress(plain.body), headers={"content-encoding": "gzip"})

    monkeypatch.setattr(mcp_connection, "MAX_LINE_BYTES", 500_000)
    told, connected = await called(new_store, OverHttp(bomb, fine), 2)
    assert told[0]["code"] == "outcome_unknown", "the server has done it"
    assert told[1] == "fine" or told[1]["code"] == "mcp_not_connected"
    assert connected in ({"r": True}, {"r": False})


async def test_unauthorized_call_fails_without_doubt(new_store: NewStore) -> None:
    told, connected = await called(new_store, OverHttp(page(401), fine), 2)
    assert told[0]["code"].startswith("mcp_error")
    assert "401" in told[0]["error"]
    assert told[1] == "fine"
    assert connected == {"r": True}


async def test_a_server_that_forgot_the_session_is_connected_to_again(new_store: NewStore) -> None:
    model = ScriptedModel.by_input({said: [call("mcp_r__good"), say("ok")] for said in ("one", "two")})
    over_http = OverHttp(lambda _: Answer(b"", 404), *[fine] * 3)
    async with Loopback(always=over_http).running() as server:
        entry: Json = {"url": f"{server.url}/mcp", "start_timeout": 50, "protocol": "legacy"}
        async with (
            McpServers({"r": entry}) as mcp,
            Runtime(new_store(), agents=[Agent("a", model=model, tools=[mcp])]) as rt,
        ):
            session = await rt.session("s", agent="a")
            await session.ask("one")

            async def back() -> bool:
                return over_http.sessions == 2 and mcp.connected == {"r": True}

            await until(back, seconds=ANSWER_S)
            await session.ask("two")
            first, second = await results(session)
    assert first == "fine" or first["code"] == "mcp_not_connected", "a call that was not sent is safe to repeat"
    assert second == "fine"


async def test_t_tool_03_large_answer_holds_no_step(new_store: NewStore) -> None:
    _, told = await names_and_answer(new_store, {"r": config("large")})
    assert told["truncated"]
