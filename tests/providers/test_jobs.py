"""Background jobs of a provider: found again by their ids, and charged once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest

from perdure import Agent, Runtime, Session, ToolContext, tool
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of, ref_of
from perdure.store.memory.store import MemoryStore
from perdure.tools.clients.completions import DirectRequest
from perdure.tools.context import completions_of
from perdure.vocab.outcomes import LlmCallOutcome
from perdure.vocab.records import EffectSettled, ModelJobBegun
from perdure.vocab.tools import EffectClass
from tests.providers import shapes, spoken
from tests.providers.asking import model_at
from tests.providers.loopback import Answer, Asked, Loopback, answer
from tests.scenarios.conftest import until

GONE = answer(spoken.error("openai", "no such response", code="not_found", status=404), status=404)
DONE = answer(spoken.job("completed", "Here it is."))


class Provider:
    """Counts what is bought, and answers questions about it."""

    def __init__(self, bought: Callable[[int], Answer], asked_for: Callable[[int], Answer]) -> None:
        self.purchases = self.looks = 0
        self.cancelled: list[str] = []
        self._bought = bought
        self._asked_for = asked_for

    def __call__(self, asked: Asked) -> Answer:
        if asked.path.endswith("/cancel"):
            self.cancelled.append(asked.path)
            return answer(spoken.job("cancelled"))
        if asked.method == "POST":
            self.purchases += 1
            return self._bought(self.purchases)
        self.looks += 1
        return self._asked_for(self.looks)


@asynccontextmanager
async def asking(provider: Provider, *, stream: bool = True) -> AsyncGenerator[tuple[Runtime, Session]]:
    async with Loopback(always=provider).running() as server:
        model = model_at(f"{server.url}/v1", "openai", "gpt-5.2")
        settings = {"openai_background": True, "stream": stream}
        agent = Agent("a", model=model, model_settings=settings)
        async with Runtime(MemoryStore(SystemClock()), agents=[agent]) as rt:
            yield rt, await rt.session("s", agent="a")


async def outcomes(rt: Runtime, session: Session) -> list[str]:
    told = [row.record for row in await core_of(rt).store.read(ref_of(session).stream)]
    ends = [one.outcome for one in told if isinstance(one, EffectSettled)]
    return [one.error.kind if one.error else "reply" for one in ends if isinstance(one, LlmCallOutcome)]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_line_that_breaks_costs_nothing(stream: bool) -> None:
    broken = Answer(b"", cut=True)
    provider = Provider(
        lambda _: spoken.job_begun(cut=True) if stream else answer(spoken.job("queued")),
        lambda look: broken if look == 1 else DONE,
    )
    async with asking(provider, stream=stream) as (rt, session):
        result = await (await session.send("go")).result(40)
        kinds = await outcomes(rt, session)
    assert result.text == "Here it is."
    assert provider.purchases == 1
    assert set(kinds[:-1]) <= {"stream_cut", "unavailable"}
    assert kinds[-1] == "reply"
    assert (result.usage.input, result.usage.output, result.usage.calls) == (12, 5, 1)


@pytest.mark.parametrize(
    "end", [GONE, answer(spoken.job("cancelled")), answer(spoken.job("failed"))], ids=["gone", "cancelled", "failed"]
)
async def test_a_job_that_is_lost_is_said_to_be_and_bought_anew(end: Answer) -> None:
    provider = Provider(
        lambda purchase: spoken.job_begun(cut=True) if purchase == 1 else spoken.reply("openai", "Once more."),
        lambda _: end,
    )
    async with asking(provider) as (rt, session):
        assert await session.ask("go") == "Once more."
        kinds = await outcomes(rt, session)
    assert provider.purchases == 2
    assert "job_lost" in kinds


async def test_cancelling_the_turn_cancels_the_job() -> None:
    provider = Provider(lambda _: spoken.job_begun(), lambda _: answer(spoken.job("in_progress")))
    async with asking(provider) as (rt, session):
        sent = await session.send("go")

        async def begun() -> bool:
            rows = await core_of(rt).store.read(ref_of(session).stream)
            return any(isinstance(row.record, ModelJobBegun) for row in rows)

        await until(begun, seconds=30)
        await session.cancel()
        assert (await sent.result(30)).reason == "cancelled"
    assert provider.cancelled == ["/v1/responses/resp_1/cancel"]
    assert provider.purchases == 1


@pytest.mark.parametrize("effect", ["resumable", "idempotent", "once"])
async def test_cancelling_the_turn_cancels_the_job_that_a_tool_asked_for(effect: EffectClass) -> None:
    @tool(effect=effect)
    async def judge(ctx: ToolContext) -> str:
        """Judge."""
        request = DirectRequest("what do you think?", settings={"openai_background": True})
        return (await completions_of(ctx).complete(request, "judge")).text

    wants = shapes.response({"type": "function_call", "call_id": "c1", "name": "judge", "arguments": "{}", "id": "f1"})
    provider = Provider(
        lambda purchase: answer(wants) if purchase == 1 else spoken.job_begun(),
        lambda _: answer(spoken.job("in_progress")),
    )
    async with Loopback(always=provider).running() as server:
        model = model_at(f"{server.url}/v1", "openai", "gpt-5.2")
        agent = Agent("a", model=model, tools=[judge], model_settings={"stream": False})
        async with Runtime(MemoryStore(SystemClock()), agents=[agent]) as rt:
            session = await rt.session("s", agent="a")
            sent = await session.send("go")

            async def begun() -> bool:
                rows = await core_of(rt).store.read(ref_of(session).stream)
                return any(isinstance(row.record, ModelJobBegun) for row in rows)

            await until(begun, seconds=30)
            await session.cancel()
            assert (await sent.result(30)).reason == "cancelled"
            [lost] = [one for one in await session.usage_entries() if one.source == "direct:judge"]
    assert provider.cancelled == ["/v1/responses/resp_1/cancel"]
    assert (provider.purchases, lost.usage.calls, lost.usage.estimated) == (2, 1, 1)


def grows(text: str) -> dict[str, object]:
    where = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    return {"type": "response.output_text.delta", "delta": text, "logprobs": [], **where}


async def test_job_with_a_broken_stream_is_read_to_its_end() -> None:
    job = {"background": True, "usage": None}
    begun = {"type": "response.created", "response": shapes.response(status="queued", **job)}
    done = {"type": "response.completed", "response": shapes.response(shapes.said("Here it is."), background=True)}
    provider = Provider(
        lambda _: shapes.response_stream(begun, grows("Here "), grows("it")),
        lambda _: shapes.response_stream(grows(" i"), grows("s."), done, begins=3),
    )
    async with asking(provider) as (_, session):
        result = await (await session.send("go")).result(40)
    assert result.text == "Here it is.", "and not only what came after the break"
    assert (provider.purchases, provider.looks) == (1, 1)
    assert (result.usage.input, result.usage.output, result.usage.calls) == (12, 5, 1)
