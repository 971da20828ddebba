"""Laws of receipts: a repeated plan changes nothing, and a receipt reports the writes that its owner missed."""
# ruff: noqa: D102 - the name of a law is its sentence

from __future__ import annotations

from msgspec.structs import replace

from perdure.commit.plan import SetTimer
from perdure.errors import Code
from perdure.ids import Seq
from perdure.testing.laws.bench import (
    ANN,
    BOB,
    Bench,
    enlist,
    held,
    note,
    notes,
    refusal,
    repeated,
    said,
    stream_of,
    take,
)


class ReceiptLaws:
    """Laws of receipts."""

    async def test_the_same_plan_again_returns_the_first_receipt(self, bench: Bench) -> None:
        hold = await held(bench)
        plan = hold.plan(note("a"), note("b"))
        first = await bench.store.append(plan)
        again = await bench.store.append(plan)
        assert not first.replayed
        assert again == repeated(first)
        assert notes(await bench.store.read(hold.stream)) == [(2, "a"), (3, "b")]

    async def test_the_same_plan_long_after_returns_the_first_receipt(self, bench: Bench) -> None:
        hold = await held(bench)
        plan = hold.plan(note("a"))
        first = await bench.store.append(plan)
        for text in "bcd":
            await bench.store.append(hold.plan(note(text)))
        assert await bench.store.append(plan) == repeated(first)
        assert notes(await bench.store.read(hold.stream)) == [(2, "a"), (3, "b"), (4, "c"), (5, "d")]

    async def test_the_same_plan_again_delivers_and_sets_nothing_again(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.admit(said(hold.stream, "in"))
        (row,) = await bench.store.inbox(hold.stream)
        there = stream_of("there")
        plan = hold.plan(consume=(row.id,), outbox=(said(there, "out"),), timers=(SetTimer("t", 9),), known_seq=Seq(1))
        first = await bench.store.append(plan)
        again = await bench.store.append(plan)
        assert again == repeated(first)
        assert len(await bench.store.inbox(there)) == 1
        assert await bench.store.inbox(hold.stream) == ()

    async def test_a_plan_that_gave_its_stream_back_is_answered_again(self, bench: Bench) -> None:
        hold = await held(bench)
        plan = hold.parting(note("bye"))
        first = await bench.store.append(plan)
        assert await bench.store.append(plan) == repeated(first)
        assert notes(await bench.store.read(hold.stream)) == [(2, "bye")]

    async def test_a_lost_reply_is_answered_even_after_another_owner_took_over(self, bench: Bench) -> None:
        hold = await held(bench)
        plan = hold.plan(note("a"))
        first = await bench.store.append(plan)
        bench.kill(ANN)
        await enlist(bench, BOB)
        successor = await take(bench.store, hold.stream, BOB)
        await bench.store.append(successor.plan(note("b")))
        assert await bench.store.append(plan) == repeated(first)
        assert notes(await bench.store.read(hold.stream)) == [(2, "a"), (3, "b")]

    async def test_other_content_under_a_used_number_is_a_conflict(self, bench: Bench) -> None:
        hold = await held(bench)
        plan = hold.plan(note("a"))
        await bench.store.append(plan)
        assert await refusal(bench, replace(plan, entries=(note("z"),))) is Code.COMMIT_CONFLICT
        assert await refusal(bench, replace(plan, entries=(note("a", key="k"),))) is Code.COMMIT_CONFLICT
        assert await refusal(bench, replace(plan, entries=(note("a"), note("b")))) is Code.COMMIT_CONFLICT
        assert await refusal(bench, replace(plan, entries=())) is Code.COMMIT_CONFLICT
        assert notes(await bench.store.read(hold.stream)) == [(2, "a")]

    async def test_every_fence_counts_its_own_plans(self, bench: Bench) -> None:
        first = await held(bench)
        await bench.store.append(first.plan(note("a")))
        second = await take(bench.store, first.stream, ANN)
        receipt = await bench.store.append(second.plan(note("b")))
        assert (receipt.n, receipt.fence, receipt.first_seq) == (1, second.fence, 3)

    async def test_a_plan_without_records_stands_behind_the_last_one(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("a")))
        receipt = await bench.store.append(hold.plan(timers=(SetTimer("t", 9),)))
        assert (receipt.first_seq, receipt.last_seq) == (3, 2)
        info = await bench.store.stream(hold.stream)
        assert info is not None
        assert info.last_seq == 2

    async def test_receipt_contains_records_of_other_writers(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("mine")))
        await bench.store.annotate(hold.stream, note("theirs"))
        await bench.store.annotate(hold.stream, note("theirs too"))
        receipt = await bench.store.append(hold.plan(note("mine again"), known_seq=Seq(2)))
        assert notes(receipt.missed) == [(3, "theirs"), (4, "theirs too")]
        assert receipt.first_seq == 5

    async def test_receipt_omits_records_known_to_the_owner(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.annotate(hold.stream, note("known"))
        await bench.store.annotate(hold.stream, note("new"))
        receipt = await bench.store.append(hold.plan(note("mine"), known_seq=Seq(2)))
        assert notes(receipt.missed) == [(3, "new")]

    async def test_receipt_omits_records_written_by_the_owner(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("mine"), known_seq=Seq(1)))
        await bench.store.annotate(hold.stream, note("theirs"))
        receipt = await bench.store.append(hold.plan(note("mine too"), known_seq=Seq(1)))
        assert notes(receipt.missed) == [(3, "theirs")]

    async def test_a_replayed_receipt_tells_again_what_was_missed(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.annotate(hold.stream, note("theirs"))
        plan = hold.plan(note("mine"), known_seq=Seq(1))
        first = await bench.store.append(plan)
        await bench.store.annotate(hold.stream, note("later"))
        again = await bench.store.append(plan)
        assert notes(again.missed) == [(2, "theirs")]
        assert again == repeated(first)

    async def test_a_receipt_tells_that_nothing_is_left_to_do(self, bench: Bench) -> None:
        hold = await held(bench)
        assert not (await bench.store.append(hold.plan(note("at work"), active=True))).quiet
        assert (await bench.store.append(hold.plan(note("done"), active=False))).quiet
        await bench.store.admit(said(hold.stream, "more"))
        await bench.store.admit(said(hold.stream, "and more"))
        first, second = await bench.store.inbox(hold.stream)
        assert not (await bench.store.append(hold.plan(note("not yet"), active=False))).quiet
        assert not (await bench.store.append(hold.plan(note("one"), consume=(first.id,), active=False))).quiet
        assert not (await bench.store.append(hold.plan(consume=(second.id,), active=True))).quiet
        assert (await bench.store.append(hold.plan(active=False))).quiet

    async def test_last_append_of_a_batch_reports_a_quiet_stream(self, bench: Bench) -> None:
        hold, other = await held(bench), await held(bench, "other")
        await bench.store.admit(said(hold.stream, "more"))
        (row,) = await bench.store.inbox(hold.stream)
        await bench.store.admit(said(other.stream, "more"))
        begun = bench.store.append(hold.plan(note("begun"), consume=(row.id,), active=True))
        ended = bench.store.append(hold.plan(note("ended"), active=False))
        waits = bench.store.append(other.plan(note("ended"), active=False))
        assert [(await one).quiet for one in (begun, ended, waits)] == [False, True, False]
