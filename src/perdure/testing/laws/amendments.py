"""Laws of unowned streams: conditional appends with blobs, on the state they were decided on."""
# ruff: noqa: D102 - the name of a law is its sentence

from __future__ import annotations

import asyncio

import pytest

from perdure.commit.changes import Amendment, NewStream
from perdure.commit.plan import Snapshot, blob_of
from perdure.errors import Code, Error
from perdure.ids import DEFAULT_TENANT, BlobHash, Seq, SessionId, StreamId, files_stream
from perdure.store.protocol import Store
from perdure.testing.laws.bench import Bench, note, notes, open_stream, stream_of

OLD = blob_of(b"what a file said", "text/plain")
NEW = blob_of(b"what it says now", "text/plain")
BESIDE = files_stream(DEFAULT_TENANT, SessionId("one"))


async def beside(store: Store, name: str = "one") -> StreamId:
    """Create a files stream that belongs to a session, with one record and one blob."""
    session, stream = await open_stream(store, name), files_stream(DEFAULT_TENANT, SessionId(name))
    opening = note("opened", key="at:1")
    await store.create(
        NewStream(stream=stream, agent="agent", entries=(opening,), at=7, blobs=(OLD,), beside=session)
    )  # fmt: skip
    return stream


async def is_stored(store: Store, hash: BlobHash) -> bool:
    """Return True if the blob is stored."""
    try:
        await store.blob(hash)
    except Error as problem:
        if problem.code is not Code.BLOB_UNKNOWN:
            raise
        return False
    return True


