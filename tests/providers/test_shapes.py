"""Replies of every kind: read, stored with their opaque parts, and returned to their provider only."""

# It reads the JSON of others.
# pyright: basic
from __future__ import annotations

import json
from typing import Any

import pytest

from perdure import Agent, Runtime
from perdure.codec import decode, encode
from perdure.ids import TurnId
from perdure.models.protocol import ModelError, ModelRequest, adopt, made_files
from perdure.runtime.clock import SystemClock
from perdure.store.memory.store import MemoryStore
from perdure.vocab.messages import Message, Opaque, Part, Reply, Text, ToolCall, ToolResultPart
from tests.providers import shapes, spoken
from tests.providers.asking import ask, model_at, said
from tests.providers.loopback import Answer, Loopback, answer, events
from tests.providers.shapes import SHAPES, TEXT, Shape, deltas
from tests.providers.spoken import WIRES, base_of


def user(text: str) -> Message:
    return Message(role="user", parts=(Text(text=text),))


def after(reply: Reply) -> tuple[Message, ...]:
    """A conversation that goes on after a reply."""
    seen: list[Part] = [
        ToolResultPart(call=call.id, name=call.name, output="seen", provider_id=call.provider_id)
        for call in reply.calls
    ]
    next = Message(role="tool", parts=tuple(seen)) if seen else user("and now?")
    return (user("hi"), Message(role="assistant", parts=reply.parts), next)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.provider}: {shape.name}")
async def test_opaque_parts_are_returned_to_their_provider_only(shape: Shape) -> None:
    known = shape.provider in WIRES
    again = spoken.reply(shape.provider, "ok") if known else shapes.chat({"content": "ok"}, provider="X")
    async with Loopback([shape.answer, again]).running() as server:
        model = model_at(base_of(shape.provider, server.url), shape.provider, shape.model)
        heard = await ask(model, said("hi", stream=shape.streamed, max_tokens=4096))
        assert heard.reply is not None
        adopted = adopt(heard.reply, turn=TurnId("t"), iteration=1)
        reply = decode(encode(adopted), Reply)
        assert reply == adopted, "as it is stored"
        assert encode(reply) == encode(adopted)
        assert reply.text == shape.text
        assert (reply.usage.input, reply.usage.output) == (12, 5)
        bytes = {blob.hash: blob.data for blob in made_files(heard.reply)}
        request = ModelRequest("m", "", after(reply), (), attachments=bytes, settings={"stream": known})
        await ask(model, request)
    sent = server.asked[1].body.decode()
    for kept in shape.kept:
        assert kept in sent
    for other in set(WIRES) - {shape.provider}:
        async with Loopback([spoken.reply(other, "ok")]).running() as server:
            await ask(
                model_at(base_of(other, server.url), other, WIRES[other]),
                ModelRequest("m", "", request.messages, (), attachments=bytes),
            )
        sent = server.asked[0].body.decode()
        assert not [kept for kept in shape.kept if kept in sent]
        assert '"text": ""' not in sent
        assert '"text":""' not in sent


async def test_a_signature_without_words_survives_the_log() -> None:
    shape = next(one for one in SHAPES if one.name == "signed nothing")
    async with Loopback([shape.answer, answer(shapes.google({"text": "z"}))]).running() as server:
        model = model_at(server.url, "google", shape.model)
        agent = Agent("a", model=model, model_settings={"stream": False})
        async with Runtime(MemoryStore(SystemClock()), agents=[agent]) as rt:
            session = await rt.session("s", agent="a")
            assert await session.ask("hi") == "Hi"
            assert await session.ask("and now?") == "z"
    assert shape.kept[0] in server.asked[1].body.decode()


CUT = '{"at": "ver'
_INCOMPLETE = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
_CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": CUT}
_TOOL = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}


