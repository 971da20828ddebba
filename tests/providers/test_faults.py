"""Faults of a provider, over a real connection: each has a kind, and asking once is asking once."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.models.protocol import ModelError
from perdure.vocab.outcomes import LlmError
from tests.providers import spoken
from tests.providers.asking import KEY, Heard, ask, model_at, said
from tests.providers.loopback import Answer, Loopback, answer
from tests.providers.spoken import WIRES, base_of

pytestmark = pytest.mark.parametrize("provider", WIRES)


async def failing(provider: str, given: Answer, **settings: Any) -> tuple[LlmError, Loopback]:
    """The error of one question, which was put once."""
    async with Loopback([given]).running() as server:
        model = model_at(base_of(provider, server.url), provider, WIRES[provider])
        with pytest.raises(ModelError) as caught:
            await ask(model, said("hi", **settings))
    assert len(server.asked) == 1, "the SDK tried again by itself"
    assert KEY not in caught.value.error.message
    return caught.value.error, server


async def test_a_reply_is_streamed_piece_by_piece(provider: str) -> None:
    async with Loopback([spoken.reply(provider, "Hel", "lo")]).running() as server:
        heard: Heard = await ask(model_at(base_of(provider, server.url), provider, WIRES[provider]), said("hi"))
    assert heard.deltas == ["Hel", "lo"]
    assert heard.reply is not None
    assert heard.reply.finish == "stop"
    assert (heard.reply.usage.input, heard.reply.usage.output) == (12, 5)
    assert heard.reply.model == f"{provider}:{WIRES[provider]}"


async def test_a_rate_limit_says_when_to_come_back(provider: str) -> None:
    body = spoken.error(provider, f"slow down, {KEY}", code="rate_limit_exceeded", status=429)
    error, _ = await failing(provider, answer(body, status=429, retry_after="7"))
    assert (error.kind, error.retryable, error.retry_after_ms, error.status) == ("rate_limit", True, 7000, 429)
    assert "slow down" in error.message


async def test_a_wait_that_is_too_long_is_not_waited_for(provider: str) -> None:
    body = spoken.error(provider, "tomorrow", code="rate_limit_exceeded", status=429)
    error, _ = await failing(provider, answer(body, status=429, retry_after="3600"))
    assert (error.kind, error.retryable) == ("rate_limit", False)


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (400, "invalid", False),
        (401, "auth", False),
        (403, "auth", False),
        (402, "quota", False),
        (404, "invalid", False),
        (408, "unavailable", True),
        (409, "unavailable", True),
        (413, "too_large", False),
        (500, "unavailable", True),
        (501, "unavailable", False),
        (503, "unavailable", True),
        (529, "unavailable", True),
    ],
)
async def test_a_status_has_a_meaning(provider: str, status: int, kind: str, retryable: bool) -> None:
    error, _ = await failing(provider, answer(spoken.error(provider, "no", code="x", status=status), status=status))
    assert (error.kind, error.retryable, error.status) == (kind, retryable, status)


async def test_a_conversation_that_is_too_long_is_told_as_such(provider: str) -> None:
    message, code, status = {
        "anthropic": ("prompt is too long: 250000 tokens > 200000 maximum", "invalid_request_error", 400),
        "google": (
            "The input token count (2000000) exceeds the maximum number of tokens allowed",
            "INVALID_ARGUMENT",
            400,
        ),
    }.get(provider, ("This model's maximum context length is 128000 tokens.", "context_length_exceeded", 400))
    error, _ = await failing(provider, answer(spoken.error(provider, message, code=code, status=status), status=status))
    assert (error.kind, error.retryable) == ("too_large", False)


async def test_credit_that_is_used_up_is_not_waited_for(provider: str) -> None:
    if provider == "google":
        pytest.skip("it has no such answer: RESOURCE_EXHAUSTED is a rate limit there")
    message, code, status = "You exceeded your current quota", "insufficient_quota", 429
    if provider == "anthropic":
        message, code, status = "Your credit balance is too low to access the Anthropic API.", "billing_error", 402
    error, _ = await failing(provider, answer(spoken.error(provider, message, code=code, status=status), status=status))
    assert (error.kind, error.retryable) == ("quota", False)


async def test_an_error_in_the_middle_of_a_stream_ends_it(provider: str) -> None:
    broken: dict[str, Any] = {
        "openai": {"type": "error", "code": "server_error", "message": "oops", "param": None, "sequence_number": 9},
        "anthropic": spoken.error(provider, "oops", code="api_error", status=500),
        "google": spoken.error(provider, "oops", code="INTERNAL", status=500),
    }.get(provider, {"error": {"message": "oops", "type": "server_error", "code": "server_error", "param": None}})
    error, _ = await failing(provider, spoken.stream(provider, *spoken.speech(provider, "Hel"), broken))
    assert error.retryable
    assert error.kind in ("unavailable", "stream_cut")


async def test_a_cut_stream_is_no_reply(provider: str) -> None:
    given = spoken.stream(provider, *spoken.speech(provider, "Hel", "lo"), cut=True)
    error, _ = await failing(provider, given)
    assert (error.kind, error.retryable) == ("stream_cut", True)


async def test_a_stream_that_ends_without_its_end_is_no_reply(provider: str) -> None:
    error, _ = await failing(provider, spoken.stream(provider, *spoken.speech(provider, "Hel", "lo")))
    assert (error.kind, error.retryable) == ("stream_cut", True)


async def test_a_stream_that_stands_still_is_given_up(provider: str) -> None:
    given = spoken.stream(provider, *spoken.speech(provider, "Hel"), hold=True)
    error, _ = await failing(provider, given, timeout=0.3)
    assert (error.kind, error.retryable) == ("stall", True)


async def test_invalid_response_is_reported_as_unavailable(provider: str) -> None:
    error, _ = await failing(provider, Answer(b"<html>bad gateway</html>", 502, "text/html"))
    assert (error.kind, error.retryable, error.status) == ("unavailable", True, 502)


async def test_refused_connection_is_reported_as_unavailable(provider: str) -> None:
    async with Loopback([]).running() as server:
        url = server.url
    with pytest.raises(ModelError) as caught:
        await ask(model_at(base_of(provider, url), provider, WIRES[provider]), said("hi"))
    assert (caught.value.error.kind, caught.value.error.retryable) == ("unavailable", True)


async def test_unknown_setting_is_refused(provider: str) -> None:
    async with Loopback([]).running() as server:
        for name in ("temprature", "max_retries"):
            with pytest.raises(ModelError, match=name):
                await ask(model_at(base_of(provider, server.url), provider, WIRES[provider]), said("hi", **{name: 1}))
    assert server.asked == []
