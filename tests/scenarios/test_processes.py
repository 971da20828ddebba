"""Durable functions: steps, sleeps and events, parked and entered again, on every store."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Code, Error, OutcomeUnknown, ProcessContext, Runtime, RuntimeOptions, ToolError, process
from perdure.codec import Json
from perdure.processes.record import fold_all
from perdure.runtime.internals import core_of
from perdure.vocab.registrations import (
    ProcessFailure,
    ProcessSucceeded,
)
from tests.scenarios.conftest import NewStore, ProcessApp, until
from tests.scenarios.plants import HURRIED, marks, parked


async def test_a_process_runs_its_steps_once_and_returns(process_app: ProcessApp) -> None:
    ran: list[str] = []

    def fetch(day: str) -> list[str]:
        ran.append(day)
        return [day, "x"]

    @process
    async def nightly(ctx: ProcessContext, day: str) -> str:
        rows = await ctx.step("fetch", fetch, day)
        await ctx.sleep("cooldown", "10ms")
        return "-".join(rows)

    rt = await process_app.open(nightly)
    handle = await rt.start(nightly, "monday", id="n1")
    assert await handle.result(timeout=20) == "monday-x"
    assert ran == ["monday"]
    assert await marks(handle) == [">p/step:fetch", "<p/step:fetch", ">p/sleep:cooldown", "<p/sleep:cooldown"]
    record = await handle.info()
    assert record.status == "completed"
    assert record.output == ProcessSucceeded(value="monday-x")

    async def given_back() -> bool:
        info = await core_of(rt).store.stream(handle.stream)
        assert info is not None
        assert (info.kind, info.name, info.parked, info.waiting_inputs) == ("process", "n1", False, 0)
        return info.owner is None and not info.active

    await until(given_back)


async def test_the_same_start_again_is_the_same_process(process_app: ProcessApp) -> None:
    ran: list[str] = []

    @process
    async def once(ctx: ProcessContext, word: str, times: int = 1) -> str:
        await ctx.step("say", lambda: ran.append(word))
        return word * times

    rt = await process_app.open(once)
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


async def test_another_definition_under_a_used_id_is_a_conflict(process_app: ProcessApp) -> None:
    @process
    async def one(ctx: ProcessContext) -> str:
        return "one"

    @process
    async def two(ctx: ProcessContext) -> str:
        return "two"

    rt = await process_app.open(one, two)
    await rt.start(one, id="p")
    with pytest.raises(Error) as caught:
        await rt.start(two, id="p")
    assert caught.value.code is Code.PROCESS_CONFLICT


@pytest.mark.any_store
@pytest.mark.parametrize("id", ["", "  ", "a#b", "x" * 600, "a\nb"])
async def test_an_id_that_cannot_be_is_refused_and_nothing_is_written(id: str, new_store: NewStore) -> None:
    @process
    async def one(ctx: ProcessContext) -> None: ...

    async with Runtime(new_store(), processes=[one]) as rt:
        with pytest.raises(Error) as caught:
            await rt.start(one, id=id)
        assert caught.value.code is Code.INVALID_ID
        assert await core_of(rt).store.streams(tenant=rt.tenant, kind="process", limit=9) == ()


@pytest.mark.any_store
async def test_invalid_process_definition_or_start_is_refused(new_store: NewStore) -> None:
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
    async with Runtime(new_store(), processes=[function]) as rt:
        for code, args in [(Code.INVALID_ARGUMENT, ()), (Code.INVALID_JSON, ({1, 2},))]:
            with pytest.raises(Error) as caught:
                await rt.start(function, *args)
            assert caught.value.code is code
        with pytest.raises(Error) as caught:
            await rt.start("unheard_of")
        assert caught.value.code is Code.PROCESS_DEFINITION_UNKNOWN
        with pytest.raises(Error) as caught:
            await rt.get_process("nobody").result(timeout=5)
        assert caught.value.code is Code.PROCESS_UNKNOWN


async def test_parked_process_resumes_elsewhere_without_repeating_steps(process_app: ProcessApp) -> None:
    ran: list[str] = []

    @process
    async def long(ctx: ProcessContext) -> Json:
        await ctx.step("first", lambda: ran.append("first"))
        told = await ctx.wait_for_event("go", timeout="1h")
        await ctx.step("second", lambda: ran.append("second"))
        return [told, str(ctx.deps)]

    rt = await process_app.open(long, tuning=HURRIED)
    handle = await rt.start(long, id="p")
    await parked(rt, handle)
    await process_app.close(rt)
    assert ran == ["first"]

    rt = await process_app.open(long, tuning=HURRIED)
    handle = rt.get_process("p")
    assert (await handle.info()).status == "waiting"
    await handle.resolve("go", {"n": 1})
    assert await handle.result(timeout=20) == [{"n": 1}, "the deps"]
    assert ran == ["first", "second"]


async def test_a_worker_takes_only_processes_that_it_knows(process_app: ProcessApp) -> None:
    @process
    async def known(ctx: ProcessContext) -> str:
        return "done"

    @process
    async def other(ctx: ProcessContext) -> str:
        return "other"

    client = await process_app.open(worker=False)
    waiting = await client.start("known", id="k")
    elsewhere = await process_app.open(other)
    assert await (await client.start("other", id="o")).result(timeout=20) == "other"
    info = await core_of(client).store.stream(waiting.stream)
    assert info is not None
    assert info.owner is None
    assert (await waiting.info()).status == "registered"
    await process_app.open(known)
    assert await waiting.result(timeout=20) == "done"
    worker = core_of(elsewhere).worker
    assert worker is not None
    assert waiting.stream not in worker.stream_pool.unknown_agents


async def test_changed_function_resumes_by_step_names(process_app: ProcessApp) -> None:
    ran: list[str] = []

    def note(word: str) -> str:
        ran.append(word)
        return word

    @process(name="old")
    async def before(ctx: ProcessContext) -> Json:
        a = await ctx.step("a", note, "a")
        b = await ctx.step("b", note, "b")
        await ctx.step("gone", note, "gone")
        await ctx.wait_for_event("go")
        return [a, b]

    rt = await process_app.open(before, tuning=HURRIED)
    handle = await rt.start(before, id="p")
    await parked(rt, handle)
    await process_app.close(rt)

    @process(name="new", aliases=["old"])
    async def after(ctx: ProcessContext) -> Json:
        b = await ctx.step("b", note, "b")
        a = await ctx.step("a", note, "a")
        c = await ctx.step("c", note, "c")
        await ctx.wait_for_event("go")
        return [a, b, c]

    rt = await process_app.open(after, tuning=HURRIED)
    handle = rt.get_process("p")
    await handle.resolve("go")
    assert await handle.result(timeout=20) == ["a", "b", "c"]
    assert ran == ["a", "b", "gone", "c"]
    assert (await handle.info()).unused_steps == ("step:gone",)


async def test_how_a_process_fails_is_recorded_and_tells_no_internals(process_app: ProcessApp) -> None:
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

    rt = await process_app.open(declared, broken, panicked, unstorable, twice)
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


async def test_a_step_that_is_asked_for_something_else_ends_the_process(process_app: ProcessApp) -> None:
    entries = 0

    @process
    async def wavering(ctx: ProcessContext) -> None:
        nonlocal entries
        entries += 1
        await ctx.step("a", str, entries)
        await ctx.wait_for_event("go")

    rt = await process_app.open(wavering, tuning=HURRIED)
    handle = await rt.start(wavering)
    await parked(rt, handle)
    await handle.resolve("go")
    output = await handle.wait(timeout=20)
    assert isinstance(output, ProcessFailure)
    assert output.code == "replay_mismatch"


async def test_recorded_values_and_maps_are_the_same_on_every_entry(process_app: ProcessApp) -> None:
    seen: list[Json] = []

    @process
    async def draws(ctx: ProcessContext) -> Json:
        values = [ctx.now().isoformat(), str(ctx.uuid()), ctx.random()]
        doubled = await ctx.map("double", lambda n: n * 2, [1, 2, 3], key=str)
        seen.append(values)
        await ctx.wait_for_event("go")
        return [values, doubled]

    rt = await process_app.open(draws, tuning=HURRIED)
    handle = await rt.start(draws)
    await parked(rt, handle)
    await handle.resolve("go")
    values, doubled = await handle.result(timeout=20)
    assert doubled == [2, 4, 6]
    assert seen == [values, values]


async def test_the_record_is_a_fold_of_the_log(process_app: ProcessApp) -> None:
    @process
    async def simple(ctx: ProcessContext) -> int:
        await ctx.wait_for_signal("s")
        return 1

    rt = await process_app.open(simple, tuning=HURRIED)
    handle = await rt.start(simple, id="p")
    await handle.signal("s")
    await handle.result(timeout=20)
    rows = await handle.journal()
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    assert fold_all(rows) == await handle.info()


async def test_an_undecided_once_step_is_told_and_not_run_again(process_app: ProcessApp) -> None:
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

    rt = await process_app.open(pays, tuning=RuntimeOptions(drain_s=0.0))
    await rt.start(pays, id="p")
    await begun.wait()
    await process_app.close(rt)
    rt = await process_app.open(pays)
    assert await rt.get_process("p").result(timeout=20) == "unknown"
    assert ran == ["charge"]
