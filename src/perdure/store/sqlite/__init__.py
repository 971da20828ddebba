"""The store in one SQLite file, durable and shared by several processes without a server."""

from perdure.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
