"""Batches: parallel first, serial after, answers in source order, and an honest end when they are cancelled."""

from __future__ import annotations

import asyncio

import pytest

from perdure.ids import CallId
from perdure.tools.batch import collected, run_batch
from perdure.tools.context import Cancellation
from perdure.vocab.effects import BatchedCall, PreparedToolBatch, PreparedToolCall
from perdure.vocab.outcomes import (
    CompletedToolCall,
    Done,
    Failed,
    Launch,
    NotRun,
    Pending,
    Success,
    ToolBatchOutcome,
    ToolOutput,
)
from perdure.vocab.promises import Custom, EventKey, PromiseId


def batch_of(*names: str) -> PreparedToolBatch:
    return PreparedToolBatch.of(
        tuple(
            PreparedToolCall(call_id=CallId(f"c{index}"), tool_id=f"tool:{name}", tool_name=name, args={})
            for index, name in enumerate(names)
        )
    )


def outputs(batch: PreparedToolBatch, outcome: ToolBatchOutcome) -> list[object]:
    return [
        one.value if isinstance(one, Success) else one.failure.code if isinstance(one, Failed) else type(one)
        for one in collected(batch, outcome.launches)
    ]


def serial(name: str) -> bool:
    return name.startswith("serial")


async def test_batch_runs_parallel_calls_before_serial_ones() -> None:
    batch = batch_of("serial-a", "one", "serial-b", "two")
    story: list[str] = []
    together = asyncio.Barrier(2)

    async def run(call: BatchedCall, token: Cancellation) -> ToolOutput:
        name = call.call.tool_name
        story.append(f"+{name}")
        if not serial(name):
            await asyncio.wait_for(together.wait(), 5)
        else:
            await asyncio.sleep(0)
        story.append(f"-{name}")
        return Success(value=name)

    outcome = await run_batch(batch, run, is_serial=serial, cancellation=Cancellation())
    assert outputs(batch, outcome) == ["serial-a", "one", "serial-b", "two"]
    assert set(story[:2]) == {"+one", "+two"}
    assert story[4:] == ["+serial-a", "-serial-a", "+serial-b", "-serial-b"]


async def test_cancellation_tells_the_children_and_gives_them_a_moment() -> None:
    batch = batch_of("polite", "stubborn", "done", "serial")
    cancellation = Cancellation()
    release = asyncio.Event()

    async def run(call: BatchedCall, token: Cancellation) -> ToolOutput:
        match call.call.tool_name:
            case "polite":
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    assert token.cancelled
                return Success(value="said how it ended")
            case "stubborn":
                while not release.is_set():
                    try:
                        await release.wait()
                    except asyncio.CancelledError:
                        continue
                return Success(value="too late")
            case _:
                return Success(value="done")

    running = asyncio.create_task(run_batch(batch, run, is_serial=serial, cancellation=cancellation))
    await asyncio.sleep(0.01)
    cancellation.cancel()
    outcome = await asyncio.wait_for(running, 5)
    release.set()
    assert outputs(batch, outcome) == ["said how it ended", "tool_cancelled", "done", NotRun]


async def test_a_cancelled_caller_leaves_no_child_behind() -> None:
    ended: list[str] = []

    async def run(call: BatchedCall, token: Cancellation) -> ToolOutput:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(call.call.tool_name)
        return Success()

    running = asyncio.create_task(run_batch(batch_of("a", "b"), run, is_serial=serial, cancellation=Cancellation()))
    await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(ended) == ["a", "b"]


def done(value: str) -> Done:
    return Done(result=CompletedToolCall(call_id=CallId("c"), tool_name="t", output=Success(value=value)))


def test_wrong_number_of_results_fails_all_calls() -> None:
    batch = batch_of("a", "b")
    for launches in ((), (done("x"),), (done("x"),) * 3):
        found = collected(batch, launches)
        assert [one.failure.code for one in found if isinstance(one, Failed)] == [
            "tool_batch_result_count_mismatch"
        ] * 2


def test_a_missing_result_is_missing_in_its_own_place() -> None:
    pending: Launch = Pending(key=EventKey(scope="s", wait=Custom(key="k"), key_id=PromiseId("p")))
    found = collected(batch_of("a", "b", "c"), (done("x"), None, pending))
    assert isinstance(found[0], Success)
    codes = [one.failure.code for one in found[1:] if isinstance(one, Failed)]
    assert codes == ["tool_batch_missing_result", "pending_tool_not_supported_here"]
