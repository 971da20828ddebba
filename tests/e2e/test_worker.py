"""`perdure worker` as an operator runs it: processes of their own, signals, and other processes that send."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import signal
import subprocess
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from perdure import Runtime
from perdure.ids import WorkerId
from perdure.runtime.clock import SystemClock
from perdure.store.postgres import PostgresStore
from tests.e2e.command import COMMAND, environment, perdure
from tests.postgres import Server
from tests.unit.store.parties import owned

APP = """
import asyncio, os
from pathlib import Path
from perdure import Agent, Runtime, RuntimeOptions, tool

LEDGER = Path("ledger")

def write(line):
    with LEDGER.open("a") as ledger:
        ledger.write(line + "\\n")

@tool(effect="once")
async def charge_card(amount_cents: int, description: str) -> str:
    "Charge."
    write(f"begin {description} {os.getpid()}")
    await asyncio.sleep(float(os.environ.get("CHARGE_S", "0.1")))
    write(f"end {description} {os.getpid()}")
    return "charged"

@tool(effect="idempotent")
async def search_flights(city: str) -> list[int]:
    "Search."
    if not os.path.exists("cured"):
        os.kill(os.getpid(), 9)
    return [100]

deadly = Agent("deadly", model="sim:travel", tools=[search_flights])
travel = Agent("travel", model="sim:travel", tools=[charge_card])
none = Runtime("sqlite:///s.db")
memory = Runtime("memory://", agents=[travel])

def app():
    return Runtime("sqlite:///s.db", agents=[travel], worker=False, options=RuntimeOptions(lease_s=2))

def broken():
    raise LookupError("no such secret")
