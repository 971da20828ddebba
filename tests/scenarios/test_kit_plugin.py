"""The pytest plugin, as a stranger finds it after `pip install perdure`: any runner or none, never in the way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.testing.running import run_pytest

pytestmark = pytest.mark.timeout(240)

AGENT = """
import asyncio
import pytest
from perdure import Agent, RetryPolicy, ToolContext, ToolError, tool
from perdure.runtime.internals import core_of
from perdure.testing import ScriptedModel, call, say

def agent(world):
    @tool
    async def charge(ctx: ToolContext, cents: int) -> str:
        "Charge."
        world.note("charge", key=ctx.idempotency_key, cents=cents)
        return "charged"
    return Agent("shop", model=ScriptedModel(call("charge", cents=5), say("done")), tools=[charge])

async def buy_and_restart(runtime, world):
    async with runtime(agents=[agent(world)]) as rt:
        session = await rt.session("s", agent="shop")
        assert (await session.ask("Buy", key="k")).startswith("done")
    async with runtime(agents=[agent(world)]) as rt:
        sent = await rt.get_session("s").send("Buy", key="k")
        assert sent.is_duplicate
        assert (await sent.result(timeout=5)).text.startswith("done")
    world.assert_once("charge")
"""
BOTH = {"test_buy[memory]": "passed", "test_buy[sqlite]": "passed"}


@pytest.mark.slow
def test_without_any_async_plugin(tmp_path: Path) -> None:
    test = "def test_buy(perdure_runtime, perdure_world): asyncio.run(buy_and_restart(perdure_runtime, perdure_world))"
    ran = run_pytest(tmp_path, {"test_it.py": f"{AGENT}\n{test}\n"}, "-p", "no:asyncio", "-p", "no:anyio")
    assert ran.outcomes == BOTH, ran.output


@pytest.mark.slow
def test_with_pytest_asyncio_in_auto_mode(tmp_path: Path) -> None:
    test = "async def test_buy(perdure_runtime, perdure_world): await buy_and_restart(perdure_runtime, perdure_world)"
    ran = run_pytest(tmp_path, {"test_it.py": f"{AGENT}\n{test}\n"}, "-o", "asyncio_mode=auto")
    assert ran.outcomes == BOTH, ran.output


@pytest.mark.slow
def test_with_pytest_asyncio_in_strict_mode(tmp_path: Path) -> None:
    test = """
@pytest.mark.asyncio
async def test_buy(perdure_runtime, perdure_world): await buy_and_restart(perdure_runtime, perdure_world)
"""
    ran = run_pytest(tmp_path, {"test_it.py": f"{AGENT}\n{test}\n"})
    assert ran.outcomes == BOTH, ran.output


@pytest.mark.slow
def test_with_anyio(tmp_path: Path) -> None:
    test = """
@pytest.fixture
def anyio_backend(): return "asyncio"

@pytest.mark.anyio
async def test_buy(perdure_runtime, perdure_world): await buy_and_restart(perdure_runtime, perdure_world)
"""
    ran = run_pytest(tmp_path, {"test_it.py": f"{AGENT}\n{test}\n"}, "-p", "no:asyncio")
    assert set(ran.outcomes.values()) == {"passed"}, ran.output
    assert len(ran.outcomes) == 2


CLOCK = """
def test_an_hour_passes(perdure_clock, perdure_runtime, perdure_store):
    @tool(effect="idempotent", retries=RetryPolicy(kind="idempotent", max_attempts=2, base_delay_ms=3_600_000))
    async def put(ctx: ToolContext) -> str:
        "Put."
        if ctx.attempt == 1:
            raise ToolError("busy")
        return f"put at {perdure_clock.wall_ms()}"

    async def story():
        start = perdure_clock.wall_ms()
        agents = [Agent("a", model=ScriptedModel(call("put"), say("done")), tools=[put])]
        async with perdure_runtime(agents=agents) as rt:
            assert core_of(rt).clock is perdure_clock
            sent = await (await rt.session("s", agent="a")).send("go")
            while not (why := await rt.get_session("s").why()).waiting or "pause" not in str(why.waiting):
                if any(one.until for one in why.waiting):
                    break
                await asyncio.sleep(0.005)
            perdure_clock.advance(2 * 3_600_000)
            assert (await sent.result(timeout=5)).status == "finished"
        assert perdure_clock.wall_ms() == start + 2 * 3_600_000

    asyncio.run(story())

def test_otherwise_it_is_the_time_of_day(perdure_runtime):
    import time
    async def story():
        async with perdure_runtime(agents=[Agent("a", "sim:echo")]) as rt:
            assert abs(core_of(rt).clock.wall_ms() - time.time() * 1000) < 5000
    asyncio.run(story())
"""


@pytest.mark.slow
def test_asking_for_the_clock_puts_everything_on_it(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, {"test_it.py": f"{AGENT}\n{CLOCK}\n"})
    assert set(ran.outcomes.values()) == {"passed"}, ran.output
    assert len(ran.outcomes) == 4


TWO = """
def test_two_workers_share_one_store(perdure_runtime, perdure_store, perdure_new_store, perdure_world):
    async def story():
        async with perdure_runtime(agents=[agent(perdure_world)]) as one, perdure_runtime(worker=False) as other:
            assert core_of(one).store is not core_of(other).store or type(core_of(one).store).__name__ == "MemoryStore"
            await (await one.session("s", agent="shop")).ask("Buy", key="k")
            assert len(await other.get_session("s").messages()) == 4
        await perdure_store.open()
        assert len(await perdure_store.workers()) == 0
        await perdure_store.close()
    asyncio.run(story())
"""


@pytest.mark.slow
def test_runtimes_of_one_test_are_processes_of_one_store(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, {"test_it.py": f"{AGENT}\n{TWO}\n"})
    assert set(ran.outcomes.values()) == {"passed"}, ran.output


# --- no effect on other tests

IDLE = """
import sys
def test_nothing():
    ours = {name for name in sys.modules if name.partition(".")[0] == "perdure"}
    assert ours == {"perdure", "perdure.errors", "perdure.ids", "perdure.testing", "perdure.testing.plugin"}
    assert "msgspec" not in sys.modules
"""


def test_an_idle_plugin_loads_nothing(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, {"test_it.py": IDLE}, "-p", "no:asyncio", "-p", "no:anyio", "-p", "no:hypothesispytest")
    assert ran.outcomes == {"test_nothing": "passed"}, ran.output


@pytest.mark.slow
def test_plugin_has_no_hooks_options_or_markers() -> None:
    import perdure.testing.plugin as plugin

    assert [name for name in vars(plugin) if name.startswith("pytest_")] == []
    for question in ("--help", "--markers"):
        said = subprocess.run([sys.executable, "-m", "pytest", question], capture_output=True, text=True, check=True)
        assert "perdure" not in said.stdout.lower().replace("/perdure", ""), question


def test_plugin_is_disabled_by_an_option(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, {"test_it.py": "def test_it(perdure_world): pass\n"}, "-p", "no:perdure")
    assert ran.outcomes == {"test_it": "error"}
    assert "fixture 'perdure_world' not found" in ran.output
