"""The schema and its statements: migrations lead to it, every statement fits it, and looking for work stays cheap."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from importlib.resources import files

import pytest

from perdure.errors import Code, Error
from perdure.ids import DEFAULT_TENANT, SessionId, WorkerId, session_stream
from perdure.store.postgres import PostgresStore
from perdure.store.postgres.address import parse
from perdure.store.postgres.driver import Cells, PgConnection, dial
from perdure.store.postgres.schema import SCHEMA_VERSION, migrations, queries, schema_script
from perdure.store.release import Migration, Release
from perdure.store.shapes import Serves
from tests.postgres import Server
from tests.unit.store.parties import RealClock, entry, owned, plan

ANN = WorkerId("ann")


@pytest.fixture
async def admin(postgres: Server) -> AsyncIterator[PgConnection]:
    connection = await dial(postgres.url(), settings={}, cached=0, connect_s=10, command_s=60)
    yield connection
    await connection.close()


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_url, RealClock())
    await store.open()
    await store.register(ANN, pid=1, version="1", now=0)
    yield store
    await store.close()


async def shape(admin: PgConnection, name: str) -> list[tuple[str, ...]]:
    """Everything that makes a schema: columns, constraints, indexes."""
    columns = await admin.fetch(
        "SELECT table_name, column_name, data_type, is_nullable, collation_name, ordinal_position::text"
        " FROM information_schema.columns WHERE table_schema = $1",
        name,
    )
    constraints = await admin.fetch(
        "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE connamespace = $1::regnamespace",
        name,
    )
    indexes = await admin.fetch("SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = $1", name)
    return sorted(tuple(str(cell).replace(name, "") for cell in row) for row in (*columns, *constraints, *indexes))


async def test_all_migrations_lead_to_the_schema_file(admin: PgConnection, store: PostgresStore) -> None:
    await admin.execute("CREATE SCHEMA read_me")
    try:
        await admin.execute(schema_script("read_me"))
        expected = await shape(admin, "read_me")
        assert len(expected) > 80
        assert await shape(admin, store.address.schema) == expected
    finally:
        await admin.execute("DROP SCHEMA read_me CASCADE")


def test_every_migration_file_is_listed() -> None:
    found = [file.name for file in files("perdure.store.postgres").joinpath("migrations").iterdir()]
    assert len([name for name in found if name.endswith(".sql")]) == SCHEMA_VERSION


async def test_every_named_statement_fits_the_schema(admin: PgConnection, store: PostgresStore) -> None:
    for name, sql in queries(store.address.schema).items():
        await admin.execute(f"PREPARE fits AS {sql}; DEALLOCATE fits")
        assert name == name.lower()


# --- going forward


def next_release(sql: str = "ALTER TABLE perdure.workers ADD COLUMN load int", min_code_schema: int = 1) -> Release:
    """One that makes one more migration."""
    return Release(later=(Migration(2, "0002_later", sql, min_code_schema),))


async def test_old_and_new_code_share_a_store_through_a_migration(postgres_url: str, store: PostgresStore) -> None:
    claim = await owned(store, "one", ANN)
    await store.append(plan(claim, ANN, 1, entry("before")))
    new = PostgresStore(postgres_url, RealClock(), release=next_release())
    await new.open()
    assert (await new.schema()).version == 2
    await store.append(plan(claim, ANN, 2, entry("after")))
    await store.register(WorkerId("bob"), pid=1, version="1", now=0)
    assert len(await new.read(claim.stream)) == 3
    old = PostgresStore(postgres_url, RealClock())
    await old.open()
    assert [worker.id for worker in await old.workers()] == ["ann", "bob"]
    await old.close()
    await new.close()


async def test_code_that_a_migration_leaves_behind_is_told(postgres_url: str, store: PostgresStore) -> None:
    new = PostgresStore(postgres_url, RealClock(), release=next_release(min_code_schema=2))
    await new.open()
    await new.close()
    with pytest.raises(Error) as caught:
        await PostgresStore(postgres_url, RealClock()).open()
    assert caught.value.code is Code.STORE_NEWER


async def test_ten_processes_open_an_empty_database_at_once(postgres_url: str) -> None:
    stores = [PostgresStore(postgres_url, RealClock()) for _ in range(10)]
    await asyncio.gather(*(store.open() for store in stores))
    assert {(await store.schema()).version for store in stores} == {len(migrations())}
    await asyncio.gather(*(store.close() for store in stores))


async def test_a_migration_that_fails_changes_nothing(postgres_url: str) -> None:
    with pytest.raises(Error):
        await PostgresStore(postgres_url, RealClock(), release=next_release("CREATE TABLE nonsense (")).open()
    assert (await PostgresStore(postgres_url, RealClock()).schema()).version == 0


# --- 100,000 sessions that wait


PARKED = """
INSERT INTO {0}.streams (stream, tenant, kind, name, agent, format, last_seq, fence, n, owner, active, parked,
    created_at, updated_at)
