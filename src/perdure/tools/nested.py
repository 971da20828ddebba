"""Outcomes of a body's calls to other tools, read from the records.

A continuing body, a re-entered body and the replay of an old program use the same reading, so all see equal results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import msgspec

from perdure.codec import Json
from perdure.vocab.approvals import approved, did_not_happen, happened, refused
from perdure.vocab.outcomes import (
    AwaitEventOutcome,
    DurableStepOutcome,
    Failed,
    FailureDetail,
    InDoubt,
    Outcome,
    Success,
    ToolOutput,
    completed,
)
from perdure.vocab.refs import PartKind, again

Recorded = Callable[[PartKind, str], Outcome | None]
"""Function that looks up a recorded part of the body."""


def probe_of(step: str) -> str:
    """Return the name of the step that probes a step in doubt."""
    return f"{step}:probe"


def outcome_of_call(recorded: Recorded, step: str) -> ToolOutput | None:
    """Return the known outcome of a call, or None if it has not ended."""
    asked = recorded("approval", step)
    if isinstance(asked, AwaitEventOutcome) and approved(asked.resolution) is None:
        return refused(asked.resolution)
    if (brought := left_to_client(recorded, step)) is not None:
        return brought
    time = 0
    while recorded("step", again(step, time + 1)) is not None:
        time += 1
    return outcome_at(recorded, again(step, time))


def left_to_client(recorded: Recorded, step: str) -> ToolOutput | None:
    """Return the outcome of a call that a client ran, or None."""
    brought = recorded("client", step)
    return completed(brought.resolution) if isinstance(brought, AwaitEventOutcome) else None


def outcome_at(recorded: Recorded, name: str) -> ToolOutput | None:
    """Return the known outcome of one run of a call. None if it has not ended or did not happen."""
    outcome = recorded("step", name)
    if not isinstance(outcome, DurableStepOutcome):
        return None
    return _known(outcome) if outcome.in_doubt is None else verdict_of(recorded, name, outcome.in_doubt)


def verdict_of(recorded: Recorded, name: str, doubt: InDoubt) -> ToolOutput | None:
    """Return the outcome of a step in doubt, as decided by a probe or a person.

    Without a decision, return the doubt. None means that the step did not happen.
    """
    asked = recorded("doubt", name)
    if isinstance(asked, AwaitEventOutcome):
        return None if did_not_happen(asked.resolution) else happened(asked.resolution) or doubt
    probed = recorded("step", probe_of(name))
    if isinstance(probed, DurableStepOutcome) and isinstance(probed.value, dict):
        found = cast("dict[str, Json]", probed.value)  # pyright: ignore[reportUnknownMemberType] - it is JSON
        if found.get("verdict") == "happened":
            return Success(value=found.get("value"))
        return None if found.get("verdict") == "did_not_happen" else doubt
    return doubt


def _known(outcome: DurableStepOutcome) -> ToolOutput:
    if outcome.error is not None:
        failure = outcome.error
        return Failed(failure=FailureDetail(code=failure.code, message=failure.message, failure_class="invalid"))
    if isinstance(outcome.value, str):  # redacted
        return Success(value=outcome.value)
    return msgspec.convert(outcome.value, type=ToolOutput)
