"""Laws of order: the streams offered, the claims made with the scan, and the order of both."""
# ruff: noqa: D102 - the name of a law is its sentence

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from perdure.commit.plan import SetTimer
from perdure.errors import Code, Error
from perdure.ids import Fence, Seq, SessionId, StreamId, Tenant, WorkerId, session_stream, stream_names
from perdure.store.protocol import Store
from perdure.store.shapes import EVERYTHING, Claim, Placement, ReadyStream, Serves
from perdure.testing.laws.bench import ANN, BOB, Bench, Hold, enlist, held, note, parked, said, stream_of, take


async def come(
    bench: Bench,
    name: str,
    *,
    tenant: str = "default",
    agent: str = "agent",
    queue: str | None = None,
    priority: int | None = None,
) -> StreamId:
    """Send an input to a session, 1 ms after the previous one."""
    bench.clock.advance(1)
    stream = session_stream(Tenant(tenant), SessionId(name))
    new = replace(said(stream, "hello", agent=agent), at=bench.clock.wall_ms(), queue=queue, priority=priority)
    await bench.store.admit(new)
    return stream


async def line(bench: Bench, serves: Serves = EVERYTHING, *, limit: int = 100, worker: WorkerId = ANN) -> list[str]:
    """Return the sessions offered to a worker, in order."""
    found = await bench.store.claimable(worker, limit=limit, now=bench.clock.wall_ms(), serves=serves)
    return [stream_names(stream)[2] for stream in found]


async def next_up(bench: Bench, serves: Serves = EVERYTHING, *, limit: int = 1) -> list[ReadyStream]:
    """Return the work that ann receives from one scan."""
    return list(await bench.store.claim_ready(ANN, limit=limit, now=bench.clock.wall_ms(), serves=serves))


async def serve(bench: Bench, ready: ReadyStream) -> None:
    """Consume the first input of a session and release the session."""
    assert ready.claim is not None
    row, *_ = await bench.store.inbox(ready.stream)
    bench.clock.advance(1)
    await bench.store.append(Hold(ready.stream, ANN, ready.claim.fence).parting(note("done"), consume=(row.id,)))


