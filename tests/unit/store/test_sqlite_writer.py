"""The writer of the file store: group commit, lone commits, lost replies, a failing disk."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from perdure.errors import Code, Error
from perdure.ids import WorkerId
from perdure.store.sqlite import SqliteStore
from perdure.store.sqlite.migrate import connect
from tests.unit.store.parties import entry, opened, owned, plan

ANN = WorkerId("ann")


async def test_fifty_concurrent_appends_share_their_commits(store: SqliteStore) -> None:
    claims = [await owned(store, f"s{i}", ANN) for i in range(50)]
    before = store.counters.commits
    for n in range(1, 5):
        await asyncio.gather(*(store.append(plan(claim, ANN, n, entry("a"))) for claim in claims))
    assert store.counters.commits - before <= 20  # for 200 appends; 2 a round if nothing disturbs
    assert store.counters.plans == 200


async def test_a_lone_append_takes_three_statements_and_one_commit(store: SqliteStore) -> None:
    claim = await owned(store, "one", ANN)
    commits, statements = store.counters.commits, store.counters.statements
    for n in range(1, 11):
        receipt = await store.append(plan(claim, ANN, n, entry("a"), known=n))
        assert receipt.first_seq == n + 1
    assert store.counters.commits - commits == 10
    assert store.counters.statements - statements in (30, 31)  # one more if a lease renewal fell due


async def test_lone_jobs_commit_on_their_caller_and_crowds_on_the_thread(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.store.sqlite.writer.FAST_S", 60)  # a slow machine must not decide this
    store = await opened(path, ANN)
    writer = store._writer  # pyright: ignore[reportPrivateUsage] - looks where the work is done
    assert writer is not None
    here, there = threading.current_thread().name, "perdure-writer"

    async def where() -> str:
        return await writer.submit(lambda tx: threading.current_thread().name)

    assert [await where() for _ in range(5)] == [here] * 5
    assert await asyncio.gather(*(where() for _ in range(5))) == [here] + [there] * 4
    assert [await where() for _ in range(5)] == [there] * 3 + [here] * 2
    await store.close()


async def test_a_slow_commit_moves_the_next_ones_off_the_loop(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.store.sqlite.writer.FAST_S", 0)
    store = await opened(path, ANN)
    writer = store._writer  # pyright: ignore[reportPrivateUsage] - looks where the work is done
    assert writer is not None
    used = [await writer.submit(lambda tx: threading.current_thread().name) for _ in range(20)]
    assert used == ["perdure-writer"] * 20
    await store.close()


async def test_an_append_does_not_block_the_loop_while_another_process_writes(store: SqliteStore, path: Path) -> None:
    claim = await owned(store, "one", ANN)
    foreign = connect(path)
    foreign.execute("BEGIN IMMEDIATE")
    started = time.monotonic()
    future = store.append(plan(claim, ANN, 1, entry("a")))
    assert time.monotonic() - started < 2, "waiting for the other process takes far longer"
    await asyncio.sleep(0.05)
    assert not future.done()
    foreign.execute("ROLLBACK")
    foreign.close()
    assert (await future).first_seq == 2


async def test_order_holds_when_a_lone_append_meets_a_foreign_lock(store: SqliteStore, path: Path) -> None:
    claim = await owned(store, "one", ANN)
    foreign = connect(path)
    foreign.execute("BEGIN IMMEDIATE")
    futures = [store.append(plan(claim, ANN, n, entry(str(n)))) for n in range(1, 6)]
    await asyncio.sleep(0.02)
    futures += [store.append(plan(claim, ANN, n, entry(str(n)))) for n in range(6, 11)]
    foreign.execute("COMMIT")
    foreign.close()
    receipts = await asyncio.gather(*futures)
    assert [receipt.first_seq for receipt in receipts] == list(range(2, 12))


async def test_a_lock_that_is_never_given_back_is_reported(
    path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = await owned(store, "one", ANN)
    monkeypatch.setattr("perdure.store.sqlite.migrate.LOCKED_AFTER_S", 0.05)
    monkeypatch.setattr("perdure.store.sqlite.migrate.patiently.__kwdefaults__", {"limit_s": 0.05})
    foreign = connect(path)
    foreign.execute("BEGIN IMMEDIATE")
    with pytest.raises(Error) as caught:
        await store.append(plan(claim, ANN, 1, entry("a")))
    assert caught.value.code is Code.STORE_LOCKED
    foreign.execute("ROLLBACK")
    foreign.close()
    assert (await store.append(plan(claim, ANN, 1, entry("a")))).first_seq == 2


async def test_closing_finishes_what_was_submitted(path: Path) -> None:
    store = await opened(path, ANN)
    claim = await owned(store, "one", ANN)
    futures = [store.append(plan(claim, ANN, n, entry(str(n)))) for n in range(1, 101)]
    await store.close()
    assert [(await future).first_seq for future in futures] == list(range(2, 102))
    assert not [t for t in threading.enumerate() if t.name.startswith("perdure-")]


async def test_bug_in_one_job_stops_no_other(store: SqliteStore) -> None:
    claim = await owned(store, "one", ANN)
    writer = store._writer  # pyright: ignore[reportPrivateUsage] - no public call has a bug to offer
    assert writer is not None
    first = store.append(plan(claim, ANN, 1, entry("a")))
    bug = writer.submit(lambda tx: 1 // 0)
    second = store.append(plan(claim, ANN, 2, entry("b")))
    results = await asyncio.gather(first, bug, second, return_exceptions=True)
    assert isinstance(results[1], ZeroDivisionError)
    assert (await second).first_seq == 3


# --- a failing disk


class FailingConnection(sqlite3.Connection):
    """Fails the next commit: after it is durable ("late") or before it happens ("early")."""

    fail: str | None = None

    def execute(self, sql: str, /, *rest: object) -> sqlite3.Cursor:
        if sql != "COMMIT" or FailingConnection.fail is None:
            return super().execute(sql, *rest)  # pyright: ignore[reportArgumentType] - passed through
        how, FailingConnection.fail = FailingConnection.fail, None
        super().execute("COMMIT" if how == "late" else "ROLLBACK")
        problem = sqlite3.OperationalError("disk I/O error")
        problem.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        raise problem


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> type[FailingConnection]:
    real = sqlite3.connect

    def connecting(database: Path, **options: object) -> sqlite3.Connection:
        return real(database, factory=FailingConnection, **options)  # pyright: ignore - options are passed through

    monkeypatch.setattr("perdure.store.sqlite.migrate.sqlite3.connect", connecting)
    FailingConnection.fail = None
    return FailingConnection


def writing_connection(store: SqliteStore) -> object:
    return store._writer._connection  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess]


@pytest.mark.parametrize("how", ["late", "early"])
@pytest.mark.parametrize("crowd", [1, 4])
async def test_after_a_failing_disk_receipts_decide(
    path: Path, failing: type[FailingConnection], how: str, crowd: int
) -> None:
    store = await opened(path, ANN)
    claims = [await owned(store, f"s{i}", ANN) for i in range(crowd)]
    plans = [plan(claim, ANN, 1, entry("a")) for claim in claims]
    await asyncio.gather(*(store.append(replace(one, n=2)) for one in plans), return_exceptions=True)  # a crowd
    before = writing_connection(store)
    failing.fail = how
    results = await asyncio.gather(*(store.append(one) for one in plans), return_exceptions=True)
    failed = [r for r in results if isinstance(r, Error)]
    assert failed
    assert {error.code for error in failed} == {Code.STORE_UNAVAILABLE}
    again = [await store.append(one) for one in plans]
    assert writing_connection(store) is not before, "the cache of the old connection may not be on disk"
    assert [receipt.first_seq for receipt in again] == [2] * crowd
    if how == "late":
        assert all(receipt.replayed for receipt in again)
    for claim in claims:
        assert [row.seq for row in await store.read(claim.stream)] == [1, 2]
    await store.close()


async def test_a_reply_that_was_lost_is_answered_by_another_store_object(path: Path) -> None:
    store = await opened(path, ANN)
    claim = await owned(store, "one", ANN)
    lost = plan(claim, ANN, 1, entry("a", key="k"))
    first = await store.append(lost)
    await store.close()
    other = SqliteStore(path, store._clock)  # pyright: ignore[reportPrivateUsage] - the same clock
    await other.open()
    assert await other.append(lost) == replace(first, replayed=True, quiet=False)
    await other.close()


async def test_the_version_is_not_moved_by_our_own_commits(store: SqliteStore, path: Path) -> None:
    before = await store.version()
    claim = await owned(store, "one", ANN)
    await asyncio.gather(*(store.append(plan(claim, ANN, n, entry("a"))) for n in range(1, 9)))
    assert await store.version() == before
    other = await opened(path, WorkerId("bob"))
    assert await store.version() != before
    await other.close()


async def test_a_turn_of_nine_records_is_stored_in_less_than_three_kilobytes(path: Path) -> None:
    store = await opened(path, ANN)
    claim = await owned(store, "one", ANN)
    for turn in range(200):
        entries = [entry("t" * 100, key=f"gate:{turn:036}" if i == 8 else None) for i in range(9)]
        for n, group in enumerate((entries[:3], entries[3:6], entries[6:])):
            await store.append(plan(claim, ANN, turn * 3 + n + 1, *group))
    await store.close()
    assert size(path) / 200 < 3_000


def size(path: Path) -> int:
    return path.stat().st_size
