"""An MCP server has asked a person something, and every process that knew of it is killed: the answer still arrives,
and the tool is called no more often than its server wants."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from perdure import Agent, Runtime, RuntimeOptions
from perdure.codec import Json
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.clock import SystemClock
from perdure.runtime.stores import store_for
from perdure.testing.crash import KILL_AT, tripwire_from_environment
from perdure.tools.mcp import McpServers
from perdure.vocab.messages import ToolResultPart
from tests.crash.harness import assert_valid_for_a_provider, final_history, processes
from tests.crash.scenarios import store_url
from tests.scenarios.conftest import until
from tests.scenarios.test_mcp import SHOP, Served

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]


async def _run(folder: Path) -> None:
    clock = SystemClock()
    store = tripwire_from_environment(store_for(store_url(folder), clock, lease_ms=2_000))
    shop: Json = {"url": (folder / "url").read_text(), "start_timeout": 50, "elicit": True}
    model = ScriptedModel(call("mcp_shop__measure"), say("done", exact=True))
    agent = Agent("a", model=model, tools=[McpServers({"shop": shop})])
    async with Runtime(store, agents=[agent], options=RuntimeOptions(clock=clock, idle_timeout_s=0.0)) as rt:
        session = await rt.session("s", agent="a")
        result = await (await session.send("go", key="go")).result(timeout=100)
        (folder / "answer").write_text(f"{result.status} {result.text}")


def _child(folder: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    asyncio.run(_run(Path(folder)))


async def _ended(folder: Path, environment: dict[str, str]) -> int:
    process = processes.Process(target=_child, args=(str(folder), environment))
    process.start()
    await asyncio.to_thread(process.join, 100)
    if process.is_alive():
        process.kill()
        raise AssertionError(f"hung with {environment}")
    assert process.exitcode is not None
    return process.exitcode


@pytest.mark.slow
async def test_a_question_of_a_server_outlives_the_worker(tmp_path: Path) -> None:
    await _live_through(tmp_path)


async def test_a_question_of_a_server_outlives_the_worker_on_a_database_server(on_postgres: Path) -> None:
    await _live_through(on_postgres)


async def _live_through(folder: Path) -> None:
    server = Served([SHOP, "PORT"], {"SHOP_LEDGER": str(folder / "ledger")})
    try:
        await server.ready()
        (folder / "url").write_text(server.url)
        await _kill_and_answer(folder)
    finally:
        server.process.kill()
        server.process.wait()


async def _kill_and_answer(folder: Path) -> None:
    first = processes.Process(target=_child, args=(str(folder), {}))
    first.start()
    async with Runtime(store_url(folder), worker=False) as rt:

        async def asked() -> bool:
            return len(await rt.approvals.list()) == 1

        await until(asked, seconds=90)
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        first.join()
        [question] = await rt.approvals.list()
        assert "Which size?" in str(question.args)
        await rt.approvals.approve(question.id, by="ana", args={"size": "M"})
    recorded = {KILL_AT: "0:before:effect_settled c1.0/approval:asks:1:size"}
    assert await _ended(folder, recorded) == -signal.SIGKILL, "killed again when the answer is about to be recorded"
    assert await _ended(folder, {}) == 0
    assert (folder / "answer").read_text() == "finished done"
    assert (folder / "ledger").read_text().splitlines() == ["measure asked", "measure accept"]
    history = await final_history(folder)
    assert_valid_for_a_provider(history)
    [told] = [part.output for message in history for part in message.parts if isinstance(part, ToolResultPart)]
    assert "size M" in str(told)
