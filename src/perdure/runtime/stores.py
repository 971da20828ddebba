"""The store of a URL or path: a database server, a file, or the memory of this process."""

from __future__ import annotations

import os
import re
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


_BROKEN_URL = re.compile(r"[a-z][a-z0-9+.-]+:|:memory:$|(memory|sqlite|postgres|postgresql)$", re.IGNORECASE)
"""Texts without `://` that look like a broken URL and would otherwise become odd file names."""


def store_for(url: str | os.PathLike[str] | None, clock: Clock, *, lease_ms: int) -> Store:
    """Return the store of a URL or a bare path. The default is `PERDURE_DB`, then a file below `./.perdure`.

    Raises:
        Error: `store_url_invalid`.
    """
    text = address_of(url or os.environ.get("PERDURE_DB") or DEFAULT_URL)
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
    raise _no_address(text)


def address_of(given: str | os.PathLike[str]) -> str:
    """Return the URL of a store. A bare path becomes the URL of a file.

    Raises:
        Error: `store_url_invalid` for a URL without its `//`.
    """
    text = os.fspath(given)
    if "://" in text:
        return text
    if _BROKEN_URL.match(text):
        raise _no_address(text)
    return f"sqlite:///{text}"


def _no_address(text: str) -> Error:
    return Error(
        Code.STORE_URL_INVALID,
        f"invalid store URL {_shown(text)!r}",
        because="a store is a path, sqlite:///path, postgresql://user@host/database or memory://",
        hint="sqlite:///app.db is a file in the current directory, sqlite:////var/app.db an absolute path",
    )


def _shown(text: str) -> str:
    """Return a URL without what may hold a password: of another scheme than a file's, only the scheme is known."""
    scheme = text.partition(":")[0]
    return text if scheme in ("sqlite", "memory", text) and "@" not in text else f"{scheme}:…"  # threat: S21


async def schema_of(url: str, clock: Clock) -> SchemaState:
    """Return the schema version of a store and the migrations left to do. Changes nothing.

    Raises:
        Error: `store_url_invalid` for a store without a schema; the error of a store that cannot be opened.
    """
    if url.startswith(POSTGRES):
        return await _postgres(url, clock, lease_ms=0).schema()
    if url.startswith("sqlite:///"):
        from perdure.store.sqlite.migrate import inspect

        return inspect(Path(url.removeprefix("sqlite:///")))
    raise Error(Code.STORE_URL_INVALID, f"{_shown(url)!r} has no schema", hint="name a file or a database server")


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
