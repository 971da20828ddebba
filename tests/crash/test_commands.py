"""A command whose worker is killed at each durable fact about it: it survives, runs once, and is told as it was.

The table is written by hand: at which fact, what had begun when the worker died, and what the log says in the end.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from perdure import Runtime, RuntimeOptions
from perdure.codec import Json
from perdure.runtime.clock import SystemClock
from perdure.runtime.processes.handle import ProcessHandle
from perdure.runtime.stores import store_for
from perdure.services.command_supervisor import start_of
from perdure.services.os_commands import RunFolder
from perdure.testing.crash import Boundary, die, tripwire
from perdure.vocab.records import ProcessEvent
from perdure.vocab.registrations import ProcessSucceeded, ProcessWasCancelled
from tests.crash.harness import processes
from tests.crash.scenarios import store_url
from tests.scenarios.conftest import until

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

SPAWNS = "the spawn itself"
WAITS = 40.0

FACTS: dict[str, tuple[int, list[str]]] = {
    # where its worker dies: how often the command had begun by then, and what is said about spawning it in the end
    "after command.spawning": (0, ["spawning", "not_spawned", "spawning", "spawned"]),
    SPAWNS: (1, ["spawning", "spawned"]),
    "after command.spawned": (1, ["spawning", "spawned"]),
    "before command.output": (1, ["spawning", "spawned"]),
    "after command.output": (1, ["spawning", "spawned"]),
    "before process.completed": (1, ["spawning", "spawned"]),
    "after process.completed": (1, ["spawning", "spawned"]),
}


def runtime(folder: Path, kill: str = "") -> Runtime:
    def on_boundary(boundary: Boundary) -> None:
        side, _, event = kill.partition(" ")
        if boundary.side == side and event in boundary.what.split():
            die()

    clock = SystemClock()
    store = tripwire(store_for(store_url(folder), clock, lease_ms=10_000), on_boundary)
    return Runtime(store, options=RuntimeOptions(clock=clock, host="here", commands_in=folder / "runs"))


def script(folder: Path) -> list[str]:
    end = f"until [ -e '{folder / 'end'}' ]; do sleep 0.02; done"
    return ["/bin/sh", "-c", f"echo x >> '{folder / 'ran'}'; echo one; {end}; echo two"]


def live(folder: str, kill: str, cancel: bool) -> None:
    """Be the worker that is killed."""
    if kill == SPAWNS:
        begins = RunFolder.spawn

        def and_dies(self: RunFolder, inherit: Sequence[str] = ()) -> int:
            self.wait(begins(self, inherit))
            die()
            return 0

        RunFolder.spawn = and_dies

    async def work() -> None:
        async with runtime(Path(folder), kill) as rt:
            handle = await rt.start_command(script(Path(folder)), id="c", grace=30)
            if cancel:
                while not (await handle.output()):  # noqa: ASYNC110 - until it has begun
                    await asyncio.sleep(0.01)
                await handle.cancel("enough")
            await asyncio.sleep(60)

    asyncio.run(work())


async def killed(folder: Path, kill: str, *, cancel: bool = False) -> None:
    if "completed" in kill:
        (folder / "end").touch()
    child = processes.Process(target=live, args=(str(folder), kill, cancel))
    child.start()
    await asyncio.to_thread(child.join, WAITS)
    assert child.exitcode == -signal.SIGKILL, kill


async def told(handle: ProcessHandle) -> list[str]:
    found = [row.record.event for row in await handle.journal() if isinstance(row.record, ProcessEvent)]
    return [name.partition(".")[2] for name in found]


async def payloads(handle: ProcessHandle, event: str) -> list[Json]:
    found = [row.record for row in await handle.journal() if isinstance(row.record, ProcessEvent)]
    return [one.payload for one in found if one.event == event]


def runs(folder: Path) -> int:
    ran = folder / "ran"
    return ran.read_text().count("x") if ran.exists() else 0


@pytest.mark.parametrize("fact", FACTS)
async def test_a_command_survives_its_worker_and_runs_once(folder: Path, fact: str) -> None:
    had_begun, spawns = FACTS[fact]
    await killed(folder, fact)

    async def begun() -> bool:
        return runs(folder) == had_begun

    await until(begun, seconds=WAITS)  # it goes on without a worker
    (folder / "end").touch()
    async with runtime(folder) as rt:
        handle = rt.get_process("c")
        output = await handle.wait(WAITS)
        assert output == ProcessSucceeded(value={"exit_code": 0, "stdout": "one\ntwo\n", "stderr": ""})
        log = await told(handle)
        assert [name for name in log if "spawn" in name] == spawns
        assert [log.count(name) for name in ("exited", "completed")] == [1, 1]
        assert await handle.output() == "one\ntwo\n", "nothing twice, nothing left out"
    assert runs(folder) == 1


async def test_command_cancel_is_completed_by_the_next_worker(folder: Path) -> None:
    await killed(folder, "after command.signalled", cancel=True)
    async with runtime(folder) as rt:
        handle = rt.get_process("c")
        assert await handle.wait(WAITS) == ProcessWasCancelled(reason="enough")
        (spawned,) = await payloads(handle, "command.spawned")
        assert start_of(spawned["pid"]) == 0, "the process is gone"
        sent = await payloads(handle, "command.signalled")
        assert [one["signal"] for one in sent] == ["SIGTERM", "SIGTERM"], "a recorded signal may not have been sent"
        assert sent[0]["by"] != sent[1]["by"]
    assert runs(folder) == 1
