"""Every law, on every store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure.ids import WorkerId
from perdure.store.memory import MemoryStore
from perdure.store.sqlite import SqliteStore
from perdure.testing.clock import ManualClock
from perdure.testing.laws import Bench, StoreLaws


class MemoryBench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)

    async def reopen(self) -> MemoryStore:
        return self.store

    def kill(self, worker: WorkerId) -> None:
        self.store.kill(worker)


class SqliteBench:
    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self.path = path
        self.store = SqliteStore(path, self.clock)
        self.opened = [self.store]

    async def reopen(self) -> SqliteStore:
        other = SqliteStore(self.path, self.clock)
        await other.open()
        self.opened.append(other)
        return other

    def kill(self, worker: WorkerId) -> None:
        for store in self.opened:
            store.abandon(worker)

    async def close(self) -> None:
        for store in self.opened:
            await store.close()


class TestMemory(StoreLaws):
    @pytest.fixture
    async def bench(self) -> Bench:
        return MemoryBench()


class TestSqlite(StoreLaws):
    @pytest.fixture
    async def bench(self, tmp_path: Path) -> AsyncIterator[Bench]:
        bench = SqliteBench(tmp_path / "store.db")
        await bench.store.open()
        yield bench
        await bench.close()
