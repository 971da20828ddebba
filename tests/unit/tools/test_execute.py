import asyncio
import contextvars
import functools
import logging
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from perdure import codec
from perdure.errors import Error
from perdure.tools.context import ToolContext
from perdure.tools.decorator import AnyTool, tool
from perdure.tools.errors import OutcomeUnknown, ToolError
from perdure.tools.execute import INTERNAL_ERROR, Withheld, run_attempt, run_probe
from perdure.tools.threads import ToolThreads
from perdure.tools.verdicts import CannotTell, DidNotHappen, Happened, Verdict
from perdure.vocab.outcomes import Failed, InDoubt, NotRun, Success
from perdure.vocab.tools import EffectClass
from tests.unit.tools.calling import admitted, attempt, context, failure, prepared

BREAKS: list[BaseException] = [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()]
RERUNS: list[EffectClass] = ["pure", "idempotent"]


def raising(error: BaseException, *, is_async: bool, effect: EffectClass = "once") -> AnyTool:
    def sync() -> str:
        raise error

    async def asynchronous() -> str:
        raise error

    return tool(name="t", effect=effect)(asynchronous if is_async else sync)


both = pytest.mark.parametrize("is_async", [True, False])


# --- how calls end by themselves


@both
async def test_a_value_is_a_success(is_async: bool, threads: ToolThreads) -> None:
    def add(ctx: ToolContext[str], a: int, b: list[int]) -> dict[str, object]:
        return {"sum": a + sum(b), "key": ctx.idempotency_key}

    async def add_async(ctx: ToolContext[str], a: int, b: list[int]) -> dict[str, object]:
        await asyncio.sleep(0)
        return add(ctx, a, b)

    output = await attempt(tool(add_async if is_async else add), threads, a="1", b=[2, 3])
    assert output == Success(value={"sum": 6, "key": "key-1"})


@both
async def test_a_tool_error_is_shown_as_it_is(is_async: bool, threads: ToolThreads) -> None:
    error = ToolError("no slots", code="sold_out", retry_safe=True, retry_after_ms=50)
    found = failure(await attempt(raising(error, is_async=is_async), threads))
    assert (found.code, found.message, found.failure_class) == ("sold_out", "no slots", "tool")
    assert (found.retry_safe, found.retry_after_ms) == (True, 50)


async def test_a_tool_error_is_not_retry_safe_by_itself(threads: ToolThreads) -> None:
    found = failure(await attempt(raising(ToolError("x", code=" "), is_async=True), threads))
    assert (found.code, found.retry_safe, found.retry_after_ms) == ("tool_error", False, None)


async def test_a_hostile_message_cannot_break_the_log(threads: ToolThreads) -> None:
    found = failure(await attempt(raising(ToolError("\ud800" * 100_000), is_async=True), threads))
    assert found.message.startswith("???")
    assert len(found.message) < 20_000


class Forgetful(ToolError):
    def __init__(self) -> None:
        pass

    def __str__(self) -> str:
        raise ZeroDivisionError


async def test_a_tool_error_that_is_broken_itself_is_still_a_tool_error(threads: ToolThreads) -> None:
    found = failure(await attempt(raising(Forgetful(), is_async=True), threads))
    assert (found.code, found.message, found.retry_safe) == ("tool_error", "Forgetful", False)


@pytest.mark.parametrize(("after", "ms"), [(1.5, 2), (-3, 0), (float("nan"), None), ("soon", None), (None, None)])
async def test_a_failure_can_always_be_read_back(after: object, ms: int | None, threads: ToolThreads) -> None:
    error = ToolError("x", retry_safe=True, retry_after_ms=cast("int", after))
    output = await attempt(raising(error, is_async=True), threads)
    assert failure(output).retry_after_ms == ms
    assert codec.decode(codec.encode(output), Failed) == output


@both
async def test_any_other_exception_stays_between_us_and_the_log(
    is_async: bool, threads: ToolThreads, caplog: pytest.LogCaptureFixture
) -> None:
    found = failure(await attempt(raising(KeyError("password"), is_async=is_async), threads))
    assert (found.code, found.message, found.failure_class) == ("internal_error", INTERNAL_ERROR, "internal")
    assert (found.error_type, found.retry_safe) == ("KeyError", False)
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("perdure.tools", logging.ERROR)
    assert record.exc_info
    named = {key: record.__dict__[key] for key in ("session", "turn", "call", "tool")}
    assert named == {"session": "s1", "turn": "t1", "call": "t1.1.0", "tool": "t"}


