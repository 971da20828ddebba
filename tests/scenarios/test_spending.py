"""Limits on model usage: counted once, in a ledger that adds up, and not exceeded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from perdure import Agent, Error, Runtime, Session, ToolContext, ToolError, UsageLimits, WorkerOptions, tool
from perdure.codec import Json
from perdure.errors import Code
from perdure.models.protocol import ModelEvent, ModelRequest
from perdure.models.scripted import ScriptedModel, call, calls, say
from perdure.tools.clients.completions import DirectRequest
from perdure.tools.context import completions_of
from perdure.tools.decorator import Tool
from perdure.vocab.messages import ToolResultPart
from perdure.vocab.outcomes import PendingCompletion
from perdure.vocab.tools import EffectClass
from perdure.vocab.usage import Usage
from tests.scenarios.conftest import NewStore, until

TEN = Usage(input=6, output=4, calls=1)


@tool(effect="pure")
async def think(ctx: ToolContext) -> str:
    """Ask the model on one's own account."""
    return await ctx.complete("what do you think?", source="judge")


@tool(effect="pure")
def look() -> str:
    """Look."""
    return "seen"


def model() -> ScriptedModel:
    scripts = {
        "what do you think?": [say("nothing", usage=TEN, exact=True)],
        "go": [call("look"), say("done", usage=TEN)],
        "think": [call("think"), say("done", usage=TEN)],
    }
    return ScriptedModel.by_input(scripts, default=[say("hello", usage=TEN)])


async def test_a_session_that_has_used_up_its_tokens_asks_no_model(new_store: NewStore) -> None:
    asked = model()
    agent = Agent("a", model=asked, tools=[look, think], limits=UsageLimits(session_tokens=25))
    async with Runtime(new_store(), agents=[agent]) as rt:
        session = await rt.session("s", agent="a")
        for _ in range(3):
            assert (await (await session.send("hi")).result(30)).status == "finished"
        over = await (await session.send("hi")).result(30)
        assert (over.status, over.reason) == ("stopped", "limit_reached")
        assert len(asked.requests) == 3
        assert (await session.usage()).tokens == 30
    async with Runtime(new_store(), agents=[Agent("a", model=asked, limits=UsageLimits(session_tokens=35))]) as rt:
        assert (await (await rt.get_session("s").send("hi")).result(30)).status == "finished", "the limit is today's"


async def test_tool_completion_has_its_own_source_and_counts(new_store: NewStore) -> None:
    asked = model()
    agent = Agent("a", model=asked, tools=[look, think], limits=UsageLimits(turn_tokens=1000))
    async with Runtime(new_store(), agents=[agent]) as rt:
        session = await rt.session("s", agent="a")
        result = await (await session.send("think")).result(30)
        ledger = await session.usage_entries()
        assert [(one.source, one.model) for one in ledger] == [
            ("turn", "scripted"),
            ("direct:judge", "scripted"),
            ("turn", "scripted"),
        ]
        assert sum((one.usage for one in ledger), Usage()) == result.usage == await session.usage()
        assert {one.turn for one in ledger} == {result.turn_id}


async def test_money_is_not_spent_blindly(new_store: NewStore) -> None:
    asked = model()
    async with Runtime(
        new_store(), agents=[Agent("a", model=asked, tools=[look], limits=UsageLimits(turn_usd="5"))]
    ) as rt:
        session = await rt.session("s", agent="a")
        result = await (await session.send("go")).result(30)
        assert (result.status, result.reason) == ("stopped", "limit_reached")
        assert "price" in result.message
        assert len(asked.requests) == 1


@pytest.mark.parametrize(
    "limit",
    [
        {"turn_tokens": 0},
        {"turn_tokens": 1.5},
        {"session_tokens": True},
        {"turn_usd": "a lot"},
        {"turn_usd": 0},
        {"session_usd": float("nan")},
        {"session_usd": -1},
    ],
)
def test_invalid_limit_is_refused(limit: dict[str, object]) -> None:
    with pytest.raises(Error) as caught:
        UsageLimits(**limit)  # pyright: ignore[reportArgumentType] - as a caller without types would
    assert caught.value.code is Code.AGENT_INVALID


