"""What people decide about a call: whether it may run, and what became of it."""

from __future__ import annotations

from typing import Literal

import msgspec

from perdure.codec import Json, digest, to_json
from perdure.ids import CallId, PromiseId
from perdure.vocab.promises import Ok, Resolution, ToolApproval
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


def consent_to(call: CallId, tool: str, args: Json) -> ToolApproval:
    """The wait for consent to exactly this call."""
    return ToolApproval(call_id=call, tool=tool, arguments=digest(args))
