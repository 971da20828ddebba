"""Laws of leases: live workers, proven deaths, and lapsed leases."""
# ruff: noqa: D102 - the name of a law is its sentence

from __future__ import annotations

import asyncio

from perdure.commit.plan import SetTimer
from perdure.errors import Code
from perdure.ids import WorkerId
from perdure.inbox.admit import Admitted
from perdure.store.permits import PermitRequest
from perdure.store.shapes import AlreadyOwned, Claim
from perdure.testing.laws.bench import (
    ANN,
    BOB,
    LEASE_MS,
    Bench,
    enlist,
    held,
    note,
    notes,
    open_stream,
    refusal,
    said,
    stream_of,
    take,
)

NEWCOMER = WorkerId("cyd")


class LeaseLaws:
    """Laws of workers and their leases."""

    async def test_a_registered_worker_is_alive(self, bench: Bench) -> None:
        await bench.store.register(ANN, pid=41, version="1.2", now=77)
        (ann,) = await bench.store.workers()
        assert (ann.id, ann.pid, ann.version, ann.started_at, ann.alive) == (ANN, 41, "1.2", 77, True)
        assert bench.store.lease_live(ANN)
        assert not await bench.store.is_dead(ANN)

    async def test_listed_worker_has_host_lease_and_stream_counts(self, bench: Bench) -> None:
        await bench.store.register(BOB, pid=1, version="1", now=0, host="far.example")
        one, two = await held(bench, "one"), await held(bench, "two")
        await bench.store.append(one.plan(note("working"), active=True))
        await bench.store.append(two.plan(note("resting"), active=False))
        by_id = {worker.id: worker for worker in await (await bench.reopen()).workers()}
        assert (by_id[BOB].host, by_id[BOB].held, by_id[BOB].active) == ("far.example", 0, 0)
        assert (by_id[ANN].host, by_id[ANN].held, by_id[ANN].active) == ("", 2, 1)
        assert 0 < by_id[BOB].lease_left_ms <= LEASE_MS
        bench.clock.advance(LEASE_MS + 500)
        await bench.store.renew(ANN)
        by_id = {worker.id: worker for worker in await bench.store.workers()}
        assert -1000 < by_id[BOB].lease_left_ms <= -500
        assert 0 < by_id[ANN].lease_left_ms <= LEASE_MS

    async def test_other_handles_see_a_live_worker_as_alive(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        other = await bench.reopen()
        assert [worker.alive for worker in await other.workers()] == [True]
        assert not await other.is_dead(ANN)

    async def test_unknown_worker_is_dead(self, bench: Bench) -> None:
        assert await bench.store.is_dead(WorkerId("nobody"))
        assert not bench.store.lease_live(WorkerId("nobody"))

    async def test_a_lease_lapses(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        bench.clock.advance(LEASE_MS - 1)
        assert bench.store.lease_live(ANN)
        bench.clock.advance(1)
        assert not bench.store.lease_live(ANN)
        assert [worker.alive for worker in await bench.store.workers()] == [False]

    async def test_a_lapsed_lease_alone_is_not_certain_death(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        bench.clock.advance(LEASE_MS * 10)
        assert not await bench.store.is_dead(ANN)

    async def test_a_renewed_lease_lives_on(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        bench.clock.advance(LEASE_MS - 1)
        await bench.store.renew(ANN)
        bench.clock.advance(LEASE_MS - 1)
        assert bench.store.lease_live(ANN)
        assert [worker.alive for worker in await bench.store.workers()] == [True]

    async def test_lease_is_renewed_from_another_thread(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        bench.clock.advance(LEASE_MS - 1)

        async def renewed() -> None:
            for _ in range(2):
                await bench.store.renew(ANN)
            await bench.store.stop_renewing()

        await asyncio.to_thread(asyncio.run, renewed())
        bench.clock.advance(LEASE_MS - 1)
        assert bench.store.lease_live(ANN)
        assert [worker.alive for worker in await (await bench.reopen()).workers()] == [True]

    async def test_renewal_after_a_lapse_is_counted(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        counted = bench.store.lapses(ANN)
        bench.clock.advance(LEASE_MS - 1)
        await bench.store.renew(ANN)
        assert bench.store.lapses(ANN) == counted
        bench.clock.advance(LEASE_MS)
        assert bench.store.lapses(ANN) == counted, "a lapsed lease is no live lease; only its renewal must be noticed"
        await bench.store.renew(ANN)
        assert bench.store.lease_live(ANN)
        assert bench.store.lapses(ANN) == counted + 1

    async def test_append_that_renews_a_lapsed_lease_is_counted(self, bench: Bench) -> None:
        hold = await held(bench)
        counted = bench.store.lapses(ANN)
        bench.clock.advance(LEASE_MS * 2)
        await bench.store.append(hold.plan(note("still here")))
        assert bench.store.lapses(ANN) == counted + 1

    async def test_a_jump_of_the_wall_clock_expires_nothing(self, bench: Bench) -> None:
        hold = await held(bench)
        await enlist(bench, BOB)
        bench.clock.jump_wall(86_400_000)
        assert bench.store.lease_live(ANN)
        assert await bench.store.claim(hold.stream, BOB) == AlreadyOwned(ANN)
        bench.clock.jump_wall(-2 * 86_400_000)
        assert bench.store.lease_live(ANN)
        assert await bench.store.claim(hold.stream, BOB) == AlreadyOwned(ANN)

    async def test_lapsed_lease_of_unclaimed_streams_is_renewed_by_append(self, bench: Bench) -> None:
        hold = await held(bench)
        await enlist(bench, BOB)
        bench.clock.advance(LEASE_MS * 2)
        assert not bench.store.lease_live(ANN)
        await bench.store.append(hold.plan(note("still here")))
        assert bench.store.lease_live(ANN)
        await bench.store.renew(BOB)
        assert await bench.store.claim(hold.stream, BOB) == AlreadyOwned(ANN)

    async def test_stream_claimed_under_a_lapsed_lease_keeps_its_owner(self, bench: Bench) -> None:
        await enlist(bench, ANN, BOB)
        taken, idle = await open_stream(bench.store, "taken"), stream_of("idle")
        bench.clock.advance(LEASE_MS * 2)  # like a store outage: all leases have lapsed
        assert isinstance(await bench.store.claim(taken, ANN), Claim)
        assert await bench.store.claim(taken, BOB) == AlreadyOwned(ANN)
        await enlist(bench, NEWCOMER)  # a new worker does not know of the outage
        assert await bench.store.claim(taken, NEWCOMER) == AlreadyOwned(ANN)
        bench.clock.advance(LEASE_MS * 2)
        admitted = await bench.store.admit(said(idle, "hello"), claim_for=ANN)
        assert isinstance(admitted, Admitted)
        assert admitted.fence is not None
        assert await bench.store.claim(idle, BOB) == AlreadyOwned(ANN)

    async def test_a_busy_worker_keeps_its_lease_by_appending(self, bench: Bench) -> None:
        hold = await held(bench)
        for step in range(5):
            bench.clock.advance(LEASE_MS // 2)
            await bench.store.append(hold.plan(note(str(step))))
            assert bench.store.lease_live(ANN)
        assert [worker.alive for worker in await (await bench.reopen()).workers()] == [True]

    async def test_append_is_refused_after_a_lapsed_stream_was_claimed(self, bench: Bench) -> None:
        hold = await held(bench)
        bench.clock.advance(LEASE_MS)
        await enlist(bench, BOB)
        await take(bench.store, hold.stream, BOB)
        assert await refusal(bench, hold.plan(note("too late"))) is Code.LEASE_LOST
        assert notes(await bench.store.read(hold.stream)) == []

    async def test_the_streams_of_a_dead_worker_are_free_at_once(self, bench: Bench) -> None:
        hold = await held(bench)
        other = await bench.reopen()
        await enlist(bench, BOB, store=other)
        assert await other.claim(hold.stream, BOB) == AlreadyOwned(ANN)
        bench.kill(ANN)
        assert await other.is_dead(ANN)
        claim = await other.claim(hold.stream, BOB)
        assert isinstance(claim, Claim)
        assert claim.previous == ANN

    async def test_a_dead_worker_cannot_be_renewed(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        bench.kill(ANN)
        await bench.store.renew(ANN)
        assert not bench.store.lease_live(ANN)
        assert await bench.store.is_dead(ANN)

    async def test_a_worker_that_retires_frees_its_streams_at_once(self, bench: Bench) -> None:
        hold = await held(bench)
        await enlist(bench, BOB)
        await bench.store.deregister(ANN)
        assert [worker.id for worker in await bench.store.workers()] == [BOB]
        assert await bench.store.is_dead(ANN)
        assert not bench.store.lease_live(ANN)
        claim = await bench.store.claim(hold.stream, BOB)
        assert isinstance(claim, Claim)
        assert claim.previous is None
        assert await refusal(bench, hold.plan(note("ghost"))) is Code.LEASE_LOST

    async def test_a_worker_that_retires_with_loose_ends_was_last_seen_then(self, bench: Bench) -> None:
        await held(bench)
        bench.clock.advance(LEASE_MS // 2)
        await bench.store.deregister(ANN, abandoned_calls=True)
        bench.clock.advance(40)
        (ann,) = await (await bench.reopen()).workers()
        assert not ann.alive
        assert ann.seen_ms_ago == 40

    async def test_starting_worker_removes_dead_workers_and_their_idle_streams(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("served"), active=False))
        await bench.store.exchange(
            ANN, asks=(PermitRequest("a", (("tool:x", 1),)), PermitRequest("b", (("tool:x", 1),))), now=0
        )
        bench.kill(ANN)
        await enlist(bench, BOB)
        assert [worker.id for worker in await bench.store.workers()] == [BOB]
        assert await bench.store.permits() == ()
        assert await bench.store.is_dead(ANN)
        claim = await bench.store.claim(hold.stream, BOB)
        assert isinstance(claim, Claim)
        assert (claim.previous, claim.takeovers) == (None, 0), "the dead worker had no work in flight"

    async def test_the_dead_are_remembered_while_something_of_theirs_may_be_under_way(self, bench: Bench) -> None:
        works, told, naps = await held(bench, "works"), await held(bench, "told"), await held(bench, "naps")
        await bench.store.append(works.plan(note("working"), active=True))
        await bench.store.append(told.plan(note("resting"), active=False))
        await bench.store.admit(said(told.stream, "more"))
        await bench.store.append(naps.plan(note("napping"), timers=(SetTimer("nap", 5),), active=False))
        bench.kill(ANN)
        await enlist(bench, BOB)
        assert [worker.id for worker in await bench.store.workers()] == [ANN, BOB]
        for hold in (works, told, naps):
            claim = await bench.store.claim(hold.stream, BOB)
            assert isinstance(claim, Claim)
            assert (claim.previous, claim.takeovers) == (ANN, 1)

    async def test_lapsed_worker_without_proof_of_death_stays_registered(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        bench.clock.advance(LEASE_MS * 1000)
        await enlist(bench, BOB)
        assert not await bench.store.is_dead(ANN)

    async def test_retiring_leaves_the_streams_of_others_alone(self, bench: Bench) -> None:
        hold = await held(bench)
        await enlist(bench, BOB)
        await bench.store.deregister(BOB)
        await bench.store.append(hold.plan(note("mine")))

    async def test_a_stuck_lease_is_diagnosed(self, bench: Bench) -> None:
        await held(bench)
        assert {line.status for line in await bench.store.check()} == {"ok"}
        bench.kill(ANN)
        assert [line.what for line in await bench.store.check() if line.status == "warn"] == ["leases"]
