"""Laws of claims: claimable streams, permission to claim, and the fence that each claim raises."""
# ruff: noqa: D102 - the name of a law is its sentence

from __future__ import annotations

import asyncio

import pytest

from perdure.commit.changes import Label
from perdure.commit.plan import SetTimer
from perdure.errors import Code, Error
from perdure.ids import Fence, PromiseId, Seq, StreamId, WorkerId
from perdure.inbox.admit import Admitted, wake
from perdure.store.protocol import Store
from perdure.store.shapes import IDLE_OWNER_GRACE_MS, AlreadyOwned, Claim, ReadyStream, Serves
from perdure.testing.laws.bench import (
    ANN,
    BOB,
    LEASE_MS,
    Bench,
    Hold,
    enlist,
    held,
    note,
    open_stream,
    parked,
    refusal,
    said,
    stream_of,
    take,
)
from perdure.vocab.records import FORMAT


async def offered(bench: Bench, worker: WorkerId, *, now: int = 0, limit: int = 100) -> list[StreamId]:
    """Return the streams offered to a worker, sorted."""
    return sorted(await bench.store.claimable(worker, limit=limit, now=now))


async def take_over(bench: Bench, stream: StreamId, name: str) -> int:
    """Kill a stream's owner and claim the stream for another worker. Returns the takeover count of the claim."""
    found = await bench.store.stream(stream)
    assert found is not None
    if found.owner is not None:
        bench.kill(found.owner)
    await enlist(bench, WorkerId(name))
    claim = await bench.store.claim(stream, WorkerId(name))
    assert isinstance(claim, Claim)
    return claim.takeovers


