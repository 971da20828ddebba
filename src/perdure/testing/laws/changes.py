"""Laws of changes without an owner: blobs of an input, labels, redactions, imported streams."""
# ruff: noqa: D102 - the name of a law is its sentence

from __future__ import annotations

from collections.abc import Awaitable

import pytest
from msgspec.structs import replace

from perdure.commit.changes import Label, NewStream, Redaction, Remembered
from perdure.commit.plan import Entry, OutboxResult, Snapshot, blob_of
from perdure.errors import Code, Error
from perdure.ids import DEFAULT_TENANT, BlobHash, InputId, PromiseId, Seq, SessionId, Tenant, TurnId, session_stream
from perdure.inbox.admit import Admitted, Conflict, Duplicate
from perdure.inbox.items import Wake
from perdure.store.protocol import Store
from perdure.store.shapes import AlreadyResolved
from perdure.testing.laws.bench import (
    ANN,
    BOB,
    Bench,
    enlist,
    held,
    note,
    notes,
    parked,
    said,
    shown,
    stream_of,
    take,
)
from perdure.vocab.log_keys import redaction_key
from perdure.vocab.promises import Ok, PromiseState
from perdure.vocab.records import CancelRequested, RecordRedacted, SessionOpened, write

PICTURE = blob_of(bytes(range(256)) * 40, "image/png")
LETTER = blob_of(b"dear all", "text/plain")
ELSEWHERE = session_stream(Tenant("elsewhere"), SessionId("one"))


def without(text: str) -> bytes:
    """Return a note with this text instead."""
    return write(CancelRequested(turn=TurnId("t"), request=text))


def redaction(hold_stream: str, seq: int) -> Redaction:
    """Return the redaction of one record of a stream."""
    stream = stream_of(hold_stream)
    entry = Entry.of(RecordRedacted(seq=Seq(seq), sha256="0" * 64), at=9)
    return Redaction(stream=stream, seq=Seq(seq), data=without("gone"), note=entry, at=9)


async def code_of(awaitable: Awaitable[object]) -> Code:
    """Return the error code of a refused call."""
    with pytest.raises(Error) as caught:
        await awaitable
    return caught.value.code


async def tagged(store: Store, tag: str, tenant: Tenant = DEFAULT_TENANT) -> list[str]:
    """Return the names of the sessions with a tag."""
    return [s.name for s in await store.streams(tenant=tenant, kind="session", limit=10, tag=tag)]


