"""An occurrence with three subscriptions, whose workers die: each subscription gets one process, which pays once.

Killed at named facts, not at the n-th write. The table is written by hand from the promise: what was reserved is
started, and a `once` step whose intent is durable is never run again by a crash.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from perdure import OutcomeUnknown, ProcessContext, Runtime, RuntimeOptions, WorkerOptions, process
from perdure.ids import DEFAULT_TENANT, StreamId, WorkerId, trigger_stream
from perdure.processes.triggers import occurrence_id, reservation
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of
from perdure.runtime.stores import store_for
from perdure.testing.crash import Boundary, die, tripwire
from tests.crash.harness import processes, room
from tests.crash.scenarios import Ledger, store_url

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

MAIL = "mail.received"
PAID, DOUBT = "paid", "in doubt"

FACTS = [
    # killed                              payments then, in the end, and what became of the three processes
    ("after admit occurrence", 0, 3, [PAID, PAID, PAID]),
    ("before trigger_occurred", 0, 3, [PAID, PAID, PAID]),
    ("after trigger_occurred", 0, 3, [PAID, PAID, PAID]),
    ("after effect_started p/step:pay", 0, 2, [DOUBT, PAID, PAID]),
    ("before effect_settled p/step:pay", 1, 3, [DOUBT, PAID, PAID]),
    ("after process_event", 1, 3, [PAID, PAID, PAID]),
]


@process
async def handle(ctx: ProcessContext, ledger: str, name: str) -> str:
    try:
        await ctx.step("pay", lambda: Ledger(Path(ledger)).write("pay", name))
    except OutcomeUnknown:
        return DOUBT
    return PAID


def runtime(folder: Path, *, worker: bool, kill: str = "") -> Runtime:
    """One process at a time, so that a killed worker has started at most one of the three."""
    side, _, fact = kill.partition(" ")

    def on_boundary(boundary: Boundary) -> None:
        if kill and boundary.side == side and fact in boundary.what:
            die()

    store = tripwire(store_for(store_url(folder), SystemClock(), lease_ms=2_000), on_boundary)
    work = WorkerOptions(concurrency=1) if worker else False
    return Runtime(store, processes=[handle], worker=work, options=RuntimeOptions(lease_s=2.0))


async def _work(folder: Path, kill: str) -> None:
    """Say that it happened, and work until all that follows from it is done."""
    async with runtime(folder, worker=True, kill=kill) as rt:
        happened = await rt.triggers.emit(MAIL, 1, key="m1")
        for one in await happened.processes(timeout=40):
            await one.result(timeout=40)
        async with asyncio.timeout(40):
            while (await held(rt, trigger_stream(DEFAULT_TENANT, MAIL, ""))) is not None:  # noqa: ASYNC110 - the worker works
                await asyncio.sleep(0.01)


async def held(rt: Runtime, stream: StreamId) -> WorkerId | None:
    """Return the owner of a source."""
    info = await core_of(rt).store.stream(stream)
    return info.owner if info is not None else None


def work(folders: list[str], kill: str) -> None:
    for folder in folders:
        asyncio.run(_work(Path(folder), kill))


def child(*folders: Path, kill: str = "") -> int | None:
    started = processes.Process(target=work, args=([str(folder) for folder in folders], kill))
    started.start()
    started.join(100)
    return started.exitcode


async def subscribe(folder: Path) -> None:
    async with runtime(folder, worker=False) as rt:
        for key in ("a", "b", "c"):
            await rt.triggers.subscribe(MAIL, handle, key=key, args=(str(folder / "ledger"), key))


async def endings(folder: Path) -> list[str]:
    """Return the results of the processes of the occurrence."""
    async with runtime(folder, worker=False) as rt:
        happened = await rt.triggers.emit(MAIL, 1, key="m1")
        assert happened.is_duplicate
        assert (await core_of(rt).trigger_sources.state(trigger_stream(DEFAULT_TENANT, MAIL, ""))).occurrences == 1
        return sorted([str(await one.result(timeout=5)) for one in await happened.processes(timeout=5)])


async def sweep(folder: Path, facts: list[tuple[str, int, int, list[str]]]) -> None:
    """Kill a worker at each fact, each with a store of its own; then let another go on with what they left."""
    rooms = {fact: room(folder, f"r{number}") for number, (fact, *_) in enumerate(facts)}
    for fact, at_kill, *_ in facts:
        await subscribe(rooms[fact])
        assert child(rooms[fact], kill=fact) == -signal.SIGKILL, fact
        assert Ledger(rooms[fact] / "ledger").count("pay") == at_kill, fact
    assert child(*rooms.values()) == 0
    for fact, _, in_the_end, ended in facts:
        ledger = Ledger(rooms[fact] / "ledger")
        assert await endings(rooms[fact]) == sorted(ended), fact
        assert (ledger.count("pay"), len(set(ledger.lines()))) == (in_the_end, in_the_end), fact


async def test_each_of_three_gets_its_process_once_wherever_its_worker_dies(tmp_path: Path) -> None:
    await sweep(tmp_path, FACTS)


async def test_each_of_three_gets_its_process_once_on_a_database_server(on_postgres: Path) -> None:
    await sweep(on_postgres, FACTS)


async def test_failed_start_is_recorded_by_the_next_worker(tmp_path: Path) -> None:
    """The worker dies when the occurrence is durable and before it said that one of its processes could not be."""
    stream = trigger_stream(DEFAULT_TENANT, MAIL, "")
    await subscribe(tmp_path)
    async with runtime(tmp_path, worker=False) as rt:
        wanted = await rt.triggers.subscription("mail.received:b").info()
        taken = reservation(occurrence_id(stream, "m1"), wanted).process_id
        await rt.start(handle, str(tmp_path / "other"), "other", id=taken)
        assert child(tmp_path, kill="after trigger_occurred") == -signal.SIGKILL
        assert [row.kind for row in await core_of(rt).store.read(stream)][-1] == "trigger_occurred"
        assert child(tmp_path) == 0
        assert await endings(tmp_path) == [PAID, PAID]
        assert sum(row.kind == "trigger_delivery_failed" for row in await core_of(rt).store.read(stream)) == 1
        happened = await rt.triggers.emit(MAIL, 1, key="m1")
        failed = [one.failed.code if one.failed else "" for one in await happened.deliveries()]
        assert failed == ["", "process_conflict", ""]
