"""A process that only its own worker may run, and whose worker is killed: nobody enters it again, and that is said."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from perdure import ProcessContext, Runtime
from perdure.codec import Json
from perdure.processes.registration import environment
from perdure.runtime.processes.starting import register
from perdure.store.shapes import Place
from perdure.vocab.registrations import EngineInput, ProcessInput, ProcessWasAbandoned, Registration
from tests.crash.harness import processes, wait_until
from tests.crash.scenarios import Ledger, store_url

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

ENV, ENV_BLOB = environment({}, {})


class Bound:
    """Writes that it was entered, and waits."""

    definitions = ("bound",)
    place = Place()

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def run(self, ctx: ProcessContext, given: ProcessInput) -> Json:
        self._ledger.write("entered", "-")
        return await ctx.event("go")


async def _run(folder: Path) -> None:
    asked = Registration(
        process_id="b", definition="bound", input=EngineInput(kind="k"), recovery="owner_bound", env=ENV
    )
    async with Runtime(store_url(folder), processes=[Bound(Ledger(folder / "ledger"))]) as rt:
        handle = await register(rt, asked, env=ENV_BLOB)
        await handle.wait(timeout=100)


def _child(folder: str) -> None:
    asyncio.run(_run(Path(folder)))


async def test_whoever_looks_is_told_that_its_worker_is_dead_and_only_a_person_ends_it(folder: Path) -> None:
    ledger = Ledger(folder / "ledger")
    started = processes.Process(target=_child, args=(str(folder),))
    started.start()
    wait_until(lambda: ledger.count("entered") == 1, seconds=60)
    async with Runtime(store_url(folder), processes=[Bound(ledger)]) as rt:
        handle = rt.process("b")
        while "effect_started" not in [row.kind for row in await handle.rows()]:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.02)
        assert (await handle.why()).status == "running"
        assert started.pid is not None
        os.kill(started.pid, 9)
        started.join()
        why = await handle.why()
        while why.status != "orphaned":
            await asyncio.sleep(0.02)
            why = await handle.why()
        assert "nobody knows how far it came" in why.because
        assert (await handle.record()).output is None, "a worker's death ends nothing"
        assert await handle.abandon("it will not come back", by="ann")
        assert await handle.wait(timeout=60) == ProcessWasAbandoned(reason="it will not come back", by="ann")
        assert (await handle.why()).status == "ended"
    assert ledger.count("entered") == 1, "nobody else may go on with it"
