"""The schema state of a store and its pending migrations, as shown by `perdure db` before a change."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PendingMigration:
    """A migration that has not been applied."""

    name: str
    sql: str


@dataclass(frozen=True, slots=True)
class SchemaState:
    """The schema version of a store (0 for an empty one) and, as `known`, the version after all migrations."""

    place: str
    version: int
    known: int
    pending: tuple[PendingMigration, ...] = ()
