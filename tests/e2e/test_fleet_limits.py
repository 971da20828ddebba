"""Several worker processes of one store keep its limits together, also when some of them are killed.

The judge is a ledger outside of the store: every call writes when it enters and when it leaves, and takes one of the
numbered lock files of what it does, which the kernel frees when its process dies. A call without a free file exceeds
the limit.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from perdure import Runtime
from perdure.runtime.internals import core_of
from tests.e2e.command import COMMAND, environment, perdure

APP = """
import asyncio, fcntl, os
from perdure import Agent, Runtime, RuntimeOptions, ToolContext, WorkerOptions, tool
from perdure.models.scripted import ScriptedModel, call, calls, say

def write(line):
    with open("ledger", "a") as ledger:
        ledger.write(f"{line} {os.getpid()}\\n")

class Place:
    "One of so many places that may be taken at once; the kernel frees those of a process that dies."

    def __init__(self, name, most):
        self.name, self.most = name, most

    async def __aenter__(self):
        for number in range(self.most):
            self.file = open(f"{self.name}.{number}", "w")
            try:
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                self.file.close()
        write(f"overlap {self.name}")

    async def __aexit__(self, *_):
        self.file.close()

@tool(effect="once")
async def charge(ctx: ToolContext) -> str:
    "Charge."
    async with Place("charge", 2):
        write(f"enter {ctx.session_id}")
        await asyncio.sleep(0.02)
        write(f"leave {ctx.session_id}")
    return "charged"

@tool(effect="idempotent")
async def mail(ctx: ToolContext) -> str:
    "Mail."
    async with Place("mail", 1):
        await asyncio.sleep(0.01)
    return "mailed"

class Asked(ScriptedModel):
    async def stream(self, request):
        async with Place("model", 3):
            await asyncio.sleep(0.005)
            async for event in super().stream(request):
                yield event

model = Asked(calls(call("charge"), call("mail")), say("done"), name="test:asked")
clerk = Agent("clerk", model=model, tools=[charge, mail], queue="desk")
work = WorkerOptions(limits={"tool:charge": 2, "tool:mail": 1, "model:test:*": 3, "queue:desk": 6})

def app():
    return Runtime("sqlite:///s.db", agents=[clerk], worker=work, options=RuntimeOptions(lease_s=2))
"""

SESSIONS = 24


class Worker:
    """One `perdure worker` that is running."""

    def __init__(self, folder: Path, *args: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "worker", "fleet:app", *args, "--json"],
            cwd=folder,
            env=environment({}),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.started = json.loads(self.process.stdout.readline())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "fleet.py").write_text(APP)
    return tmp_path


@pytest.fixture
def start(folder: Path, url: str) -> Iterator[Callable[..., Worker]]:
    workers: list[Worker] = []

    def begin(*args: str) -> Worker:
        workers.append(Worker(folder, "--db", url, *args))
        return workers[-1]

    yield begin
    for worker in workers:
        if worker.process.poll() is None:
            worker.process.kill()
        worker.process.communicate()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, folder: Path) -> str:
    return f"sqlite:///{folder}/s.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


def ledger(folder: Path) -> list[list[str]]:
    file = folder / "ledger"
    return [line.split() for line in file.read_text().splitlines()] if file.is_file() else []


async def until(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(40):
        while not look():  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(0.01)


def entered(folder: Path) -> Counter[str]:
    return Counter(words[1] for words in ledger(folder) if words[0] == "enter")


@pytest.mark.slow
async def test_no_more_than_the_limit_at_once_while_workers_are_killed(
    url: str, folder: Path, start: Callable[..., Worker]
) -> None:
    workers = [start("--concurrency", "8") for _ in range(3)]
    async with Runtime(url, worker=False) as rt:
        sent = [await (await rt.session(f"s{i}", agent="clerk")).send("go") for i in range(SESSIONS)]
        for done in (4, 9, 14):
            await until(lambda done=done: sum(words[0] == "leave" for words in ledger(folder)) >= done)
            victim = workers.pop(0)
            victim.process.send_signal(signal.SIGKILL)
            victim.process.wait()
            workers.append(start("--concurrency", "8"))
        results = [await each.result(timeout=50) for each in sent]
        await until_no_permits(rt)
    assert [result.status for result in results] == ["finished"] * SESSIONS
    assert [words for words in ledger(folder) if words[0] == "overlap"] == []
    assert set(entered(folder).values()) == {1}, "a charge was made twice"
    for worker in workers:
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(30) == 0


async def until_no_permits(rt: Runtime) -> None:
    """Those of the living are given back; those of the dead count for nobody."""
    async with asyncio.timeout(20):
        while any(permit.alive for permit in await core_of(rt).store.permits()):  # noqa: ASYNC110 - others do it
            await asyncio.sleep(0.01)


async def test_a_worker_serves_its_queue_and_says_so(url: str, folder: Path, start: Callable[..., Worker]) -> None:
    other = start("--queue", "elsewhere")
    async with Runtime(url, worker=False) as rt:
        sent = await (await rt.session("s", agent="clerk")).send("go")
        app = start("--queue", "desk", "--queue", "calls", "--concurrency", "3")
        assert (await sent.result(timeout=30)).status == "finished"
    assert {words[-1] for words in ledger(folder)} == {str(app.process.pid)}
    assert (app.started["queues"], app.started["concurrency"]) == (["desk", "calls"], 3)
    listed = perdure("workers", "list", "--db", url, "--json", cwd=folder)
    seen = {row["id"]: row for row in listed.objects}
    mine = seen[app.started["worker"]]
    assert (mine["queues"], mine["concurrency"], mine["unfinished"]) == (["desk", "calls"], 3, 0)
    assert 0 <= cast("int", mine["seen_ms_ago"]) <= 10_000
    assert seen[other.started["worker"]]["queues"] == ["elsewhere"]
    shown = perdure("workers", "list", "--db", url, cwd=folder, env={"COLUMNS": "200"}).out
    assert "desk, calls" in shown
    assert "0/3" in shown
