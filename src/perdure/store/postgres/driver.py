"""The driver as we use it: what it raises, and what we ask of a connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, cast

import asyncpg  # pyright: ignore[reportMissingTypeStubs] - it has none

Cells: TypeAlias = Any
"""What a query yields: a row whose types the query decides. Callers unpack it at once."""

PostgresError = asyncpg.PostgresError
InterfaceError = asyncpg.InterfaceError
InternalClientError = asyncpg.InternalClientError
"""What the driver raises when the server ended the session while nobody was listening."""
UniqueViolationError = asyncpg.UniqueViolationError
ForeignKeyViolationError = asyncpg.ForeignKeyViolationError

TROUBLE = (OSError, TimeoutError, EOFError, PostgresError, InterfaceError, InternalClientError)
"""Whatever a statement or a connection can raise."""


class Connection(Protocol):
    """What we use of the driver's connection."""

    async def fetch(self, query: str, *args: object) -> list[Cells]:
        """Run a prepared statement."""
        ...

    async def execute(self, query: str) -> str:
        """Run a script."""
        ...

    async def add_listener(self, channel: str, callback: Callable[[object, int, str, str], None]) -> None:
        """Be told of notifications."""
        ...

    async def close(self, *, timeout: float | None = None) -> None:
        """Say goodbye."""
        ...

    def terminate(self) -> None:
        """Hang up."""
        ...

    def is_closed(self) -> bool:
        """Whether it cannot be used any more."""
        ...


async def dial(
    dsn: str, *, settings: Mapping[str, str], cached: int, connect_s: float, command_s: float | None
) -> Connection:
    """Open a connection; `cached` is how many prepared statements it keeps."""
    driver: Any = asyncpg
    opened = await driver.connect(
        dsn,
        timeout=connect_s,
        command_timeout=command_s,
        statement_cache_size=cached,
        max_cached_statement_lifetime=0,
        server_settings=dict(settings),
    )
    return cast("Connection", opened)


def is_unfit(problem: BaseException) -> bool:
    """Whether the driver could not even encode a value."""
    return isinstance(problem, InterfaceError) and isinstance(problem, ValueError)
