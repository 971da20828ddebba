"""Laws of promises: the first resolution wins, and no wake is lost between poll and park."""
# ruff: noqa: D102 - the name of a law is its sentence

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from perdure.commit.plan import SetTimer
from perdure.errors import Code, Error
from perdure.ids import PromiseId
from perdure.inbox.items import Wake
from perdure.store.shapes import Accepted, AlreadyResolved, PromiseUnknown
from perdure.testing.laws.bench import (
    ANN,
    BOB,
    Bench,
    enlist,
    held,
    note,
    open_stream,
    parked,
    promised,
    stream_of,
)
from perdure.vocab.promises import Cancelled, Failure, Ok, PromiseState, Resolution, TimedOut


class PromiseLaws:
    """Laws of promises and waits."""

    async def test_a_promise_is_created_once(self, bench: Bench) -> None:
        stream = await open_stream(bench.store, "one")
        first = PromiseState(id=PromiseId("p"), stream=stream, deadline_at=50)
        assert await bench.store.promise(first) == first
        assert await bench.store.promise(PromiseState(id=PromiseId("p"), stream=stream, deadline_at=99)) == first
        assert await (await bench.reopen()).peek(PromiseId("p")) == first

    async def test_an_answer_may_make_the_promise_that_it_is_for(self, bench: Bench) -> None:
        hold = await parked(bench, waits=(PromiseId("p"),), parked=True)
        made = PromiseState(id=PromiseId("p"), stream=hold.stream, deadline_at=99_000_000_000_000)
        assert await bench.store.resolve(made.id, Ok(value=1), now=1, make=made) == Accepted()
        assert await bench.store.peek(made.id) == replace(made, resolution=Ok(value=1))
        assert await bench.store.claimable(ANN, limit=9, now=0) == (hold.stream,)
        other = replace(made, deadline_at=None)
        assert await bench.store.resolve(made.id, Ok(value=2), now=2, make=other) == AlreadyResolved(Ok(value=1))
        gone = PromiseState(id=PromiseId("q"), stream=stream_of("gone"))
        with pytest.raises(Error) as caught:
            await bench.store.resolve(gone.id, Ok(value=1), now=1, make=gone)
        assert caught.value.code is Code.SESSION_UNKNOWN
        assert await bench.store.peek(gone.id) is None

    async def test_an_answer_keeps_the_promise_as_it_was_made_first(self, bench: Bench) -> None:
        hold = await held(bench)
        first = PromiseState(id=PromiseId("p"), stream=hold.stream, deadline_at=0)
        await bench.store.promise(first)
        again = replace(first, deadline_at=None)
        answered = await bench.store.resolve(first.id, Ok(value=1), now=1, make=again)
        assert answered == AlreadyResolved(TimedOut()), "the deadline had passed"

    async def test_a_promise_needs_its_stream(self, bench: Bench) -> None:
        with pytest.raises(Error) as caught:
            await promised(bench, "p", stream_of("nowhere"))
        assert caught.value.code is Code.SESSION_UNKNOWN

    async def test_missing_promise_is_reported_as_unknown(self, bench: Bench) -> None:
        assert await bench.store.resolve(PromiseId("p"), Ok(value=1), now=1) == PromiseUnknown()
        assert await bench.store.peek(PromiseId("p")) is None

    async def test_the_first_answer_stands(self, bench: Bench) -> None:
        promise = await promised(bench, "p", await open_stream(bench.store, "one"))
        assert await bench.store.resolve(promise, Ok(value={"yes": 1}), now=1) == Accepted()
        assert await bench.store.resolve(promise, Cancelled(), now=2) == AlreadyResolved(Ok(value={"yes": 1}))
        state = await bench.store.peek(promise)
        assert state is not None
        assert state.resolution == Ok(value={"yes": 1})

    @pytest.mark.parametrize(
        "answer", [Ok(), Ok(value=[1, "two"]), Failure(code="no", message="because", raw={"a": None}), TimedOut()]
    )
    async def test_an_answer_is_read_as_it_was_given(
        self, bench: Bench, answer: Ok | Failure | TimedOut | Cancelled
    ) -> None:
        promise = await promised(bench, "p", await open_stream(bench.store, "one"))
        await bench.store.resolve(promise, answer, now=1)
        state = await (await bench.reopen()).peek(promise)
        assert state is not None
        assert state.resolution == answer

    async def test_several_answers_are_one_write_and_wake_once_each(self, bench: Bench) -> None:
        waits = (PromiseId("p"), PromiseId("q"))
        hold = await parked(bench, waits=waits, parked=True)
        await promised(bench, "p", hold.stream)
        answers = [(PromiseState(id=wait, stream=hold.stream), Ok(value=wait)) for wait in waits]
        assert await bench.store.resolve_all(answers, now=7) == {}
        found = [await bench.store.peek(wait) for wait in waits]
        assert [state and state.resolution for state in found] == [Ok(value="p"), Ok(value="q")]
        assert [row.at for row in await bench.store.inbox(hold.stream)] == [7, 7]
        assert await bench.store.claimable(ANN, limit=9, now=0) == (hold.stream,)
        assert await bench.store.resolve_all(answers, now=8) == {wait: Ok(value=wait) for wait in waits}
        assert len(await bench.store.inbox(hold.stream)) == 2

    @pytest.mark.parametrize("what", ["answered", "late", "late from the start", "gone"])
    async def test_several_answers_are_taken_together_or_not_at_all(self, bench: Bench, what: str) -> None:
        waits = (PromiseId("a"), PromiseId("b"), PromiseId("c"))
        hold = await parked(bench, waits=waits, parked=True)
        made = [PromiseState(id=wait, stream=hold.stream) for wait in waits]
        expected: dict[PromiseId, Resolution] = {PromiseId("b"): TimedOut()}
        match what:
            case "answered":
                await bench.store.resolve(PromiseId("b"), Failure(code="no", message=""), now=1, make=made[1])
                expected = {PromiseId("b"): Failure(code="no", message="")}
            case "late":
                await bench.store.promise(replace(made[1], deadline_at=1))
            case "late from the start":
                made[1] = replace(made[1], deadline_at=1)
            case _:
                made[1] = replace(made[1], stream=stream_of("gone"))
        woken = len(await bench.store.inbox(hold.stream))
        answers = [(one, Ok(value=1)) for one in made]
        if what == "gone":
            with pytest.raises(Error) as caught:
                await bench.store.resolve_all(answers, now=2)
            assert caught.value.code is Code.SESSION_UNKNOWN
        else:
            assert await bench.store.resolve_all(answers, now=2) == expected
        other = await bench.reopen()
        for wait in (PromiseId("a"), PromiseId("c")):
            state = await other.peek(wait)
            assert state is None or state.resolution is None, "no resolution was stored"
        assert len(await bench.store.inbox(hold.stream)) == woken, "no stream was woken"
        assert await bench.store.resolve_all([answers[0], answers[2]], now=3) == {}

    async def test_concurrent_resolutions_of_several_promises_are_atomic(self, bench: Bench) -> None:
        stream = await open_stream(bench.store, "one")
        made = [PromiseState(id=PromiseId(f"p{n}"), stream=stream) for n in range(3)]
        brought = [[(one, Ok(value=who)) for one in made[who % 3 :] + made[: who % 3]] for who in range(16)]
        told = await asyncio.gather(*(bench.store.resolve_all(answers, now=1) for answers in brought))
        (first,) = [who for who, closed in enumerate(told) if not closed]
        for who, closed in enumerate(told):
            assert who == first or closed == {one.id: Ok(value=first) for one in made}
        states = [await bench.store.peek(one.id) for one in made]
        assert [state and state.resolution for state in states] == [Ok(value=first)] * 3

    async def test_sixty_four_answers_at_once_and_one_is_accepted(self, bench: Bench) -> None:
        hold = await held(bench)
        promise = await promised(bench, "p", hold.stream)
        await bench.store.append(hold.parting(waits=(promise,)))
        answers = await asyncio.gather(*(bench.store.resolve(promise, Ok(value=i), now=i) for i in range(64)))
        accepted = [i for i, answer in enumerate(answers) if answer == Accepted()]
        assert len(accepted) == 1
        others = [answer for answer in answers if answer != Accepted()]
        assert others == [AlreadyResolved(Ok(value=accepted[0]))] * 63
        assert len(await bench.store.inbox(hold.stream)) == 1

    async def test_a_waiting_stream_is_woken_by_the_answer(self, bench: Bench) -> None:
        hold = await held(bench)
        promise = await promised(bench, "p", hold.stream)
        receipt = await bench.store.append(hold.parting(note("waiting"), waits=(promise,)))
        assert receipt.resolved == ()
        assert await bench.store.claimable(ANN, limit=9, now=0) == ()
        await bench.store.resolve(promise, Ok(value=1), now=33)
        assert await bench.store.claimable(ANN, limit=9, now=0) == (hold.stream,)
        (row,) = await bench.store.inbox(hold.stream)
        assert isinstance(row.item, Wake)
        assert row.at == 33

    async def test_every_stream_that_waits_is_woken_once(self, bench: Bench) -> None:
        owner = await open_stream(bench.store, "owner")
        promise = await promised(bench, "p", owner)
        waiting = [await parked(bench, f"w{i}", waits=(promise,)) for i in range(3)]
        other = await parked(bench, "other")
        await bench.store.resolve(promise, Ok(), now=1)
        await bench.store.resolve(promise, Ok(), now=2)
        assert [len(await bench.store.inbox(hold.stream)) for hold in waiting] == [1, 1, 1]
        assert await bench.store.inbox(other.stream) == ()

    async def test_a_stream_may_wait_for_a_promise_that_is_made_later(self, bench: Bench) -> None:
        hold = await parked(bench, waits=(PromiseId("p"),), parked=True)
        promise = await promised(bench, "p", hold.stream)
        assert await bench.store.resolve(promise, Ok(), now=1) == Accepted()
        assert await bench.store.claimable(ANN, limit=9, now=0) == (hold.stream,)

    async def test_a_secret_is_made_once(self, bench: Bench) -> None:
        assert await bench.store.secret("a", b"one") == b"one"
        assert await (await bench.reopen()).secret("a", b"two") == b"one"
        assert await bench.store.secret("b", b"two") == b"two"

    async def test_an_answer_that_came_first_is_in_the_receipt(self, bench: Bench) -> None:
        hold = await held(bench)
        promise = await promised(bench, "p", hold.stream)
        await bench.store.resolve(promise, Ok(value="early"), now=1)
        receipt = await bench.store.append(hold.parting(note("waiting"), waits=(promise,)))
        assert receipt.resolved == ((promise, Ok(value="early")),)
        assert await bench.store.inbox(hold.stream) == ()

    async def test_a_plan_that_meets_an_answer_does_not_park(self, bench: Bench) -> None:
        hold = await held(bench)
        early, later = await promised(bench, "early", hold.stream), await promised(bench, "later", hold.stream)
        await bench.store.resolve(early, Ok(), now=1)
        receipt = await bench.store.append(hold.parting(note("waiting"), waits=(early, later), parked=True))
        assert receipt.resolved == ((early, Ok()),)
        info = await bench.store.stream(hold.stream)
        assert info is not None
        assert (info.active, info.parked) == (True, False)
        await bench.store.append(hold.plan(note("goes on")))
        await bench.store.resolve(later, Ok(), now=2)
        assert await bench.store.inbox(hold.stream) == ()

    async def test_an_answer_met_while_parking_survives_the_death_of_the_worker(self, bench: Bench) -> None:
        hold = await held(bench)
        promise = await promised(bench, "p", hold.stream)
        await bench.store.resolve(promise, Ok(), now=1)
        await bench.store.append(hold.parting(waits=(promise,)))
        bench.kill(ANN)
        await enlist(bench, BOB)
        assert await bench.store.claimable(BOB, limit=9, now=0) == (hold.stream,)

    async def test_a_wait_survives_reopening(self, bench: Bench) -> None:
        hold = await held(bench)
        promise = await promised(bench, "p", hold.stream)
        await bench.store.append(hold.parting(waits=(promise,), timers=(SetTimer("deadline", 900),)))
        other = await bench.reopen()
        assert await other.resolve(promise, Ok(), now=1) == Accepted()
        assert len(await other.inbox(hold.stream)) == 1

    async def test_answers_and_parkings_race_and_no_wake_is_lost(self, bench: Bench) -> None:
        holds = [await held(bench, f"s{i}") for i in range(20)]
        promises = [await promised(bench, f"p{i}", hold.stream) for i, hold in enumerate(holds)]

        async def park(i: int) -> bool:
            receipt = await bench.store.append(holds[i].parting(waits=(promises[i],)))
            return bool(receipt.resolved)

        async def answer(i: int) -> None:
            await bench.store.resolve(promises[i], Ok(), now=1)

        pairs = [(park(i), answer(i)) if i % 2 else (answer(i), park(i)) for i in range(20)]
        results = await asyncio.gather(*(one for pair in pairs for one in pair))
        met = [result for result in results if result is not None]
        for i, hold in enumerate(holds):
            assert met[i] != (len(await bench.store.inbox(hold.stream)) == 1)

    async def test_deleting_the_owner_of_a_promise_wakes_its_waiters(self, bench: Bench) -> None:
        owner = await open_stream(bench.store, "owner")
        promise = await promised(bench, "p", owner)
        hold = await parked(bench, "waiting", waits=(promise,))
        await bench.store.delete(owner)
        assert await bench.store.peek(promise) is None
        assert len(await bench.store.inbox(hold.stream)) == 1
