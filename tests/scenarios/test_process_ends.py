"""When a process is over: deleted for good, its id never used again; children let go; and all of it encrypted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from perdure import Agent, ProcessContext, Runtime, RuntimeOptions, ToolContext, process, tool
from perdure.errors import Code, Error
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of
from perdure.runtime.processes.handle import ProcessHandle
from perdure.runtime.processes.starting import register
from perdure.security import AesGcmCodec
from perdure.store.sqlite import SqliteStore
from perdure.vocab.promises import EventKey
from perdure.vocab.records import TurnEnded
from perdure.vocab.registrations import ExternalInput, ProcessWasAbandoned, Registration
from tests.scenarios.conftest import NewStore, until

HURRIED = RuntimeOptions(idle_timeout_s=0)
SECRET = "SECRET-4711"


@process
async def asks(ctx: ProcessContext) -> object:
    return await ctx.wait_for_event("go")


@process
async def waits_for(ctx: ProcessContext, other: str) -> str:
    try:
        return str(await ctx.wait_for_process(other))
    except Exception as problem:  # noqa: BLE001 - what it is told is what it returns
        return f"{getattr(problem, 'code', problem)}"


def external(id: str) -> Registration:
    return Registration(process_id=id, definition="external", input=ExternalInput(), recovery="externally_owned")


@pytest.fixture
async def opened(new_store: NewStore) -> AsyncIterator[Runtime]:
    async with Runtime(new_store(), processes=[asks, waits_for], options=HURRIED) as rt:
        yield rt


def everywhere(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*") if file.is_file())


async def refused(what: object) -> Error:
    with pytest.raises(Error) as caught:
        await what  # pyright: ignore[reportGeneralTypeIssues]
    return caught.value


async def waits(rt: Runtime, handle: ProcessHandle) -> None:
    async def is_parked() -> bool:
        info = await core_of(rt).store.stream(handle.stream)
        return info is not None and info.parked and info.owner is None

    await until(is_parked)


# --- deleting ---------------------------------------------------------------------------------------------------


async def test_ended_process_is_deleted_and_its_id_stays_taken(opened: Runtime) -> None:
    rt = opened
    handle = await rt.start(asks, id="p")
    await waits(rt, handle)
    assert (await refused(handle.delete())).code is Code.PROCESS_NOT_ENDED
    await handle.resolve("go", 1)
    assert await handle.result(timeout=20) == 1
    assert await handle.delete()
    assert await core_of(rt).store.stream(handle.stream) is None
    assert await rt.processes.list(ended=True) == ()
    assert not await handle.delete()
    for same in (lambda: rt.start(asks, id="p"), lambda: rt.start(waits_for, "x", id="p")):
        assert (await refused(same())).code is Code.PROCESS_CONFLICT
    assert await core_of(rt).store.stream(handle.stream) is None, "nothing half registered"
    for said in (handle.info, lambda: handle.signal("s"), lambda: handle.resolve("go", 2), handle.cancel, handle.why):
        assert (await refused(said())).code is Code.PROCESS_UNKNOWN


async def test_wait_for_a_deleted_process_fails(opened: Runtime) -> None:
    rt = opened
    await register(core_of(rt), external("job"))
    waiter = await rt.start(waits_for, "job")
    await waits(rt, waiter)
    await rt.get_process("job").complete(7)
    assert await waiter.result(timeout=20) == "7"
    await rt.get_process("job").delete()
    late = await rt.start(waits_for, "job", id="late")
    assert await late.result(timeout=20) == "process_unknown"


async def test_the_key_of_a_deleted_process_answers_nothing(new_store: NewStore) -> None:
    keys: list[EventKey] = []

    @process
    async def hands_out(ctx: ProcessContext) -> object:
        keys.append(await ctx.event_key("go"))
        return await ctx.wait_for_event("go")

    async with Runtime(new_store(), processes=[hands_out], options=HURRIED) as rt:
        handle = await rt.start(hands_out, id="k")
        await waits(rt, handle)
        key = keys[0]
        await rt.resolve(key, "yes")
        assert await handle.result(timeout=20) == "yes"
        await handle.delete()
        assert (await refused(rt.resolve(key, "again"))).code is Code.EVENT_KEY_INVALID


# --- letting go -------------------------------------------------------------------------------------------------


async def test_an_abandoned_process_lets_go_of_the_agent_it_waited_for(new_store: NewStore) -> None:
    begun = asyncio.Event()

    @tool(effect="resumable")
    async def think(ctx: ToolContext) -> object:
        """Think for ever."""
        begun.set()
        return await ctx.wait_for_event("never")

    @process
    async def delegates(ctx: ProcessContext) -> str:
        return await ctx.ask("thinker", "think")

    thinker = Agent("thinker", model=ScriptedModel(call("think"), say("thought")), tools=[think])
    async with Runtime(new_store(), agents=[thinker], processes=[delegates], options=HURRIED) as rt:
        handle = await rt.start(delegates, id="d")
        await begun.wait()
        await waits(rt, handle)
        assert await handle.abandon("enough", by="ann")
        assert await handle.wait(timeout=20) == ProcessWasAbandoned(reason="enough", by="ann")
        [child] = await core_of(rt).session_streams()
        session = rt.get_session(child.name)

        async def over() -> bool:
            return any(isinstance(row.record, TurnEnded) for row in await session.journal())

        await until(over, seconds=20)
        [ended] = [row.record for row in await session.journal() if isinstance(row.record, TurnEnded)]
        assert (ended.status, ended.reason) == ("stopped", "cancelled")


# --- encrypted --------------------------------------------------------------------------------------------------


@process
async def child_of(ctx: ProcessContext, word: str) -> str:
    return word


@process(events=["said"])
async def secretive(ctx: ProcessContext, word: str) -> list[object]:
    step = await ctx.step("s", lambda: f"step {word}", effect="pure")
    heard = await ctx.wait_for_signal("tell")
    await ctx.emit("said", word)
    child = await ctx.start(child_of, word)
    return [step, heard, await ctx.wait_for_process(child)]


async def test_a_process_works_encrypted_on_every_store(new_store: NewStore) -> None:
    codec = AesGcmCodec({"k1": bytes(range(32))})
    async with Runtime(new_store(), processes=[secretive, child_of], payload_codec=codec, options=HURRIED) as rt:
        handle = await rt.start(secretive, SECRET, id="p", label="a label")
        await waits(rt, handle)
    async with Runtime(new_store(), processes=[secretive, child_of], payload_codec=codec, options=HURRIED) as rt:
        handle = rt.get_process("p")
        await handle.signal("tell", f"heard {SECRET}")
        assert await handle.result(timeout=20) == [f"step {SECRET}", f"heard {SECRET}", SECRET]
        listed = await rt.processes.list(ended=True)
        assert [(one.handle.id, one.status) for one in listed] == [("p/child_of:1", "completed"), ("p", "completed")]
        assert listed[1].registration.label == "a label"
        await register(core_of(rt), external("job"))
        assert await rt.get_process("job").complete(SECRET)
        assert await rt.get_process("job").delete()


async def test_nothing_a_process_was_told_is_readable_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    codec = AesGcmCodec({"k1": bytes(range(32))})
    async with AsyncExitStack() as stack:
        rt = Runtime(
            SqliteStore(path, SystemClock()), processes=[secretive, child_of], payload_codec=codec, options=HURRIED
        )
        await stack.enter_async_context(rt)
        handle = await rt.start(secretive, SECRET, id="p")
        await handle.signal("tell", f"heard {SECRET}")
        await handle.result(timeout=20)
    assert SECRET.encode() not in everywhere(path)
