"""Who goes on with a process whose worker is gone."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Code, Error, ProcessContext, Runtime, Tuning, process
from perdure.codec import Json
from perdure.processes.registration import environment
from perdure.runtime.processes.starting import register
from perdure.store.shapes import Place
from perdure.vocab.registrations import (
    EngineInput,
    ProcessInput,
    ProcessWasAbandoned,
    Registration,
)
from tests.scenarios.conftest import Plant, until
from tests.scenarios.plants import HURRIED, marks, parked

ENV, ENV_BLOB = environment({}, {})


class Bound:
    """Code for processes that only their first worker may run."""

    definitions = ("bound",)
    place = Place()

    def __init__(self) -> None:
        self.entered = 0

    async def run(self, ctx: ProcessContext, given: ProcessInput) -> Json:
        self.entered += 1
        return await ctx.event("go")


def bound(id: str) -> Registration:
    return Registration(process_id=id, definition="bound", input=EngineInput(kind="k"), recovery="owner_bound", env=ENV)


async def opened(plant: Plant, code: Bound, **tuning: float) -> Runtime:
    return await plant.open(code, tuning=Tuning(**tuning))  # pyright: ignore[reportArgumentType]


async def test_a_drained_worker_abandons_what_nobody_else_may_run(plant: Plant) -> None:
    code = Bound()
    rt = await opened(plant, code, drain_s=0.0, patience_s=0.0)
    handle = await register(rt, bound("b"), env=ENV_BLOB)

    async def waits() -> bool:
        return ">p/event:go" in await marks(handle)

    await until(waits)
    await plant.close(rt)
    rt = await opened(plant, code)
    output = await rt.process("b").wait(timeout=20)
    assert isinstance(output, ProcessWasAbandoned)
    assert code.entered == 1


async def test_an_abandoned_process_is_neither_failed_nor_cancelled(plant: Plant) -> None:
    @process
    async def waits(ctx: ProcessContext) -> None:
        await ctx.event("never")

    rt = await plant.open(waits, tuning=HURRIED)
    handle = await rt.start(waits)
    await parked(rt, handle)
    assert await handle.abandon("nobody needs it", by="ann")
    assert await handle.wait(timeout=20) == ProcessWasAbandoned(reason="nobody needs it", by="ann")
    with pytest.raises(Error) as caught:
        await handle.abandon()
    assert caught.value.code is Code.PROCESS_ALREADY_TERMINAL
    with pytest.raises(Error) as caught:
        await handle.result(timeout=20)
    assert caught.value.details["reason"] == "process_abandoned"


async def test_a_process_that_waits_in_memory_is_abandoned_like_one_that_is_parked(plant: Plant) -> None:
    waiting = asyncio.Event()

    @process
    async def waits(ctx: ProcessContext) -> None:
        await ctx.step("begin", waiting.set)
        await ctx.event("never")

    rt = await plant.open(waits)
    handle = await rt.start(waits)
    await waiting.wait()
    assert await handle.abandon("nobody needs it", by="ann")
    assert await handle.wait(timeout=20) == ProcessWasAbandoned(reason="nobody needs it", by="ann")


async def test_one_that_only_its_worker_may_run_is_abandoned_while_it_waits_there(plant: Plant) -> None:
    code = Bound()
    rt = await opened(plant, code)
    handle = await register(rt, bound("b"), env=ENV_BLOB)

    async def waits() -> bool:
        return ">p/event:go" in await marks(handle)

    await until(waits)
    assert await handle.abandon("nobody needs it", by="ann")
    assert await handle.wait(timeout=20) == ProcessWasAbandoned(reason="nobody needs it", by="ann")


async def test_what_an_abandoned_process_is_doing_comes_to_its_end_first(plant: Plant) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        began.set()
        await go_on.wait()
        return "worked"

    @process
    async def works(ctx: ProcessContext) -> None:
        await ctx.step("work", work)
        await ctx.event("never")

    rt = await plant.open(works)
    handle = await rt.start(works)
    await began.wait()
    await handle.abandon()
    assert (await handle.record()).output is None
    go_on.set()
    assert isinstance(await handle.wait(timeout=20), ProcessWasAbandoned)
    assert any(row.kind == "effect_settled" and b"worked" in row.data for row in await rt.store.read(handle.stream))
