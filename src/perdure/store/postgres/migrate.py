"""Opening a database: refuse foreign, newer and read-only ones, then migrate forward.

Migrations expand first and contract two releases later. Each names the oldest schema whose code can use its result, so
old and new workers share a store during a rolling upgrade. Migrations run under a lock, in one transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perdure.errors import Code, Error
from perdure.store.postgres.address import Address
from perdure.store.postgres.schema import migrations
from perdure.store.postgres.tx import PgTransaction
from perdure.store.release import THIS, Migration, Release
from perdure.store.steps import PendingMigration, SchemaState


@dataclass(frozen=True, slots=True)
class Version:
    """The schema version of a database, 0 without a store, with its minimum code schema and its store id."""

    version: int
    min_code_schema: int = 0
    id: str = ""


async def look(on: PgTransaction, address: Address) -> Version:
    """Read the version of a database without changing anything.

    Raises:
        Error: `store_not_ours` for a schema of another application.
    """
    exists, _, others = await on.one("store_exists", address.schema)
    if exists:
        return await read_version(on)
    if others:
        raise Error(
            Code.STORE_NOT_OURS,
            f"the schema {address.schema} belongs to another application; it was not touched",
            because=f"the schema has {others} tables and none of them belongs to perdure",
            hint="choose another schema in the address: ?schema=…",
            place=address.shown,
        )
    return Version(0)


async def read_version(on: PgTransaction) -> Version:
    """Read the version row of a store."""
    id, version, min_code_schema = await on.one("store_read")
    return Version(version, min_code_schema, id)


async def prepare(on: PgTransaction, address: Address, release: Release = THIS) -> Version:
    """Check that the database contains a writable Perdure store or none, and migrate it forward.

    Raises:
        Error: `store_read_only`, `store_not_ours`, `store_newer` or `store_access_denied`.
    """
    known = migrations(address.schema, release)
    await _refuse_replica(on, address)
    found = await look(on, address)
    if found.version < len(known):
        async with on.transaction():
            await on.all("migration_lock", address.schema)
            found = await look(on, address)  # again, under the lock: another process may have migrated it
            await _migrate(on, address, found, known)
            found = await read_version(on)
    if found.min_code_schema > len(known):
        raise _newer(address, found, len(known))
    await _refuse_without_rights(on, address)
    return found


async def schema_state(on: PgTransaction, address: Address, release: Release = THIS) -> SchemaState:
    """Return the schema state of a database, without changing it.

    Raises:
        Error: `store_not_ours` or `store_newer`.
    """
    known = migrations(address.schema, release)
    found = await look(on, address)
    if found.min_code_schema > len(known):
        raise _newer(address, found, len(known))
    left = tuple(PendingMigration(migration.name, migration.sql) for migration in known[found.version :])
    return SchemaState(f"{address.shown}, schema {address.schema}", found.version, len(known), left)


async def _refuse_replica(on: PgTransaction, address: Address) -> None:
    _, read_only, _ = await on.one("store_exists", address.schema)
    if read_only:
        raise Error(
            Code.STORE_READ_ONLY,
            "the store cannot be written",
            because="this server is a replica, or its transactions are read-only",
            hint="connect to the primary; target_session_attrs=read-write in the address finds it among several hosts",
            place=address.shown,
        )


async def _migrate(on: PgTransaction, address: Address, found: Version, known: Sequence[Migration]) -> None:
    if found.version >= len(known):
        return
    if found.version == 0:
        await on.script(f"CREATE SCHEMA IF NOT EXISTS {address.schema}")
    for migration in known[found.version :]:
        await on.script(migration.sql)
    min_code_schema = max([found.min_code_schema, *(migration.min_code_schema for migration in known[found.version :])])
    await on.all("store_write", len(known), min_code_schema)


async def _refuse_without_rights(on: PgTransaction, address: Address) -> None:
    barred = [name for (name,) in await on.all("store_rights", address.schema)]
    if barred:
        raise Error(
            Code.STORE_ACCESS_DENIED,
            "this user may not use the tables of the store",
            because=f"read and write access is missing for {', '.join(barred[:4])}{', …' if len(barred) > 4 else ''}",
            hint=f"`GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {address.schema} TO this user;"
            f" GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA {address.schema} TO this user`",
            place=address.shown,
        )


def _newer(address: Address, found: Version, known: int) -> Error:
    return Error(
        Code.STORE_NEWER,
        f"the store has schema version {found.version}; this version of perdure knows up to {known}",
        because="a later version of perdure migrated the store, "
        f"which requires code from schema {found.min_code_schema} on",
        hint="upgrade perdure",
        place=address.shown,
    )
