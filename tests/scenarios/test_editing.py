"""Titles and tags, and records that must not be kept: on every store, while a session rests and while it works."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest
from msgspec.structs import replace

from perdure import Agent, Attachment, Code, Error, Runtime, Session, ToolContext, tool
from perdure.codec import encode
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.internals import core_of, ref_of
from perdure.runtime.sessions.results import wait_for
from perdure.session.fold import CODE, fold_all
from perdure.session.redaction import promise_of
from perdure.vocab.blobs import blob_of
from perdure.vocab.messages import ImagePart
from perdure.vocab.promises import Ok
from perdure.vocab.records import EffectSettled, EffectStarted, InputAdmitted, Record, TitleSet, TurnOpened
from tests.scenarios.conftest import App
from tests.scenarios.test_content import PNG, Looking


async def refused(asked: Awaitable[object]) -> Error:
    with pytest.raises(Error) as caught:
        await asked
    return caught.value


# --- title and tags


async def test_a_session_has_a_title_and_tags_that_find_it(app: App) -> None:
    rt = await app.open(ScriptedModel(say("ok")))
    session = await rt.session("s", agent="a")
    await session.ask("hi")
    await (await rt.session("other", agent="a")).ask("hi")
    assert ((await session.info()).title, (await session.info()).tags) == ("", ())
    await session.set_title("  Refund of order 7 ")
    await session.set_tags(["vip", "eu", "vip"])
    assert ((await session.info()).title, (await session.info()).tags) == ("Refund of order 7", ("eu", "vip"))
    assert [info.id for info in await rt.list_sessions(tag="vip")] == ["s"]
    assert [info.title for info in await rt.list_sessions(tag="eu")] == ["Refund of order 7"]
    assert await rt.list_sessions(tag="us") == ()
    await session.set_tags([])
    await session.set_title("")
    assert ((await session.info()).title, (await session.info()).tags) == ("", ())
    assert await rt.list_sessions(tag="vip") == ()


async def test_the_list_says_what_the_log_says(app: App) -> None:
    rt = await app.open(ScriptedModel(say("ok")))
    session = await rt.session("s", agent="a")
    await session.ask("hi")
    await session.set_title("One")
    await session.set_tags(["b", "a"])
    await session.set_title("Two")
    state = fold_all(None, await session.journal())
    assert (
        (state.title, state.tags) == ((await session.info()).title, (await session.info()).tags) == ("Two", ("a", "b"))
    )


@pytest.mark.parametrize("title", ["x" * 201, "a\nb", 7, "\ud800"])
async def test_invalid_title_is_refused(app: App, title: object) -> None:
    rt = await app.open(ScriptedModel(say("ok")))
    session = await rt.session("s", agent="a")
    await session.ask("hi")
    error = await refused(session.set_title(title))  # type: ignore[arg-type]
    assert error.code in (Code.INVALID_ARGUMENT, Code.INVALID_TEXT)
    assert (await session.info()).title == ""


@pytest.mark.parametrize("tags", ["vip", 7, [""], ["a,b"], ["x" * 65], ["a\tb"], [7], [f"t{n}" for n in range(33)]])
async def test_invalid_tags_are_refused(app: App, tags: object) -> None:
    rt = await app.open(ScriptedModel(say("ok")))
    session = await rt.session("s", agent="a")
    await session.ask("hi")
    assert (await refused(session.set_tags(tags))).code is Code.INVALID_ARGUMENT  # type: ignore[arg-type]
    assert (await session.info()).tags == ()


async def test_a_session_that_does_not_exist_has_neither(app: App) -> None:
    rt = await app.open(ScriptedModel(say("ok")))
    ghost = await rt.session("ghost", agent="a")
    for asked in (ghost.info(), ghost.set_title("x"), ghost.set_tags(["x"]), ghost.redact(1)):
        assert (await refused(asked)).code is Code.SESSION_UNKNOWN
    assert (await refused(rt.list_sessions(tag="a,b"))).code is Code.INVALID_ARGUMENT


async def test_a_turn_goes_on_whatever_is_named_meanwhile(app: App) -> None:
    begun = asyncio.Event()

    @tool(effect="pure")
    async def wait() -> str:
        """Wait."""
        begun.set()
        await asyncio.sleep(0 if second else 60)
        return "done"

    second = False
    agent = Agent("a", model=ScriptedModel(call("wait"), say("ok")), tools=[wait])
    async with Runtime(app.new_store(), agents=[agent]) as rt:
        session = await rt.session("s", agent="a")
        sent = await session.send("go")
        await begun.wait()
        await session.set_title("In the middle")
        await session.set_tags(["x"])
        await rt.drain(0)
    second = True
    rt = await app.open(ScriptedModel(call("wait"), say("ok")), wait)
    result = await asyncio.wait_for(wait_for(ref_of(await rt.session("s")), sent.turn_id), 20)
    assert result.status == "finished"
    assert (await (await rt.session("s")).info()).title == "In the middle"


# --- redaction


async def seq_of(session: Session, kind: type[Record], nth: int = 0) -> int:
    return [row.seq for row in await session.journal() if isinstance(row.record, kind)][nth]


async def test_redacted_input_is_missing_from_log_and_model_requests(app: App) -> None:
    model = Looking()
    rt = await app.open(model)
    session = await rt.session("s", agent="a")
    await session.ask(["my card is CARD-4111", Attachment("image/png", PNG)])
    seq = await seq_of(session, InputAdmitted)
    assert await session.redact(seq, by="privacy desk") is True
    await session.ask("and now?")
    shown = encode(model.requests[-1].messages).decode()
    assert "CARD-4111" not in shown
    assert "[redacted]" in shown
    assert model.requests[-1].attachments == {}
    assert "CARD-4111" not in str(await session.journal())
    assert [row.kind for row in await session.journal()].count("record_redacted") == 1
    assert (await refused(core_of(rt).store.blob(blob_of(PNG, "").hash))).code is Code.BLOB_UNKNOWN


async def test_redacting_again_changes_nothing(app: App) -> None:
    rt = await app.open(Looking())
    session = await rt.session("s", agent="a")
    await session.ask("secret")
    seq = await seq_of(session, InputAdmitted)
    assert await session.redact(seq) is True
    rows = await session.journal()
    assert await session.redact(seq) is False
    assert await session.journal() == rows


async def test_folds_and_snapshots_stay_valid(app: App) -> None:
    @tool(effect="once")
    def pay(card: str) -> str:
        """Pay."""
        return f"paid with {card}"

    rt = await app.open(ScriptedModel(call("pay", card="CARD-4111"), say("ok")), pay)
    session = await rt.session("s", agent="a")
    for _ in range(12):  # enough for a snapshot
        await session.ask("go")
    before = fold_all(None, await session.journal())
    for row in await session.journal():
        if isinstance(row.record, InputAdmitted | EffectSettled):
            await session.redact(row.seq)
            await asyncio.sleep(0)  # a memory store never waits: all would be one step
    after = fold_all(None, await session.journal())
    assert after == replace(before, seq=after.seq)
    loaded = await core_of(rt).store.load(ref_of(session).stream, code=CODE)
    assert fold_all(loaded.snapshot.data if loaded.snapshot else None, loaded.rows) == after
    assert "CARD-4111" not in str(await session.journal())
    assert "CARD-4111" not in str(await session.messages())
    assert [m.role for m in await session.messages()][:4] == ["user", "assistant", "tool", "assistant"]
    await session.ask("go")


async def test_records_of_a_running_turn_are_left_alone(app: App) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @tool(effect="pure")
    async def wait() -> str:
        """Wait."""
        begun.set()
        await go.wait()
        return "done"

    model = ScriptedModel.by_input({"first": [say("ok")], "go": [call("wait"), say("ok")]})
    rt = await app.open(model, wait)
    session = await rt.session("s", agent="a")
    await session.ask("first")
    old = await seq_of(session, InputAdmitted)
    sent = await session.send("go")
    await begun.wait()
    running = await seq_of(session, InputAdmitted, 1)
    assert (await refused(session.redact(running))).code is Code.SESSION_BUSY
    assert await session.redact(old) is True, "an earlier turn does not block the redaction"
    go.set()
    await sent.result(timeout=20)
    assert "first" not in encode(model.requests[-1].messages).decode(), "the running turn's next request shows it gone"
    assert await session.redact(running) is True


async def test_bytes_that_another_record_needs_are_kept(app: App) -> None:
    model = Looking()
    rt = await app.open(model)
    session = await rt.session("s", agent="a")
    await session.ask([Attachment("image/png", PNG)])
    await session.ask([Attachment("image/png", PNG)])
    await session.redact(await seq_of(session, InputAdmitted))
    await session.ask("still there?")
    assert list(model.requests[-1].attachments.values()) == [PNG]
    pictures = [p for m in await session.messages() for p in m.parts if isinstance(p, ImagePart)]
    assert len(pictures) == 1


@pytest.mark.parametrize("seq", [0, -1, 999, True, "1"])
async def test_a_record_that_is_not_there_cannot_be_redacted(app: App, seq: object) -> None:
    rt = await app.open(Looking())
    session = await rt.session("s", agent="a")
    await session.ask("hi")
    error = await refused(session.redact(seq))  # type: ignore[arg-type]
    assert error.code in (Code.RECORD_UNKNOWN, Code.INVALID_ARGUMENT)


async def test_structural_records_are_not_redactable(app: App) -> None:
    rt = await app.open(Looking())
    session = await rt.session("s", agent="a")
    await session.ask("hi")
    assert (await refused(session.redact(1))).code is Code.INVALID_ARGUMENT
    await session.set_title("Mrs Smith")
    title = await seq_of(session, TitleSet)
    assert (await refused(session.redact(title))).code is Code.INVALID_ARGUMENT
    await session.set_title("a customer")
    assert await session.redact(title) is True
    assert "Smith" not in str(await session.journal())
    assert (await session.info()).title == "a customer"


@pytest.mark.parametrize("first", [EffectStarted, EffectSettled])
async def test_an_answer_is_gone_from_the_promise_too_whichever_record_goes_first(
    app: App, first: type[Record]
) -> None:
    @tool(effect="resumable")
    async def ask_person(ctx: ToolContext) -> str:
        """Ask."""
        return "thanks" if await ctx.wait_for_event("answer") else "no"

    model = ScriptedModel.by_input(
        {"go": [call("ask_person"), say("ok", exact=True)], "again": [say("ok", exact=True)]}
    )
    rt = await app.open(model, ask_person)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await session.resolve("answer", "CARD-4111")
    assert (await sent.result(timeout=20)).status == "finished"
    rows = await session.journal()
    found = {promise for row in rows if (promise := promise_of(row, rows)) is not None}
    assert len(found) == 1
    promise = found.pop()
    for kind in (first, EffectStarted, EffectSettled):
        for row in rows:
            if isinstance(row.record, kind) and promise_of(row, rows) is not None:
                await session.redact(row.seq)
    known = await core_of(rt).store.peek(promise)
    assert known is not None
    assert known.resolution == Ok(value="[redacted]"), "the promise stays resolved"
    assert "CARD-4111" not in str(await session.journal())
    assert await session.ask("again") == "ok"


async def test_redacting_a_turn_opening_deletes_its_quoted_instructions(app: App) -> None:
    agent = Agent("a", model=ScriptedModel(say("ok", exact=True)), instructions=lambda ctx: f"Help with: {ctx.input}")
    async with Runtime(app.new_store(), agents=[agent]) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("my card is CARD-4111")
        (opened,) = [row.record for row in await session.journal() if isinstance(row.record, TurnOpened)]
        before = fold_all(None, await session.journal())
        assert await session.redact(await seq_of(session, TurnOpened)) is True
        after = fold_all(None, await session.journal())
        assert after == replace(before, seq=after.seq)
        assert (await refused(core_of(rt).store.blob(opened.composition))).code is Code.BLOB_UNKNOWN
        assert await session.ask("and now?") == "ok"
        copy = await rt.import_session("copy", await session.export())
        assert await copy.ask("here too?") == "ok"


async def test_a_composition_that_another_turn_has_is_kept(app: App) -> None:
    rt = await app.open(ScriptedModel(say("ok", exact=True)))
    session = await rt.session("s", agent="a")
    await session.ask("one")
    await session.ask("two")
    (first, second) = [row.record for row in await session.journal() if isinstance(row.record, TurnOpened)]
    assert first.composition == second.composition
    await session.redact(await seq_of(session, TurnOpened))
    assert await core_of(rt).store.blob(second.composition)
    await session.redact(await seq_of(session, TurnOpened, 1))
    assert (await refused(core_of(rt).store.blob(second.composition))).code is Code.BLOB_UNKNOWN
    assert await session.ask("three") == "ok"
    assert await core_of(rt).store.blob(second.composition), "the next turn brings it again"
