"""The store in a Postgres database, shared by workers on many machines."""

from perdure.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
