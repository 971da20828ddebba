"""Only a decision that says so allows a call."""

from __future__ import annotations

import pytest

from perdure.vocab.approvals import Decision, Verdict, approved, decision_of, refused
from perdure.vocab.outcomes import Failed, NotRun
from perdure.vocab.promises import Cancelled, Failure, Ok, Resolution, TimedOut


@pytest.mark.parametrize(
    "resolution",
    [
        None,
        TimedOut(),
        Cancelled(),
        Failure(code="approve", message="approve"),
        Ok(),
        Ok(value="approve"),
        Ok(value=True),
    ],
)
def test_silence_and_what_cannot_be_read_allow_nothing(resolution: Resolution | None) -> None:
    assert approved(resolution) is None


@pytest.mark.parametrize("verdict", ["deny", "happened", "did_not_happen", "unknown"])
def test_other_decisions_allow_nothing(verdict: Verdict) -> None:
    assert approved(Decision(verdict=verdict, by="ana", at=1).resolution) is None


def test_a_decision_is_read_as_it_was_made() -> None:
    made = Decision(verdict="approve", by="ana", at=1, via="cli", args={"cents": 5}, for_session=True)
    assert decision_of(made.resolution) == approved(made.resolution) == made


def test_denied_expired_or_cancelled_approval_did_not_run() -> None:
    denied = refused(Decision(verdict="deny", by="ana", at=1, reason="no").resolution)
    assert isinstance(denied, Failed)
    assert (denied.failure.code, "ana" in denied.failure.message) == ("approval_denied", True)
    expired = refused(TimedOut())
    assert isinstance(expired, Failed)
    assert expired.failure.code == "approval_expired"
    assert isinstance(refused(Cancelled()), NotRun)
