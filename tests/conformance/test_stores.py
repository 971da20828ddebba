"""Every law on every store; a second way to write is tested by the laws that it concerns."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from perdure.ids import WorkerId
from perdure.store.aes_gcm import AesGcmCodec
from perdure.store.encoded import encoded
from perdure.store.memory import MemoryStore
from perdure.store.postgres import PostgresStore, appends, writer
from perdure.store.protocol import Store
from perdure.store.sqlite import SqliteStore
from perdure.testing.clock import ManualClock
from perdure.testing.laws import Bench, StoreLaws
from perdure.testing.laws.amendments import AmendmentLaws
from perdure.testing.laws.append import AppendLaws
from perdure.testing.laws.asks import AskLaws
from perdure.testing.laws.audits import AuditLaws
from perdure.testing.laws.blobs import BlobLaws
from perdure.testing.laws.changes import ChangeLaws
from perdure.testing.laws.claims import ClaimLaws
from perdure.testing.laws.inbox import InboxLaws
from perdure.testing.laws.interventions import InterventionLaws
from perdure.testing.laws.leases import LeaseLaws
from perdure.testing.laws.listing import ListingLaws
from perdure.testing.laws.live import LiveLaws
from perdure.testing.laws.permits import PermitLaws
from perdure.testing.laws.promises import PromiseLaws
from perdure.testing.laws.prunes import PruneLaws
from perdure.testing.laws.queues import QueueLaws
from perdure.testing.laws.receipts import ReceiptLaws
from perdure.testing.laws.rooms import RoomLaws
from perdure.testing.laws.sends import SendLaws
from perdure.testing.laws.snapshots import SnapshotLaws
from perdure.testing.laws.streams import StreamLaws
from perdure.testing.laws.timers import TimerLaws
from tests.postgres import Server, ServerClock

_schemas = itertools.count(1)


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


class PairedClock(ManualClock):
    """A manual clock that takes the server's along. Setting this machine's wall clock does not move the server's."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.server = ServerClock(path, self.monotonic_ms())

    def advance(self, ms: int) -> None:
        super().advance(ms)
        self.server.set(self.monotonic_ms())


class PostgresBench:
    def __init__(self, server: Server, folder: Path) -> None:
        self.clock = PairedClock(folder / "clock")
        self.schema = f"law_{next(_schemas)}"
        self.url = server.url(schema=self.schema, **self.clock.server.settings)
        self.store = PostgresStore(self.url, self.clock)
        self.opened = [self.store]

    async def reopen(self) -> PostgresStore:
        other = PostgresStore(self.url, self.clock)
        await other.open()
        self.opened.append(other)
        return other

    def kill(self, worker: WorkerId) -> None:
        for store in self.opened:
            store.abandon(worker)

    async def close(self) -> None:
        for store in self.opened:
            await store.close()


class EncodedBench:
    """The same file, with every payload encrypted."""

    def __init__(self, path: Path) -> None:
        self.bare = SqliteBench(path)
        self.clock = self.bare.clock
        self._codec = AesGcmCodec({"k": bytes(32)})
        self.store = encoded(self.bare.store, self._codec)

    async def reopen(self) -> Store:
        store = encoded(await self.bare.reopen(), self._codec)
        await store.open()
        return store

    def kill(self, worker: WorkerId) -> None:
        self.bare.kill(worker)


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


class OnPostgres:
    @pytest.fixture
    async def bench(self, postgres: Server) -> AsyncIterator[Bench]:
        with TemporaryDirectory(dir=postgres.folder) as folder:  # where the server can read the clock
            os.chmod(folder, 0o755)
            bench = PostgresBench(postgres, Path(folder))
            await bench.store.open()
            yield bench
            await bench.close()
        await postgres.execute(f"DROP SCHEMA {bench.schema} CASCADE")


class TestPostgres(OnPostgres, StoreLaws):
    pass


class WriteLaws(AppendLaws, ReceiptLaws, InboxLaws, SendLaws, LeaseLaws):
    """The laws of an append and of its fence: whether an append is alone concerns no other law."""


class TestPostgresAlone(OnPostgres, WriteLaws):
    """Every append takes the shortest way that its plan allows, as the append of a single worker does."""

    @pytest.fixture(autouse=True)
    def no_company(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(writer, "SOLO", 0)


class TestPostgresTogether(OnPostgres, WriteLaws):
    """Every append takes the way of concurrent appends."""

    @pytest.fixture(autouse=True)
    def never_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(writer, "SOLO", sys.maxsize)
        monkeypatch.setattr(appends.Chain, "lone", False)


class PayloadLaws(
    AppendLaws,
    ReceiptLaws,
    InboxLaws,
    RoomLaws,
    SendLaws,
    PromiseLaws,
    AskLaws,
    AuditLaws,
    BlobLaws,
    SnapshotLaws,
    StreamLaws,
    ListingLaws,
    ChangeLaws,
    InterventionLaws,
    AmendmentLaws,
    PruneLaws,
    LiveLaws,
):
    """The laws in which a payload passes through the codec."""


WITHOUT_PAYLOAD = {LeaseLaws, ClaimLaws, QueueLaws, PermitLaws, TimerLaws}


def test_each_group_of_laws_has_payloads_or_none() -> None:
    assert set(StoreLaws.__bases__) == set(PayloadLaws.__bases__) | WITHOUT_PAYLOAD


class TestSqliteEncoded(PayloadLaws):
    @pytest.fixture
    async def bench(self, tmp_path: Path) -> AsyncIterator[Bench]:
        bench = EncodedBench(tmp_path / "store.db")
        await bench.store.open()
        yield bench
        await bench.bare.close()
