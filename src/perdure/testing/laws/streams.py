"""Laws of streams: reading, listing and deleting."""
# ruff: noqa: D102 - the name of a law is its sentence

from __future__ import annotations

import asyncio

from perdure.commit.plan import SetTimer, Snapshot
from perdure.errors import Code
from perdure.ids import DEFAULT_TENANT, Seq, SessionId, Tenant, process_stream, session_stream
from perdure.inbox.admit import Admitted
from perdure.testing.laws.bench import (
    ANN,
    BOB,
    LEASE_MS,
    Bench,
    Hold,
    enlist,
    held,
    note,
    notes,
    open_stream,
    promised,
    refusal,
    said,
    stream_of,
    take,
)


class StreamLaws:
    """Laws of whole streams."""

    async def test_a_range_is_open_below_and_closed_above(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(*(note(text) for text in "abcde")))
        read = bench.store.read
        assert notes(await read(hold.stream, after=Seq(3))) == [(4, "c"), (5, "d"), (6, "e")]
        assert notes(await read(hold.stream, after=Seq(2), until=Seq(4))) == [(3, "b"), (4, "c")]
        assert notes(await read(hold.stream, after=Seq(1), limit=2)) == [(2, "a"), (3, "b")]
        assert await read(hold.stream, after=Seq(6)) == ()
        assert await read(hold.stream, limit=0) == ()
        assert await read(stream_of("nowhere")) == ()

    async def test_a_row_is_found_by_its_key(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("a"), note("b", key="k"), note("c")))
        found = await bench.store.find(hold.stream, "k")
        assert found is not None
        assert notes([found]) == [(3, "b")]
        assert await bench.store.find(hold.stream, "other") is None
        assert await bench.store.find(stream_of("nowhere"), "k") is None

    async def test_rows_are_counted_by_how_their_keys_begin(self, bench: Bench) -> None:
        hold = await held(bench)
        keys = ["e:a:1", "e:ab:1", "e:a:2", None, "e:a:%", "e:a_:1", "E:a:3"]
        await bench.store.append(hold.plan(*(note(f"{key}", key=key) for key in keys)))
        for begins, until, many in [("e:a:", 99, 3), ("e:a:", 4, 2), ("e:a:", 2, 1), ("e:", 99, 5), ("x", 99, 0)]:
            assert await bench.store.count(hold.stream, begins, until=Seq(until)) == many
        assert await bench.store.count(stream_of("nowhere"), "e:", until=Seq(99)) == 0

    async def test_a_stream_tells_about_itself(self, bench: Bench) -> None:
        tenant = Tenant("acme: 50%")
        stream = session_stream(tenant, SessionId("a/b:c"))
        await enlist(bench, ANN)
        created_at = bench.clock.wall_ms()
        await bench.store.admit(said(stream, "hello", agent="billing"))
        hold = await take(bench.store, stream, ANN)
        bench.clock.advance(1_000)
        await bench.store.append(hold.plan(note("a"), active=True))
        info = await bench.store.stream(stream)
        assert info is not None
        assert (info.stream, info.tenant, info.kind, info.name) == (stream, tenant, "session", "a/b:c")
        assert (info.agent, info.last_seq, info.fence, info.waiting_inputs) == ("billing", 2, 1, 1)
        assert (info.owner, info.owner_alive, info.active) == (ANN, True, True)
        assert (info.created_at, info.updated_at) == (created_at, created_at + 1_000)

    async def test_a_stream_tells_whether_its_owner_is_alive(self, bench: Bench) -> None:
        hold = await held(bench)
        bench.kill(ANN)
        info = await bench.store.stream(hold.stream)
        assert info is not None
        assert (info.owner, info.owner_alive) == (ANN, False)

    async def test_streams_are_listed_with_the_latest_change_first(self, bench: Bench) -> None:
        holds: list[Hold] = []
        for name in ("one", "two", "three"):
            bench.clock.advance(10)
            holds.append(await held(bench, name))
        bench.clock.advance(10)
        await bench.store.append(holds[0].plan(note("changed")))
        listed = await bench.store.streams(tenant=DEFAULT_TENANT, kind="session", limit=10)
        assert [info.name for info in listed] == ["one", "three", "two"]

    async def test_a_page_continues_where_the_last_one_ended(self, bench: Bench) -> None:
        for i in range(7):
            await open_stream(bench.store, f"s{i}")  # all in one millisecond
        seen: list[str] = []
        before = None
        while page := await bench.store.streams(tenant=DEFAULT_TENANT, kind="session", limit=3, before=before):
            seen += [info.name for info in page]
            before = (page[-1].updated_at, page[-1].stream)
        assert seen == ["s6", "s5", "s4", "s3", "s2", "s1", "s0"]

    async def test_a_list_holds_one_tenant_and_one_kind(self, bench: Bench) -> None:
        await open_stream(bench.store, "mine")
        await bench.store.admit(said(session_stream(Tenant("acme"), SessionId("theirs")), "hello"))
        await bench.store.admit(said(process_stream(DEFAULT_TENANT, "job"), "hello"))
        sessions = await bench.store.streams(tenant=DEFAULT_TENANT, kind="session", limit=10)
        processes = await bench.store.streams(tenant=DEFAULT_TENANT, kind="process", limit=10)
        assert [info.name for info in sessions] == ["mine"]
        assert [info.name for info in processes] == ["job"]

    # --- deletion

    async def test_deleting_leaves_nothing_behind(self, bench: Bench) -> None:
        hold = await held(bench)
        promise = await promised(bench, "p", hold.stream)
        snapshot = Snapshot(seq=Seq(2), code="v1", data=b"folded")
        await bench.store.append(hold.plan(note("a", key="k"), timers=(SetTimer("t", 9),), snapshot=snapshot))
        await bench.store.admit(said(hold.stream, "more"))
        assert await bench.store.delete(hold.stream)
        assert await bench.store.stream(hold.stream) is None
        assert await bench.store.read(hold.stream) == ()
        assert await bench.store.inbox(hold.stream) == ()
        assert await bench.store.find(hold.stream, "k") is None
        assert await bench.store.peek(promise) is None
        assert await bench.store.next_due() is None
        assert (await bench.store.load(hold.stream, code="v1")).snapshot is None
        assert await bench.store.claimable(ANN, limit=9, now=99) == ()

    async def test_deleting_what_does_not_exist_is_no_deed(self, bench: Bench) -> None:
        assert not await bench.store.delete(stream_of("nowhere"))
        hold = await held(bench)
        assert await bench.store.delete(hold.stream)
        assert not await bench.store.delete(hold.stream)

    async def test_the_owner_of_a_deleted_stream_writes_nothing(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.delete(hold.stream)
        assert await refusal(bench, hold.plan(note("ghost"))) is Code.LEASE_LOST

    async def test_a_stream_of_the_same_name_starts_above_the_old_fence(self, bench: Bench) -> None:
        old = await held(bench)
        await take(bench.store, old.stream, ANN)
        await bench.store.delete(old.stream)
        admission = await bench.store.admit(said(old.stream, "hello"), claim_for=ANN)
        assert isinstance(admission, Admitted)
        assert admission.fence == old.fence + 2
        assert await refusal(bench, old.plan(note("ghost"))) is Code.LEASE_LOST
        assert [row.seq for row in await bench.store.read(old.stream)] == [1]

    async def test_deleting_a_session_leaves_every_other_stream_alone(self, bench: Bench) -> None:
        session, process = await held(bench, "session"), process_stream(DEFAULT_TENANT, "job")
        await bench.store.append(session.plan(outbox=(said(process, "start"),)))
        job = await take(bench.store, process, ANN)
        await bench.store.append(job.plan(note("running"), timers=(SetTimer("t", 50),)))
        await bench.store.delete(session.stream)
        await bench.store.append(job.plan(note("still running")))
        assert notes(await bench.store.read(process)) == [(2, "running"), (3, "still running")]
        assert await bench.store.next_due() == 50
        assert len(await bench.store.inbox(process)) == 1

    # --- change and health

    async def test_version_changes_after_a_commit_of_another_process(self, bench: Bench) -> None:
        other = await bench.reopen()
        seen = [await bench.store.version()]
        for text in "ab":
            await other.admit(said(stream_of("one"), text))
            async with asyncio.timeout(5):  # soon, not always at once
                while (version := await bench.store.version()) in seen:  # noqa: ASYNC110 - another process commits
                    await asyncio.sleep(0.001)
            seen.append(version)

    async def test_version_is_unchanged_without_commits(self, bench: Bench) -> None:
        await open_stream(bench.store, "one")
        first = await bench.store.version()
        await bench.store.read(stream_of("one"))
        await bench.store.claimable(ANN, limit=1, now=0)
        assert await bench.store.version() == first

    async def test_a_healthy_store_has_nothing_to_report(self, bench: Bench) -> None:
        await held(bench)
        assert {line.status for line in await bench.store.check()} == {"ok"}

    async def test_closing_twice_is_closing(self, bench: Bench) -> None:
        other = await bench.reopen()
        await other.close()
        await other.close()

    async def test_durable_records_are_readable_after_reopening(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("a")))
        await bench.store.close()
        other = await bench.reopen()
        assert notes(await other.read(hold.stream)) == [(2, "a")]
        bench.clock.advance(LEASE_MS)
        await enlist(bench, BOB, store=other)
        successor = await take(other, hold.stream, BOB)
        assert (await other.append(successor.plan(note("b")))).first_seq == 3
