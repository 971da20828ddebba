"""Durable functions: steps, sleeps, events and signals, parked and entered again, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from perdure import Agent, Code, Error, OutcomeUnknown, ProcessContext, Runtime, ToolError, Tuning, process
from perdure.codec import Json
from perdure.models.scripted import ScriptedModel, say
from perdure.processes.record import fold_all
from perdure.processes.registration import environment
from perdure.runtime.clock import SystemClock
from perdure.runtime.process_function import ProcessCode
from perdure.runtime.process_handle import ProcessHandle
from perdure.runtime.starting import register
from perdure.store.memory.store import MemoryStore
from perdure.store.protocol import Place
from perdure.vocab.messages import Text
from perdure.vocab.outcomes import DurableStepOutcome
from perdure.vocab.processes import SessionScope
from perdure.vocab.records import EffectSettled, EffectStarted, ProcessEvent
from perdure.vocab.registrations import (
    EngineInput,
    EventType,
    ExternalInput,
    Pointer,
    Present,
    ProcessFailure,
    ProcessInput,
    ProcessWasAbandoned,
    ProcessWasCancelled,
    Registration,
    Semantics,
    Succeeded,
    Template,
    WakeSpec,
)
from tests.scenarios.conftest import NewStore, until

HURRIED = Tuning(patience_s=0.0)


class Plant:
    """Opens runtimes with processes on one store, and closes them."""

    def __init__(self, new_store: NewStore, stack: AsyncExitStack) -> None:
        self.new_store = new_store
        self._stack = stack
        self._closed: set[Runtime] = set()

    async def open(self, *functions: ProcessCode, worker: bool = True, tuning: Tuning | None = None) -> Runtime:
        runtime = Runtime(self.new_store(), processes=functions, worker=worker, tuning=tuning, deps="the deps")
        await runtime.__aenter__()
        self._stack.push_async_callback(self.close, runtime)
        return runtime

    async def close(self, runtime: Runtime) -> None:
        if runtime not in self._closed:
            self._closed.add(runtime)
            await runtime.__aexit__(None, None, None)


@pytest.fixture
async def plant(new_store: NewStore) -> AsyncIterator[Plant]:
    async with AsyncExitStack() as stack:
        yield Plant(new_store, stack)


async def marks(handle: ProcessHandle) -> list[str]:
    """What the log says of effects: `>id` begun, `<id` ended."""
    found = (row.record for row in await handle.rows())
    return [
        f"{'>' if isinstance(record, EffectStarted) else '<'}{record.id}"
        for record in found
        if isinstance(record, EffectStarted | EffectSettled)
    ]


async def parked(rt: Runtime, handle: ProcessHandle) -> None:
    async def is_parked() -> bool:
        info = await rt.store.stream(handle.stream)
        return info is not None and info.parked and info.owner is None and not rt.has_in_hand(handle.stream)

    await until(is_parked)


async def test_a_process_runs_its_steps_once_and_returns(plant: Plant) -> None:
    ran: list[str] = []

    def fetch(day: str) -> list[str]:
        ran.append(day)
        return [day, "x"]

    @process
    async def nightly(ctx: ProcessContext, day: str) -> str:
        rows = await ctx.step("fetch", fetch, day)
        await ctx.sleep("cooldown", "10ms")
        return "-".join(rows)

    rt = await plant.open(nightly)
    handle = await rt.start(nightly, "monday", id="n1")
    assert await handle.result(timeout=20) == "monday-x"
    assert ran == ["monday"]
    assert await marks(handle) == [">p/step:fetch", "<p/step:fetch", ">p/sleep:cooldown", "<p/sleep:cooldown"]
    record = await handle.record()
    assert record.status == "completed"
    assert record.output == Succeeded(value="monday-x")

    async def given_back() -> bool:
        info = await rt.store.stream(handle.stream)
        assert info is not None
        assert (info.kind, info.name, info.parked, info.waiting_inputs) == ("process", "n1", False, 0)
        return info.owner is None and not info.active

    await until(given_back)


async def test_the_same_start_again_is_the_same_process(plant: Plant) -> None:
    ran: list[str] = []

    @process
    async def once(ctx: ProcessContext, word: str, times: int = 1) -> str:
        await ctx.step("say", lambda: ran.append(word))
        return word * times

    rt = await plant.open(once)
    first = await rt.start(once, "a", times=2, id="p")
    assert await first.result(timeout=20) == "aa"
    again = await rt.start("once", "a", times=2, id="p")
    assert again.id == first.id
    assert await again.result(timeout=20) == "aa"
    for other in ({"args": ("b",)}, {"args": ("a",), "label": "x"}):
        with pytest.raises(Error) as caught:
            await rt.start(once, *other["args"], id="p", times=2, label=str(other.get("label", "")))
        assert caught.value.code is Code.PROCESS_CONFLICT
    assert ran == ["a"]


async def test_another_definition_under_a_used_id_is_a_conflict(plant: Plant) -> None:
    @process
    async def one(ctx: ProcessContext) -> str:
        return "one"

    @process
    async def two(ctx: ProcessContext) -> str:
        return "two"

    rt = await plant.open(one, two)
    await rt.start(one, id="p")
    with pytest.raises(Error) as caught:
        await rt.start(two, id="p")
    assert caught.value.code is Code.PROCESS_CONFLICT


@pytest.mark.parametrize("id", ["", "  ", "a#b", "x" * 600, "a\nb"])
async def test_an_id_that_cannot_be_is_refused_and_nothing_is_written(id: str) -> None:
    @process
    async def one(ctx: ProcessContext) -> None: ...

    async with Runtime(MemoryStore(SystemClock()), processes=[one]) as rt:
        with pytest.raises(Error) as caught:
            await rt.start(one, id=id)
        assert caught.value.code is Code.INVALID_ID
        assert await rt.store.streams(tenant=rt.tenant, kind="process", limit=9) == ()


async def test_what_cannot_be_a_process_or_be_started_is_refused() -> None:
    def plain(ctx: ProcessContext) -> None: ...
    async def nothing() -> None: ...
    async def odd(ctx: ProcessContext, n: int) -> None: ...

    for bad in (plain, nothing):
        with pytest.raises(Error) as caught:
            process(bad)  # pyright: ignore[reportArgumentType]
        assert caught.value.code is Code.PROCESS_DEFINITION_INVALID
    with pytest.raises(Error) as caught:
        process(name="a b")(odd)
    assert caught.value.code is Code.PROCESS_DEFINITION_INVALID
    with pytest.raises(Error) as caught:
        Runtime(processes=[process(odd), process(name="odd")(odd)])
    assert caught.value.code is Code.PROCESS_DEFINITION_INVALID
    function = process(odd)
    async with Runtime(MemoryStore(SystemClock()), processes=[function]) as rt:
        for code, args in [(Code.INVALID_ARGUMENT, ()), (Code.INVALID_JSON, ({1, 2},))]:
            with pytest.raises(Error) as caught:
                await rt.start(function, *args)
            assert caught.value.code is code
        with pytest.raises(Error) as caught:
            await rt.start("unheard_of")
        assert caught.value.code is Code.PROCESS_DEFINITION_UNKNOWN
        with pytest.raises(Error) as caught:
            await rt.process("nobody").result(timeout=5)
        assert caught.value.code is Code.PROCESS_UNKNOWN


async def test_a_parked_process_goes_on_elsewhere_and_what_it_finished_is_not_run_again(plant: Plant) -> None:
    ran: list[str] = []

    @process
    async def long(ctx: ProcessContext) -> Json:
        await ctx.step("first", lambda: ran.append("first"))
        told = await ctx.event("go", timeout="1h")
        await ctx.step("second", lambda: ran.append("second"))
        return [told, str(ctx.deps)]

    rt = await plant.open(long, tuning=HURRIED)
    handle = await rt.start(long, id="p")
    await parked(rt, handle)
    await plant.close(rt)
    assert ran == ["first"]

    rt = await plant.open(long, tuning=HURRIED)
    handle = rt.process("p")
    assert (await handle.record()).status == "waiting"
    await handle.resolve("go", {"n": 1})
    assert await handle.result(timeout=20) == [{"n": 1}, "the deps"]
    assert ran == ["first", "second"]


async def test_a_worker_takes_only_processes_that_it_knows(plant: Plant) -> None:
    @process
    async def known(ctx: ProcessContext) -> str:
        return "done"

    @process
    async def other(ctx: ProcessContext) -> str:
        return "other"

    client = await plant.open(worker=False)
    waiting = await client.start("known", id="k")
    elsewhere = await plant.open(other)
    assert await (await client.start("other", id="o")).result(timeout=20) == "other"
    info = await client.store.stream(waiting.stream)
    assert info is not None
    assert info.owner is None
    assert (await waiting.record()).status == "registered"
    await plant.open(known)
    assert await waiting.result(timeout=20) == "done"
    assert elsewhere.worker is not None
    assert waiting.stream not in elsewhere.worker.serving.unknown_agents


async def test_a_changed_function_resumes_by_step_names_and_says_what_it_does_not_use(plant: Plant) -> None:
    ran: list[str] = []

    def note(word: str) -> str:
        ran.append(word)
        return word

    @process(name="old")
    async def before(ctx: ProcessContext) -> Json:
        a = await ctx.step("a", note, "a")
        b = await ctx.step("b", note, "b")
        await ctx.step("gone", note, "gone")
        await ctx.event("go")
        return [a, b]

    rt = await plant.open(before, tuning=HURRIED)
    handle = await rt.start(before, id="p")
    await parked(rt, handle)
    await plant.close(rt)

    @process(name="new", formerly=["old"])
    async def after(ctx: ProcessContext) -> Json:
        b = await ctx.step("b", note, "b")
        a = await ctx.step("a", note, "a")
        c = await ctx.step("c", note, "c")
        await ctx.event("go")
        return [a, b, c]

    rt = await plant.open(after, tuning=HURRIED)
    handle = rt.process("p")
    await handle.resolve("go")
    assert await handle.result(timeout=20) == ["a", "b", "c"]
    assert ran == ["a", "b", "gone", "c"]
    assert (await handle.record()).unused_steps == ("step:gone",)


async def test_how_a_process_fails_is_recorded_and_tells_no_internals(plant: Plant) -> None:
    @process
    async def declared(ctx: ProcessContext) -> None:
        raise ToolError("sold out", code="no_stock")

    @process
    async def broken(ctx: ProcessContext) -> None:
        raise RuntimeError("the password is 123")

    @process
    async def panicked(ctx: ProcessContext) -> None:
        raise SystemExit(3)

    @process
    async def unstorable(ctx: ProcessContext) -> object:
        return object()

    @process
    async def twice(ctx: ProcessContext) -> None:
        await ctx.step("a", lambda: None)
        await ctx.step("a", lambda: None)

    rt = await plant.open(declared, broken, panicked, unstorable, twice)
    ended = {
        fn.name: await (await rt.start(fn)).wait(timeout=20) for fn in (declared, broken, panicked, unstorable, twice)
    }
    assert {name: output.code for name, output in ended.items() if isinstance(output, ProcessFailure)} == {
        "declared": "no_stock",
        "broken": "internal_error",
        "panicked": "process_panicked",
        "unstorable": "process_result_invalid",
        "twice": "durable_effect_duplicate_step_id",
    }
    assert "123" not in str(ended)
    handle = await rt.start(declared, id="d")
    with pytest.raises(Error) as caught:
        await handle.result(timeout=20)
    assert (caught.value.code, caught.value.details["reason"]) == (Code.PROCESS_FAILED, "no_stock")


async def test_a_step_that_is_asked_for_something_else_ends_the_process(plant: Plant) -> None:
    entries = 0

    @process
    async def wavering(ctx: ProcessContext) -> None:
        nonlocal entries
        entries += 1
        await ctx.step("a", str, entries)
        await ctx.event("go")

    rt = await plant.open(wavering, tuning=HURRIED)
    handle = await rt.start(wavering)
    await parked(rt, handle)
    await handle.resolve("go")
    output = await handle.wait(timeout=20)
    assert isinstance(output, ProcessFailure)
    assert output.code == "replay_mismatch"


async def test_recorded_values_and_maps_are_the_same_on_every_entry(plant: Plant) -> None:
    seen: list[Json] = []

    @process
    async def draws(ctx: ProcessContext) -> Json:
        values = [ctx.now().isoformat(), str(ctx.uuid()), ctx.random()]
        doubled = await ctx.map("double", lambda n: n * 2, [1, 2, 3], key=str)
        seen.append(values)
        await ctx.event("go")
        return [values, doubled]

    rt = await plant.open(draws, tuning=HURRIED)
    handle = await rt.start(draws)
    await parked(rt, handle)
    await handle.resolve("go")
    values, doubled = await handle.result(timeout=20)
    assert doubled == [2, 4, 6]
    assert seen == [values, values]


# --- signals ----------------------------------------------------------------------------------------------------


@pytest.mark.timeout(180)
async def test_signals_are_kept_received_once_and_in_order_while_the_waiter_is_entered_again(plant: Plant) -> None:
    entries = 0

    @process
    async def collect(ctx: ProcessContext, n: int) -> Json:
        nonlocal entries
        entries += 1
        got: list[Json] = []
        for i in range(n):
            if i % 10 == 5:
                await ctx.sleep(f"pause {i}", "5ms")  # parks it, so that it is entered again in the middle of the burst
            got.append(await ctx.signal("item", timeout="1h"))
        return got

    rt = await plant.open(collect, tuning=HURRIED)
    sender = await plant.open(worker=False)
    handle = await rt.start(collect, 100, id="p")

    async def send(who: int) -> None:
        for i in range(10):
            await sender.process("p").signal("item", [who, i])
            await asyncio.sleep(0)

    await asyncio.gather(*(send(who) for who in range(10)))
    got = await handle.result(timeout=150)
    came = [
        row.record.payload
        for row in await handle.rows()
        if isinstance(row.record, ProcessEvent) and row.kind == "process_event" and row.record.event == "signal.item"
    ]
    assert got == came
    assert sorted(got) == [[who, i] for who in range(10) for i in range(10)]
    assert entries > 5


async def test_a_signal_before_its_wait_is_kept_and_the_same_one_twice_is_one(plant: Plant) -> None:
    @process
    async def waits(ctx: ProcessContext) -> Json:
        await ctx.event("go")
        first = await ctx.signal("s")
        return [first, await ctx.signal("s")]

    rt = await plant.open(waits, tuning=HURRIED)
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


async def test_a_wait_for_a_signal_that_ran_out_takes_none(plant: Plant) -> None:
    @process
    async def impatient(ctx: ProcessContext) -> Json:
        code = ""
        try:
            await ctx.signal("s", timeout="20ms")
        except ToolError as problem:
            code = problem.code
        return [code, await ctx.signal("s")]

    rt = await plant.open(impatient, tuning=HURRIED)
    handle = await rt.start(impatient)

    async def waits_again() -> bool:
        return ">p/signal:s:2" in await marks(handle)

    await until(waits_again)
    await handle.signal("s", "late")
    assert await handle.result(timeout=20) == ["process_signal_wait_timeout", "late"]


# --- cancelling -------------------------------------------------------------------------------------------------


async def test_a_cancelled_process_cleans_up_and_ends_as_cancelled(plant: Plant) -> None:
    ran: list[str] = []

    @process
    async def long(ctx: ProcessContext) -> None:
        try:
            await ctx.step("take", lambda: ran.append("take"))
            await ctx.sleep("long", "1h")
        finally:
            await ctx.step("give back", lambda: ran.append("give back"))

    rt = await plant.open(long, tuning=HURRIED)
    handle = await rt.start(long)
    await parked(rt, handle)
    assert await handle.cancel("not needed")
    assert not await handle.cancel("again")
    assert await handle.wait(timeout=20) == ProcessWasCancelled(reason="not needed")
    assert not await handle.cancel("too late")
    assert ran == ["take", "give back"]


async def test_a_process_that_was_cancelled_before_it_began_never_begins(plant: Plant) -> None:
    ran: list[str] = []

    @process
    async def long(ctx: ProcessContext) -> None:
        ran.append("entered")

    client = await plant.open(worker=False)
    handle = await client.start("long")
    await handle.cancel()
    await plant.open(long)
    assert await handle.wait(timeout=20) == ProcessWasCancelled()
    assert ran == []


async def test_a_running_step_is_not_interrupted_by_a_cancel(plant: Plant) -> None:
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

    rt = await plant.open(busy)
    handle = await rt.start(busy)
    await begun.wait()
    await handle.cancel()
    go_on.set()
    assert await handle.wait(timeout=20) == ProcessWasCancelled()
    assert ran == ["worked", "between"]


async def test_the_record_is_a_fold_of_the_log(plant: Plant) -> None:
    @process
    async def simple(ctx: ProcessContext) -> int:
        await ctx.signal("s")
        return 1

    rt = await plant.open(simple, tuning=HURRIED)
    handle = await rt.start(simple, id="p")
    await handle.signal("s")
    await handle.result(timeout=20)
    rows = await handle.rows()
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    assert fold_all(rows) == await handle.record()


async def test_an_undecided_once_step_is_told_and_not_run_again(plant: Plant) -> None:
    ran: list[str] = []
    begun = asyncio.Event()

    async def charge() -> None:
        ran.append("charge")
        begun.set()
        await asyncio.sleep(3600)

    @process
    async def pays(ctx: ProcessContext) -> str:
        try:
            await ctx.step("charge", charge)
        except OutcomeUnknown:
            return "unknown"
        return "charged"

    rt = await plant.open(pays, tuning=Tuning(drain_s=0.0))
    await rt.start(pays, id="p")
    await begun.wait()
    await plant.close(rt)
    rt = await plant.open(pays)
    assert await rt.process("p").result(timeout=20) == "unknown"
    assert ran == ["charge"]


# --- events -----------------------------------------------------------------------------------------------------

PROGRESS = EventType(name="progress", payload_schema={"type": "object", "required": ["n"]})


async def events(handle: ProcessHandle, kind: str) -> list[Json]:
    records = [row.record for row in await handle.rows()]
    return [record.payload for record in records if isinstance(record, ProcessEvent) and record.event == kind]


async def test_declared_events_are_emitted_once_however_often_the_function_is_entered(plant: Plant) -> None:
    @process(events=[PROGRESS])
    async def tells(ctx: ProcessContext) -> None:
        await ctx.emit("progress", {"n": 1})
        await ctx.event("go")
        await ctx.emit("progress", {"n": 2})
        await ctx.emit("progress", {"n": 2})

    rt = await plant.open(tells, tuning=HURRIED)
    handle = await rt.start(tells)
    await parked(rt, handle)
    await handle.resolve("go")
    await handle.result(timeout=20)
    assert await events(handle, "progress") == [{"n": 1}, {"n": 2}, {"n": 2}]
    client = handle.process_events
    info = await client.wait_event_after("progress", 0)
    assert (info.payload, await client.count_events_through("progress", info.sequence)) == ({"n": 1}, 1)
    assert await client.count_events_through("progress", 99) == 3
    assert await client.count_events_through("prog", 99) == 0
    assert (await client.wait_event_after("progress", info.sequence)).payload == {"n": 2}


async def test_events_that_were_not_declared_or_do_not_fit_are_refused(plant: Plant) -> None:
    @process(events=[PROGRESS])
    async def tells(ctx: ProcessContext, event: str, payload: Json) -> None:
        await ctx.emit(event, payload)

    rt = await plant.open(tells)
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


async def test_a_process_that_is_done_outside_is_ended_from_outside_once(plant: Plant) -> None:
    rt = await plant.open()
    asked = outside("x", event_types=(PROGRESS,))
    handle = await register(rt, asked)
    await parked(rt, handle)
    assert await handle.append("progress", {"n": 1}, replay="one")
    assert not await handle.append("progress", {"n": 1}, replay="one")
    for payload, replay, code in [
        ({"n": 2}, "one", Code.PROCESS_EVENT_CONFLICT),
        ({}, "two", Code.PROCESS_EVENT_INVALID),
    ]:
        with pytest.raises(Error) as caught:
            await handle.append("progress", payload, replay=replay)
        assert caught.value.code is code
    with pytest.raises(Error) as caught:
        await handle.append("process.completed", 1, replay="mine")
    assert caught.value.code is Code.PROCESS_NOT_EXTERNAL
    with pytest.raises(Error) as caught:
        await handle.append("process.cancel_requested", None, replay=" ")
    assert caught.value.code is Code.PROCESS_EVENT_REPLAY_KEY_REQUIRED
    waiting = asyncio.create_task(handle.result(timeout=20))
    assert await handle.complete({"rows": 7})
    assert not await handle.complete({"rows": 7})
    for again in (handle.complete({"rows": 8}), handle.fail("late")):
        with pytest.raises(Error) as caught:
            await again
        assert caught.value.code is Code.PROCESS_ALREADY_TERMINAL
    assert await waiting == {"rows": 7}
    assert (await handle.record()).status == "completed"
    assert (await register(rt, asked)).id == "x"


async def test_what_is_run_here_cannot_be_ended_from_outside(plant: Plant) -> None:
    @process
    async def ours(ctx: ProcessContext) -> None:
        await ctx.event("never")

    rt = await plant.open(ours)
    handle = await rt.start(ours)
    with pytest.raises(Error) as caught:
        await handle.complete(1)
    assert caught.value.code is Code.PROCESS_NOT_EXTERNAL


ENV, ENV_BLOB = environment({}, {})


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
async def test_what_cannot_be_registered_is_refused_and_nothing_is_written(broken: Registration) -> None:
    async with Runtime(MemoryStore(SystemClock())) as rt:
        with pytest.raises(Error) as caught:
            await register(rt, broken, env=ENV_BLOB if broken.env else None)
        assert caught.value.code in (Code.PROCESS_REGISTRATION_INVALID, Code.PROCESS_EVENT_TYPE_INVALID)
        assert await rt.store.streams(tenant=rt.tenant, kind="process", limit=9) == ()


# --- who recovers it --------------------------------------------------------------------------------------------


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


# --- children and agents ----------------------------------------------------------------------------------------


async def test_a_process_starts_a_child_once_and_waits_for_it_parked(plant: Plant) -> None:
    ran: list[str] = []

    @process
    async def child(ctx: ProcessContext, n: int) -> int:
        await ctx.step("count", lambda: ran.append(f"child {n}"))
        told = await ctx.signal("go")
        return n + told

    @process
    async def parent(ctx: ProcessContext) -> Json:
        one = await ctx.start(child, 1)
        two = await ctx.start("child", 2, id="second")
        return [one.json, await ctx.wait(one), await ctx.wait(two.id)]

    rt = await plant.open(parent, child, tuning=HURRIED)
    handle = await rt.start(parent, id="p")
    await parked(rt, handle)
    await rt.process("second").signal("go", 10)
    await rt.process("p/child:1").signal("go", 20)
    assert await handle.result(timeout=20) == [{"__handle__": "process", "id": "p/child:1"}, 21, 12]
    assert sorted(ran) == ["child 1", "child 2"]
    registration = (await rt.process("second").record()).known
    assert registration.provenance.parent == "p"


async def test_waiting_for_a_child_that_failed_or_takes_too_long_or_is_not_there(plant: Plant) -> None:
    @process
    async def fails(ctx: ProcessContext) -> None:
        raise ToolError("no", code="sold_out")

    @process
    async def sleeps(ctx: ProcessContext) -> None:
        await ctx.event("never")

    @process
    async def parent(ctx: ProcessContext) -> Json:
        seen: list[Json] = []
        try:
            await ctx.wait(await ctx.start(fails))
        except Error as problem:
            seen.append(str(problem.details["reason"]))
        for other in (await ctx.start(sleeps), "nobody"):
            try:
                await ctx.wait(other, timeout="20ms")
            except ToolError as problem:
                seen.append(problem.code)
        return seen

    rt = await plant.open(parent, fails, sleeps, tuning=HURRIED)
    handle = await rt.start(parent)
    assert await handle.result(timeout=20) == ["sold_out", "result_timeout", "process_unknown"]


async def test_branches_run_at_once_and_the_first_one_wins_on_every_entry(plant: Plant) -> None:
    @process
    async def races(ctx: ProcessContext) -> Json:
        both = await ctx.gather(ctx.step("a", lambda: 1), ctx.step("b", lambda: 2))
        won = await ctx.first("race", go=ctx.signal("go"), late=ctx.event("late"))
        await ctx.event("end")
        return [both, list(won)]

    rt = await plant.open(races, tuning=HURRIED)
    handle = await rt.start(races)
    await handle.signal("go", "now")

    async def waits() -> bool:
        return ">p/event:end" in await marks(handle)

    await until(waits)
    await handle.resolve("late", "too late")
    await handle.resolve("end")
    assert await handle.result(timeout=20) == [[1, 2], ["go", "now"]]
    recorded = [row.record for row in await handle.rows()]
    [race] = [one for one in recorded if isinstance(one, EffectSettled) and one.id == "p/first:race"]
    assert isinstance(race.outcome, DurableStepOutcome)
    assert race.outcome.value == {"winner": "go", "losers": {"late": "stopped"}}


async def test_a_process_asks_an_agent_once(plant: Plant) -> None:
    @process
    async def writes(ctx: ProcessContext) -> Json:
        text = await ctx.ask("writer", "Summarise")
        await ctx.event("go")
        return text

    model = ScriptedModel(say("short"))
    runtime = Runtime(plant.new_store(), agents=[Agent("writer", model=model)], processes=[writes], tuning=HURRIED)
    async with runtime as rt:
        handle = await rt.start(writes, id="p")
        await parked(rt, handle)
        await handle.resolve("go")
        assert (await handle.result(timeout=20)).startswith("short")
        assert [info.agent for info in await rt.sessions()] == ["writer"]


# --- wakes ------------------------------------------------------------------------------------------------------


WAKES = EventType(
    name="found",
    semantics=Semantics(
        wake=WakeSpec(input=Template(text="Found {n}", fields={"n": Pointer(path="/n")}), when=Present(path="/n"))
    ),
)


async def test_an_event_that_wakes_reaches_its_session_once_and_a_deleted_one_is_a_typed_discard(plant: Plant) -> None:
    model = ScriptedModel(say("hello"))
    runtime = Runtime(plant.new_store(), agents=[Agent("a", model=model)], tuning=HURRIED)
    async with runtime as rt:
        session = await rt.session("s", agent="a")
        await session.ask("hi")
        target = SessionScope(session_id="s")
        handle = await register(
            rt, outside("x", event_types=(WAKES,), wake_target=target, wake_on_end=True, label="scan")
        )
        await handle.append("found", {"n": 3}, replay="one")
        await handle.append("found", {"n": 3}, replay="one")
        await handle.append("found", {}, replay="not worth it")

        async def told(*words: str) -> bool:
            said = [part.text for m in await session.history() for part in m.parts if isinstance(part, Text)]
            return [text.partition(" (wording")[0] for text in said[-2:]] == list(words)

        await until(lambda: told("Found 3", "hello"))
        await handle.complete(5)
        await until(lambda: told("The process scan has finished: 5", "hello"))
        await session.delete()
        assert (await handle.record()).status == "completed"
        other = await register(rt, outside("y", event_types=(WAKES,), wake_target=target))
        await other.append("found", {"n": 4}, replay="one")

        async def discarded() -> bool:
            return bool(await events(other, "process.wake_discarded"))

        await until(discarded)
        [payload] = await events(other, "process.wake_discarded")
        assert payload["because"] == "session_unknown"
        assert (await other.record()).status == "registered"


# --- looking after them -----------------------------------------------------------------------------------------


async def test_processes_are_listed_filtered_validated_and_cancelled_together(plant: Plant) -> None:
    @process
    async def waits(ctx: ProcessContext) -> None:
        await ctx.event("never")

    @process
    async def ends(ctx: ProcessContext) -> int:
        return 1

    rt = await plant.open(waits, ends, tuning=HURRIED)
    await (await rt.start(ends, id="e")).result(timeout=20)
    handles = [await rt.start(waits, id=f"w{n}") for n in range(3)]
    for handle in handles:
        await parked(rt, handle)
    assert {one.handle.id for one in await rt.processes.list()} == {"w0", "w1", "w2"}
    assert {one.handle.id for one in await rt.processes.list("all")} == {"w0", "w1", "w2", "e"}
    assert [one.handle.id for one in await rt.processes.list("all", definition="python:ends")] == ["e"]
    assert await rt.processes.list(session="nobody's") == ()
    first = await rt.processes.list(limit=2)
    rest = await rt.processes.list(limit=2, before=first[-1].place)
    assert sorted(one.handle.id for one in (*first, *rest)) == ["w0", "w1", "w2"]
    [one, two] = await rt.processes.validate(handles[0].json, "w1")
    assert (one.id, two.id) == ("w0", "w1")
    for bad, code in [
        ({"__handle__": "file", "id": "w0"}, Code.PROCESS_HANDLE_INVALID),
        ({"__handle__": "process", "id": "w0", "more": 1}, Code.PROCESS_HANDLE_INVALID),
        (7, Code.PROCESS_HANDLE_INVALID),
        ("a#b", Code.PROCESS_HANDLE_INVALID),
        ("nobody", Code.PROCESS_UNKNOWN),
    ]:
        with pytest.raises(Error) as caught:
            await rt.processes.validate(bad)
        assert caught.value.code is code
    assert await rt.processes.cancel_all(reason="closing") == 3
    for handle in handles:
        assert await handle.wait(timeout=20) == ProcessWasCancelled(reason="closing")
