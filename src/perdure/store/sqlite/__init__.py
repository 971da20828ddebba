"""The store in one SQLite file: no server, several processes, full durability."""

from perdure.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
