"""Tools and conversations of Pydantic AI in ours, and ours in theirs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic_ai import ModelRetry, RunContext
from pydantic_ai import Tool as TheirTool
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.toolsets import FunctionToolset

from perdure import Agent, Error, Runtime
from perdure.models.providers.history import from_pydantic_ai, to_pydantic_ai
from perdure.models.scripted import ScriptedModel, call, calls, say
from perdure.observe.verify import verify
from perdure.runtime.internals import core_of
from perdure.session.fold import CODE
from perdure.tools.pydantic_ai import from_tools, from_toolset
from perdure.vocab.messages import ImagePart, Message, Text, ToolCall, ToolResultPart
from perdure.vocab.records import EffectStarted
from tests.providers.asked import PNG


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of each kind."""
    if request.param == "postgres":
        return request.getfixturevalue("postgres_url")
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 's.db'}"


@dataclass
class Bank:
    balance: int = 7


def balance(ctx: RunContext[Bank], account: str) -> dict[str, object]:
    """The balance of an account.

    Args:
        account: Which one.
    """
    if account == "nobody":
        raise ModelRetry("There is no such account.")
    return {"account": account, "cents": ctx.deps.balance, "call": ctx.tool_call_id}


async def chart(size: int = 1) -> BinaryContent:
    """A chart."""
    return BinaryContent(PNG * size, media_type="image/png")


def results(history: tuple[Message, ...]) -> list[ToolResultPart]:
    return [part for message in history for part in message.parts if isinstance(part, ToolResultPart)]


async def test_their_tools_run_as_ours(url: str) -> None:
    tools = from_tools(balance, TheirTool(chart), effects={"balance": "pure"})
    assert [(one.name, one.effect) for one in tools] == [("balance", "pure"), ("chart", "once")]
    assert tools[0].parameters_schema["properties"]["account"]["description"] == "Which one."
    asked = calls(
        call("balance", account="a"), call("balance", account="nobody"), call("balance", account=3), call("chart")
    )
    model = ScriptedModel(asked, say("done"))
    agent = Agent("a", model=model, tools=tools)
    async with Runtime(url, agents=[agent], deps=Bank()) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("go")
        told = results(await session.messages())
        history = await session.messages()
        begun = [row.record for row in await session.journal() if isinstance(row.record, EffectStarted)]
    assert told[0].output["cents"] == 7
    assert told[0].output["call"] == told[0].call
    assert told[1].output["error"] == "There is no such account."
    assert told[2].is_error
    assert any(isinstance(part, ImagePart) for part in history[2].parts)
    assert [one.effect for one in begun if one.id == "c1.3.1"] == ["once"], "a tool of unknown effect is once"


async def test_a_toolset_gives_its_tools_and_asks_for_approval_here(url: str) -> None:
    toolset: FunctionToolset[Bank] = FunctionToolset([TheirTool(balance, requires_approval=True)])
    tools = await from_toolset(toolset)
    agent = Agent("a", model=ScriptedModel(call("balance", account="a"), say("done")), tools=tools)
    async with Runtime(url, agents=[agent], deps=Bank()) as rt:
        session = await rt.session("s", agent="a")
        sent = await session.send("go")
        async for question in rt.approvals.watch():
            await rt.approvals.approve(question.id, by="ana")
            break
        assert (await sent.result(30)).status == "finished"
        [told] = results(await session.messages())
    assert told.output["cents"] == 7


def test_an_effect_of_nothing_is_refused() -> None:
    with pytest.raises(Error, match="unknown tool: blance"):
        from_tools(balance, effects={"blance": "pure"})


THEIRS = [
    ModelRequest(
        [UserPromptPart(["What is this?", BinaryContent(PNG, media_type="image/png")])], instructions="Be brief."
    ),
    ModelResponse(
        [
            ThinkingPart("hm", signature="s", provider_name="anthropic"),
            TextPart("I look."),
            ToolCallPart("look", {"at": "x"}, "call_1"),
        ]
    ),
    ModelRequest([ToolReturnPart("look", {"seen": 1}, "call_1")]),
    ModelResponse([TextPart("A dot.")]),
]


