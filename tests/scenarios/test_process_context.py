"""What a process function is given besides steps and waits: phases, its own chronology, what its host said."""

from __future__ import annotations

import msgspec
import pytest

from perdure import Error, ProcessContext, Tuning, process
from perdure.codec import Json
from perdure.errors import Code
from tests.scenarios.conftest import Plant, until


class Audit(msgspec.Struct, frozen=True):
    """What the host says to an extension."""

    ticket: str
    level: int = 1


@process
async def phased(ctx: ProcessContext) -> Json:
    with ctx.phase("fetch"):
        await ctx.step("get", lambda: 1)
        await ctx.signal("go")
    for _ in range(2):
        with ctx.phase("write"):
            pass
    try:
        with ctx.phase("check"):
            raise ValueError("no")
    except ValueError:
        pass
    with ctx.phase("wait"):
        await ctx.signal("end")
    return [f"{moment.what} {moment.name}" for moment in await ctx.chronological_projection()]


async def test_phases_stand_in_the_log_once_however_often_it_is_entered(plant: Plant) -> None:
    rt = await plant.open(phased, tuning=Tuning(patience_s=0))
    handle = await rt.start(phased, id="p")

    async def waits_for(name: str) -> bool:
        return any(wait.effect.startswith(f"p/signal:{name}") for wait in (await handle.record()).waiting)

    await until(lambda: waits_for("go"), seconds=30)
    (fetch,) = (await handle.record()).phases
    assert (fetch.name, fetch.until) == ("fetch", None)
    await handle.signal("go")
    await until(lambda: waits_for("end"), seconds=30)
    phases = (await handle.record()).phases
    assert [one.name for one in phases] == ["fetch", "write", "write", "check", "wait"]
    assert [one.until is None for one in phases] == [False, False, False, False, True]
    assert all(one.until is None or one.until >= one.since for one in phases)
    await handle.signal("end")
    seen = await handle.result(timeout=30)
    told = [f"{moment.what} {moment.name}" for moment in await handle.chronology()]
    assert told[: len(seen)] == seen, "what it saw of itself is how it stands"
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
    seqs = [moment.seq for moment in await handle.chronology()]
    assert seqs == sorted(set(seqs))


async def test_nobody_outside_says_in_which_phase_a_process_is(plant: Plant) -> None:
    rt = await plant.open(phased)
    handle = await rt.start(phased, id="p")
    with pytest.raises(Error) as caught:
        await handle.append("process.phase", {"phase": "x", "edge": "begun"}, replay="r")
    assert caught.value.code is Code.PROCESS_EVENT_UNDECLARED
    await handle.cancel()


@process
async def child(ctx: ProcessContext) -> Json:
    audit = await ctx.protocol_extension("audit", Audit)
    return None if audit is None else [audit.ticket, audit.level]


@process
async def parent(ctx: ProcessContext) -> Json:
    audit = await ctx.protocol_extension("audit", Audit)
    other = await ctx.protocol_extension("audit", int)
    absent = await ctx.protocol_extension("nothing", Audit)
    inherited = await ctx.wait(await ctx.start(child))
    return [None if audit is None else audit.ticket, other, absent, inherited]


async def test_what_the_host_says_reaches_a_process_and_its_children_by_its_type(plant: Plant) -> None:
    rt = await plant.open(parent, child)
    said = {"audit": {"ticket": "T-1", "level": 3}}
    told = await rt.start(parent, id="told", extensions=said)
    assert await told.result(timeout=30) == ["T-1", None, None, ["T-1", 3]]
    untold = await rt.start(parent, id="untold")
    assert await untold.result(timeout=30) == [None, None, None, None]
    assert await (await rt.start(parent, id="told", extensions=said)).result() == ["T-1", None, None, ["T-1", 3]]
    with pytest.raises(Error) as caught:
        await rt.start(parent, id="told", extensions={"audit": {"ticket": "T-2"}})
    assert caught.value.code is Code.PROCESS_CONFLICT, "what it was told is part of what it is"
    with pytest.raises(Error) as caught:
        await rt.start(parent, id="bad", extensions={"audit": {1, 2}})
    assert caught.value.code is Code.INVALID_JSON
    assert await rt.store.stream(rt.process("bad").stream) is None


@process
async def subscribes(ctx: ProcessContext) -> Json:
    return [ctx.triggers.registration_originator, ctx.triggers.registration_wake_target]


async def test_triggers_of_a_process_belong_to_whom_the_process_belongs_to(plant: Plant) -> None:
    rt = await plant.open(subscribes)
    assert await (await rt.start(subscribes)).result(timeout=30) == [None, None], "to the application itself"