class ChangeLaws:
    """Laws of changes to a stream without its owner."""

    # --- blobs of an input

    async def test_bytes_are_durable_with_the_input_that_brings_them(self, bench: Bench) -> None:
        stream = stream_of("one")
        assert isinstance(await bench.store.admit(shown(stream, PICTURE, LETTER)), Admitted)
        other = await bench.reopen()
        assert len(await other.inbox(stream)) == 1
        assert (await other.blob(PICTURE.hash), await other.blob(LETTER.hash)) == (PICTURE, LETTER)
        await bench.store.delete(stream)
        assert await code_of(bench.store.blob(PICTURE.hash)) is Code.BLOB_UNKNOWN

    async def test_bytes_of_a_refused_input_are_not_kept(self, bench: Bench) -> None:
        stream = stream_of("one")
        assert await code_of(bench.store.admit(replace(shown(stream, PICTURE), agent=None))) is Code.SESSION_UNKNOWN
        await bench.store.admit(said(stream, "hello", key="k"))
        assert await bench.store.admit(shown(stream, PICTURE)) == Conflict("k")
        assert await code_of(bench.store.blob(PICTURE.hash)) is Code.BLOB_UNKNOWN

    async def test_bytes_that_the_tenant_has_may_be_referred_to(self, bench: Bench) -> None:
        one, two = stream_of("one"), stream_of("two")
        await bench.store.admit(shown(one, PICTURE))
        assert isinstance(await bench.store.admit(shown(two, refers=(PICTURE.hash,))), Admitted)
        await bench.store.delete(one)
        assert await bench.store.blob(PICTURE.hash) == PICTURE
        await bench.store.delete(two)
        assert await code_of(bench.store.blob(PICTURE.hash)) is Code.BLOB_UNKNOWN

    async def test_bytes_of_another_tenant_are_unknown(self, bench: Bench) -> None:
        await bench.store.admit(shown(ELSEWHERE, PICTURE))
        stream = stream_of("one")
        assert await code_of(bench.store.admit(shown(stream, LETTER, refers=(PICTURE.hash,)))) is Code.BLOB_UNKNOWN
        assert await bench.store.stream(stream) is None
        assert await code_of(bench.store.blob(LETTER.hash)) is Code.BLOB_UNKNOWN

    async def test_a_plan_delivers_bytes_too(self, bench: Bench) -> None:
        hold = await held(bench)
        there = stream_of("there")
        await bench.store.append(hold.plan(outbox=(shown(there, PICTURE),)))
        assert await bench.store.blob(PICTURE.hash) == PICTURE
        missing = hold.plan(
            note("a"), outbox=(shown(stream_of("new"), LETTER, refers=(BlobHash("0" * 64),), key="k2"),)
        )
        assert (await bench.store.append(missing)).sent == (OutboxResult("discarded", "blob_unknown"),)
        assert notes(await bench.store.read(hold.stream)) == [(2, "a")]
        assert await bench.store.stream(stream_of("new")) is None
        assert await code_of(bench.store.blob(LETTER.hash)) is Code.BLOB_UNKNOWN

    # --- labels

    async def test_a_label_is_listed_and_found(self, bench: Bench) -> None:
        for name in ("one", "two", "three"):
            await held(bench, name)
        await bench.store.annotate(stream_of("one"), note("a"), label=Label(title="First", tags=("vip", "eu")))
        await bench.store.annotate(stream_of("two"), note("b"), label=Label(tags=("vip",)))
        other = await bench.reopen()
        info = await other.stream(stream_of("one"))
        assert info is not None
        assert (info.title, info.tags) == ("First", ("eu", "vip"))
        assert sorted(await tagged(other, "vip")) == ["one", "two"]
        assert await tagged(other, "eu") == ["one"]
        assert await tagged(other, "us") == []

    async def test_a_label_replaces_what_it_names_and_nothing_else(self, bench: Bench) -> None:
        await held(bench)
        one = stream_of("one")
        await bench.store.annotate(one, note("a"), label=Label(title="First", tags=("vip",)))
        await bench.store.annotate(one, note("b"), label=Label(title="Second"))
        await bench.store.annotate(one, note("c"), label=Label(tags=("eu",)))
        info = await bench.store.stream(one)
        assert info is not None
        assert (info.title, info.tags) == ("Second", ("eu",))
        assert await tagged(bench.store, "vip") == []

    async def test_a_label_of_a_refused_record_is_not_taken(self, bench: Bench) -> None:
        await held(bench)
        one = stream_of("one")
        await bench.store.annotate(one, note("a", key="k"), label=Label(title="First"))
        await bench.store.annotate(one, note("b", key="k"), label=Label(title="Second"))
        info = await bench.store.stream(one)
        assert info is not None
        assert info.title == "First"

    async def test_tags_of_another_tenant_find_nothing(self, bench: Bench) -> None:
        await bench.store.admit(said(ELSEWHERE, "hello"))
        await bench.store.annotate(ELSEWHERE, note("a"), label=Label(tags=("vip",)))
        assert await tagged(bench.store, "vip") == []
        assert await tagged(bench.store, "vip", Tenant("elsewhere")) == ["one"]

    async def test_a_tagged_list_goes_on_where_a_page_ended(self, bench: Bench) -> None:
        for name in ("one", "two", "three"):
            await held(bench, name)
            await bench.store.annotate(stream_of(name), note("a"), label=Label(tags=("vip",)))
            bench.clock.advance(1)
        page = await bench.store.streams(tenant=DEFAULT_TENANT, kind="session", limit=2, tag="vip")
        before = (page[-1].updated_at, page[-1].stream)
        rest = await bench.store.streams(tenant=DEFAULT_TENANT, kind="session", limit=2, tag="vip", before=before)
        assert [s.name for s in (*page, *rest)] == ["three", "two", "one"]

    async def test_a_deleted_session_has_no_label(self, bench: Bench) -> None:
        await held(bench)
        await bench.store.annotate(stream_of("one"), note("a"), label=Label(title="First", tags=("vip",)))
        await bench.store.delete(stream_of("one"))
        assert await tagged(bench.store, "vip") == []
        await bench.store.admit(said(stream_of("one"), "hello"))
        info = await bench.store.stream(stream_of("one"))
        assert info is not None
        assert (info.title, info.tags) == ("", ())

    # --- redaction

    async def test_a_redacted_record_keeps_its_place_and_loses_what_it_said(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("a"), note("secret", key="k"), note("c")))
        noted = await bench.store.redact(redaction("one", 3))
        assert noted.new
        other = await bench.reopen()
        rows = await other.read(hold.stream)
        assert notes(rows) == [(2, "a"), (3, "gone"), (4, "c")]
        assert (rows[-1].seq, rows[-1].key, rows[-1].kind) == (5, redaction_key(Seq(3)), "record_redacted")
        found = await other.find(hold.stream, "k")
        assert found is not None
        assert notes([found]) == [(3, "gone")]

    async def test_a_record_is_redacted_once(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("secret")))
        first = await bench.store.redact(redaction("one", 2))
        again = await bench.store.redact(replace(redaction("one", 2), data=without("other")))
        assert (again.new, again.row) == (False, first.row)
        assert notes(await bench.store.read(hold.stream)) == [(2, "gone")]

    async def test_a_redaction_drops_the_snapshot_and_wakes_the_owner(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("secret"), snapshot=Snapshot(Seq(1), "c", b"folded")))
        await bench.store.redact(redaction("one", 2))
        loaded = await bench.store.load(hold.stream, code="c")
        assert loaded.snapshot is None
        assert [row.item for row in loaded.inbox] == [Wake(reason="redacted")]

    async def test_a_redaction_takes_the_bytes_with_it(self, bench: Bench) -> None:
        one, two = await held(bench, "one"), await held(bench, "two")
        await bench.store.append(one.plan(note("secret"), blobs=(PICTURE, LETTER)))
        await bench.store.append(two.plan(blobs=(LETTER,)))
        gone = replace(redaction("one", 2), drops=(PICTURE.hash, LETTER.hash), known_seq=Seq(2))
        await bench.store.redact(gone)
        assert await code_of(bench.store.blob(PICTURE.hash)) is Code.BLOB_UNKNOWN
        assert await bench.store.blob(LETTER.hash) == LETTER

    async def test_a_redaction_takes_the_answer_of_a_promise_with_it(self, bench: Bench) -> None:
        one, two = await held(bench, "one"), await held(bench, "two")
        await bench.store.append(one.plan(note("secret")))
        for name, hold in (("told", one), ("open", one), ("strange", two)):
            await bench.store.promise(PromiseState(id=PromiseId(name), stream=hold.stream))
        for name in ("told", "strange"):
            await bench.store.resolve(PromiseId(name), Ok(value="secret"), now=5)
        gone = tuple((PromiseId(name), Ok(value="gone")) for name in ("told", "open", "strange", "nowhere"))
        await bench.store.redact(replace(redaction("one", 2), answers=gone))
        other = await bench.reopen()
        found = {name: await other.peek(PromiseId(name)) for name in ("told", "open", "strange", "nowhere")}
        said = {name: state.resolution if state else None for name, state in found.items()}
        assert said == {"told": Ok(value="gone"), "open": None, "strange": Ok(value="secret"), "nowhere": None}
        assert isinstance(await other.resolve(PromiseId("told"), Ok(value="x"), now=6), AlreadyResolved)

    async def test_bytes_are_not_dropped_from_a_stream_that_has_moved(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("secret"), blobs=(PICTURE,)))
        gone = replace(redaction("one", 2), drops=(PICTURE.hash,), known_seq=Seq(1))
        assert await code_of(bench.store.redact(gone)) is Code.COMMIT_CONFLICT
        await bench.store.admit(said(hold.stream, "more"))
        gone = replace(gone, known_seq=Seq(2))
        assert await code_of(bench.store.redact(gone)) is Code.COMMIT_CONFLICT
        assert notes(await bench.store.read(hold.stream)) == [(2, "secret")]
        assert await bench.store.blob(PICTURE.hash) == PICTURE

    async def test_redaction_of_an_unknown_session_or_record_is_refused(self, bench: Bench) -> None:
        await held(bench)
        assert await code_of(bench.store.redact(redaction("nowhere", 1))) is Code.SESSION_UNKNOWN
        assert await code_of(bench.store.redact(redaction("one", 2))) is Code.RECORD_UNKNOWN
        assert await code_of(bench.store.redact(redaction("one", 0))) is Code.RECORD_UNKNOWN
        assert len(await bench.store.read(stream_of("one"))) == 1

    async def test_a_redaction_leaves_owner_and_receipts_alone(self, bench: Bench) -> None:
        hold = await held(bench)
        await bench.store.append(hold.plan(note("secret")))
        await bench.store.redact(redaction("one", 2))
        receipt = await bench.store.append(hold.plan(note("b"), known_seq=Seq(2)))
        assert [row.kind for row in receipt.missed] == ["record_redacted"]

    # --- imported streams

    async def test_a_stream_comes_with_its_past(self, bench: Bench) -> None:
        stream = stream_of("one")
        opening = Entry.of(SessionOpened(agent="billing"), at=5)
        known = Remembered("k", "content", TurnId("t1"), InputId("i1"))
        label = Label(title="Old", tags=("imported",))
        entries = (opening, note("a"), note("b", key="kb"))
        await bench.store.create(NewStream(stream, "billing", entries, 5, (PICTURE,), (known,), label))
        other = await bench.reopen()
        assert notes(await other.read(stream)) == [(2, "a"), (3, "b")]
        assert await other.find(stream, "kb") is not None
        assert await other.blob(PICTURE.hash) == PICTURE
        info = await other.stream(stream)
        assert info is not None
        assert (info.agent, info.last_seq, info.owner, info.active) == ("billing", 3, None, False)
        assert (info.title, info.tags) == ("Old", ("imported",))
        again = replace(said(stream, "x", key="k", agent=None), content="content")
        assert await other.admit(again) == Duplicate(TurnId("t1"), InputId("i1"))
        await enlist(bench, ANN)
        hold = await take(bench.store, stream, ANN)
        receipt = await bench.store.append(hold.plan(note("c"), known_seq=Seq(3)))
        assert receipt.first_seq == 4
        await bench.store.delete(stream)
        assert await code_of(other.blob(PICTURE.hash)) is Code.BLOB_UNKNOWN

    async def test_a_name_that_is_taken_is_not_created_again(self, bench: Bench) -> None:
        hold = await held(bench)
        new = NewStream(hold.stream, "a", (Entry.of(SessionOpened(agent="a"), at=5), note("x")), 5, (PICTURE,))
        assert await code_of(bench.store.create(new)) is Code.SESSION_EXISTS
        assert notes(await bench.store.read(hold.stream)) == []
        assert await code_of(bench.store.blob(PICTURE.hash)) is Code.BLOB_UNKNOWN

    async def test_a_stream_with_one_key_twice_is_not_created(self, bench: Bench) -> None:
        stream = stream_of("one")
        entries = (Entry.of(SessionOpened(agent="a"), at=5), note("x", key="k"), note("y", key="k"))
        assert await code_of(bench.store.create(NewStream(stream, "a", entries, 5, (PICTURE,)))) is Code.GATE_CLOSED
        assert await bench.store.stream(stream) is None
        assert await code_of(bench.store.blob(PICTURE.hash)) is Code.BLOB_UNKNOWN

    async def test_a_stream_with_one_input_key_twice_is_not_created(self, bench: Bench) -> None:
        stream = stream_of("one")
        entries = (Entry.of(SessionOpened(agent="a"), at=5), note("x"))
        first = Remembered("k", "content", TurnId("t1"), InputId("i1"))
        for second in (first, Remembered("k", "other", TurnId("t2"), InputId("i2"))):
            new = NewStream(stream, "a", entries, 5, (PICTURE,), (first, second))
            assert await code_of(bench.store.create(new)) is Code.INPUT_KEY_CONFLICT
            assert await bench.store.stream(stream) is None
            assert await code_of(bench.store.blob(PICTURE.hash)) is Code.BLOB_UNKNOWN

    async def test_a_created_stream_starts_above_the_fence_of_its_namesake(self, bench: Bench) -> None:
        hold = await parked(bench)
        await bench.store.delete(hold.stream)
        await bench.store.create(NewStream(hold.stream, "a", (Entry.of(SessionOpened(agent="a"), at=5),), 5))
        await enlist(bench, BOB)
        again = await take(bench.store, hold.stream, BOB)
        assert again.fence > hold.fence
