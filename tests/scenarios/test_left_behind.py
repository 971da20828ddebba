"""A body that goes on without one of its parts: the log still tells what became of it, and so does the failure."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Literal

import pytest

from perdure import Agent, ProcessContext, Runtime, RuntimeOptions, ToolContext, ToolError, process, tool
from perdure.ids import EffectId, process_stream
from perdure.models.scripted import ScriptedModel, call, say
from perdure.observe.verify import verify
from perdure.runtime.internals import core_of
from perdure.session.fold import CODE
from perdure.store.protocol import Store
from perdure.testing import World, every_boundary
from perdure.vocab.messages import ToolResultPart
from perdure.vocab.outcomes import DurableStepOutcome
from perdure.vocab.records import EffectSettled
from tests.scenarios.conftest import App, NewStore, until


class Charge:
    """A step that runs in a thread until it is let go."""

    def __init__(self) -> None:
        self._begun = threading.Event()
        self._go = threading.Event()

    def run(self) -> None:
        self._begun.set()
        self._go.wait(20)

    def let_go(self) -> None:
        self._go.set()

    async def begins(self) -> None:
        while not self._begun.is_set():  # noqa: ASYNC110 - a thread tells
            await asyncio.sleep(0.005)


Part = Callable[[ToolContext, Charge], Awaitable[object]]


async def fails(ctx: ToolContext) -> None:
    async def no_stock() -> None:
        raise ToolError("no stock", code="no_stock")

    await ctx.step("stock", no_stock)


async def beside_a_failure(ctx: ToolContext, charge: Charge) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(ctx.step("charge", charge.run))
        await charge.begins()
        group.create_task(fails(ctx))


async def under_a_timeout(ctx: ToolContext, charge: Charge) -> None:
    charging = asyncio.create_task(ctx.step("charge", charge.run))
    await charge.begins()
    try:
        async with asyncio.timeout(0.05):
            await charging
    except TimeoutError:
        raise ToolError("too slow", code="too_slow") from None


async def check(rt: Runtime, session: str) -> None:
    [info] = [one for one in await core_of(rt).session_streams() if one.name == session]
    verdict = verify(
        info, await core_of(rt).store.read(info.stream), await core_of(rt).store.load(info.stream, code=CODE)
    )
    assert verdict.problems == ()


@pytest.mark.parametrize("part", [beside_a_failure, under_a_timeout])
async def test_abandoned_step_is_in_doubt_and_named_by_the_failure(app: App, part: Part) -> None:
    charge = Charge()

    @tool(effect="resumable")
    async def buy(ctx: ToolContext) -> str:
        """Buy something."""
        await part(ctx, charge)
        return "bought"

    rt = await app.open(ScriptedModel(call("buy"), say("sorry")), buy)
    session = await rt.session("s", agent="a")
    try:
        await session.ask("Buy it")
    finally:
        charge.let_go()
    steps = {
        row.record.id: row.record.outcome for row in await session.journal() if isinstance(row.record, EffectSettled)
    }
    outcome = steps[EffectId("c1.0/step:charge")]
    assert isinstance(outcome, DurableStepOutcome)
    assert outcome.in_doubt is not None
    assert outcome.in_doubt.reason == "cancelled", "no worker died"
    [result] = [
        part for message in await session.messages() for part in message.parts if isinstance(part, ToolResultPart)
    ]
    assert "Steps whose effect is unknown: the step 'charge'." in str(result.output)
    await check(rt, "s")


async def loses_a_race(ctx: ToolContext) -> None:
    waiting = asyncio.create_task(ctx.wait_for_event("never"))
    await ctx.sleep("a little", 0.01)
    waiting.cancel()


async def gives_up_an_event(ctx: ToolContext) -> None:
    try:
        async with asyncio.timeout(0.05):
            await ctx.wait_for_event("never")
    except TimeoutError:
        pass


async def leaves_a_sleep(ctx: ToolContext) -> None:
    asyncio.create_task(ctx.sleep("long", 3600)).add_done_callback(lambda _: None)
    await asyncio.sleep(0.05)


@pytest.mark.parametrize("part", [loses_a_race, gives_up_an_event, leaves_a_sleep])
async def test_a_wait_that_its_body_went_on_without_is_no_harm(
    app: App, part: Callable[[ToolContext], Awaitable[None]]
) -> None:
    @tool(effect="resumable")
    async def buy(ctx: ToolContext) -> str:
        """Buy something."""
        await part(ctx)
        return "bought"

    rt = await app.open(ScriptedModel(call("buy"), say("done", exact=True)), buy)
    assert await (await rt.session("s", agent="a")).ask("Buy it") == "done"
    await check(rt, "s")


async def test_a_process_too_leaves_no_step_without_an_outcome(new_store: NewStore) -> None:
    charge = Charge()

    @process
    async def buy(ctx: ProcessContext) -> str:
        """Buy something."""
        charging = asyncio.create_task(ctx.step("charge", charge.run))
        await charge.begins()
        try:
            async with asyncio.timeout(0.05):
                await charging
        except TimeoutError:
            pass
        return "gave up"

    async with Runtime(new_store(), processes=[buy]) as rt:
        try:
            handle = await rt.start(buy, id="b")
            assert await handle.result(timeout=30) == "gave up"
        finally:
            charge.let_go()
        rows = await core_of(rt).store.read(process_stream(rt.tenant, "b"))
    settled = [row.record for row in rows if isinstance(row.record, EffectSettled)]
    [outcome] = [one.outcome for one in settled if one.id == "p/step:charge"]
    assert isinstance(outcome, DurableStepOutcome)
    assert outcome.in_doubt is not None


# --- a deploy while a body waits


def shop(new_store: NewStore, tools: Literal["both", "other arguments", "none"]) -> Runtime:
    """The tool as it was, as it is after a deploy, or not at all."""

    @tool(effect="resumable", name="buy")
    async def buy(ctx: ToolContext, item: str) -> str:
        """Buy something."""
        await ctx.step("reserve", str, item)
        await ctx.wait_for_event("go")
        return "bought"

    @tool(effect="resumable", name="buy")
    async def differently(ctx: ToolContext, cents: int) -> str:
        """Buy something."""
        return str(cents)

    @tool
    async def other() -> str:
        """Do something else."""
        return "done"

    by = {"both": [buy, other], "other arguments": [differently, other], "none": [other]}
    agent = Agent("a", model=ScriptedModel(call("buy", item="lamp"), say("sorry")), tools=by[tools])
    return Runtime(new_store(), agents=[agent], options=RuntimeOptions(idle_timeout_s=0.0))


async def is_parked(rt: Runtime) -> bool:
    [info] = await core_of(rt).session_streams()
    return info.parked and info.owner is None


async def is_over(rt: Runtime) -> bool:
    [info] = await core_of(rt).session_streams()
    return not (info.active or info.parked)


@pytest.mark.parametrize(("deployed", "code"), [("none", "tool_removed"), ("other arguments", "tool_contract_changed")])
async def test_body_of_a_removed_tool_reports_its_finished_steps(
    new_store: NewStore, deployed: Literal["other arguments", "none"], code: str
) -> None:
    async with shop(new_store, "both") as rt:
        session = await rt.session("s", agent="a")
        await session.send("A lamp")
        await until(lambda: is_parked(rt), seconds=30)
    async with shop(new_store, deployed) as rt:
        session = rt.get_session("s")
        await session.resolve("go", 1)
        await until(lambda: is_over(rt), seconds=30)
        [result] = [
            one for message in await session.messages() for one in message.parts if isinstance(one, ToolResultPart)
        ]
    told = str(result.output)
    assert code in told
    assert "was not run to its end" in told
    assert "Steps that are done: the step 'reserve'." in told


# --- the kit


def hasty(store: Store, world: World) -> Runtime:
    """A body that does not wait for its charge."""

    @tool(effect="resumable")
    async def buy(ctx: ToolContext) -> str:
        """Buy something."""

        async def charge() -> None:
            world.note("charge", key=ctx.idempotency_key)
            await asyncio.sleep(3600)

        try:
            async with asyncio.timeout(0.05):
                await ctx.step("charge", charge)
        except TimeoutError:
            return "no answer"
        return "charged"

    return Runtime(store, agents=[Agent("shop", model=ScriptedModel(call("buy"), say("done")), tools=[buy])])


async def buy_it(rt: Runtime) -> None:
    await (await rt.session("customer", agent="shop")).ask("A lamp", key="order-7")


@pytest.mark.crash
def test_such_a_body_keeps_its_promises_at_every_boundary() -> None:
    crashes = every_boundary(hasty, buy_it)
    assert all(crash.world.count("charge") <= 1 for crash in crashes)
