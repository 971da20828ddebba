"""Ten thousand processes, of which ten have something to do: a page of a list, and a look for work, cost that.

Costs are counted, not timed: on SQLite the steps of its virtual machine, on Postgres rows and pages.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from perdure import Runtime
from perdure.commit.plan import Entry
from perdure.ids import DEFAULT_TENANT, Seq, SessionId, StreamId, Tenant, WorkerId, process_stream, stream_names
from perdure.processes.registration import owner_of, starting
from perdure.processes.visibility import LIVE, seen_from
from perdure.runtime.clock import SystemClock
from perdure.store.digest_chain import DigestChain
from perdure.store.postgres import PostgresStore
from perdure.store.postgres.driver import Cells, PgConnection, dial
from perdure.store.postgres.schema import queries
from perdure.store.protocol import Store
from perdure.store.sqlite import SqliteStore
from perdure.store.sqlite.schema import QUERIES
from perdure.vocab.log_keys import PROCESS_END
from perdure.vocab.processes import SessionScope
from perdure.vocab.registrations import ExternalInput, Provenance, Registration
from tests.postgres import Server

ANN = WorkerId("ann")
SESSION = SessionScope(session_id="s")
NEW = starting(
    DEFAULT_TENANT,
    Registration(
        process_id="p",
        definition="external",
        input=ExternalInput(),
        recovery="externally_owned",
        provenance=Provenance(originator=SESSION),
    ),
    at=1,
)
assert NEW.opening is not None
AGENT, OPENING, TAGS = owner_of("external"), NEW.opening.data, NEW.tags
BUSY = 10
"""So many have something in their inbox; the others are parked, on a promise and on a timer of next year."""

LISTS = {"all": "process", "live": f"{LIVE}process", "of a session": seen_from(SESSION)}


def stream_of(i: int) -> StreamId:
    return process_stream(Tenant("default"), f"p{i}")


def digest_of(i: int) -> bytes:
    (digest,), _ = DigestChain().extend(stream_of(i), b"", Seq(0), [Entry("process_registered", OPENING, 1)])
    return digest


def filled(path: Path, total: int) -> None:
    with closing(sqlite3.connect(path)) as file:
        ids = range(1, total + 1)
        file.executemany(
            "INSERT INTO streams (id, stream, tenant, kind, name, agent, format, last_seq, fence, n, active, parked,"
            " created_at, updated_at, head) VALUES (?, ?, 'default', 'process', ?, ?, 1, 1, 1, 2, 0, 1, ?, ?, ?)",
            [(i, stream_of(i), f"p{i}", AGENT, i, i, digest_of(i)) for i in ids],
        )
        file.executemany(
            "INSERT INTO log (stream, seq, at, kind, version, data, digest)"
            " VALUES (?, 1, 1, 'process_registered', 1, ?, ?)",
            [(i, OPENING, digest_of(i)) for i in ids],
        )
        file.executemany(
            "INSERT INTO tags (tenant, tag, stream) VALUES ('default', ?, ?)", [(tag, i) for i in ids for tag in TAGS]
        )
        file.executemany(
            "INSERT INTO timers (stream, name, due_at) VALUES (?, 'nap', ?)", [(i, 10**15 + i) for i in ids]
        )
        file.executemany("INSERT INTO waits (promise, stream) VALUES (?, ?)", [(f"p{i}", i) for i in ids])
        file.executemany(
            "INSERT INTO inbox (stream, source_key, at, came_at, wakes, input_bytes, data) "
            "VALUES (?, 'k', 1, 1, 1, 0, '{}')",
            [(i * total // BUSY,) for i in range(1, BUSY + 1)],
        )
        file.execute("ANALYZE")
        file.commit()


def steps_of(path: Path, query: str, holes: Mapping[str, object] | tuple[object, ...]) -> tuple[int, list[Cells]]:
    """How many instructions a statement takes, and what it answers."""
    taken = 0

    def count() -> int:
        nonlocal taken
        taken += 1
        return 0

    with closing(sqlite3.connect(path)) as file:
        file.set_progress_handler(count, 1)
        rows = file.execute(QUERIES[query], holes).fetchall()
    return taken, rows


async def made(path: Path) -> None:
    store = SqliteStore(path, SystemClock())
    await store.open()
    await store.close()


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The same in a small file and in a large one."""
    paths = {total: tmp_path_factory.mktemp("many") / f"{total}.db" for total in (1_000, 10_000)}
    for total, path in paths.items():
        asyncio.run(made(path))
        filled(path, total)
    return paths