@pytest.mark.parametrize(
    ("provider", "given"),
    [
        ("openai-chat", shapes.chat({"tool_calls": [shapes.call(CUT)]}, finish="length")),
        ("openai-chat", shapes.chat_stream({"tool_calls": [shapes.call(CUT, at=0)]}, finish="length")),
        ("openai", answer(shapes.response(_CALL, **_INCOMPLETE))),
        (
            "openai",
            shapes.response_stream(
                {"type": "response.created", "response": shapes.response(status="in_progress", usage=None)},
                {"type": "response.output_item.added", "output_index": 0, "item": _CALL | {"arguments": ""}},
                {
                    "type": "response.function_call_arguments.delta",
                    "item_id": "fc_1",
                    "output_index": 0,
                    "delta": CUT,
                },
                {"type": "response.incomplete", "response": shapes.response(_CALL, **_INCOMPLETE)},
            ),
        ),
        (
            "anthropic",
            shapes.anthropic_stream((_TOOL, deltas("input_json_delta", "partial_json", CUT)), stop="max_tokens"),
        ),
    ],
)
async def test_arguments_that_broke_off_are_what_they_are(provider: str, given: Answer) -> None:
    async with Loopback([given]).running() as server:
        model = model_at(base_of(provider, server.url), provider, WIRES[provider])
        heard = await ask(model, said("hi", stream=given.content_type == "text/event-stream"))
    assert heard.reply is not None
    [call] = adopt(heard.reply, turn=TurnId("t"), iteration=1).calls
    assert (call.name, call.args, call.malformed) == ("look", {}, CUT)


@pytest.mark.parametrize(
    ("reason", "ends"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("IMAGE_RECITATION", "content_filter"),
        ("OTHER", "stop"),
        ("MALFORMED_FUNCTION_CALL", "unavailable"),
        ("MALFORMED_RESPONSE", "unavailable"),
        ("TOO_MANY_TOOL_CALLS", "unavailable"),
    ],
)
async def test_how_google_ends_a_reply(reason: str, ends: str) -> None:
    pieces = [shapes.google({"text": "Hel"}, finish=None), shapes.google(finish=reason)]
    async with Loopback([events(*pieces)]).running() as server:
        model = model_at(server.url, "google", "gemini-2.5-flash")
        if ends != "unavailable":
            heard = await ask(model, said("hi"))
            assert heard.reply is not None
            assert heard.reply.finish == ends
            return
        with pytest.raises(ModelError) as caught:
            await ask(model, said("hi"))
    assert (caught.value.error.kind, caught.value.error.retryable) == (ends, True)
    assert reason in caught.value.error.message
    assert caught.value.spent.output == 5


async def test_where_code_ran_is_told_to_the_next_question() -> None:
    container = {"id": "container_9", "expires_at": "2026-01-01T00:00:00Z", "skills": None}
    ran = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "bash_code_execution", "input": {"command": "ls"}}
    printed = {"type": "bash_code_execution_result", "stdout": "a", "stderr": "", "return_code": 0, "content": []}
    gave = {"type": "bash_code_execution_tool_result", "tool_use_id": "srvtoolu_1", "content": printed}
    first = shapes.anthropic(ran, gave, TEXT | {"text": "a"}, container=container)
    settings = {
        "stream": False,
        "max_tokens": 4096,
        "extra_body": {"tools": [{"type": "code_execution_20250825", "name": "x"}]},
    }
    async with Loopback([first, shapes.anthropic(TEXT | {"text": "b"})]).running() as server:
        model = model_at(server.url, "anthropic", "claude-sonnet-4-5")
        heard = await ask(model, said("hi", **settings))
        assert heard.reply is not None
        reply = adopt(heard.reply, turn=TurnId("t"), iteration=1)
        assert [part.kind for part in reply.parts if isinstance(part, Opaque)][-1] == "response"
        await ask(model, ModelRequest("m", "", after(reply), (), settings=settings))
    assert "container" not in server.asked[0].json
    assert server.asked[1].json["container"] == "container_9"


async def test_calls_have_ids_that_mistral_takes() -> None:
    call = ToolCall(id="t.1.0", name="look", args={}, provider_id="toolu_01ABCDEFGH", route="elsewhere")  # type: ignore[arg-type]
    async with Loopback([spoken.reply("openai-compatible", "ok")]).running() as server:
        model = model_at(f"{server.url}/v1", "mistral", "mistral-large-latest")
        await ask(model, ModelRequest("m", "", after(Reply(parts=(call,))), ()))
    _, made, result = server.asked[0].json["messages"]
    assert made["tool_calls"][0]["id"] == result["tool_call_id"]
    assert len(result["tool_call_id"]) == 9


