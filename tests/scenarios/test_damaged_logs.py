"""Logs whose rows were changed in the database: found when the stream is loaded, and named by seq."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Code, Error, Runtime, tool
from perdure.ids import DEFAULT_TENANT, SessionId, StreamId, session_stream
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of
from perdure.security import AesGcmCodec
from perdure.store.postgres.driver import dial
from perdure.store.postgres.store import PostgresStore
from perdure.store.protocol import Store
from perdure.store.sqlite.store import SqliteStore
from tests.scenarios.conftest import NewStore, until

pytestmark = pytest.mark.usefixtures("codec")

STREAM = session_stream(DEFAULT_TENANT, SessionId("s"))
COLUMNS = ("seq", "at", "kind", "version", "key", "fence", "n", "data", "digest", "original")
TURNS = 12

Rows = dict[int, dict[str, Any]]


class Database:
    """The tables of a store, as another program with write access sees them."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def run(self, text: str, *values: object) -> list[Any]:
        """Run a statement with `?` for each value."""
        if isinstance(self.store, SqliteStore):
            with sqlite3.connect(self.store.path) as file:
                return file.execute(text.replace("@", ""), values).fetchall()
        assert isinstance(self.store, PostgresStore)
        for number in range(1, len(values) + 1):
            text = text.replace("?", f"${number}", 1)
        address = self.store.address
        connection = await dial(address.dsn, settings={}, cached=0, connect_s=5, command_s=30)
        try:
            return [tuple(row) for row in await connection.fetch(text.replace("@", f"{address.schema}."), *values)]
        finally:
            await connection.close()

    async def rows(self, stream: StreamId = STREAM) -> Rows:
        """Return the rows of a log by seq."""
        columns = ", ".join(f"l.{name}" for name in COLUMNS)
        found = await self.run(
            f"SELECT {columns} FROM @log AS l JOIN @streams AS s ON s.id = l.stream WHERE s.stream = ? ORDER BY l.seq",
            stream,
        )
        return {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in found}

    async def write(self, rows: Rows, stream: StreamId = STREAM) -> None:
        """Replace a log by these rows, with seqs from 1."""
        ((id,),) = await self.run("SELECT id FROM @streams WHERE stream = ?", stream)
        await self.run("DELETE FROM @log WHERE stream = ?", id)
        for seq, row in enumerate(rows.values(), 1):
            values = [id, seq, *[row[name] for name in COLUMNS[1:]]]
            holes = ", ".join("?" for _ in values)
            await self.run(f"INSERT INTO @log (stream, {', '.join(COLUMNS)}) VALUES ({holes})", *values)
        await self.run("UPDATE @streams SET last_seq = ? WHERE id = ?", len(rows), id)
        await self.run("DELETE FROM @snapshots WHERE stream = ?", id)


@pytest.fixture(params=[None, AesGcmCodec({"k": bytes(range(32))})], ids=["plain", "sealed"])
def codec(request: pytest.FixtureRequest) -> AesGcmCodec | None:
    return request.param


