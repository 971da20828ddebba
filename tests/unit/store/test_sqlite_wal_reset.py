"""The WAL-reset bug of SQLite before 3.51.3: no commit happens while a checkpoint runs, in any process."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from perdure.ids import WorkerId
from perdure.store.sqlite import SqliteStore, write_lock, writer
from perdure.store.sqlite.write_lock import WriteLock, is_fixed
from tests.unit.store import parties
from tests.unit.store.parties import entry, opened, owned, plan, stream_named

ANN = WorkerId("ann")


@pytest.mark.parametrize(
    ("version", "fixed"),
    [
        ((3, 35, 0), False),
        ((3, 40, 1), False),
        ((3, 44, 5), False),
        ((3, 44, 6), True),
        ((3, 45, 9), False),
        ((3, 50, 6), False),
        ((3, 50, 7), True),
        ((3, 51, 2), False),
        ((3, 51, 3), True),
        ((3, 52, 0), True),
        ((4, 0, 0), True),
    ],
)
def test_s15_versions_with_the_bug_are_known(version: tuple[int, int, int], fixed: bool) -> None:
    assert is_fixed(version) is fixed


async def test_s15_commit_waits_for_a_checkpoint_of_another_process(store: SqliteStore, path: Path) -> None:
    claim = await owned(store, "one", ANN)
    other = WriteLock(path)
    for n in range(1, 8):  # on the thread at first, then on the caller
        assert other.try_hold()
        waiting = asyncio.ensure_future(store.append(plan(claim, ANN, n, entry("x"))))
        done, _ = await asyncio.wait([waiting], timeout=0.02)
        assert not done
        assert len(await store.read(stream_named("one"))) == n
        other.release()
        await waiting
    other.close()


async def test_s15_checkpoint_waits_for_a_commit_of_another_process(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "CHECKPOINT_BYTES", 1)
    claim = await owned(store, "one", ANN)
    other = WriteLock(path)
    steps: list[str] = []

    def held(self: WriteLock) -> bool:
        return not other.try_hold() or (other.release() or False)

    lock = store._writer.lock if store._writer is not None else other  # pyright: ignore[reportPrivateUsage]
    watched = store._writer._connection if store._writer is not None else None  # pyright: ignore[reportPrivateUsage]
    assert watched is not None
    watched.set_trace_callback(lambda sql: steps.append(f"{sql} {held(lock)}"))
    await store.append(plan(claim, ANN, 1, entry("x")))
    while not [step for step in steps if "wal_checkpoint" in step]:  # noqa: ASYNC110 - on the writer's thread
        await asyncio.sleep(0)
    await asyncio.to_thread(store._empty_wal)  # pyright: ignore[reportPrivateUsage]
    watched.set_trace_callback(None)
    other.close()
    locked = [step for step in steps if step.startswith(("BEGIN", "COMMIT", "PRAGMA wal_checkpoint"))]
    assert {step.split()[0] for step in locked} == {"BEGIN", "COMMIT", "PRAGMA"}
    assert all(step.endswith("True") for step in locked), locked


async def test_s15_no_checkpoint_runs_where_no_lock_prevents_the_bug(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_lock, "fcntl", None)
    monkeypatch.setattr(write_lock, "FIXED", (9, 9, 9))
    monkeypatch.setattr(writer, "CHECKPOINT_BYTES", 1)
    store = await opened(path, ANN)
    claim = await owned(store, "one", ANN)
    steps: list[str] = []
    watched = store._writer._connection if store._writer is not None else None  # pyright: ignore[reportPrivateUsage]
    assert watched is not None
    watched.set_trace_callback(steps.append)
    for n in range(1, 20):
        await store.append(plan(claim, ANN, n, entry("x" * 500)))
    await asyncio.to_thread(store._empty_wal)  # pyright: ignore[reportPrivateUsage]
    watched.set_trace_callback(None)
    assert [step for step in steps if "wal_checkpoint" in step] == []
    assert any(step.startswith("COMMIT") for step in steps), "the steps of the writer were seen"
    assert path.with_name("store.db-wal").stat().st_size > 10_000
    assert (write_lock.diagnose().status, write_lock.diagnose().what) == ("warn", "wal reset")
    await store.close()


async def test_s15_doctor_names_the_version_of_sqlite(store: SqliteStore) -> None:
    (found,) = [one for one in await store.check() if one.what == "wal reset"]
    assert found.status == "ok"
    assert sqlite3.sqlite_version in found.detail


@pytest.mark.parametrize(
    "seconds", [3.0, pytest.param(60.0, marks=[pytest.mark.slow, pytest.mark.timeout(150)], id="a minute")]
)
def test_s15_four_processes_lose_no_append_when_killed(path: Path, seconds: float) -> None:
    chance, until = random.Random(15), time.monotonic() + seconds
    living: dict[str, subprocess.Popen[str]] = {}
    logs: dict[str, Path] = {}

    def begin(number: int) -> None:
        name = f"party-{number}"
        logs[name] = path.parent / f"{name}.out"
        with logs[name].open("w") as out:
            argv = [sys.executable, parties.__file__, "checkpoint", str(path), name]
            living[name] = subprocess.Popen(argv, stdout=out, text=True)

    for number in range(4):
        begin(number)
    number = 4
    while time.monotonic() < until or not any(acknowledged(log) for log in logs.values()):
        time.sleep(chance.uniform(0.1, 0.5))
        name = chance.choice(sorted(living))
        if acknowledged(logs[name]):
            victim = living.pop(name)
            victim.kill()
            victim.wait()
            begin(number)
            number += 1
    for child in living.values():
        child.kill()
        child.wait()
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        counts = (
            "SELECT name, count(*) FROM log JOIN streams ON streams.id = log.stream WHERE log.kind = 'note' GROUP BY 1"
        )
        found: dict[str, int] = dict(file.execute(counts).fetchall())
    for name, log in logs.items():
        assert found.get(name, 0) >= acknowledged(log), name
    assert sum(found.values()) > 50


def acknowledged(log: Path) -> int:
    """The number of the last append that was durable, as its process said."""
    lines = [line for line in log.read_text().split("\n")[:-1] if line]
    return int(lines[-1]) if lines else 0
