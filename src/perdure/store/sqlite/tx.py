"""The context of one transaction: named statements, clock, leases, and actions to run once it is durable."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from perdure.clock import Clock
from perdure.store.digest_chain import DigestChain
from perdure.store.shapes import Counters
from perdure.store.sqlite.leases import SqliteLeases
from perdure.store.sqlite.schema import QUERIES

Cells: TypeAlias = Any
"""A row of a cursor: a tuple with types given by the query. Callers unpack it at once."""

Parameters: TypeAlias = Sequence[object] | Mapping[str, object]


class Statements:
    """Named queries on a connection."""

    def __init__(self, connection: sqlite3.Connection, counters: Counters) -> None:
        self.connection = connection
        self._counters = counters

    def run(self, name: str, parameters: Parameters = ()) -> sqlite3.Cursor:
        """Run a statement for its effect."""
        self._counters.statements += 1
        return self.connection.execute(QUERIES[name], parameters)

    def many(self, name: str, rows: Iterable[Sequence[object]]) -> None:
        """Run a statement once per row."""
        self._counters.statements += 1
        self.connection.executemany(QUERIES[name], rows)

    def one(self, name: str, parameters: Parameters = ()) -> Cells:
        """Return the first row, or None."""
        return self.run(name, parameters).fetchone()

    def all(self, name: str, parameters: Parameters = ()) -> list[Cells]:
        """Return all rows."""
        return self.run(name, parameters).fetchall()


class Tx(Statements):
    """A write transaction in progress, which may be rolled back and repeated."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        counters: Counters,
        clock: Clock,
        leases: SqliteLeases,
        chain: DigestChain,
    ) -> None:
        super().__init__(connection, counters)
        self.clock = clock
        self.chain = chain
        self.leases = leases
        self.once_durable: list[Callable[[], None]] = []
        self.plans = 0
