"""Children of a process, branches of it, and agents that it asks."""

from __future__ import annotations

from perdure import Agent, Error, ProcessContext, Runtime, ToolError, process
from perdure.codec import Json
from perdure.models.scripted import ScriptedModel, say
from perdure.vocab.outcomes import DurableStepOutcome
from perdure.vocab.records import EffectSettled
from perdure.vocab.registrations import ProcessSucceeded
from tests.scenarios.conftest import ProcessApp, until
from tests.scenarios.plants import HURRIED, marks, parked


async def test_a_process_starts_a_child_once_and_waits_for_it_parked(process_app: ProcessApp) -> None:
    ran: list[str] = []

    @process
    async def child(ctx: ProcessContext, n: int) -> int:
        await ctx.step("count", lambda: ran.append(f"child {n}"))
        told = await ctx.wait_for_signal("go")
        return n + told

    @process
    async def parent(ctx: ProcessContext) -> Json:
        one = await ctx.start(child, 1)
        two = await ctx.start("child", 2, id="second")
        return [one.to_json(), await ctx.wait_for_process(one), await ctx.wait_for_process(two.id)]

    rt = await process_app.open(parent, child, tuning=HURRIED)
    handle = await rt.start(parent, id="p")
    await parked(rt, handle)
    await rt.get_process("second").signal("go", 10)
    await rt.get_process("p/child:1").signal("go", 20)
    assert await handle.result(timeout=20) == [{"__handle__": "process", "id": "p/child:1"}, 21, 12]
    assert sorted(ran) == ["child 1", "child 2"]
    registration = (await rt.get_process("second").info()).known
    assert registration.provenance.parent == "p"


async def test_wait_for_a_failed_slow_or_missing_child_raises(process_app: ProcessApp) -> None:
    @process
    async def fails(ctx: ProcessContext) -> None:
        raise ToolError("no", code="sold_out")

    @process
    async def sleeps(ctx: ProcessContext) -> None:
        await ctx.wait_for_event("never")

    @process
    async def parent(ctx: ProcessContext) -> Json:
        seen: list[Json] = []
        try:
            await ctx.wait_for_process(await ctx.start(fails))
        except Error as problem:
            seen.append(str(problem.details["reason"]))
        for other in (await ctx.start(sleeps), "nobody"):
            try:
                await ctx.wait_for_process(other, timeout="20ms")
            except ToolError as problem:
                seen.append(problem.code)
        return seen

    rt = await process_app.open(parent, fails, sleeps, tuning=HURRIED)
    handle = await rt.start(parent)
    assert await handle.result(timeout=20) == ["sold_out", "result_timeout", "process_unknown"]


async def test_branches_run_at_once_and_the_first_one_wins_on_every_entry(process_app: ProcessApp) -> None:
    @process
    async def races(ctx: ProcessContext) -> Json:
        both = await ctx.gather(ctx.step("a", lambda: 1), ctx.step("b", lambda: 2))
        won = await ctx.race("race", go=ctx.wait_for_signal("go"), late=ctx.wait_for_event("late"))
        await ctx.wait_for_event("end")
        return [both, list(won)]

    rt = await process_app.open(races, tuning=HURRIED)
    handle = await rt.start(races)
    await handle.signal("go", "now")

    async def waits() -> bool:
        return ">p/event:end" in await marks(handle)

    await until(waits)
    await handle.resolve("late", "too late")
    await handle.resolve("end")
    assert await handle.result(timeout=20) == [[1, 2], ["go", "now"]]
    recorded = [row.record for row in await handle.journal()]
    [race] = [one for one in recorded if isinstance(one, EffectSettled) and one.id == "p/first:race"]
    assert isinstance(race.outcome, DurableStepOutcome)
    assert race.outcome.value == {"winner": "go", "losers": {"late": "stopped"}}


async def test_a_process_asks_an_agent_once(process_app: ProcessApp) -> None:
    @process
    async def writes(ctx: ProcessContext) -> Json:
        text = await ctx.ask("writer", "Summarise")
        await ctx.wait_for_event("go")
        return text

    model = ScriptedModel(say("short"))
    runtime = Runtime(
        process_app.new_store(), agents=[Agent("writer", model=model)], processes=[writes], options=HURRIED
    )
    async with runtime as rt:
        handle = await rt.start(writes, id="p")
        await parked(rt, handle)
        await handle.resolve("go")
        assert (await handle.result(timeout=20)).startswith("short")
        assert [info.agent for info in await rt.list_sessions()] == ["writer"]


async def test_a_process_that_starts_itself_or_waits_for_itself_is_refused(process_app: ProcessApp) -> None:
    @process
    async def ouroboros(ctx: ProcessContext, how: str) -> str:
        try:
            if how == "wait":
                await ctx.wait_for_process(ctx.process_id)
            elif how == "same":
                await ctx.wait_for_process(await ctx.start("ouroboros", how, id=ctx.process_id))
            else:
                await ctx.start("ouroboros", "another", id=ctx.process_id)
        except Error as refusal:
            return refusal.code.value
        return "nothing"

    rt = await process_app.open(ouroboros)
    expected = {"wait": "invalid_argument", "same": "process_conflict", "other": "process_conflict"}
    for how, code in expected.items():
        assert await (await rt.start(ouroboros, how, id=how)).result(timeout=20) == code
    assert len(await rt.processes.list(ended=True)) == 3


async def test_children_without_end_come_to_an_end(process_app: ProcessApp) -> None:
    @process
    async def nests(ctx: ProcessContext) -> str:
        try:
            await ctx.start("nests")
        except Error as refusal:
            return refusal.code.value
        return "deeper"

    rt = await process_app.open(nests)
    await rt.start(nests, id="n" * 450)

    async def over() -> bool:
        return bool(await rt.processes.list(ended=True)) and not await rt.processes.list()

    await until(over, seconds=30)
    ends = [one.output.value for one in await rt.processes.list(ended=True) if isinstance(one.output, ProcessSucceeded)]
    assert ends == ["invalid_id", *["deeper"] * 7], "a name of more than 512 bytes is none: nothing half registered"
