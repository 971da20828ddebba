"""A program that waits for its client, killed while it does: another process brings the result, and it goes on."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path

import pytest

from perdure import Agent, Runtime, RuntimeOptions, Session, ToolContext, tool
from perdure.codemode import code_mode
from perdure.models.scripted import ScriptedModel, call, say
from perdure.testing.crash import die
from perdure.tools.client_side import client_tool
from perdure.vocab.messages import ToolResultPart
from perdure.vocab.records import EffectSettled
from tests.crash.harness import final_history, processes
from tests.crash.scenarios import Ledger, store_url

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

PROGRAM = "import asyncio\na = ship(1)\n[b, c] = await asyncio.gather(pick(), ship(2))\n[a, b, c, ship(3)]"
PICK = client_tool("pick", "Let the person pick.", {"type": "object", "properties": {}})


async def _settled(session: Session) -> bool:
    """Whether the call beside that of the client has its outcome, in the store."""
    records = [row.record for row in await session.journal()]
    return any(isinstance(one, EffectSettled) and one.id == "c1.0/step:call:3" for one in records)


async def _run(folder: Path, last: bool) -> None:
    ledger = Ledger(folder / "ledger")

    @tool
    async def ship(ctx: ToolContext, item: int) -> str:
        """Ship an item."""
        ledger.write(f"ship-{item}", ctx.idempotency_key)
        return f"shipped {item}"

    model = ScriptedModel(call("run_python", code=PROGRAM), say("done", exact=True))
    agent = Agent("a", model=model, tools=[ship, PICK, code_mode()])
    async with Runtime(
        store_url(folder), agents=[agent], options=RuntimeOptions(idle_timeout_s=0.0 if last else 30.0)
    ) as rt:
        session = await rt.session("s", agent="a")
        sent = await session.send("go", key="go")
        while not (await _settled(session) and (waiting := await session.pending())):  # noqa: ASYNC110 - in the store
            await asyncio.sleep(0.01)
        if not last:
            die()
        await session.post_result(waiting[0].id, "the red one")
        result = await sent.result(timeout=60)
        (folder / "answer").write_text(f"{result.status} {result.text}")


def _child(folder: str, last: bool) -> None:
    asyncio.run(_run(Path(folder), last))


def child(folder: Path, *, last: bool) -> int:
    process = processes.Process(target=_child, args=(str(folder), last))
    process.start()
    process.join(60)
    if process.is_alive():
        process.kill()
        process.join()
        raise AssertionError("hung")
    assert process.exitcode is not None
    return process.exitcode


async def test_a_program_that_waits_for_its_client_lives_through_kills(tmp_path: Path) -> None:
    await live_through(tmp_path)


async def test_program_waiting_for_its_client_survives_kills_on_postgres(on_postgres: Path) -> None:
    await live_through(on_postgres)


async def live_through(folder: Path) -> None:
    for _ in range(2):
        assert child(folder, last=False) == -signal.SIGKILL
    assert child(folder, last=True) == 0
    assert (folder / "answer").read_text() == "finished done"
    assert Counter(name for name, _ in Ledger(folder / "ledger").lines()) == {f"ship-{item}": 1 for item in (1, 2, 3)}
    history = await final_history(folder)
    [told] = [part.output for message in history for part in message.parts if isinstance(part, ToolResultPart)]
    assert told == {"result": ["shipped 1", "the red one", "shipped 2", "shipped 3"]}
