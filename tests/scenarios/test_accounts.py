"""Usage of all sessions: the same sum by every grouping, with each call counted once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import get_args

import pytest

from perdure import Agent, Error, Runtime, RuntimeOptions, ToolContext, tool
from perdure.errors import Code
from perdure.ids import SessionId
from perdure.models.protocol import ModelError, ModelEvent, ModelRequest
from perdure.models.scripted import ScriptedAnswer, ScriptedModel, call, say
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of
from perdure.runtime.sessions.accounts import By, UsageQuery, accounts, day_of
from perdure.vocab.outcomes import LlmError
from perdure.vocab.usage import Usage
from tests.scenarios.conftest import NewStore

DAY_MS = 86_400_000
CHEAP = Usage(input=6, output=4, calls=1, cost_nano=1_000, priced=1)
DEAR = Usage(input=60, output=40, cache_read=5, reasoning=7, calls=1)
ASKED = Usage(input=3, calls=1, cost_nano=10, priced=1)


@tool(effect="resumable")
async def delegate(ctx: ToolContext) -> str:
    """Ask another agent."""
    return await ctx.agent("writer").ask("write")


@tool(effect="resumable")
async def judge(ctx: ToolContext) -> str:
    """Ask a model on one's own account."""
    return await ctx.complete("judge!", source="judge")


def bought(answer: ScriptedAnswer) -> ScriptedAnswer:
    return replace(answer, usage=CHEAP)


class Failing:
    """A model that breaks off, and says what it cost."""

    name = "broken"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        raise ModelError(LlmError(kind="invalid", message="no"), DEAR)
        yield  # pyright: ignore[reportUnreachable] - makes this a stream


class Yesterday(SystemClock):
    """The clock of the day before."""

    def wall_ms(self) -> int:
        return super().wall_ms() - DAY_MS


def agents() -> list[Agent]:
    scripts = {
        "judge!": [say("good", usage=ASKED, exact=True)],
        "delegate": [bought(call("delegate")), bought(call("judge")), say("done", usage=CHEAP)],
    }
    chief = ScriptedModel.by_input(scripts, default=[say("hello", usage=CHEAP)])
    writer = ScriptedModel(say("text", usage=DEAR), name="writing")
    return [Agent("chief", model=chief, tools=[delegate, judge]), Agent("writer", model=writer)]


TREE = CHEAP + CHEAP + CHEAP + ASKED
"""What `delegate` costs its own session."""


async def fill(new_store: NewStore) -> None:
    """A session of yesterday with three turns, and one of today with a sub-agent."""
    async with Runtime(new_store(), agents=agents(), options=RuntimeOptions(clock=Yesterday())) as rt:
        session = await rt.session("old", agent="chief")
        for _ in range(3):
            await session.ask("hi")
    async with Runtime(new_store(), agents=agents()) as rt:
        await (await rt.session("tree", agent="chief")).ask("delegate")


async def told(rt: Runtime, by: By, **rest: object) -> dict[str, Usage]:
    found = await accounts(core_of(rt), UsageQuery(by, **rest))  # pyright: ignore[reportArgumentType] - passed on
    assert sum((one.usage for one in found.sums), Usage()) == found.total
    return {one.name: one.usage for one in found.sums}


