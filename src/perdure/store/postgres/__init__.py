"""The store in a Postgres database: many machines, any worker carries on any session."""

from perdure.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
