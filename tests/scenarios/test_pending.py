"""Open waits of a session: kind, start, deadline, and the party that can resolve them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure import Error, RetryPolicy, RuntimeOptions, ToolContext, ToolError, tool
from perdure.errors import Code
from perdure.ids import CallId
from perdure.models.scripted import ScriptedModel, call, calls, say
from perdure.runtime.internals import core_of
from perdure.vocab.outcomes import PendingCompletion
from tests.scenarios.conftest import App, until


async def test_events_completions_and_sleeps_are_told_and_nothing_else(app: App) -> None:
    @tool(effect="resumable")
    async def publish(ctx: ToolContext) -> str:
        return str(await ctx.wait_for_event("reviewed", timeout="2d"))

    @tool(effect="idempotent")
    async def order(ctx: ToolContext) -> PendingCompletion:
        await ctx.completion_key()
        return PendingCompletion()

    @tool(retries=RetryPolicy(kind="safe", max_attempts=2, base_delay_ms=60_000, max_delay_ms=60_000))
    async def flaky() -> str:
        raise ToolError("not now", retry_safe=True)

    model = ScriptedModel(calls(call("publish"), call("order"), call("flaky")), say("done"))
    rt = await app.open(model, publish, order, flaky, tuning=RuntimeOptions(idle_timeout_s=0.0))
    session = await rt.session("s", agent="a")
    before = core_of(rt).clock.wall_ms()
    await session.send("go")

    async def three() -> bool:
        return len(await session.pending()) == 3

    await until(three)
    found = {item.kind: item for item in await session.pending()}
    assert set(found) == {"event", "completion", "sleep"}
    event = found["event"]
    assert (event.id, event.tool, event.session) == ("reviewed", "publish", "s")
    assert event.until is not None
    assert 0 <= event.until - before - 2 * 24 * 3_600_000 < 60_000
    assert "session.resolve('reviewed'" in event.who
    assert (found["completion"].tool, found["completion"].until) == ("order", None)
    assert found["sleep"].tool == "flaky"
    assert all(item.since >= before for item in found.values())
    await session.cancel()

    async def none() -> bool:
        return await session.pending() == ()

    await until(none)


async def test_why_of_a_paused_session_names_deadline_and_resolver(app: App) -> None:
    @tool
    async def order(ctx: ToolContext) -> PendingCompletion:
        await ctx.completion_key()
        return ctx.pending(deadline="2d")

    rt = await app.open(ScriptedModel(call("order"), say("done")), order, tuning=RuntimeOptions(idle_timeout_s=0.0))
    session = await rt.session("s", agent="a")
    await session.send("go")

    async def parked() -> bool:
        return (await session.why()).status == "waiting"

    await until(parked)
    (item,) = await session.pending()
    (told,) = (await session.why()).waiting
    assert item.until is not None
    assert (told.what, told.until, told.who) == (item.what, item.until, "the holder of the key that was handed out")
    await session.pause(by="ann")
    resume, told = (await session.why()).waiting
    assert resume.what == "an operator to resume it"
    assert (told.until, told.who) == (item.until, "the holder of the key that was handed out")
    await session.cancel()
    await session.resume()


async def test_a_session_that_does_not_exist_has_no_answer(app: App) -> None:
    rt = await app.open(ScriptedModel())
    with pytest.raises(Error) as caught:
        await rt.get_session("nobody").pending()
    assert caught.value.code is Code.SESSION_UNKNOWN


async def test_a_completion_key_needs_a_call_that_is_not_over(app: App) -> None:
    kept: list[ToolContext] = []
    codes: list[str] = []

    @tool
    async def act(ctx: ToolContext) -> str:
        """Ask for a key for nobody."""
        kept.append(ctx)
        with pytest.raises(Error) as refused:
            await replace(ctx, call_id=CallId("")).completion_key()
        codes.append(refused.value.code)
        return "done"

    rt = await app.open(ScriptedModel(call("act"), say("done")), act)
    await (await rt.session("s", agent="a")).ask("go")
    with pytest.raises(Error) as late:
        await kept[0].completion_key()
    assert [*codes, late.value.code] == ["tool_completion_key_missing_call_id", "tool_completion_state_poisoned"]
