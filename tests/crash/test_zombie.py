"""A worker that is not dead, only stopped: it must not write, must not dispatch, and may tell what it knows."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from perdure import Agent, Runtime, RuntimeOptions
from perdure.models.scripted import ScriptedModel, call, say
from perdure.vocab.messages import Text
from perdure.vocab.records import EffectSettled, OutcomeArrivedLate
from tests.crash.harness import assert_valid_for_a_provider, is_stopped, start, wait_until
from tests.crash.scenarios import LEASE_S, SCENARIOS, STOP_AT, Ledger, store_url

pytestmark = [pytest.mark.crash, pytest.mark.timeout(60)]

SHORT = "0.8"


def successor(folder: Path, scenario: str) -> Runtime:
    """Another worker on the same file."""
    _, tools = SCENARIOS[scenario](Ledger(folder / "ledger"))
    model = ScriptedModel.by_input({"go": [call("charge"), say("all done")]}, default=[say("noted")])
    url = store_url(folder)
    return Runtime(url, agents=[Agent("a", model=model, tools=tools)], options=RuntimeOptions(lease_s=float(SHORT)))


async def test_a_thawed_worker_writes_nothing_and_its_late_outcome_reaches_the_log(folder: Path) -> None:
    ledger = Ledger(folder / "ledger")
    stopped = start("zombie", folder, {LEASE_S: SHORT})
    try:
        wait_until(lambda: ledger.count("charge") == 1)
        assert stopped.pid is not None
        os.kill(stopped.pid, signal.SIGSTOP)
        async with successor(folder, "zombie") as rt:
            session = rt.get_session("s")
            sent = await session.send("go", key="the-only-input")
            assert sent.is_duplicate
            result = await sent.result(timeout=20)
            assert result.status == "finished"
            before = [row.data for row in await session.journal()]

            (folder / "go").touch()
            os.kill(stopped.pid, signal.SIGCONT)
            late = await _late_outcome(rt)
            assert late.tool == "charge"
            assert b"charged at last" in (await session.journal())[-1].data

            after = [row.data for row in await session.journal()]
            assert after[: len(before)] == before
            assert len(after) == len(before) + 1, "only the late outcome was added"
            assert ledger.count("charge") == 1
            settled = [row.record for row in await session.journal() if isinstance(row.record, EffectSettled)]
            assert sum(record.id == "c1.0.1" for record in settled) == 1

            assert (await session.ask("and now?", timeout=20)).startswith("noted")
            history = await session.messages()
            assert_valid_for_a_provider(history)
            told = [part.text for part in history[-2].parts if isinstance(part, Text)]
            assert "charged at last" in told[0]
            assert told[1] == "and now?"
    finally:
        stopped.kill()
        stopped.join()


async def _late_outcome(rt: Runtime) -> OutcomeArrivedLate:
    async with asyncio.timeout(20):
        async for event in rt.get_session("s").events():
            record = getattr(event, "record", None)
            if isinstance(record, OutcomeArrivedLate):
                return record
    raise AssertionError


@pytest.mark.parametrize("scenario", ["zombie", "zombie_probed"])
async def test_a_worker_stopped_between_intent_and_dispatch_does_not_dispatch(scenario: str, folder: Path) -> None:
    """Not even when a probe says "it did not happen": the stopped worker could still do it, so that is unknown."""
    ledger = Ledger(folder / "ledger")
    stopped = start(scenario, folder, {LEASE_S: SHORT, STOP_AT: "3:after"})
    try:
        wait_until(lambda: is_stopped(stopped.pid))
        async with successor(folder, scenario) as rt:
            sent = await rt.get_session("s").send("go", key="the-only-input")
            result = await sent.result(timeout=20)
            assert result.status == "finished"
            assert ledger.count("charge") == 0
            assert stopped.pid is not None
            os.kill(stopped.pid, signal.SIGCONT)
            wait_until(lambda: (folder / "answer").exists())
            stopped.join(20)
            assert ledger.count("charge") == 0, "dispatched after its lease had lapsed"
            assert_valid_for_a_provider(await rt.get_session("s").messages())
    finally:
        stopped.kill()
        stopped.join()


async def test_frozen_call_is_not_repeated_after_its_deadline(folder: Path) -> None:
    """When it thaws it goes on where it stood: a deadline proves nothing about a worker that may still be alive."""
    ledger = Ledger(folder / "ledger")
    frozen = start("zombie_late", folder, {LEASE_S: SHORT})
    try:
        wait_until(lambda: ledger.count("begun") == 1)
        assert frozen.pid is not None
        os.kill(frozen.pid, signal.SIGSTOP)
        await asyncio.sleep(1.2)  # past the call's own deadline, and past the lease
        async with successor(folder, "zombie_late") as rt:
            sent = await rt.get_session("s").send("go", key="the-only-input")
            assert (await sent.result(timeout=20)).status == "finished"
            assert ledger.count("begun") == 1, "the call was made again"
        os.kill(frozen.pid, signal.SIGCONT)
        frozen.join(20)
        assert ledger.count("charge") <= 1
        assert ledger.count("begun") == 1
    finally:
        frozen.kill()
        frozen.join()
