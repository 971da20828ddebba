"""The used part of the asyncpg driver: its exceptions and a protocol of its connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, cast

import asyncpg  # pyright: ignore[reportMissingTypeStubs] - it has none

Cells: TypeAlias = Any
"""A row of a query, with types given by the query. Callers unpack it at once."""

PostgresError = asyncpg.PostgresError
InterfaceError = asyncpg.InterfaceError
InternalClientError = asyncpg.InternalClientError
"""Raised when the server ended an idle connection."""
UniqueViolationError = asyncpg.UniqueViolationError
ForeignKeyViolationError = asyncpg.ForeignKeyViolationError

TROUBLE = (OSError, TimeoutError, EOFError, PostgresError, InterfaceError, InternalClientError)
"""All exceptions that a statement or a connection can raise."""


class PgConnection(Protocol):
    """The used methods of the driver's connection."""

    async def fetch(self, query: str, *args: object) -> list[Cells]:
        """Run a prepared statement."""
        ...

    async def execute(self, query: str) -> str:
        """Run a script."""
        ...

    async def add_listener(self, channel: str, callback: Callable[[object, int, str, str], None]) -> None:
        """Call back on notifications of a channel."""
        ...

    async def close(self, *, timeout: float | None = None) -> None:
        """Close the connection gracefully."""
        ...

    def terminate(self) -> None:
        """Close the connection at once."""
        ...

    def is_closed(self) -> bool:
        """Return whether the connection is closed."""
        ...


async def dial(
    dsn: str, *, settings: Mapping[str, str], cached: int, connect_s: float, command_s: float | None
) -> PgConnection:
    """Open a connection; `cached` is the maximum number of prepared statements that it keeps."""
    driver: Any = asyncpg
    opened = await driver.connect(
        dsn,
        timeout=connect_s,
        command_timeout=command_s,
        statement_cache_size=cached,
        max_cached_statement_lifetime=0,
        server_settings=dict(settings),
    )
    return cast("PgConnection", opened)


def is_unfit(problem: BaseException) -> bool:
    """Return whether the driver could not encode a value."""
    return isinstance(problem, InterfaceError) and isinstance(problem, ValueError)
