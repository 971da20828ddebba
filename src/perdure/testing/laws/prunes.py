"""Laws of pruning: an append removes the named records of its own stream, and nothing else."""
# ruff: noqa: D102 - the name of a law is its sentence

from __future__ import annotations

from perdure.commit.plan import MAX_COMMIT_ROWS, Prune, Snapshot
from perdure.errors import Code
from perdure.ids import DEFAULT_TENANT, Seq, schedule_stream
from perdure.inbox.admit import Admitted, Duplicate
from perdure.testing.laws.bench import Bench, held, note, notes, refusal, repeated, said

PRUNED = schedule_stream(DEFAULT_TENANT, "one")
"""A stream of a kind that is pruned: in others, a gap is damage."""


class PruneLaws:
    """Laws of pruning."""

    async def test_pruned_records_leave_gaps_in_the_sequence(self, bench: Bench) -> None:
        hold, other = await held(bench, stream=PRUNED), await held(bench, "two")
        for one in (hold, other):
            await bench.store.append(one.plan(note("a", key="k"), note("b"), note("c", key="l")))
        pruned = await bench.store.append(hold.plan(note("d"), prunes=Prune((Seq(2), Seq(3)))))
        assert (pruned.first_seq, pruned.last_seq) == (5, 5)
        again = await bench.reopen()
        for store in (bench.store, again):
            assert notes(await store.read(hold.stream)) == [(4, "c"), (5, "d")]
            assert notes(await store.read(hold.stream, after=Seq(1), limit=1)) == [(4, "c")]
            assert notes((await store.load(hold.stream, code="x")).rows) == [(4, "c"), (5, "d")]
            assert await store.find(hold.stream, "k") is None
            assert await store.find(hold.stream, "l") is not None
            assert len(await store.read(other.stream)) == 4, "another stream keeps its records"
        assert (await bench.store.append(hold.plan(note("e", key="k")))).first_seq == 6, "the pruned key is free again"
        info = await bench.store.stream(hold.stream)
        assert info is not None
        assert info.last_seq == 6

    async def test_a_source_key_that_is_pruned_is_forgotten_and_no_other(self, bench: Bench) -> None:
        hold = await held(bench)
        for key in ("a", "b"):
            await bench.store.admit(said(hold.stream, key, key=key))
        waiting = [row.id for row in await bench.store.inbox(hold.stream)]
        await bench.store.append(hold.plan(consume=tuple(waiting)))
        await bench.store.append(hold.plan(note("pruned"), prunes=Prune(source_keys=("a",))))
        assert isinstance(await bench.store.admit(said(hold.stream, "something else", key="a")), Admitted)
        assert isinstance(await bench.store.admit(said(hold.stream, "b", key="b")), Duplicate)

    async def test_a_refused_plan_prunes_nothing(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.admit(said(hold.stream, "a", key="a"))
        await bench.store.append(hold.plan(note("a"), note("gate", key="gate")))
        prunes = Prune((Seq(2),), ("a",))
        assert await refusal(bench, hold.plan(note("x", key="gate"), prunes=prunes)) is Code.GATE_CLOSED
        hold.n -= 1
        assert await refusal(bench, hold.plan(note("x"), unless=("gate",), prunes=prunes)) is Code.GATE_CLOSED
        hold.n -= 1
        assert notes(await bench.store.read(hold.stream)) == [(2, "a"), (3, "gate")]
        assert isinstance(await bench.store.admit(said(hold.stream, "a", key="a")), Duplicate)
        await bench.store.append(hold.plan(note("b"), prunes=prunes))
        assert notes(await bench.store.read(hold.stream)) == [(3, "gate"), (4, "b")]

    async def test_the_same_prune_again_gets_its_receipt(self, bench: Bench) -> None:
        hold = await held(bench, stream=PRUNED)
        await bench.store.append(hold.plan(note("a"), note("b")))
        snapshot = Snapshot(Seq(3), "x", b"{}")
        plan = hold.plan(note("c"), snapshot=snapshot, prunes=Prune((Seq(2),)))
        first = await bench.store.append(plan)
        assert await bench.store.append(plan) == repeated(first)
        loaded = await bench.store.load(hold.stream, code="x")
        assert (loaded.snapshot, notes(loaded.rows)) == (snapshot, [(4, "c")])

    async def test_pruning_missing_records_has_no_effect(self, bench: Bench) -> None:
        hold = await held(bench)
        prunes = Prune((Seq(2), Seq(99)), ("nobody",))
        await bench.store.append(hold.plan(note("a")))
        for text in ("b", "c"):
            await bench.store.append(hold.plan(note(text), prunes=prunes))
        assert notes(await bench.store.read(hold.stream)) == [(3, "b"), (4, "c")]

    async def test_pruned_records_count_towards_the_append_size(self, bench: Bench) -> None:
        hold = await held(bench)
        plan = hold.plan(note("a"), prunes=Prune(tuple(Seq(n) for n in range(MAX_COMMIT_ROWS))))
        assert await refusal(bench, plan) is Code.STORE_COMMIT_ROW_BUDGET_EXCEEDED

    async def test_appends_that_follow_a_prune_stand_behind_it(self, bench: Bench) -> None:
        """Submit all appends before awaiting one."""
        hold = await held(bench)
        first = bench.store.append(hold.plan(note("a"), note("b")))
        second = bench.store.append(hold.plan(note("c"), prunes=Prune((Seq(2),))))
        third = bench.store.append(hold.plan(note("d")))
        assert [(await one).last_seq for one in (first, second, third)] == [3, 4, 5]
        assert notes(await bench.store.read(hold.stream)) == [(3, "b"), (4, "c"), (5, "d")]
