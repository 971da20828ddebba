"""Replies without end: stopped while they arrive, and not requested again."""

from __future__ import annotations

import gzip

import pytest

from perdure import Agent, Runtime
from perdure.models.protocol import ModelError
from perdure.models.providers import clients, plain_events
from perdure.runtime.clock import SystemClock
from perdure.store.memory import MemoryStore
from tests.providers import spoken
from tests.providers.asking import ask, model_at, said
from tests.providers.loopback import Answer, Loopback
from tests.providers.spoken import WIRES, base_of


async def stopped(answer: Answer, provider: str = "openai-chat") -> ModelError:
    async with Loopback([answer]).running() as server:
        with pytest.raises(ModelError) as caught:
            await ask(model_at(base_of(provider, server.url), provider, WIRES[provider]), said("hi", max_tokens=9))
    assert not caught.value.error.retryable
    return caught.value


@pytest.mark.parametrize("provider", ["openai-chat", "openai", "anthropic", "google"])
async def test_s14_event_without_end_stops_the_reply(monkeypatch: pytest.MonkeyPatch, provider: str) -> None:
    monkeypatch.setattr(plain_events, "MAX_EVENT_BYTES", 10_000)
    problem = await stopped(Answer(b"data: " + b"A" * 1_000_000, content_type="text/event-stream"), provider)
    assert (problem.error.kind, problem.error.message) == (
        "too_large",
        "an event of the stream has more than 10000 bytes",
    )


async def test_s14_lines_without_an_event_stop_the_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_events, "MAX_EVENT_BYTES", 10_000)
    problem = await stopped(Answer(b"data: A\n" * 10_000, content_type="text/event-stream"))
    assert problem.error.kind == "too_large"


async def test_s14_response_above_the_limit_stops_the_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MAX_RESPONSE_BYTES", 10_000)
    body = gzip.compress(b": ping\n\n" * 10_000)
    problem = await stopped(Answer(body, content_type="text/event-stream", headers={"content-encoding": "gzip"}))
    assert (problem.error.kind, problem.error.message) == ("too_large", "the response has more than 10000 bytes")


async def test_s24_reply_above_the_limit_is_stopped_as_it_arrives() -> None:
    endless = spoken.stream("openai-chat", *spoken.speech("openai-chat", *["A" * 10_000] * 60))
    async with Loopback([Answer(endless.body, content_type="text/event-stream", hold=True)]).running() as server:
        agent = Agent("a", model=model_at(f"{server.url}/v1", "openai-chat", "gpt-4o"))
        async with Runtime(MemoryStore(SystemClock()), agents=[agent]) as rt:
            session = await rt.session("s", agent="a")
            result = await (await session.send("go")).result(20)
        assert (result.status, result.reason) == ("stopped", "provider_error")
        assert "too_large: the reply was stopped" in result.message
        assert len(server.asked) == 1
