"""The end of a cancelled turn: running effects are stopped, and every call gets a truthful outcome."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec.structs import replace

from perdure.runtime.calls import jobs
from perdure.runtime.turns.in_flight import InFlight
from perdure.turn.machine import awaited, settlement, stopped, unanswered
from perdure.turn.state import Call
from perdure.vocab.effects import AwaitEvent
from perdure.vocab.outcomes import (
    AwaitEventOutcome,
    DurableStepOutcome,
    Failed,
    FailureDetail,
    InDoubt,
    NotRun,
    ToolOutput,
)
from perdure.vocab.promises import Cancelled
from perdure.vocab.records import EffectSettled, EffectStarted
from perdure.vocab.refs import PartRef, is_part

if TYPE_CHECKING:
    from perdure.runtime.turns.loop import TurnDriver


SETTLED_AT_ONCE = 64
"""Calls that one step settles, before other tasks of the event loop run."""


async def end_cancelled(driver: TurnDriver) -> None:
    """Stop everything in flight, record an outcome for every call, and end the turn."""
    journal = driver.controller.journal
    begun = jobs.asked_for(journal)
    for flight in driver.flights.values():
        flight.put_aside()
    await driver.halt()
    driver.controller.doubt_unsettled_steps(InDoubt(reason="cancelled"))
    driver.controller.end_inner_bodies()
    await _forget_events(driver)
    await driver.around.give_up(driver.turn, (*jobs.own(driver.turn), *jobs.not_answered(begun, journal)))
    driver.settle_completed()  # results that arrived during the halt: a call may now be pending, in doubt or failed
    for count, (ref, call) in enumerate(unanswered(driver.turn), 1):
        if count % SETTLED_AT_ONCE == 0:
            await asyncio.sleep(0)  # a reply can have thousands of calls
        flight = driver.flights.get(ref.id)
        if call.pending is not None:
            telling = call.pending.pending.on_cancel == "cancel_external_work"
            ended = AwaitEventOutcome(resolution=await driver.waits.withdraw(call.pending.key, telling=telling))
            driver.controller.record(EffectSettled(id=replace(ref, tail="completion").id, outcome=ended))
        elif call.undecided is not None:
            await _withdraw_question(driver, call.undecided)
            superseded = AwaitEventOutcome(resolution=Cancelled())  # even if a decision has just arrived
            driver.controller.record(EffectSettled(id=replace(ref, tail="approval").id, outcome=superseded))
        elif call.doubt is not None and call.policy == "ask":
            asked = driver.controller.journal.started(replace(ref, tail="doubt").id)
            await _withdraw_question(driver, asked)
            left = AwaitEventOutcome(resolution=Cancelled())
            driver.controller.record(EffectSettled(id=replace(ref, tail="doubt").id, outcome=left))
        elif call.doubt is not None:
            unknown = DurableStepOutcome(value={"verdict": "unknown", "reason": "the turn was cancelled"})
            driver.controller.record(EffectSettled(id=replace(ref, tail="probe").id, outcome=unknown))
        else:
            driver.note_untracked(flight)
            driver.controller.record(settlement(ref, call.request, _cut_short(driver, flight, call)))
    if (asking := awaited(driver.turn)) is not None:
        driver.controller.record(await driver.lost_reply(asking))
    driver.flights.clear()
    driver.landed.clear()
    reason = driver.turn.cancel.reason if driver.turn.cancel else ""
    driver.submit(stopped(driver.turn, "cancelled", reason or "cancelled on request"))


async def _withdraw_question(driver: TurnDriver, asked: EffectStarted | None) -> None:
    """Cancel the promise behind a question to a person. A late answer is told that it is closed."""
    if asked is not None and isinstance(asked.command, AwaitEvent):
        await driver.waits.withdraw(asked.command.key)


async def _forget_events(driver: TurnDriver) -> None:
    """Cancel the event waits in the bodies of this turn."""
    for started in driver.controller.journal.unsettled():
        if isinstance(started.command, AwaitEvent) and is_part(started.id):
            ended = AwaitEventOutcome(resolution=await driver.waits.withdraw(started.command.key))
            driver.controller.record(EffectSettled(id=started.id, outcome=ended))


def _cut_short(driver: TurnDriver, flight: InFlight | None, call: Call) -> ToolOutput:
    """Return the output of a stopped call. The output of a resumable call follows from its steps."""
    if call.started is None or call.started.effect != "resumable":
        return _stopped(flight, call.failures)
    iteration = driver.turn.iteration
    for doubtful in driver.controller.journal.doubtful():
        part = PartRef.parse(doubtful) if is_part(doubtful) else None
        if part and (part.iteration, part.index) == (iteration, call.index):
            return InDoubt(reason="cancelled", message=f"the turn was cancelled during the step {part.name}")
    message = "the turn was cancelled while the call was under way; the steps it had finished stand"
    return Failed(failure=FailureDetail(code="tool_cancelled", message=message, failure_class="cancelled"))


def _stopped(flight: InFlight | None, failures: int) -> ToolOutput:
    """Return the output of a stopped call: in doubt if it may have taken effect, not run if it was never dispatched."""
    if failures and (flight is None or not flight.dispatched):
        message = "the turn was cancelled before the next attempt; the attempts before it failed"
        return Failed(failure=FailureDetail(code="tool_cancelled", message=message, failure_class="cancelled"))
    if flight is None or not flight.dispatched:
        return NotRun(reason="the turn was cancelled")
    if flight.effect == "once":
        ignored = "; it ignored that and was left running" if flight.left_running else ""
        message = f"the turn was cancelled while the call ran{ignored}"
        return InDoubt(reason="cancelled", message=message, left_running=flight.left_running)
    failure = FailureDetail(
        code="tool_cancelled", message="the turn was cancelled while the call ran", failure_class="cancelled"
    )
    return Failed(failure=failure)
