"""A session leaves as a file and arrives as one: complete, elsewhere, and without going on with foreign work."""

from __future__ import annotations

import asyncio
import json

import pytest

from perdure import Agent, Attachment, Code, Error, Runtime, tool
from perdure.models.scripted import ScriptedModel, call, say
from perdure.vocab.messages import Text, ToolResult
from perdure.vocab.records import TurnEnded
from tests.scenarios.conftest import Desk
from tests.scenarios.test_content import PNG, Looking


async def exported(desk: Desk) -> bytes:
    rt = await desk.open(Looking())
    session = await rt.session("one", agent="a")
    await session.ask(["look", Attachment("image/png", PNG)], key="k1")
    await session.ask("more")
    await session.set_title("Old")
    await session.set_tags(["vip"])
    return await session.export()


async def test_a_session_goes_on_elsewhere(desk: Desk) -> None:
    data = await exported(desk)
    model = Looking()
    async with Runtime("memory://", agents=[Agent("a", model=model)], tenant="elsewhere") as rt:
        session = await rt.import_session("two", data)
        assert [m.role for m in await session.history()] == ["user", "assistant", "user", "assistant"]
        assert (await session.title(), await session.tags()) == ("Old", ("vip",))
        again = await session.send(["look", Attachment("image/png", PNG)], key="k1")
        assert again.duplicate, "the same key is still the same input"
        await session.ask("and?")
        assert list(model.requests[0].attachments.values()) == [PNG]
        assert len(model.requests[0].messages) == 5


async def test_it_may_come_back_under_another_name_and_agent(desk: Desk) -> None:
    data = await exported(desk)
    agents = [Agent("a", model=Looking()), Agent("b", model=Looking())]
    async with Runtime(desk.new_store(), agents=agents) as rt:
        session = await rt.import_session("two", data, agent="b")
        await session.ask("hi")
        info = await rt.store.stream(session.stream)
        assert info is not None
        assert info.agent == "b"
        with pytest.raises(Error) as caught:
            await rt.import_session("one", data)
        assert caught.value.code is Code.SESSION_EXISTS
        with pytest.raises(Error) as caught:
            await rt.import_session("three", data, agent="nobody")
        assert caught.value.code is Code.AGENT_UNKNOWN


async def test_work_that_was_under_way_is_not_continued(desk: Desk) -> None:
    begun, charged = asyncio.Event(), 0

    @tool(effect="once")
    async def charge() -> str:
        """Charge."""
        nonlocal charged
        charged += 1
        begun.set()
        await asyncio.sleep(0.3)
        return "charged"

    rt = await desk.open(ScriptedModel(call("charge"), say("ok")), charge)
    session = await rt.session("one", agent="a")
    sent = await session.send("go")
    await begun.wait()
    data = await session.export()
    other = await rt.import_session("two", data)
    ended = [row.record for row in await other.rows() if isinstance(row.record, TurnEnded)]
    assert [(end.status, end.reason) for end in ended] == [("stopped", "imported")]
    results = [p for m in await other.history() for p in m.parts if isinstance(p, ToolResult)]
    assert [result.output["code"] for result in results] == ["outcome_unknown"]
    await sent.result(timeout=20)
    assert charged == 1
    await other.ask("go on", timeout=20)


async def test_a_damaged_export_is_refused_whole(desk: Desk) -> None:
    data = await exported(desk)
    lines = data.splitlines(keepends=True)
    newer = lines[0].replace(b'"v":1', b'"v":2')
    for wrong in (
        b"",
        b"hello",
        b"{}",
        b"".join(lines[:-1]),
        b"".join(lines[1:]),
        b"".join([lines[0], *lines[2:]]),
        newer + b"".join(lines[1:]),
        data.replace(b"look", b"LOOK"),
        b"\xff" + data,
    ):
        async with Runtime("memory://", agents=[Agent("a", model=Looking())]) as rt:
            with pytest.raises(Error) as caught:
                await rt.import_session("two", wrong)
            assert caught.value.code is Code.EXPORT_INVALID
            assert await rt.sessions() == ()


async def test_every_line_is_json_and_says_what_it_is(desk: Desk) -> None:
    lines = [json.loads(line) for line in (await exported(desk)).splitlines()]
    assert lines[0]["type"] == "perdure_session"
    assert lines[0]["v"] == 1
    assert {line["type"] for line in lines[1:-1]} == {"record", "blob"}
    assert lines[-1]["type"] == "end"


async def test_plain_messages_are_a_past_to_start_from(desk: Desk) -> None:
    model = Looking()
    rt = await desk.open(model)
    messages = [
        {"role": "user", "content": "My name is Ann"},
        {"role": "user", "content": ["this is me", Attachment("image/png", PNG)]},
        {"role": "assistant", "content": "Hello Ann"},
        {"role": "user", "content": "Are you there?"},
    ]
    session = await rt.import_session("s", messages)
    await session.ask("What is my name?")
    shown = model.requests[0]
    assert [m.role for m in shown.messages] == ["user", "assistant", "user"]
    texts = [part.text for m in shown.messages for part in m.parts if isinstance(part, Text)]
    assert texts == ["My name is Ann", "this is me", "Hello Ann", "Are you there?", "What is my name?"]
    assert list(shown.attachments.values()) == [PNG]


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "assistant", "content": "hi"}],
        [{"role": "system", "content": "be nice"}],
        [{"role": "user"}],
        ["hello"],
        [{"role": "user", "content": "hi"}, {"role": "tool", "content": "x"}],
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": ""}],
    ],
)
async def test_messages_that_are_no_conversation_are_refused(desk: Desk, messages: object) -> None:
    rt = await desk.open(Looking())
    with pytest.raises(Error) as caught:
        await rt.import_session("s", messages)  # type: ignore[arg-type]
    assert caught.value.code is Code.EXPORT_INVALID
    assert await rt.sessions() == ()
