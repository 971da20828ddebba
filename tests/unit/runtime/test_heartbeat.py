"""The thread that renews a worker's lease: when it begins, when it ends, and what it survives."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import cast

import pytest

from perdure import Agent, Runtime, RuntimeOptions
from perdure.errors import Code, Error
from perdure.ids import WorkerId
from perdure.models.scripted import ScriptedModel, say
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of
from perdure.runtime.worker.heartbeat import Heartbeat
from perdure.store.memory.store import MemoryStore
from perdure.store.postgres import PostgresStore
from perdure.store.protocol import Store
from tests.pooler import Pooler
from tests.postgres import Server
from tests.scenarios.test_takeover import reached

ANN = WorkerId("ann")


class Renewing:
    """A store that counts renewals, and fails as told."""

    def __init__(self, *problems: Exception) -> None:
        self.renewals = 0
        self.threads: set[str] = set()
        self.stopped = 0
        self._problems = list(problems)

    async def renew(self, worker: WorkerId) -> None:
        assert worker == ANN
        self.renewals += 1
        self.threads.add(threading.current_thread().name)
        if self._problems:
            raise self._problems.pop(0)

    async def stop_renewing(self) -> None:
        self.stopped += 1


def beating(store: Renewing, *, limit_s: float = 60.0) -> Heartbeat:
    heartbeat = Heartbeat(cast("Store", store), ANN, lease_s=0.05, stall_limit_s=limit_s)
    heartbeat.start()
    return heartbeat


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "perdure-heartbeat"]


async def test_s3_x10_closed_heartbeat_leaves_no_thread_and_renews_no_more() -> None:
    store = Renewing()
    heartbeat = beating(store)
    await reached(lambda: store.renewals >= 3)
    await heartbeat.close()
    assert (threads(), store.stopped) == ([], 1)
    renewals = store.renewals
    await asyncio.sleep(0.1)
    assert store.renewals == renewals
    assert store.threads == {"perdure-heartbeat"}
    await heartbeat.close()


async def test_s3_x10_failing_renewals_are_logged_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    store = Renewing(Error(Code.STORE_UNAVAILABLE, "away"), ValueError("a fault"))
    heartbeat = beating(store)
    await reached(lambda: store.renewals >= 4)
    await heartbeat.close()
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]


async def test_s3_x10_blocked_loop_is_renewed_until_the_limit(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.runtime.worker.heartbeat.SLOW_S", 0.2)
    store = Renewing()
    heartbeat = beating(store, limit_s=0.6)
    time.sleep(0.5)  # noqa: ASYNC251 - the loop is busy
    assert store.renewals >= 3
    while "stalled" not in caplog.text:
        time.sleep(0.01)  # noqa: ASYNC251
    time.sleep(0.1)  # noqa: ASYNC251 - a renewal that had begun
    renewals = store.renewals
    time.sleep(0.3)  # noqa: ASYNC251
    assert store.renewals == renewals, "renewed although the loop does not answer"
    await reached(lambda: store.renewals > renewals)
    await heartbeat.close()
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.WARNING, logging.CRITICAL, logging.WARNING]
    assert "test_s3_x10_blocked_loop_is_renewed_until_the_limit" in (caplog.records[1].stack_info or ""), "no stack"
    assert "answers again" in caplog.records[2].getMessage()


def test_s3_x10_heartbeat_ends_with_a_loop_that_is_closed_without_it() -> None:
    store = Renewing()

    async def forgets() -> None:
        beating(store, limit_s=0.2)

    asyncio.run(forgets())
    give_up = time.monotonic() + 20
    while threads():
        assert time.monotonic() < give_up
        time.sleep(0.01)
    assert store.stopped == 1


async def test_s3_x10_worker_that_no_longer_polls_has_no_heartbeat() -> None:
    """X10: a shutdown that cancels all tasks ends the worker, and the thread must not let it look alive."""
    agent = Agent("a", model=ScriptedModel(say("done")))
    async with Runtime("memory://", agents=[agent]):
        assert threads() == ["perdure-heartbeat"]
        [polling] = [task for task in asyncio.all_tasks() if task.get_name() == "perdure:worker"]
        polling.cancel()
        await reached(lambda: not threads())


@pytest.mark.parametrize("worker", [True, False])
async def test_s3_x10_runtime_has_one_heartbeat_while_it_works(address: str, worker: bool) -> None:
    for _ in range(2):
        async with Runtime(address, agents=[Agent("a", model=ScriptedModel(say("done")))], worker=worker):
            assert threads() == ["perdure-heartbeat"] * worker
        assert threads() == []


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: object) -> str:
    if request.param == "postgres":
        return request.getfixturevalue("postgres_url")
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/s.db"


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan")])
def test_s3_x10_limit_must_be_positive(limit: float) -> None:
    with pytest.raises(Error) as caught:
        RuntimeOptions(loop_stall_limit_s=limit)
    assert caught.value.code is Code.INVALID_ARGUMENT


# --- Postgres


async def renewed_often(store: Store, worker: WorkerId, times: int) -> None:
    """Wait until the lease has been renewed so often, as others see it."""
    ends = set[int]()
    async with asyncio.timeout(30):
        while len(ends) <= times:
            ends |= {one.lease_until for one in await store.workers() if one.id == worker}
            await asyncio.sleep(0.01)


async def connections(server: Server, name: str) -> int:
    from perdure.store.postgres.driver import dial

    connection = await dial(server.url(), settings={}, cached=0, connect_s=10, command_s=30)
    try:
        rows = await connection.fetch("SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", name)
        return rows[0][0]
    finally:
        await connection.close()


async def test_s3_x10_heartbeat_has_one_connection_which_ends_with_it(postgres: Server, postgres_url: str) -> None:
    name = "one-heartbeat"
    store = PostgresStore(f"{postgres_url}&application_name={name}", SystemClock(), lease_ms=500)
    async with Runtime(store, agents=[], options=RuntimeOptions(lease_s=0.5)) as rt:
        await renewed_often(store, rt.worker_id, 3)
        used = await connections(postgres, name)
        await renewed_often(store, rt.worker_id, 5)
        assert await connections(postgres, name) == used
    assert await connections(postgres, name) == 0


async def test_s3_x10_heartbeat_survives_the_loss_of_its_connection(postgres: Server, postgres_url: str) -> None:
    name = "lost-heartbeat"
    store = PostgresStore(f"{postgres_url}&application_name={name}", SystemClock(), lease_ms=500)
    async with Runtime(store, agents=[], options=RuntimeOptions(lease_s=0.5)) as rt:
        for _ in range(3):
            await renewed_often(store, rt.worker_id, 2)
            await postgres.execute(
                f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{name}'"
            )
        await renewed_often(store, rt.worker_id, 2)


async def test_s3_x10_heartbeat_works_behind_a_pooler(postgres: Server, postgres_url: str) -> None:
    schema = PostgresStore(postgres_url, SystemClock()).address.schema
    pooler = Pooler(postgres.folder / "data" / ".s.PGSQL.5432", user="postgres", database="postgres")
    port = await pooler.open()
    url = f"postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=disable&schema={schema}&pooler=transaction"
    async with Runtime(url, agents=[], options=RuntimeOptions(lease_s=0.5)) as rt:
        await renewed_often(core_of(rt).store, rt.worker_id, 5)
    assert pooler.refused == []
    await pooler.close()


async def test_s3_x10_memory_store_is_renewed_by_the_thread() -> None:
    store = MemoryStore(SystemClock(), lease_ms=200)
    async with Runtime(store, agents=[], options=RuntimeOptions(lease_s=0.2)) as rt:
        time.sleep(0.6)  # noqa: ASYNC251 - the loop is busy
        assert store.lease_live(rt.worker_id)
        assert store.lapses(rt.worker_id) == 0
