"""Laws of timers: a due time never changes, also across restarts."""
# ruff: noqa: D102 - the name of a law is its sentence

from __future__ import annotations

from perdure.commit.plan import ClearTimer, SetTimer
from perdure.errors import Code
from perdure.testing.laws.bench import ANN, BOB, Bench, enlist, held, note, parked, refusal, take


class TimerLaws:
    """Laws of timers."""

    async def test_without_timers_nothing_is_due(self, bench: Bench) -> None:
        await parked(bench)
        assert await bench.store.next_due() is None

    async def test_the_earliest_timer_of_all_streams_is_next(self, bench: Bench) -> None:
        await parked(bench, "one", timers=(SetTimer("a", 700), SetTimer("b", 300)))
        await parked(bench, "two", timers=(SetTimer("a", 500),))
        assert await bench.store.next_due() == 300

    async def test_a_timer_keeps_its_original_moment(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(timers=(SetTimer("nap", 500),)))
        await bench.store.append(hold.plan(timers=(SetTimer("nap", 900),)))
        assert await bench.store.next_due() == 500
        await bench.store.append(hold.plan(timers=(SetTimer("nap", 100),)))
        assert await bench.store.next_due() == 500

    async def test_a_timer_survives_reopening_and_a_new_owner(self, bench: Bench) -> None:
        hold = await parked(bench, timers=(SetTimer("nap", 500),))
        other = await bench.reopen()
        await enlist(bench, BOB, store=other)
        successor = await take(other, hold.stream, BOB)
        await other.append(successor.parting(timers=(SetTimer("nap", 900),)))
        assert await other.next_due() == 500
        assert await other.claimable(BOB, limit=9, now=500) == (hold.stream,)

    async def test_a_timer_that_fired_is_cleared_by_its_owner(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(timers=(SetTimer("nap", 500), SetTimer("other", 800))))
        await bench.store.append(hold.parting(note("woke"), timers=(ClearTimer("nap"),)))
        assert await bench.store.next_due() == 800
        assert await bench.store.claimable(ANN, limit=9, now=500) == ()

    async def test_a_cleared_timer_may_be_set_anew(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(timers=(SetTimer("nap", 500),)))
        await bench.store.append(hold.plan(timers=(ClearTimer("nap"), SetTimer("nap", 900))))
        assert await bench.store.next_due() == 900

    async def test_clearing_a_timer_that_is_not_set_does_nothing(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("a"), timers=(ClearTimer("nap"),)))
        assert await bench.store.next_due() is None

    async def test_a_due_timer_stays_until_its_owner_clears_it(self, bench: Bench) -> None:
        hold = await parked(bench, timers=(SetTimer("nap", 500),))
        for _ in range(2):
            assert await bench.store.claimable(ANN, limit=9, now=10_000) == (hold.stream,)
        assert await bench.store.next_due() == 500

    async def test_a_refused_plan_sets_and_clears_no_timer(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("a", key="k"), timers=(SetTimer("old", 500),)))
        plan = hold.plan(note("b", key="k"), timers=(ClearTimer("old"), SetTimer("new", 100)))
        assert await refusal(bench, plan) is Code.GATE_CLOSED
        assert await bench.store.next_due() == 500