@both
@pytest.mark.parametrize("error", BREAKS, ids=lambda e: type(e).__name__)
async def test_a_tool_that_breaks_off_panicked_and_nothing_else_did(
    error: BaseException, is_async: bool, threads: ToolThreads
) -> None:
    found = failure(await attempt(raising(error, is_async=is_async), threads))
    assert (found.code, found.failure_class, found.error_type) == ("tool_panicked", "panic", type(error).__name__)
    assert not found.retry_safe
    assert await attempt(tool(name="next")(lambda: 1), threads) == Success(value=1)


async def test_sys_exit_in_a_thread_ends_the_call_only(threads: ToolThreads) -> None:
    @tool
    def leave() -> None:
        sys.exit("bye")

    assert failure(await attempt(leave, threads)).code == "tool_panicked"


async def test_a_task_that_cancels_itself_panicked(threads: ToolThreads) -> None:
    @tool
    async def suicidal() -> None:
        task = asyncio.current_task()
        assert task
        task.cancel()
        await asyncio.sleep(1)

    assert failure(await attempt(suicidal, threads)).code == "tool_panicked"


@both
async def test_a_declared_doubt_is_in_doubt_for_a_once_tool(is_async: bool, threads: ToolThreads) -> None:
    output = await attempt(raising(OutcomeUnknown("502 after sending"), is_async=is_async), threads)
    assert output == InDoubt(reason="declared", message="502 after sending")


@pytest.mark.parametrize("effect", RERUNS)
async def test_declared_doubt_of_a_repeatable_call_is_retry_safe(effect: EffectClass, threads: ToolThreads) -> None:
    found = failure(await attempt(raising(OutcomeUnknown("x"), is_async=True, effect=effect), threads))
    assert (found.code, found.retry_safe) == ("outcome_unknown", True)


async def test_doubt_in_any_part_of_a_group_is_doubt(threads: ToolThreads) -> None:
    group = ExceptionGroup("both", [ValueError("x"), ExceptionGroup("in", [OutcomeUnknown("lost")])])
    assert await attempt(raising(group, is_async=True), threads) == InDoubt(reason="declared", message="lost")


async def test_a_lone_tool_error_in_a_group_stands_for_itself(threads: ToolThreads) -> None:
    @tool
    async def grouped() -> None:
        async def fail() -> None:
            raise ToolError("no slots")

        async with asyncio.TaskGroup() as group:
            group.create_task(fail())

    assert failure(await attempt(grouped, threads)).message == "no slots"
    group = ExceptionGroup("two", [ToolError("a"), ValueError("b")])
    assert failure(await attempt(raising(group, is_async=True), threads)).code == "internal_error"


@both
async def test_a_result_that_cannot_be_stored_says_that_the_tool_did_run(is_async: bool, threads: ToolThreads) -> None:
    def bad() -> dict[str, list[float]]:
        return {"rates": [1.0, float("nan")]}

    async def bad_async() -> dict[str, list[float]]:
        return bad()

    found = failure(await attempt(tool(bad_async if is_async else bad), threads))
    assert (found.code, found.failure_class, found.retry_safe) == ("tool_result_invalid", "invalid", False)
    assert "did run" in found.message
    assert "$.rates[1]" in found.message
    assert "not repeated" in found.message


async def test_missing_dependencies_are_an_internal_error(
    threads: ToolThreads, caplog: pytest.LogCaptureFixture
) -> None:
    @tool
    async def ask_bank(ctx: ToolContext[str]) -> str:
        return ctx.deps

    found = failure(await attempt(ask_bank, threads))
    assert (found.code, found.message) == ("internal_error", INTERNAL_ERROR)
    assert found.error_type == Error.__name__
    assert "deps=" in caplog.text
    given = await run_attempt(admitted(prepared(ask_bank)), context(deps="bank"), threads=threads)
    assert given == Success(value="bank")


async def test_a_plain_function_that_returns_a_coroutine_is_awaited(threads: ToolThreads) -> None:
    async def real() -> str:
        await asyncio.sleep(0)
        return "done"

    @tool
    @functools.wraps(real)
    def wrapper() -> Awaitable[str]:
        return real()

    assert not wrapper.is_async
    assert await attempt(wrapper, threads) == Success(value="done")


async def test_context_variables_reach_a_sync_tool(threads: ToolThreads) -> None:
    who = contextvars.ContextVar("who", default="nobody")
    who.set("me")

    @tool
    def ask() -> tuple[str, bool]:
        return who.get(), threading.current_thread().daemon

    assert await attempt(ask, threads) == Success(value=["me", True])


# --- deadlines


async def test_a_once_call_that_times_out_is_in_doubt(threads: ToolThreads) -> None:
    @tool(timeout="5ms")
    async def slow() -> None:
        await asyncio.sleep(10)

    output = await attempt(slow, threads)
    assert isinstance(output, InDoubt)
    assert output.reason == "timeout"
    assert "5 ms" in output.message
    assert threads.abandoned == 0


