"""A process of a thousand steps, killed at its 999th: nothing that is settled is executed, and what recovery reads
grows with the steps and not faster. Records are counted, not seconds.
"""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from perdure import ProcessContext, Runtime, process
from perdure.ids import StreamId
from perdure.runtime.clock import SystemClock
from perdure.runtime.processes.function import ProcessFunction
from perdure.runtime.stores import store_for
from perdure.store.protocol import Store
from perdure.store.shapes import Loaded
from perdure.vocab.records import EffectSettled
from tests.crash.harness import inside, processes
from tests.crash.scenarios import Ledger, store_url

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]


def climbing(ledger: Ledger) -> ProcessFunction:
    @process
    async def climb(ctx: ProcessContext, steps: int) -> int:
        for n in range(1, steps + 1):
            await ctx.step(f"s{n}", ledger.write, f"s{n}", "-", effect="idempotent")
        return steps

    return climb


async def _climb(folder: Path, steps: int) -> None:
    climb = climbing(Ledger(folder / "ledger"))
    async with Runtime(store_for(store_url(folder), SystemClock(), lease_ms=10_000), processes=[climb]) as rt:
        await (await rt.start(climb, steps, id="p")).result(timeout=120)


def _child(folder: str, steps: int, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    asyncio.run(_climb(Path(folder), steps))


@dataclass
class Counting:
    """A store that counts what a new owner reads of a log."""

    inner: Store
    loads: int = 0
    rows: int = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    async def load(self, stream: StreamId, *, code: str) -> Loaded:
        found = await self.inner.load(stream, code=code)
        self.loads, self.rows = self.loads + 1, self.rows + len(found.rows)
        return found


async def recovered(folder: Path, steps: int) -> tuple[Counting, set[str]]:
    """Another worker goes on with it: what it read, and which steps were settled before."""
    counting, ledger = Counting(store_for(store_url(folder), SystemClock(), lease_ms=10_000)), Ledger(folder / "ledger")
    async with Runtime(store_url(folder), worker=False) as rt:
        records = [row.record for row in await rt.get_process("p").journal()]
    settled = {one.id.removeprefix("p/step:") for one in records if isinstance(one, EffectSettled)}
    async with Runtime(counting, processes=[climbing(ledger)]) as rt:  # pyright: ignore[reportArgumentType]
        assert await rt.get_process("p").result(timeout=120) == steps
    return counting, settled


@pytest.mark.parametrize("where", ["sqlite", "postgres"])
def test_a_thousand_steps_are_replayed_without_running_one_and_read_once(
    where: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    read: dict[int, int] = {}
    for steps in (100, 1_000):
        folder = tmp_path / str(steps)
        folder.mkdir()
        if where == "postgres":
            (folder / "store-url").write_text(f"{request.getfixturevalue('postgres_url')}_{steps}")
        started = processes.Process(target=_child, args=(str(folder), steps, inside(f"s{steps - 1}")))
        started.start()
        started.join(120)
        assert started.exitcode == -signal.SIGKILL
        counting, settled = asyncio.run(recovered(folder, steps))
        assert settled == {f"s{n}" for n in range(1, steps - 1)}
        ran = [name for name, _ in Ledger(folder / "ledger").lines()]
        assert ran == [*(f"s{n}" for n in range(1, steps)), f"s{steps - 1}", f"s{steps}"], "only the last two ran"
        assert counting.loads == 1
        read[steps] = counting.rows
    assert 100 <= read[100] <= 110
    assert 1_000 <= read[1_000] <= 1_010, "one record a step: linear, with nothing read twice"
