"""Names inside a turn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import Code, Error
from perdure.ids import EffectId, TurnId
from perdure.vocab.refs import (
    EffectRef,
    PartKind,
    PartRef,
    Tail,
    again,
    call_id,
    first_time,
    is_part,
    is_within,
    outer_body,
    parse_ref,
)

NUMBERS = st.integers(0, 200)
TAILS: st.SearchStrategy[Tail] = st.sampled_from(("", "sleep", "probe", "completion"))
REFS = st.builds(EffectRef, NUMBERS, NUMBERS | st.none(), NUMBERS, TAILS)
KINDS: st.SearchStrategy[PartKind] = st.sampled_from(("step", "sleep", "event", "value"))
HOSTILE = st.text(alphabet="/:.%0c1mstep", max_size=8) | st.text(max_size=6) | st.sampled_from(["1.probe", "x:sleep:y"])
STEPS = HOSTILE | st.text(alphabet="~%2F5/", max_size=8)
PARTS = st.builds(PartRef, st.integers(0, 3), st.integers(0, 3), KINDS, HOSTILE, STEPS)


@given(REFS)
def test_parsing_is_the_inverse_of_the_id(ref: EffectRef) -> None:
    assert EffectRef.parse(ref.id) == ref


@given(REFS, REFS)
def test_two_references_never_share_an_id(one: EffectRef, other: EffectRef) -> None:
    assert (one.id == other.id) == (one == other)


@given(PARTS)
def test_a_part_of_a_body_may_be_called_anything(part: PartRef) -> None:
    assert PartRef.parse(part.id) == part
    assert is_part(part.id)
    assert parse_ref(part.id) == part


@given(st.lists(PARTS, min_size=2, max_size=8), REFS)
def test_parts_have_distinct_ids_apart_from_effects(parts: list[PartRef], ref: EffectRef) -> None:
    assert len({part.id for part in parts}) == len(set(parts))
    assert not is_part(ref.id)
    assert parse_ref(ref.id) == ref


def test_a_body_inside_another_is_within_it_and_in_no_other() -> None:
    part = PartRef(1, 0, "step", "render", inside="a/b~c%").id
    assert part == "c1.0~a%2Fb%7Ec%25/step:render"
    assert outer_body(part) == "c1.0"
    assert [is_within(part, body) for body in ("", "c1.0", "c1.0~a%2Fb%7Ec%25")] == [True] * 3
    assert [is_within(part, body) for body in ("c1", "c1.00", "c1.1", "c1.0~a", "c1.0~a%2Fb")] == [False] * 5


@pytest.mark.parametrize("step", ["call:1", "x:again:1:y", "x:again:"])
def test_a_step_that_runs_something_again_belongs_to_the_first_one(step: str) -> None:
    assert [first_time(again(step, time)) for time in (0, 1, 20)] == [step] * 3


def test_a_name_cannot_reach_into_another_part() -> None:
    """`a` of one kind, and names that try to spell it."""
    ids = {PartRef(1, 0, kind, name).id for kind in ("step", "sleep") for name in ("a", "step:a", "sleep:a", "/step:a")}
    assert len(ids) == 8


@pytest.mark.parametrize("junk", ["", "c1/step:a", "c1.0", "c1.0/", "c1.0/nap:a", "cx.0/step:a"])
def test_anything_else_is_not_the_id_of_a_part(junk: str) -> None:
    with pytest.raises(Error) as caught:
        PartRef.parse(EffectId(junk))
    assert caught.value.code is Code.TURN_EVENT_UNEXPECTED


@pytest.mark.parametrize(
    ("ref", "id"),
    [
        (EffectRef(2, None, 1), "m2.1"),
        (EffectRef(2, 0, 1), "c2.0.1"),
        (EffectRef(1, None, 3, "sleep"), "m1.3.sleep"),
        (EffectRef(12, 31, 2, "sleep"), "c12.31.2.sleep"),
        (EffectRef(12, 31, 2, "probe"), "c12.31.2.probe"),
    ],
)
def test_ids_are_spelled_as_stored_logs_spell_them(ref: EffectRef, id: str) -> None:
    assert ref.id == id


@pytest.mark.parametrize(
    "junk", ["", "m", "m1", "c1.2", "m1.2.3", "c1.2.3.4", "x1.1", "m1.x", "m1.1.nap", "sleep", "m1.sleep", "c1.0.1."]
)
def test_anything_else_is_not_the_id_of_an_effect(junk: str) -> None:
    with pytest.raises(Error) as caught:
        EffectRef.parse(EffectId(junk))
    assert caught.value.code is Code.TURN_EVENT_UNEXPECTED


def test_a_call_is_named_by_turn_iteration_and_index() -> None:
    assert call_id(TurnId("t1"), 3, 0) == "t1.3.0"