@pytest.mark.parametrize("effect", RERUNS)
async def test_timeout_of_a_repeatable_call_is_retry_safe(effect: EffectClass, threads: ToolThreads) -> None:
    @tool(effect=effect, timeout="5ms")
    async def slow() -> None:
        await asyncio.sleep(10)

    found = failure(await attempt(slow, threads))
    assert (found.code, found.failure_class, found.retry_safe) == ("tool_timeout", "timeout", True)


async def test_the_captured_promises_govern_not_todays(threads: ToolThreads) -> None:
    async def slow() -> None:
        await asyncio.sleep(10)

    captured = tool(timeout="5ms")(slow)
    today = tool(effect="pure")(slow)
    call = prepared(captured)
    changed = type(call)(tool=today, arguments={}, contract=captured.contract)
    assert isinstance(await run_attempt(admitted(changed), context(), threads=threads), InDoubt)


@pytest.mark.usefixtures("patient")
async def test_a_sync_tool_is_told_to_stop_and_its_thread_comes_back(
    threads: ToolThreads, pass_deadline: Callable[[], None]
) -> None:
    @tool(timeout="30m")
    def slow(ctx: ToolContext) -> None:
        stopped = threading.Event()
        ctx.cancellation.add_callback(stopped.set)
        pass_deadline()
        stopped.wait(20)
        raise RuntimeError("stopped")

    assert isinstance(await attempt(slow, threads), InDoubt)
    assert threads.abandoned == 0


async def test_an_end_that_the_tool_tells_within_the_grace_is_believed(threads: ToolThreads) -> None:
    @tool(timeout="5ms")
    async def finishing(fails: bool) -> str:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            if fails:
                raise ToolError("rolled back", retry_safe=True) from None
        return "done after all"

    assert await attempt(finishing, threads, fails=False) == Success(value="done after all")
    assert failure(await attempt(finishing, threads, fails=True)).message == "rolled back"


async def test_a_tool_that_swallows_cancellation_is_left_behind_and_counted(
    threads: ToolThreads, caplog: pytest.LogCaptureFixture
) -> None:
    release = asyncio.Event()

    @tool(timeout="5ms")
    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    assert isinstance(await attempt(stubborn, threads), InDoubt)
    assert threads.abandoned == 1
    assert "left running" in caplog.text
    release.set()
    await asyncio.sleep(0.001)


async def test_a_thread_that_does_not_come_back_is_replaced(pass_deadline: Callable[[], None]) -> None:
    threads = ToolThreads(1)
    release = threading.Event()

    @tool(timeout="30m")
    def stuck() -> str:
        pass_deadline()
        release.wait(20)
        return "too late"

    assert isinstance(await attempt(stuck, threads), InDoubt)
    assert threads.abandoned == 1
    assert await attempt(tool(name="next")(lambda: 1), threads) == Success(value=1)
    release.set()
    assert threads.close(5000) == 0


async def test_a_call_that_found_no_thread_before_its_deadline_never_runs() -> None:
    threads = ToolThreads(1)
    release, ran = threading.Event(), list[int]()

    @tool
    def busy() -> None:
        release.wait(20)

    @tool(timeout="5ms")
    def queued() -> None:
        ran.append(1)

    first = asyncio.create_task(attempt(busy, threads))
    await asyncio.sleep(0.001)
    found = failure(await attempt(queued, threads))
    assert (found.code, found.retry_safe) == ("tool_timeout", True)
    release.set()
    assert await first == Success()
    assert threads.close(5000) == 0
    assert not ran


@pytest.mark.usefixtures("patient")
async def test_wrapper_with_an_unstarted_coroutine_is_in_doubt(
    threads: ToolThreads, pass_deadline: Callable[[], None]
) -> None:
    async def rest() -> None:
        pass

    @tool(timeout="30m")
    def wrapper(ctx: ToolContext) -> Awaitable[None]:
        told = threading.Event()
        ctx.cancellation.add_callback(told.set)
        pass_deadline()
        told.wait(20)
        return rest()

    assert isinstance(await attempt(wrapper, threads), InDoubt)


async def test_a_coroutine_that_is_returned_and_runs_too_long_is_stopped(
    threads: ToolThreads, pass_deadline: Callable[[], None]
) -> None:
    ended: list[str] = []

    async def rest() -> None:
        pass_deadline()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("stopped")

    assert isinstance(await attempt(tool(name="t", timeout="30m")(lambda: rest()), threads), InDoubt)
    assert ended == ["stopped"]


# --- the caller goes away


