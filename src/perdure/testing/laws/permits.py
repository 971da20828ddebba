"""Laws of permits: a limit holds across workers, in request order, and a dead worker's permits are free."""
# ruff: noqa: D102 - the name of a law is its sentence

from __future__ import annotations

import asyncio

from perdure.ids import WorkerId
from perdure.store.permits import PermitRequest
from perdure.store.protocol import Store
from perdure.testing.laws.bench import ANN, BOB, LEASE_MS, Bench, enlist

CID = WorkerId("cid")


def charge(holder: str, most: int = 2, *, waits: bool = True) -> PermitRequest:
    """Return a permit request of one holder for the tool `charge`."""
    return PermitRequest(holder, (("tool:charge", most),), waits)


async def ask(bench: Bench, worker: WorkerId, *asks: PermitRequest, back: tuple[str, ...] = ()) -> list[str]:
    """Exchange permits, and return the holders that have theirs now."""
    return sorted(await bench.store.exchange(worker, asks=asks, back=back, now=bench.clock.wall_ms()))


class PermitLaws:
    """Laws of permits."""

    async def test_no_more_hold_a_permit_than_its_limit_says(self, bench: Bench) -> None:
        await enlist(bench, ANN, BOB)
        assert await ask(bench, ANN, charge("a"), charge("b"), charge("c")) == ["a", "b"]
        assert await ask(bench, BOB, charge("d")) == []
        assert [(p.holder, p.worker, p.granted) for p in await bench.store.permits()] == [
            ("a", ANN, True),
            ("b", ANN, True),
            ("c", ANN, False),
            ("d", BOB, False),
        ]

    async def test_asking_again_changes_nothing(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        assert await ask(bench, ANN, charge("a", 1), charge("b", 1)) == ["a"]
        assert await ask(bench, ANN, charge("a", 1), charge("b", 1)) == ["a"]
        assert len(await bench.store.permits()) == 2

    async def test_released_permit_goes_to_the_oldest_request(self, bench: Bench) -> None:
        await enlist(bench, ANN, BOB, CID)
        assert await ask(bench, ANN, charge("a", 1)) == ["a"]
        assert await ask(bench, BOB, charge("b", 1)) == []
        assert await ask(bench, CID, charge("c", 1)) == []
        assert await ask(bench, ANN, back=("a",)) == []
        assert await ask(bench, CID, charge("c", 1)) == [], "bob was first"
        assert await ask(bench, BOB, charge("b", 1)) == ["b"]
        assert await ask(bench, BOB, back=("b",)) == []
        assert await ask(bench, CID, charge("c", 1)) == ["c"]

    async def test_nonblocking_permit_request_is_not_queued(self, bench: Bench) -> None:
        await enlist(bench, ANN, BOB)
        assert await ask(bench, ANN, charge("a", 1)) == ["a"]
        assert await ask(bench, BOB, charge("b", 1, waits=False)) == []
        assert [permit.holder for permit in await bench.store.permits()] == ["a"]

    async def test_withdrawn_permit_request_leaves_the_queue(self, bench: Bench) -> None:
        await enlist(bench, ANN, BOB, CID)
        await ask(bench, ANN, charge("a", 1))
        await ask(bench, BOB, charge("b", 1))
        await ask(bench, CID, charge("c", 1))
        await ask(bench, BOB, back=("b",))
        await ask(bench, ANN, back=("a",))
        assert await ask(bench, CID, charge("c", 1)) == ["c"]

    async def test_a_permit_is_given_back_only_by_its_worker(self, bench: Bench) -> None:
        await enlist(bench, ANN, BOB)
        await ask(bench, ANN, charge("a", 1))
        await ask(bench, BOB, back=("a",))
        assert await ask(bench, BOB, charge("b", 1)) == []

    async def test_permit_holders_of_equal_name_differ_between_workers(self, bench: Bench) -> None:
        await enlist(bench, ANN, BOB)
        slot, other = charge("s#slot", 1, waits=False), charge("t#slot", 1, waits=False)
        assert await ask(bench, ANN, slot) == ["s#slot"]
        assert await ask(bench, BOB, slot) == [], "ann holds the permit"
        await ask(bench, ANN, back=("s#slot",))
        assert await bench.store.permits() == ()
        assert await ask(bench, BOB, slot) == ["s#slot"]
        assert await ask(bench, ANN, other) == [], "bob holds the permit"

    async def test_each_worker_has_a_permit_of_its_own_for_the_same_holder(self, bench: Bench) -> None:
        await enlist(bench, ANN, BOB)
        assert await ask(bench, ANN, charge("s")) == ["s"]
        assert await ask(bench, BOB, charge("s")) == ["s"]
        assert await ask(bench, BOB, charge("t")) == [], "the permits of both workers count"
        await ask(bench, BOB, back=("s", "t"))
        assert [(p.holder, p.worker) for p in await bench.store.permits()] == [("s", ANN)]

    async def test_takeover_from_a_lapsed_worker_gets_a_separate_permit(self, bench: Bench) -> None:
        await enlist(bench, ANN, BOB)
        assert await ask(bench, ANN, charge("s", 1)) == ["s"]
        bench.clock.advance(LEASE_MS)
        await bench.store.renew(BOB)
        assert await ask(bench, BOB, charge("s", 1)) == ["s"]
        await bench.store.renew(ANN)
        await ask(bench, ANN, back=("s",))
        assert await ask(bench, ANN, charge("t", 1)) == [], "bob keeps its own permit"

    async def test_all_permits_that_are_needed_are_given_or_none(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        both = PermitRequest("both", (("model:*", 2), ("model:x", 1)))
        assert await ask(bench, ANN, PermitRequest("x", (("model:x", 1),)), both) == ["x"]
        assert await ask(bench, ANN, PermitRequest("other", (("model:*", 1),))) == [], "the request for both came first"
        assert await ask(bench, ANN, both, back=("x",)) == ["both"]
        assert await ask(bench, ANN, PermitRequest("other", (("model:*", 2),))) == ["other"]

    async def test_names_have_nothing_to_do_with_each_other(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        assert await ask(bench, ANN, charge("a", 1), PermitRequest("b", (("tool:mail", 1),))) == ["a", "b"]

    async def test_the_permits_of_a_dead_worker_are_free(self, bench: Bench) -> None:
        await enlist(bench, ANN, BOB)
        assert await ask(bench, ANN, charge("a", 1), charge("waits", 1)) == ["a"]
        assert await ask(bench, BOB, charge("b", 1)) == []
        bench.kill(ANN)
        assert await ask(bench, BOB, charge("b", 1)) == ["b"]

    async def test_permits_of_a_lapsed_worker_count_again_after_renewal(self, bench: Bench) -> None:
        await enlist(bench, ANN, BOB)
        assert await ask(bench, ANN, charge("a", 1)) == ["a"]
        bench.clock.advance(LEASE_MS)
        await bench.store.renew(BOB)
        assert await ask(bench, BOB, charge("b", 2), charge("c", 2)) == ["b", "c"]
        await bench.store.renew(ANN)
        assert await ask(bench, BOB, charge("d", 3)) == []

    async def test_the_permits_of_a_retired_worker_are_gone(self, bench: Bench) -> None:
        await enlist(bench, ANN, BOB)
        await ask(bench, ANN, charge("a", 1))
        await bench.store.deregister(ANN)
        assert await bench.store.permits() == ()
        assert await ask(bench, BOB, charge("b", 1)) == ["b"]

    async def test_concurrent_permit_requests_never_exceed_the_limit(self, bench: Bench) -> None:
        other = await bench.reopen()
        await enlist(bench, ANN)
        await enlist(bench, BOB, store=other)

        async def try_one(store: Store, worker: WorkerId, i: int) -> frozenset[str]:
            return await store.exchange(worker, asks=(charge(f"{worker}{i}", 3),), now=0)

        sides = ((bench.store, ANN), (other, BOB))
        answers = await asyncio.gather(*(try_one(store, worker, i) for i in range(50) for store, worker in sides))
        assert sum(len(answer) for answer in answers) == 3
        assert sum(permit.granted for permit in await bench.store.permits()) == 3