class ClaimLaws:
    """Laws of claims."""

    async def test_every_claim_raises_theFence(self, bench: Bench) -> None:
        await enlist(bench, ANN, BOB)
        stream = await open_stream(bench.store, "one")
        assert await bench.store.claim(stream, ANN) == Claim(stream, Fence(1), Seq(1), None)
        assert await bench.store.claim(stream, ANN) == Claim(stream, Fence(2), Seq(1), ANN)
        bench.kill(ANN)
        assert await bench.store.claim(stream, BOB) == Claim(stream, Fence(3), Seq(1), ANN, takeovers=1)

    async def test_takeovers_are_counted_until_an_owner_writes_a_record(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("begun"), active=True))
        assert [await take_over(bench, hold.stream, by) for by in "123"] == [1, 2, 3]
        claim = await bench.store.claim(hold.stream, WorkerId("3"))
        assert isinstance(claim, Claim)
        assert claim.takeovers == 3, "a repeated claim returns the same count"
        again = Hold(hold.stream, WorkerId("3"), claim.fence)
        await bench.store.append(again.plan(timers=(SetTimer("t", 5),), active=True))
        assert await take_over(bench, hold.stream, "4") == 4, "an append without a record is no progress"
        await bench.store.annotate(hold.stream, note("somebody else"))
        assert await take_over(bench, hold.stream, "5") == 5, "a record of another writer is no progress"
        claim = await bench.store.claim(hold.stream, WorkerId("5"))
        assert isinstance(claim, Claim)
        await bench.store.append(Hold(hold.stream, WorkerId("5"), claim.fence).plan(note("further"), active=True))
        claim = await bench.store.claim(hold.stream, WorkerId("5"))
        assert isinstance(claim, Claim)
        assert claim.takeovers == 0
        assert await take_over(bench, hold.stream, "6") == 1

    async def test_noting_what_a_lost_worker_left_is_no_progress(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("begun"), active=True))

        async def again(by: str) -> Hold:
            claim = await bench.store.claim(hold.stream, WorkerId(by))
            assert isinstance(claim, Claim)
            return Hold(hold.stream, WorkerId(by), claim.fence)

        for n, by in enumerate("123", start=1):
            assert await take_over(bench, hold.stream, by) == n
            await bench.store.append((await again(by)).plan(note("the last is gone"), active=True, recovers=True))
        await bench.store.append((await again("3")).plan(note("further"), active=True))
        assert await take_over(bench, hold.stream, "4") == 1

    async def test_stream_is_quarantined_after_two_takeovers_without_progress(self, bench: Bench) -> None:
        hold = await held(bench)
        stuck = hold.stream
        await bench.store.append(hold.plan(note("begun"), active=True))

        async def seen(by: str) -> tuple[tuple[StreamId, ...], ...]:
            await enlist(bench, WorkerId(by))
            return tuple(
                [
                    await bench.store.claimable(WorkerId(by), limit=9, now=0, serves=Serves(quarantined=which))
                    for which in ("not", "only", "also")
                ]
            )

        bench.kill(ANN)
        assert await seen("1") == ((stuck,), (), (stuck,)), "one dead owner proves nothing"
        assert await take_over(bench, stuck, "1") == 1
        assert await seen("1") == ((stuck,), (), (stuck,)), "a worker's own stream is not quarantined"
        bench.kill(WorkerId("1"))
        assert await seen("2") == ((), (stuck,), (stuck,))
        assert [ready.stream for ready in await bench.store.claim_ready(WorkerId("2"), limit=9, now=0)] == [stuck]
        assert await bench.store.claim_ready(WorkerId("2"), limit=9, now=0, serves=Serves(quarantined="not")) == ()
        claim = await bench.store.claim(stuck, WorkerId("2"))
        assert isinstance(claim, Claim)
        await bench.store.append(Hold(stuck, WorkerId("2"), claim.fence).plan(note("further"), active=True))
        bench.kill(WorkerId("2"))
        assert await seen("3") == ((stuck,), (), (stuck,)), "the turn made progress"
        assert [await take_over(bench, stuck, by) for by in "34"] == [1, 2]
        claim = await bench.store.claim(stuck, WorkerId("4"))
        assert isinstance(claim, Claim)
        await bench.store.append(Hold(stuck, WorkerId("4"), claim.fence).parting(active=True))
        assert await seen("5") == ((stuck,), (), (stuck,)), "the stream was released"

    async def test_a_stream_that_was_given_back_is_not_taken_over(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("begun"), active=True))
        assert await take_over(bench, hold.stream, "1") == 1
        claim = await bench.store.claim(hold.stream, WorkerId("1"))
        assert isinstance(claim, Claim)
        await bench.store.append(Hold(hold.stream, WorkerId("1"), claim.fence).parting(active=True))
        assert await take_over(bench, hold.stream, "2") == 0, "the stream was free"
        assert await take_over(bench, hold.stream, "3") == 1, "the worker that released the stream survived it"

    async def test_released_stream_claimed_by_scan_resets_the_takeover_count(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("begun"), active=True))
        for by in "123":
            assert await take_over(bench, hold.stream, by) == 1
            claim = await bench.store.claim(hold.stream, WorkerId(by))
            assert isinstance(claim, Claim)
            await bench.store.append(Hold(hold.stream, WorkerId(by), claim.fence).parting(active=True))
            await enlist(bench, WorkerId(f"after {by}"))
            (ready,) = await bench.store.claim_ready(WorkerId(f"after {by}"), limit=5, now=0)
            assert ready.claim is not None

    async def test_takeover_is_counted_when_owner_dies_before_first_append(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        stream = await open_stream(bench.store, "one")
        await take(bench.store, stream, ANN)
        assert [await take_over(bench, stream, by) for by in "123"] == [1, 2, 3]

    async def test_a_claim_tells_the_last_seq(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.parting(note("a"), note("b")))
        claim = await bench.store.claim(hold.stream, ANN)
        assert isinstance(claim, Claim)
        assert (claim.last_seq, claim.previous) == (3, None)

    async def test_a_stream_that_a_live_worker_holds_is_held(self, bench: Bench) -> None:
        hold = await held(bench)
        await enlist(bench, BOB)
        assert await bench.store.claim(hold.stream, BOB) == AlreadyOwned(ANN)
        await bench.store.append(hold.plan(note("mine")))

    async def test_a_stream_that_does_not_exist_cannot_be_claimed(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        assert await bench.store.claim(stream_of("nowhere"), ANN) is None

    async def test_the_stream_of_a_lapsed_lease_may_be_taken(self, bench: Bench) -> None:
        hold = await held(bench)
        bench.clock.advance(LEASE_MS)
        await enlist(bench, BOB)
        claim = await bench.store.claim(hold.stream, BOB)
        assert isinstance(claim, Claim)
        assert (claim.previous, claim.fence) == (ANN, hold.fence + 1)

    async def test_two_workers_race_for_a_hundred_streams_and_each_is_claimed_once(self, bench: Bench) -> None:
        other = await bench.reopen()
        await enlist(bench, ANN)
        await enlist(bench, BOB, store=other)
        streams = [await open_stream(bench.store, f"s{i}") for i in range(100)]

        async def grab(store: Store, worker: WorkerId) -> list[Claim | AlreadyOwned | None]:
            return list(await asyncio.gather(*(store.claim(stream, worker) for stream in streams)))

        by_ann, by_bob = await asyncio.gather(grab(bench.store, ANN), grab(other, BOB))
        for mine, theirs in zip(by_ann, by_bob, strict=True):
            assert isinstance(mine, Claim) != isinstance(theirs, Claim)
            assert AlreadyOwned(BOB) == mine or AlreadyOwned(ANN) == theirs

    # --- claimable streams

    async def test_a_stream_with_an_inbox_row_has_work(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        stream = await open_stream(bench.store, "one")
        assert await offered(bench, ANN) == [stream]

    async def test_a_parked_stream_has_no_work(self, bench: Bench) -> None:
        await parked(bench)
        assert await offered(bench, ANN) == []

    async def test_a_stream_has_work_when_its_timer_is_due(self, bench: Bench) -> None:
        hold = await parked(bench, timers=(SetTimer("alarm", 500),))
        assert await offered(bench, ANN, now=499) == []
        assert await offered(bench, ANN, now=500) == [hold.stream]

    async def test_a_turn_left_unfinished_by_a_dead_worker_is_work(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("in the middle"), active=True))
        await enlist(bench, BOB)
        assert await offered(bench, BOB) == []
        bench.kill(ANN)
        assert await offered(bench, BOB) == [hold.stream]

    async def test_a_turn_left_unfinished_by_a_retired_worker_is_work(self, bench: Bench) -> None:
        hold = await held(bench)
        await enlist(bench, BOB)
        await bench.store.deregister(ANN)
        assert await offered(bench, BOB) == [hold.stream]

    async def test_a_turn_given_back_unfinished_is_work(self, bench: Bench) -> None:
        hold = await parked(bench, active=True)
        assert await offered(bench, ANN) == [hold.stream]

    async def test_work_of_a_live_worker_is_not_offered_to_others(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(active=False))
        await bench.store.admit(said(hold.stream, "more"))
        await enlist(bench, BOB)
        assert await offered(bench, BOB) == []

    async def test_input_of_an_idle_owner_is_claimable_after_grace(self, bench: Bench) -> None:
        hold = await held(bench)
        await enlist(bench, BOB)
        await bench.store.admit(said(hold.stream, "more"))
        bench.clock.advance(50)
        await bench.store.append(hold.plan(note("served"), active=False))
        bench.clock.advance(IDLE_OWNER_GRACE_MS - 1)
        assert await offered(bench, BOB) == [], "the owner has just written"
        assert await bench.store.claim(hold.stream, BOB) == AlreadyOwned(ANN)
        bench.clock.advance(1)
        assert await offered(bench, BOB) == [hold.stream]
        assert await bench.store.claim_ready(BOB, limit=9, now=0) == (ReadyStream(hold.stream, "default", None),)
        claim = await bench.store.claim(hold.stream, BOB)
        assert isinstance(claim, Claim)
        assert (claim.previous, claim.fence, claim.takeovers) == (ANN, hold.fence + 1, 0), "no worker died: no takeover"
        assert await refusal(bench, hold.plan(note("late"))) is Code.LEASE_LOST
        await bench.store.append(Hold(hold.stream, BOB, claim.fence).plan(note("goes on")))

    async def test_new_input_is_left_to_the_idle_owner_for_grace(self, bench: Bench) -> None:
        hold = await held(bench)
        await enlist(bench, BOB)
        await bench.store.append(hold.plan(note("served"), active=False))
        bench.clock.advance(IDLE_OWNER_GRACE_MS)
        assert await offered(bench, BOB) == []
        await bench.store.admit(said(hold.stream, "more"))
        bench.clock.advance(IDLE_OWNER_GRACE_MS - 1)
        assert await offered(bench, BOB) == []
        assert await bench.store.claim(hold.stream, BOB) == AlreadyOwned(ANN)
        bench.clock.advance(1)
        assert await offered(bench, BOB) == [hold.stream]

    async def test_working_starting_or_waiting_owner_keeps_its_stream(self, bench: Bench) -> None:
        works, waits, begins = await held(bench, "works"), await held(bench, "waits"), await held(bench, "begins")
        await enlist(bench, BOB)
        for hold in (works, waits, begins):
            await bench.store.admit(said(hold.stream, "more"))
        await bench.store.append(begins.plan(active=False))
        await take(bench.store, begins.stream, ANN)
        await bench.store.append(works.plan(note("working"), active=True))
        await bench.store.append(waits.plan(note("waiting"), active=False, parked=True))
        bench.clock.advance(IDLE_OWNER_GRACE_MS * 2)
        assert await offered(bench, BOB) == []
        for hold in (works, waits, begins):
            assert await bench.store.claim(hold.stream, BOB) == AlreadyOwned(ANN)

    async def test_annotation_does_not_delay_a_ready_stream(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        first = await open_stream(bench.store, "first")
        bench.clock.advance(10)
        second = await open_stream(bench.store, "second")
        bench.clock.advance(10)
        await bench.store.annotate(first, note("titled"), label=Label(title="a title"))
        await bench.store.annotate(first, note("noted"))
        assert await bench.store.claimable(ANN, limit=9, now=0) == (first, second)

    async def test_work_of_a_lapsed_worker_is_offered_to_others(self, bench: Bench) -> None:
        hold = await held(bench)
        bench.clock.advance(LEASE_MS)
        await enlist(bench, BOB)
        assert await offered(bench, BOB) == [hold.stream]

    async def test_a_worker_is_offered_what_it_holds_idle(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(active=False))
        assert await offered(bench, ANN) == []
        await bench.store.admit(said(hold.stream, "more"))
        assert await offered(bench, ANN) == [hold.stream]

    async def test_a_worker_is_offered_the_turn_it_holds_and_does_not_drive(self, bench: Bench) -> None:
        hold = await parked(bench, active=True)
        (ready,) = await bench.store.claim_ready(ANN, limit=9, now=0)
        assert ready.claim is not None, "suppose the reply was lost"
        assert await offered(bench, ANN) == [hold.stream]
        assert await bench.store.claim_ready(ANN, limit=9, now=0) == (ReadyStream(hold.stream, "default", None),)
        busy = Serves(driving=(hold.stream,))
        assert await bench.store.claimable(ANN, limit=9, now=0, serves=busy) == ()
        assert await bench.store.claim_ready(ANN, limit=9, now=0, serves=busy) == ()
        claim = await bench.store.claim(hold.stream, ANN)
        assert isinstance(claim, Claim)
        await bench.store.append(Hold(hold.stream, ANN, claim.fence).plan(note("goes on")))

    async def test_no_more_is_offered_than_asked_for(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        for i in range(5):
            await open_stream(bench.store, f"s{i}")
        assert len(await offered(bench, ANN, limit=3)) == 3

    async def test_a_stream_with_several_kinds_of_work_is_offered_once(self, bench: Bench) -> None:
        hold = await parked(bench, active=True, timers=(SetTimer("a", 1), SetTimer("b", 2)))
        await bench.store.admit(said(hold.stream, "x"))
        await bench.store.admit(said(hold.stream, "y"))
        assert await offered(bench, ANN, now=10) == [hold.stream]

    # --- waiting turns

    async def test_an_input_queues_behind_a_parked_turn(self, bench: Bench) -> None:
        hold = await parked(bench, parked=True)
        admission = await bench.store.admit(said(hold.stream, "more"), claim_for=ANN)
        assert isinstance(admission, Admitted)
        assert admission.fence is None
        assert await offered(bench, ANN) == []

    async def test_news_wakes_a_parked_turn(self, bench: Bench) -> None:
        hold = await parked(bench, parked=True)
        await bench.store.admit(said(hold.stream, "more"))
        await bench.store.admit(wake(hold.stream, PromiseId("p"), at=1))
        assert await offered(bench, ANN) == [hold.stream]

    async def test_a_due_timer_wakes_a_parked_turn(self, bench: Bench) -> None:
        hold = await parked(bench, parked=True, timers=(SetTimer("alarm", 500),))
        assert await offered(bench, ANN, now=499) == []
        assert await offered(bench, ANN, now=500) == [hold.stream]

    async def test_claim_reports_a_parked_turn_until_the_next_append(self, bench: Bench) -> None:
        hold = await parked(bench, parked=True)
        assert await bench.store.claim(hold.stream, ANN) == Claim(hold.stream, Fence(2), Seq(1), None, True)
        info = await bench.store.stream(hold.stream)
        assert info is not None
        assert info.parked
        again = await take(bench.store, hold.stream, ANN)
        await bench.store.append(again.plan(note("goes on")))
        info = await bench.store.stream(hold.stream)
        assert info is not None
        assert (info.parked, info.active) == (False, True)

    async def test_parked_turn_is_woken_after_its_new_owner_died_early(self, bench: Bench) -> None:
        hold = await parked(bench, parked=True)
        await bench.store.admit(wake(hold.stream, PromiseId("p"), at=1))
        await take(bench.store, hold.stream, ANN)
        bench.kill(ANN)
        await enlist(bench, BOB)
        assert await offered(bench, BOB) == [hold.stream]

    # --- old and new workers together

    async def test_a_stream_with_newer_records_is_left_to_newer_workers(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.parting(note("future", version=FORMAT + 1)))
        admission = await bench.store.admit(said(hold.stream, "more"), claim_for=ANN)
        assert isinstance(admission, Admitted)
        assert admission.fence is None
        assert await offered(bench, ANN) == []
        with pytest.raises(Error) as caught:
            await bench.store.claim(hold.stream, ANN)
        assert caught.value.code is Code.FORMAT_NEWER

    async def test_an_admitted_record_counts_for_the_format_too(self, bench: Bench) -> None:
        stream = await open_stream(bench.store, "one")
        await enlist(bench, ANN)
        await bench.store.annotate(stream, note("future", version=FORMAT + 1))
        await bench.store.annotate(stream, note("past", version=FORMAT))
        with pytest.raises(Error) as caught:
            await bench.store.claim(stream, ANN)
        assert caught.value.code is Code.FORMAT_NEWER

    async def test_an_older_record_does_not_lower_the_format(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("future", version=FORMAT + 1)))
        await bench.store.append(hold.parting(note("past", version=FORMAT)))
        with pytest.raises(Error):
            await take(bench.store, hold.stream, ANN)
