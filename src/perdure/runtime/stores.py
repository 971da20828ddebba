"""From a store URL to a store: a database server, a file, or this process's memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.clock import Clock
from perdure.errors import Code, Error
from perdure.store.protocol import Store
from perdure.store.steps import SchemaState

if TYPE_CHECKING:
    from perdure.store.postgres.store import PostgresStore

DEFAULT_URL = "sqlite:///.perdure/dev.db"
POSTGRES = ("postgresql://", "postgres://")


def store_for(url: str | None, clock: Clock, *, lease_ms: int) -> Store:
    """The store a URL names; without one, `PERDURE_STORE__URL` or a file below `./.perdure`.

    Raises:
        Error: `store_url_invalid`.
    """
    text = url or os.environ.get("PERDURE_STORE__URL") or DEFAULT_URL
    if text == "memory://":
        from perdure.store.memory.store import MemoryStore

        return MemoryStore(clock, lease_ms=lease_ms)
    if text.startswith("sqlite:///"):
        from perdure.store.sqlite.store import SqliteStore

        path = text.removeprefix("sqlite:///")
        if path:
            return SqliteStore(Path(path), clock, lease_ms=lease_ms)
    if text.startswith(POSTGRES):
        return _postgres(text, clock, lease_ms)
    raise Error(
        Code.STORE_URL_INVALID,
        f"{text!r} does not name a store",
        because="the address must be sqlite:///path/to/file.db, postgresql://user@host/database or memory://",
        hint="sqlite:///app.db is a file in the current directory, sqlite:////var/app.db an absolute path",
    )


async def schema_of(url: str, clock: Clock) -> SchemaState:
    """How far the schema of a store is, and what is left to do. Nothing is changed.

    Raises:
        Error: `store_url_invalid` for one that has no schema; whatever keeps it from being looked at.
    """
    if url.startswith(POSTGRES):
        return await _postgres(url, clock, lease_ms=0).schema()
    if url.startswith("sqlite:///"):
        from perdure.store.sqlite.migrate import inspect

        return inspect(Path(url.removeprefix("sqlite:///")))
    raise Error(Code.STORE_URL_INVALID, f"{url!r} has no schema", hint="name a file or a database server")


def _postgres(url: str, clock: Clock, lease_ms: int) -> PostgresStore:
    try:
        from perdure.store.postgres.store import PostgresStore
    except ImportError as missing:
        raise Error(
            Code.STORE_UNAVAILABLE,
            "the driver for this store is not installed",
            because=str(missing),
            hint="pip install 'perdure[postgres]'",
        ) from missing
    return PostgresStore(url, clock, lease_ms=lease_ms)
