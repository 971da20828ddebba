"""A worker that dies while a schedule is due: the run is started once, on any worker, and answered once."""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest

from perdure import Agent, ProcessContext, Runtime, RuntimeOptions, process
from perdure.models.scripted import ScriptedModel, say
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of, ref_of
from perdure.runtime.stores import store_for
from perdure.testing.crash import KILL_AT, TRACE, Boundary, tripwire_from_environment
from perdure.vocab.records import InputAdmitted, TurnEnded
from tests.crash.harness import processes
from tests.crash.scenarios import store_url

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]


class Wall(SystemClock):
    """Half past ten, or eleven o'clock: when the schedule is made, and when it is due."""

    def __init__(self, minutes: int) -> None:
        start = datetime(2026, 11, 2, 10, minutes, tzinfo=UTC)
        self.offset_ms = int(start.timestamp() * 1000) - SystemClock().wall_ms()

    def wall_ms(self) -> int:
        return super().wall_ms() + self.offset_ms


def runtime(folder: Path, *, minutes: int, worker: bool = True) -> Runtime:
    clock = Wall(minutes)
    store = tripwire_from_environment(store_for(store_url(folder), clock, lease_ms=10_000))
    agent = Agent("a", model=ScriptedModel(*(say("yes") for _ in range(9))))
    return Runtime(store, agents=[agent], worker=worker, options=RuntimeOptions(clock=clock))


async def _make(folder: Path, name: str) -> None:
    async with runtime(folder, minutes=30, worker=False) as rt:
        await rt.schedule(name, send="tick", session=f"to-{name}", agent="a", cron="0 * * * *")


async def _work(folder: Path, name: str) -> None:
    """Serve until the run is made and answered."""
    async with runtime(folder, minutes=59) as rt:
        clock = core_of(rt).clock
        assert isinstance(clock, Wall)
        clock.offset_ms += 60_000  # it is eleven o'clock now
        async with asyncio.timeout(40):
            while await answers(rt, name) != 1:  # noqa: ASYNC110 - the worker works
                await asyncio.sleep(0.01)


async def answers(rt: Runtime, name: str) -> int:
    session = rt.get_session(f"to-{name}")
    if await core_of(rt).store.stream(ref_of(session).stream) is None:
        return 0
    return sum(isinstance(row.record, TurnEnded) for row in await session.journal())


