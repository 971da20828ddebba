"""Outcomes of body parts: the record of a step's result or error, and its replay on every entry."""

from __future__ import annotations

import logging

from perdure.codec import Json
from perdure.errors import Code
from perdure.tools.body_scope import BodyScope
from perdure.tools.errors import OutcomeUnknown, ToolError, foremost, message_of, text_of, whole_ms
from perdure.tools.results import Unstorable, keep
from perdure.tools.step_arguments import MAX_STEP_BYTES
from perdure.vocab.outcomes import DurableStepOutcome, InDoubt, StepFailure
from perdure.vocab.promises import Cancelled, Failure, Ok, Resolution, TimedOut

logger = logging.getLogger("perdure.tools")

INTERNAL = "An internal error occurred in the step"


class Parked(BaseException):
    """Signal that unwinds a body until its wait is over. Only `finally` blocks should run."""


class StepFailed(ToolError):
    """A step failed, in this entry or an earlier one; a replay raises the same. `step` names the step."""

    step: str = ""
    error_type: str = ""


class EventFailed(ToolError):
    """An awaited event ended without a value."""


class EventTimedOut(EventFailed, TimeoutError):
    """An awaited event timed out. `except TimeoutError` catches it, too."""


# --- recording ----------------------------------------------------------------------------------------------------


def returned(name: str, value: object) -> DurableStepOutcome:
    """Return the outcome of a step that returned this value."""
    kept = keep(value)
    if isinstance(kept, Unstorable):
        message = f"the step {name} did run, but its result cannot be stored, at {kept.path}: {kept.reason}"
        return DurableStepOutcome(error=StepFailure(code="step_result_invalid", message=message))
    if kept.size > MAX_STEP_BYTES:
        message = f"the step {name} did run, but its result is {kept.size} bytes; at most {MAX_STEP_BYTES} are kept"
        return DurableStepOutcome(error=StepFailure(code="step_result_too_large", message=message))
    return DurableStepOutcome(value=kept.value)


def raised(name: str, problem: BaseException, place: BodyScope) -> DurableStepOutcome:
    """Return the outcome of a step that raised."""
    error = foremost(problem)
    if isinstance(error, OutcomeUnknown):
        return DurableStepOutcome(in_doubt=InDoubt(reason="declared", message=message_of(error)))
    kind = type(error).__name__
    if isinstance(error, ToolError):
        failure = StepFailure(
            code=text_of(error.code).strip() or "tool_error",
            message=message_of(error),
            retry_safe=bool(error.retry_safe),
            retry_after_ms=whole_ms(error.retry_after_ms),
            error_type=kind,
        )
    else:
        where = {"call": place.call, "step": name}
        logger.error("step failed step=%s call=%s", name, place.called, exc_info=error, extra=where)
        failure = StepFailure(code="internal_error", message=INTERNAL, error_type=kind)
    return DurableStepOutcome(error=failure)


# --- replay -------------------------------------------------------------------------------------------------------


def step_value(name: str, outcome: DurableStepOutcome) -> Json:
    """Return the value of a step.

    Raises:
        StepFailed: the step failed.
        OutcomeUnknown: the step may or may not have taken effect.
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
    """Return the value of an event.

    Raises:
        EventTimedOut: no resolution in time.
        EventFailed: an error, or the wait was cancelled.
    """
    match resolution:
        case Ok(value=value):
            return value
        case Failure(code=code, message=message):
            raise EventFailed(message, code=code)
        case TimedOut():
            message = f"the event {name} timed out"
            raise EventTimedOut(message, code=Code.DURABLE_EFFECT_EVENT_TIMEOUT.value)
        case Cancelled():
            message = f"the wait for the event {name} was cancelled"
            raise EventFailed(message, code=Code.DURABLE_EFFECT_EVENT_CANCELLED.value)


def signal_value(name: str, resolution: Resolution) -> Json:
    """Return the payload of a signal. Raises as `event_value` does."""
    match resolution:
        case Ok(value=value):
            return value
        case TimedOut():
            raise EventTimedOut(f"the signal {name} timed out", code=Code.PROCESS_SIGNAL_WAIT_TIMEOUT.value)
        case Cancelled() | Failure():
            message = f"the wait for the signal {name} was cancelled"
            raise EventFailed(message, code=Code.PROCESS_SIGNAL_WAIT_CANCELLED.value)