@pytest.mark.parametrize("which", LISTS)
@pytest.mark.parametrize("page", ["first", "middle"])
def test_a_page_of_processes_takes_as_many_steps_however_many_there_are(
    which: str, page: str, sizes: dict[int, Path]
) -> None:
    taken: list[int] = []
    for total, path in sizes.items():
        before = total + 1 if page == "first" else total // 2
        holes = {"tenant": "default", "kind": "process", "before": before, "agent": None, "limit": 50}
        steps, rows = steps_of(path, "stream_newest", {**holes, "tag": LISTS[which]})
        assert [row[3] for row in rows] == [f"p{before - 1 - i}" for i in range(50)]
        marked, marks = steps_of(
            path, "log_marks", {"streams": json.dumps([row[0] for row in rows]), "key": PROCESS_END}
        )
        assert len(marks) == 50
        taken.append(steps + marked)
    assert taken[1] <= taken[0] + 20, f"from 1,000 to 10,000 processes: {taken} steps"


def test_work_scan_cost_is_independent_of_parked_processes(sizes: dict[int, Path]) -> None:
    holes = defaultdict[str, object](
        lambda: None, now=10, waited=5, format=1, worker="ann", limit=50, quarantined="also"
    )
    holes |= dict.fromkeys(("alive", "driving", "recent", "without"), "[]")
    taken: list[int] = []
    for total, path in sizes.items():
        steps, rows = steps_of(path, "claimable", holes)
        assert {row[1] for row in rows} == {f"default:process:p{i * total // BUSY}" for i in range(1, BUSY + 1)}
        taken.append(steps)
    assert taken[1] <= taken[0] + 50, f"from 990 to 9,990 parked processes: {taken} steps"


