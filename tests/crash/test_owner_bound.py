"""An owner-bound process whose worker is killed: no worker enters it again, and `why` says so."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from perdure import ProcessContext, Runtime
from perdure.codec import Json
from perdure.processes.registration import environment
from perdure.runtime.internals import core_of
from perdure.runtime.processes.starting import register
from perdure.store.shapes import Placement
from perdure.vocab.registrations import EngineInput, ProcessInput, ProcessWasAbandoned, Registration
from tests.crash.harness import processes, wait_until
from tests.crash.scenarios import Ledger, store_url

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

ENV, ENV_BLOB = environment({}, {})


class Bound:
    """Writes that it was entered, and waits."""

    definitions = ("bound",)
    place = Placement()

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def run(self, ctx: ProcessContext, given: ProcessInput) -> Json:
        self._ledger.write("entered", "-")
        return await ctx.wait_for_event("go")


async def _run(folder: Path) -> None:
    asked = Registration(
        process_id="b", definition="bound", input=EngineInput(kind="k"), recovery="owner_bound", env=ENV
    )
    async with Runtime(store_url(folder), processes=[Bound(Ledger(folder / "ledger"))]) as rt:
        handle = await register(core_of(rt), asked, env=ENV_BLOB)
        await handle.wait(timeout=100)


def _child(folder: str) -> None:
    asyncio.run(_run(Path(folder)))


async def test_owner_bound_process_of_a_dead_worker_ends_by_abandon(folder: Path) -> None:
    ledger = Ledger(folder / "ledger")
    started = processes.Process(target=_child, args=(str(folder),))
    started.start()
    wait_until(lambda: ledger.count("entered") == 1, seconds=60)
    async with Runtime(store_url(folder), processes=[Bound(ledger)]) as rt:
        handle = rt.get_process("b")
        while "effect_started" not in [row.kind for row in await handle.journal()]:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.02)
        assert (await handle.why()).status == "running"
        assert started.pid is not None
        os.kill(started.pid, 9)
        started.join()
        why = await handle.why()
        while why.status != "orphaned":
            await asyncio.sleep(0.02)
            why = await handle.why()
        assert "its progress is unknown" in why.because
        assert (await handle.info()).output is None, "a worker's death ends nothing"
        assert await handle.abandon("it will not come back", by="ann")
        assert await handle.wait(timeout=60) == ProcessWasAbandoned(reason="it will not come back", by="ann")
        assert (await handle.why()).status == "ended"
    assert ledger.count("entered") == 1, "no other worker may resume the process"
