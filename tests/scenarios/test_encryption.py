"""Payload encryption: everything works as without it, nothing is readable without the key, and a wrong key says so."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from perdure import AesGcm, Agent, Attachment, Code, Error, Runtime, tool
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.clock import SystemClock
from perdure.store.protocol import Store
from perdure.store.sqlite import SqliteStore
from perdure.vocab.messages import Text
from tests.scenarios.conftest import NewStore

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
SECRET = "SECRET-4711"


@tool(effect="once")
def charge(card: str) -> str:
    """Charge."""
    return f"charged {card}"


def agent() -> Agent:
    model = ScriptedModel(call("charge", card=SECRET), say(f"done with {SECRET}", exact=True))
    return Agent("a", model=model, tools=[charge], instructions=f"never say {SECRET}")


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
    codec = AesGcm({"k1": KEY})
    async with Runtime(new_store(), agents=[agent()], codec=codec) as rt:
        assert await talk(rt) == f"done with {SECRET}"
    async with Runtime(new_store(), agents=[agent()], codec=codec) as rt:
        session = await rt.session("s")
        assert await session.title() == SECRET
        assert [info.title for info in await rt.sessions()] == [SECRET]
        assert SECRET in str(await session.history())
        assert await session.ask("again") == f"done with {SECRET}"


async def test_nothing_that_was_said_is_readable_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with Runtime(store(path), agents=[agent()], codec=AesGcm({"k1": KEY})) as rt:
        await talk(rt)
        assert SECRET.encode() not in everywhere(path)
    assert SECRET.encode() not in everywhere(path)
    async with Runtime(store(tmp_path / "plain.db"), agents=[agent()]) as rt:
        await talk(rt)
        assert SECRET.encode() in everywhere(tmp_path / "plain.db"), "or this test would prove nothing"


@pytest.mark.parametrize("codec", [None, AesGcm({"k1": OTHER}), AesGcm({"k2": KEY})])
async def test_without_the_right_key_nothing_is_read_and_nothing_is_done(
    new_store: NewStore, codec: AesGcm | None, caplog: pytest.LogCaptureFixture
) -> None:
    right = AesGcm({"k1": KEY})
    async with Runtime(new_store(), agents=[agent()], codec=right) as rt:
        await (await rt.session("s", agent="a")).ask("hi")
    async with Runtime(new_store(), agents=[agent()], codec=right, worker=False) as rt:
        sent = await (await rt.session("s")).send("more")
        before = await (await rt.session("s")).rows()
    async with Runtime(new_store(), agents=[agent()], codec=codec) as rt:
        session = await rt.session("s")
        for look in (session.history(), session.why()):
            with pytest.raises(Error) as caught:
                await look
            assert caught.value.code is Code.CODEC_FAILED
            assert caught.value.hint
        with caplog.at_level(logging.ERROR):
            for _ in range(500):  # its worker finds the input, and finds that it cannot read it
                await asyncio.sleep(0.01)
                if caplog.records:
                    break
            assert "codec_failed" in caplog.text
    async with Runtime(new_store(), agents=[agent()], codec=right) as rt:
        session = await rt.session("s")
        assert (await asyncio.wait_for(session.wait_for(sent.turn), 20)).status == "finished"
        assert (await session.rows())[: len(before)] == before


async def test_keys_are_rotated_by_adding_one(new_store: NewStore) -> None:
    async with Runtime(new_store(), agents=[agent()], codec=AesGcm({"k1": KEY})) as rt:
        await (await rt.session("s", agent="a")).ask("first")
        await (await rt.session("s")).send("keyed", key="k")
    both = AesGcm({"k1": KEY, "k2": OTHER})
    async with Runtime(new_store(), agents=[agent()], codec=both) as rt:
        session = await rt.session("s")
        assert (await session.send("keyed", key="k")).duplicate
        await session.ask("second")
        assert "first" in str(await session.history())
    async with Runtime(new_store(), agents=[agent()], codec=AesGcm({"k2": OTHER}), worker=False) as rt:
        with pytest.raises(Error) as caught:
            await (await rt.session("s")).history()
        assert caught.value.code is Code.CODEC_FAILED
        assert "k1" in caught.value.because


async def test_encryption_may_be_turned_on_later(new_store: NewStore) -> None:
    async with Runtime(new_store(), agents=[agent()]) as rt:
        await (await rt.session("s", agent="a")).ask("before")
    async with Runtime(new_store(), agents=[agent()], codec=AesGcm({"k1": KEY})) as rt:
        session = await rt.session("s")
        await session.ask("after")
        texts = {part.text for message in await session.history() for part in message.parts if isinstance(part, Text)}
        assert {"before", "after"} <= texts


async def test_redaction_works_on_what_is_encrypted(new_store: NewStore) -> None:
    codec = AesGcm({"k1": KEY})
    async with Runtime(new_store(), agents=[agent()], codec=codec) as rt:
        session = await rt.session("s", agent="a")
        await session.ask(SECRET)
        await session.redact(2)
        assert SECRET not in str((await session.rows())[1])
        assert await session.ask("on") == f"done with {SECRET}"


def test_bytes_that_were_moved_or_changed_are_refused() -> None:
    codec = AesGcm({"k1": KEY})
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
        AesGcm(keys)  # type: ignore[arg-type]
    assert caught.value.code is Code.INVALID_ARGUMENT


def test_keys_are_not_shown() -> None:
    assert repr(AesGcm({"k1": KEY})) == "AesGcm(keys=['k1'], use='k1')"
