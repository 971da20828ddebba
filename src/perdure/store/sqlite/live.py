"""The side channel of a SQLite store: a second file in the same folder.

The file is created when the first live text is stored. While no process uses the store, the file may be deleted."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from perdure.ids import StreamId
from perdure.store.live import KEPT_MS, Piece
from perdure.store.private import make_file
from perdure.store.sqlite.failures import failure
from perdure.store.sqlite.migrate import empty_wal
from perdure.store.sqlite.write_lock import WriteLock, may_checkpoint

T = TypeVar("T")

LOCK_S = 1.0
"""Live text is dropped rather than late."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS live (
    id INTEGER PRIMARY KEY,
    stream TEXT NOT NULL, turn TEXT NOT NULL, effect TEXT NOT NULL, run INTEGER NOT NULL, seq INTEGER NOT NULL,
    start INTEGER NOT NULL, text TEXT NOT NULL, thinking INTEGER NOT NULL, at INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS live_stream ON live (stream);
CREATE INDEX IF NOT EXISTS live_at ON live (at);
"""
_NEVER = "PRAGMA wal_autocheckpoint = 0;"
_COLUMNS = "stream, turn, effect, run, seq, start, text, thinking"


class SqliteChannel:
    """A side channel in a separate file and thread, so that no commit of the store waits for it."""

    def __init__(self, store: Path) -> None:
        self._path = store.with_name(f"{store.name}-live")
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None
        self._lock = WriteLock(self._path)

    async def put(self, pieces: Sequence[Piece], *, over: Sequence[tuple[StreamId, int]] = (), now: int) -> None:
        """Delete the pieces of ended calls, then add pieces, in one transaction without a disk sync."""
        rows = [(p.stream, p.turn, p.effect, p.run, p.seq, p.start, p.text, p.thinking, now) for p in pieces]

        def write(on: sqlite3.Connection) -> None:
            with self._lock.held(LOCK_S):  # the commit may move the write-ahead log
                on.execute("BEGIN IMMEDIATE")
                try:
                    on.executemany("DELETE FROM live WHERE stream = ? AND run <= ?", over)
                    on.executemany(f"INSERT INTO live ({_COLUMNS}, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
                    on.execute("DELETE FROM live WHERE at < ?", (now - KEPT_MS,))
                    on.execute("COMMIT")
                except BaseException:
                    on.execute("ROLLBACK")
                    raise

        await self._do(write, make=True)

    async def read(self, stream: StreamId) -> tuple[Piece, ...]:
        """Return the pieces of a stream."""
        query = f"SELECT {_COLUMNS} FROM live WHERE stream = ? ORDER BY run, seq, start"
        found = await self._do(lambda on: on.execute(query, (stream,)).fetchall(), make=False)
        return tuple(Piece(*row[:-1], thinking=bool(row[-1])) for row in found or ())

    async def forget(self, stream: StreamId) -> None:
        """Delete all pieces of a stream, from the file and its write-ahead log."""

        def delete(on: sqlite3.Connection) -> None:
            with self._lock.held(LOCK_S):
                on.execute("DELETE FROM live WHERE stream = ?", (stream,))
            empty_wal(self._path, on)

        await self._do(delete, make=False)

    async def _do(self, work: Callable[[sqlite3.Connection], T], *, make: bool) -> T | None:
        """Run work on the channel's thread. Return None without a file, unless `make` creates it."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="perdure-live")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._work, work, make)

    def _work(self, work: Callable[[sqlite3.Connection], T], make: bool) -> T | None:
        try:
            if self._connection is None:
                if not make and not self._path.exists():
                    return None
                with self._lock.held(LOCK_S):
                    self._connection = _connect(self._path)
            return work(self._connection)
        except sqlite3.Error as problem:
            self._drop()  # the file may have been deleted
            raise failure(problem, self._path) from problem

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def enter_child(self) -> None:
        """Leave the lock of the file to the parent of a forked process."""
        self._lock.close()

    def close(self) -> None:
        """Wait for submitted work and close the file."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.submit(self._drop)
            thread.shutdown()
        self._lock.close()


def _connect(path: Path) -> sqlite3.Connection:
    make_file(path)
    connection = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
    try:
        connection.executescript("PRAGMA trusted_schema = OFF; PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;")
        connection.executescript("PRAGMA secure_delete = ON;" + ("" if may_checkpoint() else _NEVER))  # threat: S19
        connection.executescript(_SCHEMA)
    except BaseException:
        connection.close()
        raise
    return connection
