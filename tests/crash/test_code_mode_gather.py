"""A program that gathers `once` calls, killed while all of them are under way: none is made twice, and it goes on.

| killed | dispatched | the program is told |
|---|---|---|
| when all are inside | each once | of each that its outcome is unknown |
| after the outcome of one is durable | each once | that outcome, and of the others that theirs is unknown |
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from perdure import Agent, Runtime, RuntimeOptions, ToolContext, tool
from perdure.codec import Json
from perdure.codemode import code_mode
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.clock import SystemClock
from perdure.runtime.stores import store_for
from perdure.testing.crash import KILL_AT, die, tripwire_from_environment
from perdure.vocab.messages import ToolResultPart
from perdure.vocab.records import EffectStarted
from tests.crash.harness import assert_valid_for_a_provider, final_history, processes
from tests.crash.scenarios import Ledger, store_url

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

CALLS = 5
SPARED = "PERDURE_TEST_SPARED"
"""The call that ends while the others wait; none, and the process dies when all are inside."""

PROGRAM = f"""
import asyncio

async def safe(item):
    try:
        return await ship(item=item)
    except RuntimeError as problem:
        return str(problem).split(":")[0]

told = await asyncio.gather(*[safe(item) for item in range(1, {CALLS} + 1)])
told + [await safe({CALLS} + 1)]
"""


async def _run(folder: Path) -> None:
    ledger = Ledger(folder / "ledger")
    inside: set[int] = set()
    all_inside = asyncio.Event()

    @tool
    async def ship(ctx: ToolContext, item: int) -> str:
        """Ship an item."""
        ledger.write(f"ship-{item}", ctx.idempotency_key)
        inside.add(item)
        if len(inside) == CALLS:
            all_inside.set()
        spared = os.environ.get(SPARED)
        if spared is not None and item <= CALLS:
            await all_inside.wait()
            if not spared:
                die()
            if item != int(spared):
                await asyncio.Event().wait()
        return f"shipped {item}"

    clock = SystemClock()
    store = tripwire_from_environment(store_for(store_url(folder), clock, lease_ms=10_000))
    model = ScriptedModel(call("run_python", code=PROGRAM), say("done", exact=True))
    agent = Agent("a", model=model, tools=[ship, code_mode()])
    async with Runtime(store, agents=[agent], options=RuntimeOptions(clock=clock)) as rt:
        session = await rt.session("s", agent="a")
        sent = await session.send("go", key="go")
        result = await sent.result(timeout=60)
        (folder / "answer").write_text(f"{result.status} {result.text}")


def _child(folder: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    asyncio.run(_run(Path(folder)))


def child(folder: Path, environment: dict[str, str]) -> int:
    process = processes.Process(target=_child, args=(str(folder), environment))
    process.start()
    process.join(60)
    if process.is_alive():
        process.kill()
        process.join()
        raise AssertionError(f"hung with {environment}")
    assert process.exitcode is not None
    return process.exitcode


@pytest.mark.parametrize("spared", ["", "1", "4"])
async def test_a_program_lives_through_a_kill_inside_a_gather(tmp_path: Path, spared: str) -> None:
    await live_through(tmp_path, spared)


@pytest.mark.parametrize("spared", ["4"])
async def test_program_survives_a_kill_inside_gather_on_postgres(on_postgres: Path, spared: str) -> None:
    await live_through(on_postgres, spared)


async def live_through(folder: Path, spared: str) -> None:
    killing = {KILL_AT: f"0:after:effect_settled c1.0/step:call:{spared}"} if spared else {}
    assert child(folder, {SPARED: spared, **killing}) == -signal.SIGKILL
    assert child(folder, {}) == 0
    assert (folder / "answer").read_text() == "finished done"
    ledger = Ledger(folder / "ledger")
    assert Counter(name for name, _ in ledger.lines()) == {f"ship-{item}": 1 for item in range(1, CALLS + 2)}
    assert len({key for _, key in ledger.lines()}) == CALLS + 1
    history = await final_history(folder)
    assert_valid_for_a_provider(history)
    [told] = [part.output for message in history for part in message.parts if isinstance(part, ToolResultPart)]
    told = msgspec.convert(told, dict[str, Json])
    known = {int(spared) if spared else 0, CALLS + 1}
    assert told["result"] == [f"shipped {item}" if item in known else "outcome_unknown" for item in range(1, CALLS + 2)]
    async with Runtime(store_url(folder), worker=False) as rt:
        rows = await rt.get_session("s").journal()
    intents = Counter(str(row.record.id) for row in rows if isinstance(row.record, EffectStarted))
    assert [intents[f"c1.0/step:call:{item}"] for item in range(1, CALLS + 2)] == [1] * (CALLS + 1)