def test_waking_one_takes_as_many_steps_however_many_are_parked(sizes: dict[int, Path]) -> None:
    taken: list[int] = []
    for total, path in sizes.items():
        woken, rows = steps_of(path, "wait_streams", (f"p{total // 2}",))
        assert rows == [(total // 2, f"default:process:p{total // 2}")]
        ended, _ = steps_of(path, "wait_end", (f"p{total // 2}",))
        taken.append(woken + ended)
    assert taken[1] <= taken[0] + 20, f"from 990 to 9,990 parked: {taken} steps"


# --- Postgres


MANY = """
INSERT INTO {0}.streams (stream, tenant, kind, name, agent, format, last_seq, fence, n, owner, active, parked,
    created_at, updated_at)
SELECT 'default:process:p' || i, 'default', 'process', 'p' || i, '{2}', 1, 1, 1, 2, NULL, false, true, i, i
FROM generate_series(1, {1}) AS i;
INSERT INTO {0}.log (stream, seq, at, kind, version, data, digest)
SELECT id, 1, 1, 'process_registered', 1, '\\x{3}'::bytea, '' FROM {0}.streams;
INSERT INTO {0}.tags (tenant, tag, stream) SELECT 'default', t, id FROM {0}.streams, unnest(ARRAY[{4}]) AS t;
INSERT INTO {0}.timers (stream, name, due_at) SELECT id, 'nap', 1000000000000000 + id FROM {0}.streams;
INSERT INTO {0}.waits (promise, stream) SELECT 'p' || id, id FROM {0}.streams;
INSERT INTO {0}.inbox (stream, source_key, at, wakes, data)
SELECT id, 'k', 1, true, '{{}}' FROM {0}.streams WHERE substr(name, 2)::int % ({1} / 10) = 0;
ANALYZE {0}.streams, {0}.log, {0}.tags, {0}.timers, {0}.inbox, {0}.waits;
"""


@pytest.fixture
async def admin(postgres: Server) -> AsyncIterator[PgConnection]:
    connection = await dial(postgres.url(), settings={}, cached=0, connect_s=10, command_s=60)
    yield connection
    await connection.close()


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_url, SystemClock())
    await store.open()
    yield store
    await store.close()


async def refill(store: PostgresStore, postgres: Server, total: int) -> int:
    """So many processes; the number that the first of them has."""
    name, tags = store.address.schema, ", ".join(f"'{tag}'" for tag in TAGS)
    await postgres.execute(f"TRUNCATE {name}.streams CASCADE; TRUNCATE {name}.log")
    await postgres.execute(MANY.format(name, total, AGENT, OPENING.hex(), tags))
    [latest] = await store.newest(tenant=DEFAULT_TENANT, kind="process", tag="process", limit=1)
    return latest.number - total + 1


def nodes(tree: Cells) -> list[Cells]:
    """The nodes of a plan, without what is looked up for each row of the page."""
    below = [child for child in tree.get("Plans", []) if child["Parent Relationship"] != "SubPlan"]
    return [tree, *(node for child in below for node in nodes(child))]


def rows_read(tree: Cells) -> int:
    """How many rows were read of tables: those that were taken, and those that were looked at and left."""
    read = [node for node in nodes(tree) if "Relation Name" in node]
    return round(sum((n["Actual Rows"] + n.get("Rows Removed by Filter", 0)) * n["Actual Loops"] for n in read))


async def explained(admin: PgConnection, sql: str, values: str) -> Cells:
    """How a prepared statement that any value may come to is run, and what it touched."""
    await admin.execute("SET plan_cache_mode = force_generic_plan")
    await admin.execute(f"PREPARE look AS {sql}")
    ((text,),) = await admin.fetch(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE look({values})")
    await admin.execute("DEALLOCATE look")
    return json.loads(text)[0]["Plan"]


async def test_list_and_scan_read_constant_rows_per_page(
    admin: PgConnection, store: PostgresStore, postgres: Server
) -> None:
    name, read, pages = store.address.schema, list[int](), list[int]()
    for total in (1_000, 10_000):
        first = await refill(store, postgres, total)
        for tag in LISTS.values():
            values = f"'default', 'process', '{tag}', {first + total // 2}, NULL, 50"
            tree = await explained(admin, queries(name)["stream_newest"], values)
            assert not [node for node in nodes(tree) if "Sort" in node["Node Type"]], "the index gives the order"
            read.append(rows_read(tree))
        names = ", ".join(f"'default:process:p{i}'" for i in range(1, 51))
        tree = await explained(admin, queries(name)["log_marks"], f"ARRAY[{names}], '{PROCESS_END}'")
        assert "Seq Scan" not in {node["Node Type"] for node in nodes(tree)} or total == 1_000
        found = await store.claimable(ANN, limit=50, now=10)
        assert sorted(int(stream_names(one)[2][1:]) for one in found) == [i * total // BUSY for i in range(1, BUSY + 1)]
        values = "10, 1, 'ann', '{}', NULL, NULL, NULL, NULL, NULL, '{}', '{}', 'also', '{}', 50"
        tree = await explained(admin, queries(name)["claim_ready"], values)
        pages.append(tree["Shared Hit Blocks"] + tree["Shared Read Blocks"])
        wake = f"'p{first + total // 2}', 'w', 1, true, '{{}}'"
        tree = await explained(admin, queries(name)["promise_wake"], wake)
        [waits] = [node for node in nodes(tree) if node.get("Relation Name") == "waits" and "Scan" in node["Node Type"]]
        assert (waits["Actual Rows"], waits.get("Rows Removed by Filter", 0)) == (1, 0), "found by its index"
    assert read == [100] * 6, "of each process on the page, a tag and its stream"
    assert pages[1] <= pages[0] + 20, f"from 990 to 9,990 parked processes: {pages} pages"


# --- the same through the API: whatever there is, a page is as many statements


async def test_a_page_of_processes_is_the_same_few_statements(
    sizes: dict[int, Path], store: PostgresStore, postgres: Server, postgres_url: str
) -> None:
    counted: dict[tuple[str, int], set[int]] = {}

    async def turn_over(kind: str, total: int, opened: Store) -> None:
        async with Runtime(opened, worker=False) as rt:
            for session, definition in ((None, None), (SessionId("s"), None), (None, "external")):
                seen: list[str] = []
                statuses: set[str] = set()
                place: int | None = None
                while len(seen) < 500:
                    before = opened.counters.statements
                    page = await rt.processes.list(session=session, definition=definition, limit=50, before=place)
                    counted.setdefault((kind, total), set()).add(opened.counters.statements - before)
                    seen += [one.handle.id for one in page]
                    statuses |= {one.status for one in page}
                    place = page[-1].place
                assert seen == [f"p{total - i}" for i in range(500)]
                assert statuses == {"registered"}

    for total, path in sizes.items():
        await turn_over("sqlite", total, SqliteStore(path, SystemClock()))
        await refill(store, postgres, total)
        await turn_over("postgres", total, PostgresStore(postgres_url, SystemClock()))
    for kind in ("sqlite", "postgres"):
        assert counted[kind, 1_000] == counted[kind, 10_000]
        assert counted[kind, 1_000] == {3}, "the page, the live workers, and how each process began and ended"
