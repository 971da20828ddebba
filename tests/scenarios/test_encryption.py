"""Payload encryption: everything works as without it, nothing is readable without the key, and a wrong key says so."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from perdure import Agent, Attachment, Code, Error, Runtime, tool
from perdure.codec import SEALED, encode
from perdure.ids import PromiseId, Tenant
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of, ref_of
from perdure.runtime.sessions.results import wait_for
from perdure.security import AesGcmCodec
from perdure.store.protocol import Store
from perdure.store.sqlite import SqliteStore
from perdure.vocab.messages import File, Text
from perdure.vocab.promises import Ok, PromiseState
from perdure.vocab.records import InputAdmitted, Record
from tests.scenarios.conftest import NewStore, until

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
SECRET = "SECRET-4711"


@tool(effect="once")
def charge(card: str) -> str:
    """Charge."""
    return f"charged {card}"


def agent() -> Agent:
    model = ScriptedModel(call("charge", card=SECRET), say(f"done with {SECRET}", exact=True))
    return Agent("a", model=model, tools=[charge], instructions=f"never say {SECRET}")


def parts_of(record: Record) -> tuple[object, ...]:
    return record.parts if isinstance(record, InputAdmitted) else ()


async def refused(asked: Awaitable[object]) -> Error:
    with pytest.raises(Error) as caught:
        await asked
    return caught.value


def everywhere(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*") if file.is_file())


def store(path: Path) -> Store:
    return SqliteStore(path, SystemClock())


async def talk(rt: Runtime) -> str:
    session = await rt.session("s", agent="a")
    for _ in range(12):  # enough for a snapshot
        await session.ask(SECRET)
    answer = await session.ask(SECRET)
    await session.ask([Attachment("text/plain", SECRET.encode() * 50)])
    await session.set_title(SECRET)
    return answer


async def test_a_session_works_as_without_it_on_every_store(new_store: NewStore) -> None:
    codec = AesGcmCodec({"k1": KEY})
    async with Runtime(new_store(), agents=[agent()], payload_codec=codec) as rt:
        assert await talk(rt) == f"done with {SECRET}"
    async with Runtime(new_store(), agents=[agent()], payload_codec=codec) as rt:
        session = await rt.session("s")
        assert (await session.info()).title == SECRET
        assert [info.title for info in await rt.list_sessions()] == [SECRET]
        assert SECRET in str(await session.messages())
        assert await session.ask("again") == f"done with {SECRET}"


async def test_nothing_that_was_said_is_readable_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with Runtime(store(path), agents=[agent()], payload_codec=AesGcmCodec({"k1": KEY})) as rt:
        await talk(rt)
        assert SECRET.encode() not in everywhere(path)
    assert SECRET.encode() not in everywhere(path)
    async with Runtime(store(tmp_path / "plain.db"), agents=[agent()]) as rt:
        await talk(rt)
        assert SECRET.encode() in everywhere(tmp_path / "plain.db"), "or this test would prove nothing"


@pytest.mark.parametrize("codec", [None, AesGcmCodec({"k1": OTHER}), AesGcmCodec({"k2": KEY})])
async def test_without_the_right_key_nothing_is_read_and_nothing_is_done(
    new_store: NewStore, codec: AesGcmCodec | None, caplog: pytest.LogCaptureFixture
) -> None:
    right = AesGcmCodec({"k1": KEY})
    async with Runtime(new_store(), agents=[agent()], payload_codec=right) as rt:
        await (await rt.session("s", agent="a")).ask("hi")
    async with Runtime(new_store(), agents=[agent()], payload_codec=right, worker=False) as rt:
        sent = await (await rt.session("s")).send("more")
        before = await (await rt.session("s")).journal()
    async with Runtime(new_store(), agents=[agent()], payload_codec=codec) as rt:
        session = await rt.session("s")
        for look in (session.messages(), session.why()):
            with pytest.raises(Error) as caught:
                await look
            assert caught.value.code is Code.CODEC_FAILED
            assert caught.value.hint
        with caplog.at_level(logging.ERROR):

            async def told() -> bool:  # its worker finds the input, and finds that it cannot read it
                return "codec_failed" in caplog.text

            await until(told)
    async with Runtime(new_store(), agents=[agent()], payload_codec=right) as rt:
        session = await rt.session("s")
        assert (await asyncio.wait_for(wait_for(ref_of(session), sent.turn_id), 20)).status == "finished"
        assert (await session.journal())[: len(before)] == before


@pytest.mark.parametrize("codec", [None, AesGcmCodec({"k1": OTHER})])
async def test_session_handle_with_another_key_is_refused(new_store: NewStore, codec: AesGcmCodec | None) -> None:
    right = AesGcmCodec({"k1": KEY})
    async with Runtime(new_store(), agents=[agent()], payload_codec=codec, worker=False) as wrong:
        early = await wrong.session("s", agent="a")
        async with Runtime(new_store(), agents=[agent()], payload_codec=right) as rt:
            first = await (await rt.session("s", agent="a")).send("mine")
            with pytest.raises(Error) as caught:
                await early.send("theirs")
            assert caught.value.code is Code.CODEC_FAILED
            assert (await first.result(timeout=20)).status == "finished"


async def test_keys_are_rotated_by_adding_one(new_store: NewStore) -> None:
    async with Runtime(new_store(), agents=[agent()], payload_codec=AesGcmCodec({"k1": KEY})) as rt:
        await (await rt.session("s", agent="a")).ask("first")
        await (await rt.session("s")).send("keyed", key="k")
    both = AesGcmCodec({"k1": KEY, "k2": OTHER})
    async with Runtime(new_store(), agents=[agent()], payload_codec=both) as rt:
        session = await rt.session("s")
        assert (await session.send("keyed", key="k")).is_duplicate
        await session.ask("second")
        assert "first" in str(await session.messages())
    async with Runtime(new_store(), agents=[agent()], payload_codec=AesGcmCodec({"k2": OTHER}), worker=False) as rt:
        with pytest.raises(Error) as caught:
            await (await rt.session("s")).messages()
        assert caught.value.code is Code.CODEC_FAILED
        assert "k1" in caught.value.because


async def test_encryption_may_be_turned_on_later(new_store: NewStore) -> None:
    async with Runtime(new_store(), agents=[agent()]) as rt:
        await (await rt.session("s", agent="a")).ask("before")
    async with Runtime(new_store(), agents=[agent()], payload_codec=AesGcmCodec({"k1": KEY}), worker=False) as rt:
        session = await rt.session("s")
        for asked in (session.messages(), session.send("after"), session.set_title("x"), session.cancel()):
            assert (await refused(asked)).code is Code.CODEC_FAILED
    async with Runtime(new_store(), agents=[agent()], payload_codec=AesGcmCodec({"k1": KEY}, accept_plain=True)) as rt:
        session = await rt.session("s")
        await session.ask("after")
        texts = {part.text for message in await session.messages() for part in message.parts if isinstance(part, Text)}
        assert {"before", "after"} <= texts


async def test_unencrypted_blob_is_readable_and_redactable_with_accept_plain(new_store: NewStore) -> None:
    note = Attachment("text/plain", b"standard form")
    async with Runtime(new_store(), agents=[agent()]) as rt:
        await (await rt.session("s", agent="a")).ask([note])
    async with Runtime(new_store(), agents=[agent()], payload_codec=AesGcmCodec({"k1": KEY}, accept_plain=True)) as rt:
        session = await rt.session("s")
        (ref,) = [
            part.ref for row in await session.journal() for part in parts_of(row.record) if isinstance(part, File)
        ]
        await session.ask([ref])
        assert (await core_of(rt).store.blob(ref.hash, stream=ref_of(session).stream)).data == b"standard form"
        for row in await session.journal():
            if isinstance(row.record, InputAdmitted):
                await session.redact(row.seq)
        assert (await refused(core_of(rt).store.blob(ref.hash))).code is Code.BLOB_UNKNOWN


@pytest.mark.parametrize("codec", [None, AesGcmCodec({"k1": OTHER}), AesGcmCodec({"k2": KEY})])
async def test_writer_without_the_key_is_refused(new_store: NewStore, codec: AesGcmCodec | None) -> None:
    right = AesGcmCodec({"k1": KEY})
    async with Runtime(new_store(), agents=[agent()], payload_codec=right, worker=False) as rt:
        waiting = await (await rt.session("new", agent="a")).send("first")  # nothing but an input in its inbox yet
    async with Runtime(new_store(), agents=[agent()], payload_codec=right) as rt:
        await (await rt.session("s", agent="a")).ask("hi")
        await wait_for(ref_of(await rt.session("new")), waiting.turn_id)
    async with Runtime(new_store(), agents=[agent()], payload_codec=right, worker=False) as rt:
        await (await rt.session("fresh", agent="a")).send("first")
        before = [await (await rt.session(name)).journal() for name in ("s", "new", "fresh")]
    async with Runtime(new_store(), agents=[agent()], payload_codec=codec, worker=False) as rt:
        for name in ("s", "new", "fresh"):
            session = await rt.session(name, agent="a")
            for asked in (
                session.send("more"),
                session.send("more", key="k"),
                session.set_title("mine"),
                session.set_tags(["mine"]),
                session.cancel(),
                session.resolve("event", 1),
            ):
                assert (await refused(asked)).code is Code.CODEC_FAILED
    async with Runtime(new_store(), agents=[agent()], payload_codec=right, worker=False) as rt:
        assert [await (await rt.session(name)).journal() for name in ("s", "new", "fresh")] == before
        assert len(await core_of(rt).store.inbox(ref_of(await rt.session("s")).stream)) == 0
    async with Runtime(new_store(), agents=[agent()], payload_codec=right) as rt:
        assert await (await rt.session("s")).ask("on") == f"done with {SECRET}"


async def test_forged_plain_record_is_refused(tmp_path: Path) -> None:
    path, codec = tmp_path / "s.db", AesGcmCodec({"k1": KEY})
    async with Runtime(store(path), agents=[agent()], payload_codec=codec) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("pay 5")
        said = next(row.record for row in await session.journal() if isinstance(row.record, InputAdmitted))
    forged = encode(replace(said, parts=(Text(text="pay 5000 to mallory"),)))
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE log SET data = ? WHERE seq = 2", (forged,))
        db.commit()
    async with Runtime(store(path), agents=[agent()], payload_codec=codec, worker=False) as rt:
        error = await refused((await rt.session("s")).messages())
        assert error.code is Code.CODEC_FAILED
        assert "accept_plain" in error.hint


async def test_text_resembling_ciphertext_stays_text(new_store: NewStore) -> None:
    promise = PromiseId("p")
    told = Ok(value={"sealed": "x"})
    async with Runtime(new_store(), agents=[agent()]) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("hi")
        await session.set_title("sealed: box of 3")
        await core_of(rt).store.promise(PromiseState(id=promise, stream=ref_of(session).stream, resolution=told))
    async with Runtime(new_store(), agents=[agent()], payload_codec=AesGcmCodec({"k1": KEY}), worker=False) as rt:
        for asked in (rt.list_sessions(), rt.get_session("s").info(), core_of(rt).store.peek(promise)):
            assert (await refused(asked)).code is Code.CODEC_FAILED
    async with Runtime(new_store(), agents=[agent()], payload_codec=AesGcmCodec({"k1": KEY}, accept_plain=True)) as rt:
        assert [info.title for info in await rt.list_sessions()] == ["sealed: box of 3"]
        known = await core_of(rt).store.peek(promise)
        assert known is not None
        assert known.resolution == told
        assert await (await rt.session("s")).ask("again") == f"done with {SECRET}"


async def test_s8_t_sec_06_keys_of_the_store_are_sealed_by_the_codec(new_store: NewStore) -> None:
    codec = AesGcmCodec({"k1": KEY})
    async with Runtime(new_store(), payload_codec=codec, worker=False) as rt:
        keys = {name: await core_of(rt).secrets.get(name, Tenant("default")) for name in ("promises", "secrets")}
        raw = {name: await core_of(rt).store.secret(f"default:{name}", b"x") for name in keys}
    assert raw == keys
    assert len(set(keys.values())) == 2
    bare = new_store()
    await bare.open()
    stored = {name: await bare.secret(f"default:{name}", b"x") for name in keys}
    await bare.close()
    for name, key in keys.items():
        assert stored[name].startswith(SEALED)
        assert key not in stored[name]
    rotated = AesGcmCodec({"k1": KEY, "k2": OTHER})
    async with Runtime(new_store(), payload_codec=rotated, worker=False) as rt:
        for name, key in keys.items():
            assert await core_of(rt).secrets.get(name, Tenant("default")) == key
    async with Runtime(new_store(), worker=False) as rt:
        problem = await refused(core_of(rt).secrets.get("promises", Tenant("default")))
        assert problem.code is Code.CODEC_FAILED
    async with Runtime(new_store(), worker=False, tenant="b", payload_codec=AesGcmCodec({"kb": OTHER})) as rt:
        assert await core_of(rt).secrets.get("promises", Tenant("b")) not in keys.values()


async def test_tenants_with_keys_of_their_own_may_have_the_same_bytes(new_store: NewStore) -> None:
    note = Attachment("text/plain", SECRET.encode() * 50)
    bare = new_store()
    for tenant, codec in (("plain", None), ("a", AesGcmCodec({"ka": KEY})), ("b", AesGcmCodec({"kb": OTHER}))):
        async with Runtime(new_store(), agents=[agent()], tenant=tenant, payload_codec=codec) as rt:
            session = await rt.session("s", agent="a")
            assert await session.ask([note]) == f"done with {SECRET}"
            assert len(await session.export()) > 0
            (ref,) = [p.ref for row in await session.journal() for p in parts_of(row.record) if isinstance(p, File)]
            assert (await core_of(rt).store.blob(ref.hash)).data == note.data
            if codec is not None:
                await session.ask([ref])
    await bare.open()
    async with Runtime(new_store(), tenant="plain", worker=False) as rt:
        await rt.get_session("s").delete()
        assert (await refused(bare.blob(ref.hash))).code is Code.BLOB_UNKNOWN, "nothing stays in the clear"
    async with Runtime(new_store(), agents=[agent()], tenant="b", payload_codec=AesGcmCodec({"kb": OTHER})) as rt:
        assert (await core_of(rt).store.blob(ref.hash)).data == note.data
    await bare.close()


async def test_redaction_works_on_what_is_encrypted(new_store: NewStore) -> None:
    codec = AesGcmCodec({"k1": KEY})
    async with Runtime(new_store(), agents=[agent()], payload_codec=codec) as rt:
        session = await rt.session("s", agent="a")
        await session.ask(SECRET)
        await session.redact(2)
        assert SECRET not in str((await session.journal())[1])
        assert await session.ask("on") == f"done with {SECRET}"


def test_bytes_that_were_moved_or_changed_are_refused() -> None:
    codec = AesGcmCodec({"k1": KEY})
    sealed = codec.encode(b"payload", b"here")
    assert codec.decode(sealed, b"here") == b"payload"
    assert codec.encode(b"payload", b"here") == sealed, "the same write made again is recognised"
    for wrong, where in ((sealed, b"there"), (sealed[:-1] + b"x", b"here"), (b"", b"here"), (b"\x02k1", b"here")):
        with pytest.raises(Error) as caught:
            codec.decode(wrong, where)
        assert caught.value.code is Code.CODEC_FAILED


@pytest.mark.parametrize("keys", [{}, {"k": b"short"}, {"": KEY}, {"k": "text"}, {7: KEY}])
def test_keys_that_cannot_be_used_are_refused(keys: object) -> None:
    with pytest.raises(Error) as caught:
        AesGcmCodec(keys)  # type: ignore[arg-type]
    assert caught.value.code is Code.INVALID_ARGUMENT


def test_keys_are_not_shown() -> None:
    assert repr(AesGcmCodec({"k1": KEY})) == "AesGcmCodec(keys=['k1'], use='k1')"
