"""Usage that a provider reports before its reply counts if the reply never comes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest

from perdure import Agent, Runtime, Session, ToolContext, tool
from perdure.events import TextDelta
from perdure.runtime.clock import SystemClock
from perdure.session.ledger import UsageEntry
from perdure.store.memory.store import MemoryStore
from perdure.tools.clients.completions import DirectRequest
from perdure.tools.context import completions_of
from perdure.vocab.usage import Usage
from tests.providers import shapes, spoken
from tests.providers.asking import model_at
from tests.providers.loopback import Answer, Loopback, answer
from tests.providers.spoken import WIRES

WRITTEN = "thirty characters are written."
TEXT = {"type": "text", "text": "I look."}


@asynccontextmanager
async def asking(answers: Sequence[Answer], **options: object) -> AsyncGenerator[tuple[Session, Loopback]]:
    async with Loopback(list(answers)).running() as server:
        model = model_at(server.url, "anthropic", WIRES["anthropic"])
        agent = Agent("a", model=model, **options)  # pyright: ignore[reportArgumentType] - passed on
        async with Runtime(MemoryStore(SystemClock()), agents=[agent]) as rt:
            yield await rt.session("s", agent="a"), server


async def lost(session: Session) -> UsageEntry:
    """The attempt that gave no reply."""
    [one] = [entry for entry in await session.usage_entries() if entry.usage.estimated]
    assert sum((entry.usage for entry in await session.usage_entries()), Usage()) == await session.usage()
    return one


async def test_a_stream_that_is_cut_costs_what_was_told_of_its_input() -> None:
    cut = spoken.stream("anthropic", *spoken.speech("anthropic", WRITTEN), cut=True)
    async with asking([cut, spoken.reply("anthropic", "Good morning")]) as (session, _):
        assert await session.ask("hi") == "Good morning"
        one = await lost(session)
    assert (one.usage.input, one.usage.output) == (12, 10), "the input as told, the output by what was written"
    assert (one.usage.calls, one.usage.priced) == (1, 1), "of a model whose price is known"


async def test_a_cancelled_turn_costs_what_was_told_of_its_input() -> None:
    stands = spoken.stream("anthropic", *spoken.speech("anthropic", WRITTEN), hold=True)
    async with asking([stands]) as (session, _):
        sent = await session.send("hi")
        async for event in sent.events():
            if isinstance(event, TextDelta):
                break
        await session.cancel()
        assert (await sent.result(30)).reason == "cancelled"
        one = await lost(session)
    assert (one.usage.input, one.usage.output, one.usage.priced) == (12, 10, 1)


async def test_cut_tool_completion_costs_its_reported_input() -> None:
    @tool(effect="idempotent")
    async def judge(ctx: ToolContext) -> str:
        """Judge."""
        request = DirectRequest("what do you think?", settings={"stream": True})
        return (await completions_of(ctx).complete(request, "judge")).text

    wants = shapes.anthropic({"type": "tool_use", "id": "t1", "name": "judge", "input": {}}, stop="tool_use")
    cut = spoken.stream("anthropic", *spoken.speech("anthropic", WRITTEN), cut=True)
    async with asking(
        [wants, cut, shapes.anthropic(TEXT)], tools=[judge], model_settings={"stream": False, "max_tokens": 9}
    ) as (session, _):
        await session.ask("hi")
        one = await lost(session)
    assert (one.source, one.usage.input, one.usage.output, one.usage.priced) == ("direct:judge", 12, 10, 1)


def paused(number: int) -> Answer:
    return shapes.anthropic(TEXT, stop="pause_turn", id=f"msg_{number}")


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_reply_that_fails_after_a_pause_costs_every_part_of_it(stream: bool) -> None:
    pause = shapes.anthropic_stream((TEXT, []), stop="pause_turn") if stream else paused(1)
    refused = answer(spoken.error("anthropic", "no", code="invalid_request_error", status=400), status=400)
    async with asking([pause, refused], model_settings={"stream": stream, "max_tokens": 9}) as (session, server):
        result = await (await session.send("hi")).result(30)
        ledger = await session.usage_entries()
    assert (result.status, len(server.asked)) == ("stopped", 2)
    assert [(one.usage.input, one.usage.output, one.usage.estimated) for one in ledger] == [(12, 5, 0)]


async def test_reply_cut_after_a_pause_costs_all_its_parts() -> None:
    pause = shapes.anthropic_stream((TEXT, []), stop="pause_turn")
    begins, *rest = spoken.speech("anthropic", WRITTEN)
    begins["message"]["id"] = "msg_2"
    cut = spoken.stream("anthropic", begins, *rest, cut=True)
    async with asking([pause, cut, spoken.reply("anthropic", "Good morning")]) as (session, server):
        assert await session.ask("hi") == "Good morning"
        one = await lost(session)
    assert len(server.asked) == 3
    assert one.usage.input == 24, "the input was sent twice, and charged twice"
    assert one.usage.output == 13, "37 characters"
