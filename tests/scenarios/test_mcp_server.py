"""Agents offered as an MCP server: what a client asks is an input like any other, once per key."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import MutableMapping
from pathlib import Path

import msgspec
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp_types import CallToolResult
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from perdure import Agent, Runtime, tool
from perdure.cli.app import run_app
from perdure.codec import Json
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.mcp_server import TokenGate, mcp_server
from perdure.tools.mcp import McpServers
from perdure.vocab.messages import ToolResultPart
from tests.scenarios.conftest import App
from tests.scenarios.test_mcp import Served

pytestmark = pytest.mark.any_store


def answer(result: CallToolResult) -> dict[str, Json]:
    assert not result.is_error, result.content
    return msgspec.convert(result.structured_content, dict[str, Json])


async def test_an_agent_is_a_tool_and_its_sessions_can_be_read(app: App) -> None:
    rt = await app.open(ScriptedModel(say("hello", exact=True)))
    async with Client(mcp_server(rt)) as client:
        names = [one.name for one in (await client.list_tools()).tools]
        assert names == ["ask_a", "turn_result", "session_history", "list_sessions"]
        told = answer(await client.call_tool("ask_a", {"message": "hi", "session": "s", "key": "k1"}))
        assert (told["status"], told["text"], told["session"]) == ("finished", "hello", "s")
        again = answer(await client.call_tool("ask_a", {"message": "hi", "session": "s", "key": "k1"}))
        assert again == told, "the same key is the same input"
        read = answer(await client.call_tool("session_history", {"session": "s"}))
        assert read["messages"] == [{"role": "user", "text": "hi"}, {"role": "assistant", "text": "hello"}]
        listed = answer(await client.call_tool("list_sessions", {}))
        assert [one["session"] for one in listed["sessions"]] == ["s"]
        other = await client.call_tool("ask_a", {"message": "something else", "session": "s", "key": "k1"})
        assert other.is_error
        assert "input_key_conflict" in str(other.content)
        nobody = await client.call_tool("session_history", {"session": "never"})
        assert "session_unknown" in str(nobody.content)


async def test_a_turn_that_takes_long_goes_on_and_is_fetched(app: App) -> None:
    go = asyncio.Event()
    ran: list[str] = []

    @tool
    async def work() -> str:
        """Work."""
        ran.append("work")
        await go.wait()
        return "worked"

    rt = await app.open(ScriptedModel(call("work"), say("done", exact=True)), work)
    async with Client(mcp_server(rt)) as client:
        told = answer(await client.call_tool("ask_a", {"message": "go", "session": "s", "key": "k", "wait": 0.1}))
        assert told["status"] == "running"
    async with Client(mcp_server(rt)) as client:  # a disconnected client comes back
        go.set()
        given: dict[str, Json] = {"session": "s", "turn": told["turn"], "wait": 30}
        ended = answer(await client.call_tool("turn_result", given))
    assert (ended["status"], ended["text"], ran) == ("finished", "done", ["work"])


APP = """
from perdure import Agent, Runtime
from perdure.testing import ScriptedModel, say
app = Runtime("sqlite:///{db}", agents=[Agent("helper", model=ScriptedModel(say("at your service", exact=True)))])
"""


@pytest.mark.slow
async def test_the_command_serves_over_stdio_and_answers_the_same_after_a_restart(tmp_path: Path) -> None:
    (tmp_path / "helper_app.py").write_text(APP.format(db=tmp_path / "app.db"))
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-m", "perdure", "mcp", "serve", "helper_app:app"],
        env={"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
    )
    answers: list[dict[str, Json]] = []
    for _ in range(2):
        async with Client(parameters) as client:
            answers.append(answer(await client.call_tool("ask_helper", {"message": "hi", "key": "once"})))
    assert answers[0]["text"] == "at your service"
    assert answers[0] == answers[1]


@pytest.mark.slow
async def test_restarted_serve_command_returns_the_same_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "helper_app.py").write_text(APP.format(db=tmp_path / "app.db"))
    serve = ["-m", "perdure", "mcp", "serve", "helper_app:app", "--port", "PORT"]
    answers: list[dict[str, Json]] = []
    for _ in range(2):
        one = Served(serve, {"PYTHONPATH": str(tmp_path), "PERDURE_MCP_TOKEN": "t0ken"})
        try:
            await one.ready()
            async with create_mcp_http_client(headers={}) as stranger:
                assert (await stranger.post(one.url, json={})).status_code == 401
            async with (
                create_mcp_http_client(headers={"authorization": "Bearer t0ken"}) as http,
                Client(streamable_http_client(one.url, http_client=http)) as client,
            ):
                answers.append(answer(await client.call_tool("ask_helper", {"message": "hi", "key": "once"})))
            assert await asyncio.to_thread(run_app, ["mcp", "serve", "nothing:app", "--port", str(one.port)]) == 2
            assert f"cannot bind port {one.port}" in capsys.readouterr().err
        finally:
            one.process.kill()
            one.process.wait()
    assert answers[0]["text"] == "at your service"
    assert answers[0] == answers[1]


@pytest.mark.slow
async def test_an_agent_calls_another_one_through_both_ends(tmp_path: Path) -> None:
    (tmp_path / "helper_app.py").write_text(APP.format(db=tmp_path / "app.db"))
    server: Json = {
        "command": sys.executable,
        "args": ["-m", "perdure", "mcp", "serve", "helper_app:app"],
        "env": {"PYTHONPATH": str(tmp_path)},
        "cwd": str(tmp_path),
        "start_timeout": 50,
    }
    servers = McpServers({"helpers": server})
    model = ScriptedModel(call("mcp_helpers__ask_helper", message="help"), say("thanks", exact=True))
    async with Runtime("memory://", agents=[Agent("boss", model=model, tools=[servers])]) as rt:
        assert servers.connected == {"helpers": True}, "the runtime has seen to it"
        session = await rt.session("s", agent="boss")
        assert await session.ask("go") == "thanks"
        parts = [part for one in await session.messages() for part in one.parts if isinstance(part, ToolResultPart)]
    assert servers.connected == {"helpers": False}
    assert "at your service" in str(parts[0].output)


def test_the_command_lists_the_tools_of_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shop = Path(__file__).parents[1] / "mcp" / "shop.py"
    env = {"SHOP_LEDGER": str(tmp_path / "ledger")}
    server: Json = {"command": sys.executable, "args": [str(shop)], "env": env, "start_timeout": 50}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"shop": server, "gone": {"command": "/nowhere"}}}))
    assert run_app(["mcp", "list", str(tmp_path / "mcp.json")]) == 0
    out, err = capsys.readouterr()
    assert "mcp_shop__price  once\n" in out
    assert "mcp_shop__drop  once  needs approval\n" in out
    assert "Unreachable: gone." in err
    assert run_app(["mcp", "list", str(tmp_path / "none.json")]) == 2


async def test_s22_client_reaches_only_sessions_that_clients_opened(app: App) -> None:
    rt = await app.open(ScriptedModel(say("hello", exact=True), say("again", exact=True)))
    await (await rt.session("private", agent="a")).ask("my secret")
    async with Client(mcp_server(rt)) as client:
        await client.call_tool("ask_a", {"message": "hi", "session": "own"})
        for name in ("private", "../private", "default:session:private"):
            refused = await client.call_tool("session_history", {"session": name})
            assert "session_unknown" in str(refused.content), name
        listed = answer(await client.call_tool("list_sessions", {}))
        assert [one["session"] for one in listed["sessions"]] == ["own"]


@pytest.mark.any_store
@pytest.mark.parametrize(
    ("header", "status"),
    [(None, 401), ("Bearer wrong", 401), ("Bearer ", 401), ("Basic t0ken", 401), ("t0ken", 401), ("Bearer t0ken", 200)],
)
async def test_s22_http_needs_the_token(header: str | None, status: int) -> None:
    async def inside(scope: Scope, receive: Receive, send: Send) -> None:
        await Response("in")(scope, receive, send)

    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request"}

    async def send(message: MutableMapping[str, object]) -> None:
        sent.append(dict(message))

    headers = [(b"authorization", header.encode())] if header else []
    await TokenGate(inside, "t0ken")({"type": "http", "headers": headers}, receive, send)
    assert sent[0]["status"] == status
