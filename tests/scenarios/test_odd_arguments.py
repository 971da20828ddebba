"""Odd arguments of lists, waits and emissions of processes: accepted, or refused with a code before anything is
written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from perdure import Error, ProcessContext, Runtime, ToolError, process
from perdure.codec import Json
from perdure.errors import Code
from perdure.services.files.search import check_pattern, wanted_paths
from tests.scenarios.conftest import ProcessApp

pytestmark = pytest.mark.any_store


@process
async def holds(ctx: ProcessContext) -> str:
    return str(await ctx.wait_for_signal("go"))


@process
async def says_odd_things(ctx: ProcessContext) -> list[str]:
    """The codes with which what is no name is refused."""
    codes: list[str] = []
    given: tuple[Json, ...] = (5, None, b"x", ["x"], {"a": 1}, 0.5, "")
    asked: list[Callable[[Json], Awaitable[object]]] = [
        lambda odd: ctx.start(odd),
        lambda odd: ctx.wait_for_process(odd, timeout="1ms"),
        lambda odd: ctx.emit(odd),
        lambda odd: ctx.wait_for_signal(odd, timeout="1ms"),
        lambda odd: ctx.ask("a", "hello", session=odd) if odd is not None else ctx.ask("a", cast("str", odd)),
        lambda odd: ctx.triggers.emit(odd),
    ]
    for odd in given:
        for ask in asked:
            try:
                await ask(odd)
                codes.append(f"{odd!r} was taken")
            except (Error, ToolError) as refused:
                codes.append(str(refused.code))
            except Exception as problem:  # noqa: BLE001 - whatever it is, it has no code
                codes.append(f"{type(problem).__name__} for {odd!r}")
    return codes


LISTS: list[Callable[[Runtime, object], Awaitable[object]]] = [
    lambda rt, limit: rt.processes.list(limit=limit),  # type: ignore[arg-type]
    lambda rt, limit: rt.processes.list(ended=True, session="s", limit=limit),  # type: ignore[arg-type]
    lambda rt, limit: rt.schedules.list(limit=limit),  # type: ignore[arg-type]
    lambda rt, limit: rt.triggers.list(limit=limit),  # type: ignore[arg-type]
    lambda rt, limit: rt.list_sessions(limit=limit),  # type: ignore[arg-type]
    lambda rt, limit: rt.approvals.list(limit=limit),  # type: ignore[arg-type]
]


async def refusal(asked: Awaitable[object]) -> Code | str:
    with pytest.raises(Error) as caught:
        await asked
    return caught.value.code


async def test_a_page_has_a_number(process_app: ProcessApp) -> None:
    rt = await process_app.open(worker=False)
    for ask in LISTS:
        for limit in (None, 0, -1, "5", 2.0, True, 10**30):
            assert await refusal(ask(rt, limit)) is Code.INVALID_ARGUMENT
        assert await ask(rt, 1) == ()


async def test_list_of_processes_refuses_a_flag_that_is_none(process_app: ProcessApp) -> None:
    rt = await process_app.open(worker=False)
    for ended in ("all", "", None, 1):
        assert await refusal(rt.processes.list(ended=ended)) is Code.INVALID_ARGUMENT  # type: ignore[arg-type]


async def test_invalid_name_is_refused_with_a_code(process_app: ProcessApp) -> None:
    rt = await process_app.open(says_odd_things)
    codes = await (await rt.start(says_odd_things)).result("40s")
    assert len(codes) == 42
    assert set(codes) <= {"invalid_id", "process_handle_invalid", "process_signal_invalid", "invalid_argument"}


async def test_waits_take_durations_as_people_write_them(process_app: ProcessApp) -> None:
    rt = await process_app.open(holds)
    started = await rt.start(holds, id="p")
    for within in ("20ms", "0.02s", 0.02):
        assert await refusal(started.wait(within)) is Code.RESULT_TIMEOUT
        assert await refusal(started.result(within)) is Code.RESULT_TIMEOUT
    for within in ("soon", "", True, [1]):
        assert await refusal(started.wait(within)) is Code.INVALID_ARGUMENT  # type: ignore[arg-type]
    await started.signal("go", 1)
    assert await started.result("20s") == "1"
    happened = await rt.triggers.emit("a.b", 1)
    assert await happened.deliveries("20s") == ()
    assert await refusal(happened.deliveries("soon")) is Code.INVALID_ARGUMENT


@pytest.mark.parametrize("payload", [{1, 2}, {1: "x"}, [{"a": frozenset({1})}], {"a": {2: 1}}])
async def test_emitted_payload_without_unique_json_is_refused(process_app: ProcessApp, payload: Json) -> None:
    """Or the same thing said again after a crash would be another one."""
    rt = await process_app.open(worker=False)
    assert await refusal(rt.triggers.emit("a.b", payload, key="k")) is Code.INVALID_JSON
    assert await rt.triggers.list() == (), "nothing was written"


@pytest.mark.parametrize("pattern", [5, None, b"x", ["x"]])
async def test_a_search_pattern_is_text(pattern: object) -> None:
    with pytest.raises(Error) as caught:
        check_pattern(pattern)  # type: ignore[arg-type]
    assert caught.value.code is Code.FILE_PATTERN_INVALID
    if pattern is not None:
        with pytest.raises(Error) as caught:
            await wanted_paths(pattern, ())  # type: ignore[arg-type]
        assert caught.value.code is Code.FILE_PATTERN_INVALID
