"""S20: no character of a foreign text moves a cursor, reorders its neighbours or hides."""

from __future__ import annotations

import json
import sys
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from perdure.vocab.invisible import one_line_json, spelled

FILLERS = "\u034f\u115f\u1160\u2800\u3164\uffa0\ufe00\U000e0100"


def test_s20_every_invisible_character_is_spelled_out() -> None:
    hidden = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    every = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) in hidden]
    text = "".join([*every, *FILLERS])
    for shown in (spelled(text), one_line_json(text)):
        assert shown.isascii()
        assert shown.isprintable()


def test_s20_visible_text_stays_as_written() -> None:
    text = "Zürich 東京 „quoted“ 🙂❤️ שלום"
    assert spelled(text) == text
    assert one_line_json(text) == text


def test_s20_an_escape_shows_the_code_of_its_character() -> None:
    assert spelled("a\x1b\n\u202e\U000e0041b") == r"a\x1b\n\u202e\U000e0041b"
    assert spelled("a\n\u200d\u202e", keep="\n\u200d") == "a\n\u200d\\u202e"


@given(st.text())
def test_s20_json_keeps_its_value(text: str) -> None:
    shown = one_line_json(json.dumps({text: [text]}, ensure_ascii=False))
    assert json.loads(shown) == {text: [text]}
