"""Requests: the same bytes for the same conversation, and no opaque parts to another route."""

# It reads the JSON of others.
# pyright: basic
from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from perdure.ids import CallId, TurnId
from perdure.models.protocol import MadeFile, ModelError, ModelReply, ModelRequest, ProviderCall, adopt
from perdure.vocab.blobs import blob_of
from perdure.vocab.effects import ToolChoice
from perdure.vocab.messages import (
    AttachmentRef,
    File,
    Message,
    Opaque,
    Part,
    Reply,
    Text,
    Thinking,
    ToolCall,
    ToolResultPart,
)
from perdure.vocab.tools import ToolDefinition
from perdure.vocab.usage import Usage
from tests.providers import spoken
from tests.providers.asked import BLOB, PICTURE, PNG
from tests.providers.asking import ask, model_at
from tests.providers.loopback import Loopback
from tests.providers.spoken import WIRES, base_of

LOOK = ToolDefinition(
    name="look",
    description="Look.",
    parameters={"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
)
SAY = ToolDefinition(name="say", description="Say.", parameters={"type": "object", "properties": {}})


def user(*parts: Part) -> Message:
    return Message(role="user", parts=parts)


def assistant(*parts: Part) -> Message:
    return Message(role="assistant", parts=parts)


def called(number: int, provider_id: str) -> tuple[Message, Message]:
    id = CallId(f"0190-turn.{number}.0")
    call = ToolCall(id=id, name="look", args={"at": "x", "deep": [1, {"b": 2, "a": 1}]}, provider_id=provider_id)
    result = ToolResultPart(call=id, name="look", output={"seen": 1}, provider_id=provider_id)
    return assistant(Text(text="I look."), call), Message(role="tool", parts=(result,))


def request(*messages: Message, **settings: Any) -> ModelRequest:
    settings = {"cache": True, **settings}
    return ModelRequest("m", "Be brief.", messages, (LOOK, SAY), settings=settings, attachments={BLOB.hash: PNG})


async def bodies(provider: str, *requests: ModelRequest, model: str = "") -> list[bytes]:
    """Return the bodies sent for these requests."""
    answers = [spoken.reply(provider, "ok") for _ in requests]
    async with Loopback(answers).running() as server:
        asked = model_at(base_of(provider, server.url), provider, model or WIRES[provider])
        for one in requests:
            await ask(asked, one)
    return [one.body for one in server.asked]


CONVERSATION = (
    user(Text(text="hi"), PICTURE),
    *called(1, "call_0"),
    *called(2, "call_0"),
    assistant(Text(text="Seen.")),
    user(Text(text="and now?")),
)


def turns(body: bytes) -> tuple[list[Any], dict[str, Any]]:
    """The messages of a request, without the marks that tell a cache where to end; and the rest of it."""
    parsed = _unmarked(json.loads(body))
    place = next(name for name in ("messages", "input", "contents") if name in parsed)
    return parsed.pop(place), parsed


def _unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _unmarked(one) for name, one in value.items() if name != "cache_control"}
    return [_unmarked(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("provider", WIRES)
async def test_a_longer_conversation_begins_with_the_bytes_of_the_shorter(provider: str) -> None:
    lengths = [index + 1 for index, message in enumerate(CONVERSATION) if message.role != "assistant"]
    sent = await bodies(provider, *(request(*CONVERSATION[:length]) for length in lengths))
    for shorter, longer in pairwise(sent):
        (before, around), (after, same) = turns(shorter), turns(longer)
        assert json.dumps(after[: len(before)]) == json.dumps(before)
        assert json.dumps(same) == json.dumps(around), "instructions, tools and settings stay as they were"
    assert (await bodies(provider, request(*CONVERSATION)))[0] == sent[-1], "the same conversation, the same bytes"


async def test_caching_is_asked_for_where_it_can_be() -> None:
    [anthropic] = await bodies("anthropic", request(*CONVERSATION[:1]))
    assert b'"cache_control"' in anthropic
    [without] = await bodies("anthropic", request(*CONVERSATION[:1], cache=False))
    assert b'"cache_control"' not in without
    [chat] = await bodies("openai-chat", request(*CONVERSATION[:1]))
    assert b"cache" not in chat, "an intent that a provider cannot follow is left out, and nothing fails"


async def test_ids_that_a_server_uses_twice_are_told_apart() -> None:
    [sent] = await bodies("openai-compatible", request(*CONVERSATION))
    messages = json.loads(sent)["messages"]
    made = [call["id"] for one in messages for call in one.get("tool_calls") or []]
    answered = [one["tool_call_id"] for one in messages if one["role"] == "tool"]
    assert made == answered
    assert made[0] == "call_0"
    assert len(set(made)) == 2


def thoughtful(route: str) -> Message:
    return assistant(
        Thinking(text="hm", signature="U0lHTkVE", route=route, state={"id": "rs_1"}),
        Text(text="Well.", state={"id": "msg_9"}, route=route),
        ToolCall(id=CallId("t.1.0"), name="look", args={"at": "x"}, provider_id="toolu_1", route=route),
    )


RESULT = Message(
    role="tool", parts=(ToolResultPart(call=CallId("t.1.0"), name="look", output=1, provider_id="toolu_1"),)
)


@pytest.mark.parametrize("provider", ["openai", "anthropic", "google"])
async def test_opaque_parts_are_sent_to_their_own_route_only(provider: str) -> None:
    async with Loopback([spoken.reply(provider, "ok") for _ in range(3)]).running() as server:
        base = base_of(provider, server.url)
        model = model_at(base, provider, WIRES[provider])
        wire = "responses" if provider == "openai" else provider
        shown = {"openai": f"{base}/", "anthropic": base, "google": base}[provider]
        own = f"{wire} {shown} {WIRES[provider]}"
        for route in (
            own,
            own.replace(WIRES[provider], "another-model"),
            f"{wire} https://elsewhere {WIRES[provider]}",
        ):
            await ask(model, request(user(Text(text="hi")), thoughtful(route), RESULT, user(Text(text="go on"))))
    with_it, other_model, other_place = (one.body for one in server.asked)
    for body in (other_model, other_place):
        assert b"U0lHTkVE" not in body
        assert b"hm" not in body
        assert b"toolu_1" not in body
        assert b"msg_9" not in body
    assert b"U0lHTkVE" in with_it
    if provider == "openai":
        assert b"msg_9" in with_it


async def test_a_file_and_a_picture_of_a_tool_are_shown() -> None:
    csv = blob_of(b"a,b\n1,2\n", "text/csv")
    file = File(ref=AttachmentRef(hash=csv.hash, media_type="text/csv", size=8, name="t.csv"))
    call, result = called(1, "call_0")
    seen = Message(role="tool", parts=(*result.parts, PICTURE))
    asked = ModelRequest(
        "m", "", (user(Text(text="hi"), file), call, seen), (LOOK,), attachments={csv.hash: csv.data, BLOB.hash: PNG}
    )
    for provider in ("openai", "anthropic"):
        [sent] = await bodies(provider, asked)
        assert b"1,2" in sent or b"YSxiCjEsMgo" in sent
        assert b"iVBORw0KGgo" in sent
    zipped = blob_of(b"PK", "application/zip")
    odd = File(ref=AttachmentRef(hash=zipped.hash, media_type="application/zip", size=2))
    with pytest.raises(ModelError) as caught:
        await bodies("anthropic", ModelRequest("m", "", (user(odd),), (), attachments={zipped.hash: b"PK"}))
    assert caught.value.error.kind == "invalid"


async def test_tools_and_how_they_may_be_used_are_told() -> None:
    choices: tuple[ToolChoice, ...] = ("required", "none", "auto")
    for choice in choices:
        asked = ModelRequest("m", "", (user(Text(text="hi")),), (LOOK,), tool_choice=choice)
        [sent] = await bodies("openai-chat", asked)
        body = json.loads(sent)
        assert body["tool_choice"] == choice
        assert [tool["function"]["name"] for tool in body["tools"]] == ["look"]


SHAPE = {"name": "Answer", "schema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}


@pytest.mark.parametrize("provider", WIRES)
async def test_an_answer_in_a_form_is_asked_for(provider: str) -> None:
    asked = ModelRequest("m", "", (user(Text(text="hi")),), (), output_spec=SHAPE)
    [sent] = await bodies(provider, asked)
    body = json.loads(sent)
    native = {
        "openai": lambda: body["text"]["format"]["type"] == "json_schema",
        "openai-chat": lambda: body["response_format"]["type"] == "json_schema",
        "google": lambda: body["generationConfig"]["responseMimeType"] == "application/json",
    }.get(provider)
    assert native() if native else b"integer" in sent


def test_files_that_a_model_made_are_kept_and_referred_to() -> None:
    reply = ModelReply(
        (Text(text="Here."), MadeFile(PNG, "image/png"), MadeFile(b"x", "text/csv")), "stop", Usage(), "m"
    )
    adopted = adopt(reply, turn=TurnId("t"), iteration=1)
    assert adopted.parts[1:] == (
        PICTURE,
        File(ref=AttachmentRef(hash=blob_of(b"x", "text/csv").hash, media_type="text/csv", size=1)),
    )


async def test_unknown_provider_part_is_returned_unchanged() -> None:
    state = {
        "content": "short",
        "id": None,
        "provider_name": "anthropic",
        "provider_details": None,
        "part_kind": "compaction",
    }
    async with Loopback([spoken.reply("anthropic", "ok") for _ in range(2)]).running() as server:
        model = model_at(server.url, "anthropic", WIRES["anthropic"])
        for route in (f"anthropic {server.url} {WIRES['anthropic']}", "elsewhere"):
            part = Opaque(kind="compaction", state=state, route=route)
            await ask(model, request(user(Text(text="hi")), assistant(part, Text(text="Well.")), user(Text(text="go"))))
    own, other = (one.body for one in server.asked)
    assert b"compaction" in own
    assert b"compaction" not in other


def test_a_reply_keeps_what_belongs_to_its_calls() -> None:
    call = ProviderCall("p1", "look", '{"at": "x"}', state={"details": {"thought_signature": "s"}}, route="r")
    adopted: Reply = adopt(ModelReply((call,), "tool_calls", Usage(), "m"), turn=TurnId("t"), iteration=1)
    assert adopted.calls[0].state == {"details": {"thought_signature": "s"}}
    assert adopted.calls[0].route == "r"
