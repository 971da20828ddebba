"""A model that refuses ends its turn as refused, whatever its provider calls that."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, Runtime
from perdure.runtime.clock import SystemClock
from perdure.store.memory.store import MemoryStore
from tests.providers import spoken
from tests.providers.asking import model_at
from tests.providers.loopback import Loopback
from tests.providers.spoken import WIRES, base_of

PIECE = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
NO = "I will not do that."
CHAT: list[dict[str, Any]] = [
    {**PIECE, "choices": [{"index": 0, "delta": {"role": "assistant", "refusal": NO}, "finish_reason": None}]},
    {**PIECE, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
]
ANTHROPIC: list[dict[str, Any]] = [
    *spoken.speech("anthropic", "I"),
    {"type": "content_block_stop", "index": 0},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "refusal", "stop_sequence": None},
        "usage": {"output_tokens": 1},
    },
    {"type": "message_stop"},
]
GOOGLE: list[dict[str, Any]] = [{"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 3}}]


@pytest.mark.parametrize(("provider", "pieces"), [("openai-chat", CHAT), ("anthropic", ANTHROPIC), ("google", GOOGLE)])
async def test_a_refusal_ends_the_turn(provider: str, pieces: list[dict[str, Any]]) -> None:
    async with Loopback([spoken.stream(provider, *pieces)]).running() as server:
        agent = Agent("a", model=model_at(base_of(provider, server.url), provider, WIRES[provider]))
        async with Runtime(MemoryStore(SystemClock()), agents=[agent]) as rt:
            session = await rt.session("s", agent="a")
            result = await (await session.send("do harm")).result(30)
    assert (result.status, result.reason) == ("stopped", "refused")
    assert len(server.asked) == 1, "a refusal is an answer"
