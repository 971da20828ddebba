"""Recovery of processes whose worker is gone."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Code, Error, ProcessContext, Runtime, RuntimeOptions, process
from perdure.codec import Json
from perdure.processes.registration import environment
from perdure.runtime.internals import core_of
from perdure.runtime.processes.starting import register
from perdure.store.shapes import Placement
from perdure.vocab.registrations import (
    EngineInput,
    ProcessInput,
    ProcessWasAbandoned,
    Registration,
)
from tests.scenarios.conftest import ProcessApp, until
from tests.scenarios.plants import HURRIED, marks, parked

ENV, ENV_BLOB = environment({}, {})


class Bound:
    """Code for processes that only their first worker may run."""

    definitions = ("bound",)
    place = Placement()

    def __init__(self) -> None:
        self.entered = 0

    async def run(self, ctx: ProcessContext, given: ProcessInput) -> Json:
        self.entered += 1
        return await ctx.wait_for_event("go")


def bound(id: str) -> Registration:
    return Registration(process_id=id, definition="bound", input=EngineInput(kind="k"), recovery="owner_bound", env=ENV)


async def opened(process_app: ProcessApp, code: Bound, **tuning: float) -> Runtime:
    return await process_app.open(code, tuning=RuntimeOptions(**tuning))  # pyright: ignore[reportArgumentType]


async def test_drained_worker_abandons_its_owner_bound_processes(process_app: ProcessApp) -> None:
    code = Bound()
    rt = await opened(process_app, code, drain_s=0.0, idle_timeout_s=0.0)
    handle = await register(core_of(rt), bound("b"), env=ENV_BLOB)

    async def waits() -> bool:
        return ">p/event:go" in await marks(handle)

    await until(waits)
    await process_app.close(rt)
    rt = await opened(process_app, code)
    output = await rt.get_process("b").wait(timeout=20)
    assert isinstance(output, ProcessWasAbandoned)
    assert code.entered == 1


async def test_an_abandoned_process_is_neither_failed_nor_cancelled(process_app: ProcessApp) -> None:
    @process
    async def waits(ctx: ProcessContext) -> None:
        await ctx.wait_for_event("never")

    rt = await process_app.open(waits, tuning=HURRIED)
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


async def test_process_waiting_in_memory_is_abandoned(process_app: ProcessApp) -> None:
    waiting = asyncio.Event()

    @process
    async def waits(ctx: ProcessContext) -> None:
        await ctx.step("begin", waiting.set)
        await ctx.wait_for_event("never")

    rt = await process_app.open(waits)
    handle = await rt.start(waits)
    await waiting.wait()
    assert await handle.abandon("nobody needs it", by="ann")
    assert await handle.wait(timeout=20) == ProcessWasAbandoned(reason="nobody needs it", by="ann")


async def test_waiting_owner_bound_process_is_abandoned(process_app: ProcessApp) -> None:
    code = Bound()
    rt = await opened(process_app, code)
    handle = await register(core_of(rt), bound("b"), env=ENV_BLOB)

    async def waits() -> bool:
        return ">p/event:go" in await marks(handle)

    await until(waits)
    assert await handle.abandon("nobody needs it", by="ann")
    assert await handle.wait(timeout=20) == ProcessWasAbandoned(reason="nobody needs it", by="ann")


async def test_abandoned_process_finishes_its_running_step(process_app: ProcessApp) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        began.set()
        await go_on.wait()
        return "worked"

    @process
    async def works(ctx: ProcessContext) -> None:
        await ctx.step("work", work)
        await ctx.wait_for_event("never")

    rt = await process_app.open(works)
    handle = await rt.start(works)
    await began.wait()
    await handle.abandon()
    assert (await handle.info()).output is None
    go_on.set()
    assert isinstance(await handle.wait(timeout=20), ProcessWasAbandoned)
    assert any(
        row.kind == "effect_settled" and b"worked" in row.data for row in await core_of(rt).store.read(handle.stream)
    )
