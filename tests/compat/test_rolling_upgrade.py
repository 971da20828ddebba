"""Law 18, as operators see it: workers of two releases work on one store while it is migrated, and nothing is lost."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from perdure import Error, Runtime, TurnHandle
from perdure.errors import Code
from perdure.ids import SessionId, WorkerId, session_stream
from perdure.testing import World
from perdure.vocab.records import FORMAT
from tests.compat.releases import NEW, OLD, store_of, version_of, work
from tests.compat.steps import next_release
from tests.e2e.command import environment

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["tests.compat.releases", "pydantic"])


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 's.db'}" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


class Fleet:
    """Workers of either release."""

    def __init__(self, url: str, folder: Path) -> None:
        self.world = World(folder / "world", fsync=False)
        self._url = url
        self._folder = folder
        self._all: list[ForkServerProcess] = []

    async def start(self, which: str) -> ForkServerProcess:
        """One more, at work when this returns."""
        worker = processes.Process(target=work, args=(self._url, str(self.world.path), which))
        worker.start()
        self._all.append(worker)
        async with asyncio.timeout(30):
            while not (self._folder / f"ready-{worker.pid}").exists():
                assert worker.is_alive()
                await asyncio.sleep(0.01)
        return worker

    async def stop(self, worker: ForkServerProcess) -> None:
        """SIGTERM, and wait until it has drained."""
        worker.terminate()
        await asyncio.to_thread(worker.join, 30)
        assert worker.exitcode == 0

    def by(self, which: str) -> set[str]:
        """The sessions that workers of a release charged for."""
        return {line.key.split(":")[2] for line in self.world.ledger if line.details["by"] == which}

    def remove(self) -> None:
        for worker in self._all:
            worker.kill()
            worker.join()


@pytest.fixture
def fleet(url: str, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(url, tmp_path)
    yield fleet
    fleet.remove()


class Callers:
    """Ask sessions again and again, and keep what they were promised."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt
        self._numbers = itertools.count()
        self.sent: list[TurnHandle] = []

    async def ask(self, name: str) -> str:
        """One input, and the answer to it."""
        session = await self._rt.session(name, agent="known")
        sent = await session.send("go", key=f"{name}-{next(self._numbers)}")
        self.sent.append(sent)
        return (await sent.result(timeout=40)).status

    async def keep_asking(self, stop: asyncio.Event) -> None:
        """Twelve callers: half of them stay with a session, half begin a new one each time."""

        async def one(name: str, *, stays: bool) -> None:
            while not stop.is_set():
                assert await self.ask(name if stays else f"{name}-{next(self._numbers)}") == "finished"

        await asyncio.gather(*(one(f"busy{index}", stays=index % 2 == 0) for index in range(12)))


@asynccontextmanager
async def load(url: str) -> AsyncGenerator[Callers]:
    """Callers of the old release, under load until this is left."""
    async with Runtime(store_of(url), worker=False) as rt:
        callers, stop = Callers(rt), asyncio.Event()
        asking = asyncio.create_task(callers.keep_asking(stop))
        yield callers
        stop.set()
        await asking


async def reached(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(40):
        while not look():  # noqa: ASYNC110 - it happens in other processes
            await asyncio.sleep(0.02)


async def command(*words: str) -> str:
    """Run a command line of the next release; what it prints."""
    line = (sys.executable, "-m", "tests.compat.next_command", *words)
    ran = await asyncio.to_thread(
        subprocess.run,
        line,
        cwd=Path(__file__).parents[2],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize("by", ["worker", "command"])
async def test_two_releases_work_together_through_a_migration(by: str, url: str, fleet: Fleet) -> None:
    old = [await fleet.start(OLD), await fleet.start(OLD)]
    async with load(url) as callers:
        await callers.ask("from-before")
        assert await version_of(url) == 1
        if by == "command":
            assert "0002_shards" in await command("db", "status", "--db", url)
            assert (await command("db", "migrate", "--db", url)).endswith(": 1 step applied\n")
            assert await version_of(url) == 2
            charged = fleet.world.count("charge")
            await reached(lambda: fleet.world.count("charge") > charged + 10)  # by workers that know nothing of it
            assert (await command("db", "migrate", "--db", url)).endswith(": nothing to do\n")
        new = [await fleet.start(NEW)]  # migrates under load, unless migrated before
        assert await version_of(url) == 2
        await reached(lambda: bool(fleet.by(NEW)))  # and takes part
        charged = fleet.world.count("charge")
        await fleet.stop(old[0])
        new.append(await fleet.start(NEW))
        old.append(await fleet.start(OLD))  # an old one that is only started now: it is told that it can
        await reached(lambda: fleet.world.count("charge") > charged + 20)
        for worker in old[1:]:
            await fleet.stop(worker)
        assert await callers.ask("from-before") == "finished", "the new release resumes the work of the old one"
    assert len(callers.sent) == fleet.world.count("charge")
    assert set(fleet.world.by_key("charge").values()) == {1}
    for worker in new:
        await fleet.stop(worker)
    store = store_of(url, next_release(url))
    await store.open()
    assert [line.what for line in await store.check() if line.status == "fail"] == []
    await store.close()


async def test_old_release_skips_only_streams_of_the_new_release(url: str, fleet: Fleet) -> None:
    new = await fleet.start(NEW)
    async with Runtime(store_of(url), worker=False) as rt:
        callers = Callers(rt)
        await callers.ask("newer")
        await fleet.stop(new)
        await fleet.start(OLD)
        waiting = asyncio.create_task(callers.ask("newer"))
        assert await callers.ask("older") == "finished"
        assert await callers.ask("older") == "finished"
        assert not waiting.done(), "an old worker took a session with records that it cannot read"
        new = await fleet.start(NEW)
        assert await waiting == "finished"
    await fleet.stop(new)
    assert fleet.by(OLD) == {"older"}
    assert fleet.by(NEW) == {"newer"}
    store = store_of(url)
    await store.open()
    await store.register(WorkerId("old"), pid=1, version="1", now=0)
    with pytest.raises(Error) as caught:
        await store.claim(session_stream(rt.tenant, SessionId("newer")), WorkerId("old"))
    assert caught.value.code is Code.FORMAT_NEWER
    assert f"up to {FORMAT}" in caught.value.message
    await store.close()


async def test_contracted_store_refuses_only_the_old_release(url: str) -> None:
    for release in (next_release(url), next_release(url, contracted=True), next_release(url)):
        store = store_of(url, release)
        await store.open()
        await store.close()
    with pytest.raises(Error) as caught:
        await store_of(url).open()
    assert caught.value.code is Code.STORE_NEWER
    assert "requires code from schema 2 on" in caught.value.because
