"""Real child processes for crash tests: forked from a warm server, killed by SIGKILL, started again."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from perdure import Runtime
from perdure.testing.children import WARM
from perdure.testing.crash import KILL_AT, TRACE, Boundary
from perdure.vocab.messages import Message, ToolCall, ToolResultPart
from perdure.vocab.records import EffectSettled
from tests.crash.scenarios import DIE_IN, URL, Ledger, run, store_url

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["tests.crash.scenarios", *WARM])


def start(scenario: str, folder: Path, environment: dict[str, str] | None = None) -> ForkServerProcess:
    """Start a scenario in a child process and let it run."""
    process = processes.Process(target=run, args=(scenario, str(folder), environment or {}))
    process.start()
    return process


def wait_until(condition: Callable[[], bool], *, seconds: float = 20.0) -> None:
    """Wait for a state, not for a time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not become true in time"
        time.sleep(0.01)


def is_stopped(pid: int | None) -> bool:
    """Whether a process is stopped by a signal."""
    state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    return state == "T"


def child(scenario: str, folder: Path, environment: dict[str, str] | None = None) -> int:
    """Run a scenario in a child process; its exit code (-9 if it was killed)."""
    process = start(scenario, folder, environment)
    process.join(60)
    if process.is_alive():
        process.kill()
        process.join()
        raise AssertionError(f"{scenario} hung with {environment}")
    code = process.exitcode
    assert code is not None
    return code


def trace(scenario: str, folder: Path) -> list[Boundary]:
    """The durable boundaries of an undisturbed run."""
    path = folder / "trace"
    assert child(scenario, folder, {TRACE: str(path)}) == 0
    return [Boundary.parse(line) for line in path.read_text().splitlines()]


@dataclass(frozen=True)
class Killed:
    """Result of a kill: the dispatches by tool when the process died, and when its successor was done."""

    at_kill: dict[str, int]
    at_end: dict[str, int]
    answer: str


def kill_and_recover(scenario: str, folder: Path, environment: dict[str, str]) -> Killed:
    """Kill a child as told, start it again, let it finish."""
    ledger = Ledger(folder / "ledger")
    code = child(scenario, folder, environment)
    assert code == -signal.SIGKILL, f"the child was not killed at {environment} but ended with {code}"
    at_kill = _counts(ledger)
    assert child(scenario, folder) == 0
    return Killed(at_kill, _counts(ledger), (folder / "answer").read_text())


def room(folder: Path, name: str) -> Path:
    """A folder in a folder, with a store of its own of the same kind."""
    made = folder / name
    made.mkdir()
    if (folder / URL).exists():
        (made / URL).write_text(f"{store_url(folder)}_{name}")  # the schema is what an address of tests ends with
    return made


def at(boundary: Boundary) -> dict[str, str]:
    """The environment that kills at a boundary."""
    return {KILL_AT: str(boundary)}


def inside(place: str) -> dict[str, str]:
    """The environment that kills inside a tool or a model's stream."""
    return {DIE_IN: place}


def _counts(ledger: Ledger) -> dict[str, int]:
    names = {name for name, _ in ledger.lines()}
    return {name: ledger.count(name) for name in names}


async def final_history(folder: Path) -> tuple[Message, ...]:
    """The conversation as it stands, read by an observer that works on nothing."""
    async with Runtime(store_url(folder), worker=False) as rt:
        session = rt.get_session("s")
        why = await session.why()
        assert why.status == "idle", why
        assert why.queued == 0
        settled = [row.record.id for row in await session.journal() if isinstance(row.record, EffectSettled)]
        assert len(settled) == len(set(settled)), f"an effect was settled twice: {settled}"
        return await session.messages()


def assert_valid_for_a_provider(messages: tuple[Message, ...]) -> None:
    """Every call is answered at once, exactly once, in order; nothing is empty; roles alternate as they must."""
    assert messages[0].role == "user"
    owed: list[str] = []
    before = ""
    for message in messages:
        assert message.parts, "an empty message"
        assert message.role != before, f"two {message.role} messages in a row"
        if owed:
            assert message.role == "tool"
        results = [part.call for part in message.parts if isinstance(part, ToolResultPart)]
        assert results == owed
        owed = [part.id for part in message.parts if isinstance(part, ToolCall)]
        before = message.role
    assert not owed
