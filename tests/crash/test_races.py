"""Cancelling and completing from processes that do not know each other: one of them wins, and all are told which."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

from perdure import Agent, Runtime, ToolContext, tool
from perdure.ids import TurnId
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.internals import ref_of
from perdure.runtime.sessions.session import Session
from perdure.vocab.records import TurnOpened
from tests.crash.harness import processes
from tests.crash.scenarios import Ledger, store_url

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]

ROUNDS = 64
CANCELLERS = 2


async def _opened(session: Session) -> TurnId:
    while True:
        if await ref_of(session).runtime.store.stream(ref_of(session).stream) is not None:
            for row in await session.journal():
                if isinstance(row.record, TurnOpened):
                    return row.record.turn
        await asyncio.sleep(0.002)


async def _cancel_all(folder: Path, who: int) -> None:
    chance, answers = random.Random(who), list[str]()
    async with Runtime(store_url(folder), worker=False) as rt:
        for n in range(ROUNDS):
            session = rt.get_session(f"s{n}")
            turn = await _opened(session)
            await asyncio.sleep(chance.random() * 0.03)
            answers.append(await session.cancel(turn))
    (folder / f"answers-{who}").write_text(json.dumps(answers))


def cancel_all(folder: str, who: int) -> None:
    asyncio.run(_cancel_all(Path(folder), who))


async def test_cancel_and_completion_race_from_three_processes(folder: Path) -> None:
    ledger = Ledger(folder / "ledger")

    @tool
    async def pay(ctx: ToolContext) -> str:
        """Pay."""
        ledger.write("pay", ctx.idempotency_key)
        await asyncio.sleep(0.005)
        return "paid"

    model = ScriptedModel.by_input({}, default=[call("pay"), say("ok", exact=True)])
    children = [processes.Process(target=cancel_all, args=(str(folder), who)) for who in range(CANCELLERS)]
    for child in children:
        child.start()
    ended: list[str | None] = []
    async with Runtime(store_url(folder), agents=[Agent("a", model=model, tools=[pay])]) as rt:
        for n in range(ROUNDS):
            session = await rt.session(f"s{n}", agent="a")
            ended.append((await (await session.send("go")).result(60)).reason)
        for child in children:
            await asyncio.to_thread(child.join, 60)
            assert child.exitcode == 0
    said = [json.loads((folder / f"answers-{who}").read_text()) for who in range(CANCELLERS)]
    for n, answers in enumerate(zip(*said, strict=True)):
        won = ["already_requested", "requested"] if ended[n] == "cancelled" else ["completion_won"] * CANCELLERS
        assert sorted(answers) == won, f"s{n} ended with {ended[n]}, and its cancels returned {answers}"
    keys = [key for _, key in ledger.lines()]
    assert len(keys) == len(set(keys))
    assert {None, "cancelled"} >= set(ended)
