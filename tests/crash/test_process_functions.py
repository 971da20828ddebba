"""Durable functions, killed anywhere: two `once` steps, an idempotent one, a sleep and a signal.

The table is written by hand from the promise: a `once` step whose intent is durable is never run again by a crash;
what had not been recorded and may run twice runs again; nothing accepted is lost.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from perdure import OutcomeUnknown, ProcessContext, Runtime, RuntimeOptions, process
from perdure.observe.events import RecordEvent
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of
from perdure.runtime.processes.handle import ProcessHandle
from perdure.runtime.stores import store_for
from perdure.testing.crash import KILL_AT, TRACE, Boundary, tripwire_from_environment
from perdure.vocab.records import EffectSettled, EffectStarted
from tests.crash.harness import inside, processes
from tests.crash.scenarios import Ledger, store_url

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

NAMES = ("charge", "store", "ship")


def paying(ledger: Ledger) -> object:
    @process
    async def pay(ctx: ProcessContext, order: str) -> str:
        try:
            await ctx.step("charge", ledger.write, "charge", ctx.step_key("charge"))
            await ctx.step("store", ledger.write, "store", ctx.step_key("store"), effect="idempotent")
            await ctx.sleep("cool", "60ms")
            address = await ctx.wait_for_signal("address", timeout="1h")
            await ctx.step("ship", ledger.write, "ship", f"{ctx.step_key('ship')}:{address}")
        except OutcomeUnknown as doubt:
            return f"unknown: {str(doubt).split()[2]}"
        return f"paid {order}"

    return pay


async def _tell(handle: ProcessHandle) -> None:
    """Send the address once the process waits for it."""
    async for event in handle.events():
        if isinstance(event, RecordEvent) and isinstance(event.record, EffectStarted) and "/signal:" in event.record.id:
            await handle.signal("address", "home", id="the one")
            return


async def _run(folder: Path) -> None:
    clock = SystemClock()
    store = tripwire_from_environment(store_for(store_url(folder), clock, lease_ms=10_000))
    pay = paying(Ledger(folder / "ledger"))
    async with Runtime(store, processes=[pay], options=RuntimeOptions(clock=clock, idle_timeout_s=0.0)) as rt:  # pyright: ignore[reportArgumentType]
        handle = await rt.start("pay", "o1", id="p")
        telling = asyncio.create_task(_tell(handle))
        (folder / "answer").write_text(str(await handle.result(timeout=30)))
        telling.cancel()


def _child(folder: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    asyncio.run(_run(Path(folder)))


def child(folder: Path, environment: dict[str, str]) -> int:
    started = processes.Process(target=_child, args=(str(folder), environment))
    started.start()
    started.join(60)
    if started.is_alive():
        started.kill()
        started.join()
        raise AssertionError(f"hung with {environment}")
    assert started.exitcode is not None
    return started.exitcode


async def recorded(folder: Path) -> str:
    """The last that the log says of a step: `>name` begun, `<name` ended."""
    if not (folder / "s.db").exists() and "sqlite" in store_url(folder):
        return ""
    async with Runtime(store_url(folder), worker=False) as rt:
        rows = await core_of(rt).store.read(rt.get_process("p").stream)
    marks = [
        f"{'>' if isinstance(row.record, EffectStarted) else '<'}{row.record.id.removeprefix('p/step:')}"
        for row in rows
        if isinstance(row.record, EffectStarted | EffectSettled) and "/step:" in row.record.id
    ]
    return marks[-1] if marks else ""


Counts = tuple[set[int], set[int], set[int]]

EXPECTED: dict[str, tuple[Counts, Counts, str]] = {
    # what the log said last: how often each step had run when the process died, how often in the end, and the answer
    "": (({0}, {0}, {0}), ({1}, {1}, {1}), "paid o1"),
    ">charge": (({0, 1}, {0}, {0}), ({0, 1}, {0}, {0}), "unknown: charge"),
    "<charge": (({1}, {0, 1}, {0}), ({1}, {1, 2}, {1}), "paid o1"),
    "<store": (({1}, {1}, {0}), ({1}, {1}, {1}), "paid o1"),
    ">ship": (({1}, {1}, {0, 1}), ({1}, {1}, {0, 1}), "unknown: ship"),
    "<ship": (({1}, {1}, {1}), ({1}, {1}, {1}), "paid o1"),
}


def counts(folder: Path) -> list[int]:
    ledger = Ledger(folder / "ledger")
    return [ledger.count(name) if ledger.path.exists() else 0 for name in NAMES]


def recover(folder: Path, environment: dict[str, str]) -> None:
    ended = child(folder, environment)
    assert ended in (-9, 0)
    if ended == 0:
        assert counts(folder) == [1, 1, 1]
        return
    last, at_kill = asyncio.run(recorded(folder)), counts(folder)
    killed, in_the_end, answer = EXPECTED[last]
    assert [n in allowed for n, allowed in zip(at_kill, killed, strict=True)] == [True] * 3, (last, at_kill)
    assert child(folder, {}) == 0
    at_end = counts(folder)
    assert [n in allowed for n, allowed in zip(at_end, in_the_end, strict=True)] == [True] * 3, (last, at_end)
    if last in (">charge", ">ship"):
        assert at_end == at_kill, "a step in doubt was run again"
    assert (folder / "answer").read_text() == answer
    keys = [key for name, key in Ledger(folder / "ledger").lines() if name == "store"]
    assert len(set(keys)) <= 1


POINTS = [f"{n}:after" for n in range(1, 16)] + [f"{n}:before" for n in range(2, 16, 2)]


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_write(point: str, tmp_path: Path) -> None:
    recover(tmp_path, {KILL_AT: f"{point}:"})


@pytest.mark.parametrize("n", range(1, 16, 2))
def test_killed_at_every_other_write_on_a_database_server(n: int, on_postgres: Path) -> None:
    recover(on_postgres, {KILL_AT: f"{n}:before:"})


@pytest.mark.parametrize("name", NAMES)
def test_killed_inside_a_step_right_after_its_outside_effect(name: str, folder: Path) -> None:
    recover(folder, inside(name))


def test_an_undisturbed_run_writes_what_it_did(tmp_path: Path) -> None:
    assert child(tmp_path, {TRACE: str(tmp_path / "trace")}) == 0
    lines = [Boundary.parse(line) for line in (tmp_path / "trace").read_text().splitlines()]
    appended = [line.what.removeprefix("append ") for line in lines if line.side == "before" and line.n > 1]
    written = [one for what in appended for one in what.split(", ") if one not in ("nothing", "claim")]
    assert written == [
        "process_first_started",
        "effect_started p/step:charge",
        "effect_settled p/step:charge",
        "effect_settled p/step:store",
        "effect_started p/sleep:cool",
        "effect_settled p/sleep:cool",
        "effect_started p/signal:address:1",
        "effect_settled p/signal:address:1",
        "effect_started p/step:ship",
        "effect_settled p/step:ship",
        "process_event process.completed",
    ]
