"""A worker is killed in the middle of a `once` call, and a person says what became of it, by command."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure import Agent, Runtime, ToolContext, tool
from perdure.codec import Json
from perdure.models.scripted import ScriptedModel, call, say
from perdure.testing.crash import die
from perdure.tools.decorator import AnyTool
from perdure.vocab.messages import ToolResultPart
from tests.crash.harness import processes
from tests.crash.scenarios import Ledger, store_url
from tests.e2e.command import perdure

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]


def agent(ledger: Ledger, *, deadly: bool) -> Agent:
    @tool(in_doubt="ask")
    async def pay(ctx: ToolContext) -> str:
        """Pay."""
        ledger.write("dispatched", ctx.idempotency_key)
        if deadly:
            die()
        ledger.write("paid", ctx.idempotency_key)
        return "paid"

    tools: list[AnyTool] = [pay]
    return Agent("bank", model=ScriptedModel(call("pay"), say("done", exact=True)), tools=tools)


async def _die(folder: Path) -> None:
    async with Runtime(store_url(folder), agents=[agent(Ledger(folder / "ledger"), deadly=True)]) as rt:
        sent = await (await rt.session("s", agent="bank")).send("go", key="go")
        await sent.result()


def killed(folder: str) -> None:
    asyncio.run(_die(Path(folder)))


@pytest.mark.parametrize(
    ("outcome", "more", "dispatched", "told"),
    [
        ("did-not-happen", (), 2, "paid"),
        ("happened", ("--value", '"receipt 7"'), 1, "receipt 7"),
        ("unknown", (), 1, "outcome_unknown"),
    ],
)
async def test_a_person_decides_about_a_call_whose_worker_was_killed(
    outcome: str, more: tuple[str, ...], dispatched: int, told: str, folder: Path
) -> None:
    ledger = Ledger(folder / "ledger")
    child = processes.Process(target=killed, args=(str(folder),))
    child.start()
    await asyncio.to_thread(child.join, 60)
    assert child.exitcode == -9
    [(_, key)] = ledger.lines()
    async with Runtime(store_url(folder), agents=[agent(ledger, deadly=False)]) as rt:
        session = await rt.session("s", agent="bank")
        sent = await session.send("go", key="go")
        async with asyncio.timeout(30):
            while not (asked := await rt.approvals.list()):  # noqa: ASYNC110 - the worker asks
                await asyncio.sleep(0.02)
        assert [one.kind for one in asked] == ["doubt"]
        assert len(ledger.lines()) == 1
        words = ("approvals", "settle", asked[0].id, outcome, *more, "--by", "ana", "--db", store_url(folder))
        decided = await asyncio.to_thread(perdure, *words, cwd=folder)
        assert decided.code == 0, decided.err
        assert (await sent.result(30)).text == "done"
        parts = [part for one in await session.messages() for part in one.parts]
        [output] = [part.output for part in parts if isinstance(part, ToolResultPart)]
    assert _said(output) == told
    assert ledger.count("dispatched") == dispatched
    assert ledger.count("paid") == dispatched - 1
    assert {other for _, other in ledger.lines()} == {key}


def _said(output: Json) -> str:
    return str(output) if isinstance(output, str) else str(output["code"])
