"""Limits of tokens and money, looked at before each model call."""

from __future__ import annotations

import pytest

from perdure.ids import SessionId
from perdure.turn.machine import owed
from perdure.turn.spending import spent_up
from perdure.turn.state import AskModel, EndTurn, Turn
from perdure.vocab.children import ChildEnded
from perdure.vocab.outcomes import LlmCallOutcome, LlmError
from perdure.vocab.records import EffectSettled, Limits
from perdure.vocab.usage import Usage
from tests.unit.turn.turning import T, begun, folded, ok, said

PRICED = Usage(input=10, output=5, calls=1, cost_nano=80_000, priced=1)
UNPRICED = Usage(input=10, output=5, calls=1)


def reason(turn: Turn) -> str | None:
    match owed(turn):
        case (EndTurn(ended),):
            return f"{ended.reason}: {ended.message}"
        case (AskModel(),):
            return None
        case other:
            raise AssertionError(other)


def after_one_call(limits: Limits, usage: Usage) -> Turn:
    return folded(begun(limits=limits), said("look", usage=usage), ok("c1.0.1"))


@pytest.mark.parametrize(
    ("limits", "usage", "expected"),
    [
        (Limits(turn_tokens=16), UNPRICED, None),
        (Limits(turn_tokens=15), UNPRICED, "limit_reached: the turn has used 15 tokens of 15"),
        (Limits(turn_cost_nano=80_001), PRICED, None),
        (Limits(turn_cost_nano=80_000), PRICED, "limit_reached: the turn has spent $0.000080 of $0.000080"),
        (
            Limits(turn_cost_nano=10**12),
            UNPRICED,
            "limit_reached: the turn has a limit in money, and the price of 1 of its model calls is unknown",
        ),
    ],
)
def test_the_next_call_is_not_made(limits: Limits, usage: Usage, expected: str | None) -> None:
    assert reason(after_one_call(limits, usage)) == expected


def test_a_final_reply_that_went_over_stands() -> None:
    turn = folded(begun(limits=Limits(turn_tokens=1)), said(text="done", usage=UNPRICED))
    (end,) = owed(turn)
    assert isinstance(end, EndTurn)
    assert end.ended.status == "finished"


def test_usage_of_a_failed_attempt_counts() -> None:
    error = LlmError(kind="stream_cut", message="cut", retryable=True)
    cut = EffectSettled(id=said().id, outcome=LlmCallOutcome(error=error, spent=UNPRICED))
    turn = folded(begun(limits=Limits(turn_tokens=15)), cut)
    assert reason(turn) == "limit_reached: the turn has used 15 tokens of 15"
    assert turn.usage == UNPRICED


def test_usage_of_subagents_counts_against_limits() -> None:
    turn = folded(begun(limits=Limits(turn_tokens=30)), said("look", usage=UNPRICED))
    turn = folded(turn, ChildEnded(child=SessionId("c"), turn=T, status="finished", usage=UNPRICED), ok("c1.0.1"))
    assert reason(turn) == "limit_reached: the turn has used 30 tokens of 30"
    assert turn.usage == UNPRICED, "the usage belongs to the child, and counts once"


def test_the_session_has_limits_of_its_own() -> None:
    limits = Limits(session_tokens=40)
    assert spent_up(limits, UNPRICED, Usage(input=39, calls=3)) == ""
    assert spent_up(limits, UNPRICED, Usage(input=40, calls=3)) == "the session has used 40 tokens of 40"
