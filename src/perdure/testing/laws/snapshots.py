"""Laws of snapshots: droppable, valid only for the code version that wrote them."""
# ruff: noqa: D102 - the name of a law is its sentence

from __future__ import annotations

from perdure.commit.plan import Snapshot
from perdure.ids import Seq
from perdure.testing.laws.bench import Bench, held, note, notes, said, stream_of

AT_THREE = Snapshot(seq=Seq(3), code="v1", data=b"folded")


class SnapshotLaws:
    """Laws of snapshots and of cold claims."""

    async def test_without_a_snapshot_a_cold_claim_reads_the_whole_log(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("a"), note("b")))
        loaded = await bench.store.load(hold.stream, code="v1")
        assert loaded.snapshot is None
        assert [row.seq for row in loaded.rows] == [1, 2, 3]

    async def test_with_a_snapshot_a_cold_claim_reads_only_what_follows(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("a"), note("b"), snapshot=AT_THREE))
        await bench.store.append(hold.plan(note("c")))
        loaded = await (await bench.reopen()).load(hold.stream, code="v1")
        assert loaded.snapshot == AT_THREE
        assert notes(loaded.rows) == [(4, "c")]

    async def test_a_snapshot_of_another_code_version_is_passed_over(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("a"), note("b"), snapshot=AT_THREE))
        loaded = await bench.store.load(hold.stream, code="v2")
        assert loaded.snapshot is None
        assert [row.seq for row in loaded.rows] == [1, 2, 3]

    async def test_a_snapshot_replaces_the_one_before(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("a"), note("b"), snapshot=AT_THREE))
        newer = Snapshot(seq=Seq(4), code="v2", data=b"folded again")
        await bench.store.append(hold.plan(note("c"), snapshot=newer))
        assert (await bench.store.load(hold.stream, code="v1")).snapshot is None
        loaded = await bench.store.load(hold.stream, code="v2")
        assert (loaded.snapshot, loaded.rows) == (newer, ())

    async def test_dropping_a_snapshot_changes_nothing_else(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("a"), note("b"), snapshot=AT_THREE))
        before = await bench.store.read(hold.stream)
        await bench.store.drop_snapshot(hold.stream)
        await bench.store.drop_snapshot(stream_of("nowhere"))
        loaded = await bench.store.load(hold.stream, code="v1")
        assert loaded.snapshot is None
        assert loaded.rows == before
        await bench.store.append(hold.plan(note("c")))

    async def test_a_cold_claim_reads_the_waiting_inbox(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.admit(said(hold.stream, "a"))
        await bench.store.admit(said(hold.stream, "b"))
        loaded = await bench.store.load(hold.stream, code="v1")
        assert loaded.inbox == await bench.store.inbox(hold.stream)
        assert [row.source_key for row in loaded.inbox] == ["key-a", "key-b"]

    async def test_a_stream_that_does_not_exist_loads_as_nothing(self, bench: Bench) -> None:
        loaded = await bench.store.load(stream_of("nowhere"), code="v1")
        assert (loaded.snapshot, loaded.rows, loaded.inbox) == (None, (), ())
