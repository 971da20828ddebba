"""Event loops that are busy keep their sessions; those that never answer again, or were frozen, lose them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from perdure import Agent, Runtime, RuntimeOptions, ToolContext, tool
from perdure.codec import Json
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of
from perdure.store.memory.store import MemoryStore
from perdure.vocab.messages import ToolResultPart
from perdure.vocab.records import OutcomeArrivedLate
from tests.crash.harness import is_stopped, processes, wait_until
from tests.crash.scenarios import Ledger, store_url

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

LEASE_S = 2.0
STALL_LIMIT_S = 1.5
NEIGHBOURS = ("charge", "look")


def block(seconds: float) -> None:
    """Keep the event loop from everything else."""
    time.sleep(seconds)


def agents_of(folder: Path) -> list[Agent]:
    ledger = Ledger(folder / "ledger")
    blocker = folder / "blocker"

    @tool(effect="once")
    async def sleeper(ctx: ToolContext) -> str:
        """Blocks the loop for several leases, once its neighbours are at work."""
        ledger.write("sleeper", ctx.idempotency_key)
        while not all(ledger.count(name) for name in NEIGHBOURS):  # noqa: ASYNC110 - the ledger is a file
            await asyncio.sleep(0.01)
        blocker.touch()
        block(3 * LEASE_S)
        return "slept"

    @tool(effect="once")
    async def spinner(ctx: ToolContext) -> str:
        """Computes until the test ends it."""
        ledger.write("spinner", ctx.idempotency_key)
        while not all(ledger.count(name) for name in NEIGHBOURS):  # noqa: ASYNC110 - the ledger is a file
            await asyncio.sleep(0.01)
        blocker.touch()
        while not (folder / "free").exists():
            sum(range(1000))
        return "spun at last"

    @tool(effect="once")
    async def charge(ctx: ToolContext) -> str:
        """Has begun when the loop is blocked, and ends when it is free."""
        ledger.write("charge", ctx.idempotency_key)
        while not blocker.exists():  # noqa: ASYNC110 - its neighbour says so
            await asyncio.sleep(0.01)
        return "charged"

    @tool(effect="pure")
    async def look(ctx: ToolContext) -> str:
        ledger.write("look", ctx.idempotency_key)
        while not blocker.exists():  # noqa: ASYNC110 - its neighbour says so
            await asyncio.sleep(0.01)
        return "seen"

    tools = (sleeper, spinner, charge, look)
    return [Agent(one.name, model=ScriptedModel(call(one.name), say("done")), tools=[one]) for one in tools]


async def _work(folder: Path, name: str) -> None:
    options = RuntimeOptions(lease_s=LEASE_S, loop_stall_limit_s=STALL_LIMIT_S if name.endswith("stalls") else 60)
    async with Runtime(store_url(folder), agents=agents_of(folder), options=options):
        while not (folder / "over").exists():  # noqa: ASYNC110 - the parent says so
            await asyncio.sleep(0.02)


def work(folder: str, name: str) -> None:
    logging.basicConfig(filename=Path(folder) / f"{name}.log", level=logging.INFO)
    asyncio.run(_work(Path(folder), name))
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("perdure")]
    assert not left, left


class Fleet:
    """Worker processes that a test starts, and that end with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[ForkServerProcess] = []

    def start(self, name: str) -> int:
        process = processes.Process(target=work, args=(str(self._folder), name))
        process.start()
        self._processes.append(process)
        assert process.pid is not None
        return process.pid

    def end(self) -> list[int | None]:
        """Let the workers close in order; their exit codes."""
        (self._folder / "over").touch()
        for process in self._processes:
            process.join(30)
        return [process.exitcode for process in self._processes]

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


@pytest.fixture
def fleet(folder: Path) -> Iterator[Fleet]:
    started = Fleet(folder)
    yield started
    started.kill()


async def outputs(rt: Runtime, name: str) -> list[Json]:
    messages = await rt.get_session(name).messages()
    return [part.output for message in messages for part in message.parts if isinstance(part, ToolResultPart)]


@pytest.mark.slow
async def test_s3_x10_blocked_loop_keeps_its_sessions_for_several_leases(folder: Path, fleet: Fleet) -> None:
    """X10: another worker takes nothing over, and neither the blocking call nor its neighbours are in doubt."""
    ledger, names = Ledger(folder / "ledger"), ("sleeper", *NEIGHBOURS)
    async with Runtime(store_url(folder), agents=agents_of(folder), worker=False) as rt:
        sent = {name: await (await rt.session(name, agent=name)).send("go") for name in names}
        fleet.start("busy")
        await asyncio.to_thread(wait_until, (folder / "blocker").exists)
        fleet.start("idle")
        results = [await sent[name].result(timeout=60) for name in names]
        assert [result.status for result in results] == ["finished"] * 3
        assert [(await outputs(rt, name)) for name in names] == [["slept"], ["charged"], ["seen"]]
        assert [ledger.count(name) for name in names] == [1, 1, 1], "a session was taken over"
    assert fleet.end() == [0, 0]
    warned = fleet.log("busy")
    assert "event loop blocked" in warned
    assert "running=perdure:tool:sleeper:sleeper" in warned
    assert "block(3 * LEASE_S)" in warned
    assert "stalled" not in warned


