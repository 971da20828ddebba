"""Turns with a model of a provider: attempts are in the log, and the key is not."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from decimal import Decimal

import pytest
from pydantic import BaseModel

from perdure import Agent, Runtime, tool
from perdure.codec import encode
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of, ref_of
from perdure.store.memory.store import MemoryStore
from perdure.vocab.messages import Text, Thinking, ToolCall
from perdure.vocab.outcomes import LlmCallOutcome
from perdure.vocab.records import EffectSettled, TurnEnded
from tests.providers import spoken
from tests.providers.asking import KEY, model_at
from tests.providers.cassettes import OWN, read
from tests.providers.loopback import Answer, Loopback, answer
from tests.providers.spoken import WIRES, base_of


@tool(effect="pure")
def get_capital(country: str) -> str:
    """The capital of a country."""
    return "London" if country == "England" else "Paris"


@asynccontextmanager
async def running(agent: Agent) -> AsyncGenerator[Runtime]:
    async with Runtime(MemoryStore(SystemClock()), agents=[agent]) as rt:
        yield rt


async def records(rt: Runtime, session: str) -> list[object]:
    return [row.record for row in await core_of(rt).store.read(ref_of(rt.get_session(session)).stream)]


@pytest.mark.parametrize("provider", WIRES)
async def test_attempts_are_ours_and_in_the_log(provider: str) -> None:
    limited = answer(spoken.error(provider, "slow", code="x", status=429), status=429, retry_after="0")
    cut = spoken.stream(provider, *spoken.speech(provider, "Hel"), cut=True)
    async with Loopback([limited, cut, spoken.reply(provider, "Hello")]).running() as server:
        agent = Agent("a", model=model_at(base_of(provider, server.url), provider, WIRES[provider]))
        async with running(agent) as rt:
            session = await rt.session("s", agent="a")
            assert await session.ask("hi") == "Hello"
            told = await records(rt, "s")
    attempts = [one.outcome for one in told if isinstance(one, EffectSettled) and ".sleep" not in one.id]
    kinds = [one.error.kind if isinstance(one, LlmCallOutcome) and one.error else "reply" for one in attempts]
    assert kinds == ["rate_limit", "stream_cut", "reply"]
    assert len(server.asked) == 3
    assert all(KEY.encode() not in encode(one) for one in told)
    assert any(KEY in value for asked in server.asked for value in asked.headers.values()), "the provider got it"


async def test_a_recorded_conversation_with_tools_runs_as_a_turn() -> None:
    recorded = read(OWN / "openai_responses" / "openai_responses_stream.yaml")
    async with Loopback([one.answer for one in recorded]).running() as server:
        model = model_at(f"{server.url}/v1", "openai", "gpt-4o")
        async with running(Agent("a", model=model, tools=[get_capital])) as rt:
            session = await rt.session("s", agent="a")
            assert await session.ask("What is the capital of France?") == "The capital of France is Paris."
            history = await session.messages()
    assert [message.role for message in history] == ["user", "assistant", "tool", "assistant"]
    [call] = [part for part in history[1].parts if isinstance(part, ToolCall)]
    assert (call.name, call.args) == ("get_capital", {"country": "France"})
    second = server.asked[1].json["input"]
    assert [one["call_id"] for one in second if one.get("type") == "function_call"] == [call.provider_id]
    assert [one["output"] for one in second if one.get("type") == "function_call_output"] == ["Paris"]


async def test_thinking_is_kept_with_its_signature_and_given_back() -> None:
    recorded = read(OWN / "anthropic" / "anthropic_model_thinking_part_stream.yaml")
    again = spoken.reply("anthropic", "Mind the gap.")
    async with Loopback([recorded[0].answer, again]).running() as server:
        agent = Agent("a", model=model_at(server.url, "anthropic", "claude-haiku-4-5"))
        async with running(agent) as rt:
            session = await rt.session("s", agent="a")
            await session.ask("How do I cross the street?")
            assert await session.ask("And the river?") == "Mind the gap."
            history = await session.messages()
    [thinking] = [part for part in history[1].parts if isinstance(part, Thinking)]
    assert thinking.signature.startswith("EvMC")
    blocks = server.asked[1].json["messages"][1]["content"]
    assert blocks[0] == {"type": "thinking", "thinking": thinking.text, "signature": thinking.signature}
    assert blocks[1]["text"] == "".join(part.text for part in history[1].parts if isinstance(part, Text))


class Capital(BaseModel):
    city: str


async def test_a_form_that_the_model_misses_is_asked_for_again() -> None:
    provider = "openai-chat"
    given: list[Answer] = [spoken.reply(provider, '{"town": 1}'), spoken.reply(provider, '{"city": "Paris"}')]
    async with Loopback([*given]).running() as server:
        model = model_at(base_of(provider, server.url), provider, WIRES[provider])
        async with running(Agent("a", model=model, output_type=Capital)) as rt:
            session = await rt.session("s", agent="a")
            result = await (await session.send("capital of France?")).result(30)
    assert result.output == Capital(city="Paris")
    assert result.usage.calls == 2
    first, second = (one.json for one in server.asked)
    assert first["response_format"]["json_schema"]["schema"]["required"] == ["city"]
    assert "does not have the form" in second["messages"][-1]["content"]


async def test_a_missing_key_ends_the_turn_and_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    async with running(Agent("a", model="openai:gpt-5.2")) as rt:
        session = await rt.session("s", agent="a")
        sent = await session.send("hi")
        result = await sent.result(30)
        told = await records(rt, "s")
    assert result.status == "stopped"
    [ended] = [one for one in told if isinstance(one, TurnEnded)]
    assert ended.reason == "provider_error"
    assert 'no API key for provider "openai": OPENAI_API_KEY is not set' in ended.message


async def test_prices_are_the_librarys_and_what_it_does_not_know_is_unknown() -> None:
    for name, cost in (("gpt-4o", "0.00008"), ("gpt-nobody-knows", None)):
        async with Loopback([spoken.reply("openai-chat", "Hello")]).running() as server:
            agent = Agent("a", model=model_at(f"{server.url}/v1", "openai-chat", name))
            async with running(agent) as rt:
                session = await rt.session("s", agent="a")
                usage = (await (await session.send("hi")).result(30)).usage
        assert (usage.input, usage.output, usage.calls) == (12, 5, 1)
        assert usage.cost == (None if cost is None else Decimal(cost))


async def test_usage_of_a_cut_stream_is_counted() -> None:
    cut = spoken.stream("anthropic", *spoken.speech("anthropic", "Hel"), cut=True)
    async with Loopback([cut, spoken.reply("anthropic", "Hello")]).running() as server:
        agent = Agent("a", model=model_at(server.url, "anthropic", "claude-haiku-4-5"))
        async with running(agent) as rt:
            session = await rt.session("s", agent="a")
            usage = (await (await session.send("hi")).result(30)).usage
            ledger = await session.usage_entries()
    assert (usage.input, usage.output, usage.calls) == (24, 6, 2)
    assert [(one.effect, one.usage.input, one.usage.output) for one in ledger] == [("m1.1", 12, 1), ("m1.2", 12, 5)]
