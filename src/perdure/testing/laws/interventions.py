"""Laws of control writes to a turn or an inbox from outside: all or nothing."""
# ruff: noqa: D102 - the name of a law is its sentence

from __future__ import annotations

import asyncio

import pytest

from perdure.commit.changes import Intervention, Pause
from perdure.errors import Code, Error
from perdure.inbox.admit import Admitted, Conflict, Duplicate
from perdure.testing.laws.bench import ANN, BOB, Bench, enlist, held, note, notes, open_stream, refusal, said, take


async def code_of(bench: Bench, intervention: Intervention) -> Code:
    """Return the error code of a refused control write."""
    with pytest.raises(Error) as caught:
        await bench.store.intervene(intervention)
    return caught.value.code


class InterventionLaws:
    """Laws of control writes. Each is one transaction."""

    async def test_a_note_and_a_delivery_are_written_together(self, bench: Bench) -> None:
        stream = await open_stream(bench.store, "one")
        new = said(stream, "stop", agent=None)
        done = await bench.store.intervene(Intervention(stream, delivery=new, notes=(note("a", key="gate:t"),)))
        assert done.done
        assert isinstance(done.admission, Admitted)
        assert [noted.new for noted in done.notes] == [True]
        assert notes(await bench.store.read(stream)) == [(2, "a")]
        assert [row.source_key for row in await bench.store.inbox(stream)] == ["key-hello", "key-stop"]

    async def test_note_with_a_taken_key_is_skipped_and_others_written(self, bench: Bench) -> None:
        stream = await open_stream(bench.store, "one")
        await bench.store.annotate(stream, note("first", key="gate:t"))
        new = said(stream, "stop", agent=None)
        done = await bench.store.intervene(Intervention(stream, delivery=new, notes=(note("b", key="gate:t"),)))
        assert done.done
        assert [(noted.new, noted.row.seq) for noted in done.notes] == [(False, 2)]
        assert notes(await bench.store.read(stream)) == [(2, "first")]
        assert len(await bench.store.inbox(stream)) == 2

    async def test_repeated_delivery_writes_nothing(self, bench: Bench) -> None:
        stream = await open_stream(bench.store, "one")
        (waiting,) = await bench.store.inbox(stream)
        again = Intervention(stream, delivery=said(stream, "hello"), notes=(note("a"),), withdraw=(waiting.id,))
        done = await bench.store.intervene(again)
        assert not done.done
        assert isinstance(done.admission, Duplicate)
        other = Intervention(stream, delivery=said(stream, "other", key="key-hello"), notes=(note("a"),))
        assert isinstance((await bench.store.intervene(other)).admission, Conflict)
        assert notes(await bench.store.read(stream)) == []
        assert await bench.store.inbox(stream) == (waiting,)

    async def test_outbox_commits_with_the_control_write(self, bench: Bench) -> None:
        stream, other = await open_stream(bench.store, "one"), await open_stream(bench.store, "two")
        gone = await open_stream(bench.store, "gone")
        await bench.store.delete(gone)
        outbox = (said(gone, "nobody", agent=None), said(other, "news", agent=None))
        new = said(stream, "stop", agent=None)
        done = await bench.store.intervene(Intervention(stream, delivery=new, notes=(note("a"),), outbox=outbox))
        assert done.done
        assert [row.source_key for row in await bench.store.inbox(other)] == ["key-hello", "key-news"]
        assert await bench.store.stream(gone) is None, "a message does not recreate a deleted stream"
        again = Intervention(stream, delivery=new, notes=(note("b"),), outbox=(said(other, "more", agent=None),))
        assert not (await bench.store.intervene(again)).done
        assert len(await bench.store.inbox(other)) == 2
        assert notes(await bench.store.read(stream)) == [(2, "a")]

    async def test_nothing_is_done_once_a_key_that_forbids_it_is_taken(self, bench: Bench) -> None:
        stream, other = await open_stream(bench.store, "one"), await open_stream(bench.store, "two")
        await bench.store.annotate(stream, note("over", key="end"))
        late = Intervention(
            stream,
            delivery=said(stream, "late", agent=None),
            notes=(note("late"),),
            outbox=(said(other, "late", agent=None),),
            unless=("else", "end"),
        )
        done = await bench.store.intervene(late)
        assert (done.done, done.admission) == (False, None)
        assert notes(await bench.store.read(stream)) == [(2, "over")]
        assert [len(await bench.store.inbox(one)) for one in (stream, other)] == [1, 1]

    async def test_of_many_that_end_it_at_once_one_tells_others(self, bench: Bench) -> None:
        stream, other = await open_stream(bench.store, "one"), await open_stream(bench.store, "two")

        def ends(number: int) -> Intervention:
            return Intervention(
                stream,
                delivery=said(stream, f"end {number}", agent=None),
                notes=(note(f"end {number}", key="end"),),
                outbox=(said(other, f"end {number}", agent=None),),
                unless=("end",),
            )

        stores = [bench.store, await bench.reopen()]
        done = await asyncio.gather(*(stores[number % 2].intervene(ends(number)) for number in range(8)))
        (winner,) = (number for number, one in enumerate(done) if one.done)
        assert notes(await bench.store.read(stream)) == [(2, f"end {winner}")]
        assert [row.source_key for row in await bench.store.inbox(other)] == ["key-hello", f"key-end {winner}"]

    async def test_rows_are_withdrawn_together_or_not_at_all(self, bench: Bench) -> None:
        stream = await open_stream(bench.store, "one")
        await bench.store.admit(said(stream, "two"))
        first, second = await bench.store.inbox(stream)
        gone = Intervention(stream, withdraw=(first.id, second.id + 1000), notes=(note("a"),))
        assert await code_of(bench, gone) is Code.COMMIT_CONFLICT
        assert await bench.store.inbox(stream) == (first, second)
        done = await bench.store.intervene(Intervention(stream, withdraw=(first.id, second.id), notes=(note("a"),)))
        assert done.done
        assert await bench.store.inbox(stream) == ()
        assert notes(await bench.store.read(stream)) == [(2, "a")]

    async def test_nothing_is_withdrawn_if_something_came_behind_it(self, bench: Bench) -> None:
        stream = await open_stream(bench.store, "one")
        (first,) = await bench.store.inbox(stream)
        await bench.store.admit(said(stream, "two"))
        suffix = Intervention(stream, withdraw=(first.id,), known_inbox=first.id)
        assert await code_of(bench, suffix) is Code.COMMIT_CONFLICT
        assert len(await bench.store.inbox(stream)) == 2

    async def test_a_row_is_taken_by_its_owner_or_withdrawn_never_both(self, bench: Bench) -> None:
        hold = await held(bench)
        other = await bench.reopen()
        for round in range(12):
            await bench.store.admit(said(hold.stream, f"in-{round}", agent=None))
            (row,) = await bench.store.inbox(hold.stream)
            plan = hold.plan(note(f"taken-{round}"), consume=(row.id,))
            withdraw = Intervention(hold.stream, withdraw=(row.id,), notes=(note(f"withdrawn-{round}"),))
            taken, back = await asyncio.gather(
                bench.store.append(plan), other.intervene(withdraw), return_exceptions=True
            )
            assert isinstance(taken, Error) != isinstance(back, Error)
            if isinstance(taken, Error):
                hold.n -= 1
            written = [text for _, text in notes(await bench.store.read(hold.stream))]
            assert [text for text in written if text.endswith(f"n-{round}")] == [
                f"withdrawn-{round}" if isinstance(taken, Error) else f"taken-{round}"
            ]

    async def test_a_paused_stream_is_nobodys_work(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        stream = await open_stream(bench.store, "one")
        assert (await bench.store.intervene(Intervention(stream, pause=Pause("maria", 5)))).done
        assert await bench.store.claimable(ANN, limit=10, now=99) == ()
        assert await bench.store.claim(stream, ANN) is None
        admission = await bench.store.admit(said(stream, "two"), claim_for=ANN)
        assert isinstance(admission, Admitted)
        assert admission.fence is None
        info = await bench.store.stream(stream)
        assert info is not None
        assert info.paused == Pause("maria", 5)
        assert [one.paused for one in await bench.store.streams(tenant=info.tenant, kind=info.kind, limit=9)] == [
            Pause("maria", 5)
        ]

    async def test_a_resumed_stream_is_claimable_again(self, bench: Bench) -> None:
        await enlist(bench, ANN)
        stream = await open_stream(bench.store, "one")
        await bench.store.intervene(Intervention(stream, pause=Pause("maria", 5)))
        assert (await bench.store.intervene(Intervention(stream, pause=Pause("", None)))).done
        assert await bench.store.claimable(ANN, limit=10, now=99) == (stream,)
        info = await bench.store.stream(stream)
        assert info is not None
        assert info.paused is None

    async def test_pausing_what_is_paused_changes_nothing(self, bench: Bench) -> None:
        stream = await open_stream(bench.store, "one")
        assert not (await bench.store.intervene(Intervention(stream, pause=Pause("", None)))).done
        await bench.store.intervene(Intervention(stream, pause=Pause("maria", 5)))
        again = Intervention(stream, pause=Pause("paul", 6), notes=(note("a"),), delivery=said(stream, "x"))
        assert not (await bench.store.intervene(again)).done
        assert notes(await bench.store.read(stream)) == []
        assert len(await bench.store.inbox(stream)) == 1
        info = await bench.store.stream(stream)
        assert info is not None
        assert info.paused == Pause("maria", 5)

    async def test_pausing_takes_an_idle_stream_from_its_owner(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(active=False))
        await bench.store.intervene(Intervention(hold.stream, pause=Pause("maria", 5)))
        assert await refusal(bench, hold.plan(note("begun"))) is Code.LEASE_LOST
        info = await bench.store.stream(hold.stream)
        assert info is not None
        assert info.owner is None

    async def test_pausing_leaves_an_unfinished_turn_to_its_owner(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("a"), active=True))
        await bench.store.intervene(Intervention(hold.stream, pause=Pause("maria", 5)))
        await bench.store.append(hold.plan(note("b"), active=True))
        assert [text for _, text in notes(await bench.store.read(hold.stream))] == ["a", "b"]
        assert (await take(bench.store, hold.stream, ANN)).fence > hold.fence

    async def test_paused_turn_is_not_claimable_after_its_owner_died(self, bench: Bench) -> None:
        hold = await held(bench)
        await enlist(bench, BOB)
        await bench.store.append(hold.plan(note("a"), active=True))
        await bench.store.intervene(Intervention(hold.stream, pause=Pause("maria", 5)))
        bench.kill(ANN)
        assert await bench.store.claimable(BOB, limit=10, now=99) == ()
        assert await bench.store.claim(hold.stream, BOB) is None
        await bench.store.intervene(Intervention(hold.stream, pause=Pause("", None)))
        assert await bench.store.claimable(BOB, limit=10, now=99) == (hold.stream,)

    async def test_a_stream_that_does_not_exist_is_unknown(self, bench: Bench) -> None:
        stream = (await held(bench)).stream
        await bench.store.delete(stream)
        assert await code_of(bench, Intervention(stream, pause=Pause("maria", 5))) is Code.SESSION_UNKNOWN
