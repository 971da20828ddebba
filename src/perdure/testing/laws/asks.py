"""Laws of requests to people: listed for their tenant, resolved once and in time, consumed by the append they allow."""
# ruff: noqa: D102 - the name of a law is its sentence

from __future__ import annotations

import pytest

from perdure.commit.plan import PersonRequest
from perdure.errors import Code, Error
from perdure.ids import DEFAULT_TENANT, PromiseId, StreamId, Tenant
from perdure.store.shapes import Accepted, AlreadyResolved
from perdure.testing.laws.bench import ANN, Bench, Hold, held, note, notes, promised, refusal, take
from perdure.vocab.promises import Cancelled, Ok, PromiseState, TimedOut

NEVER = 2**50
PAST = 1


async def asked(bench: Bench, hold: Hold, id: str = "p", *, deadline_at: int | None = NEVER, at: int = 10) -> PromiseId:
    """Append a request to a person, as its owner, with a record."""
    promise = PromiseId(id)
    ask = PersonRequest(promise, "approval", at, deadline_at)
    await bench.store.append(hold.plan(note(f"asks {id}"), person_requests=(ask,)))
    return promise


async def ids(bench: Bench, *, limit: int = 99, after: tuple[int, PromiseId] | None = None) -> list[str]:
    """Return the open requests of the tenant."""
    return [one.id for one in await bench.store.asked(tenant=DEFAULT_TENANT, limit=limit, after=after)]


