"""Laws of lists that stay cheap: streams in creation order, found by tags that the end of a stream removes."""
# ruff: noqa: D102 - the name of a law is its sentence

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from perdure.commit.changes import Intervention, Label, Note
from perdure.commit.plan import Entry, OutboxResult
from perdure.errors import Code, Error
from perdure.ids import DEFAULT_TENANT, SessionId, StreamId, Tenant, session_stream
from perdure.inbox.admit import Admitted, Conflict, Duplicate
from perdure.store.protocol import Store
from perdure.testing.laws.bench import Bench, held, note, notes, open_stream, said, stream_of
from perdure.vocab.log_keys import PROCESS_END


def end(text: str = "over") -> Entry:
    """Return the record that ends a stream."""
    return note(text, key=PROCESS_END)


async def found(store: Store, tag: str, *, agent: str | None = None) -> list[str]:
    """Return the names of the listed sessions, newest first."""
    page = await store.newest(tenant=DEFAULT_TENANT, kind="session", limit=99, tag=tag, agent=agent)
    return [info.name for info in page]


async def tagged(bench: Bench, name: str, *tags: str) -> StreamId:
    """Create a stream with these tags."""
    await bench.store.admit(replace(said(stream_of(name), "hello"), tags=tags))
    return stream_of(name)