FORM = {"name": "Answer", "schema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}


@pytest.mark.parametrize(
    ("provider", "model", "insists"),
    [
        ("deepseek", "deepseek-chat", False),
        ("groq", "llama-3.3-70b-versatile", False),
        ("groq", "openai/gpt-oss-20b", True),
        ("mistral", "mistral-large-latest", True),
        ("xai", "grok-4", True),
        ("ollama", "llama3.2", True),
        ("openrouter", "anthropic/claude-3.5-haiku", False),
    ],
)
async def test_output_form_is_sent_as_response_format_or_as_prompt(provider: str, model: str, insists: bool) -> None:
    async with Loopback([shapes.chat({"content": '{"n": 1}'}, provider="X")]).running() as server:
        asked = ModelRequest("m", "", (user("hi"),), (), output_spec=FORM, settings={"stream": False})
        await ask(model_at(f"{server.url}/v1", provider, model), asked)
    body: Any = server.asked[0].json
    assert (body.get("response_format", {}).get("type") == "json_schema") is insists
    assert ("integer" in json.dumps(body["messages"])) is not insists


async def test_impossible_model_name_is_refused_without_a_request() -> None:
    async with Loopback().running() as server:
        with pytest.raises(ModelError) as caught:
            await ask(model_at(f"{server.url}/v1", "openrouter", "gpt-5"), said("hi"))
    assert caught.value.error.kind == "invalid"
    assert not server.asked


async def test_thoughts_that_are_not_shown_are_still_written() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hmm"}]}
    where = {"item_id": "rs_1", "output_index": 0, "content_index": 0}
    given = shapes.response_stream(
        {"type": "response.created", "response": shapes.response(status="in_progress", usage=None)},
        {"type": "response.output_item.added", "output_index": 0, "item": thought | {"content": []}},
        *({"type": "response.reasoning_text.delta", "delta": text, **where} for text in ("h", "m", "m")),
        {"type": "response.completed", "response": shapes.response(thought)},
    )
    async with Loopback([given]).running() as server:
        heard = await ask(model_at(f"{server.url}/v1", "openai", "gpt-oss-120b"), said("hi"))
    assert heard.hidden == 3, "hidden output resets the stall timer"
    assert heard.reply is not None
    assert "hmm" in encode(heard.reply.parts).decode()


async def test_a_reply_that_is_paused_for_ever_is_given_up() -> None:
    def paused(_: object) -> Answer:
        return shapes.anthropic(TEXT | {"text": "…"}, stop="pause_turn", id=f"msg_{len(server.asked)}")

    async with Loopback(always=paused).running() as server:
        with pytest.raises(ModelError) as caught:
            await ask(model_at(server.url, "anthropic", "claude-haiku-4-5"), said("hi", stream=False, max_tokens=9))
    assert (caught.value.error.kind, caught.value.error.retryable) == ("unavailable", False)
    assert len(server.asked) == 11
    assert caught.value.spent.output == 55, "each was paid for"


async def test_tokens_that_a_server_tells_with_every_piece_are_counted_once() -> None:
    def piece(text: str, output: int, finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
        usage = {"prompt_tokens": 100, "completion_tokens": output, "total_tokens": 100 + output}
        return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]} | {
            "usage": usage
        }

    given = events(piece("He", 1), piece("llo", 2), piece("", 2, "stop"), done=True)
    async with Loopback([given]).running() as server:
        heard = await ask(model_at(f"{server.url}/v1", "openai-compatible", "m"), said("hi"))
    assert heard.reply is not None
    assert (heard.reply.usage.input, heard.reply.usage.output) == (100, 2)


ODD = {
    "nothing": Answer(b""),
    "null": answer(None),
    "an object": answer({}),
    "a list": answer([]),
    "an error with a good status": answer({"error": {"message": "no", "code": 500}}),
    "no choices": answer({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": []}),
    "half of an answer": answer({"id": "r", "content": None, "output": None, "candidates": None, "choices": None}),
}


@pytest.mark.parametrize("provider", WIRES)
async def test_unreadable_reply_is_a_retryable_error(provider: str) -> None:
    async with Loopback(list(ODD.values())).running() as server:
        model = model_at(base_of(provider, server.url), provider, WIRES[provider])
        for name in ODD:
            with pytest.raises(ModelError) as caught:
                await ask(model, said("hi", stream=False, max_tokens=9))
            assert caught.value.error.retryable, name
            assert caught.value.error.kind in ("unavailable", "stream_cut"), name
