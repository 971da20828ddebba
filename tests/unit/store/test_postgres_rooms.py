"""The limit of a queue on Postgres: a sender waits for an earlier one that has not committed, and then counts it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from perdure.errors import Code, Error
from perdure.inbox.admit import Room
from perdure.store.postgres import PostgresStore
from perdure.store.postgres.connections import connect, leave
from perdure.store.postgres.heads import Heads
from perdure.store.postgres.schema import queries
from perdure.store.postgres.tx import PgTransaction
from perdure.store.shapes import Counters
from perdure.testing.laws.bench import said, stream_of
from perdure.testing.laws.blobs import PICTURE
from tests.scenarios.conftest import until
from tests.unit.store.parties import RealClock

STREAM = stream_of("one")
WAITERS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_url, RealClock())
    await store.open()
    yield store
    await store.close()


@pytest.mark.parametrize("with_bytes", [False, True])
async def test_s16_a_sender_counts_one_that_commits_meanwhile(store: PostgresStore, *, with_bytes: bool) -> None:
    await store.admit(said(STREAM, "first"))
    connection = await connect(store.address)
    other = PgTransaction(connection, queries(store.address.schema), Counters(), Heads())
    try:
        async with other.transaction():
            stream, _ = await other.one("stream_target", STREAM)
            await other.one("admission_insert_counted", stream, "theirs", "c", "t", "i")
            await other.one("inbox_insert", stream, "theirs", 5, False, 100, b"{}")
            ours = replace(said(STREAM, "ours"), room=Room(2, 1_000_000), blobs=(PICTURE,) if with_bytes else ())
            sending = asyncio.create_task(store.admit(ours))

            async def waits() -> bool:
                return sending.done() or (await connection.fetch(WAITERS))[0][0] > 0

            await until(waits)
            assert not sending.done(), "the sender did not wait for the other one"
        with pytest.raises(Error) as caught:
            await sending
        assert caught.value.code is Code.QUEUE_FULL
        assert [one.source_key for one in await store.inbox(STREAM)] == ["key-first", "theirs"]
    finally:
        await leave(connection)
