"""Reading connections: point reads on the event loop, a few threads for longer reads."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from perdure.store.shapes import Counters
from perdure.store.sqlite.failures import failure
from perdure.store.sqlite.migrate import connect
from perdure.store.sqlite.tx import Statements

T = TypeVar("T")

BULK_THREADS = 3


class Readers:
    """A pool of `query_only` connections."""

    def __init__(self, path: Path, counters: Counters) -> None:
        self._path = path
        self._counters = counters
        self._lock = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        self._pool = ThreadPoolExecutor(BULK_THREADS, thread_name_prefix="perdure-reader")

    def point(self, read: Callable[[Statements], T]) -> T:
        """Read a few rows on the calling thread: a thread hop would cost more than the read."""
        return self._with_connection(read)

    def here(self, read: Callable[[Statements], T]) -> T:
        """Read a few rows in one consistent view on the calling thread."""
        return self._consistent(read)

    async def bulk(self, read: Callable[[Statements], T]) -> T:
        """Read any number of rows in one consistent view on a reader thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._consistent, read)

    async def blocking(self, work: Callable[[], T]) -> T:
        """Something else that must not block the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _consistent(self, read: Callable[[Statements], T]) -> T:
        def in_one_view(statements: Statements) -> T:
            statements.connection.execute("BEGIN")
            try:
                return read(statements)
            finally:
                statements.connection.execute("COMMIT")

        return self._with_connection(in_one_view)

    def _with_connection(self, read: Callable[[Statements], T]) -> T:
        connection = self._borrow()
        try:
            result = read(Statements(connection, self._counters))
        except sqlite3.Error as problem:
            connection.close()  # the next read opens a new connection
            raise failure(problem, self._path) from problem
        except BaseException:
            self._give_back(connection)
            raise
        self._give_back(connection)
        return result

    def _borrow(self) -> sqlite3.Connection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        try:
            return connect(self._path, read_only=True)
        except sqlite3.Error as problem:
            raise failure(problem, self._path) from problem

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            self._idle.append(connection)

    def close(self) -> None:
        """Wait for running reads, and close every connection."""
        self._pool.shutdown()
        with self._lock:
            while self._idle:
                self._idle.pop().close()
