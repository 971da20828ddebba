"""The process context besides steps and waits: phases, its own timeline, host extensions."""

from __future__ import annotations

import msgspec
import pytest

from perdure import Error, ProcessContext, RuntimeOptions, process
from perdure.codec import Json
from perdure.errors import Code
from perdure.runtime.internals import core_of
from tests.scenarios.conftest import ProcessApp, until


class Audit(msgspec.Struct, frozen=True):
    """Values of the host for an extension."""

    ticket: str
    level: int = 1


@process
async def phased(ctx: ProcessContext) -> Json:
    with ctx.phase("fetch"):
        await ctx.step("get", lambda: 1)
        await ctx.wait_for_signal("go")
    for _ in range(2):
        with ctx.phase("write"):
            pass
    try:
        with ctx.phase("check"):
            raise ValueError("no")
    except ValueError:
        pass
    with ctx.phase("wait"):
        await ctx.wait_for_signal("end")
    return [f"{moment.what} {moment.name}" for moment in await ctx.timeline()]


async def test_phases_stand_in_the_log_once_however_often_it_is_entered(process_app: ProcessApp) -> None:
    rt = await process_app.open(phased, tuning=RuntimeOptions(idle_timeout_s=0))
    handle = await rt.start(phased, id="p")

    async def waits_for(name: str) -> bool:
        return any(wait.effect.startswith(f"p/signal:{name}") for wait in (await handle.info()).waiting)

    await until(lambda: waits_for("go"), seconds=30)
    (fetch,) = (await handle.info()).phases
    assert (fetch.name, fetch.until) == ("fetch", None)
    await handle.signal("go")
    await until(lambda: waits_for("end"), seconds=30)
    phases = (await handle.info()).phases
    assert [one.name for one in phases] == ["fetch", "write", "write", "check", "wait"]
    assert [one.until is None for one in phases] == [False, False, False, False, True]
    assert all(one.until is None or one.until >= one.since for one in phases)
    await handle.signal("end")
    seen = await handle.result(timeout=30)
    told = [f"{moment.what} {moment.name}" for moment in await handle.timeline()]
    assert told[: len(seen)] == seen, "the process sees its own timeline"
    assert (told[0], told[-1]) == ("registered python:phased", "ended process.completed")
    assert [one for one in told if one.startswith(("phase", "signal"))] == [
        "phase fetch",
        "signal go",
        "phase fetch",
        *["phase write"] * 4,
        *["phase check"] * 2,
        "phase wait",
        "signal end",
        "phase wait",
    ]
    seqs = [moment.seq for moment in await handle.timeline()]
    assert seqs == sorted(set(seqs))


@pytest.mark.any_store
async def test_phase_event_is_refused_from_outside(process_app: ProcessApp) -> None:
    rt = await process_app.open(phased)
    handle = await rt.start(phased, id="p")
    with pytest.raises(Error) as caught:
        await handle.append_event("process.phase", {"phase": "x", "edge": "begun"}, replay="r")
    assert caught.value.code is Code.PROCESS_EVENT_UNDECLARED
    await handle.cancel()


@process
async def child(ctx: ProcessContext) -> Json:
    audit = await ctx.extension("audit", Audit)
    return None if audit is None else [audit.ticket, audit.level]


@process
async def parent(ctx: ProcessContext) -> Json:
    audit = await ctx.extension("audit", Audit)
    other = await ctx.extension("audit", int)
    absent = await ctx.extension("nothing", Audit)
    inherited = await ctx.wait_for_process(await ctx.start(child))
    return [None if audit is None else audit.ticket, other, absent, inherited]


async def test_host_extensions_reach_a_process_and_its_children(process_app: ProcessApp) -> None:
    rt = await process_app.open(parent, child)
    said = {"audit": {"ticket": "T-1", "level": 3}}
    told = await rt.start(parent, id="told", extensions=said)
    assert await told.result(timeout=30) == ["T-1", None, None, ["T-1", 3]]
    untold = await rt.start(parent, id="untold")
    assert await untold.result(timeout=30) == [None, None, None, None]
    assert await (await rt.start(parent, id="told", extensions=said)).result() == ["T-1", None, None, ["T-1", 3]]
    with pytest.raises(Error) as caught:
        await rt.start(parent, id="told", extensions={"audit": {"ticket": "T-2"}})
    assert caught.value.code is Code.PROCESS_CONFLICT, "extensions are part of the registration"
    with pytest.raises(Error) as caught:
        await rt.start(parent, id="bad", extensions={"audit": {1, 2}})
    assert caught.value.code is Code.INVALID_JSON
    assert await core_of(rt).store.stream(rt.get_process("bad").stream) is None


@process
async def subscribes(ctx: ProcessContext) -> Json:
    return [ctx.triggers.registration_originator, ctx.triggers.registration_wake_target]


async def test_triggers_of_a_process_have_the_owner_of_the_process(process_app: ProcessApp) -> None:
    rt = await process_app.open(subscribes)
    assert await (await rt.start(subscribes)).result(timeout=30) == [None, None], "to the application itself"