class ListingLaws:
    """Laws of lists."""

    async def test_the_latest_made_is_first_whatever_changes_since(self, bench: Bench) -> None:
        for name in ("one", "two", "three"):
            await tagged(bench, name, "red")
        bench.clock.advance(10)
        await bench.store.annotate(stream_of("one"), note("changed"))
        assert await found(bench.store, "red") == ["three", "two", "one"]
        other = await bench.reopen()
        assert await found(other, "red") == ["three", "two", "one"]

    async def test_a_page_goes_on_after_a_number_whatever_was_deleted(self, bench: Bench) -> None:
        for i in range(7):
            await tagged(bench, f"s{i}", "red")
        page = await bench.store.newest(tenant=DEFAULT_TENANT, kind="session", tag="red", limit=3)
        assert [info.name for info in page] == ["s6", "s5", "s4"]
        await bench.store.delete(stream_of("s4"))
        after = page[-1].number
        rest = await bench.store.newest(tenant=DEFAULT_TENANT, kind="session", tag="red", limit=3, before=after)
        assert [info.name for info in rest] == ["s3", "s2", "s1"]

    async def test_list_filters_by_tenant_kind_tag_and_agent(self, bench: Bench) -> None:
        await tagged(bench, "mine", "red")
        await bench.store.admit(replace(said(session_stream(Tenant("acme"), SessionId("theirs")), "x"), tags=("red",)))
        await bench.store.admit(replace(said(stream_of("other"), "x", agent="b"), tags=("red", "blue")))
        assert await found(bench.store, "red") == ["other", "mine"]
        assert await found(bench.store, "blue") == ["other"]
        assert await found(bench.store, "red", agent="agent") == ["mine"]
        assert await found(bench.store, "green") == []
        assert await bench.store.newest(tenant=DEFAULT_TENANT, kind="process", limit=9, tag="red") == ()

    async def test_the_beginning_and_the_end_of_many_are_one_look(self, bench: Bench) -> None:
        one, two = await held(bench, "one"), await held(bench, "two")
        await bench.store.append(one.plan(note("a"), note("b"), end("so")))
        await bench.store.append(two.plan(note("c")))
        asked = [stream_of("two"), stream_of("one"), stream_of("nowhere")]
        rows = await bench.store.marks(asked, PROCESS_END)
        assert sorted((row.stream, row.seq) for row in rows) == [(one.stream, 1), (one.stream, 4), (two.stream, 1)]
        assert notes(rows) == [(4, "so")]
        assert await bench.store.marks([], PROCESS_END) == ()

    async def test_where_many_end_is_one_look(self, bench: Bench) -> None:
        one, two = await held(bench, "one"), await held(bench, "two")
        asked = [stream_of("two"), stream_of("one"), stream_of("nowhere")]
        before = await bench.store.heads(asked)
        assert {stream: head.last_seq for stream, head in before.items()} == {one.stream: 1, two.stream: 1}
        await bench.store.append(one.plan(note("a"), note("b")))
        await bench.store.annotate(two.stream, note("c"))
        after = await bench.store.heads(asked)
        assert {stream: head.last_seq for stream, head in after.items()} == {one.stream: 3, two.stream: 2}
        assert {head[:2] for head in after.values()} == {head[:2] for head in before.values()}
        assert await bench.store.heads([]) == {}

    async def test_recreated_stream_of_equal_length_has_another_head(self, bench: Bench) -> None:
        await tagged(bench, "other")
        await tagged(bench, "one")
        (before,) = (await bench.store.heads([stream_of("one")])).values()
        await bench.store.delete(stream_of("one"))
        assert await bench.store.heads([stream_of("one")]) == {}
        bench.clock.advance(1)
        await tagged(bench, "one")
        (after,) = (await bench.store.heads([stream_of("one")])).values()
        assert after.last_seq == before.last_seq
        assert after != before

    # --- live tags

    @pytest.mark.parametrize("how", ["owned", "with others", "annotated", "intervened", "sent"])
    async def test_ended_stream_loses_its_live_tags(self, how: str, bench: Bench) -> None:
        stream = await tagged(bench, "one", "live:all", "live:red", "red", "lived")
        await tagged(bench, "two", "live:all", "live:red")
        hold = await held(bench, "one")
        match how:
            case "owned":
                await bench.store.append(hold.parting(end()))
            case "with others":
                plans = (hold.plan(note("a")), hold.plan(note("b")), hold.plan(end()))
                await asyncio.gather(*(bench.store.append(plan) for plan in plans))
            case "annotated":
                await bench.store.annotate(stream, end())
            case "intervened":
                await bench.store.intervene(Intervention(stream, notes=(note("a"), end())))
            case _:
                await bench.store.append(hold.plan(end(), outbox=(said(stream_of("two"), "it is over"),)))
        assert await found(bench.store, "live:all") == await found(bench.store, "live:red") == ["two"]
        assert await found(bench.store, "red") == await found(bench.store, "lived") == ["one"]

    async def test_a_record_under_another_key_ends_nothing(self, bench: Bench) -> None:
        hold = await held(bench, "one")
        await bench.store.annotate(hold.stream, note("a"), label=Label(adds=("live:all",)))
        await bench.store.append(hold.plan(note("b", key="process:abandon")))
        assert await found(bench.store, "live:all") == ["one"]

    async def test_a_refused_end_takes_nothing(self, bench: Bench) -> None:
        stream = await tagged(bench, "one", "live:all")
        await bench.store.annotate(stream, note("a", key="k"))
        hold = await held(bench, "one")
        with pytest.raises(Exception, match="taken"):
            await bench.store.append(hold.plan(note("b", key="k"), end()))
        assert await found(bench.store, "live:all") == ["one"]

    async def test_ended_stream_accepts_no_live_tag(self, bench: Bench) -> None:
        stream = await tagged(bench, "one")
        await bench.store.annotate(stream, end())
        await bench.store.annotate(stream, note("a"), label=Label(adds=("live:red", "red")))
        assert await found(bench.store, "live:red") == []
        assert await found(bench.store, "red") == ["one"]

    # --- tags one by one

    async def test_tags_are_added_and_dropped_one_by_one(self, bench: Bench) -> None:
        stream = await tagged(bench, "one", "a", "b")
        changes = [Label(adds=(f"n{i}",), drops=("a",)) for i in range(8)]
        await asyncio.gather(
            *(bench.store.annotate(stream, note(f"{i}"), label=label) for i, label in enumerate(changes))
        )
        info = await bench.store.stream(stream)
        assert info is not None
        assert info.tags == ("b", *(f"n{i}" for i in range(8)))

    async def test_a_tag_of_a_refused_record_is_not_added(self, bench: Bench) -> None:
        stream = await tagged(bench, "one")
        await bench.store.annotate(stream, note("a", key="k"), label=Label(adds=("red",)))
        await bench.store.annotate(stream, note("b", key="k"), label=Label(adds=("blue",), drops=("red",)))
        assert await found(bench.store, "red") == ["one"]
        assert await found(bench.store, "blue") == []

    async def test_notes_of_several_streams_are_written_together(self, bench: Bench) -> None:
        await tagged(bench, "one", "a")
        await tagged(bench, "two", "a")
        asked = [
            Note(stream_of(name), note(name, key="k"), Label(adds=("b",), drops=("a",))) for name in ("two", "one")
        ]
        noted = await bench.store.annotate_all(asked)
        assert [(one.new, one.row.stream) for one in noted] == [(True, stream_of("two")), (True, stream_of("one"))]
        assert (await found(bench.store, "a"), await found(bench.store, "b")) == ([], ["two", "one"])
        assert [one.new for one in await bench.store.annotate_all(asked)] == [False, False]
        assert [len(await bench.store.read(stream_of(name))) for name in ("one", "two")] == [2, 2]

    async def test_notes_of_several_streams_are_all_or_nothing(self, bench: Bench) -> None:
        await tagged(bench, "one", "a")
        asked = [Note(stream_of(name), note(name), Label(drops=("a",))) for name in ("one", "nowhere")]
        with pytest.raises(Error) as caught:
            await bench.store.annotate_all(asked)
        assert caught.value.code is Code.SESSION_UNKNOWN
        assert await found(bench.store, "a") == ["one"]
        assert len(await bench.store.read(stream_of("one"))) == 1

    async def test_concurrent_notes_on_the_same_streams_do_not_deadlock(self, bench: Bench) -> None:
        names = ["one", "two", "three"]
        for name in names:
            await tagged(bench, name)
        other = await bench.reopen()
        asked = [
            [Note(stream_of(name), note(f"{i}")) for name in order] for i, order in enumerate((names, names[::-1]))
        ]
        await asyncio.gather(*(store.annotate_all(a) for store in (bench.store, other) for a in asked))
        assert [len(await bench.store.read(stream_of(name))) for name in names] == [5, 5, 5]

    async def test_a_name_that_is_used_once_is_not_opened_again(self, bench: Bench) -> None:
        new = replace(said(stream_of("one"), "hello"), once=True)
        assert isinstance(await bench.store.admit(new), Admitted)
        assert isinstance(await bench.store.admit(new), Duplicate)
        await bench.store.delete(stream_of("one"))
        assert isinstance(await bench.store.admit(new), Conflict)
        hold = await held(bench, "sender")
        assert (await bench.store.append(hold.plan(outbox=(new,)))).sent == (OutboxResult("conflict"),)
        assert await bench.store.stream(stream_of("one")) is None
        assert isinstance(await bench.store.admit(said(stream_of("one"), "hello")), Admitted), (
            "other deliveries may reopen the name"
        )

    async def test_a_deleted_stream_takes_the_tags_that_lead_to_it(self, bench: Bench) -> None:
        theirs = session_stream(Tenant("acme"), SessionId("theirs"))
        await bench.store.admit(replace(said(theirs, "x"), tags=("of:s/",)))
        await tagged(bench, "p", "of:s/", "of:s/frame:f/", "of:s2/", "red")
        await open_stream(bench.store, "s")
        assert await bench.store.delete(stream_of("s"), edges=("of:s/",))
        info, other = await bench.store.stream(stream_of("p")), await bench.store.stream(theirs)
        assert info is not None
        assert other is not None
        assert info.tags == ("of:s2/", "red")
        assert other.tags == ("of:s/",)