def work(folder: str, name: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    asyncio.run(_work(Path(folder), name))


def child(folder: Path, name: str, environment: dict[str, str] | None = None) -> int | None:
    process = processes.Process(target=work, args=(str(folder), name, environment or {}))
    process.start()
    process.join(60)
    return process.exitcode


async def judged(folder: Path, name: str) -> tuple[list[str], int, int]:
    """The schedule's records, and how often it was heard and answered."""
    async with runtime(folder, minutes=59, worker=False) as rt:
        rows = await rt.get_session(f"to-{name}").journal()
        inputs = sum(isinstance(row.record, InputAdmitted) for row in rows)
        return [row.kind for row in await rt.schedules.get(name).journal()], inputs, await answers(rt, name)


async def test_a_run_is_made_once_wherever_its_worker_dies(folder: Path) -> None:
    trace = folder / "trace"
    await _make(folder, "undisturbed")
    assert child(folder, "undisturbed", {TRACE: str(trace)}) == 0
    boundaries = [Boundary.parse(line) for line in trace.read_text().splitlines()]
    assert len(boundaries) >= 8  # the run, the giving back, and the two appends of the turn it opens
    expected = (["schedule_created", "schedule_fired"], 1, 1)
    assert await judged(folder, "undisturbed") == expected
    killed = 0
    for number, boundary in enumerate(boundaries):
        name = f"s{number}"
        await _make(folder, name)
        code = child(folder, name, {KILL_AT: str(boundary)})
        killed += code == -signal.SIGKILL
        assert code in (0, -signal.SIGKILL)  # which writes share an append may differ: then it lives
        if code:
            assert child(folder, name) == 0
        assert await judged(folder, name) == expected, f"killed at {boundary}"
    assert killed >= len(boundaries) // 2


async def test_two_processes_make_a_run_once(folder: Path) -> None:
    names = [f"s{i}" for i in range(4)]
    for name in names:
        await _make(folder, name)
    both = [processes.Process(target=work, args=(str(folder), name, {})) for name in (names[0], names[-1])]
    for one in both:
        one.start()
    for one in both:
        one.join(60)
    assert [one.exitcode for one in both] == [0, 0]
    assert child(folder, names[1]) == 0
    assert child(folder, names[2]) == 0
    for name in names:
        assert await judged(folder, name) == (["schedule_created", "schedule_fired"], 1, 1)


# --- a schedule that starts a process


@process
async def tally(ctx: ProcessContext, ledger: str) -> str:
    await ctx.step("note", note, ledger, ctx.idempotency_key, effect="idempotent")
    return "noted"


def note(ledger: str, key: str) -> None:
    with Path(ledger).open("a") as file:
        file.write(f"{key}\n")


def noted_in(ledger: str) -> list[str]:
    return Path(ledger).read_text().splitlines()


def starting(folder: Path, *, minutes: int, worker: bool = True) -> Runtime:
    clock = Wall(minutes)
    store = tripwire_from_environment(store_for(store_url(folder), clock, lease_ms=10_000))
    return Runtime(store, processes=[tally], worker=worker, options=RuntimeOptions(clock=clock))


async def _start_by_clock(folder: Path, name: str) -> None:
    """Serve until what the run has started is over, and the schedule is given back."""
    async with starting(folder, minutes=59) as rt:
        clock = core_of(rt).clock
        assert isinstance(clock, Wall)
        clock.offset_ms += 60_000
        async with asyncio.timeout(40):
            while "completed" not in await _started(rt, folder, name):  # noqa: ASYNC110 - the worker works
                await asyncio.sleep(0.01)


async def _started(rt: Runtime, folder: Path, name: str) -> list[str]:
    found = await rt.processes.list(ended=True, definition="python:tally")
    return [one.status for one in found if _ledger(folder, name) in str(one.registration.input)]


def _ledger(folder: Path, name: str) -> str:
    return str(folder / f"{name}.ledger")


def start_by_clock(folder: str, name: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    asyncio.run(_start_by_clock(Path(folder), name))


def starter(folder: Path, name: str, environment: dict[str, str] | None = None) -> int | None:
    child = processes.Process(target=start_by_clock, args=(str(folder), name, environment or {}))
    child.start()
    child.join(60)
    return child.exitcode


async def _plan(folder: Path, name: str) -> None:
    async with starting(folder, minutes=30, worker=False) as rt:
        await rt.schedule(name, start=tally, args=(_ledger(folder, name),), cron="0 * * * *")


async def test_a_process_is_started_once_by_its_schedule_wherever_the_worker_dies(folder: Path) -> None:
    trace = folder / "trace"
    await _plan(folder, "undisturbed")
    assert starter(folder, "undisturbed", {TRACE: str(trace)}) == 0
    traced = [Boundary.parse(line) for line in trace.read_text().splitlines()]
    boundaries = [one for one in traced if one.side == "after" or one.n == 1]  # before the next is after this one
    killed = 0
    for number, boundary in enumerate(boundaries):
        name = f"s{number}"
        await _plan(folder, name)
        code = starter(folder, name, {KILL_AT: str(boundary)})
        killed += code == -signal.SIGKILL
        assert code in (0, -signal.SIGKILL)
        if code:
            assert starter(folder, name) == 0
        async with starting(folder, minutes=59, worker=False) as rt:
            kinds = [row.kind for row in await rt.schedules.get(name).journal()]
            assert kinds == ["schedule_created", "schedule_fired"], f"killed at {boundary}"
            assert await _started(rt, folder, name) == ["completed"], f"killed at {boundary}"
        noted = noted_in(_ledger(folder, name))
        assert len(set(noted)) == 1, f"killed at {boundary}: one process, on any worker"
        assert 1 <= len(noted) <= 2
    assert killed >= len(boundaries) // 2
