"""Secrets: stored apart, read by tools, and in no log, event, prompt or file. On every store."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from perdure import Agent, Code, Error, Runtime, Session, ToolContext, ToolError, tool
from perdure.codec import Json, encode
from perdure.events import Event
from perdure.ids import BlobHash, PromiseId
from perdure.models.protocol import ModelEvent, ModelReply, ModelRequest, ProviderCall
from perdure.models.scripted import ScriptedAnswer, ScriptedModel, call, calls, say
from perdure.runtime.internals import core_of, ref_of
from perdure.runtime.secret_store import MAX_SECRETS, StoredSecrets
from perdure.services.secrets import Redactor
from perdure.store.aes_gcm import AesGcmCodec
from perdure.store.shapes import Accepted, AlreadyResolved
from perdure.testing import tool_context
from perdure.tools.client_side import ask_user
from tests.scenarios.conftest import App, NewStore, until
from tests.scenarios.test_bodies import HURRIED, outputs, parked, status
from tests.scenarios.test_client_side import begun, refusal, waiting_question

VALUE = 'hunter2-Zürich-"quoted"'
ASKED: dict[str, Json] = {"id": "token", "question": "The API token?", "kind": "secret"}
ASK = call("ask_user", questions=[ASKED])


class Handing:
    """Follows a script, and hands the newest reference in the conversation to whatever takes `$ref`."""

    name = "handing"

    def __init__(self, *steps: ScriptedAnswer) -> None:
        self._script = ScriptedModel(*steps)
        self.prompts: list[str] = []

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        shown = f"{request.instructions} {encode(request.messages).decode()}"
        self.prompts.append(shown)
        found = re.findall(r"secret:[0-9a-f]{32}", shown)
        async for event in self._script.stream(request):
            if isinstance(event, ModelReply) and found:
                yield replace(event, parts=tuple(_handed(part, found[-1]) for part in event.parts))
            else:
                yield event


def _handed(part: object, reference: str) -> object:
    return (
        replace(part, arguments=part.arguments.replace("$ref", reference)) if isinstance(part, ProviderCall) else part
    )


used: list[str] = []


async def read(ctx: ToolContext, token: str) -> str:
    value = (await ctx.secrets.get(token)).reveal()
    used.append(value)
    return value


@tool
async def login(ctx: ToolContext, token: str) -> Json:
    """Log in, and say too much."""
    value = await read(ctx, token)
    ctx.progress(f"using {value}")
    ctx.output(f"> {value}\n")
    return {"said": f"logged in with {value}", value: [value, {"deep": f"<{value}>"}]}


@tool
async def fail(ctx: ToolContext, token: str) -> str:
    """Fail, and say why."""
    value = await read(ctx, token)
    raise ToolError(f"{value} is wrong", code=f"no-{value}")


@tool
async def much(ctx: ToolContext, token: str) -> str:
    """More than is shown."""
    return "x" * 70_000 + await read(ctx, token)


@tool(effect="resumable")
async def steps(ctx: ToolContext, token: str) -> str:
    """Pass it to a step and to a model."""
    value = await read(ctx, token)

    async def same(given: str) -> str:
        return given

    async def worse(given: str) -> str:
        raise ToolError(f"not {given}")

    stepped = await ctx.step("same", same, value)
    with pytest.raises(ToolError):
        await ctx.step("worse", worse, value)
    reply = await ctx.complete(f"Is {value} a good password?", source="test")
    return f"{stepped} {reply}"


TOOLS = (ask_user, login, fail, much, steps)
EVERYTHING = (ASK, calls(*(call(name, token="$ref") for name in ("login", "fail", "much", "steps"))), say("done"))


def spelled(value: str) -> list[bytes]:
    """The value as it could stand in a file."""
    return [value.encode(), encode(value).strip(b'"'), value.encode("utf-16-le")]


def found_in_files(folder: Path, value: str) -> list[Path]:
    files = [file for file in folder.rglob("*") if file.is_file()]
    return [file for file in files if any(bad in file.read_bytes() for bad in spelled(value))]


async def rows_of(session: Session) -> bytes:
    return b"\n".join(row.data for row in await session.journal())


async def test_the_value_is_used_and_is_nowhere_else(app: App, tmp_path: Path) -> None:
    used.clear()
    model = Handing(*EVERYTHING)
    session = await begun(app, model, *TOOLS)  # pyright: ignore[reportArgumentType] - a model of its own
    item = await waiting_question(session)
    seen: list[Event] = []

    async def watch() -> None:
        async for event in session.events():
            seen.append(event)

    watching = asyncio.create_task(watch())
    assert await session.answer(item.id, {"token": VALUE}, by="ann") == Accepted()
    await status(session, "idle")
    watching.cancel()
    assert used == [VALUE] * 4
    asked, logged_in, failed, long, stepped = outputs(await session.messages())
    answer = asked["answers"]["token"]
    assert re.fullmatch("secret:[0-9a-f]{32}", answer["value"])
    assert (answer["answered_by"], answer["by"]) == ("person", "ann")
    assert logged_in == {"said": "logged in with [secret]", "[secret]": ["[secret]", {"deep": "<[secret]>"}]}
    assert failed == {"error": "[secret] is wrong", "code": "no-[secret]"}
    assert "xxx" in str(long)
    assert stepped.startswith("[secret] ")
    [spilled] = re.findall(rb'"spilled":{"hash":"([0-9a-f]{64})', await rows_of(session))
    blob = await ref_of(session).runtime.store.blob(BlobHash(spilled.decode()), stream=ref_of(session).stream)
    assert b"[secret]" in blob.data
    everything = "\n".join([*map(repr, seen), *map(str, seen), *model.prompts, repr(await session.pending())])
    assert "[secret] a good password?" in everything
    for bad in spelled(VALUE)[:2]:
        assert bad.decode() not in everything
        assert bad not in await rows_of(session)
    assert found_in_files(tmp_path, VALUE) == []


async def test_the_first_answer_stands_and_the_same_again_is_the_same(app: App) -> None:
    session = await begun(app, ScriptedModel(ASK, say("ok")), ask_user)
    item = await waiting_question(session)
    for wrong in ("", "  ", 7, "x" * 20_000):
        with pytest.raises(Error) as caught:
            await session.answer(item.id, {"token": wrong}, by="ann")  # pyright: ignore[reportArgumentType] - whatever people say
        assert refusal(caught.value) is Code.ANSWER_INVALID
    assert await session.answer(item.id, {"token": "first"}, by="ann") == Accepted()
    assert isinstance(await session.answer(item.id, {"token": "first"}, by="bob"), AlreadyResolved)
    with pytest.raises(Error) as caught:
        await session.answer(item.id, {"token": "second"}, by="bob")
    assert refusal(caught.value) is Code.TOOL_CALL_ANSWERED
    assert "second" not in str(caught.value)


async def test_another_worker_reads_it_after_a_restart_and_only_in_its_session(app: App) -> None:
    used.clear()
    first = await begun(app, Handing(ASK, say("kept")), ask_user)  # pyright: ignore[reportArgumentType] - a model of its own
    await first.answer((await waiting_question(first)).id, {"token": VALUE}, by="ann")
    await status(first, "idle")
    [asked] = outputs(await first.messages())
    reference = asked["answers"]["token"]["value"]
    await ref_of(first).runtime.drain(5)
    rt = await app.open(ScriptedModel(call("login", token=reference), say("ok")), login, tuning=HURRIED)
    assert (await (await rt.session("s", agent="a")).ask("log in", timeout=20)).startswith("ok")
    assert used == [VALUE]
    other = await rt.session("other", agent="a")
    await other.ask("log in", timeout=20)
    assert [output["code"] for output in outputs(await other.messages())] == ["secret_unknown"]
    assert used == [VALUE]


async def test_deleting_a_session_deletes_what_it_kept(app: App) -> None:
    session = await begun(app, ScriptedModel(ASK, say("kept")), ask_user)
    await session.answer((await waiting_question(session)).id, {"token": VALUE}, by="ann")
    await status(session, "idle")
    [asked] = outputs(await session.messages())
    kept = PromiseId(asked["answers"]["token"]["value"])
    store = ref_of(session).runtime.store
    assert await store.peek(kept) is not None
    assert await session.delete()
    assert await store.peek(kept) is None
    assert VALUE not in str(ref_of(session).runtime.seen_secrets.by_stream)


async def test_a_reference_that_a_model_made_up_is_told_to_it(app: App) -> None:
    wrong = ("secret:" + "0" * 32, "secret:", "", "hunter2", VALUE)
    script = (calls(*(call("login", token=one) for one in wrong)), say("ok"))
    session = await begun(app, ScriptedModel(*script), login)
    await status(session, "idle")
    assert {output["code"] for output in outputs(await session.messages())} == {"secret_unknown"}


async def test_where_there_is_no_such_service_a_tool_says_so() -> None:
    ctx = tool_context("login")
    with pytest.raises(ToolError, match="Secrets not available in this context"):
        _ = ctx.secrets


async def test_with_a_codec_it_is_encrypted_by_that_too(new_store: NewStore) -> None:
    codec = AesGcmCodec({"k": AesGcmCodec.new_key()})
    used.clear()
    agent = Agent("a", model=Handing(ASK, call("login", token="$ref"), say("ok")), tools=[ask_user, login])
    async with Runtime(new_store(), agents=[agent], payload_codec=codec, options=HURRIED) as rt:
        session = await rt.session("s", agent="a")
        sent = await session.send("go")
        await until(lambda: _asked(session))
        [item] = await session.pending()
        await session.answer(item.id, {"token": VALUE}, by="ann")
        assert (await sent.result(20)).status == "finished"
    assert used == [VALUE]


async def _asked(session: Session) -> bool:
    return bool(await session.pending())


def test_a_veil_hides_values_wherever_they_are_and_short_ones_only_alone() -> None:
    redactor = Redactor()
    redactor.add("pass")
    redactor.add("password-1")
    redactor.add("47")
    redactor.add("")
    assert redactor.text("my password-1 and pass") == "my [secret] and [secret]"
    assert redactor.json([47, 47.5, True, None, "47", "a 47", 470]) == [
        "[secret]",
        47.5,
        True,
        None,
        "[secret]",
        "a 47",
        470,
    ]
    assert Redactor().json({"a": 1}) == {"a": 1}


# --- redaction and identity


TOLD = "use hunter2-Zürich now"


@tool(effect="resumable")
async def mails(ctx: ToolContext) -> str:
    """Use a value that did not come from `ctx.secrets`, so that another process has not seen it."""

    async def same(given: str) -> str:
        return given

    said = await ctx.step("mail", same, TOLD)
    await ctx.triggers.emit("mail.sent", {"text": TOLD}, key="k1")
    await ctx.wait_for_event("go")
    return said


async def test_s10_replay_where_the_secret_was_not_seen_is_the_same(app: App) -> None:
    model = ScriptedModel.by_input({"go": [call("mails"), say("ok")]}, default=[say("ok")])
    first = await app.open(model, mails, tuning=HURRIED)
    first.triggers.declare("mail.sent")
    session = await first.session("s", agent="a")
    core = core_of(first)
    core.seen_secrets.add(ref_of(session).stream, "hunter2-Zürich")
    sent = await session.send("go", key="first")
    noted = await session.send(f"later, {TOLD}", key="second")
    await parked(first, session)
    await core.drain(5)
    second = await app.open(model, mails, tuning=HURRIED)
    second.triggers.declare("mail.sent")
    there = second.get_session("s")
    again = await there.send(f"later, {TOLD}", key="second")
    assert (again.is_duplicate, again.turn_id) == (True, noted.turn_id)
    await there.resolve("go", 1)
    assert (await second.get_session("s").ask("and?", timeout=20)).startswith("ok")
    assert outputs(await there.messages())[0] == "use [secret] now"
    assert b"hunter2" not in await rows_of(there)
    assert sent.turn_id != noted.turn_id


async def test_s10_body_sees_the_same_step_result_before_and_after_a_crash(app: App) -> None:
    seen: list[str] = []

    @tool(effect="resumable")
    async def twice(ctx: ToolContext) -> str:
        """Keep what a step returned, on every entry."""
        seen.append(await ctx.step("mail", lambda: TOLD))
        await ctx.wait_for_event("go")
        return "done"

    rt = await app.open(ScriptedModel(call("twice"), say("ok")), twice, tuning=HURRIED)
    session = await rt.session("s", agent="a")
    core_of(rt).seen_secrets.add(ref_of(session).stream, "hunter2-Zürich")
    await session.send("go")
    await parked(rt, session)
    await session.resolve("go", 1)
    await status(session, "idle")
    assert len(seen) >= 2
    assert set(seen) == {"use [secret] now"}


async def test_t_sec_02_secret_that_is_a_common_word_breaks_no_session(app: App) -> None:
    words = ("echo", "session", "text", "success", "input", "a", "done", "user", "value")
    rt = await app.open(ScriptedModel(call("echo", text="an input of a user"), say("all done", exact=True)), echo)
    session = await rt.session("s", agent="a")
    for word in words:
        core_of(rt).seen_secrets.add(ref_of(session).stream, word)
    assert await session.ask("go", timeout=20) == "all [secret]"
    assert outputs(await session.messages()) == ["an [secret] of a [secret]"]
    other = await rt.session("other", agent="a")
    assert await other.ask("go", timeout=20) == "all done"


@tool
async def echo(text: str) -> str:
    """Return the text."""
    return text


# --- a worker that takes over


@tool
async def prints(ctx: ToolContext, token: str) -> str:
    """Start a command that prints the secret once a file is there."""
    folder = cast("Path", ctx.deps)
    (folder / "secret.txt").write_text((await ctx.secrets.get(token)).reveal())
    says = f"while [ ! -e {folder}/go ]; do sleep 0.02; done; cat {folder}/secret.txt"
    return (await ctx.start_command(["/bin/sh", "-c", says], notify=True)).id


async def test_s10_output_of_a_command_hides_the_secret_after_a_restart(app: App, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    tuning = replace(HURRIED, commands_in=tmp_path / "commands")
    asking = Handing(ASK, call("prints", token="$ref"), say("started"))
    first = await app.open(asking, ask_user, prints, deps=outside, tuning=tuning)
    session = await first.session("s", agent="a")
    sent = await session.send("go")
    await session.answer((await waiting_question(session)).id, {"token": VALUE}, by="ann")
    await sent.result(timeout=20)
    command = outputs(await session.messages())[-1]
    await core_of(first).drain(5)
    after = Handing(say("noted"), say("noted"))
    second = await app.open(after, ask_user, prints, deps=outside, tuning=tuning)
    (outside / "go").touch()
    ended = await second.get_process(command).result(timeout=20)
    assert "[secret]" in repr(ended)
    there = second.get_session("s")
    await until(lambda: told(there))
    await there.ask("and?", timeout=20)
    everything = "".join([*after.prompts, repr(ended), repr(await there.messages())])
    assert "[secret]" in "".join(after.prompts)
    assert "hunter2" not in everything
    assert b"hunter2" not in await rows_of(there)


async def told(session: Session) -> bool:
    return "[secret]" in repr(await session.messages())


async def test_s10_session_hides_its_secret_after_a_restart_before_it_is_read(app: App) -> None:
    first = await begun(app, Handing(ASK, say("kept")), ask_user)  # pyright: ignore[reportArgumentType] - a model of its own
    await first.answer((await waiting_question(first)).id, {"token": VALUE}, by="ann")
    await status(first, "idle")
    await ref_of(first).runtime.drain(5)

    model = Handing(call("echo", text=f"<{VALUE}>"), say("ok"))
    second = await app.open(model, echo, tuning=HURRIED)
    session = second.get_session("s")
    await session.ask("go", timeout=20)
    assert outputs(await session.messages())[-1] == "<[secret]>"
    assert b"hunter2" not in await rows_of(session)


async def test_s10_secret_of_a_refused_answer_is_not_stored(app: App) -> None:
    session = await begun(app, ScriptedModel(ASK, say("ok")), ask_user)
    item = await waiting_question(session)
    await session.answer(item.id, {"token": "right-4711"}, by="ann")
    await status(session, "idle")
    core, stream = ref_of(session).runtime, ref_of(session).stream
    vault = StoredSecrets(core.store, core.secrets, stream, Redactor(core.seen_secrets, stream), core.audit_log)
    for late in ("late-1", "late-2"):
        with pytest.raises(Error) as caught:
            await session.answer(item.id, {"token": late}, by="mallory")
        assert refusal(caught.value) is Code.TOOL_CALL_ANSWERED
        reference = await vault.reference(item.id, "token", late)
        assert await core.store.peek(PromiseId(reference)) is None
    assert isinstance(await session.answer(item.id, {"token": "right-4711"}, by="ann"), AlreadyResolved)
    assert core.seen_secrets.by_stream[stream] == ("right-4711",)


@pytest.mark.any_store
async def test_s10_session_with_too_many_secrets_refuses_another(app: App) -> None:
    session = await begun(app, ScriptedModel(ASK, say("ok")), ask_user)
    item = await waiting_question(session)
    core, stream = ref_of(session).runtime, ref_of(session).stream
    vault = StoredSecrets(core.store, core.secrets, stream, Redactor(core.seen_secrets, stream), core.audit_log)
    for at in range(MAX_SECRETS):
        await vault.put("call", str(at), f"value-{at}")
    with pytest.raises(Error) as caught:
        await session.answer(item.id, {"token": "one too many"}, by="ann")
    assert refusal(caught.value) is Code.INPUT_TOO_LARGE
    assert "100 secrets" in str(caught.value)
    assert len(core.seen_secrets.by_stream[stream]) == MAX_SECRETS
    assert (await session.pending())[0].id == item.id
