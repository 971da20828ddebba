"""Staying awake for an answer: only while it is worth it, and never at the cost of others."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure.ids import WorkerId
from perdure.store.postgres import PostgresStore, vigil
from perdure.store.postgres.address import parse
from perdure.store.postgres.vigil import NAPS, Vigil, processors
from tests.unit.store.parties import RealClock, entry, owned, plan

ANN = WorkerId("ann")
LONG_S = 600.0
LOOKS = 50


class Others:
    """Other tasks of the loop: counts the offers of the processor, and may reply after so many."""

    def __init__(self) -> None:
        self.offered = 0
        self.answers: asyncio.Future[None] | None = None

    def __call__(self) -> None:
        self.offered += 1
        if self.offered == LOOKS and self.answers is not None:
            self.answers.set_result(None)


@pytest.fixture(autouse=True)
def plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processors enough, and a server that answers in time, whatever this machine is."""
    monkeypatch.setattr(vigil, "processors", lambda: 2.0)
    monkeypatch.setattr(vigil, "PATIENCE_S", LONG_S)
    monkeypatch.setattr(vigil, "SOON_S", math.inf)


@pytest.fixture
async def others() -> Others:
    return Others()


def answer() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_the_loop_stays_awake_until_the_answer_comes_and_no_longer(others: Others) -> None:
    others.answers = answer()
    Vigil(give_way=others).keep(others.answers)
    await others.answers  # a loop that slept would never look for the fiftieth time
    await turns(5)
    assert others.offered == LOOKS


async def test_other_tasks_run_during_the_busy_poll(others: Others) -> None:
    others.answers = answer()
    Vigil(give_way=others).keep(others.answers)
    await turns(10)
    assert 0 < others.offered < LOOKS
    assert not others.answers.done()
    await others.answers


async def test_the_processor_is_offered_once_a_turn_however_many_answers_follow(others: Others) -> None:
    watch = Vigil(give_way=others)
    first, second = answer(), answer()
    watch.keep(first)
    await turns(1)
    before = others.offered
    first.set_result(None)
    watch.keep(second)
    await turns(10)
    assert others.offered == before + 10, "the one before is over, the next is watched, by one look a turn"
    second.set_result(None)
    await turns(5)
    assert others.offered == before + 10


async def test_cancelled_reply_is_not_polled(others: Others) -> None:
    watch, unwanted = Vigil(give_way=others), answer()
    watch.keep(unwanted)
    unwanted.cancel()
    await turns(5)
    assert others.offered == 0


async def test_after_an_answer_that_took_too_long_the_next_are_slept_through(
    others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Vigil(give_way=others)
    with monkeypatch.context() as far_away:
        far_away.setattr(vigil, "PATIENCE_S", -1.0)
        watch.keep(answer())
        await turns(5)
    assert others.offered == 0
    for _ in range(NAPS):
        watch.keep(answer())
        await turns(5)
    assert others.offered == 0
    watch.keep(last := answer())
    await turns(5)
    assert others.offered == 5
    last.set_result(None)


async def test_infrequent_append_is_not_polled(others: Others, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Vigil(give_way=others)
    with monkeypatch.context() as apart:
        apart.setattr(vigil, "SOON_S", -1.0)
        for _ in range(3):
            watch.keep(answer())
            await turns(5)
    assert others.offered == 0
    watch.keep(soon := answer())
    await turns(5)
    assert others.offered == 5
    soon.set_result(None)


@pytest.mark.parametrize(("allowed", "there_are"), [(True, 1.0), (True, 1.5), (False, 8.0)])
async def test_busy_poll_is_off_with_few_processors_or_disabled(
    others: Others, monkeypatch: pytest.MonkeyPatch, allowed: bool, there_are: float
) -> None:
    monkeypatch.setattr(vigil, "processors", lambda: there_are)
    Vigil(allowed=allowed, give_way=others).keep(answer())
    await turns(5)
    assert others.offered == 0


async def test_busy_poll_is_off_without_sched_yield(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_yield", raising=False)
    watch = Vigil()
    watch.keep(answer())
    await turns(5)


# --- how many processors there are


def _four(_: int) -> set[int]:
    return {0, 1, 2, 3}


def system(root: Path, groups: str, files: dict[str, str]) -> Path:
    for path, text in {"proc/self/cgroup": groups, **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        pytest.param("0::/\n", {}, 4.0, id="no quota"),
        pytest.param("0::/\n", {"sys/fs/cgroup/cpu.max": "max 100000\n"}, 4.0, id="a quota without a limit"),
        pytest.param("0::/\n", {"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 0.5, id="a container"),
        pytest.param("0::/\n", {"sys/fs/cgroup/cpu.max": "800000 100000\n"}, 4.0, id="more than there are"),
        pytest.param("0::/\n", {"sys/fs/cgroup/cpu.max": "what?\n"}, 4.0, id="something unknown"),
        pytest.param(
            "0::/system.slice/worker.service\n",
            {
                "sys/fs/cgroup/system.slice/worker.service/cpu.max": "max 100000\n",
                "sys/fs/cgroup/system.slice/cpu.max": "150000 100000\n",
            },
            1.5,
            id="a service in a slice",
        ),
        pytest.param(
            "4:cpu,cpuacct:/docker/1f\n0::/\n",
            {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"},
            1.0,
            id="an old container",
        ),
        pytest.param(
            "4:cpu,cpuacct:/\n0::/\n",
            {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"},
            4.0,
            id="an old one without a quota",
        ),
    ],
)
def test_processors_are_what_affinity_and_quotas_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, files: dict[str, str], expected: float
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", _four, raising=False)
    assert processors(system(tmp_path, groups, files)) == expected


def test_a_system_that_tells_nothing_of_quotas_has_its_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert processors(tmp_path) == 3.0


# --- the store


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_url, RealClock())
    await store.open()
    await store.register(ANN, pid=os.getpid(), version="1", now=0)
    yield store
    await store.close()


async def appended(store: PostgresStore, count: int, *, to: str) -> None:
    claim = await owned(store, to, ANN)
    for n in range(1, count + 1):
        await store.append(plan(claim, ANN, n, entry("a"), known=n))


async def test_consecutive_single_appends_busy_poll(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    offered: list[None] = []
    monkeypatch.setattr(os, "sched_yield", lambda: offered.append(None))
    await store.close()
    await store.open()  # opening reads the processor count again
    await store.register(ANN, pid=os.getpid(), version="1", now=0)
    await appended(store, 3, to="one")
    assert not offered, "there might have been company"
    await appended(store, 20, to="another")
    assert offered


async def test_an_address_may_ask_for_sleep(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    offered: list[None] = []
    monkeypatch.setattr(os, "sched_yield", lambda: offered.append(None))
    store = PostgresStore(f"{postgres_url}&awake=no", RealClock())
    assert not store.address.awake
    assert parse(postgres_url).awake
    await store.open()
    await store.register(ANN, pid=os.getpid(), version="1", now=0)
    await appended(store, 20, to="one")
    await store.close()
    assert not offered
