"""Calls that outlived their worker's ownership: their outcome goes to the inbox, so that doubt can end.

A worker that lost a stream cannot write to it. The outcome of its `once` call still reaches the current owner: once,
under the effect's key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

from perdure.clock import Clock
from perdure.errors import Code, Error
from perdure.ids import EffectId, StreamId, TurnId
from perdure.inbox.admit import delivery
from perdure.inbox.items import LateOutcome
from perdure.runtime.shared import AbandonedCalls
from perdure.runtime.turns.in_flight import InFlight
from perdure.runtime.turns.loop import TurnDriver
from perdure.store.protocol import Store
from perdure.tools.result_truncation import unkept
from perdure.vocab.log_keys import open_key
from perdure.vocab.outcomes import CompletedToolCall, Done, InDoubt, Outcome, Success, ToolCallOutcome

log = logging.getLogger("perdure.runtime")

_FIRST_BACKOFF_S = 0.1
_LAST_BACKOFF_S = 5.0


class Orphans:
    """The outcomes that this runtime owes to streams it no longer owns."""

    def __init__(self, store: Store, clock: Clock, abandoned_calls: AbandonedCalls | None = None) -> None:
        self._store = store
        self._clock = clock
        self._loose_ends = abandoned_calls or AbandonedCalls()
        self._tasks: set[asyncio.Task[None]] = set()

    def adopt(self, stream: StreamId, driver: TurnDriver) -> None:
        """Take over what a refused driver leaves: calls that still run, and unconfirmed outcomes."""
        for effect, outcome in driver.unconfirmed_once():
            self._spawn(self.post(stream, driver.turn.id, effect, outcome))
        for flight in driver.flights.values():
            if flight.effect == "once" and flight.dispatched:
                self._spawn(self._outlive(stream, driver.turn.id, flight))
            else:
                flight.put_aside()
                flight.shut()
                flight.stop()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _outlive(self, stream: StreamId, turn: TurnId, flight: InFlight) -> None:
        if flight.task:
            await asyncio.wait([flight.task])
        if flight.outcome is not None:
            await self.post(stream, turn, flight.id, flight.outcome)

    async def post(self, stream: StreamId, turn: TurnId, effect: EffectId, outcome: Outcome) -> None:
        """Put an outcome into the inbox of the stream, with retries while the store is unavailable."""
        match outcome:
            case ToolCallOutcome(launch=Done(result=CompletedToolCall(output=InDoubt()))):
                return
            case ToolCallOutcome(launch=Done(result=result)):
                output = result.output
                if isinstance(output, Success):
                    # An inbox item carries no blobs: only the head is sent.
                    value = unkept(output.value) if output.spilled else output.value
                    output = Success(value=value, connection_required=output.connection_required)
                item = LateOutcome(call=result.call_id, id=effect, tool=result.tool_name, output=output)
            case _:
                return
        backoff = _FIRST_BACKOFF_S
        while True:
            try:
                if await self._store.find(stream, open_key(turn)) is None:
                    return  # the session was deleted; a new one of the same name is another session
                late = delivery(stream, f"late:{turn}:{effect}", item, at=self._clock.wall_ms())
                await self._store.admit(late)
                return
            except Error as problem:
                if problem.code in (Code.SESSION_UNKNOWN, Code.RUNTIME_CLOSED, Code.RUNTIME_FORKED):
                    log.warning("late outcome dropped: %s", problem, extra={"stream": stream})
                    return
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, _LAST_BACKOFF_S)

    async def settle(self, timeout_s: float) -> None:
        """Wait for owed outcomes, at most `timeout_s` seconds."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        for task in tuple(self._tasks):
            self._loose_ends.note()
            task.cancel()
