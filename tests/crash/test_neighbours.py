"""A turn that kills every worker is dead-lettered; concurrent turns go on."""

from __future__ import annotations

import asyncio
import os
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from perdure import Agent, Runtime, ToolContext, tool
from perdure.models.scripted import ScriptedModel, call, say
from tests.crash.harness import processes
from tests.crash.scenarios import Ledger, store_url

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

GOOD = [f"good{number}" for number in range(20)]
WORKERS = 3
POISONED = 17  # not one of the signals


def agents_of(folder: Path) -> list[Agent]:
    ledger = Ledger(folder / "ledger")

    @tool(effect="idempotent")
    async def poison() -> str:
        ledger.write("poison", str(os.getpid()))
        await asyncio.sleep(0.2)  # its neighbours have begun by now
        os._exit(POISONED)

    @tool(effect="pure")
    async def ponder() -> str:
        """Takes its time, without a record, as long as there is poison about."""
        for _ in range(40):
            if ledger.count("poison") >= 3:
                break
            await asyncio.sleep(0.01)
        return "pondered"

    @tool(effect="once")
    async def charge(ctx: ToolContext) -> str:
        ledger.write("charge", ctx.idempotency_key)
        return "charged"

    return [
        Agent("deadly", model=ScriptedModel(call("poison"), say("done")), tools=[poison]),
        Agent("kind", model=ScriptedModel(call("ponder"), call("charge"), say("done")), tools=[ponder, charge]),
    ]


async def _work(folder: Path) -> None:
    async with Runtime(store_url(folder), agents=agents_of(folder)):
        while not (folder / "over").exists():  # noqa: ASYNC110 - the parent says so
            await asyncio.sleep(0.05)


def work(folder: str) -> None:
    asyncio.run(_work(Path(folder)))


def start(folder: Path) -> ForkServerProcess:
    process = processes.Process(target=work, args=(str(folder),))
    process.start()
    return process


async def test_a_turn_that_kills_is_dead_lettered_alone(folder: Path) -> None:
    async with Runtime(store_url(folder), agents=agents_of(folder), worker=False) as rt:
        names = [*GOOD[:10], "poison", *GOOD[10:]]
        sent = [
            await (await rt.session(name, agent="deadly" if name == "poison" else "kind")).send("go") for name in names
        ]
        fleet, ended = [start(folder) for _ in range(WORKERS)], list[int | None]()
        waiting = asyncio.gather(*(one.result(timeout=100) for one in sent))
        while not waiting.done():
            for place, worker in enumerate(fleet):
                if not worker.is_alive():
                    ended.append(worker.exitcode)
                    fleet[place] = start(folder)
            await asyncio.sleep(0.05)
        results = dict(zip(names, await waiting, strict=True))
        (folder / "over").touch()
        for worker in fleet:
            await asyncio.to_thread(worker.join, 30)
        assert ended == [POISONED] * 3, "the sealing worker does not try once more"
        assert results.pop("poison").reason == "no_forward_progress"
        assert {name: result.status for name, result in results.items()} == dict.fromkeys(GOOD, "finished")
        charged = [key for name, key in Ledger(folder / "ledger").lines() if name == "charge"]
        assert 0 < len(charged) == len(set(charged))