"""


class Worker:
    """One `perdure worker` that is running."""

    def __init__(self, folder: Path, *args: str, charge_s: float = 0.1) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "worker", *args, "--json"],
            cwd=folder,
            env=environment({"CHARGE_S": str(charge_s)}),
            stdout=subprocess.PIPE,
            text=True,
        )
        self.started = self._line()

    def _line(self) -> dict[str, object]:
        assert self.process.stdout is not None
        return cast("dict[str, object]", json.loads(self.process.stdout.readline()))

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, dict[str, object]]:
        """Return the exit code and the last line, which must be the only one after the first."""
        assert self.process.stdout is not None
        last = self._line()
        assert self.process.stdout.read() == ""
        return self.process.wait(30), last


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "fleet.py").write_text(APP)
    return tmp_path


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., Worker]]:
    workers: list[Worker] = []

    def begin(*args: str, charge_s: float = 0.1) -> Worker:
        workers.append(Worker(folder, *args, charge_s=charge_s))
        return workers[-1]

    yield begin
    for worker in workers:
        if worker.process.poll() is None:
            worker.process.kill()
        worker.process.communicate()


def ledger(folder: Path, what: str) -> list[str]:
    file = folder / "ledger"
    return [line for line in file.read_text().splitlines() if line.startswith(what)] if file.is_file() else []


async def until(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not look():  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(0.01)


CITIES = tuple(f"City{letter}" for letter in "ABCDEFGH")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, folder: Path) -> str:
    return f"sqlite:///{folder}/s.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


async def test_stopped_worker_finishes_its_call_and_another_continues(
    url: str, folder: Path, start: Callable[..., Worker]
) -> None:
    leaving = start("fleet:app", "--db", url, "--drain-timeout", "20", charge_s=1.0)
    async with Runtime(url, worker=False) as rt:
        sent = [await (await rt.session(city, agent="travel")).send(f"fly to {city}") for city in CITIES[:4]]
        await until(lambda: len(ledger(folder, "begin")) == 4)
        staying = start("fleet:app", "--db", url)
        leaving.signal(signal.SIGTERM)
        sent += [await (await rt.session(city, agent="travel")).send(f"fly to {city}") for city in CITIES[4:]]
        results = [await each.result(timeout=30) for each in sent]
    assert all("charged once" in result.text for result in results)
    code, last = leaving.end()
    assert (code, last["type"], last["drained"]) == (0, "worker_stopped", True)
    begun = Counter(line.split()[1:-1][-1] for line in ledger(folder, "begin"))
    assert begun == dict.fromkeys(CITIES, 1)
    assert {line.split()[-1] for line in ledger(folder, "end")} == {
        str(leaving.process.pid),
        str(staying.process.pid),
    }
    staying.signal(signal.SIGINT)
    assert staying.end()[0] == 0


async def test_call_exceeding_the_drain_time_is_not_repeated(
    url: str, folder: Path, start: Callable[..., Worker]
) -> None:
    leaving = start("fleet:app", "--db", url, "--drain-timeout", "0.1", charge_s=60)
    async with Runtime(url, worker=False) as rt:
        sent = await (await rt.session("s", agent="travel")).send("fly to Porto")
        await until(lambda: len(ledger(folder, "begin")) == 1)
        start("fleet:app", "--db", url)
        leaving.signal(signal.SIGTERM)
        code, last = leaving.end()
        assert (code, last["worker"], last["drained"]) == (0, leaving.started["worker"], True)
        assert "outcome of the charge is unknown" in (await sent.result(timeout=30)).text
    assert len(ledger(folder, "begin")) == 1


async def test_a_second_signal_stops_at_once(folder: Path, start: Callable[..., Worker]) -> None:
    worker = start("fleet:app", "--drain-timeout", "600", charge_s=600)
    async with Runtime(f"sqlite:///{folder}/s.db", worker=False) as rt:
        sent = await (await rt.session("s", agent="travel")).send("fly to Porto")
        await until(lambda: len(ledger(folder, "begin")) == 1)
        worker.signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        assert worker.process.poll() is None, "the worker drains"
        worker.signal(signal.SIGTERM)
        code, last = worker.end()
        assert (code, last["drained"]) == (130, False)
        start("fleet:app")
        assert "outcome of the charge is unknown" in (await sent.result(timeout=30)).text
    assert len(ledger(folder, "begin")) == 1


def ask(port: object, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


@pytest.mark.slow
async def test_a_worker_tells_whether_it_lives_and_whether_it_takes_work(
    folder: Path, start: Callable[..., Worker]
) -> None:
    worker = start("fleet:app", "--health-port", "0", charge_s=1.5)
    port = worker.started["health_port"]
    assert ask(port, "/live") == (200, "live\n")
    assert ask(port, "/ready?now") == (200, "ready\n")
    assert ask(port, "/")[0] == 404
    async with Runtime(f"sqlite:///{folder}/s.db", worker=False) as rt:
        await (await rt.session("s", agent="travel")).send("fly to Porto")
        await until(lambda: len(ledger(folder, "begin")) == 1)
    worker.signal(signal.SIGTERM)
    await until(lambda: ask(port, "/ready")[0] == 503)
    assert ask(port, "/live")[0] == 200, "draining is not dying"
    assert worker.end()[0] == 0
    taken = start("fleet:app", "--health-port", "0").started["health_port"]
    ran = perdure("worker", "fleet:app", "--health-port", str(taken), cwd=folder)
    assert (ran.code, ran.err.splitlines()[0]) == (2, f"error: cannot bind health port {taken}")


def test_worker_prints_its_start_and_stop(folder: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "worker", "fleet:travel", "--db", "x.db"],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    first = process.stderr.readline()
    os.kill(process.pid, signal.SIGINT)
    out, rest = process.communicate(timeout=30)
    name = first.split()[1]
    assert first == f"worker {name} is ready: travel on sqlite:///x.db\n"
    assert rest == f"worker {name} has drained and stopped\n"
    assert (out, process.returncode) == ("", 0)


@pytest.mark.parametrize(
    ("target", "what"),
    [
        ("fleet:none", "error: fleet:none has no agents"),
        ("fleet:memory", "error: the store of fleet:memory is in memory"),
        ("fleet:broken", "error: fleet:broken raised"),
        ("fleet:APP", "error: 'fleet' has no 'APP'"),
        ("fleet:app.x", "error: 'fleet' has no such target"),
        ("fleet:none.x.y", "error: 'fleet' has no such target"),
    ],
)
def test_a_worker_with_nothing_to_do_is_refused(target: str, what: str, folder: Path) -> None:
    ran = perdure("worker", target, cwd=folder)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[0] == what


def test_a_worker_whose_store_is_away_says_so(folder: Path) -> None:
    ran = perdure("worker", "fleet:app", "--db", "postgresql://nobody:secret@127.0.0.1:1/none", cwd=folder)
    assert ran.code == 7
    assert "secret" not in ran.err


# --- turns that kill


@pytest.mark.slow
async def test_a_turn_that_kills_its_workers_is_dead_lettered_listed_and_retried(
    folder: Path, start: Callable[..., Worker]
) -> None:
    db = ("--db", "s.db")
    async with Runtime(f"sqlite:///{folder}/s.db", worker=False) as rt:
        sent = await (await rt.session("trip", agent="deadly")).send("fly to Porto")
        for _ in range(3):
            assert start("fleet:deadly", *db).process.wait(30) == -signal.SIGKILL
        survivor = start("fleet:deadly", *db)
        assert (await sent.result(timeout=30)).reason == "no_forward_progress"
        (listed,) = perdure("sessions", "list", "--status", "failed", "--json", *db, cwd=folder).objects
        assert (listed["id"], listed["summary"]) == (
            "trip",
            "the turn was taken over 3 times without getting any further",
        )
        why = perdure("why", "trip", *db, cwd=folder)
        assert "session.retry()" in why.out
        (folder / "cured").touch()
        (again,) = perdure("sessions", "retry", "trip", "--json", *db, cwd=folder).objects
        assert (again["session"], again["duplicate"]) == ("trip", False)
        await until(lambda: perdure("sessions", "list", "--status", "idle", "-q", *db, cwd=folder).out == "trip\n")
        refused = perdure("sessions", "retry", "trip", *db, cwd=folder)
        assert (refused.code, refused.err.splitlines()[0]) == (4, "error: session 'trip' has no turn to retry")
        survivor.signal(signal.SIGTERM)
        assert survivor.end()[0] == 0


# --- workers list


async def test_workers_are_listed_with_where_they_run_and_what_they_hold(
    url: str, folder: Path, start: Callable[..., Worker]
) -> None:
    busy = start("fleet:app", "--db", url, charge_s=60)
    async with Runtime(url, worker=False) as rt:
        await (await rt.session("s", agent="travel")).send("fly to Porto")
        await until(lambda: len(ledger(folder, "begin")) == 1)
    idle = start("fleet:app", "--db", url)
    first, second = perdure("workers", "list", "--json", "--db", url, cwd=folder).objects
    assert (first["id"], first["pid"], first["alive"]) == (busy.started["worker"], busy.process.pid, True)
    assert (first["host"], first["version"]) == (platform.node(), busy.started["version"])
    assert (first["sessions"], first["unfinished"]) == (1, 1)
    assert (second["id"], second["sessions"], second["unfinished"]) == (idle.started["worker"], 0, 0)
    assert 0 < cast("int", first["lease_left_ms"]) <= 2000
    ran = perdure("workers", "list", "--db", url, cwd=folder)
    assert (ran.code, ran.err) == (0, "2 workers alive, 0 gone.\n")
    assert [line.split()[0] for line in ran.out.splitlines()] == ["ID", first["id"], second["id"]]
    quiet = perdure("workers", "list", "-q", "--db", url, cwd=folder)
    assert quiet.out.split() == [first["id"], second["id"]]
    idle.signal(signal.SIGTERM)
    idle.end()
    busy.process.kill()
    busy.process.wait()
    (left,) = perdure("workers", "list", "--json", "--db", url, cwd=folder).objects
    assert (left["id"], left["alive"], left["sessions"]) == (first["id"], False, 1)


async def test_workers_list_omits_idle_workers_lapsed_for_a_day(
    postgres_url: str, postgres: Server, folder: Path
) -> None:
    store = PostgresStore(postgres_url, SystemClock())
    await store.open()
    for name in ("ann", "bob"):
        await store.register(WorkerId(name), pid=1, version="1", now=0)
    await owned(store, "s", WorkerId("bob"))
    at = store.address.schema
    await postgres.execute(
        f"UPDATE {at}.workers SET lease_until = lease_until - 90000000, lease_ms = 0, boot = 'far away'"
    )
    listed = perdure("workers", "list", "--db", postgres_url, cwd=folder)
    assert [line.split()[0] for line in listed.out.splitlines()] == ["ID", "bob"]
    assert listed.err == (
        "0 workers alive, 1 gone.\n1 more, unseen for over a day and owning nothing: --all lists them.\n"
    )
    everybody = perdure("workers", "list", "-q", "--all", "--db", postgres_url, cwd=folder)
    assert everybody.out.split() == ["ann", "bob"]
    await store.close()


def test_a_store_without_workers_says_so(folder: Path) -> None:
    asyncio.run(_open(folder))
    ran = perdure("workers", "list", "--db", "s.db", cwd=folder)
    assert (ran.code, ran.out, ran.err) == (0, "", "No workers.\n")
    assert perdure("workers", "list", "--db", "none.db", cwd=folder).code == 7


async def _open(folder: Path) -> None:
    async with Runtime(f"sqlite:///{folder}/s.db", worker=False):
        pass
