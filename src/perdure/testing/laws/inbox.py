"""Laws of the inbox and of admitted records: an accepted item is never lost and never enters twice."""
# ruff: noqa: D102 - the name of a law is its sentence

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from perdure.commit.changes import Intervention
from perdure.errors import Code, Error
from perdure.ids import InputId, PromiseId, Tenant, TurnId, process_stream
from perdure.inbox.admit import Admitted, Conflict, Duplicate, Opening
from perdure.inbox.items import Input
from perdure.store.shapes import Claim, claimed
from perdure.testing.laws.bench import (
    ANN,
    BOB,
    Bench,
    Hold,
    enlist,
    held,
    note,
    notes,
    open_stream,
    parked,
    refusal,
    said,
    stream_of,
    take,
)
from perdure.testing.laws.blobs import PICTURE
from perdure.vocab.promises import Ok, PromiseState
from perdure.vocab.records import SessionOpened, TitleSet, kind_of, write


class InboxLaws:
    """Laws of admission, consumption, delivery and annotation."""

    async def test_the_first_delivery_opens_the_session_with_a_record(self, bench: Bench) -> None:
        stream = stream_of("one")
        admission = await bench.store.admit(said(stream, "hello", agent="billing"))
        assert isinstance(admission, Admitted)
        assert admission.fence is None
        (opened,) = await bench.store.read(stream)
        assert (opened.seq, opened.at, opened.record) == (1, 5, SessionOpened(agent="billing"))
        (row,) = await bench.store.inbox(stream)
        assert (row.id, row.stream, row.source_key, row.at) == (admission.inbox_id, stream, "key-hello", 5)
        assert row.item == said(stream, "hello").item

    async def test_claim_of_an_opening_admission_contains_the_loaded_stream(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        process = replace(
            said(process_stream(Tenant("default"), "p"), "go", agent="code"),
            opening=Opening(kind_of(TitleSet(title="a")), write(TitleSet(title="a"))),
        )
        for new in (said(stream_of("one"), "hello"), process):
            admission = await bench.store.admit(new, claim_for=ANN)
            assert isinstance(admission, Admitted)
            claim = claimed(new, admission)
            assert claim is not None
            assert claim.loaded == await bench.store.load(new.stream, code="")

    async def test_claim_of_a_later_admission_contains_no_loaded_stream(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        await enlist(bench, BOB)
        stream = await open_stream(bench.store, "one")
        later = said(stream, "more")
        admission = await bench.store.admit(later, claim_for=ANN)
        assert isinstance(admission, Admitted)
        claim = claimed(later, admission)
        assert claim is not None
        assert claim.loaded is None
        new = [said(stream_of("two"), text) for text in ("first", "second", "third")]
        admissions = await asyncio.gather(*(bench.store.admit(one, claim_for=BOB) for one in new))
        for one, told in zip(new, admissions, strict=True):
            assert isinstance(told, Admitted)
            claim = claimed(one, told)
            if claim is not None and claim.loaded is not None:  # first of the batch, before the others
                assert claim.loaded.inbox == (await bench.store.inbox(one.stream))[:1]

    async def test_fresh_delivery_is_refused_by_an_existing_stream(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        first, second = said(stream_of("one"), "hello"), said(stream_of("one"), "more")
        assert isinstance(await bench.store.admit(replace(first, fresh=True), claim_for=ANN), Admitted)
        for again in (first, second, replace(second, blobs=(PICTURE,))):
            assert await bench.store.admit(replace(again, fresh=True), claim_for=ANN) == Conflict(again.source_key)
        assert len(await bench.store.inbox(first.stream)) == 1
        assert isinstance(await bench.store.admit(first), Duplicate)
        assert isinstance(await bench.store.admit(second), Admitted)

    async def test_a_delivery_may_say_with_which_record_its_stream_opens(self, bench: Bench) -> None:
        stream, first = process_stream(Tenant("default"), "p"), TitleSet(title="the first word")
        new = replace(said(stream, "hello", agent="code"), opening=Opening(kind_of(first), write(first)))
        with_bytes = replace(said(stream, "with bytes", agent="code"), opening=new.opening, blobs=(PICTURE,))
        assert isinstance(await bench.store.admit(new), Admitted)
        assert isinstance(await bench.store.admit(with_bytes), Admitted)
        assert [row.record for row in await bench.store.read(stream)] == [first]
        info = await bench.store.stream(stream)
        assert info is not None
        assert (info.kind, info.name, info.agent) == ("process", "p", "code")

    async def test_a_delivery_may_say_how_the_stream_it_opens_is_found(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.admit(replace(said(stream_of("a"), "hello"), tags=("red", "big")))
        await bench.store.append(hold.plan(outbox=(replace(said(stream_of("b"), "hello"), tags=("red",)),)))
        await bench.store.admit(replace(said(stream_of("a"), "more"), tags=("too late",)))
        red = await bench.store.streams(tenant=Tenant("default"), kind="session", limit=9, tag="red")
        assert {info.stream: info.tags for info in red} == {stream_of("a"): ("big", "red"), stream_of("b"): ("red",)}
        assert not await bench.store.streams(tenant=Tenant("default"), kind="session", limit=9, tag="too late")

    async def test_admission_concurrent_with_deletion_fails_with_session_unknown(self, bench: Bench) -> None:
        other = await bench.reopen()
        for n in range(8):
            stream = await open_stream(bench.store, f"s{n}")
            made = [PromiseState(id=PromiseId(f"{n}-{which}"), stream=stream) for which in range(3)]
            deleted, *brought = await asyncio.gather(
                bench.store.delete(stream),
                other.admit(said(stream, "more", agent=None)),
                other.admit(replace(said(stream, "picture", agent=None), blobs=(PICTURE,))),
                other.promise(made[0]),
                other.resolve(made[1].id, Ok(value=1), now=1, make=made[1]),
                other.resolve_all([(made[2], Ok(value=1))], now=1),
                other.intervene(Intervention(stream, delivery=said(stream, "now", agent=None), notes=(note("x"),))),
                return_exceptions=True,
            )
            assert deleted is True
            assert await bench.store.stream(stream) is None
            for told in brought:
                if isinstance(told, BaseException):
                    assert isinstance(told, Error), told
                    assert told.code is Code.SESSION_UNKNOWN, told

    async def test_the_same_input_again_is_the_first_one(self, bench: Bench) -> None:
        stream = stream_of("one")
        await bench.store.admit(said(stream, "hello", key="k", turn="t1"))
        again = await bench.store.admit(said(stream, "hello", key="k", turn="t2"))
        assert again == Duplicate(TurnId("t1"), InputId("input-t1"))
        assert len(await bench.store.inbox(stream)) == 1

    async def test_an_input_is_remembered_after_it_was_consumed(self, bench: Bench) -> None:
        hold = await held(bench)
        again = await bench.store.admit(said(hold.stream, "hello"))
        assert again == Duplicate(TurnId("turn-hello"), InputId("input-turn-hello"))
        assert await bench.store.inbox(hold.stream) == ()

    async def test_other_content_under_a_used_key_is_a_conflict(self, bench: Bench) -> None:
        stream = await open_stream(bench.store, "one")
        assert await bench.store.admit(said(stream, "something else", key="key-hello")) == Conflict("key-hello")
        assert len(await bench.store.inbox(stream)) == 1

    async def test_a_key_means_nothing_in_another_stream(self, bench: Bench) -> None:
        await bench.store.admit(said(stream_of("one"), "hello", key="k"))
        assert isinstance(await bench.store.admit(said(stream_of("two"), "other", key="k")), Admitted)

    async def test_input_without_agent_is_refused_by_an_unknown_session(self, bench: Bench) -> None:
        with pytest.raises(Error) as caught:
            await bench.store.admit(said(stream_of("one"), "hello", agent=None))
        assert caught.value.code is Code.SESSION_UNKNOWN
        assert await bench.store.stream(stream_of("one")) is None

    async def test_a_session_belongs_to_its_agent(self, bench: Bench) -> None:
        stream = stream_of("one")
        await bench.store.admit(said(stream, "hello", agent="billing"))
        with pytest.raises(Error) as caught:
            await bench.store.admit(said(stream, "more", agent="shipping"))
        assert caught.value.code is Code.SESSION_AGENT_CONFLICT
        assert len(await bench.store.inbox(stream)) == 1

    async def test_an_open_session_needs_no_agent(self, bench: Bench) -> None:
        stream = await open_stream(bench.store, "one")
        assert isinstance(await bench.store.admit(said(stream, "more", agent=None)), Admitted)

    async def test_the_inbox_is_all_that_waits_oldest_first(self, bench: Bench) -> None:
        hold = await held(bench)
        for text in "abc":
            await bench.store.admit(said(hold.stream, text))
        a, b, c = await bench.store.inbox(hold.stream)
        await bench.store.append(hold.plan(consume=(b.id,)))
        assert [row.source_key for row in await bench.store.inbox(hold.stream)] == ["key-a", "key-c"]
        await bench.store.append(hold.plan(consume=(c.id, a.id)))
        assert await bench.store.inbox(hold.stream) == ()

    async def test_an_input_is_consumed_once(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.admit(said(hold.stream, "a"))
        (row,) = await bench.store.inbox(hold.stream)
        await bench.store.append(hold.plan(note("first"), consume=(row.id,)))
        assert await refusal(bench, hold.plan(note("second"), consume=(row.id,))) is Code.COMMIT_CONFLICT
        assert notes(await bench.store.read(hold.stream)) == [(2, "first")]

    async def test_an_input_is_not_consumed_twice_in_one_plan(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.admit(said(hold.stream, "a"))
        (row,) = await bench.store.inbox(hold.stream)
        assert await refusal(bench, hold.plan(consume=(row.id, row.id))) is Code.COMMIT_CONFLICT
        assert len(await bench.store.inbox(hold.stream)) == 1

    async def test_the_inbox_of_another_stream_is_out_of_reach(self, bench: Bench) -> None:
        hold = await held(bench)
        other = await open_stream(bench.store, "other")
        (row,) = await bench.store.inbox(other)
        assert await refusal(bench, hold.plan(consume=(row.id,))) is Code.COMMIT_CONFLICT
        assert len(await bench.store.inbox(other)) == 1

    async def test_an_input_survives_the_death_of_the_worker_that_saw_it(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.admit(said(hold.stream, "a"))
        bench.kill(ANN)
        await enlist(bench, BOB)
        await take(bench.store, hold.stream, BOB)
        loaded = await (await bench.reopen()).load(hold.stream, code="1")
        assert [row.source_key for row in loaded.inbox] == ["key-a"]

    async def test_sixty_four_senders_of_one_key_admit_one_input(self, bench: Bench) -> None:
        stream = stream_of("one")
        deliveries = [said(stream, "hello", key="k", turn=f"t{i}") for i in range(64)]
        results = await asyncio.gather(*(bench.store.admit(d) for d in deliveries))
        assert sum(isinstance(r, Admitted) for r in results) == 1
        (row,) = await bench.store.inbox(stream)
        assert isinstance(row.item, Input)
        told = [r.turn for r in results if isinstance(r, Duplicate)]
        assert told == [row.item.turn] * 63

    # --- admit and claim at once

    async def test_a_sender_is_given_a_stream_that_is_free_and_idle(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        stream = stream_of("one")
        admission = await bench.store.admit(said(stream, "hello"), claim_for=ANN)
        assert isinstance(admission, Admitted)
        assert admission.fence is not None
        receipt = await bench.store.append(Hold(stream, ANN, admission.fence).plan(note("a")))
        assert receipt.first_seq == 2

    async def test_a_sender_is_not_given_a_stream_that_a_live_worker_holds(self, bench: Bench) -> None:
        hold = await held(bench)
        await enlist(bench, BOB)
        admission = await bench.store.admit(said(hold.stream, "more"), claim_for=BOB)
        assert isinstance(admission, Admitted)
        assert admission.fence is None
        await bench.store.append(hold.plan(note("still mine")))

    async def test_a_sender_is_not_given_again_what_it_holds(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(active=False))
        admission = await bench.store.admit(said(hold.stream, "more"), claim_for=ANN)
        assert isinstance(admission, Admitted)
        assert admission.fence is None
        await bench.store.append(hold.plan(note("same fence")))

    async def test_a_sender_is_not_given_an_unfinished_turn(self, bench: Bench) -> None:
        hold = await parked(bench, active=True)
        admission = await bench.store.admit(said(hold.stream, "more"), claim_for=ANN)
        assert isinstance(admission, Admitted)
        assert admission.fence is None

    async def test_admission_does_not_claim_the_stream_of_a_dead_worker(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(active=False))
        await enlist(bench, BOB)
        bench.kill(ANN)
        admission = await bench.store.admit(said(hold.stream, "more"), claim_for=BOB)
        assert isinstance(admission, Admitted)
        assert admission.fence is None
        claim = await bench.store.claim(hold.stream, BOB)
        assert isinstance(claim, Claim)
        assert claim.takeovers == 1

    async def test_a_duplicate_claims_nothing(self, bench: Bench) -> None:
        stream = await open_stream(bench.store, "one")
        await enlist(bench, ANN)
        assert isinstance(await bench.store.admit(said(stream, "hello"), claim_for=ANN), Duplicate)
        info = await bench.store.stream(stream)
        assert info is not None
        assert (info.owner, info.fence) == (None, 0)

    # --- admitted records

    async def test_owned_stream_is_annotated_by_another_writer(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("mine")))
        added = await bench.store.annotate(hold.stream, note("theirs"))
        await bench.store.append(hold.plan(note("mine again")))
        assert added.new
        assert added.row.seq == 3
        assert notes(await bench.store.read(hold.stream)) == [(2, "mine"), (3, "theirs"), (4, "mine again")]

    async def test_the_first_record_under_a_key_stands(self, bench: Bench) -> None:
        stream = await open_stream(bench.store, "one")
        first = await bench.store.annotate(stream, note("yes", key="gate"))
        second = await bench.store.annotate(stream, note("no", key="gate"))
        assert (first.new, second.new) == (True, False)
        assert second.row == first.row
        assert notes(await bench.store.read(stream)) == [(2, "yes")]

    async def test_an_annotation_and_an_append_race_for_one_key(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.annotate(hold.stream, note("cancel", key="gate"))
        assert await refusal(bench, hold.plan(note("finish", key="gate"))) is Code.GATE_CLOSED
        other = await held(bench, "two")
        await bench.store.append(other.plan(note("finish", key="gate")))
        late = await bench.store.annotate(other.stream, note("cancel", key="gate"))
        assert (late.new, notes([late.row])) == (False, [(2, "finish")])

    async def test_records_without_a_key_are_all_kept(self, bench: Bench) -> None:
        stream = await open_stream(bench.store, "one")
        for _ in range(3):
            assert (await bench.store.annotate(stream, note("same"))).new
        assert notes(await bench.store.read(stream)) == [(2, "same"), (3, "same"), (4, "same")]

    async def test_a_stream_that_does_not_exist_cannot_be_annotated(self, bench: Bench) -> None:
        with pytest.raises(Error) as caught:
            await bench.store.annotate(stream_of("nowhere"), note("a"))
        assert caught.value.code is Code.SESSION_UNKNOWN
