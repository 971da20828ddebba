"""Laws of the append: atomic, in order, by the owner only."""
# ruff: noqa: D102 - the name of a law is its sentence

from __future__ import annotations

import asyncio
import gc

import pytest

from perdure.commit.plan import MAX_COMMIT_BYTES, MAX_COMMIT_ROWS, Entry, Plan, SetTimer, blob_of
from perdure.errors import Code, Error
from perdure.ids import Fence, Seq
from perdure.testing.laws.bench import ANN, BOB, Bench, enlist, held, note, notes, refusal, said, stream_of, take


class AppendLaws:
    """Laws of appends."""

    async def test_records_get_dense_seqs_behind_the_opening_record(self, bench: Bench) -> None:
        hold = await held(bench)
        first = await bench.store.append(hold.plan(note("a"), note("b")))
        second = await bench.store.append(hold.plan(note("c")))
        assert (first.first_seq, first.last_seq) == (2, 3)
        assert (second.first_seq, second.last_seq) == (4, 4)
        assert notes(await bench.store.read(hold.stream)) == [(2, "a"), (3, "b"), (4, "c")]

    async def test_a_record_is_read_as_it_was_written(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(Entry(kind="k", data=b'{"type":"x"}', at=42, key="the key", version=1)))
        (row,) = await bench.store.read(hold.stream, after=Seq(1))
        assert (row.stream, row.seq, row.at, row.kind) == (hold.stream, 2, 42, "k")
        assert (row.data, row.key, row.version) == (b'{"type":"x"}', "the key", 1)

    async def test_another_handle_reads_what_was_appended(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("a")))
        other = await bench.reopen()
        assert notes(await other.read(hold.stream)) == [(2, "a")]

    async def test_a_stale_fence_writes_nothing(self, bench: Bench) -> None:
        stale = await held(bench)
        bench.kill(ANN)
        await enlist(bench, BOB)
        await take(bench.store, stale.stream, BOB)
        assert await refusal(bench, stale.plan(note("late"))) is Code.LEASE_LOST
        assert notes(await bench.store.read(stale.stream)) == []

    async def test_a_stale_fence_of_the_same_worker_writes_nothing(self, bench: Bench) -> None:
        stale = await held(bench)
        await take(bench.store, stale.stream, ANN)
        assert await refusal(bench, stale.plan(note("late"))) is Code.LEASE_LOST
        assert notes(await bench.store.read(stale.stream)) == []

    async def test_a_fence_that_was_never_given_writes_nothing(self, bench: Bench) -> None:
        hold = await held(bench)
        hold.fence = Fence(hold.fence + 1)
        hold.n = 0
        assert await refusal(bench, hold.plan(note("early"))) is Code.LEASE_LOST
        assert notes(await bench.store.read(hold.stream)) == []

    async def test_a_worker_that_is_not_the_owner_writes_nothing(self, bench: Bench) -> None:
        hold = await held(bench)
        hold.worker = BOB
        assert await refusal(bench, hold.plan(note("foreign"))) is Code.LEASE_LOST
        assert notes(await bench.store.read(hold.stream)) == []

    async def test_a_stream_that_was_given_back_takes_nothing(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.parting(note("bye")))
        assert await refusal(bench, hold.plan(note("one more"))) is Code.LEASE_LOST
        assert notes(await bench.store.read(hold.stream)) == [(2, "bye")]

    async def test_a_stream_that_does_not_exist_takes_nothing(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        plan = Plan(stream=stream_of("nowhere"), worker=ANN, fence=Fence(1), n=1, entries=(note("a"),))
        assert await refusal(bench, plan) is Code.LEASE_LOST
        assert await bench.store.stream(stream_of("nowhere")) is None

    async def test_a_taken_key_refuses_the_whole_plan(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("first", key="gate")))
        await bench.store.admit(said(hold.stream, "waiting"))
        (waiting,) = await bench.store.inbox(hold.stream)
        blob = blob_of(b"bytes", "text/plain")
        plan = hold.plan(
            note("before"),
            note("second", key="gate"),
            consume=(waiting.id,),
            timers=(SetTimer("t", 99),),
            blobs=(blob,),
            outbox=(said(stream_of("other"), "hi"),),
        )
        assert await refusal(bench, plan) is Code.GATE_CLOSED
        assert notes(await bench.store.read(hold.stream)) == [(2, "first")]
        assert [row.id for row in await bench.store.inbox(hold.stream)] == [waiting.id]
        assert await bench.store.next_due() is None
        assert await bench.store.stream(stream_of("other")) is None
        with pytest.raises(Error, match="blob_unknown"):
            await bench.store.blob(blob.hash)

    async def test_a_key_twice_in_one_plan_refuses_it(self, bench: Bench) -> None:
        hold = await held(bench)
        assert await refusal(bench, hold.plan(note("a", key="k"), note("b", key="k"))) is Code.GATE_CLOSED
        assert notes(await bench.store.read(hold.stream)) == []

    async def test_the_refusal_of_a_taken_key_names_the_record_that_has_it(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("first", key="gate")))
        with pytest.raises(Error) as caught:
            await bench.store.append(hold.plan(note("second", key="gate")))
        assert caught.value.details["by"] == "cancel_requested"
        assert caught.value.details["key"] == "gate"

    async def test_a_key_belongs_to_its_stream(self, bench: Bench) -> None:
        one, two = await held(bench, "one"), await held(bench, "two")
        await bench.store.append(one.plan(note("a", key="k")))
        await bench.store.append(two.plan(note("b", key="k")))
        assert await bench.store.find(two.stream, "k") == (await bench.store.read(two.stream))[-1]

    async def test_a_refused_plan_leaves_its_number_free(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("a", key="k")))
        await refusal(bench, hold.plan(note("b", key="k")))
        hold.n -= 1
        await bench.store.append(hold.plan(note("c")))
        assert notes(await bench.store.read(hold.stream)) == [(2, "a"), (3, "c")]

    async def test_a_gap_in_the_numbers_is_refused(self, bench: Bench) -> None:
        hold = await held(bench)
        hold.n += 1
        assert await refusal(bench, hold.plan(note("too far"))) is Code.COMMIT_CONFLICT
        assert notes(await bench.store.read(hold.stream)) == []

    async def test_too_many_bytes_are_refused(self, bench: Bench) -> None:
        hold = await held(bench)
        plan = hold.plan(note("x" * MAX_COMMIT_BYTES))
        assert await refusal(bench, plan) is Code.STORE_COMMIT_BYTE_BUDGET_EXCEEDED
        assert notes(await bench.store.read(hold.stream)) == []

    async def test_too_many_rows_are_refused(self, bench: Bench) -> None:
        hold = await held(bench)
        plan = hold.plan(*(note(str(i)) for i in range(MAX_COMMIT_ROWS + 1)))
        assert await refusal(bench, plan) is Code.STORE_COMMIT_ROW_BUDGET_EXCEEDED
        assert notes(await bench.store.read(hold.stream)) == []

    async def test_appends_take_effect_in_the_order_of_the_calls(self, bench: Bench) -> None:
        hold = await held(bench)
        submitted = [bench.store.append(hold.plan(note(f"{i}"))) for i in range(20)]
        receipts = [await one for one in reversed(submitted)]
        assert [r.first_seq for r in reversed(receipts)] == list(range(2, 22))
        assert notes(await bench.store.read(hold.stream)) == [(i + 2, f"{i}") for i in range(20)]

    async def test_order_holds_when_lone_and_crowded_appends_alternate(self, bench: Bench) -> None:
        hold = await held(bench)
        for i in range(0, 60, 6):
            for _ in range(3):
                await bench.store.append(hold.plan(note("alone")))
            crowd = [bench.store.append(hold.plan(note("crowd"))) for _ in range(3)]
            await asyncio.gather(*crowd)
            assert (await crowd[-1]).last_seq == i + 7
        rows = await bench.store.read(hold.stream, after=Seq(1))
        assert [row.seq for row in rows] == list(range(2, 62))

    async def test_append_behind_a_refused_append_is_refused(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("a", key="k")))
        refused = bench.store.append(hold.plan(note("b", key="k")))
        behind = bench.store.append(hold.plan(note("c")))
        results = await asyncio.gather(refused, behind, return_exceptions=True)
        assert [r.code for r in results if isinstance(r, Error)] == [Code.GATE_CLOSED, Code.COMMIT_CONFLICT]
        assert notes(await bench.store.read(hold.stream)) == [(2, "a")]

    async def test_a_refusal_does_not_disturb_its_neighbours(self, bench: Bench) -> None:
        holds = [await held(bench, f"s{i}") for i in range(9)]
        for hold in holds:
            await bench.store.append(hold.plan(note("first", key="k")))
        plans = [h.plan(note("second"), note("third", key="k" if i % 3 == 1 else None)) for i, h in enumerate(holds)]
        results = await asyncio.gather(*(bench.store.append(p) for p in plans), return_exceptions=True)
        refused = [i for i, result in enumerate(results) if isinstance(result, Error)]
        assert refused == [1, 4, 7]
        for i, hold in enumerate(holds):
            expected = [(2, "first")] if i % 3 == 1 else [(2, "first"), (3, "second"), (4, "third")]
            assert notes(await bench.store.read(hold.stream)) == expected

    async def test_cancelling_the_caller_does_not_cancel_the_write(self, bench: Bench) -> None:
        hold = await held(bench)
        plan = hold.plan(note("a"))

        async def caller() -> None:
            await bench.store.append(plan)

        task = asyncio.ensure_future(caller())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await bench.store.append(hold.plan(note("b")))
        assert notes(await bench.store.read(hold.stream)) == [(2, "a"), (3, "b")]

    async def test_append_is_written_when_not_awaited(self, bench: Bench) -> None:
        hold = await held(bench)
        bench.store.append(hold.plan(note("unheard")))
        await bench.store.append(hold.plan(note("heard")))
        assert notes(await bench.store.read(hold.stream)) == [(2, "unheard"), (3, "heard")]

    async def test_refusal_logs_nothing_when_not_awaited(self, bench: Bench) -> None:
        complaints: list[str] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(str(context)))
        hold = await held(bench)
        hold.fence = Fence(99)
        bench.store.append(hold.plan(note("x" * 2)))
        bench.store.append(hold.plan(note("x" * MAX_COMMIT_BYTES)))
        await bench.store.renew(ANN)
        gc.collect()
        await asyncio.sleep(0)
        assert complaints == []

    async def test_fifty_appenders_on_fifty_streams_write_dense_logs(self, bench: Bench) -> None:
        holds = [await held(bench, f"s{i}") for i in range(50)]

        async def work(i: int) -> None:
            for step in range(10):
                await bench.store.append(holds[i].plan(note(f"{i}.{step}")))

        await asyncio.gather(*(work(i) for i in range(50)))
        for i, hold in enumerate(holds):
            expected = [(step + 2, f"{i}.{step}") for step in range(10)]
            assert notes(await bench.store.read(hold.stream)) == expected
