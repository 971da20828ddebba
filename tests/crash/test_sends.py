"""A plan that sends, killed at every one of its statements: its record and all that it sends, or nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.commit.plan import Entry, OutboxResult, Plan
from perdure.ids import DEFAULT_TENANT, Fence, Seq, SessionId, StreamId, WorkerId, session_stream
from perdure.inbox.admit import Delivery, delivery
from perdure.inbox.items import Wake
from perdure.runtime.clock import SystemClock
from perdure.runtime.stores import store_for
from perdure.store.postgres.tx import PgTransaction
from perdure.store.protocol import Store
from perdure.store.shapes import Claim
from perdure.store.sqlite import SqliteStore
from perdure.vocab.records import TitleSet
from tests.crash.harness import processes
from tests.crash.scenarios import store_url

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

EVERYTHING = (["title_set"], ["hello", "first"], ["second"], ["third", "fourth"])
NOTHING: tuple[list[str], ...] = ([], ["hello"], [], [])


def named(name: str) -> StreamId:
    return session_stream(DEFAULT_TENANT, SessionId(name))


def wake(to: str, key: str, *, opens: bool = True) -> Delivery:
    return delivery(named(to), key, Wake(reason=key), at=1, agent="a" if opens else None)


async def opened(folder: Path, worker: str) -> Store:
    store = store_for(store_url(folder), SystemClock(), lease_ms=10_000)
    await store.open()
    await store.register(WorkerId(worker), pid=os.getpid(), version="1", now=0)
    return store


def the_plan(run: int, worker: str, fence: Fence) -> Plan:
    told = Entry.of(TitleSet(title="sent"), at=1)
    outbox = (
        wake(f"there-{run}", "first", opens=False),
        wake(f"new-{run}", "second"),
        wake(f"other-{run}", "third"),
        wake(f"other-{run}", "fourth"),
    )
    return Plan(named(f"one-{run}"), WorkerId(worker), fence, 1, entries=(told,), known_seq=Seq(1), outbox=outbox)


def at_each_statement(store: Store, told: Callable[[], None]) -> None:
    """From now on, every statement of a writer is told before it runs."""
    if isinstance(store, SqliteStore):
        writer = store._writer  # pyright: ignore[reportPrivateUsage] - no public call shows where a commit is
        assert writer is not None
        connection = writer._connection  # pyright: ignore[reportPrivateUsage] - the same
        assert connection is not None
        connection.set_trace_callback(lambda _: told())
        return
    all_, script = PgTransaction.all, PgTransaction.script

    async def counted_all(self: PgTransaction, name: str, *values: object) -> list[object]:
        if "commit_counter" not in name and name != "announce":
            told()
        return await all_(self, name, *values)

    async def counted_script(self: PgTransaction, sql: str) -> None:
        told()
        await script(self, sql)

    PgTransaction.all, PgTransaction.script = counted_all, counted_script


async def _send(folder: Path, die_at: int) -> None:
    """Append the plan, and die at the n-th statement of it; or when it is durable, if there are fewer."""
    store = await opened(folder, "ann")
    await store.admit(wake(f"one-{die_at}", "open"))
    await store.admit(wake(f"there-{die_at}", "hello"))
    claim = await store.claim(named(f"one-{die_at}"), WorkerId("ann"))
    assert isinstance(claim, Claim)
    count = 0

    def told() -> None:
        nonlocal count
        count += 1
        if count == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    at_each_statement(store, told)
    await store.append(the_plan(die_at, "ann", claim.fence))
    (folder / "statements").write_text(str(count))
    os.kill(os.getpid(), signal.SIGKILL)


def send(folder: str, die_at: int) -> None:
    asyncio.run(_send(Path(folder), die_at))


async def what_is_there(store: Store, run: int) -> tuple[list[str], ...]:
    records = [row.kind for row in await store.read(named(f"one-{run}"), after=Seq(1))]
    inboxes = [[row.source_key for row in await store.inbox(named(f"{to}-{run}"))] for to in ("there", "new", "other")]
    return (records, *inboxes)


async def go_on(store: Store, run: int) -> tuple[OutboxResult, ...]:
    """Take over on another worker and append the same."""
    claim = await store.claim(named(f"one-{run}"), WorkerId("bob"))
    assert isinstance(claim, Claim)
    return (await store.append(the_plan(run, "bob", claim.fence))).sent


def killed(folder: Path, die_at: int) -> int | None:
    """How many statements it was, if it died only when all was durable."""
    told = folder / "statements"
    told.unlink(missing_ok=True)
    child = processes.Process(target=send, args=(str(folder), die_at))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    return int(told.read_text()) if told.exists() else None


@pytest.mark.slow
async def test_plan_with_outbox_is_atomic_at_every_statement(folder: Path) -> None:
    statements = killed(folder, 0)
    assert statements is not None
    assert statements >= 4
    store = await opened(folder, "bob")
    assert await what_is_there(store, 0) == EVERYTHING
    for die_at in range(1, statements + 1):  # the last one is the commit, which has not happened yet
        if killed(folder, die_at) == statements - 1 == die_at - 1:
            continue  # the first one had a lease to renew as well, and this one was durable
        assert await what_is_there(store, die_at) == NOTHING, f"killed at statement {die_at} of {statements}"
        assert await go_on(store, die_at) == (OutboxResult("accepted"),) * 4
        assert await what_is_there(store, die_at) == EVERYTHING
    await store.close()


async def test_messages_resent_after_takeover_are_duplicates(folder: Path) -> None:
    killed(folder, 0)
    store = await opened(folder, "bob")
    assert await go_on(store, 0) == (OutboxResult("duplicate"),) * 4
    records, *inboxes = EVERYTHING
    assert await what_is_there(store, 0) == ([*records, *records], *inboxes)
    await store.close()