class AskLaws:
    """Laws of requests to people."""

    async def test_a_question_is_there_with_its_record(self, bench: Bench) -> None:
        hold = await held(bench)
        promise = await asked(bench, hold, at=10)
        state = PromiseState(
            id=promise, stream=hold.stream, deadline_at=NEVER, request_kind="approval", requested_at=10
        )
        other = await bench.reopen()
        assert await other.peek(promise) == state
        assert await other.asked(tenant=DEFAULT_TENANT, limit=9) == (state,)

    async def test_refused_append_creates_no_person_request(self, bench: Bench) -> None:
        hold = await held(bench)
        stale = Hold(hold.stream, hold.worker, hold.fence, hold.n)
        await take(bench.store, hold.stream, ANN)
        plan = stale.plan(note("late"), person_requests=(PersonRequest(PromiseId("p"), "approval", 1),))
        assert await refusal(bench, plan) is Code.LEASE_LOST
        assert await bench.store.peek(PromiseId("p")) is None

    async def test_the_longest_waiting_question_is_the_first_and_pages_follow_each_other(self, bench: Bench) -> None:
        hold = await held(bench)
        for id, at in (("c", 3), ("a", 5), ("b", 3), ("d", 1)):
            await asked(bench, hold, id, at=at)
        assert await ids(bench) == ["d", "b", "c", "a"]
        assert await ids(bench, limit=2) == ["d", "b"]
        assert await ids(bench, after=(3, PromiseId("b"))) == ["c", "a"]

    async def test_a_question_that_is_answered_is_not_asked_any_more(self, bench: Bench) -> None:
        hold = await held(bench)
        await promised(bench, "not for people", hold.stream)
        promise = await asked(bench, hold)
        await bench.store.resolve(promise, Ok(), now=1)
        assert await ids(bench) == []
        (found,) = await bench.store.asked_as(tenant=DEFAULT_TENANT, prefix="p", limit=2)
        assert found.resolution == Ok()

    async def test_questions_are_found_by_how_they_begin_and_only_by_their_tenant(self, bench: Bench) -> None:
        hold = await held(bench)
        for id in ("abc1", "abc2", "abd"):
            await asked(bench, hold, id)
        found = await bench.store.asked_as(tenant=DEFAULT_TENANT, prefix="abc", limit=9)
        assert [one.id for one in found] == ["abc1", "abc2"]
        assert len(await bench.store.asked_as(tenant=DEFAULT_TENANT, prefix="abc", limit=1)) == 1
        assert await bench.store.asked_as(tenant=Tenant("other"), prefix="abc", limit=9) == ()
        assert await bench.store.asked(tenant=Tenant("other"), limit=9) == ()

    async def test_deleting_a_session_revokes_what_it_asked(self, bench: Bench) -> None:
        hold = await held(bench)
        promise = await asked(bench, hold)
        await bench.store.delete(hold.stream)
        assert await ids(bench) == []
        assert await bench.store.peek(promise) is None

    async def test_an_answer_after_the_deadline_is_none(self, bench: Bench) -> None:
        hold = await held(bench)
        promise = await asked(bench, hold, deadline_at=PAST)
        assert await bench.store.resolve(promise, Ok(value="yes"), now=0) == AlreadyResolved(TimedOut())
        assert await bench.store.resolve(promise, Ok(value="yes"), now=0) == AlreadyResolved(TimedOut())

    async def test_deadline_is_resolved_by_a_store_caller(self, bench: Bench) -> None:
        hold = await held(bench)
        promise = await asked(bench, hold, deadline_at=PAST)
        await bench.store.append(hold.parting(waits=(promise,)))
        assert await bench.store.resolve(promise, TimedOut(), now=0) == Accepted()
        assert len(await bench.store.inbox(hold.stream)) == 1

    # --- consumption by an append

    async def test_an_answer_is_used_up_by_the_append_it_allows(self, bench: Bench) -> None:
        hold = await held(bench)
        promise = await asked(bench, hold)
        await bench.store.resolve(promise, Ok(), now=1)
        await bench.store.append(hold.plan(note("does it"), uses=(promise,)))
        state = await (await bench.reopen()).peek(promise)
        assert state is not None
        assert state.consumed_at is not None
        assert await refusal(bench, hold.plan(note("again"), uses=(promise,))) is Code.APPROVAL_STALE
        assert await self._notes(bench, hold.stream) == ["asks p", "does it"]

    async def test_the_same_append_again_gets_its_receipt(self, bench: Bench) -> None:
        hold = await held(bench)
        promise = await asked(bench, hold)
        await bench.store.resolve(promise, Ok(), now=1)
        plan = hold.plan(note("does it"), uses=(promise,))
        first = await bench.store.append(plan)
        again = await bench.store.append(plan)
        assert (again.replayed, again.first_seq) == (True, first.first_seq)
        assert await self._notes(bench, hold.stream) == ["asks p", "does it"]

    async def test_two_uses_in_one_append_are_one_too_many(self, bench: Bench) -> None:
        hold = await held(bench)
        promise = await asked(bench, hold)
        await bench.store.resolve(promise, Ok(), now=1)
        plan = hold.plan(note("twice"), uses=(promise, promise))
        assert await refusal(bench, plan) is Code.APPROVAL_STALE

    @pytest.mark.parametrize("answer", [None, Cancelled(), TimedOut()])
    async def test_append_without_approval_is_refused(self, bench: Bench, answer: Cancelled | TimedOut | None) -> None:
        hold = await held(bench)
        promise = await asked(bench, hold)
        if answer is not None:
            await bench.store.resolve(promise, answer, now=1)
        assert await refusal(bench, hold.plan(note("does it"), uses=(promise,))) is Code.APPROVAL_STALE
        assert await self._notes(bench, hold.stream) == ["asks p"]

    async def test_an_answer_that_has_expired_allows_nothing(self, bench: Bench) -> None:
        hold = await held(bench)
        given = PromiseState(id=PromiseId("p"), stream=hold.stream, resolution=Ok(), deadline_at=PAST)
        await bench.store.promise(given)
        assert await refusal(bench, hold.plan(note("does it"), uses=(given.id,))) is Code.APPROVAL_STALE
        assert await self._notes(bench, hold.stream) == []

    async def test_an_answer_to_another_session_allows_nothing(self, bench: Bench) -> None:
        mine, other = await held(bench, "mine"), await held(bench, "other")
        promise = await asked(bench, other)
        await bench.store.resolve(promise, Ok(), now=1)
        assert await refusal(bench, mine.plan(note("does it"), uses=(promise,))) is Code.APPROVAL_STALE
        await bench.store.append(other.plan(note("does it"), uses=(promise,)))

    async def test_an_unknown_answer_allows_nothing(self, bench: Bench) -> None:
        hold = await held(bench)
        assert await refusal(bench, hold.plan(note("does it"), uses=(PromiseId("p"),))) is Code.APPROVAL_STALE

    async def test_a_log_key_may_forbid_an_append(self, bench: Bench) -> None:
        hold = await held(bench)
        promise = await asked(bench, hold)
        await bench.store.resolve(promise, Ok(), now=1)
        await bench.store.annotate(hold.stream, note("stop", key="gate"))
        plan = hold.plan(note("does it"), uses=(promise,), unless=("gate",))
        with pytest.raises(Error) as caught:
            await bench.store.append(plan)
        assert caught.value.code is Code.GATE_CLOSED
        state = await bench.store.peek(promise)
        assert state is not None
        assert state.consumed_at is None
        assert await self._notes(bench, hold.stream) == ["asks p", "stop"]

    async def test_append_is_written_when_its_gate_key_is_free(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("does it"), unless=("gate",)))
        assert await self._notes(bench, hold.stream) == ["does it"]

    async def test_a_refused_use_leaves_its_neighbours_alone(self, bench: Bench) -> None:
        first, second = await held(bench, "first"), await held(bench, "second")
        refused = bench.store.append(first.plan(note("no"), uses=(PromiseId("p"),)))
        fine = bench.store.append(second.plan(note("yes")))
        with pytest.raises(Error):
            await refused
        await fine
        assert await self._notes(bench, second.stream) == ["yes"]

    async def test_the_store_has_a_clock(self, bench: Bench) -> None:
        assert await bench.store.now() > 0

    async def _notes(self, bench: Bench, stream: StreamId) -> list[str]:
        return [text for _, text in notes(await bench.store.read(stream))]
