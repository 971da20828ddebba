"""Streamed replies: visible from every process, once, and without a commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from perdure import Agent, Code, Error, Runtime, Session
from perdure.events import Event, RecordEvent, TextDelta
from perdure.ids import EffectId, Seq, SessionId, StreamId, Tenant, TurnId
from perdure.models.protocol import HiddenDelta, ModelError, ModelEvent, ModelReply, ModelRequest, TextPiece
from perdure.observe.events import TextReset
from perdure.runtime.calls.orphaned_calls import StoredPartialStreams, written
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of, ref_of
from perdure.runtime.redacted_store import RedactedChannel
from perdure.security import AesGcmCodec
from perdure.services.replies import PartialStreamState
from perdure.store.live import Piece
from perdure.store.sqlite.store import SqliteStore
from perdure.vocab.messages import Text
from perdure.vocab.outcomes import LlmCallOutcome, LlmError
from perdure.vocab.records import EffectSettled, TurnEnded
from perdure.vocab.usage import Usage
from tests.scenarios.conftest import App, until


class Typist:
    """Writes a piece each time it is let; an attempt that ends with None breaks off."""

    name = "typist"

    def __init__(self, *attempts: Sequence[str | None]) -> None:
        self._attempts = list(attempts)
        self.may = asyncio.Semaphore(0)
        self.asked = 0

    def go_on(self, pieces: int = 100) -> None:
        for _ in range(pieces):
            self.may.release()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        pieces = self._attempts[min(self.asked, len(self._attempts) - 1)]
        self.asked += 1
        for piece in pieces:
            await self.may.acquire()
            if piece is None:
                raise ModelError(LlmError(kind="stream_cut", message="cut", retryable=True))
            yield TextPiece(piece)
        await self.may.acquire()
        said = "".join(piece for piece in pieces if piece)
        yield ModelReply(parts=(Text(text=said),), finish="stop", usage=Usage(), model="typist")


class Reader:
    """Reads the events of a session in the background."""

    def __init__(self, session: Session, after: str = "", has: str = "") -> None:
        self.events: list[Event] = []
        self._has = has
        self._task = asyncio.create_task(self._read(session, after))

    async def _read(self, session: Session, after: str) -> None:
        async for event in session.events(after):
            self.events.append(event)

    @property
    def text(self) -> str:
        """The text on a screen that strikes out superseded text."""
        shown = self._has
        for event in self.events:
            if isinstance(event, TextDelta):
                shown += event.text
            elif isinstance(event, TextReset):
                assert len(shown) == event.chars
                shown = ""
        return shown

    @property
    def cursor(self) -> str:
        return str(self.events[-1].cursor)

    @property
    def replies(self) -> list[str]:
        records = [event.record for event in self.events if isinstance(event, RecordEvent)]
        outcomes = [record.outcome for record in records if isinstance(record, EffectSettled)]
        return [one.reply.text for one in outcomes if isinstance(one, LlmCallOutcome) and one.reply]

    async def shows(self, text: str) -> None:
        async def shown() -> bool:
            if self._task.done():
                self._task.result()
            return self.text == text

        await until(shown, seconds=20)

    async def has_replies(self, *texts: str) -> None:
        async def there() -> bool:
            return self.replies == list(texts)

        await until(there, seconds=20)

    async def leave(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


PIECES = ("Hello, ", "dear ", "reader", ". That ", "is all.")


async def test_another_process_sees_what_is_written_while_it_is(app: App) -> None:
    model = Typist(PIECES)
    rt, elsewhere = await app.open(model), await app.open(Typist(PIECES), worker=False)
    sent = await (await rt.session("s", agent="a")).send("go")
    reader = Reader(elsewhere.get_session("s"))
    model.go_on(2)
    await reader.shows("Hello, dear ")
    first = reader.cursor
    model.go_on(2)
    await reader.shows("Hello, dear reader. That ")

    again, from_the_start = Reader(elsewhere.get_session("s"), first, "Hello, dear "), Reader(rt.get_session("s"))
    await again.shows("Hello, dear reader. That ")
    await from_the_start.shows("Hello, dear reader. That ")
    model.go_on()
    assert (await sent.result(timeout=20)).text == "".join(PIECES)
    for one in (reader, again, from_the_start):
        await one.has_replies("".join(PIECES))
        assert not [event for event in one.events if isinstance(event, TextReset)]
        await one.leave()

    async def forgotten() -> bool:
        return await core_of(elsewhere).store.live.read(ref_of(sent.session).stream) == ()

    await until(forgotten)
    behind = Reader(elsewhere.get_session("s"), reader.cursor)
    await asyncio.sleep(0.3)
    assert behind.events == [], "nothing that is saved is shown as if it were being written"
    await behind.leave()


async def test_an_attempt_that_breaks_off_is_superseded_everywhere(app: App) -> None:
    model = Typist(("Hel", None), ("Good ", "morning"))
    rt, elsewhere = await app.open(model), await app.open(model, worker=False)
    sent = await (await rt.session("s", agent="a")).send("go")
    here, there = Reader(rt.get_session("s")), Reader(elsewhere.get_session("s"))
    model.go_on(1)
    await here.shows("Hel")
    await there.shows("Hel")
    cursor = there.cursor
    model.go_on(1)

    async def asked_again() -> bool:
        return model.asked == 2

    await until(asked_again)
    model.go_on(1)
    again = Reader(elsewhere.get_session("s"), cursor, has="Hel")
    for one in (here, there, again):
        await one.shows("Good ")
        assert [event.chars for event in one.events if isinstance(event, TextReset)] == [3]
    model.go_on()
    assert (await sent.result(timeout=20)).text == "Good morning"
    for one in (here, there, again):
        await one.has_replies("Good morning")
        await one.leave()


async def test_a_host_can_ask_for_what_there_is_of_a_reply(app: App) -> None:
    model = Typist(PIECES)
    rt = await app.open(model)
    sent = await (await rt.session("s", agent="a")).send("go")
    partial = StoredPartialStreams(core_of(rt).store, Tenant("default"))
    assert await partial.get_partial_stream(SessionId("nobody"), sent.turn_id) is None
    model.go_on(2)

    async def there() -> bool:
        return await partial.get_partial_stream(SessionId("s"), sent.turn_id) == PartialStreamState("Hello, dear ")

    await until(there)
    assert await partial.get_partial_stream(SessionId("s"), TurnId("another")) is None
    model.go_on()
    await sent.result(timeout=20)
    assert await partial.get_partial_stream(SessionId("s"), sent.turn_id) is None


async def test_idle_observer_does_not_slow_the_turn(app: App) -> None:
    pieces = [f"{n} " for n in range(5_000)]
    model = Typist(pieces)
    rt = await app.open(model)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    idle = session.events()
    await anext(idle)  # and looks no more
    model.go_on(5_001)
    assert (await sent.result(timeout=40)).text == "".join(pieces)
    replies = 0
    async for event in idle:
        if isinstance(event, RecordEvent) and isinstance(event.record, EffectSettled):
            replies += 1
        if isinstance(event, RecordEvent) and isinstance(event.record, TurnEnded):
            break
    assert replies == 1, "an idle observer still gets durable facts"


class Mute(Typist):
    """Falls silent in its first attempt."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        if self.asked:
            async for event in super().stream(request):
                yield event
            return
        self.asked += 1
        yield TextPiece("Hel")
        await asyncio.Event().wait()


