"""A provider that keeps its line open and says nothing: the attempt is given up, and the turn asks again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

import pytest

from perdure import Agent, Code, Error, Runtime
from perdure.models.protocol import HiddenDelta, ModelEvent, TextPiece, UsageSoFar
from perdure.runtime.agent import setup_of
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of, ref_of
from perdure.store.memory.store import MemoryStore
from perdure.vocab.outcomes import LlmCallOutcome
from perdure.vocab.records import EffectSettled
from tests.providers import spoken
from tests.providers.asking import ask, model_at, said
from tests.providers.loopback import Loopback
from tests.providers.spoken import WIRES, base_of


@pytest.mark.parametrize("provider", WIRES)
async def test_pings_are_not_words(provider: str) -> None:
    stuck = spoken.pinging(provider, *spoken.speech(provider, "Hel"))
    heard: list[ModelEvent] = []
    async with Loopback([stuck]).running() as server:
        model = model_at(base_of(provider, server.url), provider, WIRES[provider])

        async def listen() -> None:
            async for event in model.stream(said("hi")):
                heard.append(event)

        listening = asyncio.create_task(listen())
        pinged = asyncio.create_task(server.pinged.wait())
        await asyncio.wait([listening, pinged], return_when=asyncio.FIRST_COMPLETED)
        assert not listening.done(), "the reply would have been awaited"
        listening.cancel()
        await asyncio.wait([listening])
    assert [event for event in heard if not isinstance(event, UsageSoFar)] == [TextPiece("Hel")]


async def test_a_turn_asks_again_when_a_provider_only_pings() -> None:
    reply = spoken.reply("anthropic", "Good morning")
    stuck = spoken.pinging("anthropic", *spoken.speech("anthropic", "Hel"))
    async with Loopback([reply, stuck], always=lambda _: reply).running() as server:
        model = model_at(server.url, "anthropic", WIRES["anthropic"])
        await ask(model, said("hi"))  # what an SDK does before its first question is silence too
        agent = Agent("a", model=model, stall_timeout=1)
        async with Runtime(MemoryStore(SystemClock()), agents=[agent]) as rt:
            session = await rt.session("s", agent="a")
            assert await session.ask("hi") == "Good morning"
            told = [row.record for row in await core_of(rt).store.read(ref_of(session).stream)]
    outcomes = [one.outcome for one in told if isinstance(one, EffectSettled)]
    errors = [one.error for one in outcomes if isinstance(one, LlmCallOutcome) and one.error]
    assert {(one.kind, one.message) for one in errors} == {("stall", "provider stream stall: no tokens for 1s")}


@pytest.mark.parametrize("provider", [wire for wire in WIRES if wire != "google"])
async def test_the_arguments_of_a_call_are_words_while_they_are_written(provider: str) -> None:
    given = spoken.stream(provider, *spoken.calling(provider, "look", '{"wh', 'ere": "', 'here"}'), hold=True)
    async with Loopback([given]).running() as server:
        model = model_at(base_of(provider, server.url), provider, WIRES[provider])
        async with aclosing(cast("AsyncGenerator[ModelEvent]", model.stream(said("hi")))) as events:
            heard: list[ModelEvent] = []
            while len([one for one in heard if not isinstance(one, UsageSoFar)]) < 4:
                heard.append(await anext(events))
    assert not [one for one in heard if isinstance(one, TextPiece)]
    assert [one.chars for one in heard if isinstance(one, HiddenDelta)] == [4, 4, 7, 6]


async def test_a_limit_is_a_duration() -> None:
    for wrong in (0, -1, "soon", True):
        with pytest.raises(Error) as caught:
            Agent("a", model="sim:echo", stall_timeout=wrong)
        assert caught.value.code is Code.AGENT_INVALID
    assert setup_of(Agent("a", model="sim:echo")).limits.stall_ms == 120_000
    assert setup_of(Agent("a", model="sim:echo", stall_timeout="5m")).limits.stall_ms == 300_000
    assert setup_of(Agent("a", model="sim:echo", stall_timeout=None)).limits.stall_ms is None
