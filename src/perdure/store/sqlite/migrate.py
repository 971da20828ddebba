"""Opening a database file: refuse foreign and newer files before any change, then migrate forward."""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeVar

from perdure.errors import Code, Error
from perdure.store.private import make_file
from perdure.store.release import THIS, Migration, Release
from perdure.store.sqlite.failures import LOCKED_AFTER_S, failure, is_busy
from perdure.store.sqlite.schema import APPLICATION_ID, migrations, statements
from perdure.store.sqlite.write_lock import WriteLock, may_checkpoint, patiently, pause
from perdure.store.steps import PendingMigration, SchemaState

Synchronous = Literal["FULL", "NORMAL"]
T = TypeVar("T")


def connect(path: Path, *, synchronous: Synchronous = "FULL", read_only: bool = False) -> sqlite3.Connection:
    """Open a connection with Perdure's settings. Writers use `patiently`, so the driver's own lock wait is off."""
    wait_s = LOCKED_AFTER_S if read_only else 0
    make_file(path)
    connection = sqlite3.connect(
        path, timeout=wait_s, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    try:
        for pragma in _pragmas(synchronous, read_only):
            _set(connection, pragma, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _set(connection: sqlite3.Connection, pragma: str, path: Path) -> None:
    # A pragma reads the file first, and another process may be creating the store in it.
    patiently(lambda: connection.execute(f"PRAGMA {pragma}"), path)


def _pragmas(synchronous: Synchronous, read_only: bool) -> list[str]:
    pragmas = ["trusted_schema = OFF", "cell_size_check = ON"]  # the file may come from a stranger
    if read_only:
        return [*pragmas, "query_only = 1"]
    pragmas += [f"synchronous = {synchronous}", "foreign_keys = 1", "secure_delete = ON", "wal_autocheckpoint = 0"]
    if sys.platform == "darwin":  # a plain fsync does not reach the disk there
        pragmas += ["fullfsync = 1", "checkpoint_fullfsync = 1"]
    return pragmas


def empty_wal(path: Path, connection: sqlite3.Connection, *, limit_s: float = 5.0) -> bool:
    """Move the write-ahead log into the file and truncate it. Return False if readers prevented that all the time."""
    give_up, lock = time.monotonic() + limit_s, WriteLock(path)
    try:
        while may_checkpoint() and time.monotonic() < give_up:
            with lock.held():
                busy = truncate(connection)
            if not busy:
                return True
            pause()
    finally:
        lock.close()
    return False


def truncate(connection: sqlite3.Connection) -> bool:
    """Try once to move the write-ahead log into the file and truncate it. The caller holds the lock of the file.

    Return whether a reader prevented it.
    """
    try:
        (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.OperationalError as problem:
        if not is_busy(problem):
            raise
        return True
    return bool(busy)


def prepare(path: Path, connection: sqlite3.Connection, release: Release = THIS) -> None:
    """Check that a file is a Perdure store or empty, put it in WAL mode and migrate it forward.

    The caller holds the lock of the file. A newer store is used unchanged if its minimum code schema allows this
    version.
    """
    known = migrations(release)
    patiently(lambda: _look_once(path, connection, known), path)
    mode = patiently(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchone()[0], path)
    if mode != "wal":
        raise Error(
            Code.STORE_UNAVAILABLE,
            "the store cannot keep a write-ahead log here",
            because=f"the file system allows only journal mode {mode}",
            hint="put the file on a local disk",
            path=str(path),
        )
    patiently(lambda: connection.execute("BEGIN IMMEDIATE"), path)  # fails without write access
    try:
        _migrate(path, connection, known)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def inspect(path: Path, release: Release = THIS) -> SchemaState:
    """Return a file's schema state, without changing the file.

    Raises:
        Error: `store_not_ours` or `store_newer`.
    """
    known = migrations(release)
    try:
        connection = connect(path, read_only=True)
        try:
            version, _ = _look_once(path, connection, known)
        finally:
            connection.close()
    except sqlite3.Error as problem:
        raise failure(problem, path) from problem
    left = tuple(PendingMigration(migration.name, migration.sql) for migration in known[version:])
    return SchemaState(str(path), version, len(known), left)


def _migrate(path: Path, connection: sqlite3.Connection, known: Sequence[Migration]) -> None:
    version, min_code_schema = _look(
        path, connection, known
    )  # again, under the lock: another process may have migrated it
    if version >= len(known):
        return
    for migration in known[version:]:
        for statement in statements(migration.sql):
            connection.execute(statement)
    min_code_schema = max([min_code_schema, *(migration.min_code_schema for migration in known[version:])])
    connection.execute("INSERT OR REPLACE INTO store (one, min_code_schema) VALUES (1, ?)", (min_code_schema,))
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {len(known)}")


def _look_once(path: Path, connection: sqlite3.Connection, known: Sequence[Migration]) -> tuple[int, int]:
    """Run `_look` in one read transaction: a store being created by another process could look foreign in between."""
    connection.execute("BEGIN")
    try:
        return _look(path, connection, known)
    finally:
        if connection.in_transaction:
            connection.execute("COMMIT")


def _look(path: Path, connection: sqlite3.Connection, known: Sequence[Migration]) -> tuple[int, int]:
    """Return the schema version of a file and its minimum code schema, both 0 for an empty file.

    Raises:
        Error: `store_not_ours`; `store_newer` if this version is too old for the file.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application == APPLICATION_ID:
        _refuse_programs(path, connection)
        min_code_schema = _min_code_schema(connection, version) if version else 0
        if min_code_schema > len(known):
            raise _newer(path, version, min_code_schema, len(known))
        return version, min_code_schema
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application or version or tables:
        raise Error(
            Code.STORE_NOT_OURS,
            "the file is a database of another application; it was not touched",
            because=f"the file has application id {application:#x}, and {tables} tables and indexes",
            hint="choose another path for the store",
            path=str(path),
        )
    return 0, 0


def _refuse_programs(path: Path, connection: sqlite3.Connection) -> None:
    """Refuse a file whose schema runs statements of its author: a store has no trigger, view or virtual table."""
    strange = "SELECT type, name FROM sqlite_master WHERE coalesce(rootpage, 0) = 0 LIMIT 1"
    if (found := connection.execute(strange).fetchone()) is None:
        return
    kind, name = found
    raise Error(
        Code.STORE_NOT_OURS,
        "the file contains more than a store; nothing was run or written",
        because=f"the schema has a {'virtual table' if kind == 'table' else kind} named {name!r:.60}",
        hint="use a file from a source that you trust, or import an export of its sessions",
        path=str(path),
    )


def _min_code_schema(connection: sqlite3.Connection, version: int) -> int:
    (told,) = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'store'").fetchone()
    return connection.execute("SELECT min_code_schema FROM store").fetchone()[0] if told else version


def _newer(path: Path, version: int, min_code_schema: int, known: int) -> Error:
    return Error(
        Code.STORE_NEWER,
        f"the store has schema version {version}; this version of perdure knows up to {known}",
        because=f"a later version of perdure migrated the store, which requires code from schema {min_code_schema} on",
        hint="upgrade perdure",
        path=str(path),
    )
