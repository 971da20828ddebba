"""Answers that no provider should give, and some do: none of them is lost, costs nothing, or spoils the session."""

# It reads the JSON of others.
# pyright: basic
from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from perdure import Agent, Runtime, UsageLimits
from perdure.ids import TurnId
from perdure.models.protocol import ModelError, ModelRequest, kept
from perdure.runtime.clock import SystemClock
from perdure.store.memory import MemoryStore
from perdure.vocab.messages import Message, Opaque, Text
from tests.providers import shapes, spoken
from tests.providers.asking import ask, model_at, said
from tests.providers.loopback import Answer, Loopback, events
from tests.providers.spoken import WIRES, base_of

ANSWER_S = 20


def without_usage(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_usage(one) for name, one in value.items() if name not in ("usage", "usageMetadata")}
    return [without_usage(one) for one in value] if isinstance(value, list) else value


def untold(provider: str) -> Answer:
    """A whole reply of five characters that says nothing of its cost."""
    pieces = [without_usage(one) for one in (*spoken.speech(provider, "Hel", "lo"), *spoken.ending(provider, "Hello"))]
    return spoken.stream(provider, *(one for one in pieces if one.get("choices") != []))


@pytest.mark.parametrize("provider", sorted(set(WIRES) - {"anthropic"}))
async def test_usage_of_a_reply_without_usage_is_estimated(provider: str) -> None:
    async with Loopback([untold(provider)]).running() as server:
        heard = await ask(model_at(base_of(provider, server.url), provider, WIRES[provider]), said("hi", max_tokens=9))
    assert heard.reply is not None
    usage = heard.reply.usage
    assert (usage.calls, usage.estimated, usage.priced, usage.output) == (1, 1, 0, 2), "a token for three characters"
    assert usage.input > 0


async def test_token_limit_holds_for_replies_without_usage() -> None:
    async with Loopback(always=lambda _: untold("openai-chat")).running() as server:
        model = model_at(f"{server.url}/v1", "openai-chat", "gpt-4o")
        agent = Agent("a", model=model, limits=UsageLimits(session_tokens=40))
        async with Runtime(MemoryStore(SystemClock()), agents=[agent]) as rt:
            session = await rt.session("s", agent="a")
            ends = [(await (await session.send("x" * 100)).result(ANSWER_S)).reason for _ in range(3)]
    assert ends == [None, "limit_reached", "limit_reached"]
    assert len(server.asked) == 1


@pytest.mark.parametrize("provider", WIRES)
async def test_a_stream_without_its_end_counts_with_what_it_had_written(provider: str) -> None:
    pieces = [without_usage(one) for one in spoken.speech(provider, "Hel", "lo")]
    broken = spoken.stream(provider, *pieces)
    async with Loopback(always=lambda _: broken).running() as server:
        model = model_at(base_of(provider, server.url), provider, WIRES[provider])
        agent = Agent("a", model=model, model_settings={"max_tokens": 9}, limits=UsageLimits(turn_tokens=40))
        async with Runtime(MemoryStore(SystemClock()), agents=[agent]) as rt:
            session = await rt.session("s", agent="a")
            result = await (await session.send("x" * 100)).result(ANSWER_S)
            usage = await session.usage()
    assert result.status == "stopped"
    assert usage.tokens > 40
    assert len(server.asked) == usage.calls == usage.estimated == 1, "the limit is reached, so it is not asked again"


async def test_an_answer_that_cannot_be_read_is_paid_for() -> None:
    async with Loopback([untold("anthropic")]).running() as server:
        with pytest.raises(ModelError) as caught:
            await ask(model_at(server.url, "anthropic", WIRES["anthropic"]), said("hi", max_tokens=9))
    assert (caught.value.error.kind, caught.value.error.retryable) == ("unavailable", True)
    assert (caught.value.spent.calls, caught.value.spent.estimated) == (1, 1)


def calling(**call: Any) -> Answer:
    made = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}} | call
    piece = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    deltas = [({"tool_calls": [made]}, None), ({}, "tool_calls")]
    ends = [piece | {"choices": [{"index": 0, "delta": one, "finish_reason": why}]} for one, why in deltas]
    usage = {"prompt_tokens": 12.5, "completion_tokens": 5, "total_tokens": 17.5}
    return events(*ends, piece | {"choices": [], "usage": usage}, done=True)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
async def test_numeric_id_and_fractional_token_count_are_converted() -> None:
    async with Loopback([calling(id=7)]).running() as server:
        heard = await ask(model_at(f"{server.url}/v1", "openai-compatible", "m"), said("hi"))
    assert heard.reply is not None
    [adopted] = kept(heard.reply, turn=TurnId("t"), iteration=1).calls
    assert (adopted.provider_id, adopted.name) == ("7", "look")
    assert (heard.reply.usage.input, heard.reply.usage.output) == (13, 5)


async def test_unreadable_opaque_parts_are_omitted_from_the_request() -> None:
    shape = next(one for one in shapes.SHAPES if one.name == "web search")
    async with Loopback([shape.answer, spoken.reply("anthropic", "ok")]).running() as server:
        model = model_at(server.url, "anthropic", shape.model)
        heard = await ask(model, said("hi", stream=False, max_tokens=9))
        assert heard.reply is not None
        reply = kept(heard.reply, turn=TurnId("t"), iteration=1)
        opaque = [part for part in reply.parts if isinstance(part, Opaque)]
        broken = tuple(
            replace(one, state={"part_kind": "of-long-ago"}) if one is opaque[-1] else one for one in reply.parts
        )
        messages = (
            *said("hi").messages,
            Message(role="assistant", parts=broken),
            Message(role="user", parts=(Text(text="on"),)),
        )
        again = await ask(model, ModelRequest("m", "", messages, (), settings={"max_tokens": 9}))
    assert len(opaque) == 2
    assert again.deltas == ["ok"], "the session goes on"
    sent = server.asked[1].body.decode()
    assert "It is " in sent
    assert "srvtoolu_1" not in sent, "a search without what it found would be refused"


async def test_unreadable_job_is_reported_as_lost() -> None:
    async with Loopback([]).running() as server:
        model = model_at(f"{server.url}/v1", "openai", "gpt-5.2")
        job = {"route": f"responses {server.url}/v1/ gpt-5.2", "response": {"kind": "of-long-ago"}}
        with pytest.raises(ModelError) as caught:
            await ask(model, ModelRequest("m", "", said("hi").messages, (), job=job))
    assert (caught.value.error.kind, caught.value.error.retryable) == ("job_lost", True)
    assert "is unreadable" in caught.value.error.message