class QueueLaws:
    """Laws of queues, priorities and fairness."""

    async def test_stream_ready_for_longest_is_first(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        for name in ("c", "a", "b"):
            await come(bench, name)
        assert await line(bench) == ["c", "a", "b"]
        assert await line(bench, limit=2) == ["c", "a"]

    async def test_unowned_streams_are_claimed_by_the_scan(self, bench: Bench) -> None:
        await enlist(bench, ANN, BOB)
        streams = [await come(bench, name) for name in "abc"]
        first, second = await next_up(bench, limit=2)
        assert first == ReadyStream(streams[0], "default", Claim(streams[0], Fence(1), Seq(1)))
        assert second == ReadyStream(streams[1], "default", Claim(streams[1], Fence(1), Seq(1)))
        assert await line(bench, worker=BOB) == ["c"]
        await bench.store.append(Hold(streams[0], ANN, Fence(1)).plan(note("mine")))

    async def test_owned_streams_are_reported_and_not_claimed(self, bench: Bench) -> None:
        await enlist(bench, ANN, BOB)
        mine, theirs = await come(bench, "mine"), await come(bench, "theirs")
        await take(bench.store, theirs, BOB)
        hold = await take(bench.store, mine, ANN)
        await bench.store.append(hold.plan(active=False))
        bench.kill(BOB)
        assert {found.stream: found.claim for found in await next_up(bench, limit=9)} == {mine: None, theirs: None}
        await bench.store.append(hold.plan(note("same fence")))
        claim = await bench.store.claim(theirs, ANN)
        assert isinstance(claim, Claim)
        assert claim.takeovers == 1, "a takeover is counted, so a scan never makes one"

    async def test_two_workers_that_look_at_once_never_get_the_same(self, bench: Bench) -> None:
        other = await bench.reopen()
        await enlist(bench, ANN)
        await enlist(bench, BOB, store=other)
        streams = {await come(bench, f"s{i}") for i in range(60)}

        async def grab(store: Store, worker: WorkerId) -> list[StreamId]:
            got: list[StreamId] = []
            now = bench.clock.wall_ms()
            while await store.claimable(worker, limit=1, now=now, serves=Serves(driving=tuple(got))):
                found = await store.claim_ready(worker, limit=7, now=now, serves=Serves(driving=tuple(got)))
                assert all(ready.claim for ready in found)
                got.extend(ready.stream for ready in found)
            return got

        by_ann, by_bob = await asyncio.gather(grab(bench.store, ANN), grab(other, BOB))
        assert len(by_ann) + len(by_bob) == 60
        assert {*by_ann, *by_bob} == streams

    async def test_a_higher_priority_is_first(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        await come(bench, "old")
        await come(bench, "low", priority=-1)
        await come(bench, "urgent", priority=5)
        assert await line(bench) == ["urgent", "old", "low"]

    async def test_session_has_the_queue_of_its_agent_by_default(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        await come(bench, "a", agent="writer")
        await come(bench, "b", agent="clerk")
        await come(bench, "c", agent="clerk", priority=9, queue="calls")
        agents = {"writer": Placement("bulk", 1), "clerk": Placement("desk", 3)}
        assert await line(bench, Serves(agents=agents)) == ["c", "b", "a"]
        assert await line(bench, Serves(agents=agents, queues=("bulk",))) == ["a"]
        assert await line(bench, Serves(agents=agents, queues=("desk",))) == ["b"]
        assert await line(bench, Serves(agents=agents, queues=("calls", "bulk"))) == ["c", "a"]
        assert [found.queue for found in await next_up(bench, Serves(agents=agents), limit=9)] == [
            "calls",
            "desk",
            "bulk",
        ]

    async def test_without_a_queue_of_its_own_work_is_in_the_default_queue(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        await come(bench, "a")
        assert await line(bench, Serves(queues=("default",))) == ["a"]
        assert await line(bench, Serves(queues=("other",))) == []

    async def test_a_worker_is_offered_only_agents_and_tenants_that_it_serves(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        await come(bench, "a", agent="writer")
        await come(bench, "b", agent="clerk")
        await come(bench, "c", agent="clerk", tenant="acme")
        clerks = {"clerk": Placement()}
        assert await line(bench, Serves(agents=clerks)) == ["b", "c"]
        assert await line(bench, Serves(agents=clerks, tenant=Tenant("acme"))) == ["c"]
        assert await line(bench, Serves(agents={})) == []
        assert await line(bench, Serves(driving=(stream_of("a"),))) == ["b", "c"]
        assert await line(bench, Serves(only=(stream_of("b"), stream_of("gone")))) == ["b"]
        assert await line(bench, Serves(without=("default",))) == []

    async def test_scan_limited_to_streams_finds_all_kinds_of_work(self, bench: Bench) -> None:
        due = await parked(bench, "due", timers=(SetTimer("nap", 5),))
        later = await parked(bench, "later", timers=(SetTimer("nap", 9_000_000_000_000),))
        left = await held(bench, "left", worker=BOB)
        bench.kill(BOB)
        told = await come(bench, "told")
        await come(bench, "other")
        some = Serves(only=(due.stream, later.stream, left.stream, told))
        assert sorted(await line(bench, some)) == ["due", "left", "told"]
        taken = {ready.stream: ready.claim is not None for ready in await next_up(bench, some, limit=9)}
        assert taken == {due.stream: True, left.stream: False, told: True}, (
            "a dead worker's stream needs a separate claim"
        )

    async def test_a_session_can_be_moved(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        stream = await come(bench, "a", queue="slow", priority=1)
        await bench.store.place(stream, "fast", 7)
        found = await bench.store.stream(stream)
        assert found is not None
        assert (found.queue, found.priority) == ("fast", 7)
        assert await line(bench, Serves(queues=("slow",))) == []
        await bench.store.place(stream, None, None)
        assert await line(bench, Serves(queues=("default",))) == ["a"]
        with pytest.raises(Error) as caught:
            await bench.store.place(stream_of("nobody"), None, None)
        assert caught.value.code is Code.SESSION_UNKNOWN

    async def test_a_session_that_was_served_goes_behind_those_that_wait(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        talker = await come(bench, "talker")
        for i in range(3):
            await bench.store.admit(replace(said(talker, f"and {i}"), at=bench.clock.wall_ms()))
        await come(bench, "quiet")
        (first,) = await next_up(bench)
        assert first.stream == talker
        await serve(bench, first)
        assert await line(bench) == ["quiet", "talker"]

    async def test_tenant_with_one_session_is_not_starved_by_many(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        crowd = [session_stream(Tenant("crowd"), SessionId(f"a{i}")) for i in range(10_000)]
        await asyncio.gather(*(bench.store.admit(said(stream, "hello")) for stream in crowd))
        await come(bench, "b", tenant="solo")
        first, second, *rest = await line(bench, limit=4)
        assert second == "b", "each tenant's first session precedes any second one"
        assert {name[0] for name in (first, *rest)} == {"a"}

    async def test_tenants_take_turns_even_for_a_single_slot(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        for name in ("a0", "a1", "a2"):
            await come(bench, name, tenant="crowd")
        for name in ("b0", "b1"):
            await come(bench, name, tenant="pair")
        await come(bench, "c0", tenant="solo")
        served: list[str] = []
        recent: tuple[Tenant, ...] = ()
        while found := await next_up(bench, Serves(recent=recent)):
            tenant, _, name = stream_names(found[0].stream)
            served.append(name)
            recent = (*(one for one in recent if one != tenant), Tenant(tenant))
            await serve(bench, found[0])
        assert served == ["a0", "b0", "c0", "a1", "b1", "a2"]

    async def test_priority_comes_before_the_turns_of_tenants(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        await come(bench, "a0", tenant="crowd", priority=1)
        await come(bench, "a1", tenant="crowd", priority=1)
        await come(bench, "b0", tenant="solo")
        assert await line(bench) == ["a0", "a1", "b0"]

    async def test_a_worker_says_what_it_serves(self, bench: Bench) -> None:
        now = bench.clock.wall_ms()
        await bench.store.register(ANN, pid=1, version="1", now=now, concurrency=8, queues=("bulk", "calls"))
        await bench.store.register(BOB, pid=2, version="1", now=now)
        hold = await held(bench, worker=WorkerId("cid"))
        bench.clock.advance(2_000)
        seen = {worker.id: worker for worker in await bench.store.workers()}
        assert (seen[ANN].concurrency, seen[ANN].queues) == (8, ("bulk", "calls"))
        assert (seen[BOB].concurrency, seen[BOB].queues) == (0, None)
        assert (seen[hold.worker].held, seen[hold.worker].active) == (1, 1)
