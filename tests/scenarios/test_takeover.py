"""A worker of a hundred sessions falls silent: the others have them one lease later, and do not trample on each other.

The clock is moved by hand, that of the server too, so "one lease" is arithmetic and not a matter of luck. Whatever the
workers ask of their stores is counted.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import pytest

from perdure import Agent, Runtime, RuntimeOptions
from perdure.ids import StreamId, WorkerId
from perdure.models.scripted import ScriptedModel, say
from perdure.runtime.internals import core_of
from perdure.runtime.worker import worker as worker_module
from perdure.runtime.worker.stream_pool import MAX_BEGINNING
from perdure.runtime.worker.worker import Worker
from perdure.store.protocol import Store
from perdure.store.shapes import Claim, Loaded, ReadyStream, Serves
from perdure.testing.laws import Bench
from perdure.testing.laws.bench import LEASE_MS, said, stream_of
from tests.conformance.test_stores import PostgresBench, SqliteBench
from tests.postgres import Server

LOST = WorkerId("lost")
SESSIONS = [stream_of(f"s{index}") for index in range(100)]


@pytest.fixture(params=["sqlite", "postgres"])
async def bench(request: pytest.FixtureRequest, postgres: Server, tmp_path: Path) -> AsyncIterator[Bench]:
    with TemporaryDirectory(dir=postgres.folder) as folder:  # where the server can read the clock
        os.chmod(folder, 0o755)
        bench = SqliteBench(tmp_path / "s.db") if request.param == "sqlite" else PostgresBench(postgres, Path(folder))
        await bench.store.open()
        yield bench
        await bench.close()


class Counting:
    """A store that counts what is asked of it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.asked: Counter[str] = Counter()
        self.taken: list[StreamId] = []

    def __getattr__(self, name: str) -> object:
        self.asked[name] += 1
        return getattr(self.store, name)

    async def claim(self, stream: StreamId, worker: WorkerId) -> object:
        self.asked["claim"] += 1
        found = await self.store.claim(stream, worker)
        if isinstance(found, Claim):
            self.taken.append(stream)
        return found

    async def claim_ready(self, worker: WorkerId, *, limit: int, now: int, serves: Serves) -> tuple[ReadyStream, ...]:
        self.asked["claim_ready"] += 1
        found = await self.store.claim_ready(worker, limit=limit, now=now, serves=serves)
        self.taken.extend(ready.stream for ready in found if ready.claim)
        return found


def worker_of(rt: Runtime) -> Worker:
    worker = core_of(rt).worker
    assert worker is not None
    return worker