@pytest.mark.usefixtures("patient")
async def test_only_the_callers_own_cancellation_is_raised(threads: ToolThreads) -> None:
    started, told = asyncio.Event(), list[str]()

    async def slow(ctx: ToolContext) -> None:
        started.set()
        try:
            await asyncio.sleep(10)
        finally:
            told.append(f"cancelled={ctx.cancellation.cancelled}")

    caller = asyncio.create_task(attempt(tool(slow), threads))
    await started.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert told == ["cancelled=True"]
    assert threads.abandoned == 0


@pytest.mark.usefixtures("patient")
async def test_a_stopped_tool_that_says_how_it_ended_is_believed(threads: ToolThreads) -> None:
    started = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(ctx: ToolContext) -> str:
        stop = threading.Event()
        ctx.cancellation.add_callback(stop.set)
        loop.call_soon_threadsafe(started.set)
        stop.wait(20)
        return f"receipt 42, cancelled={ctx.cancellation.cancelled}"

    caller = asyncio.create_task(attempt(tool(slow), threads))
    await started.wait()
    caller.cancel()
    assert await caller == Success(value="receipt 42, cancelled=True")
    assert threads.abandoned == 0


@both
async def test_a_call_that_may_not_start_any_more_is_withheld(is_async: bool, threads: ToolThreads) -> None:
    ran: list[str] = []

    async def charge() -> None:
        ran.append("async")

    def charge_sync() -> None:
        ran.append("sync")

    one: AnyTool = tool(charge) if is_async else tool(charge_sync)
    with pytest.raises(Withheld):
        await run_attempt(admitted(prepared(one)), context(), threads=threads, may_start=lambda: False)
    assert ran == []


async def test_a_caller_that_leaves_twice_does_not_wait_out_the_grace(threads: ToolThreads) -> None:
    release, started = asyncio.Event(), asyncio.Event()

    @tool
    async def stubborn() -> None:
        started.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    caller = asyncio.create_task(attempt(stubborn, threads))
    await started.wait()
    for _ in range(2):
        caller.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert threads.abandoned == 1
    release.set()
    await asyncio.sleep(0.001)


async def test_a_closed_pool_runs_nothing() -> None:
    threads, ran = ToolThreads(), list[int]()
    threads.close()
    assert await attempt(tool(name="t")(lambda: ran.append(1)), threads) == NotRun(reason="the runtime is closing")
    assert not ran


# --- probes


def probed(probe: Callable[[ToolContext], Verdict | Awaitable[Verdict]]) -> AnyTool:
    return tool(name="t", probe=probe)(lambda: None)


@both
@pytest.mark.parametrize("verdict", [Happened({"receipt": "r1"}), DidNotHappen(), CannotTell("asked twice")])
async def test_a_probe_answers_by_idempotency_key(verdict: Verdict, is_async: bool) -> None:
    keys: list[str] = []

    def sync(ctx: ToolContext) -> Verdict:
        keys.append(ctx.idempotency_key)
        return verdict

    async def asynchronous(ctx: ToolContext) -> Verdict:
        return sync(ctx)

    assert await run_probe(probed(asynchronous if is_async else sync), context()) == verdict
    assert keys == ["key-1"]


@both
@pytest.mark.parametrize("error", [ValueError("secret"), *BREAKS], ids=lambda e: type(e).__name__)
async def test_a_probe_that_fails_knows_nothing(
    error: BaseException, is_async: bool, threads: ToolThreads, caplog: pytest.LogCaptureFixture
) -> None:
    def sync(ctx: ToolContext) -> Verdict:
        raise error

    async def asynchronous(ctx: ToolContext) -> Verdict:
        raise error

    verdict = await run_probe(probed(asynchronous if is_async else sync), context(), threads=threads)
    assert isinstance(verdict, CannotTell)
    assert type(error).__name__ in verdict.reason
    assert "secret" not in verdict.reason
    assert caplog.records


@pytest.mark.parametrize("answer", [True, None, "happened", Happened])
async def test_a_probe_that_does_not_answer_with_a_verdict_knows_nothing(answer: object) -> None:
    def probe(ctx: ToolContext) -> Verdict:
        return answer  # pyright: ignore[reportReturnType]

    assert isinstance(await run_probe(probed(probe), context()), CannotTell)


async def test_a_probe_that_hangs_knows_nothing() -> None:
    async def probe(ctx: ToolContext) -> Verdict:
        await asyncio.sleep(10)
        return CannotTell()

    verdict = await run_probe(probed(probe), context(), timeout_ms=5)
    assert verdict == CannotTell("the probe timed out")


async def test_probe_happened_counts_with_an_unstorable_value() -> None:
    assert await run_probe(probed(lambda ctx: Happened(float("nan"))), context()) == Happened(None)


async def test_a_tool_without_a_probe_is_unknown() -> None:
    assert isinstance(await run_probe(tool(name="t")(lambda: None), context()), CannotTell)
