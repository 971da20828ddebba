"""`every_boundary` on tools whose bodies wait: steps, a sleep, an event; in memory and parked."""

from __future__ import annotations

from typing import Literal

import pytest

from perdure import Agent, Code, Error, Runtime, RuntimeOptions, ToolContext, tool
from perdure.store.protocol import Store
from perdure.testing import CrashReport, ScriptedModel, World, call, every_boundary, say
from perdure.testing.life import App

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]


def publishing(store: Store, world: World, *, tuning: RuntimeOptions | None = None) -> Runtime:
    """Reserve, sleep, wait for a person, charge: each step once, whatever happens in between."""

    @tool(effect="resumable")
    async def order(ctx: ToolContext, item: str) -> str:
        """Order something."""

        def act(what: str) -> str:
            world.note(what, key=f"{ctx.idempotency_key}:{what}")
            return f"{what} done"

        await ctx.step("reserve", act, "reserve")
        await ctx.sleep("cool down", 0.001)
        verdict = await ctx.wait_for_event("reviewed")
        await ctx.step("charge", act, "charge")
        return f"{item}: {verdict}"

    model = ScriptedModel(call("order", item="lamp"), say("done"))
    return Runtime(store, agents=[Agent("shop", model=model, tools=[order])], options=tuning)


def parking(store: Store, world: World) -> Runtime:
    """The same, put aside at every wait."""
    return publishing(store, world, tuning=RuntimeOptions(idle_timeout_s=0.0))


async def order_and_review(rt: Runtime) -> None:
    """Review at once: before, while or after the body waits for it, whatever the crash made of that."""
    session = await rt.session("customer", agent="shop")
    sent = await session.send("A lamp", key="order-7")
    try:
        await session.resolve("reviewed", "fine")
    except Error as problem:  # nothing is under way any more: it was reviewed before the crash
        if problem.code is not Code.EVENT_KEY_INVALID:
            raise
    assert (await sent.result()).text.startswith("done")


def each_step_at_most_once(crash: CrashReport) -> None:
    reserved, charged = crash.world.count("reserve"), crash.world.count("charge")
    assert charged <= reserved <= 1
    if not crash.doubts:
        assert (reserved, charged) == (1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("app", [publishing, parking])
@pytest.mark.parametrize("mode", ["memory", "sqlite"])
def test_a_body_that_waits_at_every_boundary(app: App, mode: Literal["memory", "sqlite"]) -> None:
    crashes = every_boundary(app, order_and_review, mode=mode, check=each_step_at_most_once)
    whats = " ".join(crash.boundary.what for crash in crashes)
    for part in ("step:reserve", "sleep:cool down", "step:charge", "resolve"):
        assert part in whats, whats
    doubted = {name for crash in crashes for name in crash.doubts}
    assert doubted >= {"c1.0/step:reserve", "c1.0/step:charge"}, "a step that was under way is in doubt, not run again"


@pytest.mark.slow
def test_a_body_that_waits_killed_for_real_at_every_boundary() -> None:
    crashes = every_boundary(parking, order_and_review, mode="kill", check=each_step_at_most_once)
    assert len(crashes) > 20


def careless(store: Store, world: World) -> Runtime:
    """Acts between its steps, where code may run again."""

    @tool(effect="resumable")
    async def order(ctx: ToolContext) -> str:
        """Order something."""
        await ctx.step("look", str, "lamp", effect="pure")
        world.note("charge", key=ctx.idempotency_key)
        await ctx.step("note", str, "lamp", effect="pure")
        return "ordered"

    model = ScriptedModel(call("order"), say("done"))
    return Runtime(store, agents=[Agent("shop", model=model, tools=[order])])


async def order_it(rt: Runtime) -> None:
    await (await rt.session("customer", agent="shop")).ask("A lamp", key="order-7")


def test_a_body_that_acts_between_its_steps_is_found_out() -> None:
    with pytest.raises(AssertionError, match=r"'charge' happened 2 times under the key perdure-tool:"):
        every_boundary(careless, order_it)


async def never_reviewed(rt: Runtime) -> None:
    session = await rt.session("customer", agent="shop")
    await session.send("A lamp", key="order-7")


def test_sweep_reports_a_session_that_never_ends() -> None:
    for app in (publishing, parking):
        with pytest.raises(AssertionError, match=r"(?s)fails without a crash:.*TimeoutError"):
            every_boundary(app, never_reviewed, timeout_s=0.4)
