"""Processes, looked after together."""

from __future__ import annotations

import pytest

from perdure import Code, Error, ProcessContext, process
from perdure.compat.seeds import SeedProcesses
from perdure.vocab.registrations import (
    ProcessWasCancelled,
)
from tests.scenarios.conftest import ProcessApp
from tests.scenarios.plants import HURRIED, parked


async def test_processes_are_listed_filtered_validated_and_cancelled_together(process_app: ProcessApp) -> None:
    @process
    async def waits(ctx: ProcessContext) -> None:
        await ctx.wait_for_event("never")

    @process
    async def ends(ctx: ProcessContext) -> int:
        return 1

    rt = await process_app.open(waits, ends, tuning=HURRIED)
    await (await rt.start(ends, id="e")).result(timeout=20)
    handles = [await rt.start(waits, id=f"w{n}") for n in range(3)]
    for handle in handles:
        await parked(rt, handle)
    assert {one.handle.id for one in await rt.processes.list()} == {"w0", "w1", "w2"}
    assert {one.handle.id for one in await rt.processes.list(ended=True)} == {"w0", "w1", "w2", "e"}
    assert [one.handle.id for one in await rt.processes.list(ended=True, definition="python:ends")] == ["e"]
    assert await rt.processes.list(session="nobody's") == ()
    first = await rt.processes.list(limit=2)
    rest = await rt.processes.list(limit=2, before=first[-1].place)
    assert sorted(one.handle.id for one in (*first, *rest)) == ["w0", "w1", "w2"]
    [one, two] = await SeedProcesses(rt).validate(handles[0].to_json(), "w1")
    assert (one.id, two.id) == ("w0", "w1")
    for bad, code in [
        ({"__handle__": "file", "id": "w0"}, Code.PROCESS_HANDLE_INVALID),
        ({"__handle__": "process", "id": "w0", "more": 1}, Code.PROCESS_HANDLE_INVALID),
        (7, Code.PROCESS_HANDLE_INVALID),
        ("a#b", Code.PROCESS_HANDLE_INVALID),
        ("nobody", Code.PROCESS_UNKNOWN),
    ]:
        with pytest.raises(Error) as caught:
            await SeedProcesses(rt).validate(bad)
        assert caught.value.code is code
    assert await rt.processes.cancel_all(reason="closing") == 3
    for handle in handles:
        assert await handle.wait(timeout=20) == ProcessWasCancelled(reason="closing")
