"""What became of a call that a body made of another tool, read off what was recorded of it.

One reading for a body that goes on, for one that is entered again, and for whoever runs an old program anew: all of
them are told the same, word for word.
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
    Failure,
    InDoubt,
    Outcome,
    Success,
    ToolOutput,
    completed,
)
from perdure.vocab.refs import PartKind, again

Recorded = Callable[[PartKind, str], Outcome | None]
"""Looks a part of the body up."""


def probe_of(step: str) -> str:
    """The name of the step that asks the outside system about a step in doubt."""
    return f"{step}:probe"


def outcome_of_call(recorded: Recorded, step: str) -> ToolOutput | None:
    """How a call ended, as far as that is known; None if it has not."""
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
    """How a call ended that was run elsewhere; None if it was not, or has not ended."""
    brought = recorded("client", step)
    return completed(brought.resolution) if isinstance(brought, AwaitEventOutcome) else None


def outcome_at(recorded: Recorded, name: str) -> ToolOutput | None:
    """How one run of a call ended, as far as that is known; None if it has not, or did not happen."""
    outcome = recorded("step", name)
    if not isinstance(outcome, DurableStepOutcome):
        return None
    return _known(outcome) if outcome.in_doubt is None else verdict_of(recorded, name, outcome.in_doubt)


def verdict_of(recorded: Recorded, name: str, doubt: InDoubt) -> ToolOutput | None:
    """What a probe or a person said of a step in doubt: how it ended, the doubt itself if nobody knows or was asked, or
    None if it did not happen."""
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
        return Failed(failure=Failure(code=failure.code, message=failure.message, failure_class="invalid"))
    if isinstance(outcome.value, str):  # redacted
        return Success(value=outcome.value)
    return msgspec.convert(outcome.value, type=ToolOutput)
