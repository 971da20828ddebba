"""Files that are not what they should be: each refusal has its code, and nothing is damaged."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from perdure.errors import Code, Error
from perdure.ids import WorkerId
from perdure.store.sqlite import SqliteStore
from perdure.store.sqlite.failures import failure
from perdure.store.sqlite.migrate import connect, prepare
from perdure.store.sqlite.schema import APPLICATION_ID, QUERIES, SCHEMA_VERSION, migrations, schema, statements
from tests.unit.store.parties import RealClock, entry, fork, opened, owned, plan

ANN = WorkerId("ann")


async def refusal_to_open(path: Path) -> Error:
    store = SqliteStore(path, RealClock())
    with pytest.raises(Error) as caught:
        await store.open()
    await store.close()
    assert caught.value.because
    assert "sqlite" not in caught.value.message.lower()
    return caught.value


def fill(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def contents(path: Path) -> bytes:
    return path.read_bytes()


def sqlite(path: Path, *sql: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for one in sql:
        connection.execute(one)
    connection.close()


async def test_a_folder_that_does_not_exist_is_created(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "store.db"
    store = await opened(path, ANN)
    await store.close()
    assert path.exists()


async def test_a_folder_that_cannot_be_created_makes_the_store_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    assert (await refusal_to_open(tmp_path / "file" / "store.db")).code is Code.STORE_UNAVAILABLE


async def test_a_folder_in_place_of_the_file_makes_the_store_unavailable(tmp_path: Path) -> None:
    assert (await refusal_to_open(tmp_path)).code is Code.STORE_UNAVAILABLE


@pytest.mark.parametrize(
    ("strange", "because"),
    [
        ("CREATE TRIGGER spy AFTER INSERT ON log BEGIN DELETE FROM log; END", "trigger named 'spy'"),
        ("CREATE VIEW spy AS SELECT * FROM log", "view named 'spy'"),
        ("CREATE VIRTUAL TABLE spy USING fts5(text)", "virtual table named 'spy'"),
    ],
)
async def test_s15_file_of_a_stranger_is_opened_distrustfully(path: Path, strange: str, because: str) -> None:
    store = await opened(path, ANN)
    await store.close()
    sqlite(path, strange)
    refusal = await refusal_to_open(path)
    assert refusal.code is Code.STORE_NOT_OURS
    assert because in (refusal.because or "")


def test_s15_functions_in_a_schema_are_not_trusted(path: Path) -> None:
    for read_only in (False, True):
        with closing(connect(path, read_only=read_only)) as connection:
            assert connection.execute("PRAGMA trusted_schema").fetchone() == (0,)


async def test_a_text_file_is_refused_untouched(path: Path) -> None:
    fill(path, b"dear diary, " * 500)
    assert (await refusal_to_open(path)).code is Code.STORE_CORRUPT
    assert contents(path) == b"dear diary, " * 500


async def test_a_damaged_store_is_reported_as_damaged(path: Path) -> None:
    store = await opened(path, ANN)
    claim = await owned(store, "one", ANN)
    for n in range(1, 200):
        await store.append(plan(claim, ANN, n, entry("x" * 500)))
    await store.close()
    damaged = bytearray(contents(path))
    pages = len(damaged) // 4096
    for page in range(pages // 2, pages):  # the log stands last; the schema is left alone
        damaged[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    fill(path, bytes(damaged))
    store = SqliteStore(path, RealClock())
    await store.open()
    with pytest.raises(Error) as caught:
        await store.read(claim.stream)
    assert caught.value.code is Code.STORE_CORRUPT
    await store.close()


async def test_check_finds_damage_that_reads_have_not_met(path: Path) -> None:
    store = await opened(path, ANN)
    await owned(store, "one", ANN)
    await store.close()
    sqlite(path, "PRAGMA writable_schema = 1", "UPDATE sqlite_master SET sql = replace(sql, 'UNIQUE', 'UNIQUE')")
    sqlite(path, "PRAGMA foreign_keys = 0", "INSERT INTO timers VALUES (999, 'orphan', 1)")
    store = SqliteStore(path, RealClock())
    await store.open()
    assert [line.what for line in await store.check() if line.status == "fail"] == ["references"]
    await store.close()


async def test_a_store_of_a_later_version_is_refused_untouched(path: Path) -> None:
    await (await opened(path, ANN)).close()
    sqlite(path, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    await (await opened(path, ANN)).close()  # a step that only expanded: this version still works, beside newer ones
    sqlite(path, f"UPDATE store SET min_code_schema = {SCHEMA_VERSION + 1}")
    before = contents(path)
    assert (await refusal_to_open(path)).code is Code.STORE_NEWER
    assert contents(path) == before


async def test_the_database_of_another_application_is_refused_untouched(path: Path) -> None:
    sqlite(path, "CREATE TABLE customers (id)", "INSERT INTO customers VALUES (1)")
    before = contents(path)
    assert (await refusal_to_open(path)).code is Code.STORE_NOT_OURS
    assert contents(path) == before


async def test_a_marked_but_empty_database_of_another_application_is_refused(path: Path) -> None:
    sqlite(path, "PRAGMA application_id = 42")
    assert (await refusal_to_open(path)).code is Code.STORE_NOT_OURS


async def test_an_empty_file_becomes_a_store(path: Path) -> None:
    fill(path, b"")
    await (await opened(path, ANN)).close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    connection.close()
    assert APPLICATION_ID.to_bytes(4) == b"PERD"


def test_store_under_creation_is_not_refused_as_foreign(path: Path) -> None:
    class Slow(sqlite3.Connection):
        """Between two of its statements another process makes the store."""

        def execute(self, sql: str, *args: object) -> sqlite3.Cursor:
            if sql == "SELECT count(*) FROM sqlite_master" and not made:
                made.append(1)
                with closing(connect(path)) as other:
                    prepare(path, other)
            return super().execute(sql, *args)  # type: ignore[arg-type]

    made: list[int] = []
    sqlite(path, "PRAGMA journal_mode = WAL")
    with closing(sqlite3.connect(path, isolation_level=None, factory=Slow)) as slow:
        prepare(path, slow)
        assert made
        assert slow.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no such permissions on this platform")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("name", ["existing.db", "new.db"])
def test_a_store_that_may_not_be_written_is_read_only(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        locked = Path(folder)
        asyncio.run(open_and_close(locked / "existing.db"))
        (locked / "existing.db").chmod(0o444)
        locked.chmod(0o555)
        child = fork(lambda: _refused_as_read_only(locked / name))
        _, status = os.waitpid(child, 0)
        locked.chmod(0o755)
        assert os.waitstatus_to_exitcode(status) == 0


async def open_and_close(path: Path) -> None:
    store = SqliteStore(path, RealClock())
    await store.open()
    await store.close()


def _refused_as_read_only(path: Path) -> int:
    if os.getuid() == 0:
        os.setuid(65534)  # root may write everywhere
    try:
        asyncio.run(open_and_close(path))
    except Error as error:
        return 0 if error.code is Code.STORE_READ_ONLY else 2
    return 1


async def test_a_full_disk_refuses_the_plan_and_the_store_goes_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connections: list[sqlite3.Connection] = []
    remember(connections, monkeypatch)
    store = await opened(path, ANN)
    claim = await owned(store, "one", ANN)
    (pages,) = connections[-1].execute("PRAGMA page_count").fetchone()
    connections[-1].execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(Error) as caught:
        await store.append(plan(claim, ANN, 1, entry("x" * 100_000)))
    assert caught.value.code is Code.STORE_FULL
    connections[-1].execute("PRAGMA max_page_count = 1000000")
    receipt = await store.append(plan(claim, ANN, 1, entry("x" * 100_000)))
    assert (receipt.first_seq, receipt.replayed) == (2, False)
    await store.close()


def remember(connections: list[sqlite3.Connection], monkeypatch: pytest.MonkeyPatch) -> None:
    def connecting(path: Path, **options: object) -> sqlite3.Connection:
        connection = connect(path, **options)  # pyright: ignore[reportArgumentType] - passed through
        connections.append(connection)
        return connection

    monkeypatch.setattr("perdure.store.sqlite.store.connect", connecting)


def coded(code: int, name: str) -> sqlite3.OperationalError:
    problem = sqlite3.OperationalError("the driver's words")
    problem.sqlite_errorcode = code
    problem.sqlite_errorname = name
    return problem


@pytest.mark.parametrize(
    ("driver_code", "ours"),
    [
        (sqlite3.SQLITE_READONLY_DBMOVED, Code.STORE_READ_ONLY),
        (sqlite3.SQLITE_READONLY, Code.STORE_READ_ONLY),
        (sqlite3.SQLITE_FULL, Code.STORE_FULL),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, Code.STORE_LOCKED),
        (sqlite3.SQLITE_LOCKED, Code.STORE_LOCKED),
        (sqlite3.SQLITE_CORRUPT_INDEX, Code.STORE_CORRUPT),
        (sqlite3.SQLITE_NOTADB, Code.STORE_CORRUPT),
        (sqlite3.SQLITE_IOERR_FSYNC, Code.STORE_UNAVAILABLE),
        (sqlite3.SQLITE_CANTOPEN, Code.STORE_UNAVAILABLE),
        (sqlite3.SQLITE_TOOBIG, Code.STORE_FAILED),
    ],
)
def test_every_driver_error_has_a_code_of_ours(path: Path, driver_code: int, ours: Code) -> None:
    error = failure(coded(driver_code, "NAME"), path)
    assert error.code is ours
    assert (error.because, error.details["reason"]) == ("the driver's words", "NAME")


def tables(script: Callable[[sqlite3.Connection], object]) -> list[tuple[str, str, str]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        script(connection)
        found = connection.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
        return [(kind, name, " ".join(sql.split())) for kind, name, sql in found]


def test_all_migrations_lead_to_the_schema_file() -> None:
    def migrate(connection: sqlite3.Connection) -> None:
        for migration in migrations():
            for statement in statements(migration.sql):
                connection.execute(statement)

    migrated = tables(migrate)
    assert len(migrated) > 10
    assert migrated == tables(lambda connection: connection.executescript(schema()))


def test_every_migration_file_is_listed() -> None:
    from importlib.resources import files

    names = [file.name for file in files("perdure.store.sqlite").joinpath("migrations").iterdir()]
    assert len([name for name in names if name.endswith(".sql")]) == SCHEMA_VERSION


def test_every_named_query_is_valid_for_the_schema() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(schema())
        for name, sql in QUERIES.items():
            names = [
                "stream",
                "tenant",
                "kind",
                "name",
                "agent",
                "format",
                "now",
                "id",
                "waited",
                "worker",
                "limit",
                "queue",
                "priority",
                "quarantined",
                "tag",
                "before",
                "key",
                "streams",
            ]
            values = dict.fromkeys(names, 1)
            lists = dict.fromkeys(["alive", "driving", "queues", "recent", "without", "only"], "[]") | {"agents": "{}"}
            holes = values | lists if ":" in sql else (1,) * sql.count("?")
            connection.execute(f"EXPLAIN {sql}", holes)
            assert name == name.lower()


@pytest.mark.parametrize("query", ["claimable", "claimable_of"])
def test_a_look_for_work_does_not_go_through_sessions_that_have_none(query: str) -> None:
    holes = defaultdict[str, object](lambda: 1, agents="{}", **dict.fromkeys(("alive", "driving", "only"), "[]"))
    holes |= dict.fromkeys(("queues", "recent", "without"), "[]")
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(schema())
        plan = [step for *_, step in connection.execute(f"EXPLAIN QUERY PLAN {QUERIES[query]}", holes)]
    searched = {step.split()[1] for step in plan if step.startswith("SEARCH")}
    scanned = {step.split()[1] for step in plan if step.startswith("SCAN") and "VIRTUAL" not in step}
    assert {"s", "p"} <= searched, "sessions are found by their number or name"
    assert not scanned & {"s", "p", "t", "streams", "timers", "log"}, plan


async def test_connection_uses_write_ahead_log_and_full_sync(store: SqliteStore, path: Path) -> None:
    connection = connect(path)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert connection.execute("PRAGMA foreign_keys").fetchone() == (1,)
    connection.close()
    assert {line.status for line in await store.check()} == {"ok"}


async def test_the_last_close_leaves_one_compact_file(path: Path) -> None:
    store = await opened(path, ANN)
    claim = await owned(store, "one", ANN)
    await store.append(plan(claim, ANN, 1, entry("a")))
    await store.deregister(ANN)
    await store.close()
    found = {one.name: one.stat().st_size for one in path.parent.iterdir()}
    assert sorted(found) == ["store.db", "store.db-lock"]
    assert found["store.db-lock"] == 0


async def test_calls_before_open_and_after_close_are_refused(path: Path) -> None:
    store = SqliteStore(path, RealClock())
    for _ in range(2):
        with pytest.raises(Error) as caught:
            await store.workers()
        assert caught.value.code is Code.RUNTIME_CLOSED
        with pytest.raises(Error) as caught:
            await store.renew(ANN)
        assert caught.value.code is Code.RUNTIME_CLOSED
        await store.open()
        await store.close()
