"""The Postgres store at work: few round trips, neighbours that do not disturb, news, poolers, processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from msgspec.structs import replace

from perdure import Agent, Runtime, tool
from perdure.commit.plan import SetTimer, blob_of
from perdure.errors import Code, Error
from perdure.ids import PromiseId, Seq, WorkerId
from perdure.inbox.admit import Delivery, delivery
from perdure.inbox.items import Wake
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of
from perdure.store.permits import PermitRequest
from perdure.store.postgres import PostgresStore, commit_notifier, connections
from perdure.store.postgres.commit_notifier import CommitNotifier
from perdure.store.postgres.driver import Cells, dial
from perdure.store.postgres.tx import PgTransaction
from perdure.store.shapes import AlreadyOwned, Claim
from perdure.testing.laws.bench import LEASE_MS, enlist, held, note
from perdure.vocab.promises import Ok, PromiseState
from tests.conformance.test_stores import PostgresBench
from tests.pooler import Pooler
from tests.postgres import Server
from tests.unit.store.parties import RealClock, entry, fork, owned, plan, stream_named

ANN, BOB = WorkerId("ann"), WorkerId("bob")


async def opened(url: str, worker: WorkerId) -> PostgresStore:
    store = PostgresStore(url, RealClock())
    await store.open()
    await store.register(worker, pid=os.getpid(), version="1", now=0)
    return store


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    store = await opened(postgres_url, ANN)
    yield store
    await store.close()


def counted(store: PostgresStore) -> tuple[int, int]:
    return store.counters.commits, store.counters.statements


# --- round trips


async def test_a_lone_append_is_one_round_trip(store: PostgresStore) -> None:
    claim = await owned(store, "one", ANN)
    commits, statements = counted(store)
    for n in range(1, 11):
        assert (await store.append(plan(claim, ANN, n, entry("a"), known=n))).first_seq == n + 1
    assert store.counters.commits - commits == 10
    assert store.counters.statements - statements == 10


async def test_single_appends_bypass_the_batch_until_company_arrives(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = [await owned(store, f"s{i}", ANN) for i in range(3)]
    whole, sent = PgTransaction.all, list[str]()

    async def noted(self: PgTransaction, name: str, *args: object) -> list[Cells]:
        sent.append(name)
        return await whole(self, name, *args)

    monkeypatch.setattr(PgTransaction, "all", noted)
    at_once: list[bool] = []
    for n in range(1, 9):
        sent.clear()
        answer = store.append(plan(claims[0], ANN, n, entry("a"), known=n))
        at_once.append(sent == ["append_on"])
        assert (await answer).first_seq == n + 1
    assert at_once == [False] * 3 + [True] * 5
    crowd = [store.append(plan(claim, ANN, 1, entry("a"), known=1)) for claim in claims[1:]]
    assert [(await answer).first_seq for answer in crowd] == [2, 2]
    sent.clear()
    answer = store.append(plan(claims[1], ANN, 2, entry("a"), known=2))
    assert not sent, "there was company: a few must come alone again"
    assert (await answer).first_seq == 3


async def test_concurrent_close_calls_all_wait(store: PostgresStore) -> None:
    claim = await owned(store, "one", ANN)
    answer = store.append(plan(claim, ANN, 1, entry("a"), known=1))
    await asyncio.gather(*(store.close() for _ in range(3)))
    assert (await answer).first_seq == 2


async def test_a_crowd_shares_its_round_trips(store: PostgresStore) -> None:
    claims = [await owned(store, f"s{i}", ANN) for i in range(50)]
    commits, statements = counted(store)
    for n in range(1, 5):
        await asyncio.gather(*(store.append(plan(claim, ANN, n, entry("a"), known=n)) for claim in claims))
    assert store.counters.plans == 200
    assert store.counters.commits - commits <= 12  # 2 a round if nothing disturbs
    assert store.counters.statements - statements <= 30


async def test_concurrent_stream_reads_share_round_trips(store: PostgresStore) -> None:
    claims = [await owned(store, f"s{i}", ANN) for i in range(50)]
    nobody = [stream_named(f"none{i}") for i in range(50)]
    _, statements = counted(store)
    found = await asyncio.gather(*map(store.stream, [claim.stream for claim in claims] + nobody))
    assert [info and info.stream for info in found] == [claim.stream for claim in claims] + [None] * 50
    assert all(info is not None and info.owner == ANN for info in found[:50])
    assert store.counters.statements - statements <= 2


async def test_cancelled_stream_read_does_not_cancel_others(store: PostgresStore) -> None:
    claim = await owned(store, "s", ANN)
    looks = [asyncio.create_task(store.stream(claim.stream)) for _ in range(3)]
    await asyncio.sleep(0)
    looks[0].cancel()
    infos = await asyncio.gather(*looks[1:])
    assert [info and info.stream for info in infos] == [claim.stream] * 2


async def test_a_crowd_with_timers_bytes_and_waits_shares_them_too(store: PostgresStore) -> None:
    claims = [await owned(store, f"s{i}", ANN) for i in range(40)]
    plans = [
        replace(
            plan(claim, ANN, 1, entry("a"), known=1),
            timers=(SetTimer("t", i),),
            blobs=(blob_of(str(i).encode(), "text/plain"),),
            waits=(PromiseId(f"p{i}"),),
            lease="release",
            active=False,
        )
        for i, claim in enumerate(claims)
    ]
    _, statements = counted(store)
    await asyncio.gather(*(store.append(each) for each in plans))
    assert store.counters.statements - statements <= 20
    assert await store.next_due() == 0
    assert len(await store.claimable(ANN, limit=100, now=10)) == 40  # their openings still wait in the inbox


def greeting(to: str, name: str) -> Delivery:
    return delivery(stream_named(to), name, Wake(reason=name), at=1, agent="a")


async def test_plan_with_outbox_takes_four_round_trips(store: PostgresStore) -> None:
    claim = await owned(store, "one", ANN)
    await owned(store, "held", ANN)
    outbox = (greeting("held", "x"), *(greeting(f"new-{i}", "x") for i in range(20)))
    commits, statements = counted(store)
    receipt = await store.append(replace(plan(claim, ANN, 1, entry("a"), known=1), outbox=outbox))
    assert [sent.verdict for sent in receipt.sent] == ["accepted"] * 21
    assert store.counters.commits - commits == 1
    assert store.counters.statements - statements == 4  # begin, append, admit, commit


async def test_a_crowd_that_sends_shares_its_round_trips(store: PostgresStore) -> None:
    claims = [await owned(store, f"s{i}", ANN) for i in range(50)]
    plans = [
        replace(plan(claim, ANN, 1, entry("a"), known=1), outbox=(greeting(f"to-{i % 7}", f"k{i}"),))
        for i, claim in enumerate(claims)
    ]
    _, statements = counted(store)
    receipts = await asyncio.gather(*(store.append(each) for each in plans))
    assert {sent.verdict for receipt in receipts for sent in receipt.sent} == {"accepted"}
    assert store.counters.statements - statements <= 20  # 4, and 4 for the first, which goes alone
    assert [len(await store.inbox(stream_named(f"to-{i}"))) for i in range(7)] == [8, 7, 7, 7, 7, 7, 7]


async def test_message_to_a_stream_under_deletion_is_discarded(
    store: PostgresStore, postgres_url: str, postgres: Server
) -> None:
    """The deletion is under way, so the message waits for it, and finds no stream."""
    claim = await owned(store, "one", ANN)
    there = await owned(store, "there", ANN)
    deleting = await dial(postgres.url(), settings={}, cached=0, connect_s=10, command_s=30)
    schema = store.address.schema
    await deleting.execute("BEGIN")
    await deleting.fetch(f"DELETE FROM {schema}.streams WHERE stream = $1", there.stream)
    to_nobody = delivery(there.stream, "x", Wake(reason="x"), at=1)
    sending = asyncio.ensure_future(
        store.append(replace(plan(claim, ANN, 1, entry("a"), known=1), outbox=(to_nobody, greeting("new", "y"))))
    )
    async with asyncio.timeout(20):
        while not await deleting.fetch(  # noqa: ASYNC110 - the server knows the waiters
            "SELECT 1 FROM pg_stat_activity WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))"
        ):
            await asyncio.sleep(0.01)
    await deleting.execute("COMMIT")
    receipt = await sending
    assert [(sent.verdict, sent.because) for sent in receipt.sent] == [
        ("discarded", "session_unknown"),
        ("accepted", ""),
    ]
    await deleting.close()


async def test_appends_of_one_stream_that_queue_up_go_together(store: PostgresStore) -> None:
    claim = await owned(store, "one", ANN)
    commits, _ = counted(store)
    receipts = await asyncio.gather(*(store.append(plan(claim, ANN, n, entry(str(n)))) for n in range(1, 101)))
    assert [receipt.first_seq for receipt in receipts] == list(range(2, 102))
    assert store.counters.commits - commits <= 4


async def test_blocked_batch_delays_its_own_streams_only(store: PostgresStore, postgres: Server) -> None:
    stuck, free = await owned(store, "stuck", ANN), await owned(store, "free", ANN)
    rival = await dial(postgres.url(), settings={}, cached=0, connect_s=5, command_s=30)
    row = f"{store.address.schema}.streams WHERE stream = '{stuck.stream}'"
    await rival.execute(f"BEGIN; SELECT 1 FROM {row} FOR UPDATE")
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0"
    first = store.append(plan(stuck, ANN, 1, entry("a")))
    async with asyncio.timeout(20):
        while await rival.fetch(waiting) != [(1,)]:  # noqa: ASYNC110 - the server knows the waiters
            await asyncio.sleep(0.01)
    second = store.append(plan(stuck, ANN, 2, entry("b")))
    for n in range(1, 6):
        assert (await store.append(plan(free, ANN, n, entry("c"), known=n))).first_seq == n + 1
    assert await rival.fetch(waiting) == [(1,)], "a stream has one append under way at a time"
    await rival.execute("ROLLBACK")
    assert [(await first).first_seq, (await second).first_seq] == [2, 3]
    await rival.close()


async def test_text_arrives_as_it_was(store: PostgresStore) -> None:
    keys = ["plain", '"', "\\", "{a,b}", "NULL", " ", "a'b", "\n\t", "ключ 🔑", '\\"', "$1"]
    claims = [await owned(store, f"s{i}", ANN) for i in range(2)]
    plans = [plan(claim, ANN, 1, *(entry(key, key=key) for key in keys), known=1) for claim in claims]
    _, statements = counted(store)
    alone = await store.append(plans[0])
    await asyncio.gather(store.append(plans[1]), store.append(plan(claims[0], ANN, 2, entry(""), known=12)))
    assert alone.last_seq == len(keys) + 1
    assert store.counters.statements - statements <= 3, (
        "nothing in it is taken for something else, and then looked at alone"
    )
    for claim in claims:
        rows = await store.read(claim.stream, after=Seq(1), limit=len(keys))
        assert [(row.key, row.data) for row in rows] == [(key, entry(key).data) for key in keys]


BY_THE_CLOCK = {"claimable", "worker_list", "worker_renew", "announce", "commit_counter_read"}
"""What is asked every so often, whatever is going on."""


async def test_a_turn_takes_few_round_trips(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()
    really = PgTransaction.all

    async def counting(session: PgTransaction, name: str, *values: object) -> list[Cells]:
        if name not in BY_THE_CLOCK:
            asked[name] += 1
        return await really(session, name, *values)

    @tool
    async def charge() -> str:
        """Charge."""
        return "charged"

    store = PostgresStore(postgres_url, SystemClock())
    agent = Agent("a", model=ScriptedModel(call("charge"), say("done")), tools=[charge])
    async with Runtime(store, agents=[agent]) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("warm up")
        monkeypatch.setattr(PgTransaction, "all", counting)
        for _ in range(10):
            await session.ask("go")
        monkeypatch.undo()
    writes = {
        name: asked.pop(name)
        for name in ("append_on", "append_lone", "append", "append_more", "admit")
        if name in asked
    }
    assert sum(writes.values()) <= 52, "at most five writes a turn, each one round trip"
    assert sum(asked.values()) <= 70, asked


async def test_a_lease_is_one_statement_whatever_is_held(store: PostgresStore) -> None:
    for i in range(20):
        await owned(store, f"s{i}", ANN)
    _, statements = counted(store)
    await store.renew(ANN)
    assert store.counters.statements - statements == 1


# --- neighbours


async def test_refused_plans_are_isolated_and_others_written_together(store: PostgresStore) -> None:
    claims = [await owned(store, f"s{i}", ANN) for i in range(32)]
    await asyncio.gather(*(store.append(plan(claim, ANN, 1, entry("a", key="k"))) for claim in claims))
    bad = {3, 17}
    plans = [plan(c, ANN, 2, entry("b", key="k" if i in bad else None), known=2) for i, c in enumerate(claims)]
    _, statements = counted(store)
    results = await asyncio.gather(*(store.append(each) for each in plans), return_exceptions=True)
    refused = {i for i, result in enumerate(results) if isinstance(result, Error)}
    assert refused == bad
    assert store.counters.statements - statements <= 40


async def test_text_that_the_server_cannot_hold_is_refused_alone(store: PostgresStore) -> None:
    claims = [await owned(store, f"s{i}", ANN) for i in range(4)]
    keys = ["fine", "nul \0 inside", "fine too", "half \ud800 a letter"]
    plans = [plan(claim, ANN, 1, entry("a", key=key)) for claim, key in zip(claims, keys, strict=True)]
    results = await asyncio.gather(*(store.append(each) for each in plans), return_exceptions=True)
    assert [result.code if isinstance(result, Error) else None for result in results] == [
        None,
        Code.INVALID_TEXT,
        None,
        Code.INVALID_TEXT,
    ]
    assert (await store.append(plan(claims[1], ANN, 1, entry("a")))).first_seq == 2


async def test_s9_append_continues_the_record_of_another_process(store: PostgresStore, postgres_url: str) -> None:
    claim = await owned(store, "one", ANN)
    await store.load(claim.stream, code="x")  # the head of the stream is known from here on
    other = PostgresStore(postgres_url, RealClock())
    await other.open()
    try:
        plans = [
            plan(claim, ANN, 1, entry("a"), known=2),
            plan(claim, ANN, 2, entry("b", key="k"), known=4),
            replace(plan(claim, ANN, 3, entry("c"), known=6), timers=(SetTimer("nap", 10**15),)),
        ]
        for number, each in enumerate(plans):
            await other.annotate(claim.stream, entry("theirs"))
            assert (await store.append(each)).first_seq == 3 + 2 * number
            assert await other.check_log(claim.stream)
    finally:
        await other.close()


async def test_a_deadlock_is_tried_again(store: PostgresStore, postgres: Server) -> None:
    claims = [await owned(store, f"s{i}", ANN) for i in range(2)]
    rival = await dial(postgres.url(), settings={}, cached=0, connect_s=5, command_s=30)
    touch = f"UPDATE {store.address.schema}.streams SET created_at = 0 WHERE stream = '{{}}'"
    await rival.execute("BEGIN")
    await rival.execute(touch.format(claims[1].stream))
    both = asyncio.gather(*(store.append(plan(claim, ANN, 1, entry("a"))) for claim in claims))
    await asyncio.sleep(0.2)  # the statement holds the first stream and waits for the second
    outcome = await asyncio.gather(rival.execute(touch.format(claims[0].stream)), return_exceptions=True)
    await rival.execute("ROLLBACK")
    assert [receipt.first_seq for receipt in await both] == [2, 2]
    assert len(outcome) == 1, "one of the two was sacrificed, whichever"
    await rival.close()


@pytest.mark.slow
async def test_rows_that_stay_locked_are_reported(postgres_url: str, postgres: Server) -> None:
    store = await opened(f"{postgres_url}&lock_timeout=20", ANN)
    claim = await owned(store, "one", ANN)
    rival = await dial(postgres.url(), settings={}, cached=0, connect_s=5, command_s=30)
    await rival.execute(f"BEGIN; SELECT 1 FROM {store.address.schema}.streams FOR UPDATE")
    with pytest.raises(Error) as caught:
        await store.append(plan(claim, ANN, 1, entry("a")))
    assert caught.value.code is Code.STORE_LOCKED
    await rival.execute("ROLLBACK")
    assert (await store.append(plan(claim, ANN, 1, entry("a")))).first_seq == 2
    await rival.close()
    await store.close()


@pytest.mark.slow
async def test_unresponsive_server_is_disconnected_and_retried(
    store: PostgresStore, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "COMMAND_S", 0.2)
    monkeypatch.setattr(connections, "WATCH_S", 0.02)
    claim = await owned(store, "one", ANN)
    rival = await dial(postgres.url(), settings={}, cached=0, connect_s=5, command_s=30)
    whole, asked = PgTransaction.all, list[PgTransaction]()

    async def noted(self: PgTransaction, name: str, *args: object) -> list[Cells]:
        if name.startswith("append"):
            asked.append(self)
        return await whole(self, name, *args)

    monkeypatch.setattr(PgTransaction, "all", noted)
    await rival.execute(f"BEGIN; SELECT 1 FROM {store.address.schema}.streams FOR UPDATE")
    answer = store.append(plan(claim, ANN, 1, entry("a")))
    try:
        async with asyncio.timeout(20):
            while len({id(session.connection) for session in asked}) < 2:  # noqa: ASYNC110 - the watch hangs up
                await asyncio.sleep(0.01)
        assert asked[0].connection.is_closed()
    finally:
        await rival.execute("ROLLBACK")
        await rival.close()
    assert (await answer).first_seq == 2


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_a_stricter_default_isolation_changes_nothing(postgres_url: str, level: str) -> None:
    store = await opened(f"{postgres_url}&default_transaction_isolation={level.replace(' ', '%20')}", ANN)
    claims = [await owned(store, f"s{i}", ANN) for i in range(10)]

    async def work(claim: Claim) -> None:
        for n in range(1, 6):
            await store.append(plan(claim, ANN, n, entry("a")))
            await store.annotate(stream_named("s0"), entry("note"))

    await asyncio.gather(*(work(claim) for claim in claims))
    assert [row.seq for row in await store.read(stream_named("s0"))] == list(range(1, 1 + 1 + 5 + 50))
    await store.close()


async def test_two_stores_race_for_promises_and_no_wake_is_lost(postgres_url: str) -> None:
    one, two = await opened(postgres_url, ANN), await opened(postgres_url, BOB)
    claims = [await owned(one, f"s{i}", ANN) for i in range(40)]
    for claim in claims:
        (row,) = await one.inbox(claim.stream)
        await one.append(replace(plan(claim, ANN, 1), consume=(row.id,)))

    async def park(i: int) -> bool:
        waits = replace(plan(claims[i], ANN, 2), waits=(PromiseId(f"p{i}"),), lease="release", active=False)
        return bool((await one.append(waits)).resolved)

    async def answer(i: int) -> None:
        await two.promise(PromiseState(id=PromiseId(f"p{i}"), stream=claims[i].stream))
        await two.resolve(PromiseId(f"p{i}"), Ok(), now=1)

    met = await asyncio.gather(*(park(i) for i in range(40)), *(answer(i) for i in range(40)))
    for i, claim in enumerate(claims):
        assert (met[i] is True) != (len(await one.inbox(claim.stream)) == 1), "told while parking, or woken after"
    await one.close()
    await two.close()


# --- news


async def heard(store: PostgresStore, before: int, *, seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while await store.version() == before:  # noqa: ASYNC110 - another connection tells
            await asyncio.sleep(0.002)


async def test_commits_of_others_are_heard_soon_and_told_seldom(postgres_url: str, postgres: Server) -> None:
    one, two = await opened(postgres_url, ANN), await opened(postgres_url, BOB)
    claim = await owned(two, "one", BOB)
    await heard(one, 0)
    before, (commit_counter,) = await one.version(), (await _commit_counter(postgres, one))
    for n in range(1, 101):
        await two.append(plan(claim, BOB, n, entry("a"), known=n))
    await heard(one, before)
    await asyncio.sleep(0.05)
    (after,) = await _commit_counter(postgres, one)
    assert after - commit_counter < 60, "far fewer notifications than commits"
    own = await two.version()
    await two.append(plan(claim, BOB, 101, entry("a"), known=101))
    await asyncio.sleep(0.05)
    assert await two.version() == own, "our own commits are no news to us"
    await one.close()
    await two.close()


async def test_first_commit_of_a_store_is_noticed_without_a_notification(
    postgres_url: str, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen, announced = CommitNotifier._listen, asyncio.Event()  # pyright: ignore[reportPrivateUsage] - to delay it

    async def late(self: CommitNotifier) -> None:
        await announced.wait()
        await listen(self)

    monkeypatch.setattr(CommitNotifier, "_listen", late)
    one, two = PostgresStore(postgres_url, RealClock()), PostgresStore(postgres_url, RealClock())
    await one.open()
    await two.open()
    await two.admit(delivery(stream_named("one"), "k", Wake(reason="x"), at=1, agent="a"))
    connection = await dial(postgres.url(), settings={}, cached=0, connect_s=5, command_s=5)
    is_announced = f"SELECT is_called FROM {one.address.schema}.commit_counter"
    async with asyncio.timeout(5):
        while not (await connection.fetch(is_announced))[0][0]:  # noqa: ASYNC110 - a task of the store announces
            await asyncio.sleep(0.002)
    await connection.close()
    announced.set()
    await heard(one, 0)
    await one.close()
    await two.close()


async def test_actionable_commits_are_notified_before_progress(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_notifier, "CALM_S", 60.0)
    one, two = await opened(postgres_url, ANN), await opened(postgres_url, BOB)
    claim = await owned(two, "one", BOB)
    await heard(one, 0)
    await asyncio.sleep(0.1)  # what was committed before is told by now
    before = await one.version()
    await two.append(replace(plan(claim, BOB, 1, entry("a"), known=1), active=True))
    await asyncio.sleep(0.1)
    assert await one.version() == before, "progress gives other workers no work"
    await two.append(replace(plan(claim, BOB, 2, entry("b"), known=2), active=True, lease="release"))
    await heard(one, before)
    await one.close()
    await two.close()


async def _commit_counter(postgres: Server, store: PostgresStore) -> tuple[int]:
    connection = await dial(postgres.url(), settings={}, cached=0, connect_s=5, command_s=5)
    ((commit_counter,),) = await connection.fetch(f"SELECT last_value FROM {store.address.schema}.commit_counter")
    await connection.close()
    return (commit_counter,)


async def test_a_commit_that_could_not_be_told_is_told_later(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await opened(postgres_url, ANN), await opened(postgres_url, BOB)
    claim = await owned(two, "one", BOB)
    await heard(one, 0)
    await asyncio.sleep(0.1)  # what was committed before is told by now, or together with what comes
    whole, failed = PgTransaction.one, list[str]()

    async def fails_once(self: PgTransaction, name: str, *args: object) -> Cells:
        if name == "announce" and not failed:
            failed.append(name)
            raise Error(Code.STORE_UNAVAILABLE, "cut off")
        return await whole(self, name, *args)

    monkeypatch.setattr(PgTransaction, "one", fails_once)
    before = await one.version()
    await two.append(plan(claim, BOB, 1, entry("a"), known=1))
    await heard(one, before, seconds=20)
    assert failed
    await one.close()
    await two.close()


async def test_store_that_closes_while_it_tells_of_a_commit_finishes_telling(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await opened(postgres_url, ANN), await opened(postgres_url, BOB)
    claim = await owned(two, "one", BOB)
    await heard(one, 0)
    await asyncio.sleep(0.1)  # what was committed before is told by now
    whole, begun = PgTransaction.one, asyncio.Event()

    async def slow_once(self: PgTransaction, name: str, *args: object) -> Cells:
        if name == "announce" and not begun.is_set():
            begun.set()
            await asyncio.sleep(60)
        return await whole(self, name, *args)

    monkeypatch.setattr(PgTransaction, "one", slow_once)
    before = await one.version()
    await two.append(plan(claim, BOB, 1, entry("a"), known=1))
    await begun.wait()
    await two.close()
    await heard(one, before)
    await one.close()


async def test_listening_is_taken_up_again_after_a_cut(postgres_url: str, postgres: Server) -> None:
    one, two = await opened(postgres_url, ANN), await opened(postgres_url, BOB)
    await owned(two, "one", BOB)
    await heard(one, 0)
    await postgres.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
        "AND query ILIKE '%commit_counter%'"
    )
    before = await one.version()
    await owned(two, "two", BOB)
    await heard(one, before)
    await one.close()
    await two.close()


# --- a pooler in between


async def test_everything_works_behind_a_pooler_in_transaction_mode(postgres: Server, postgres_url: str) -> None:
    schema = PostgresStore(postgres_url, RealClock()).address.schema
    pooler = Pooler(postgres.folder / "data" / ".s.PGSQL.5432", user="postgres", database="postgres")
    port = await pooler.open()
    url = f"postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=disable&schema={schema}&pooler=transaction"

    @tool
    async def charge() -> str:
        """Charge."""
        return "charged"

    def runtime() -> Runtime:
        model = ScriptedModel.by_input({}, default=[call("charge"), say("done")])
        return Runtime(url, agents=[Agent("a", model=model, tools=[charge])])

    async with runtime() as one, runtime() as two:
        sessions = [await rt.session(f"s{i}", agent="a") for i, rt in enumerate((one, two) * 4)]
        answers = await asyncio.gather(*(session.ask("go", timeout=30) for session in sessions))
        assert all(answer.startswith("done") for answer in answers)
        before = await core_of(one).store.version()
        await sessions[1].ask("again", timeout=30)
        async with asyncio.timeout(5):
            while await core_of(one).store.version() == before:  # noqa: ASYNC110 - another store commits
                await asyncio.sleep(0.01)
    assert pooler.lent > 50
    assert pooler.refused == []
    await pooler.close()


# --- liveness


async def test_a_killed_process_of_this_machine_is_dead_at_once(store: PostgresStore, postgres_url: str) -> None:
    command = [sys.executable, "-m", "tests.unit.store.holder", postgres_url, "bob"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:  # noqa: ASYNC220 - starts at once
        assert holder.stdout is not None
        assert await asyncio.to_thread(holder.stdout.readline) == "holding\n"
        stream = stream_named("bob-0")
        assert await store.claim(stream, ANN) == AlreadyOwned(BOB)
        assert not await store.is_dead(BOB)
        holder.send_signal(signal.SIGSTOP)
        assert not await store.is_dead(BOB)
        holder.kill()
        await asyncio.to_thread(holder.wait)
    assert await store.is_dead(BOB)
    assert stream in await store.claimable(ANN, limit=10, now=0)
    claim = await store.claim(stream, ANN)
    assert isinstance(claim, Claim)
    assert claim.previous == BOB


@pytest.mark.parametrize("elsewhere", ["boot = 'another machine'", "lock = '1:1'", "lock = ''"])
async def test_worker_on_another_host_is_never_presumed_dead(
    postgres_url: str, postgres: Server, elsewhere: str
) -> None:
    """The lease has lapsed and the connections are gone; the worker may still charge a card."""
    one, two = await opened(postgres_url, ANN), await opened(postgres_url, BOB)
    await owned(two, "one", BOB)
    two.abandon(BOB)
    assert await one.is_dead(BOB)
    schema = one.address.schema
    await postgres.execute(f"UPDATE {schema}.workers SET lease_until = 0, lease_ms = 0, {elsewhere} WHERE id = 'bob'")
    assert not await one.is_dead(BOB)
    assert isinstance(await one.claim(stream_named("one"), ANN), Claim), "streams of a lapsed worker are claimable"
    await one.close()
    await two.close()


async def test_where_no_lock_can_be_taken_leases_decide(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file"))
    one, two = await opened(postgres_url, ANN), await opened(postgres_url, BOB)
    two.abandon(BOB)
    assert not await one.is_dead(BOB)
    await one.close()
    await two.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
async def test_a_forked_child_is_refused(store: PostgresStore) -> None:
    claim = await owned(store, "one", ANN)

    def in_child() -> int:
        async def calls() -> int:
            tries = [store.open(), store.renew(ANN), store.workers(), store.claim(claim.stream, ANN), store.version()]
            codes = [
                r.code if isinstance(r, Error) else None for r in await asyncio.gather(*tries, return_exceptions=True)
            ]
            return sum(code is not Code.RUNTIME_FORKED for code in codes)

        asyncio.set_event_loop(None)
        asyncio.events._set_running_loop(None)
        return asyncio.new_event_loop().run_until_complete(calls())

    _, status = await asyncio.to_thread(os.waitpid, fork(in_child), 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (await store.append(plan(claim, ANN, 1, entry("parent")))).first_seq == 2


async def test_calls_before_open_and_after_close_are_refused(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, RealClock())
    for _ in range(2):
        with pytest.raises(Error) as caught:
            await store.workers()
        assert caught.value.code is Code.RUNTIME_CLOSED
        with pytest.raises(Error) as caught:
            await store.admit(delivery(stream_named("x"), "k", Wake(reason="x"), at=1, agent="a"))
        assert caught.value.code is Code.RUNTIME_CLOSED
        await store.open()
        await store.close()


async def test_closing_finishes_what_was_submitted(postgres_url: str) -> None:
    store = await opened(postgres_url, ANN)
    claim = await owned(store, "one", ANN)
    futures = [store.append(plan(claim, ANN, n, entry(str(n)))) for n in range(1, 301)]
    await store.close()
    assert all(future.done() for future in futures)
    again = await opened(postgres_url, BOB)
    assert len(await again.read(claim.stream, after=Seq(1))) == 300
    await again.close()


async def test_stream_of_a_live_worker_costs_two_statements(postgres_url: str) -> None:
    one, two = await opened(postgres_url, ANN), await opened(postgres_url, BOB)
    await owned(one, "one", ANN)
    _, statements = counted(two)
    assert await two.claim(stream_named("one"), BOB) == AlreadyOwned(ANN)
    assert two.counters.statements - statements == 2
    await one.close()
    await two.close()


async def test_a_damaged_log_is_diagnosed(store: PostgresStore, postgres: Server) -> None:
    claim = await owned(store, "one", ANN)
    await store.append(plan(claim, ANN, 1, entry("a"), entry("b")))
    schema = store.address.schema
    await postgres.execute(f"DELETE FROM {schema}.log WHERE seq = 3")
    failed = {line.what for line in await store.check() if line.status == "fail"}
    assert failed == {"integrity", "records"}
    await postgres.execute(
        f"INSERT INTO {schema}.log SELECT 999, seq, at, fence, n, version, kind, key, data, digest FROM {schema}.log"
    )
    failed = {line.what for line in await store.check() if line.status == "fail"}
    assert failed == {"integrity", "records", "references"}


# --- a server that was away


async def test_returning_worker_grants_the_others_one_lease(postgres: Server) -> None:
    with TemporaryDirectory(dir=postgres.folder) as folder:  # where the server can read the clock
        os.chmod(folder, 0o755)
        bench = PostgresBench(postgres, Path(folder))
        await bench.store.open()
        hold = await held(bench)
        other = await bench.reopen()
        await enlist(bench, BOB, store=other)
        bench.clock.advance(LEASE_MS * 2)  # no worker could write
        assert await other.claimable(BOB, limit=9, now=0) == ()
        assert await other.claim(hold.stream, BOB) == AlreadyOwned(ANN), "the claiming worker has just come back"
        assert await other.claim_ready(BOB, limit=9, now=0) == ()
        bench.clock.advance(LEASE_MS // 2)
        await other.renew(BOB)
        await bench.store.append(hold.plan(note("so has ann")))
        bench.clock.advance(LEASE_MS // 2)
        await other.renew(BOB)
        assert await other.claim(hold.stream, BOB) == AlreadyOwned(ANN)
        bench.clock.advance(LEASE_MS // 2)  # ann is silent from here on
        await other.renew(BOB)
        claim = await other.claim(hold.stream, BOB)
        assert isinstance(claim, Claim)
        assert claim.previous == ANN
        await bench.close()


async def test_server_restart_protects_ownership_for_one_lease(postgres: Server) -> None:
    with TemporaryDirectory(dir=postgres.folder) as folder:  # where the server can read the clock
        os.chmod(folder, 0o755)
        bench = PostgresBench(postgres, Path(folder))
        await bench.store.open()
        hold = await held(bench)
        await bench.store.exchange(ANN, asks=(PermitRequest("a", (("tool:x", 1),)),), now=0)
        bench.clock.advance(LEASE_MS * 5)
        bench.clock.server.restart(bench.clock.monotonic_ms() - 1)
        newcomer = await bench.reopen()
        await enlist(bench, BOB, store=newcomer)
        assert await newcomer.claim(hold.stream, BOB) == AlreadyOwned(ANN), (
            "she could not renew it: there was no server"
        )
        assert await newcomer.claimable(BOB, limit=9, now=0) == ()
        assert await newcomer.claim_ready(BOB, limit=9, now=0) == ()
        assert [permit.alive for permit in await newcomer.permits()] == [True]
        assert {worker.id: worker.alive for worker in await newcomer.workers()} == {ANN: True, BOB: True}
        for _ in range(2):
            bench.clock.advance(LEASE_MS // 2)
            await newcomer.renew(BOB)
        claim = await newcomer.claim(hold.stream, BOB)
        assert isinstance(claim, Claim)
        assert claim.previous == ANN
        await bench.close()
