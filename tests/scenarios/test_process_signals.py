"""Signals of a process, and asking it to end."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Code, Error, ProcessContext, ToolError, process
from perdure.codec import Json
from perdure.vocab.records import ProcessEvent
from perdure.vocab.registrations import (
    ProcessWasCancelled,
)
from tests.scenarios.conftest import ProcessApp, until
from tests.scenarios.plants import HURRIED, marks, parked


@pytest.mark.timeout(180)
async def test_signals_are_received_once_and_in_order_despite_reentry(process_app: ProcessApp) -> None:
    entries = 0

    @process
    async def collect(ctx: ProcessContext, n: int) -> Json:
        nonlocal entries
        entries += 1
        got: list[Json] = []
        for i in range(n):
            if i % 10 == 5:
                await ctx.sleep(f"pause {i}", "5ms")  # parks it, so that it is entered again in the middle of the burst
            got.append(await ctx.wait_for_signal("item", timeout="1h"))
        return got

    rt = await process_app.open(collect, tuning=HURRIED)
    sender = await process_app.open(worker=False)
    handle = await rt.start(collect, 100, id="p")

    async def send(who: int) -> None:
        for i in range(10):
            await sender.get_process("p").signal("item", [who, i])
            await asyncio.sleep(0)

    await asyncio.gather(*(send(who) for who in range(10)))
    got = await handle.result(timeout=150)
    came = [
        row.record.payload
        for row in await handle.journal()
        if isinstance(row.record, ProcessEvent) and row.kind == "process_event" and row.record.event == "signal.item"
    ]
    assert got == came
    assert sorted(got) == [[who, i] for who in range(10) for i in range(10)]
    assert entries > 5


async def test_early_signal_is_stored_and_its_repetition_ignored(process_app: ProcessApp) -> None:
    @process
    async def waits(ctx: ProcessContext) -> Json:
        await ctx.wait_for_event("go")
        first = await ctx.wait_for_signal("s")
        return [first, await ctx.wait_for_signal("s")]

    rt = await process_app.open(waits, tuning=HURRIED)
    handle = await rt.start(waits)
    await handle.signal("s", 1, id="one")
    await handle.signal("s", 1, id="one")
    with pytest.raises(Error) as caught:
        await handle.signal("s", 2, id="one")
    assert caught.value.code is Code.PROCESS_EVENT_CONFLICT
    await handle.signal("s", 1, id="two")
    await handle.resolve("go")
    assert await handle.result(timeout=20) == [1, 1]
    with pytest.raises(Error) as caught:
        await handle.signal("s", 3)
    assert caught.value.code is Code.PROCESS_ALREADY_TERMINAL
    for name in ("", "a b", "ä", "a.b"):
        with pytest.raises(Error) as caught:
            await handle.signal(name)
        assert caught.value.code is Code.PROCESS_SIGNAL_INVALID


async def test_a_wait_for_a_signal_that_ran_out_takes_none(process_app: ProcessApp) -> None:
    @process
    async def impatient(ctx: ProcessContext) -> Json:
        code = ""
        try:
            await ctx.wait_for_signal("s", timeout="20ms")
        except ToolError as problem:
            code = problem.code
        return [code, await ctx.wait_for_signal("s")]

    rt = await process_app.open(impatient, tuning=HURRIED)
    handle = await rt.start(impatient)

    async def waits_again() -> bool:
        return ">p/signal:s:2" in await marks(handle)

    await until(waits_again)
    await handle.signal("s", "late")
    assert await handle.result(timeout=20) == ["process_signal_wait_timeout", "late"]


# --- cancelling -------------------------------------------------------------------------------------------------


async def test_a_cancelled_process_cleans_up_and_ends_as_cancelled(process_app: ProcessApp) -> None:
    ran: list[str] = []

    @process
    async def long(ctx: ProcessContext) -> None:
        try:
            await ctx.step("take", lambda: ran.append("take"))
            await ctx.sleep("long", "1h")
        finally:
            await ctx.step("give back", lambda: ran.append("give back"))

    rt = await process_app.open(long, tuning=HURRIED)
    handle = await rt.start(long)
    await parked(rt, handle)
    assert await handle.cancel("not needed")
    assert not await handle.cancel("again")
    assert await handle.wait(timeout=20) == ProcessWasCancelled(reason="not needed")
    assert not await handle.cancel("too late")
    assert ran == ["take", "give back"]


async def test_a_process_that_was_cancelled_before_it_began_never_begins(process_app: ProcessApp) -> None:
    ran: list[str] = []

    @process
    async def long(ctx: ProcessContext) -> None:
        ran.append("entered")

    client = await process_app.open(worker=False)
    handle = await client.start("long")
    await handle.cancel()
    await process_app.open(long)
    assert await handle.wait(timeout=20) == ProcessWasCancelled()
    assert ran == []


async def test_a_running_step_is_not_interrupted_by_a_cancel(process_app: ProcessApp) -> None:
    begun, go_on, ran = asyncio.Event(), asyncio.Event(), list[str]()

    async def work() -> str:
        begun.set()
        await go_on.wait()
        ran.append("worked")
        return "worked"

    @process
    async def busy(ctx: ProcessContext) -> None:
        await ctx.step("work", work)
        ran.append("between")
        await ctx.step("never", lambda: ran.append("never"))

    rt = await process_app.open(busy)
    handle = await rt.start(busy)
    await begun.wait()
    await handle.cancel()
    go_on.set()
    assert await handle.wait(timeout=20) == ProcessWasCancelled()
    assert ran == ["worked", "between"]
