"""Laws of the outbox: messages commit with the plan, and its receipt has the result of each."""
# ruff: noqa: D102 - the name of a law is its sentence

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from perdure.commit.plan import OutboxResult
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
    open_stream,
    parked,
    refusal,
    repeated,
    said,
    stream_of,
    take,
)
from perdure.vocab.records import SessionOpened

ACCEPTED, DUPLICATE, CONFLICT = OutboxResult("accepted"), OutboxResult("duplicate"), OutboxResult("conflict")
NO_SUCH_SESSION = OutboxResult("discarded", "session_unknown")


async def keys_in(bench: Bench, name: str) -> list[str]:
    """Return the keys of a session's queued items."""
    return [row.source_key for row in await bench.store.inbox(stream_of(name))]


class SendLaws:
    """Laws of outgoing messages."""

    async def test_a_plan_delivers_to_other_streams(self, bench: Bench) -> None:
        hold = await held(bench)
        there, new = await open_stream(bench.store, "there"), stream_of("new")
        receipt = await bench.store.append(
            hold.plan(outbox=(said(there, "hi", agent=None), said(new, "ho", agent="a"), said(new, "hey", agent="a")))
        )
        assert receipt.sent == (ACCEPTED, ACCEPTED, ACCEPTED)
        assert await keys_in(bench, "there") == ["key-hello", "key-hi"]
        assert await keys_in(bench, "new") == ["key-ho", "key-hey"]
        assert [row.record for row in await bench.store.read(new)] == [SessionOpened(agent="a")]

    async def test_outbox_messages_arrive_in_the_order_of_the_plan(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(outbox=tuple(said(stream_of("new"), text) for text in "zaymb")))
        assert await keys_in(bench, "new") == ["key-z", "key-a", "key-y", "key-m", "key-b"]

    async def test_outbox_message_opens_a_stream_with_queue_and_priority(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(outbox=(replace(said(stream_of("new"), "x"), queue="slow", priority=7),)))
        info = await bench.store.stream(stream_of("new"))
        assert info is not None
        assert (info.agent, info.queue, info.priority, info.owner, info.waiting_inputs) == ("agent", "slow", 7, None, 1)

    async def test_outbox_message_admitted_before_is_a_duplicate(self, bench: Bench) -> None:
        hold = await held(bench)
        there = await open_stream(bench.store, "there")
        receipt = await bench.store.append(hold.plan(note("a"), outbox=(said(there, "hello"), said(there, "new"))))
        assert receipt.sent == (DUPLICATE, ACCEPTED)
        assert await keys_in(bench, "there") == ["key-hello", "key-new"]
        assert notes(await bench.store.read(hold.stream)) == [(2, "a")]

    async def test_the_same_thing_twice_in_one_plan_is_sent_once(self, bench: Bench) -> None:
        hold = await held(bench)
        new = stream_of("new")
        receipt = await bench.store.append(hold.plan(outbox=(said(new, "x"), said(new, "x"))))
        assert receipt.sent == (ACCEPTED, DUPLICATE)
        assert await keys_in(bench, "new") == ["key-x"]

    async def test_other_content_under_a_used_key_is_a_verdict_and_no_refusal(self, bench: Bench) -> None:
        hold = await held(bench)
        there, new = await open_stream(bench.store, "there"), stream_of("new")
        twice = (said(new, "x", key="k"), said(new, "y", key="k"))
        receipt = await bench.store.append(hold.plan(note("a"), outbox=(said(there, "other", key="key-hello"), *twice)))
        assert receipt.sent == (CONFLICT, ACCEPTED, CONFLICT)
        assert (await keys_in(bench, "there"), await keys_in(bench, "new")) == (["key-hello"], ["k"])
        assert notes(await bench.store.read(hold.stream)) == [(2, "a")]

    async def test_outbox_message_to_a_missing_stream_is_discarded(self, bench: Bench) -> None:
        hold = await held(bench)
        gone = await open_stream(bench.store, "gone")
        await bench.store.delete(gone)
        outbox = (said(stream_of("nowhere"), "x", agent=None), said(gone, "y", agent=None), said(stream_of("new"), "z"))
        receipt = await bench.store.append(hold.plan(note("a"), outbox=outbox))
        assert receipt.sent == (NO_SUCH_SESSION, NO_SUCH_SESSION, ACCEPTED)
        assert await bench.store.stream(gone) is None
        assert notes(await bench.store.read(hold.stream)) == [(2, "a")]

    async def test_outbox_message_to_another_agent_is_discarded(self, bench: Bench) -> None:
        hold = await held(bench)
        there = await open_stream(bench.store, "there")
        receipt = await bench.store.append(hold.plan(outbox=(said(there, "x", agent="other"),)))
        assert receipt.sent == (OutboxResult("discarded", "session_agent_conflict"),)
        assert await keys_in(bench, "there") == ["key-hello"]

    async def test_the_same_plan_again_tells_the_same_and_sends_nothing(self, bench: Bench) -> None:
        hold = await held(bench)
        there, late, gone = (
            await open_stream(bench.store, "there"),
            stream_of("late"),
            await open_stream(bench.store, "gone"),
        )
        outbox = (
            said(there, "x"),
            said(there, "hello"),
            said(there, "other", key="key-hello"),
            said(late, "y", agent=None),
            said(gone, "z"),
        )
        plan = hold.plan(note("a"), outbox=outbox)
        first = await bench.store.append(plan)
        assert first.sent == (ACCEPTED, DUPLICATE, CONFLICT, NO_SUCH_SESSION, ACCEPTED)
        (_, row) = await bench.store.inbox(there)
        other = await take(bench.store, there, ANN)
        await bench.store.append(other.plan(consume=(row.id,)))
        await open_stream(bench.store, "late")
        await bench.store.delete(gone)
        again = await (await bench.reopen()).append(plan)
        assert again == repeated(first)
        assert await keys_in(bench, "there") == ["key-hello"]
        assert await keys_in(bench, "late") == ["key-hello"]
        assert await bench.store.stream(gone) is None

    async def test_repeated_append_returns_its_outbox_results_after_a_takeover(self, bench: Bench) -> None:
        hold = await held(bench)
        plan = hold.plan(note("a"), outbox=(said(stream_of("new"), "x"), said(stream_of("nowhere"), "y", agent=None)))
        first = await bench.store.append(plan)
        bench.kill(ANN)
        await enlist(bench, BOB)
        successor = await take(bench.store, hold.stream, BOB)
        resent = await bench.store.append(successor.plan(note("b"), outbox=plan.outbox))
        assert first.sent == (ACCEPTED, NO_SUCH_SESSION)
        assert resent.sent == (DUPLICATE, NO_SUCH_SESSION)
        assert await bench.store.append(plan) == repeated(first)
        assert await keys_in(bench, "new") == ["key-x"]

    async def test_a_refused_plan_sends_nothing(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("first", key="gate")))
        there = await open_stream(bench.store, "there")
        plan = hold.plan(note("second", key="gate"), outbox=(said(stream_of("new"), "x"), said(there, "y")))
        assert await refusal(bench, plan) is Code.GATE_CLOSED
        assert await bench.store.stream(stream_of("new")) is None
        assert await keys_in(bench, "there") == ["key-hello"]

    async def test_a_stale_fence_sends_nothing(self, bench: Bench) -> None:
        hold = await held(bench)
        bench.kill(ANN)
        await enlist(bench, BOB)
        await take(bench.store, hold.stream, BOB)
        assert await refusal(bench, hold.plan(note("a"), outbox=(said(stream_of("new"), "x"),))) is Code.LEASE_LOST
        assert await bench.store.stream(stream_of("new")) is None

    async def test_outbox_message_makes_its_stream_claimable(self, bench: Bench) -> None:
        idle = await parked(bench, "idle")
        hold = await held(bench, "busy")
        assert await bench.store.claimable(BOB, limit=9, now=9) == ()
        await bench.store.append(hold.plan(outbox=(said(idle.stream, "x"), said(stream_of("new"), "y"))))
        await enlist(bench, BOB)
        assert set(await bench.store.claimable(BOB, limit=9, now=9)) == {idle.stream, stream_of("new")}

    async def test_owned_stream_keeps_its_owner_after_an_outbox_message(self, bench: Bench) -> None:
        one, two = await held(bench, "one"), await held(bench, "two")
        await bench.store.append(one.plan(note("a"), outbox=(said(two.stream, "x"),)))
        receipt = await bench.store.append(two.plan(note("b"), known_seq=Seq(1)))
        assert receipt.missed == ()
        assert await keys_in(bench, "two") == ["key-x"]

    async def test_a_plan_may_send_to_its_own_stream(self, bench: Bench) -> None:
        hold = await held(bench)
        receipt = await bench.store.append(hold.plan(note("a"), outbox=(said(hold.stream, "later"),)))
        assert receipt.sent == (ACCEPTED,)
        assert await keys_in(bench, "one") == ["key-later"]

    async def test_plans_that_send_to_each_other_at_once_all_arrive(self, bench: Bench) -> None:
        names = [f"s{i}" for i in range(8)]
        holds = [await held(bench, name) for name in names]
        for _ in range(5):
            plans = [
                hold.plan(
                    note("a"),
                    outbox=(
                        *(said(stream_of(to), f"{name}-{hold.n}") for to in reversed(names)),
                        said(stream_of(f"new-{hold.n}"), name),
                        said(stream_of(f"also-{hold.n}"), "all", turn=name),
                    ),
                )
                for name, hold in zip(names, holds, strict=True)
            ]
            receipts = await asyncio.gather(*(bench.store.append(plan) for plan in plans))
            assert all(receipt.sent[:-1] == (ACCEPTED,) * 9 for receipt in receipts)
            assert sorted(receipt.sent[-1].verdict for receipt in receipts) == ["accepted"] + ["duplicate"] * 7
        for name in names:
            waiting = await keys_in(bench, name)
            assert sorted(waiting) == sorted(f"key-{sender}-{n}" for sender in names for n in range(1, 6))
        assert [len(await keys_in(bench, f"new-{n}")) for n in range(1, 6)] == [8] * 5
        assert [len(await keys_in(bench, f"also-{n}")) for n in range(1, 6)] == [1] * 5

    async def test_outbox_of_a_deletion_is_written_once(self, bench: Bench) -> None:
        gone, there = await open_stream(bench.store, "gone"), await open_stream(bench.store, "there")
        told = (said(there, "it is gone", agent=None), said(stream_of("nobody"), "hi", agent=None))
        assert await bench.store.delete(gone, outbox=told)
        assert await keys_in(bench, "there") == ["key-hello", "key-it is gone"]
        assert await bench.store.stream(stream_of("nobody")) is None
        assert not await bench.store.delete(gone, outbox=(said(there, "again", agent=None),))
        assert await keys_in(bench, "there") == ["key-hello", "key-it is gone"]

    async def test_many_sends_count_for_the_budget(self, bench: Bench) -> None:
        hold = await held(bench)
        many = tuple(said(stream_of("new"), f"x{i}") for i in range(513))
        assert await refusal(bench, hold.plan(outbox=many)) is Code.STORE_COMMIT_ROW_BUDGET_EXCEEDED
        assert await bench.store.stream(stream_of("new")) is None

    @pytest.mark.parametrize("count", [1, 100])
    async def test_a_plan_without_sends_has_no_verdicts(self, bench: Bench, count: int) -> None:
        hold = await held(bench)
        receipts = await asyncio.gather(*(bench.store.append(hold.plan(note("a"))) for _ in range(count)))
        assert {receipt.sent for receipt in receipts} == {()}
