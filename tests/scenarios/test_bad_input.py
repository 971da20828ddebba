"""Bad input gets a clear answer: what, because, what to do. Nothing is lost, nothing half done."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Code, Error, Runtime, ToolContext, tool
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.sessions.parts import Content
from perdure.tools.client_side import client_tool
from perdure.vocab.messages import Text
from tests.scenarios.conftest import App
from tests.scenarios.verbs import HeldModel, in_its_turn

pytestmark = pytest.mark.any_store

HOSTILE = ["a:b", "a/b", "a%3Ab", "ünï", "'; drop table log; --", "a" * 500, " x ", "session", "💥"]


async def refused(code: Code, *, app: App, text: object = "hi", session: object = "s") -> Error:
    rt = await app.open(ScriptedModel(say("ok")))
    with pytest.raises(Error) as caught:
        await (await rt.session(session, agent="a")).send(text)  # type: ignore[arg-type]
    assert caught.value.code is code
    assert caught.value.message
    assert await rt.list_sessions() == (), "nothing was written"
    return caught.value


@pytest.mark.parametrize("id", ["", "   ", "\t", 7, "a\nb", "a\x00b", "x" * 513, "\ud800"])
async def test_a_session_id_must_be_a_name(app: App, id: object) -> None:
    await refused(Code.INVALID_ID, app=app, session=id)


@pytest.mark.parametrize("text", ["", "  \n", 5, None, b"bytes"])
async def test_an_input_must_say_something(app: App, text: object) -> None:
    await refused(Code.INVALID_ARGUMENT, app=app, text=text)


class Shout(str):
    """A subclass of `str`."""

    def __str__(self) -> str:
        return self.upper()


@pytest.mark.parametrize("content", [Shout("hi"), [Shout("hi")], [Text(text=Shout("hi"))]])
async def test_text_of_a_subclass_is_taken_as_the_text_it_is(app: App, content: Content) -> None:
    rt = await app.open(ScriptedModel(say("ok", exact=True)))
    session = await rt.session("s", agent="a")
    assert (await (await session.send(content)).result(timeout=10)).text == "ok"
    assert list((await session.messages())[0].parts) == [Text(text="hi")]


async def test_names_and_instructions_accept_subclasses_of_str(app: App) -> None:
    agent = Agent(Shout("a"), model=ScriptedModel(say("ok", exact=True)), instructions=Shout("be kind"))
    asked = Agent("b", model=ScriptedModel(say("ok", exact=True)), instructions=lambda ctx: Shout("be kind"))
    async with Runtime(app.new_store(), agents=[agent, asked]) as rt:
        for name in ("a", "b"):
            session = await rt.session(Shout(f"s{name}"), agent=Shout(name))
            sent = await session.send("hi", key=Shout("k"))
            assert (await sent.result(timeout=10)).text == "ok"
            assert (await session.send("hi", key="k")).is_duplicate
            assert await session.cancel(reason=Shout("r"), by=Shout("o")) == "unknown"


@pytest.mark.parametrize("part", [Text(text=5), 5, None])  # type: ignore[arg-type]
async def test_a_part_that_is_no_text_is_refused(app: App, part: object) -> None:
    await refused(Code.INVALID_ARGUMENT, app=app, text=[part])


@pytest.mark.parametrize("given", [5, 0, "x", ["x"]])
async def test_a_plugin_input_that_is_no_mapping_is_refused(app: App, given: object) -> None:
    rt = await app.open(ScriptedModel(say("ok")))
    with pytest.raises(Error) as caught:
        await (await rt.session("s", agent="a")).send("hi", plugin_input=given)  # type: ignore[arg-type]
    assert caught.value.code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize("timeout", [[1], {}, b"1s", 10**400, float("nan"), object()])
def test_a_timeout_that_is_no_duration_is_refused(timeout: object) -> None:
    with pytest.raises(Error) as caught:
        Agent("a", "sim:echo", tool_timeout=timeout)  # type: ignore[arg-type]
    assert caught.value.code is Code.AGENT_INVALID


async def test_text_that_is_not_unicode_is_refused(app: App) -> None:
    error = await refused(Code.INVALID_TEXT, app=app, text="a\ud800b")
    assert "surrogate" in error.because


async def test_a_huge_input_is_refused_and_says_how_large_it_may_be(app: App) -> None:
    error = await refused(Code.INPUT_TOO_LARGE, app=app, text="x" * 300_000)
    assert "262144" in error.because


async def test_an_unknown_agent_is_named_with_those_that_exist(app: App) -> None:
    rt = await app.open(ScriptedModel(say("ok")))
    with pytest.raises(Error) as caught:
        await rt.session("s", agent="b")
    assert caught.value.code is Code.AGENT_UNKNOWN
    assert "a" in caught.value.because


async def test_an_unknown_session_is_said_to_be_unknown(app: App) -> None:
    rt = await app.open(ScriptedModel(say("ok")))
    ghost = rt.get_session("ghost")
    for ask in (ghost.send("hi"), ghost.why(), ghost.messages(), ghost.cancel()):
        with pytest.raises(Error) as caught:
            await ask
        assert caught.value.code is Code.SESSION_UNKNOWN
    assert await ghost.delete() is False


async def test_the_same_key_is_one_input_and_other_content_a_conflict(app: App) -> None:
    rt = await app.open(ScriptedModel(say("ok")))
    session = await rt.session("s", agent="a")
    first = await session.send("hi", key="k")
    again = await session.send("hi", key="k")
    assert (again.turn_id, again.is_duplicate) == (first.turn_id, True)
    with pytest.raises(Error) as caught:
        await session.send("other", key="k")
    assert caught.value.code is Code.INPUT_KEY_CONFLICT
    await first.result(timeout=10)
    assert len([message for message in await session.messages() if message.role == "user"]) == 1


async def test_hostile_names_stay_apart(app: App) -> None:
    seen: list[str] = []

    @tool
    def note(ctx: ToolContext) -> str:
        """Note."""
        seen.append(ctx.idempotency_key)
        return ctx.session_id

    rt = await app.open(ScriptedModel(call("note"), say("ok")), note)
    for name in HOSTILE:
        await (await rt.session(name, agent="a")).ask("go", key="same key everywhere", timeout=10)
    assert len(set(seen)) == len(HOSTILE)
    assert {info.id for info in await rt.list_sessions()} == set(HOSTILE)


async def test_a_session_belongs_to_its_agent(app: App) -> None:
    model = ScriptedModel(say("ok"))
    async with Runtime(app.new_store(), agents=[Agent("a", model=model), Agent("b", model=model)]) as rt:
        await (await rt.session("s", agent="a")).ask("hi")
        with pytest.raises(Error) as caught:
            await rt.session("s", agent="b")
        assert caught.value.code is Code.SESSION_AGENT_CONFLICT
        with pytest.raises(Error) as caught:
            await rt.session("new")
        assert caught.value.code is Code.SESSION_UNKNOWN


async def test_a_cursor_that_is_none_is_refused(app: App) -> None:
    rt = await app.open(ScriptedModel(say("ok")))
    session = await rt.session("s", agent="a")
    await session.ask("hi")
    for text in ("nonsense", "!!!", "ä", "MTox"):
        with pytest.raises(Error) as caught:
            session.events(after=text)
        assert caught.value.code is Code.INVALID_CURSOR


@pytest.mark.parametrize(
    "url", ["", "sqlite://app.db", "sqlite:///", "mysql://x", "memory", ":memory:", "sqlite:app.db", "postgresql"]
)
def test_an_address_that_names_no_store_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_DB", "nonsense://")
    with pytest.raises(Error) as caught:
        Runtime(url)
    assert caught.value.code is Code.STORE_URL_INVALID
    assert "sqlite:///app.db" in caught.value.hint


async def test_an_option_that_would_be_ignored_is_refused(app: App) -> None:
    rt = await app.open(ScriptedModel(say("ok")))
    session = await rt.session("s", agent="a")
    for work in (
        lambda: session.send("x", mode="interrupt", replace_key="d"),
        lambda: session.send("x", mode="steer", model="sim:echo"),
        lambda: session.send("x", mode="steer", plugin_input={"crm": 7}),
    ):
        with pytest.raises(Error) as caught:
            await work()
        assert caught.value.code is Code.INVALID_ARGUMENT
    assert await rt.list_sessions() == ()


async def test_answers_of_the_wrong_type_answer_nothing(app: App) -> None:
    rt = await app.open(ScriptedModel(say("ok")))
    session = await rt.session("s", agent="a")
    await session.ask("hi")
    no: Any = "sold out"
    for work in (
        lambda: rt.resolve("k", error=no),
        lambda: session.resolve("go", error=no),
        lambda: session.post_result("t.1.0", error=no),
        lambda: session.post_results(no),
        lambda: session.post_results([no]),  # type: ignore[arg-type]
    ):
        with pytest.raises(Error) as caught:
            await work()
        assert caught.value.code is Code.INVALID_ARGUMENT


async def test_a_slip_never_stops_or_takes_back_more_than_was_meant(app: App) -> None:
    model = HeldModel(("go", say("ok", exact=True)), ("next", say("ok", exact=True)))
    rt = await app.open(model)
    session = await rt.session("s", agent="a")
    first = await session.send("go")
    await in_its_turn(model, session)
    queued = [await session.send("next") for _ in range(2)]
    turns: list[Any] = ["", "  ", 0, [], False, "a\x00b"]  # what is no turn's id is never "the one that runs"
    for turn in turns:
        with pytest.raises(Error) as caught:
            await session.cancel(turn)
        assert caught.value.code is Code.INVALID_ID, turn
    flags: list[Any] = ["no", 1, None]
    works: list[Callable[[Any], Awaitable[object]]] = [
        lambda flag: session.cancel_input(queued[0], include_later=flag),
        lambda flag: session.resolve("go", cancel=flag),
        lambda flag: rt.resolve("k", cancel=flag),
    ]
    for flag in flags:
        for work in works:
            with pytest.raises(Error) as caught:
                await work(flag)
            assert caught.value.code is Code.INVALID_ARGUMENT, flag
    model.go[0].set()
    for sent in (first, *queued):
        assert (await sent.result(10)).text == "ok"


async def test_a_name_that_one_store_could_not_hold_is_refused_by_all(app: App) -> None:
    rt = await app.open(ScriptedModel(say("ok")))
    session = await rt.session("s", agent="a")
    await session.ask("hi")
    with pytest.raises(Error) as caught:
        await session.pause(by="a\x00b")
    assert caught.value.code is Code.INVALID_TEXT
    for id in ("a\x00b", "apr_\x00", "%", "_"):
        with pytest.raises(Error) as caught:
            await rt.approvals.get(id)
        assert caught.value.code is Code.APPROVAL_UNKNOWN


@pytest.mark.parametrize("name", [None, 5, b"x", "", "a b", "\ud800"])
def test_a_clients_tool_that_cannot_be_is_refused_in_our_words(name: Any) -> None:
    given: Any = object()
    for work in (
        lambda: client_tool(name, "Look.", {"type": "object"}),
        lambda: client_tool("look", "Look.", name),
        lambda: client_tool("look", "Look.", given),
    ):
        with pytest.raises(Error) as caught:
            work()
        assert caught.value.code is Code.TOOL_INVALID


async def test_a_runtime_is_used_inside_its_block(tmp_path: Path) -> None:
    rt = Runtime(f"sqlite:///{tmp_path / 's.db'}", agents=[Agent("a", model="sim:echo")])
    with pytest.raises(Error) as caught:
        await rt.session("s", agent="a")
    assert caught.value.code is Code.RUNTIME_CLOSED
    async with rt:
        session = await rt.session("s", agent="a")
    with pytest.raises(Error) as caught:
        await session.send("hi")
    assert caught.value.code is Code.RUNTIME_CLOSED


async def test_a_forked_runtime_is_refused(tmp_path: Path) -> None:
    async with Runtime(f"sqlite:///{tmp_path / 's.db'}", agents=[Agent("a", model="sim:echo")]) as rt:
        session = await rt.session("s", agent="a")
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            said = "nothing"
            try:
                session.send("hi").send(None)
            except Error as problem:
                said = problem.code.value
            finally:
                os.write(writing, said.encode())
                os._exit(0)
        await asyncio.to_thread(os.waitpid, pid, 0)
        assert os.read(reading, 100) == b"runtime_forked"
        assert await session.ask("still here?")


def test_an_agent_without_a_model_gets_a_hint() -> None:
    with pytest.raises(Error, match="agent 'a' has no model") as caught:
        Agent("a")  # pyright: ignore[reportCallIssue] - type checkers notice it too
    assert caught.value.code is Code.AGENT_INVALID
    assert 'model="openai:gpt-5.2"' in caught.value.hint


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"name": ""}, Code.AGENT_INVALID),
        ({"name": "two words"}, Code.AGENT_INVALID),
        ({"name": "a", "max_iterations": 0}, Code.AGENT_INVALID),
        ({"name": "a", "model": "sim:nothing"}, Code.MODEL_UNKNOWN),
        ({"name": "a", "model": "opanai:gpt-5.2"}, Code.MODEL_UNKNOWN),
        ({"name": "a", "model_settings": {"t": float("nan")}}, Code.INVALID_JSON),
        ({"name": "a", "tools": [print]}, Code.TOOL_INVALID),
    ],
)
def test_an_agent_that_cannot_work_is_refused_when_it_is_made(wrong: dict[str, object], code: Code) -> None:
    with pytest.raises(Error) as caught:
        Agent(**{"model": "sim:echo", **wrong})  # type: ignore[arg-type]
    assert caught.value.code is code