def test_their_conversation_becomes_ours_and_theirs_again() -> None:
    ours = from_pydantic_ai(ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(list(THEIRS))))
    assert ours.instructions == "Be brief."
    assert [message.role for message in ours.messages] == ["user", "assistant", "tool", "assistant"]
    assert [type(part).__name__ for part in ours.messages[0].parts] == ["Text", "ImagePart"]
    [asked] = [part for part in ours.messages[1].parts if isinstance(part, ToolCall)]
    assert (asked.name, asked.args, asked.provider_id) == ("look", {"at": "x"}, "call_1")
    [result] = [part for part in ours.messages[2].parts if isinstance(part, ToolResultPart)]
    assert (result.call, result.output) == (asked.id, {"seen": 1})
    bytes_by_hash = {blob.hash: blob.data for blob in ours.blobs}
    back = to_pydantic_ai(ours.messages, instructions=ours.instructions, attachments=bytes_by_hash)
    assert [message.kind for message in back] == ["request", "response", "request", "response"]
    assert isinstance(back[1], ModelResponse)
    assert [part.part_kind for part in back[1].parts] == ["text", "tool-call"], "a thought is dropped without its route"
    assert isinstance(back[2], ModelRequest)
    [returned] = back[2].parts
    assert isinstance(returned, ToolReturnPart)
    assert (returned.tool_call_id, returned.content) == ("call_1", {"seen": 1})
    assert back[0].instructions == "Be brief." if isinstance(back[0], ModelRequest) else False


async def test_a_session_is_told_in_their_format(url: str) -> None:
    agent = Agent(
        "a", model=ScriptedModel(call("balance", account="a"), say("Seven.", exact=True)), tools=from_tools(balance)
    )
    async with Runtime(url, agents=[agent], deps=Bank()) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("How much?")
        told = to_pydantic_ai(await session.messages())
    again = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(told))
    assert [message.kind for message in again] == ["request", "response", "request", "response"]
    assert isinstance(again[-1], ModelResponse)
    assert again[-1].text == "Seven."
    assert Text(text="Seven.") in from_pydantic_ai(again).messages[-1].parts


LONGER = [
    *THEIRS,
    ModelRequest([UserPromptPart("And both of these?")]),
    ModelResponse([ToolCallPart("look", {"at": "y"}, "call_1"), ToolCallPart("look", {"at": "z"}, "call_2")]),
    ModelRequest(
        [
            ToolReturnPart("look", "far too dark", "call_2", outcome="retried"),
            ToolReturnPart("look", ["a", {"b": 1}], "call_1"),
        ]
    ),
    ModelResponse([TextPart("One of them, and I look again."), ToolCallPart("look", {"at": "z"}, "call_3")]),
]


async def test_their_conversation_becomes_a_session_that_goes_on(url: str) -> None:
    given = from_pydantic_ai(ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(list(LONGER))))
    model = ScriptedModel(say("Gladly.", exact=True))
    async with Runtime(url, agents=[Agent("a", model=model)]) as rt:
        session = await rt.import_session("s", given, agent="a")
        [info] = await core_of(rt).session_streams()
        assert (
            verify(info, await session.journal(), await core_of(rt).store.load(info.stream, code=CODE)).problems == ()
        )
        before = await session.messages()
        roles = [message.role for message in before]
        assert roles[:4] == ["user", "assistant", "tool", "assistant"]
        assert roles[4:8] == ["user", "assistant", "tool", "assistant"]
        results = [part for message in before for part in message.parts if isinstance(part, ToolResultPart)]
        calls = [part for message in before for part in message.parts if isinstance(part, ToolCall)]
        assert [one.call for one in results] == [one.id for one in calls]
        assert len({one.id for one in calls}) == 4, "ids that were used twice there are not here"
        assert (results[0].output, results[1].output) == ({"seen": 1}, ["a", {"b": 1}])
        assert "far too dark" in str(results[2].output)
        assert "this call had no result" in str(results[3].output)
        assert await session.ask("Go on.") == "Gladly."
        [asked] = model.requests
        assert asked.messages[:8] == before[:8], "the model is shown what was said there"
        told = to_pydantic_ai(await session.messages(), attachments={blob.hash: blob.data for blob in given.blobs})
        assert [one.part_kind for message in told for one in message.parts].count("tool-return") == 4
        picture = told[0].parts[0]
        assert isinstance(picture, UserPromptPart)
        assert any(isinstance(one, BinaryContent) and one.data == PNG for one in picture.content)
        with pytest.raises(Error, match="export_invalid"):
            await rt.import_session("t", from_pydantic_ai(THEIRS[1:]), agent="a")
        with pytest.raises(Error, match="session_exists"):
            await rt.import_session("s", given, agent="a")
