"""Results of turns in a form, with each way of asking for one: wrong ones are asked for again, and not for ever."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from perdure import Agent, Runtime, TurnResult
from perdure.runtime.clock import SystemClock
from perdure.store.memory.store import MemoryStore
from tests.providers import shapes, spoken
from tests.providers.asking import model_at
from tests.providers.loopback import Answer, Loopback, answer
from tests.providers.spoken import WIRES, base_of


class Capital(BaseModel):
    city: str


RIGHT, WRONG = '{"city": "Paris"}', '{"town": "Paris"}'
CUT = '{"city": "Par'


async def asked(provider: str, *answers: Answer, **settings: Any) -> tuple[TurnResult, Loopback]:
    async with Loopback(list(answers)).running() as server:
        model = model_at(base_of(provider, server.url), provider, WIRES[provider])
        agent = Agent("a", model=model, output_type=Capital, model_settings=settings)
        async with Runtime(MemoryStore(SystemClock()), agents=[agent]) as rt:
            session = await rt.session("s", agent="a")
            return await (await session.send("capital of France?")).result(60), server


@pytest.mark.parametrize("provider", WIRES)
async def test_invalid_json_output_is_requested_again(provider: str) -> None:
    replies = ("Paris, of course.", WRONG, f"```json\n{RIGHT}\n```")
    result, server = await asked(provider, *(spoken.reply(provider, text) for text in replies))
    assert result.output == Capital(city="Paris")
    assert (result.usage.calls, len(server.asked)) == (3, 3)
    assert b"it is not JSON" in server.asked[1].body
    assert b"city" in server.asked[2].body


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_turn_stops_when_its_output_stays_invalid(provider: str) -> None:
    result, server = await asked(provider, *[spoken.reply(provider, WRONG)] * 4)
    assert (result.status, result.reason) == ("stopped", "output_invalid")
    assert len(server.asked) == 3


def cut_short(provider: str) -> Answer:
    if provider == "openai-chat":
        return shapes.chat({"content": CUT}, finish="length")
    incomplete = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    return answer(shapes.response(shapes.said(CUT), **incomplete))


@pytest.mark.parametrize("provider", ["openai-chat", "openai"])
async def test_truncated_output_is_requested_again(provider: str) -> None:
    right = {"openai-chat": shapes.chat({"content": RIGHT}), "openai": answer(shapes.response(shapes.said(RIGHT)))}
    result, server = await asked(provider, cut_short(provider), right[provider], stream=False)
    assert result.output == Capital(city="Paris")
    assert len(server.asked) == 2


async def test_a_refusal_is_not_asked_for_again() -> None:
    no = {"type": "refusal", "refusal": "No."}
    refused = shapes.response({**shapes.said(""), "content": [no]})
    for provider, given in (("openai-chat", shapes.chat({"refusal": "No."})), ("openai", answer(refused))):
        result, server = await asked(provider, given, stream=False)
        assert (result.status, result.reason) == ("stopped", "refused")
        assert len(server.asked) == 1