class AmendmentLaws:
    """Laws of appends to unowned streams."""

    async def test_a_record_comes_with_its_bytes_and_takes_others_with_it(self, bench: Bench) -> None:
        stream = await beside(bench.store)
        change = Amendment(stream=stream, entry=note("two", key="at:2"), blobs=(NEW,), drops=(OLD.hash,))
        noted = await bench.store.amend(change)
        assert (noted.new, noted.row.seq) == (True, 2)
        other = await bench.reopen()
        assert notes(await other.read(stream)) == [(1, "opened"), (2, "two")]
        assert await other.blob(NEW.hash, stream=stream) == NEW
        assert not await is_stored(other, OLD.hash)

    async def test_under_a_key_that_is_taken_nothing_is_done(self, bench: Bench) -> None:
        stream = await beside(bench.store)
        await bench.store.amend(Amendment(stream=stream, entry=note("two", key="at:2")))
        fold = Snapshot(Seq(2), "code", b"{}")
        late = Amendment(
            stream=stream, entry=note("late", key="at:2"), blobs=(NEW,), drops=(OLD.hash,), snapshot=fold
        )  # fmt: skip
        noted = await bench.store.amend(late)
        assert not noted.new
        assert notes([noted.row]) == [(2, "two")]
        assert notes(await bench.store.read(stream)) == [(1, "opened"), (2, "two")]
        assert not await is_stored(bench.store, NEW.hash)
        assert await is_stored(bench.store, OLD.hash)
        assert (await bench.store.load(stream, code="code")).snapshot is None

    async def test_concurrent_conditional_appends_write_exactly_one_record(self, bench: Bench) -> None:
        stream = await beside(bench.store)
        stores = [bench.store, await bench.reopen()]
        changes = [Amendment(stream=stream, entry=note(f"by {who}", key="at:2")) for who in range(8)]
        noted = await asyncio.gather(*[stores[who % 2].amend(change) for who, change in enumerate(changes)])
        assert sum(one.new for one in noted) == 1
        assert len({one.row.data for one in noted}) == 1
        assert len(await bench.store.read(stream)) == 2

    async def test_a_snapshot_is_kept_with_its_record(self, bench: Bench) -> None:
        stream = await beside(bench.store)
        fold = Snapshot(Seq(2), "code", b'{"folded":2}')
        await bench.store.amend(Amendment(stream=stream, entry=note("two", key="at:2"), snapshot=fold))
        await bench.store.amend(Amendment(stream=stream, entry=note("three", key="at:3")))
        loaded = await (await bench.reopen()).load(stream, code="code")
        assert loaded.snapshot == fold
        assert notes(loaded.rows) == [(3, "three")]

    async def test_companion_stream_is_not_claimable(self, bench: Bench) -> None:
        stream = await beside(bench.store)
        await bench.store.amend(Amendment(stream=stream, entry=note("two", key="at:2")))
        found = await bench.store.stream(stream)
        assert found is not None
        assert (found.kind, found.active, found.parked, found.owner) == ("files", False, False, None)
        listed = await bench.store.streams(tenant=DEFAULT_TENANT, kind="session", limit=10)
        assert [info.name for info in listed] == ["one"]

    async def test_bytes_that_another_stream_has_too_stay(self, bench: Bench) -> None:
        one, two = await beside(bench.store, "one"), await beside(bench.store, "two")
        await bench.store.amend(Amendment(stream=one, entry=note("two", key="at:2"), drops=(OLD.hash,)))
        assert await is_stored(bench.store, OLD.hash)
        await bench.store.amend(Amendment(stream=two, entry=note("two", key="at:2"), drops=(OLD.hash,)))
        assert not await is_stored(bench.store, OLD.hash)

    async def test_blob_stays_readable_while_other_streams_drop_it(self, bench: Bench) -> None:
        streams = [await beside(bench.store, f"s{n}") for n in range(4)]
        stores = [bench.store, await bench.reopen()]

        async def turns(which: int) -> None:
            store, stream = stores[which % 2], streams[which]
            for n in range(2, 12):
                drops, blobs = ((OLD.hash,), ()) if n % 2 == 0 else ((), (OLD,))
                change = Amendment(stream=stream, entry=note(f"{n}", key=f"at:{n}"), blobs=blobs, drops=drops)
                assert (await store.amend(change)).new
                if blobs:
                    assert await store.blob(OLD.hash, stream=stream) == OLD

        await asyncio.gather(*[turns(which) for which in range(4)])

    async def test_a_stream_that_is_not_there_cannot_be_amended(self, bench: Bench) -> None:
        with pytest.raises(Error) as caught:
            await bench.store.amend(Amendment(stream=BESIDE, entry=note("two", key="at:2"), blobs=(NEW,)))
        assert caught.value.code is Code.SESSION_UNKNOWN
        assert not await is_stored(bench.store, NEW.hash)

    async def test_companion_stream_is_refused_without_its_session(self, bench: Bench) -> None:
        new = NewStream(stream=BESIDE, agent="a", entries=(note("x"),), at=7, blobs=(OLD,), beside=stream_of("one"))
        with pytest.raises(Error) as caught:
            await bench.store.create(new)
        assert caught.value.code is Code.SESSION_UNKNOWN
        assert await bench.store.stream(BESIDE) is None
        assert not await is_stored(bench.store, OLD.hash)

    async def test_deleting_a_session_deletes_its_companion_stream(self, bench: Bench) -> None:
        stream = await beside(bench.store)
        other = await beside(bench.store, "other")
        assert await bench.store.delete(stream_of("one"), beside=(stream,))
        assert await bench.store.stream(stream) is None
        assert await bench.store.read(stream) == ()
        assert await is_stored(bench.store, OLD.hash)
        assert await bench.store.delete(stream_of("other"), beside=(other,))
        assert not await is_stored(bench.store, OLD.hash)
        assert not await bench.store.delete(stream_of("other"), beside=(other,))

    async def test_concurrent_create_and_delete_leave_no_stream_or_blob(self, bench: Bench) -> None:
        other = await bench.reopen()
        for n in range(6):
            session = await open_stream(bench.store, f"s{n}")
            stream = files_stream(DEFAULT_TENANT, SessionId(f"s{n}"))
            new = NewStream(stream=stream, agent="a", entries=(note("x"),), at=7, blobs=(OLD,), beside=session)
            await asyncio.gather(
                other.create(new), bench.store.delete(session, beside=(stream,)), return_exceptions=True
            )  # fmt: skip
            assert (await bench.store.stream(session), await bench.store.stream(stream)) == (None, None)
        assert not await is_stored(bench.store, OLD.hash)