async def test_stalled_model_is_retried_and_its_text_superseded(app: App) -> None:
    model = Mute(("Good ", "morning"))
    rt = await app.add([Agent("a", model=model, stall_timeout=1.5)])
    session = await rt.session("s", agent="a")
    reader = Reader(session)
    sent = await session.send("go")
    await reader.shows("Hel")
    model.go_on()
    assert (await sent.result(timeout=20)).text == "Good morning"
    await reader.has_replies("Good morning")
    assert [event.chars for event in reader.events if isinstance(event, TextReset)] == [3]
    await reader.leave()


class Acting(Typist):
    """Writes some text, begins a call, and breaks off; then it answers."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        if not self.asked:
            self.asked += 1
            yield TextPiece("Let me look. ")
            yield HiddenDelta(4)
            raise ModelError(LlmError(kind="stream_cut", message="cut", retryable=True))
        async for event in super().stream(request):
            yield event


async def test_a_reply_that_breaks_off_may_stand_as_a_partial_one(app: App) -> None:
    model = Typist(("Hel", "lo", None), ("Good morning",))
    rt = await app.add([Agent("a", model=model, on_cut_reply="keep")])
    model.go_on()
    result = await (await (await rt.session("s", agent="a")).send("go")).result(timeout=20)
    assert (result.status, result.text, result.partial) == ("finished", "Hello", "stream_cut")
    assert result.message == "the reply is partial: stream_cut"
    assert model.asked == 1, "nothing more is bought"
    assert (result.usage.calls, result.usage.estimated) == (1, 1)


@pytest.mark.parametrize("first", [(None,), (" ", None)], ids=["nothing", "blank"])
async def test_reply_without_text_is_requested_again(app: App, first: tuple[str | None, ...]) -> None:
    model = Typist(first, ("Good morning",))
    rt = await app.add([Agent("a", model=model, on_cut_reply="keep")])
    model.go_on()
    result = await (await (await rt.session("s", agent="a")).send("go")).result(timeout=20)
    assert (result.text, result.partial) == ("Good morning", "")


async def test_a_text_before_a_call_that_was_begun_is_no_reply(app: App) -> None:
    model = Acting(("unused",), ("Good morning",))
    rt = await app.add([Agent("a", model=model, on_cut_reply="keep")])
    model.go_on()
    result = await (await (await rt.session("s", agent="a")).send("go")).result(timeout=20)
    assert (result.text, result.partial) == ("Good morning", "")


async def test_short_reply_is_not_streamed_and_costs_no_commit(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Typist([])
    model.go_on()
    rt = await app.open(model)
    session = await rt.session("s", agent="a")

    async def put(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a short reply was told")

    monkeypatch.setattr(core_of(rt).store.live, "put", put)
    await session.ask("go")
    before = core_of(rt).store.counters.plans
    await session.ask("go")
    short = core_of(rt).store.counters.plans - before
    monkeypatch.undo()

    long = Typist([*"A much longer reply, a character at a time"])
    other = await app.open(long)
    session = await other.session("other", agent="a")
    before = core_of(other).store.counters.plans
    sent = await session.send("go")
    for _ in range(5):
        long.go_on(8)
        await asyncio.sleep(0.07)
    long.go_on()
    await sent.result(timeout=20)
    assert core_of(other).store.counters.plans - before <= short + 1, "the admission of a new session aside"


async def test_a_side_channel_that_fails_changes_nothing(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Typist(PIECES)
    rt = await app.open(model)

    tried: list[object] = []

    async def put(*given: object, **_: object) -> NoReturn:
        tried.append(given)
        raise Error(Code.STORE_UNAVAILABLE, "the side channel is away")

    async def was_tried() -> bool:
        return bool(tried)

    monkeypatch.setattr(RedactedChannel, "put", put)
    sent = await (await rt.session("s", agent="a")).send("go")
    model.go_on(3)
    await until(was_tried)
    model.go_on()
    assert (await sent.result(timeout=20)).text == "".join(PIECES)


async def test_text_split_inside_a_character_is_equal_everywhere(app: App) -> None:
    model = Typist(("a\ud83d", "\ude00b", "\ud83d", "c\x00"))
    rt = await app.open(model)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    here, there = Reader(session), Reader((await app.open(model, worker=False)).get_session("s"))
    model.go_on(4)
    await here.shows("a😀b?c\x00")

    async def shown() -> bool:
        return there.text.rstrip("\x00\ufffd") == "a😀b?c"  # a database does not keep every character

    await until(shown, seconds=20)
    model.go_on()
    assert (await sent.result(timeout=20)).text == "a😀b?c\x00"
    await here.leave()
    await there.leave()


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


async def test_streamed_text_is_encrypted_in_the_store(tmp_path: Path) -> None:
    model, path, codec = Typist(PIECES), tmp_path / "s.db", AesGcmCodec({"k1": b"k" * 32})

    def store() -> SqliteStore:
        return SqliteStore(path, SystemClock())

    agents = [Agent("a", model=model)]
    async with (
        Runtime(store(), agents=agents, payload_codec=codec) as rt,
        Runtime(store(), agents=agents, payload_codec=codec, worker=False) as elsewhere,
    ):
        sent = await (await rt.session("s", agent="a")).send("go")
        reader = Reader(elsewhere.get_session("s"))
        model.go_on(3)
        await reader.shows("Hello, dear reader")
        files = contents(tmp_path)
        assert "s.db-live" in files
        assert not [name for name, data in files.items() if b"dear" in data]
        model.go_on()
        await sent.result(timeout=20)
        await reader.leave()


async def test_a_piece_that_did_not_arrive_is_told_again_with_the_next(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Typist(PIECES)
    rt, looking = await app.open(model), await app.open(Typist(PIECES), worker=False)
    put, failed = core_of(rt).store.live.put, asyncio.Event()

    async def fails_once(pieces: Sequence[Piece], *, over: Sequence[tuple[StreamId, int]] = (), now: int) -> None:
        if pieces and not failed.is_set():
            failed.set()
            raise Error(Code.STORE_UNAVAILABLE, "not now")
        await put(pieces, over=over, now=now)

    monkeypatch.setattr(core_of(rt).texts, "_channel", SimpleNamespace(put=fails_once))
    sent = await (await rt.session("s", agent="a")).send("go")
    model.go_on(1)
    await failed.wait()
    model.go_on(1)

    async def there() -> bool:
        return await core_of(looking).partial_streams.get_partial_stream(
            SessionId("s"), sent.turn_id
        ) == PartialStreamState("Hello, dear ")

    await until(there)
    model.go_on()
    await sent.result(timeout=20)


async def test_behind_a_piece_that_was_lost_nothing_counts(app: App) -> None:
    rt = await app.open(Typist(PIECES), worker=False)
    stream, turn, effect = StreamId("default:session:s"), TurnId("t"), EffectId("m1.1")
    for start, text in ((0, "Hel"), (3, "lo, "), (12, "world")):
        await core_of(rt).store.live.put([Piece(stream, turn, effect, 1, Seq(1), start, text)], now=1)
    before = await written(core_of(rt).store, stream, turn, effect)
    assert (before.text, before.chars) == ("Hello, ", 17)