def test_limits_of_an_agent_are_usage_limits() -> None:
    with pytest.raises(Error) as caught:
        Agent("a", "sim:echo", limits=5)  # pyright: ignore[reportArgumentType] - as a caller without types would
    assert caught.value.code is Code.AGENT_INVALID


async def outputs(session: Session) -> list[Json]:
    parts = [part for message in await session.messages() for part in message.parts]
    return [part.output for part in parts if isinstance(part, ToolResultPart)]


def thinker(effect: EffectClass) -> Tool[..., object]:
    @tool(effect=effect)
    async def think_twice(ctx: ToolContext) -> str:
        """Ask the model again and again, until it is refused."""
        answers: list[str] = []
        for n in range(4):
            try:
                request = DirectRequest("what do you think?", key=str(n))
                answers.append((await completions_of(ctx).complete(request, "judge")).text)
            except ToolError as problem:
                answers.append(str(problem))
        return "; ".join(answers)

    return think_twice


@pytest.mark.parametrize("effect", ["pure", "resumable"])
async def test_a_direct_completion_is_refused_once_the_turn_has_used_its_tokens(
    new_store: NewStore, effect: EffectClass
) -> None:
    asked = ScriptedModel.by_input(
        {
            "what do you think?": [say("nothing", usage=TEN, exact=True)],
            "go": [call("think_twice"), say("done", usage=TEN)],
        }
    )
    agent = Agent("a", model=asked, tools=[thinker(effect)], limits=UsageLimits(turn_tokens=25))
    async with Runtime(new_store(), agents=[agent]) as rt:
        session = await rt.session("s", agent="a")
        result = await (await session.send("go")).result(30)
        assert (result.status, result.reason) == ("stopped", "limit_reached")
        [told] = await outputs(session)
        assert str(told).count("nothing") == 2
        assert "limit reached: the turn has used 32 tokens of 25" in str(told)
        ledger = await session.usage_entries()
        assert [one.source for one in ledger] == ["turn", "direct:judge", "direct:judge"]
        assert sum((one.usage for one in ledger), Usage()) == await session.usage() == result.usage


async def test_calls_of_one_reply_share_the_limit_of_their_turn(new_store: NewStore) -> None:
    first = asyncio.Event()

    @tool(effect="pure")
    async def early(ctx: ToolContext) -> str:
        """Spend, and go on."""
        await ctx.complete("what do you think?", source="early")
        first.set()
        await asyncio.wait_for(second.wait(), 10)
        return "ok"

    second = asyncio.Event()

    @tool(effect="pure")
    async def late(ctx: ToolContext) -> str:
        """Spend after the other has."""
        await asyncio.wait_for(first.wait(), 10)
        try:
            return await ctx.complete("what do you think?", source="late")
        finally:
            second.set()

    asked = ScriptedModel.by_input(
        {
            "what do you think?": [say("nothing", usage=TEN, exact=True)],
            "go": [calls(call("early"), call("late")), say("done", usage=TEN)],
        }
    )
    agent = Agent("a", model=asked, tools=[early, late], limits=UsageLimits(turn_tokens=20))
    async with Runtime(new_store(), agents=[agent]) as rt:
        session = await rt.session("s", agent="a")
        assert (await (await session.send("go")).result(30)).reason == "limit_reached"
        assert [one.source for one in await session.usage_entries()] == ["turn", "direct:early"]


