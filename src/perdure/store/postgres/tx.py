"""Named statements on one connection, and transactions around them. One statement is one round trip."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from perdure.store.postgres.driver import Cells, PgConnection
from perdure.store.postgres.heads import Heads
from perdure.store.shapes import Counters


class PgTransaction:
    """Named queries and transactions on a connection."""

    def __init__(
        self, connection: PgConnection, queries: Mapping[str, str], counters: Counters, heads: Heads
    ) -> None:  # fmt: skip
        self.connection = connection
        self.heads = heads
        self.counters = counters
        self._queries = queries
        self.asked_at = time.monotonic()

    async def all(self, name: str, *values: object) -> list[Cells]:
        """Return all rows."""
        self.counters.statements += 1
        self.asked_at = time.monotonic()
        return await self.connection.fetch(self._queries[name], *values)

    async def one(self, name: str, *values: object) -> Cells:
        """Return the first row, or None."""
        rows = await self.all(name, *values)
        return rows[0] if rows else None

    async def script(self, sql: str) -> None:
        """Run statements that take no values."""
        self.counters.statements += 1
        self.asked_at = time.monotonic()
        await self.connection.execute(sql)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[None]:
        """Run a block in a transaction; an exception rolls it back. If the rollback fails, the connection is closed."""
        await self.script("BEGIN ISOLATION LEVEL READ COMMITTED")
        try:
            yield
        except BaseException:
            await self._roll_back()
            raise
        await self.script("COMMIT")
        self.counters.commits += 1

    @asynccontextmanager
    async def attempt(self) -> AsyncGenerator[None]:
        """Run a block in a savepoint of the transaction; an exception undoes only the block."""
        await self.script("SAVEPOINT attempt")
        try:
            yield
        except Exception:
            await self.script("ROLLBACK TO SAVEPOINT attempt")
            raise
        await self.script("RELEASE SAVEPOINT attempt")

    async def _roll_back(self) -> None:
        try:
            await self.script("ROLLBACK")
        except BaseException:
            self.connection.terminate()
            raise
