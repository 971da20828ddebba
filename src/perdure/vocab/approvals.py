"""What people decide about a call: whether it may run, and what became of it.

Laws: only a decision that says so allows a call; silence, a withdrawal and anything that cannot be read do not.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from perdure.codec import Json, digest, to_json
from perdure.ids import CallId, PromiseId
from perdure.vocab.outcomes import Failed, Failure, NotRun, Success, ToolOutput
from perdure.vocab.promises import Err, Ok, Resolution, TimedOut, ToolApproval
from perdure.vocab.wire import Value

Verdict = Literal["approve", "deny", "happened", "did_not_happen", "unknown"]


class Decision(Value, frozen=True):
    """A person's word: who said what, when and from where.

    An approval may change the arguments (`args`) and may hold `for_session`: then later calls of the tool are covered
    too. `grant` names the promise whose approval covered this call. `value` is what a call gave that did happen.
    """

    verdict: Verdict
    by: str
    at: int
    via: str = ""
    reason: str = ""
    args: dict[str, Json] | None = None
    for_session: bool = False
    grant: PromiseId = PromiseId("")
    value: Json = None

    @property
    def resolution(self) -> Ok:
        """The decision as the answer of a promise."""
        return Ok(value=to_json(msgspec.to_builtins(self)))


def decision_of(resolution: Resolution | None) -> Decision | None:
    """The decision that an answer holds; None if it holds none, and then nothing is allowed by it."""
    if not isinstance(resolution, Ok):
        return None
    try:
        return msgspec.convert(resolution.value, Decision)
    except msgspec.ValidationError:
        return None


def approved(resolution: Resolution | None) -> Decision | None:
    """The decision, if it allows the call it is about."""
    decision = decision_of(resolution)
    return decision if decision is not None and decision.verdict == "approve" else None


def refused(resolution: Resolution) -> ToolOutput:
    """What becomes of a call that nobody allowed; the model is told so."""
    decision = decision_of(resolution)
    if decision is not None and decision.verdict == "deny":
        why = f": {decision.reason}" if decision.reason else ""
        message = f"{decision.by} did not approve this call{why}. It was not run."
        return Failed(failure=Failure(code="approval_denied", message=message, failure_class="cancelled"))
    if isinstance(resolution, TimedOut):
        message = "Nobody approved this call in time. It was not run."
        return Failed(failure=Failure(code="approval_expired", message=message, failure_class="timeout"))
    if isinstance(resolution, Err) and resolution.code == "approval_expired":
        message = resolution.message
        return Failed(failure=Failure(code="approval_expired", message=message, failure_class="timeout"))
    return NotRun(reason="it needed an approval, which is not asked for any more")


def lapsed(decision: Decision) -> Err:
    """What an approval has become that was given in time, and expired before the call could begin."""
    message = f"{decision.by} approved this call, but the approval had expired before it began. It was not run."
    return Err(code="approval_expired", message=message)


def happened(resolution: Resolution) -> Success | None:
    """The result of a call in doubt, if a person says that it did happen."""
    decision = decision_of(resolution)
    return Success(value=decision.value) if decision is not None and decision.verdict == "happened" else None


def did_not_happen(resolution: Resolution) -> bool:
    """Whether a person says that a call in doubt did not happen, so that it may go out again."""
    decision = decision_of(resolution)
    return decision is not None and decision.verdict == "did_not_happen"


def consent_to(call: CallId, tool: str, args: Json) -> ToolApproval:
    """The wait for consent to exactly this call."""
    return ToolApproval(call_id=call, tool=tool, arguments=digest(args))