@pytest.mark.slow
async def test_s3_x10_stalled_loop_loses_its_sessions_and_changes_nothing_later(folder: Path, fleet: Fleet) -> None:
    """X10: its neighbours finish elsewhere, its `once` calls are in doubt, and its log names the stack."""
    ledger, names = Ledger(folder / "ledger"), ("spinner", *NEIGHBOURS)
    async with Runtime(store_url(folder), agents=agents_of(folder), worker=False) as rt:
        sent = {name: await (await rt.session(name, agent=name)).send("go") for name in names}
        fleet.start("stalls")
        await asyncio.to_thread(wait_until, (folder / "blocker").exists)
        fleet.start("helps")
        results = [await sent[name].result(timeout=60) for name in names]
        assert [result.status for result in results] == ["finished"] * 3
        told = [(await outputs(rt, name)) for name in names]
        assert [len(each) for each in told] == [1, 1, 1]
        assert all("outcome_unknown" in str(each) for each in told[:2]), told
        assert told[2] == ["seen"]
        assert [ledger.count(name) for name in names] == [1, 1, 2]
        dead = {worker.id: worker.alive for worker in await core_of(rt).store.workers()}
        assert sorted(dead.values()) == [False, True]
        log = fleet.log("stalls")
        assert "CRITICAL:perdure.runtime:event loop stalled" in log
        assert "running=perdure:tool:spinner:spinner" in log
        assert ", in spinner\n" in log

        before = {name: await rt.get_session(name).journal() for name in names}
        (folder / "free").touch()
        await asyncio.to_thread(wait_until, lambda: "answers again" in fleet.log("stalls"))
        async with asyncio.timeout(30):
            async for event in rt.get_session("spinner").events():
                if isinstance(getattr(event, "record", None), OutcomeArrivedLate):
                    break
        for name in names:
            after = await rt.get_session(name).journal()
            assert after[: len(before[name])] == before[name]
            added = [row.record for row in after[len(before[name]) :]]
            assert all(isinstance(record, OutcomeArrivedLate) for record in added), added
        assert [ledger.count(name) for name in names] == [1, 1, 2]
    assert fleet.end() == [0, 0]


@pytest.mark.slow
async def test_s3_x10_frozen_process_is_not_reported_as_stalled(folder: Path, fleet: Fleet) -> None:
    """X10: a frozen process loses its lease as before, and its thread does not blame the loop for the time."""
    async with Runtime(store_url(folder), agents=[], worker=False) as rt:

        async def alive() -> list[bool]:
            return [worker.alive for worker in await core_of(rt).store.workers()]

        async def becomes(*expected: bool) -> None:
            async with asyncio.timeout(20):
                while await alive() != list(expected):  # noqa: ASYNC110 - another process does it
                    await asyncio.sleep(0.02)

        frozen = fleet.start("frozen-stalls")
        await becomes(True)
        os.kill(frozen, signal.SIGSTOP)
        await asyncio.to_thread(wait_until, lambda: is_stopped(frozen))
        await becomes(False)
        os.kill(frozen, signal.SIGCONT)
        await becomes(True)
    assert fleet.end() == [0]
    assert "stalled" not in fleet.log("frozen-stalls")


async def test_s3_x10_blocked_loop_keeps_its_sessions_in_memory() -> None:
    """X10: two workers of one process share the store; the loop that is blocked is the loop of both."""
    store, live = MemoryStore(SystemClock(), lease_ms=300), list[bool]()

    @tool(effect="once")
    async def charge() -> str:
        block(1.0)
        live.extend(store.lease_live(worker.id) for worker in await store.workers())
        await asyncio.sleep(0.3)  # both workers look for work
        return "charged"

    def runtime() -> Runtime:
        agent = Agent("a", model=ScriptedModel(call("charge"), say("done")), tools=[charge])
        return Runtime(store, agents=[agent], options=RuntimeOptions(lease_s=0.3))

    async with runtime() as one, runtime():
        result = await (await (await one.session("s", agent="a")).send("go")).result(timeout=20)
        assert result.status == "finished"
        assert await outputs(one, "s") == ["charged"]
        assert live == [True, True], "one call, and no lease had lapsed"
