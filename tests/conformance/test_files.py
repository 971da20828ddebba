"""The laws of session files, on every store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure.clock import Clock
from perdure.ids import SessionId
from perdure.runtime.clock import SystemClock
from perdure.services.files.stored import StoredFiles
from perdure.store.aes_gcm import AesGcmCodec
from perdure.store.encoded import encoded
from perdure.store.memory import MemoryStore
from perdure.store.postgres import PostgresStore
from perdure.store.protocol import Store
from perdure.store.sqlite import SqliteStore
from perdure.testing.laws.bench import open_stream
from perdure.testing.laws.files import FileDesk, FileLaws


async def app_of(one: Store, two: Store, clock: Clock) -> AsyncIterator[FileDesk]:
    await one.open()
    await two.open()
    for name in ("one", "two"):
        await open_stream(one, name)
    yield FileDesk(StoredFiles(one, clock), StoredFiles(two, clock), SessionId("one"), SessionId("two"))
    await one.close()
    await two.close()


class TestMemory(FileLaws):
    @pytest.fixture
    async def app(self) -> AsyncIterator[FileDesk]:
        store, clock = MemoryStore(SystemClock()), SystemClock()
        async for app in app_of(store, store, clock):
            yield app


class TestSqlite(FileLaws):
    @pytest.fixture
    async def app(self, tmp_path: Path) -> AsyncIterator[FileDesk]:
        clock = SystemClock()
        one, two = (SqliteStore(tmp_path / "s.db", clock) for _ in range(2))
        async for app in app_of(one, two, clock):
            yield app


class TestPostgres(FileLaws):
    @pytest.fixture
    async def app(self, postgres_url: str) -> AsyncIterator[FileDesk]:
        clock = SystemClock()
        one, two = (PostgresStore(postgres_url, clock) for _ in range(2))
        async for app in app_of(one, two, clock):
            yield app


class TestEncoded(FileLaws):
    @pytest.fixture
    async def app(self, tmp_path: Path) -> AsyncIterator[FileDesk]:
        clock, codec = SystemClock(), AesGcmCodec({"k": bytes(32)})
        one, two = (encoded(SqliteStore(tmp_path / "s.db", clock), codec) for _ in range(2))
        async for app in app_of(one, two, clock):
            yield app