async def test_the_sum_is_the_same_whatever_it_is_taken_by(new_store: NewStore) -> None:
    await fill(new_store)
    three = CHEAP + CHEAP + CHEAP
    async with Runtime(new_store(), worker=False) as rt:
        now = core_of(rt).clock.wall_ms()
        by_session = await told(rt, "session")
        [child] = [name for name in by_session if name.startswith("sub-")]
        assert by_session == {"old": three, "tree": TREE, child: DEAR}
        assert await told(rt, "agent") == {"chief": three + TREE, "writer": DEAR}
        assert await told(rt, "model") == {"scripted": three + TREE, "writing": DEAR}
        assert await told(rt, "source") == {"turn": three + three + DEAR, "direct:judge": ASKED}
        assert await told(rt, "day") == {day_of(now): TREE + DEAR, day_of(now - DAY_MS): three}
        assert await told(rt, "session", since_ms=now - DAY_MS // 2) == {"tree": TREE, child: DEAR}
        assert await told(rt, "model", agent="writer") == {"writing": DEAR}
        assert await told(rt, "session", session=SessionId("tree")) == {"tree": TREE, child: DEAR}
        assert await told(rt, "model", session=SessionId("old")) == {"scripted": three}


async def test_subagents_are_listed_below_their_parent_session(new_store: NewStore) -> None:
    await fill(new_store)
    async with Runtime(new_store(), worker=False) as rt:
        sums = (await accounts(core_of(rt), UsageQuery())).sums
    assert [(one.depth, one.agent, one.together) for one in sums] == [
        (0, "chief", TREE + DEAR),
        (1, "writer", DEAR),
        (0, "chief", CHEAP + CHEAP + CHEAP),
    ]
    assert sums[1].parent == "tree"


@pytest.mark.parametrize("by", get_args(By))
async def test_usage_of_a_deleted_subagent_is_counted_once(new_store: NewStore, by: By) -> None:
    await fill(new_store)
    async with Runtime(new_store(), worker=False) as rt:
        before = (await accounts(core_of(rt), UsageQuery(by))).total
        [child] = [info.id for info in await rt.list_sessions() if info.id.startswith("sub-")]
        await rt.get_session(child).delete()
        after = await accounts(core_of(rt), UsageQuery(by))
        assert after.total == before == TREE + DEAR + CHEAP + CHEAP + CHEAP
        if by == "session":
            assert [(one.agent, one.usage) for one in after.sums if one.name == child] == [("(deleted)", DEAR)]


async def test_failed_attempt_is_charged_to_its_model(new_store: NewStore) -> None:
    async with Runtime(new_store(), agents=[Agent("a", model=Failing())]) as rt:
        session = await rt.session("s", agent="a")
        assert (await (await session.send("hi")).result(30)).status == "stopped"
        assert await told(rt, "model") == {"broken": DEAR}


async def test_a_turn_that_still_runs_is_counted_with_what_it_has_bought(new_store: NewStore) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool(effect="idempotent")
    async def wait() -> str:
        """Wait until it may go on."""
        begun.set()
        await go_on.wait()
        return "waited"

    model = ScriptedModel(bought(call("wait")), say("done", usage=CHEAP))
    async with Runtime(new_store(), agents=[Agent("a", model=model, tools=[wait])]) as rt:
        sent = await (await rt.session("s", agent="a")).send("hi")
        await begun.wait()  # its reply is durable before an idempotent call is dispatched
        for by in get_args(By):
            assert sum((await told(rt, by)).values(), Usage()) == CHEAP, by
        go_on.set()
        await sent.result(30)
        assert await told(rt, "session") == {"s": CHEAP + CHEAP}


async def test_by_session_the_end_of_a_long_log_is_enough(new_store: NewStore) -> None:
    model = ScriptedModel.by_input({}, default=[say("hello", usage=CHEAP)])
    async with Runtime(new_store(), agents=[Agent("a", model=model)]) as rt:
        session = await rt.session("s", agent="a")
        for _ in range(40):
            await session.ask("hi")
        rows = len(await session.journal())
        short, whole = (
            await accounts(core_of(rt), UsageQuery("session")),
            await accounts(core_of(rt), UsageQuery("model")),
        )
        assert short.total == whole.total == sum([CHEAP] * 40, Usage())
        assert whole.records == rows
        assert short.records < rows - 64, "the session has a snapshot"


@pytest.mark.any_store
async def test_a_session_that_is_not_there_is_refused(new_store: NewStore) -> None:
    async with Runtime(new_store(), worker=False) as rt:
        with pytest.raises(Error) as caught:
            await accounts(core_of(rt), UsageQuery(session=SessionId("nobody")))
        assert caught.value.code is Code.SESSION_UNKNOWN
