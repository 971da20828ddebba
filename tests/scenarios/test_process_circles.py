"""Processes that wait for each other are told so, and those that start each other without end are stopped."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from perdure import Error, ProcessContext, RuntimeOptions, process
from perdure.codec import Json
from perdure.errors import Code
from perdure.runtime.internals import core_of
from perdure.runtime.processes.limits import ProcessLimits
from perdure.tools.step_outcomes import EventFailed
from tests.scenarios.conftest import ProcessApp, until

IMPATIENT = RuntimeOptions(idle_timeout_s=0)


@process
async def waits(ctx: ProcessContext, other: str) -> str:
    await ctx.wait_for_signal("go")
    try:
        return f"heard {await ctx.wait_for_process(other)}"
    except EventFailed as problem:
        return str(problem.code)


@process
async def waits_a_while(ctx: ProcessContext, other: str) -> str:
    await ctx.wait_for_signal("go")
    with suppress(EventFailed):
        await ctx.wait_for_process(other, timeout="1d")
    return "gave up"


@process
async def waits_or_hears(ctx: ProcessContext, other: str) -> str:
    await ctx.wait_for_signal("go")
    winner, _ = await ctx.race("either", other=ctx.wait_for_process(other), word=ctx.wait_for_signal("word"))
    return winner


async def test_of_two_that_wait_for_each_other_one_is_refused(process_app: ProcessApp) -> None:
    rt = await process_app.open(waits, tuning=IMPATIENT)
    a, b = await rt.start(waits, "b", id="a"), await rt.start(waits, "a", id="b")
    await asyncio.gather(a.signal("go"), b.signal("go"))
    told = [await a.result(timeout=40), await b.result(timeout=40)]
    assert "process_wait_cycle" in told
    assert set(told) <= {"process_wait_cycle", "heard process_wait_cycle"}


async def test_a_longer_circle_is_broken_once_it_is_closed(process_app: ProcessApp) -> None:
    rt = await process_app.open(waits, tuning=IMPATIENT)
    ring = {"a": "b", "b": "c", "c": "a"}
    handles = {id: await rt.start(waits, other, id=id) for id, other in ring.items()}
    outside = await rt.start(waits, "a", id="outside")
    await outside.signal("go")
    for id in ("a", "b"):
        await handles[id].signal("go")

        async def is_parked(id: str = id) -> bool:
            info = await core_of(rt).store.stream(handles[id].stream)
            record = await handles[id].info()
            return info is not None and info.parked and record.waiting[0].effect.startswith("p/wait:")

        await until(is_parked, seconds=30)
    assert (await handles["a"].why()).code == "", "the cycle is not closed yet"
    await handles["c"].signal("go")
    assert await handles["c"].result(timeout=40) == "process_wait_cycle", "the last process in the cycle fails"
    assert await handles["b"].result(timeout=40) == "heard process_wait_cycle"
    assert await outside.result(timeout=40) == "heard heard heard process_wait_cycle"


async def test_wait_cycle_with_another_wakeup_is_no_deadlock(process_app: ProcessApp) -> None:
    rt = await process_app.open(waits, waits_a_while, waits_or_hears, tuning=IMPATIENT)
    late = await rt.start(waits_a_while, "b", id="a")
    patient = await rt.start(waits, "a", id="b")
    free = await rt.start(waits_or_hears, "d", id="c")
    bound = await rt.start(waits, "c", id="d")
    for one in (late, patient, free, bound):
        await one.signal("go")

    async def all_wait() -> bool:
        infos = [await core_of(rt).store.stream(one.stream) for one in (late, patient, free, bound)]
        records = [await one.info() for one in (late, patient, free, bound)]
        waiting = all(any("wait:" in wait.effect for wait in record.waiting) for record in records)
        return waiting and all(info is not None and info.parked for info in infos)

    await until(all_wait, seconds=30)
    assert [(await one.why()).code for one in (late, patient, free, bound)] == ["", "", "", ""]
    await free.signal("word")
    assert await free.result(timeout=40) == "word"
    assert await bound.result(timeout=40) == "heard word"
    assert (await late.info()).output is None
    await late.cancel()
    with pytest.raises(Error):
        await late.result(timeout=40)


async def test_why_says_that_processes_wait_for_each_other(process_app: ProcessApp) -> None:
    """`why` shows the cycle without a worker that could end it."""
    rt = await process_app.open(waits, tuning=RuntimeOptions(idle_timeout_s=600))
    a, b = await rt.start(waits, "b", id="a"), await rt.start(waits, "a", id="b")
    await asyncio.gather(a.signal("go"), b.signal("go"))

    async def closed() -> bool:
        return (await a.why()).code == (await b.why()).code == "process_wait_cycle"

    await until(closed, seconds=30)
    why = await a.why()
    assert (why.status, why.because) == ("waiting", "deadlock: a -> b -> a; cancel one of them")
    await asyncio.gather(a.cancel(), b.cancel())


# --- starting each other


@process
async def leaf(ctx: ProcessContext, number: int) -> int:
    return number


@process
async def storm(ctx: ProcessContext, count: int) -> Json:
    handles = await asyncio.gather(
        *(ctx.start(leaf, number, id=f"leaf-{number}") for number in range(count)), return_exceptions=True
    )
    await ctx.sleep("again", "1ms")  # it is parked, and entered once more
    return [one.code.value if isinstance(one, Error) else "started" for one in handles]


async def test_children_over_the_limit_are_not_registered(process_app: ProcessApp) -> None:
    rt = await process_app.open(
        leaf, storm, tuning=RuntimeOptions(idle_timeout_s=0, processes=ProcessLimits(children=7))
    )
    told = await (await rt.start(storm, 20, id="storm")).result(timeout=40)
    assert told == ["started"] * 7 + ["process_children_exceeded"] * 13
    there = [one.handle.id for one in await rt.processes.list(ended=True, definition="python:leaf")]
    assert sorted(there) == [f"leaf-{number}" for number in range(7)]
    started = [row for row in await rt.get_process("storm").journal() if '"p/start:' in row.data.decode()]
    assert {f"leaf-{number}" for number in range(7, 20)}.isdisjoint(str(row.data) for row in started)


@process
async def nests(ctx: ProcessContext) -> int:
    try:
        child = await ctx.start(nests)
    except Error as problem:
        return 1 if problem.code is Code.PROCESS_DEPTH_EXCEEDED else 100
    return 1 + int(await ctx.wait_for_process(child))


@process
async def follows(ctx: ProcessContext, left: int) -> str:
    if left:
        await ctx.start(follows, left - 1, id=f"follows-{left - 1}")
    return "over"


async def test_a_process_that_starts_itself_comes_to_an_end(process_app: ProcessApp) -> None:
    rt = await process_app.open(nests, tuning=RuntimeOptions(processes=ProcessLimits(depth=5)))
    assert await (await rt.start(nests, id="n")).result(timeout=60) == 5
    assert len(await rt.processes.list(ended=True)) == 5


async def test_consecutive_processes_do_not_count_as_depth(process_app: ProcessApp) -> None:
    rt = await process_app.open(follows, tuning=RuntimeOptions(processes=ProcessLimits(depth=4)))
    await (await rt.start(follows, 12, id="follows-12")).result(timeout=60)

    async def last() -> bool:
        return await core_of(rt).store.stream(rt.get_process("follows-0").stream) is not None

    await until(last, seconds=60)
