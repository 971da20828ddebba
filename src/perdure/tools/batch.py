"""Execution of a batch of calls: parallel calls first, then serial ones; results in source order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from perdure.tools.context import Cancellation
from perdure.vocab.effects import BatchedCall, PreparedToolBatch
from perdure.vocab.outcomes import (
    CompletedToolCall,
    Done,
    Failed,
    FailureClass,
    FailureDetail,
    Launch,
    NotRun,
    Pending,
    ToolBatchOutcome,
    ToolOutput,
)

GRACE_MS = 50

RunCall = Callable[[BatchedCall, Cancellation], Awaitable[ToolOutput]]


async def run_batch(
    batch: PreparedToolBatch, run: RunCall, *, is_serial: Callable[[str], bool], cancellation: Cancellation
) -> ToolBatchOutcome:
    """Run every call of a batch once. `run` executes each with its own cancellation token.

    On cancellation, by the token or of the caller, running calls are asked to stop and have 50 ms. The rest is
    cancelled. The caller's own cancellation is raised.
    """
    running = _Running(batch, run)
    forget = cancellation.add_callback(running.stop_soon)
    try:
        parallel = [index for index, one in enumerate(batch.calls) if not is_serial(one.call.tool_name)]
        serial = [index for index, one in enumerate(batch.calls) if is_serial(one.call.tool_name)]
        await running.all_of(parallel)
        for index in serial:
            await running.all_of([index])
    except asyncio.CancelledError:
        await running.stop()
        raise
    finally:
        forget()
    return ToolBatchOutcome(launches=running.launches())


class _Running:
    """The running calls of a batch."""

    def __init__(self, batch: PreparedToolBatch, run: RunCall) -> None:
        self._batch = batch
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._tokens = [Cancellation() for _ in batch.calls]
        self._tasks: dict[int, asyncio.Task[ToolOutput]] = {}
        self._stopped = asyncio.Event()

    async def all_of(self, indexes: Sequence[int]) -> None:
        if self._stopped.is_set():
            return
        for index in indexes:
            call = self._batch.calls[index]
            self._tasks[index] = asyncio.create_task(
                self._one(call, self._tokens[index]), name=f"perdure:{call.replay_suffix}"
            )
        waiting = {self._tasks[index] for index in indexes}
        stop = asyncio.create_task(self._stopped.wait())
        try:
            while waiting and not stop.done():
                done, _ = await asyncio.wait({*waiting, stop}, return_when=asyncio.FIRST_COMPLETED)
                waiting -= done
        finally:
            stop.cancel()
        if waiting:
            await self.stop()

    async def _one(self, call: BatchedCall, token: Cancellation) -> ToolOutput:
        return await self._run(call, token)

    def stop_soon(self) -> None:
        """Request cancellation, from any thread."""
        self._loop.call_soon_threadsafe(self._stopped.set)

    async def stop(self) -> None:
        """Ask all running calls to stop and wait for the grace period."""
        self._stopped.set()
        for token in self._tokens:
            token.cancel()
        left = [task for task in self._tasks.values() if not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=GRACE_MS / 1000)

    def launches(self) -> tuple[Launch, ...]:
        return tuple(Done(result=_completed(call, self._output(index))) for index, call in enumerate(self._batch.calls))

    def _output(self, index: int) -> ToolOutput:
        task = self._tasks.get(index)
        if task is None:
            return NotRun(reason="the batch was cancelled")
        if not task.done() or task.cancelled():
            return _failed("tool_cancelled", "the batch was cancelled while the call ran", "cancelled")
        return task.result()


def collected(batch: PreparedToolBatch, launches: Sequence[Launch | None]) -> tuple[ToolOutput, ...]:
    """Return one output per call, in order. A wrong number of results fails every call."""
    if len(launches) != len(batch):
        message = f"the batch has {len(batch)} calls and was answered with {len(launches)} results"
        return tuple(_failed("tool_batch_result_count_mismatch", message, "internal") for _ in batch.calls)
    return tuple(_one_of(launch) for launch in launches)


def _one_of(launch: Launch | None) -> ToolOutput:
    match launch:
        case Done(result=result):
            return result.output
        case Pending():
            return _failed("pending_tool_not_supported_here", "a call of a batch cannot be left pending", "invalid")
        case None:
            return _failed("tool_batch_missing_result", "the batch has no result for this call", "internal")


def _completed(call: BatchedCall, output: ToolOutput) -> CompletedToolCall:
    return CompletedToolCall(call_id=call.call.call_id, tool_name=call.call.tool_name, output=output)


def _failed(code: str, message: str, failure_class: FailureClass) -> Failed:
    return Failed(failure=FailureDetail(code=code, message=message, failure_class=failure_class))
