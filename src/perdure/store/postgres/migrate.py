"""Opening a database: is it ours, is it not newer, may we write, bring it forward.

Migrations expand first and contract two releases later. Each says from which schema on code can work with its result:
old and new workers share a store during a rolling upgrade. They run under a lock, in one transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perdure.errors import Code, Error
from perdure.store.postgres.address import Address
from perdure.store.postgres.schema import migrations
from perdure.store.postgres.tx import Session
from perdure.store.release import THIS, Migration, Release
from perdure.store.steps import SchemaState, Step


@dataclass(frozen=True, slots=True)
class Version:
    """What a database says about itself; version 0 is one without a store in it."""

    version: int
    works_from: int = 0
    id: str = ""


async def look(on: Session, address: Address) -> Version:
    """What is there, read only.

    Raises:
        Error: `store_not_ours` for a schema that others use.
    """
    exists, _, others = await on.one("store_exists", address.schema)
    if exists:
        return await read_version(on)
    if others:
        raise Error(
            Code.STORE_NOT_OURS,
            f"the schema {address.schema} belongs to another application; it was not touched",
            because=f"it has {others} tables and none of them is ours",
            hint="name another one in the address: ?schema=…",
            place=address.shown,
        )
    return Version(0)


async def read_version(on: Session) -> Version:
    """The row that every store has."""
    id, version, works_from = await on.one("store_read")
    return Version(version, works_from, id)


async def prepare(on: Session, address: Address, release: Release = THIS) -> Version:
    """Check that the database is a store of ours (or none yet) which we may write, and migrate it forward.

    Raises:
        Error: `store_read_only`, `store_not_ours`, `store_newer` or `store_access_denied`.
    """
    known = migrations(address.schema, release)
    await _refuse_replica(on, address)
    found = await look(on, address)
    if found.version < len(known):
        async with on.transaction():
            await on.all("migration_lock", address.schema)
            found = await look(on, address)  # again, under the lock: another process may have been here
            await _migrate(on, address, found, known)
            found = await read_version(on)
    if found.works_from > len(known):
        raise _newer(address, found, len(known))
    await _refuse_without_rights(on, address)
    return found


async def schema_state(on: Session, address: Address, release: Release = THIS) -> SchemaState:
    """How far a database is. Nothing is changed.

    Raises:
        Error: `store_not_ours` or `store_newer`.
    """
    known = migrations(address.schema, release)
    found = await look(on, address)
    if found.works_from > len(known):
        raise _newer(address, found, len(known))
    left = tuple(Step(migration.name, migration.sql) for migration in known[found.version :])
    return SchemaState(f"{address.shown}, schema {address.schema}", found.version, len(known), left)


async def _refuse_replica(on: Session, address: Address) -> None:
    _, read_only, _ = await on.one("store_exists", address.schema)
    if read_only:
        raise Error(
            Code.STORE_READ_ONLY,
            "the store cannot be written",
            because="this server is a replica, or its transactions are read-only",
            hint="connect to the primary; target_session_attrs=read-write in the address finds it among several hosts",
            place=address.shown,
        )


async def _migrate(on: Session, address: Address, found: Version, known: Sequence[Migration]) -> None:
    if found.version >= len(known):
        return
    if found.version == 0:
        await on.script(f"CREATE SCHEMA IF NOT EXISTS {address.schema}")
    for migration in known[found.version :]:
        await on.script(migration.sql)
    works_from = max([found.works_from, *(migration.works_from for migration in known[found.version :])])
    await on.all("store_write", len(known), works_from)


async def _refuse_without_rights(on: Session, address: Address) -> None:
    barred = [name for (name,) in await on.all("store_rights", address.schema)]
    if barred:
        raise Error(
            Code.STORE_ACCESS_DENIED,
            "this user may not use the tables of the store",
            because=f"it needs to read and write {', '.join(barred[:4])}{', …' if len(barred) > 4 else ''}",
            hint=f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {address.schema} TO this user;"
            f" GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA {address.schema} TO this user",
            place=address.shown,
        )


def _newer(address: Address, found: Version, known: int) -> Error:
    return Error(
        Code.STORE_NEWER,
        f"the store has schema version {found.version}; this version of perdure knows up to {known}",
        because=f"it was changed by a later one, and only code from schema {found.works_from} on can use it",
        hint="upgrade perdure",
        place=address.shown,
    )
