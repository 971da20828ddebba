"""Cursors: opaque, and good anywhere."""

from __future__ import annotations

from base64 import urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import Code, Error
from perdure.ids import EffectId, Seq
from perdure.observe.events import Cursor

EFFECTS = st.sampled_from(["", "m1.1", "c2.0.1", "a:b", "::", "é", "process:start:x"]) | st.text(max_size=8)


@given(st.integers(0, 2**63), EFFECTS, st.integers(0, 10**9), st.integers(0, 2**63))
def test_a_cursor_survives_being_sent(seq: int, effect: str, offset: int, run: int) -> None:
    cursor = Cursor(Seq(seq), EffectId(effect), offset, run)
    text = str(cursor)
    assert Cursor.parse(text) == cursor
    assert all(character.isalnum() or character in "-_" for character in text)


def test_a_cursor_never_changes_its_spelling() -> None:
    assert str(Cursor(Seq(7), EffectId("m1.1"), 42)) == "NzptMS4xOjQy"
    assert Cursor.parse("NzptMS4xOjQy") == Cursor(Seq(7), EffectId("m1.1"), 42)


def test_no_cursor_is_the_beginning() -> None:
    assert Cursor.parse("") == Cursor(Seq(0), EffectId(""), 0)


def spelled(text: str) -> str:
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "not a cursor",
        "ééé",
        "!!!!",
        spelled("7"),
        spelled("7:m1.1"),
        spelled("x:m1.1:0"),
        spelled("7:m1.1:x"),
        spelled("-1:m1.1:0"),
        spelled("7:m1.1:-1"),
        spelled(":m1.1:0"),
        spelled("7.:m1.1:0"),
        spelled("\u0667:m1.1:0"),
        spelled(f"{2**63}:m1.1:0"),
        spelled(f"7.{2**63}:m1.1:0"),
        spelled(f"7:m1.1:{'9' * 5000}"),
        "_____w",
    ],
)
def test_invalid_cursor_is_refused(text: str) -> None:
    with pytest.raises(Error) as caught:
        Cursor.parse(text)
    assert caught.value.code is Code.INVALID_CURSOR
    assert repr(text[:40]) in caught.value.message