async def reached(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(50):
        while not look():  # noqa: ASYNC110 - the workers do it
            await asyncio.sleep(0.01)


async def over(store: Store) -> bool:
    rows = [await store.read(stream) for stream in SESSIONS]
    return all(log and log[-1].kind == "turn_ended" for log in rows)


async def test_sessions_of_a_silent_worker_are_taken_over_once(bench: Bench) -> None:
    store = bench.store
    await store.register(LOST, pid=1, version="1", now=0)
    for index, stream in enumerate(SESSIONS):
        await store.admit(said(stream, f"hello {index}", agent="a"))
        assert isinstance(await store.claim(stream, LOST), Claim)
    async with AsyncExitStack() as ending:
        alive: list[Counting] = []
        workers: list[Runtime] = []
        for _ in range(3):
            alive.append(Counting(await bench.reopen()))
            agent = Agent("a", model=ScriptedModel(say("done")))
            rt = Runtime(cast("Store", alive[-1]), agents=[agent], options=RuntimeOptions(clock=bench.clock))
            workers.append(await ending.enter_async_context(rt))
        for passed in (LEASE_MS // 3, LEASE_MS // 3, LEASE_MS - 2 * (LEASE_MS // 3) - 1):
            bench.clock.advance(passed)
            for rt in workers:
                await core_of(rt).store.renew(rt.worker_id)
        looked = [one.asked["claimable"] for one in alive]
        await reached(lambda: all(one.asked["claimable"] >= n + 3 for one, n in zip(alive, looked, strict=True)))
        assert [one.asked["claim"] for one in alive] == [0, 0, 0], "the lease has a millisecond left"

        bench.clock.advance(1)
        async with asyncio.timeout(50):
            while not await over(store):  # noqa: ASYNC110 - the workers do it
                await asyncio.sleep(0.05)
        taken = [stream for one in alive for stream in one.taken]
        assert sorted(taken) == sorted(SESSIONS), "each was taken once"
        attempts = sum(one.asked["claim"] for one in alive)
        assert attempts <= 3 * len(SESSIONS), "late workers tried again and again"


async def test_notifications_do_not_keep_a_session_from_takeover(bench: Bench) -> None:
    store, stream = bench.store, SESSIONS[0]
    await store.register(LOST, pid=1, version="1", now=0)
    await store.admit(said(stream, "hello", agent="a"))
    assert isinstance(await store.claim(stream, LOST), Claim)
    bench.clock.advance(LEASE_MS - 1)
    agent = Agent("a", model=ScriptedModel(say("done")))
    async with Runtime(await bench.reopen(), agents=[agent], options=RuntimeOptions(clock=bench.clock)) as rt:
        pool = worker_of(rt).stream_pool

        async def ended() -> bool:
            pool.notify(stream)
            log = await store.read(stream)
            return bool(log) and log[-1].kind == "turn_ended"

        for _ in range(20):  # the owner is alive: notifications leave it the session
            assert not await ended()
        bench.clock.advance(1)
        async with asyncio.timeout(30):
            while not await ended():
                for _ in range(3):
                    pool.notify(stream)
                    await asyncio.sleep(0)


class Reluctant(Counting):
    """A store whose logs cannot be read yet."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.readable = asyncio.Event()

    async def load(self, stream: StreamId, *, code: str) -> Loaded:
        await self.readable.wait()
        return await self.store.load(stream, code=code)


async def test_a_worker_takes_no_more_than_it_can_begin_with(bench: Bench) -> None:
    """Were it to die now, it would have got nowhere with what it took; and others could have begun with the rest."""
    for index, stream in enumerate(SESSIONS):
        await bench.store.admit(said(stream, f"hello {index}", agent="a"))
    busy = Reluctant(await bench.reopen())
    async with Runtime(cast("Store", busy), agents=[Agent("a", model=ScriptedModel(say("done")))]):
        await reached(lambda: len(busy.taken) == MAX_BEGINNING)
        looked = busy.asked["stream"]
        await asyncio.sleep(0.6)  # a look for work or two, which could take more
        assert len(busy.taken) == MAX_BEGINNING
        assert busy.asked["stream"] == looked
        busy.readable.set()
        async with asyncio.timeout(50):
            while not await over(bench.store):  # noqa: ASYNC110 - the worker does it
                await asyncio.sleep(0.05)
    assert sorted(busy.taken) == sorted(SESSIONS)


class Late(Counting):
    """A store that tells what was taken only when everything that was taken before is over."""

    rt: Runtime

    async def claim_ready(self, worker: WorkerId, *, limit: int, now: int, serves: Serves) -> tuple[ReadyStream, ...]:
        found = await super().claim_ready(worker, limit=limit, now=now, serves=serves)
        served = core_of(self.rt).worker
        assert served is not None
        await reached(lambda: served.stream_pool.running == 0)
        return found


async def test_a_worker_that_finishes_while_it_takes_more_looks_on_by_itself(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing wakes it but what it does: were one look forgotten, the rest would wait for hours."""
    monkeypatch.setattr(worker_module, "SCAN_S", 36_000)
    for index, stream in enumerate(SESSIONS):
        await bench.store.admit(said(stream, f"hello {index}", agent="a"))
    late = Late(await bench.reopen())
    agent = Agent("a", model=ScriptedModel(say("done")))
    late.rt = Runtime(cast("Store", late), agents=[agent], options=RuntimeOptions(lease_s=36_000))
    async with late.rt, asyncio.timeout(50):
        while not await over(bench.store):  # noqa: ASYNC110 - the worker does it
            await asyncio.sleep(0.05)


async def test_keeping_a_hundred_sessions_costs_one_write_per_renewal(bench: Bench) -> None:
    """All sessions are in a long call, and their worker only renews its lease."""
    counting = Counting(await bench.reopen())
    model = ScriptedModel(say("done", latency_ms=3_600_000))
    agent = Agent("a", model=model)
    rt = Runtime(
        cast("Store", counting), agents=[agent], options=RuntimeOptions(clock=bench.clock, lease_s=0.2, drain_s=0)
    )
    async with rt:
        for stream in SESSIONS:
            session = await rt.session(stream.rpartition(":")[2], agent="a")
            await session.send("hello")
        await reached(lambda: len(model.requests) == len(SESSIONS))
        await reached(lambda: (worker := core_of(rt).worker) is not None and not worker.stream_pool.more_waits)
        await asyncio.sleep(0.1)
        counters = counting.store.counters
        commits, renewals = counters.commits, counting.asked["renew"]
        bench.clock.advance(500)
        await reached(lambda: counting.asked["renew"] >= renewals + 10)
        on_its_way = 1  # one may have been asked for, and not been written, when we began to count
        assert counters.commits - commits <= counting.asked["renew"] - renewals + on_its_way
        held = [worker.held for worker in await bench.store.workers() if worker.id == rt.worker_id]
        assert held == [len(SESSIONS)]


async def ended(store: Store, streams: list[StreamId]) -> int:
    rows = [row for stream in streams for row in await store.read(stream)]
    return sum(row.kind == "turn_ended" for row in rows)


async def test_suspects_are_tried_one_at_a_time(bench: Bench) -> None:
    """Turns abandoned by two workers; the sender has a worker that would start at once."""
    store, streams = bench.store, SESSIONS[:4]
    for stream in streams:
        await store.admit(said(stream, "hello", agent="a"))
    for worker in (WorkerId("first"), WorkerId("second")):
        await store.register(worker, pid=1, version="1", now=0)
        for stream in streams:
            assert isinstance(await store.claim(stream, worker), Claim)
        bench.kill(worker)
    busy = Reluctant(await bench.reopen())
    agent = Agent("a", model=ScriptedModel(say("done")))
    async with Runtime(cast("Store", busy), agents=[agent], options=RuntimeOptions(clock=bench.clock)) as rt:
        await reached(lambda: len(busy.taken) == 1)
        for stream in streams:
            await rt.get_session(stream.rpartition(":")[2]).send("and another")
        await (await rt.session("new", agent="a")).send("me too")
        await asyncio.sleep(0.6)  # a look for work or two, which could take more
        assert len(busy.taken) == 1, "nothing is begun beside it"
        busy.readable.set()
        async with asyncio.timeout(50):
            while await ended(store, [*streams, stream_of("new")]) < 9:  # noqa: ASYNC110 - the worker does it
                await asyncio.sleep(0.02)
    assert sorted(set(busy.taken)) == sorted([*streams, stream_of("new")])
