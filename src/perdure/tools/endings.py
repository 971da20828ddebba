"""How the parts of a body end: what is recorded of a step that returned or raised, and what a body gets for what was
recorded, the first time and on every entry after it."""

from __future__ import annotations

import logging

from perdure.codec import Json
from perdure.errors import Code
from perdure.services.secrets import Veil
from perdure.tools.errors import OutcomeUnknown, ToolError, foremost, message_of, text_of, whole_ms
from perdure.tools.given import MAX_STEP_BYTES
from perdure.tools.places import Place
from perdure.tools.results import Unstorable, keep
from perdure.vocab.outcomes import DurableStepOutcome, InDoubt, StepFailure
from perdure.vocab.promises import Cancelled, Err, Ok, Resolution, TimedOut

logger = logging.getLogger("perdure.tools")

INTERNAL = "An internal error occurred in the step"


class Parked(BaseException):
    """The body is put aside until what it waits for has happened; `finally` runs, and nothing else should."""


class StepFailed(ToolError):
    """A step failed: now, or when it was run; a replay raises the same. `step` names it."""

    step: str = ""
    error_type: str = ""


class EventFailed(ToolError):
    """An awaited event ended without a value."""


class EventTimedOut(EventFailed):
    """Nobody answered in time."""


# --- what is recorded ---------------------------------------------------------------------------------------------


def returned(name: str, value: object, veil: Veil) -> DurableStepOutcome:
    """The outcome of a step that came back with this value."""
    kept = keep(value)
    if isinstance(kept, Unstorable):
        message = f"the step {name} did run, but its result cannot be stored, at {kept.path}: {kept.reason}"
        return DurableStepOutcome(error=StepFailure(code="step_result_invalid", message=message))
    if kept.size > MAX_STEP_BYTES:
        message = f"the step {name} did run, but its result is {kept.size} bytes; at most {MAX_STEP_BYTES} are kept"
        return DurableStepOutcome(error=StepFailure(code="step_result_too_large", message=message))
    return DurableStepOutcome(value=veil.json(kept.value))


def raised(name: str, problem: BaseException, veil: Veil, place: Place) -> DurableStepOutcome:
    """The outcome of a step that raised."""
    error = foremost(problem)
    if isinstance(error, OutcomeUnknown):
        return DurableStepOutcome(in_doubt=InDoubt(reason="declared", message=veil.text(message_of(error))))
    kind = type(error).__name__
    if isinstance(error, ToolError):
        failure = StepFailure(
            code=text_of(error.code).strip() or "tool_error",
            message=veil.text(message_of(error)),
            retry_safe=bool(error.retry_safe),
            retry_after_ms=whole_ms(error.retry_after_ms),
            error_type=kind,
        )
    else:
        where = {"call": place.call, "step": name}
        logger.error("step %s of %s failed", name, place.called, exc_info=error, extra=where)
        failure = StepFailure(code="internal_error", message=INTERNAL, error_type=kind)
    return DurableStepOutcome(error=failure)


# --- what the body gets -------------------------------------------------------------------------------------------


def step_value(name: str, outcome: DurableStepOutcome) -> Json:
    """What a step gave.

    Raises:
        StepFailed: it failed.
        OutcomeUnknown: nobody knows whether it took effect.
    """
    if outcome.in_doubt is not None:
        said = f": {outcome.in_doubt.message}" if outcome.in_doubt.message else ""
        raise OutcomeUnknown(f"the step {name} may or may not have taken effect, and was not run again{said}")
    if outcome.error is not None:
        failure = outcome.error
        failed = StepFailed(
            failure.message,
            code=failure.code,
            retry_safe=failure.retry_safe,
            retry_after_ms=failure.retry_after_ms,
        )
        failed.step, failed.error_type = name, failure.error_type
        raise failed
    return outcome.value


def event_value(name: str, resolution: Resolution) -> Json:
    """What was answered to an event.

    Raises:
        EventTimedOut: nothing in time.
        EventFailed: an error, or the wait was cancelled.
    """
    match resolution:
        case Ok(value=value):
            return value
        case Err(code=code, message=message):
            raise EventFailed(message, code=code)
        case TimedOut():
            message = f"nobody answered the event {name} in time"
            raise EventTimedOut(message, code=Code.DURABLE_EFFECT_EVENT_TIMEOUT.value)
        case Cancelled():
            message = f"the wait for the event {name} was cancelled"
            raise EventFailed(message, code=Code.DURABLE_EFFECT_EVENT_CANCELLED.value)


def signal_value(name: str, resolution: Resolution) -> Json:
    """What a signal brought; raises as `event_value` does."""
    match resolution:
        case Ok(value=value):
            return value
        case TimedOut():
            raise EventTimedOut(f"no signal {name} came in time", code=Code.PROCESS_SIGNAL_WAIT_TIMEOUT.value)
        case Cancelled() | Err():
            message = f"the wait for the signal {name} was cancelled"
            raise EventFailed(message, code=Code.PROCESS_SIGNAL_WAIT_CANCELLED.value)