async def test_usage_before_an_external_completion_counts(new_store: NewStore) -> None:
    keys: list[str] = []

    @tool
    async def ask_around(ctx: ToolContext) -> PendingCompletion:
        """Spend, and leave the rest to somebody else."""
        await ctx.complete("what do you think?", source="judge")
        keys.append((await ctx.completion_key()).text)
        return PendingCompletion()

    asked = ScriptedModel.by_input(
        {
            "what do you think?": [say("nothing", usage=TEN, exact=True)],
            "go": [call("ask_around"), say("done", usage=TEN)],
        }
    )
    async with Runtime(new_store(), agents=[Agent("a", model=asked, tools=[ask_around])]) as rt:
        session = await rt.session("s", agent="a")
        sent = await session.send("go")

        async def left() -> bool:
            return bool(keys)

        await until(left)
        await rt.resolve(keys[0], "answer")
        result = await sent.result(30)
        assert [one.source for one in await session.usage_entries()] == ["turn", "direct:judge", "turn"]
        assert (
            result.usage == await session.usage() == sum((one.usage for one in await session.usage_entries()), Usage())
        )


async def test_tools_ask_models_within_the_limits_of_those(new_store: NewStore) -> None:
    inside, most, asked = 0, 0, 0

    class Counted:
        name = "test:counted"

        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
            nonlocal inside, most, asked
            inside += 1
            most, asked = max(most, inside), asked + 1
            await asyncio.sleep(0.01)
            inside -= 1
            async for event in script.stream(request):
                yield event

    script = ScriptedModel.by_input(
        {"what do you think?": [say("nothing")], "go": [calls(*(call("think") for _ in range(4))), say("done")]}
    )
    agent = Agent("a", model=Counted(), tools=[think])
    async with Runtime(
        new_store(), agents=[agent], worker=WorkerOptions(limits={"model:test:*": 1, "tool:think": 3})
    ) as rt:
        result = await (await (await rt.session("s", agent="a")).send("go")).result(30)
        assert (result.status, asked, most) == ("finished", 6, 1)


@pytest.mark.parametrize("nothing", ["", "  "])
async def test_a_direct_completion_asks_something(nothing: str) -> None:
    @tool(effect="pure")
    async def ask_nothing(ctx: ToolContext) -> str:
        """Ask nothing."""
        return (await completions_of(ctx).complete(nothing, "judge")).text

    asked = ScriptedModel(call("ask_nothing"), say("done"))
    async with Runtime("memory://", agents=[Agent("a", model=asked, tools=[ask_nothing])]) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("go")
        assert "A direct completion must ask something" in str(await session.messages())
        assert len(asked.requests) == 2


async def test_ledger_separates_turns_completions_and_subagents(new_store: NewStore) -> None:
    @tool(effect="resumable")
    async def delegate(ctx: ToolContext) -> str:
        """Think, then let somebody else do it."""
        await ctx.complete("what do you think?", source="judge")
        return await ctx.agent("helper").ask("help")

    thoughts = {"what do you think?": [say("nothing", usage=TEN, exact=True)]}
    boss = ScriptedModel.by_input({**thoughts, "go": [call("delegate"), say("done", usage=TEN)]})
    helper = ScriptedModel.by_input({**thoughts, "help": [call("think"), say("helped", usage=TEN)]})
    agents = [Agent("boss", model=boss, tools=[delegate]), Agent("helper", model=helper, tools=[think])]
    async with Runtime(new_store(), agents=agents) as rt:
        session = await rt.session("s", agent="boss")
        result = await (await session.send("go")).result(30)

        async def told() -> bool:
            return len(await session.usage_entries()) == 4

        await until(told)
        ledger = await session.usage_entries()
        [child] = [one.id for one in await rt.list_sessions() if one.id != "s"]
        assert sorted(one.source for one in ledger) == ["direct:judge", f"sub-agent:{child}", "turn", "turn"]
        assert sum((one.usage for one in ledger), Usage()) == await session.usage()
        own = sum((one.usage for one in ledger if not one.source.startswith("sub-agent:")), Usage())
        assert own == result.usage
        below = rt.get_session(child)
        assert sorted(one.source for one in await below.usage_entries()) == ["direct:judge", "turn", "turn"]
        [bought] = [one.usage for one in ledger if one.source.startswith("sub-agent:")]
        assert bought == await below.usage() == sum((one.usage for one in await below.usage_entries()), Usage())
