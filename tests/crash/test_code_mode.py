"""A program with a loop of twenty `once` calls, killed at each of them: it goes on inside itself and repeats none.

The table, by where the process dies in call n:

| killed | dispatched | the program is told |
|---|---|---|
| after the intent, before the dispatch | not at all | outcome unknown |
| inside the call, or before its outcome is durable | once | outcome unknown |
| after its outcome is durable | once | the outcome |

The same process is killed at one call after the other, so that the program lives through twenty deaths.
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

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

CALLS = 20
INSIDE = "PERDURE_TEST_INSIDE"

PROGRAM = f"""
told = []
for item in range(1, {CALLS} + 1):
    try:
        told.append(ship(item=item))
    except RuntimeError as problem:
        told.append(str(problem).split(":")[0])
    print(item)
told
"""


async def _run(folder: Path) -> None:
    ledger = Ledger(folder / "ledger")

    @tool
    async def ship(ctx: ToolContext, item: int) -> str:
        """Ship an item."""
        ledger.write(f"ship-{item}", ctx.idempotency_key)
        if os.environ.get(INSIDE) == str(item):
            die()
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


def killing(where: str, item: int) -> dict[str, str]:
    step = f"c1.0/step:call:{item}"
    match where:
        case "after its intent":
            return {KILL_AT: f"0:after:effect_started {step}"}
        case "inside":
            return {INSIDE: str(item)}
        case "before its outcome":
            return {KILL_AT: f"0:before:effect_settled {step}"}
        case _:
            return {KILL_AT: f"0:after:effect_settled {step}"}


TABLE: dict[str, tuple[int, bool]] = {  # how often each call reaches the world, and whether its outcome is known
    "after its intent": (0, False),
    "inside": (1, False),
    "before its outcome": (1, False),
    "after its outcome": (1, True),
}


@pytest.mark.slow
@pytest.mark.parametrize("where", TABLE)
async def test_a_program_lives_through_a_kill_at_each_of_its_calls(tmp_path: Path, where: str) -> None:
    await live_through(tmp_path, where)


@pytest.mark.parametrize("where", ["inside", "after its outcome"])
async def test_a_program_lives_through_kills_on_a_database_server(on_postgres: Path, where: str) -> None:
    await live_through(on_postgres, where)


async def live_through(folder: Path, where: str) -> None:
    times, known = TABLE[where]
    for item in range(1, CALLS + 1):
        assert child(folder, killing(where, item)) == -signal.SIGKILL, item
    assert child(folder, {}) == 0
    assert (folder / "answer").read_text() == "finished done"
    ledger = Ledger(folder / "ledger")
    dispatched = Counter(name for name, _ in ledger.lines())
    assert dispatched == ({f"ship-{item}": times for item in range(1, CALLS + 1)} if times else {})
    assert len({key for _, key in ledger.lines()}) == CALLS * times
    history = await final_history(folder)
    assert_valid_for_a_provider(history)
    [told] = [part.output for message in history for part in message.parts if isinstance(part, ToolResultPart)]
    told = msgspec.convert(told, dict[str, Json])
    expected: list[Json] = [f"shipped {item}" if known else "outcome_unknown" for item in range(1, CALLS + 1)]
    assert told["result"] == expected
    assert told["printed"] == "".join(f"{item}\n" for item in range(1, CALLS + 1)), "nothing twice, nothing lost"
    assert str(told.get("note", "")).count("may or may not have taken effect") == (0 if known else CALLS)
    async with Runtime(store_url(folder), worker=False) as rt:
        rows = await rt.get_session("s").journal()
    intents = Counter(str(row.record.id) for row in rows if isinstance(row.record, EffectStarted))
    assert [intents[f"c1.0/step:call:{item}"] for item in range(1, CALLS + 1)] == [1] * CALLS
