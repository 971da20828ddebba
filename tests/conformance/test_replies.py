"""The laws of replies that broke off, for what every store has of them in passing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from perdure.commit.plan import Entry
from perdure.ids import DEFAULT_TENANT, EffectId, Seq, SessionId, TurnId, WorkerId, session_stream
from perdure.runtime.calls.orphaned_calls import StoredPartialStreams
from perdure.runtime.clock import SystemClock
from perdure.store.aes_gcm import AesGcmCodec
from perdure.store.encoded import encoded
from perdure.store.live import Piece
from perdure.store.memory import MemoryStore
from perdure.store.postgres import PostgresStore
from perdure.store.protocol import Store
from perdure.store.sqlite import SqliteStore
from perdure.testing.laws.bench import Hold, open_stream, take
from perdure.testing.laws.replies import ONE, TWO, PartialStreamLaws
from perdure.vocab.messages import Reply, Text
from perdure.vocab.outcomes import LlmCallOutcome
from perdure.vocab.records import EffectSettled

ANN = WorkerId("ann")


@dataclass(slots=True)
class StoreScribe:
    """Writes as a worker does: pieces into the side channel, the end into the log."""

    store: Store
    streams: StoredPartialStreams
    holds: dict[SessionId, Hold] = field(default_factory=dict[SessionId, Hold])
    _ends: dict[tuple[SessionId, int], int] = field(default_factory=dict[tuple[SessionId, int], int])
    _seqs: dict[SessionId, int] = field(default_factory=dict[SessionId, int])

    async def write(self, session: SessionId, turn: TurnId, attempt: int, text: str) -> None:
        start = self._ends.get((session, attempt), 0)
        self._ends[session, attempt] = start + len(text)
        stream, effect = session_stream(DEFAULT_TENANT, session), EffectId(f"m1.{attempt}")
        seq = Seq(self._seqs.get(session, 1))
        await self.store.live.put([Piece(stream, turn, effect, 1, seq, start, text)], now=1)

    async def end(self, session: SessionId, turn: TurnId, attempt: int) -> None:
        outcome = LlmCallOutcome(reply=Reply(parts=(Text(text="x"),), model="m"))
        settled = EffectSettled(id=EffectId(f"m1.{attempt}"), outcome=outcome)
        receipt = await self.store.append(self.holds[session].plan(Entry.of(settled, at=1)))
        self._seqs[session] = receipt.last_seq


async def scribe_of(store: Store) -> AsyncIterator[StoreScribe]:
    await store.open()
    scribe = StoreScribe(store, StoredPartialStreams(store, DEFAULT_TENANT))
    await store.register(ANN, pid=1, version="1", now=1)
    for name in (ONE, TWO):
        scribe.holds[name] = await take(store, await open_stream(store, name), ANN)
    yield scribe
    await store.close()


class TestMemory(PartialStreamLaws):
    @pytest.fixture
    async def scribe(self) -> AsyncIterator[StoreScribe]:
        async for scribe in scribe_of(MemoryStore(SystemClock())):
            yield scribe


class TestSqlite(PartialStreamLaws):
    @pytest.fixture
    async def scribe(self, tmp_path: Path) -> AsyncIterator[StoreScribe]:
        async for scribe in scribe_of(SqliteStore(tmp_path / "s.db", SystemClock())):
            yield scribe


class TestPostgres(PartialStreamLaws):
    @pytest.fixture
    async def scribe(self, postgres_url: str) -> AsyncIterator[StoreScribe]:
        async for scribe in scribe_of(PostgresStore(postgres_url, SystemClock())):
            yield scribe


class TestEncoded(PartialStreamLaws):
    @pytest.fixture
    async def scribe(self, tmp_path: Path) -> AsyncIterator[StoreScribe]:
        store = encoded(SqliteStore(tmp_path / "s.db", SystemClock()), AesGcmCodec({"k": bytes(32)}))
        async for scribe in scribe_of(store):
            yield scribe
