"""Reading a log again: what is a contradiction, and what only looks like one."""

from __future__ import annotations

import pytest

from perdure.ids import EffectId, TurnId
from perdure.observe.verify import contradictions
from perdure.vocab.effects import EffectKind
from perdure.vocab.records import EffectStarted, Record, SessionOpened, TurnEnded
from tests.unit.session.logs import rows
from tests.unit.turn.turning import T, admitted, intent, late, ok, opening, said

MODEL = EffectStarted(id=EffectId("m1.1"), kind=EffectKind.LLM_CALL, fingerprint="f")
BEGUN: tuple[Record, ...] = (SessionOpened(agent="a"), admitted(), opening(), MODEL, said("x"), intent("c1.0.1"))
END = TurnEnded(turn=T, status="finished")


def found(*records: Record) -> list[str]:
    return list(contradictions(rows([*BEGUN, *records])))


def test_a_call_whose_outcome_its_former_owner_told_has_one() -> None:
    """The outcome arrived before the new owner could record a doubt."""
    assert found(late("c1.0.1"), END) == []
    assert found(ok("c1.0.1"), END) == []


@pytest.mark.parametrize("other", [late("c1.0.2"), late("c1.0.1", turn=TurnId("t0"))])
def test_the_news_of_another_call_is_not_its_outcome(other: Record) -> None:
    assert found(other, END) == ["#8: the turn finished without the outcome of c1.0.1"]
    assert found(END) == ["#7: the turn finished without the outcome of c1.0.1"]
