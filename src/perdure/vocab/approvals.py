"""Decisions of approvers: whether a call may run, and what became of a call in doubt.

Laws: only a decision with the verdict `approve` allows a call. Silence, withdrawal and unreadable resolutions do not.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from perdure.codec import Json, digest, to_json
from perdure.ids import CallId, PromiseId
from perdure.vocab.outcomes import Failed, FailureDetail, NotRun, Success, ToolOutput
from perdure.vocab.promises import Failure, Ok, Resolution, TimedOut, ToolApproval
from perdure.vocab.records import ApprovalGranted
from perdure.vocab.tools import ToolContract
from perdure.vocab.wire import Value

Verdict = Literal["approve", "deny", "happened", "did_not_happen", "unknown"]


class Decision(Value, frozen=True):
    """A person's decision on a call: verdict, author, time and channel.

    An approval may replace the arguments (`args`) and may cover later calls of the tool (`for_session`). `grant` names
    the promise whose approval covered this call. `value` is the result of a call that did happen.
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
        """The decision as a promise's resolution."""
        return Ok(value=to_json(msgspec.to_builtins(self)))


def decision_of(resolution: Resolution | None) -> Decision | None:
    """Return the decision in a resolution, or None if it contains none; then nothing is allowed."""
    if not isinstance(resolution, Ok):
        return None
    try:
        return msgspec.convert(resolution.value, Decision)
    except msgspec.ValidationError:
        return None


def approved(resolution: Resolution | None) -> Decision | None:
    """Return the decision if it allows the call, else None."""
    decision = decision_of(resolution)
    return decision if decision is not None and decision.verdict == "approve" else None


def refused(resolution: Resolution) -> ToolOutput:
    """Return the output of a call that was not approved, as told to the model."""
    decision = decision_of(resolution)
    if decision is not None and decision.verdict == "deny":
        why = f": {decision.reason}" if decision.reason else ""
        message = f"{decision.by} did not approve this call{why}. It was not run."
        return Failed(failure=FailureDetail(code="approval_denied", message=message, failure_class="cancelled"))
    if isinstance(resolution, TimedOut):
        message = "The approval request expired without a decision. The call was not run."
        return Failed(failure=FailureDetail(code="approval_expired", message=message, failure_class="timeout"))
    if isinstance(resolution, Failure) and resolution.code == "approval_expired":
        message = resolution.message
        return Failed(failure=FailureDetail(code="approval_expired", message=message, failure_class="timeout"))
    return NotRun(reason="it needed an approval, and the request was withdrawn")


def granted(question: PromiseId, agent: str, contract: ToolContract, decision: Decision) -> ApprovalGranted:
    """Return the grant that an approval for the session creates."""
    return ApprovalGranted(
        grant=question,
        tool=contract.name,
        agent=agent,
        contract=contract.digest,
        by=decision.by,
        at=decision.at,
        via=decision.via,
    )


def lapsed(decision: Decision) -> Failure:
    """Return the resolution for an approval that was granted in time, but expired before the call began."""
    message = f"{decision.by} approved this call, but the approval had expired before it began. It was not run."
    return Failure(code="approval_expired", message=message)


def happened(resolution: Resolution) -> Success | None:
    """Return the result of a call in doubt if a person decided that it happened, else None."""
    decision = decision_of(resolution)
    return Success(value=decision.value) if decision is not None and decision.verdict == "happened" else None


def did_not_happen(resolution: Resolution) -> bool:
    """Return True if a person decided that a call in doubt did not happen, so that it may be dispatched again."""
    decision = decision_of(resolution)
    return decision is not None and decision.verdict == "did_not_happen"


def consent_to(call: CallId, tool: str, args: Json) -> ToolApproval:
    """Return the wait for approval of exactly this call."""
    return ToolApproval(call_id=call, tool=tool, arguments=digest(args))