@pytest.fixture(params=["sqlite", "postgres"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> NewStore:
    """Opens the same tables every time it is called. The memory store has none that another program could change."""
    if request.param == "sqlite":
        return lambda: SqliteStore(tmp_path / "s.db", SystemClock())
    url: str = request.getfixturevalue("postgres_url")
    return lambda: PostgresStore(url, SystemClock())


@pytest.fixture
def database(reopen: NewStore) -> Database:
    return Database(reopen())


REFUNDS: list[int] = []


@tool(needs_approval=True)
def refund(cents: int) -> str:
    """Refund."""
    REFUNDS.append(cents)
    return "refunded"


@asynccontextmanager
async def opened(
    reopen: NewStore, codec: AesGcmCodec | None, *steps: Any, worker: bool = True
) -> AsyncGenerator[Runtime]:
    agent = Agent("a", model=ScriptedModel(*(steps or [say("fine")] * 3 * TURNS)), tools=[refund])
    async with Runtime(reopen(), agents=[agent], payload_codec=codec, worker=worker) as rt:
        yield rt


async def talked(reopen: NewStore, codec: AesGcmCodec | None) -> None:
    """Fill the log of one session, and begin that of another."""
    async with opened(reopen, codec) as rt:
        session = await rt.session("s", agent="a")
        for number in range(TURNS):
            await session.ask(f"question {number}")
        await session.set_title("a title")
        await (await rt.session("other", agent="a")).ask("hello")


async def fault(reopen: NewStore, codec: AesGcmCodec | None) -> Error | None:
    """Return the error of a check of the session's log."""
    async with opened(reopen, codec, worker=False) as rt:
        try:
            await core_of(rt).store.check_log(STREAM)
        except Error as problem:
            return problem
    return None


def swapped(rows: Rows) -> Rows:
    first, second = [seq for seq, row in rows.items() if row["kind"] == "input_admitted"][2:4]
    changed = dict(rows)
    changed[first], changed[second] = rows[second], rows[first]
    return changed


def payloads_swapped(rows: Rows) -> Rows:
    first, second = [seq for seq, row in rows.items() if row["kind"] == "turn_opened"][2:4]
    changed = {seq: dict(row) for seq, row in rows.items()}
    changed[first]["data"], changed[second]["data"] = rows[second]["data"], rows[first]["data"]
    return changed


def removed(rows: Rows) -> Rows:
    return {seq: row for seq, row in rows.items() if seq != 9}


def repeated(rows: Rows) -> Rows:
    again = dict(rows[len(rows)], key=None)
    return rows | {len(rows) + 1: again}


def cut(rows: Rows) -> Rows:
    return {seq: row for seq, row in rows.items() if seq <= len(rows) - 3}


def renamed(rows: Rows) -> Rows:
    return rows | {9: dict(rows[9], at=rows[9]["at"] + 1)}


CHANGES: dict[str, Callable[[Rows], Rows]] = {
    "swap": swapped,
    "swap of payloads": payloads_swapped,
    "removal": removed,
    "repetition": repeated,
    "cut": cut,
    "time": renamed,
}


def first_change(before: Rows, after: Rows) -> int:
    """Return the seq of the first row that differs; of a cut log, that of its last row."""
    old, new = list(before.values()), list(after.values())
    differs = next(seq for seq in range(1, len(old) + 2) if old[seq - 1 : seq] != new[seq - 1 : seq])
    return min(differs, len(new))


@pytest.mark.parametrize("change", CHANGES)
async def test_s9_t_sec_04_changed_log_is_refused_and_named(
    change: str, database: Database, reopen: NewStore, codec: AesGcmCodec | None, caplog: pytest.LogCaptureFixture
) -> None:
    await talked(reopen, codec)
    rows = await database.rows()
    changed = CHANGES[change](rows)
    await database.write(changed)
    problem = await fault(reopen, codec)
    assert problem is not None
    assert problem.code is (Code.CODEC_FAILED if codec else Code.STORE_CORRUPT)
    assert problem.details["seq"] == first_change(rows, changed)
    message = problem.message
    with caplog.at_level(logging.ERROR):
        async with opened(reopen, codec, say("fine", exact=True)) as rt:
            await rt.get_session("s").send("one more")

            async def refused() -> bool:
                return message in caplog.text

            await until(refused)
            assert await rt.get_session("other").ask("still there?") == "fine"
            [line] = [line for line in await core_of(rt).store.check() if line.what == "records"]
            assert line.status == "fail"
            assert message in line.detail
    assert list((await database.rows()).values()) == [
        {**row, "seq": seq} for seq, row in enumerate(changed.values(), 1)
    ], "nothing ran"


async def test_s9_t_sec_04_each_flipped_byte_of_a_log_is_found(
    database: Database, reopen: NewStore, codec: AesGcmCodec | None
) -> None:
    await talked(reopen, codec)
    rows = await database.rows()
    ((head,),) = await database.run("SELECT head FROM @streams WHERE stream = ?", STREAM)
    async with opened(reopen, codec, worker=False) as rt:
        store = core_of(rt).store
        for seq, row in rows.items():
            for column in ("data", "digest"):
                value = bytes(row[column])
                for at in {0, len(value) // 2, len(value) - 1}:
                    flipped = value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]
                    await put(database, seq, column, flipped)
                    with pytest.raises(Error) as caught:
                        await store.check_log(STREAM)
                    assert caught.value.details["seq"] == seq
                await put(database, seq, column, value)
        for at in range(len(head)):
            flipped = head[:at] + bytes([head[at] ^ 1]) + head[at + 1 :]
            await database.run("UPDATE @streams SET head = ? WHERE stream = ?", flipped, STREAM)
            with pytest.raises(Error) as caught:
                await store.check_log(STREAM)
            assert caught.value.details["seq"] == len(rows)
        await database.run("UPDATE @streams SET head = ? WHERE stream = ?", head, STREAM)
        await store.check_log(STREAM)


async def test_s9_t_sec_04_hole_in_a_log_is_found(
    database: Database, reopen: NewStore, codec: AesGcmCodec | None
) -> None:
    await talked(reopen, codec)
    of = "(SELECT id FROM @streams WHERE stream = ?)"
    await database.run(f"DELETE FROM @log WHERE seq = ? AND stream = {of}", 9, STREAM)
    problem = await fault(reopen, codec)
    assert problem is not None
    assert (problem.details["seq"], problem.because) == (9, "the record is missing")


async def put(database: Database, seq: int, column: str, value: bytes) -> None:
    of = "(SELECT id FROM @streams WHERE stream = ?)"
    await database.run(f"UPDATE @log SET {column} = ? WHERE seq = ? AND stream = {of}", value, seq, STREAM)


async def test_s9_t_sec_04_revoked_grant_does_not_come_back(
    database: Database, reopen: NewStore, codec: AesGcmCodec | None
) -> None:
    REFUNDS.clear()
    async with opened(reopen, codec, call("refund", cents=1), say("ok")) as rt:
        session = await rt.session("s", agent="a")
        sent = await session.send("refund")
        await until(lambda: asked(rt))
        [item] = await session.pending()
        await rt.approvals.approve(item.id, by="ann", for_session=True)
        await sent.result(timeout=20)
        [grant] = await session.grants()
        await session.revoke_grant(grant.grant, by="ann")
    rows = await database.rows()
    ends = [dict(row) for row in rows.values() if row["kind"] != "grant_revoked"]
    assert len(ends) == len(rows) - 1
    await database.write(dict(enumerate(ends, 1)))
    await database.run("UPDATE @streams SET head = ? WHERE stream = ?", ends[-1]["digest"], STREAM)
    async with opened(reopen, codec, call("refund", cents=999_999), say("ok")) as rt:
        session = rt.get_session("s")
        if codec is None:  # a writer without a codec can compute the chain: only damage is found
            return
        await session.send("refund again")
        with pytest.raises(TimeoutError):
            await until(lambda: refunded(2), seconds=1)
    assert REFUNDS == [1]


async def asked(rt: Runtime) -> bool:
    return bool(await rt.get_session("s").pending())


async def refunded(times: int) -> bool:
    return len(REFUNDS) >= times


async def test_s9_t_sec_04_row_of_another_file_does_not_fit(tmp_path: Path, codec: AesGcmCodec | None) -> None:
    def store(name: str) -> SqliteStore:
        return SqliteStore(tmp_path / name, SystemClock())

    for name in ("one.db", "two.db"):
        await talked(lambda name=name: store(name), codec)
    one, two = Database(store("one.db")), Database(store("two.db"))
    theirs = await two.rows()
    mixed = (await one.rows()) | {12: theirs[12]}
    await one.write(mixed)
    problem = await fault(lambda: store("one.db"), codec)
    assert problem is not None
    assert problem.details["seq"] == 12


async def test_s9_redacted_log_fits_until_its_payload_is_replaced(
    database: Database, reopen: NewStore, codec: AesGcmCodec | None
) -> None:
    await talked(reopen, codec)
    rows = await database.rows()
    one, two = [seq for seq, row in rows.items() if row["kind"] == "input_admitted"][2:4]
    async with opened(reopen, codec, worker=False) as rt:
        for seq in (one, two):
            await rt.get_session("s").redact(seq)
    assert await fault(reopen, codec) is None
    rows = await database.rows()
    await put(database, one, "data", rows[two]["data"])
    problem = await fault(reopen, codec)
    assert problem is not None
    assert problem.details["seq"] == one


async def test_s9_digest_of_a_log_finds_an_older_copy(
    database: Database, reopen: NewStore, codec: AesGcmCodec | None
) -> None:
    await talked(reopen, codec)
    async with opened(reopen, codec) as rt:
        older = await core_of(rt).store.check_log(STREAM)
        await rt.get_session("s").ask("one more")
        newer = await core_of(rt).store.check_log(STREAM)
    assert older != newer
    assert (await database.rows())[len(await database.rows())]["digest"].hex() == newer
