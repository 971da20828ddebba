"""Several things that a process does at once: what is stopped takes nothing and gets no further, on any entry."""

from __future__ import annotations

import asyncio

import pytest

from perdure import ProcessContext, ToolError, process
from perdure.codec import Json
from perdure.vocab.outcomes import DurableStepOutcome
from perdure.vocab.records import EffectSettled
from perdure.vocab.registrations import ProcessFailure
from tests.scenarios.conftest import ProcessApp, until
from tests.scenarios.plants import HURRIED, marks, parked


async def test_signal_of_a_losing_branch_goes_to_the_next_wait(process_app: ProcessApp) -> None:
    @process
    async def races(ctx: ProcessContext) -> Json:
        won = await ctx.race("race", a=ctx.wait_for_signal("a"), b=ctx.wait_for_signal("b"))
        await ctx.wait_for_event("go on")
        return [*won, await ctx.wait_for_signal("b")]

    rt = await process_app.open(races, tuning=HURRIED)
    handle = await rt.start(races)
    await handle.signal("a", "A")

    async def has_raced() -> bool:
        return ">p/event:go on" in await marks(handle)

    await until(has_raced)
    await parked(rt, handle)
    await handle.signal("b", "B")
    await handle.resolve("go on")
    assert await handle.result(timeout=20) == ["a", "A", "B"]


async def test_of_two_signals_that_are_there_the_first_takes_one(process_app: ProcessApp) -> None:
    @process
    async def races(ctx: ProcessContext) -> Json:
        await ctx.wait_for_event("go")
        won = await ctx.race("race", a=ctx.wait_for_signal("a"), b=ctx.wait_for_signal("b"))
        return [*won, await ctx.wait_for_signal("b")]

    rt = await process_app.open(races, tuning=HURRIED)
    handle = await rt.start(races)
    await handle.signal("b", "B")
    await handle.signal("a", "A")
    await handle.resolve("go")
    assert await handle.result(timeout=20) == ["a", "A", "B"]
    settled = [row.record for row in await handle.journal() if isinstance(row.record, EffectSettled)]
    [race] = [one.outcome for one in settled if one.id == "p/first:race"]
    assert isinstance(race, DurableStepOutcome)
    assert race.value == {"winner": "a", "losers": {"b": "stopped"}}


@pytest.mark.parametrize("kind", ["first", "gather"])
async def test_stopped_branch_starts_nothing_on_reentry(process_app: ProcessApp, kind: str) -> None:
    ran: list[str] = []

    @process
    async def races(ctx: ProcessContext) -> Json:
        async def fails() -> None:
            raise ToolError("sold out", code="sold_out")

        async def slow() -> Json:
            try:
                await ctx.sleep("a while", "100ms")
                await ctx.step("charge", lambda: ran.append("charge"))
            finally:
                await ctx.step("give back", lambda: ran.append("give back"))

        if kind == "first":
            await ctx.race("race", slow=slow(), quick=ctx.wait_for_signal("quick"))
        else:
            with pytest.raises(ToolError):
                await ctx.gather(fails(), slow())
        await ctx.wait_for_event("go on")
        return "done"

    client = await process_app.open(worker=False)
    handle = await client.start("races")
    await handle.signal("quick")
    rt = await process_app.open(races, tuning=HURRIED)

    async def went_on() -> bool:
        return {">p/event:go on", "<p/step:give back"} <= set(await marks(handle))

    await until(went_on)
    await parked(rt, handle)
    await asyncio.sleep(0.1)  # what was slept is over by now: another entry could go on from there
    await handle.resolve("go on")
    assert await handle.result(timeout=20) == "done"
    assert ran == ["give back"]
    assert ">p/step:charge" not in await marks(handle)


async def test_repaired_gather_continues_all_its_branches(process_app: ProcessApp) -> None:
    ran: list[str] = []
    repaired = False

    def refuse() -> None:
        raise ToolError("sold out", code="sold_out")

    @process
    async def buys(ctx: ProcessContext) -> Json:
        async def other() -> str:
            await ctx.wait_for_event("word")
            ran.append("other")
            return "other"

        async def fails() -> str:
            try:
                await ctx.step("refuse", refuse)
            except ToolError:
                if not repaired:
                    raise
            return "repaired"

        try:
            return await ctx.gather(other(), fails())
        except ToolError:
            await ctx.wait_for_event("repair")
            return "not repaired"

    rt = await process_app.open(buys, tuning=HURRIED)
    handle = await rt.start(buys)

    async def failed() -> bool:
        return ">p/event:repair" in await marks(handle)

    await until(failed)
    await parked(rt, handle)
    repaired = True
    await handle.resolve("word")
    await handle.resolve("repair")
    assert await handle.result(timeout=20) == ["other", "repaired"]
    assert ran == ["other"]


async def test_process_waits_again_after_a_timed_out_wait(process_app: ProcessApp) -> None:
    @process
    async def child(ctx: ProcessContext) -> str:
        await ctx.wait_for_event("go")
        return "done"

    @process
    async def parent(ctx: ProcessContext) -> Json:
        started = await ctx.start(child, id="c")
        try:
            await ctx.wait_for_process(started, timeout="10ms")
        except ToolError as problem:
            return [problem.code, await ctx.wait_for_process(started)]

    rt = await process_app.open(parent, child, tuning=HURRIED)
    handle = await rt.start(parent)

    async def waits_again() -> bool:
        return ">p/wait:c#2" in await marks(handle)

    await until(waits_again)
    await parked(rt, handle)
    await rt.get_process("c").resolve("go")
    assert await handle.result(timeout=20) == ["result_timeout", "done"]


async def test_a_branch_that_wants_to_end_the_interpreter_ends_its_process(process_app: ProcessApp) -> None:
    @process
    async def leaves(ctx: ProcessContext, how: str) -> None:
        async def leave() -> None:
            raise SystemExit(3)

        if how == "first":
            await ctx.race("race", leave=leave(), never=ctx.wait_for_signal("never"))
        await ctx.gather(leave(), ctx.wait_for_signal("never"))

    rt = await process_app.open(leaves, tuning=HURRIED)
    for how in ("first", "gather"):
        ended = await (await rt.start(leaves, how)).wait(timeout=20)
        assert isinstance(ended, ProcessFailure)
        assert (ended.code, ended.raw) == ("process_panicked", {"error_type": "SystemExit"})