SELECT 'default:session:p' || i, 'default', 'session', 'p' || i, 'a', 1, 3, 1, 2, NULL, false, i % 2 = 0, i, i
FROM generate_series(1, {1}) AS i;
INSERT INTO {0}.timers (stream, name, due_at) SELECT id, 'nap', 10_000_000 + id FROM {0}.streams;
INSERT INTO {0}.waits (promise, stream) SELECT 'p' || id, id FROM {0}.streams;
INSERT INTO {0}.inbox (stream, source_key, at, wakes, data) SELECT id, 'k', 1, true, '{{}}' FROM {0}.streams
WHERE name IN ('p77', 'p777');
ANALYZE {0}.streams, {0}.timers, {0}.inbox, {0}.waits;
"""


READY = """
INSERT INTO {0}.inbox (stream, source_key, at, wakes, data) SELECT id, 'r', 1, true, '{{}}' FROM {0}.streams;
ANALYZE {0}.inbox;
"""


def scans(node: Cells) -> list[Cells]:
    """Every node of a plan that reads a table."""
    below = [scan for child in node.get("Plans", []) for scan in scans(child)]
    return [node, *below] if "Relation Name" in node else below


@pytest.mark.slow
@pytest.mark.parametrize("quarantined", ["not", "only"])
@pytest.mark.parametrize("query", ["claimable", "claim_ready"])
async def test_looking_for_work_does_not_read_the_sessions_that_wait(
    query: str, quarantined: str, admin: PgConnection, store: PostgresStore, postgres: Server
) -> None:
    name = store.address.schema
    pages: list[int] = []
    for total in (1_000, 100_000):
        await postgres.execute(f"TRUNCATE {name}.streams CASCADE")
        await postgres.execute(PARKED.format(name, total))
        due = session_stream(DEFAULT_TENANT, SessionId("p77"))
        found = await store.claimable(ANN, limit=50, now=10, serves=Serves(tenant=DEFAULT_TENANT))
        assert due in found
        tree = await looked(admin, queries(name)[query], looking(quarantined))
        whole = [node for node in scans(tree) if node["Node Type"] == "Seq Scan" and node["Relation Name"] != "inbox"]
        assert whole == [] or total == 1_000, "a table that grows with the sessions is read as a whole"
        pages.append(tree["Shared Hit Blocks"] + tree["Shared Read Blocks"])
    assert pages[1] <= pages[0] + 20, f"from 1,000 to 100,000 parked sessions: {pages} pages"


@pytest.mark.parametrize("quarantined", ["not", "only"])
@pytest.mark.parametrize("query", ["claimable_of", "claim_ready_of"])
async def test_scan_of_few_sessions_reads_no_other_ready_ones(
    query: str, quarantined: str, admin: PgConnection, store: PostgresStore, postgres: Server
) -> None:
    name, few = store.address.schema, "'{default:session:p7,default:session:p77,default:session:p777}'"
    pages: list[int] = []
    for total in (1_000, 20_000):
        await postgres.execute(f"TRUNCATE {name}.streams CASCADE")
        await postgres.execute(PARKED.format(name, total))
        await postgres.execute(READY.format(name))
        tree = await looked(admin, queries(name)[query], f"{looking(quarantined)}, {few}")
        whole = [node["Relation Name"] for node in scans(tree) if node["Node Type"] == "Seq Scan"]
        assert whole == [], "a table that grows with the work is read as a whole"
        assert tree["Actual Rows"] == (3 if quarantined == "not" else 0)
        pages.append(tree["Shared Hit Blocks"] + tree["Shared Read Blocks"])
    assert pages[1] <= pages[0] + 20, f"from 1,000 to 20,000 ready sessions: {pages} pages"


def looking(quarantined: str) -> str:
    """Return the arguments of a work scan."""
    serves = "'{a,b}', '{default,bulk}', '{0,1}', '{default}', '{}', '{}'"
    return f"10, 1, 'ann', '{{}}', 'default', {serves}, '{quarantined}', '{{x,y}}', 50"


async def looked(admin: PgConnection, sql: str, values: str) -> Cells:
    """How a statement is carried out, whatever it is given."""
    await admin.execute("SET plan_cache_mode = force_generic_plan")
    await admin.execute(f"PREPARE look AS {sql}")
    ((text,),) = await admin.fetch(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE look({values})")
    await admin.execute("DEALLOCATE look")
    return json.loads(text)[0]["Plan"]


async def test_the_next_timer_and_a_claim_are_found_by_index(
    admin: PgConnection, store: PostgresStore, postgres: Server
) -> None:
    name = store.address.schema
    await postgres.execute(PARKED.format(name, 20_000))
    await postgres.execute(READY.format(name))
    for query, values in (
        ("timer_next", "()"),
        ("claim_free", "('default:session:p9', 'ann', 1)"),
        ("append_on", "('default:session:p9', 1, 3, 'ann', 3, 1, 1, 1, 1, 'k', 'x', 1, 'k', 'x', 'h', 'd', 'd')"),
        (
            "append_lone",
            "('default:session:p9', 1, 3, 0, 'ann', false, true, false, 1, 1, 3"
            + ", NULL" * 16
            + ", 3"
            + ", NULL" * 5
            + ")",
        ),
    ):
        await admin.execute("SET plan_cache_mode = force_generic_plan")
        await admin.execute(f"PREPARE look AS {queries(name)[query]}")
        ((text,),) = await admin.fetch(f"EXPLAIN (FORMAT JSON) EXECUTE look{values if values != '()' else ''}")
        await admin.execute("DEALLOCATE look")
        kinds = {node["Node Type"] for node in scans(json.loads(text)[0]["Plan"])}
        assert "Seq Scan" not in kinds, query


def test_an_address_names_the_schema_everywhere() -> None:
    assert parse("postgresql://h/d").schema == "perdure"
    assert all("perdure." not in sql for sql in queries("other").values())
