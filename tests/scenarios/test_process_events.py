"""Declared events of processes, from inside and from outside, and the sessions they wake."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Agent, Code, Error, ProcessContext, Runtime, process
from perdure.codec import Json
from perdure.models.scripted import ScriptedModel, say
from perdure.processes.registration import environment
from perdure.runtime.internals import core_of
from perdure.runtime.processes.events import ProcessEventsClient
from perdure.runtime.processes.handle import ProcessHandle
from perdure.runtime.processes.starting import register
from perdure.vocab.messages import Text
from perdure.vocab.processes import SessionScope
from perdure.vocab.records import ProcessEvent
from perdure.vocab.registrations import (
    EngineInput,
    EventType,
    ExternalInput,
    Pointer,
    Present,
    ProcessFailure,
    Registration,
    Semantics,
    Template,
    WakeSpec,
)
from tests.scenarios.conftest import NewStore, ProcessApp, until
from tests.scenarios.plants import HURRIED, parked

PROGRESS = EventType(name="progress", payload_schema={"type": "object", "required": ["n"]})


async def events(handle: ProcessHandle, kind: str) -> list[Json]:
    records = [row.record for row in await handle.journal()]
    return [record.payload for record in records if isinstance(record, ProcessEvent) and record.event == kind]


async def test_declared_events_are_emitted_once_however_often_the_function_is_entered(process_app: ProcessApp) -> None:
    @process(events=[PROGRESS])
    async def tells(ctx: ProcessContext) -> None:
        await ctx.emit("progress", {"n": 1})
        await ctx.wait_for_event("go")
        await ctx.emit("progress", {"n": 2})
        await ctx.emit("progress", {"n": 2})

    rt = await process_app.open(tells, tuning=HURRIED)
    handle = await rt.start(tells)
    await parked(rt, handle)
    await handle.resolve("go")
    await handle.result(timeout=20)
    assert await events(handle, "progress") == [{"n": 1}, {"n": 2}, {"n": 2}]
    client = ProcessEventsClient(handle)
    info = await client.wait_event_after("progress", 0)
    assert (info.payload, await client.count_events_through("progress", info.sequence)) == ({"n": 1}, 1)
    assert await client.count_events_through("progress", 99) == 3
    assert await client.count_events_through("prog", 99) == 0
    assert (await client.wait_event_after("progress", info.sequence)).payload == {"n": 2}


async def test_events_that_were_not_declared_or_do_not_fit_are_refused(process_app: ProcessApp) -> None:
    @process(events=[PROGRESS])
    async def tells(ctx: ProcessContext, event: str, payload: Json) -> None:
        await ctx.emit(event, payload)

    rt = await process_app.open(tells)
    for event, payload, code in [
        ("unheard", None, "process_event_undeclared"),
        ("progress", {"m": 1}, "process_event_invalid"),
        ("process.completed", None, "process_event_replay_key_required"),
    ]:
        output = await (await rt.start(tells, event, payload)).wait(timeout=20)
        if event != "process.completed":
            assert isinstance(output, ProcessFailure)
            assert output.code == code
    handle = await rt.start(tells, "progress", {"n": 1})
    await handle.wait(timeout=20)
    assert await events(handle, "progress") == [{"n": 1}]


def outside(id: str, **more: object) -> Registration:
    return Registration(
        process_id=id,
        definition="external",
        input=ExternalInput(),
        recovery="externally_owned",
        **more,  # pyright: ignore[reportArgumentType]
    )


async def test_a_process_that_is_done_outside_is_ended_from_outside_once(process_app: ProcessApp) -> None:
    rt = await process_app.open()
    asked = outside("x", event_types=(PROGRESS,))
    handle = await register(core_of(rt), asked)
    await parked(rt, handle)
    assert await handle.append_event("progress", {"n": 1}, replay="one")
    assert not await handle.append_event("progress", {"n": 1}, replay="one")
    for payload, replay, code in [
        ({"n": 2}, "one", Code.PROCESS_EVENT_CONFLICT),
        ({}, "two", Code.PROCESS_EVENT_INVALID),
    ]:
        with pytest.raises(Error) as caught:
            await handle.append_event("progress", payload, replay=replay)
        assert caught.value.code is code
    with pytest.raises(Error) as caught:
        await handle.append_event("process.completed", 1, replay="mine")
    assert caught.value.code is Code.PROCESS_NOT_EXTERNAL
    with pytest.raises(Error) as caught:
        await handle.append_event("process.cancel_requested", None, replay=" ")
    assert caught.value.code is Code.PROCESS_EVENT_REPLAY_KEY_REQUIRED
    waiting = asyncio.create_task(handle.result(timeout=20))
    assert await handle.complete({"rows": 7})
    assert not await handle.complete({"rows": 7})
    for again in (handle.complete({"rows": 8}), handle.fail("late")):
        with pytest.raises(Error) as caught:
            await again
        assert caught.value.code is Code.PROCESS_ALREADY_TERMINAL
    assert await waiting == {"rows": 7}
    assert (await handle.info()).status == "completed"
    assert (await register(core_of(rt), asked)).id == "x"


async def test_local_process_refuses_external_completion(process_app: ProcessApp) -> None:
    @process
    async def ours(ctx: ProcessContext) -> None:
        await ctx.wait_for_event("never")

    rt = await process_app.open(ours)
    handle = await rt.start(ours)
    with pytest.raises(Error) as caught:
        await handle.complete(1)
    assert caught.value.code is Code.PROCESS_NOT_EXTERNAL


ENV, ENV_BLOB = environment({}, {})


@pytest.mark.any_store
@pytest.mark.parametrize(
    "broken",
    [
        outside("x", env=ENV),
        Registration(process_id="x", definition="d", input=EngineInput(kind="k"), recovery="rerunnable"),
        Registration(process_id="x", definition="d", input=EngineInput(kind="k"), recovery="externally_owned", env=ENV),
        Registration(process_id="x", definition="external", input=ExternalInput(), recovery="rerunnable"),
        Registration(process_id="x", definition=" ", input=ExternalInput(), recovery="externally_owned"),
        outside("x", event_types=(EventType(name=" "),)),
        outside("x", event_types=(PROGRESS, PROGRESS)),
        outside("x", event_types=(EventType(name="process.completed"),)),
        outside("x", event_types=(EventType(name="gone", semantics=Semantics(terminal="failed")),)),
        outside("x", event_types=(EventType(name="odd", payload_schema={"type": "nonsense"}),)),
    ],
)
async def test_invalid_registration_is_refused_and_nothing_is_written(
    broken: Registration, new_store: NewStore
) -> None:
    async with Runtime(new_store()) as rt:
        with pytest.raises(Error) as caught:
            await register(core_of(rt), broken, env=ENV_BLOB if broken.env else None)
        assert caught.value.code in (Code.PROCESS_REGISTRATION_INVALID, Code.PROCESS_EVENT_TYPE_INVALID)
        assert await core_of(rt).store.streams(tenant=rt.tenant, kind="process", limit=9) == ()


# --- wakes ------------------------------------------------------------------------------------------------------


WAKES = EventType(
    name="found",
    semantics=Semantics(
        wake=WakeSpec(input=Template(text="Found {n}", fields={"n": Pointer(path="/n")}), when=Present(path="/n"))
    ),
)


async def test_waking_event_reaches_its_session_once_or_is_discarded(process_app: ProcessApp) -> None:
    model = ScriptedModel(say("hello"))
    runtime = Runtime(process_app.new_store(), agents=[Agent("a", model=model)], options=HURRIED)
    async with runtime as rt:
        session = await rt.session("s", agent="a")
        await session.ask("hi")
        target = SessionScope(session_id="s")
        handle = await register(
            core_of(rt), outside("x", event_types=(WAKES,), wake_target=target, wake_on_end=True, label="scan")
        )
        await handle.append_event("found", {"n": 3}, replay="one")
        await handle.append_event("found", {"n": 3}, replay="one")
        await handle.append_event("found", {}, replay="not worth it")

        async def told(*words: str) -> bool:
            texts = [part.text for m in await session.messages() for part in m.parts if isinstance(part, Text)]
            said = [text.rpartition("- text: ")[2] for text in texts]
            return [text.partition(" (wording")[0] for text in said[-2:]] == list(words)

        await until(lambda: told('"Found 3"', "hello"))
        await handle.complete(5)
        await until(lambda: told('"finished: 5"', "hello"))
        await session.delete()
        assert (await handle.info()).status == "completed"
        other = await register(core_of(rt), outside("y", event_types=(WAKES,), wake_target=target))
        await other.append_event("found", {"n": 4}, replay="one")

        async def discarded() -> bool:
            return bool(await events(other, "process.wake_discarded"))

        await until(discarded)
        [payload] = await events(other, "process.wake_discarded")
        assert payload["because"] == "session_unknown"
        assert (await other.info()).status == "registered"
