"""Bedrock over a real connection: nothing of it is recorded, so what it says is written by hand and read by its SDK."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from struct import pack
from typing import Any

import pytest

from perdure import Agent, Runtime
from perdure.codec import decode, encode
from perdure.ids import TurnId
from perdure.models.protocol import ModelError, ModelRequest, ProviderCall, adopt
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of, ref_of
from perdure.store.memory.store import MemoryStore
from perdure.vocab.messages import Message, Reply, Text
from perdure.vocab.outcomes import LlmCallOutcome
from perdure.vocab.records import EffectSettled
from tests.providers.asking import KEY, ask, model_at, said
from tests.providers.loopback import Answer, Loopback, answer

MODEL = "us.anthropic.claude-haiku-4-5-20251001-v1:0"
USAGE = {"inputTokens": 12, "outputTokens": 5, "totalTokens": 17}


def framed(kind: str, payload: dict[str, Any], *, exception: bool = False) -> bytes:
    """One message of an AWS event stream: lengths, a checksum, headers, the payload, a checksum."""
    named = {":exception-type" if exception else ":event-type": kind, ":content-type": "application/json"}
    named[":message-type"] = "exception" if exception else "event"
    headers = b"".join(
        pack("!B", len(name)) + name.encode() + pack("!BH", 7, len(text)) + text.encode()
        for name, text in named.items()
    )
    body = json.dumps(payload).encode()
    prelude = pack("!II", 16 + len(headers) + len(body), len(headers))
    begun = prelude + pack("!I", zlib.crc32(prelude)) + headers + body
    return begun + pack("!I", zlib.crc32(begun))


def stream(*frames: bytes, cut: bool = False) -> Answer:
    return Answer(b"".join(frames), content_type="application/vnd.amazon.eventstream", cut=cut)


START = framed("messageStart", {"role": "assistant"})
HELLO = framed("contentBlockDelta", {"delta": {"text": "Hello"}, "contentBlockIndex": 0})
END = (
    framed("contentBlockStop", {"contentBlockIndex": 0}),
    framed("messageStop", {"stopReason": "end_turn"}),
    framed("metadata", {"usage": USAGE, "metrics": {"latencyMs": 1}}),
)


async def test_bedrock_reply_is_streamed() -> None:
    async with Loopback([stream(START, HELLO, *END)]).running() as server:
        heard = await ask(model_at(server.url, "bedrock", MODEL), said("hi"))
    assert heard.deltas == ["Hello"]
    assert heard.reply is not None
    assert (heard.reply.finish, heard.reply.usage.input, heard.reply.usage.output) == ("stop", 12, 5)
    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"


async def test_bedrock_reply_contains_text_and_tool_calls() -> None:
    frames = (
        START,
        framed("contentBlockDelta", {"delta": {"text": "I look."}, "contentBlockIndex": 0}),
        framed("contentBlockStop", {"contentBlockIndex": 0}),
        framed(
            "contentBlockStart",
            {"start": {"toolUse": {"toolUseId": "tooluse_1", "name": "look"}}, "contentBlockIndex": 1},
        ),
        framed("contentBlockDelta", {"delta": {"toolUse": {"input": '{"at":'}}, "contentBlockIndex": 1}),
        framed("contentBlockDelta", {"delta": {"toolUse": {"input": '"x"}'}}, "contentBlockIndex": 1}),
        framed("contentBlockStop", {"contentBlockIndex": 1}),
        framed("messageStop", {"stopReason": "tool_use"}),
        END[2],
    )
    async with Loopback([stream(*frames)]).running() as server:
        heard = await ask(model_at(server.url, "bedrock", MODEL), said("hi", stream=False))
    assert heard.reply is not None
    text, asked = heard.reply.parts
    assert isinstance(text, Text)
    assert text.text == "I look."
    assert isinstance(asked, ProviderCall)
    assert (asked.name, json.loads(asked.arguments), asked.provider_id) == ("look", {"at": "x"}, "tooluse_1")
    assert heard.reply.finish == "tool_calls"


@pytest.mark.parametrize(
    ("status", "name", "message", "kind", "retryable"),
    [
        (429, "ThrottlingException", "slow down", "rate_limit", True),
        (403, "AccessDeniedException", "no", "auth", False),
        (503, "ServiceUnavailableException", "later", "unavailable", True),
        (400, "ValidationException", "Input is too long for requested model.", "too_large", False),
        (400, "ValidationException", "wrong", "invalid", False),
    ],
)
async def test_bedrock_errors_are_mapped_to_kinds(
    status: int, name: str, message: str, kind: str, retryable: bool
) -> None:
    given = answer({"message": message}, status=status, x_amzn_errortype=name)
    async with Loopback([given]).running() as server:
        with pytest.raises(ModelError) as caught:
            await ask(model_at(server.url, "bedrock", MODEL), said("hi"))
    assert (caught.value.error.kind, caught.value.error.retryable) == (kind, retryable)
    assert len(server.asked) == 1, "the SDK tried again by itself"


async def test_a_stream_that_breaks_is_no_reply() -> None:
    broken = framed("modelStreamErrorException", {"message": "oops"}, exception=True)
    for given in (stream(START, HELLO), stream(START, HELLO, cut=True), stream(START, HELLO, broken)):
        async with Loopback([given]).running() as server:
            with pytest.raises(ModelError) as caught:
                await ask(model_at(server.url, "bedrock", MODEL), said("hi"))
        assert caught.value.error.retryable, caught.value


async def test_a_turn_asks_again_when_it_is_silent() -> None:
    """The SDK reads in a thread that cannot be stopped: the turn goes on without it."""
    whole = stream(START, HELLO, *END)
    stuck = replace(stream(START, HELLO), hold=True)
    async with Loopback([whole, stuck], always=lambda _: whole).running() as server:
        model = model_at(server.url, "bedrock", MODEL)
        await ask(model, said("hi"))  # what an SDK does before its first question is silence too
        agent = Agent("a", model=model, stall_timeout=1)
        async with Runtime(MemoryStore(SystemClock()), agents=[agent]) as rt:
            session = await rt.session("s", agent="a")
            assert await session.ask("hi") == "Hello"
            told = [row.record for row in await core_of(rt).store.read(ref_of(session).stream)]
    outcomes = [one.outcome for one in told if isinstance(one, EffectSettled)]
    errors = [one.error.kind for one in outcomes if isinstance(one, LlmCallOutcome) and one.error]
    assert set(errors) == {"stall"}


def block(index: int, *deltas: dict[str, Any]) -> list[bytes]:
    grown = [framed("contentBlockDelta", {"delta": delta, "contentBlockIndex": index}) for delta in deltas]
    return [*grown, framed("contentBlockStop", {"contentBlockIndex": index})]


def ended(reason: str) -> tuple[bytes, bytes]:
    return framed("messageStop", {"stopReason": reason}), END[2]


async def test_bedrock_receives_its_thinking_in_the_next_request() -> None:
    thought = {"reasoningContent": {"text": "hm"}}, {"reasoningContent": {"signature": "U0lH"}}
    hidden = {"reasoningContent": {"redactedContent": "UkVE"}}
    frames = (START, *block(0, *thought), *block(1, hidden), *block(2, {"text": "Hi"}), *ended("end_turn"))
    async with Loopback([stream(*frames), stream(START, HELLO, *END)]).running() as server:
        model = model_at(server.url, "bedrock", MODEL)
        heard = await ask(model, said("hi"))
        assert heard.reply is not None
        assert heard.thoughts == ["hm"]
        reply = decode(encode(adopt(heard.reply, turn=TurnId("t"), iteration=1)), Reply)
        later = (Message(role="assistant", parts=reply.parts), *said("and now?").messages)
        await ask(model, ModelRequest("m", "", (*said("hi").messages, *later), ()))
    content = server.asked[1].json["messages"][1]["content"]
    assert content == [
        {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "U0lH"}}},
        {"reasoningContent": {"redactedContent": "UkVE"}},
        {"text": "Hi"},
    ]


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("guardrail_intervened", "content_filter"), ("max_tokens", "length"), ("model_context_window_exceeded", "length")],
)
async def test_how_it_ends_a_reply(reason: str, finish: str) -> None:
    async with Loopback([stream(START, HELLO, *ended(reason))]).running() as server:
        heard = await ask(model_at(server.url, "bedrock", MODEL), said("hi"))
    assert heard.reply is not None
    assert heard.reply.finish == finish


async def test_arguments_that_broke_off_are_no_call() -> None:
    begun = {"start": {"toolUse": {"toolUseId": "tooluse_1", "name": "look"}}, "contentBlockIndex": 0}
    frames = (
        START,
        framed("contentBlockStart", begun),
        *block(0, {"toolUse": {"input": '{"at'}}),
        *ended("max_tokens"),
    )
    async with Loopback([stream(*frames)]).running() as server:
        heard = await ask(model_at(server.url, "bedrock", MODEL), said("hi"))
    assert heard.reply is not None
    [call] = adopt(heard.reply, turn=TurnId("t"), iteration=1).calls
    assert (call.args, call.malformed) == ({}, '{"at')


async def test_bedrock_reply_is_read_without_streaming() -> None:
    content = [{"text": "Hello"}]
    whole = {"output": {"message": {"role": "assistant", "content": content}}, "stopReason": "end_turn"}
    async with Loopback([answer({**whole, "usage": USAGE, "metrics": {"latencyMs": 1}})]).running() as server:
        heard = await ask(model_at(server.url, "bedrock", MODEL), said("hi", stream=False, max_tokens=100))
    assert server.asked[0].path.endswith("/converse")
    assert heard.reply is not None
    assert (heard.reply.usage.input, heard.reply.usage.output) == (12, 5)
