"""Results shown to a model fit under the ceiling, and reading on leaves nothing out."""

from __future__ import annotations

import random

import pytest

from perdure.codec import Json, encode, head_of
from perdure.ids import CallId
from perdure.tools.result_truncation import (
    MAX_KEPT_BYTES,
    MAX_SHOWN_BYTES,
    can_be_continued,
    fit,
    page,
    unkept,
)

CALL = CallId("t1.1.0")
ALPHABETS = ["a", "é", "漢", "𝄞", "\x01", '"\\', 'a\x00é"漢\n𝄞\\']


def made_of(alphabet: str, length: int) -> str:
    dice = random.Random(f"{alphabet}{length}")
    return "".join(dice.choice(alphabet) for _ in range(length))


@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_a_head_is_the_longest_that_fits(alphabet: str) -> None:
    text = made_of(alphabet, 500)
    for limit in (2, 3, 7, 100, 999):
        head = head_of(text, limit)
        assert text.startswith(head)
        assert len(encode(head)) <= limit
        if len(head) < len(text):
            assert len(encode(text[: len(head) + 1])) > limit


def test_fitting_result_is_unchanged() -> None:
    value = {"text": "x" * (MAX_SHOWN_BYTES - len('{"text":""}'))}
    shown = fit(value, CALL, readable=True)
    assert shown.value is value
    assert shown.rest is None


@pytest.mark.parametrize("alphabet", ALPHABETS)
@pytest.mark.parametrize("wrapped", [False, True])
def test_pages_fit_and_join_to_the_whole(alphabet: str, wrapped: bool) -> None:
    text = made_of(alphabet, 150_000)
    value: Json = [text] if wrapped else text
    shown = fit(value, CALL, readable=True)
    assert shown.rest is not None
    whole = encode(value) if wrapped else text.encode()
    assert shown.rest.data == whole
    assert shown.rest.media_type == ("application/json" if wrapped else "text/plain")
    part = shown.value
    read = b""
    while True:
        assert len(encode(part)) <= MAX_SHOWN_BYTES
        assert part["offset"] == len(read)
        assert part["bytes_total"] == len(whole)
        read += part["text"].encode()
        assert part["bytes_returned"] == len(part["text"].encode()) > 0
        if not part["truncated"]:
            break
        assert part["reason"] == "size_cap"
        assert part["next_offset"] == len(read)
        assert str(len(read)) in part["resume_hint"]
        part = page(whole, part["next_offset"], CALL)
    assert read == whole
    assert "next_offset" not in part
    assert "resume_hint" not in part


def test_a_place_inside_a_character_counts_as_its_beginning() -> None:
    whole = "a漢b".encode()
    assert [page(whole, offset, CALL)["text"] for offset in range(5)] == ["a漢b", "漢b", "漢b", "漢b", "b"]


def test_unreadable_remainder_offers_no_continuation() -> None:
    for shown in (fit("x" * 70_000, CALL, readable=False), fit("x" * (MAX_KEPT_BYTES + 1), CALL, readable=True)):
        assert not can_be_continued(shown.value)
        assert shown.value["hint"] == "the rest is not kept; ask the tool for a narrower part"
    assert fit("x" * (MAX_KEPT_BYTES + 1), CALL, readable=True).rest is None


def test_a_part_whose_rest_was_lost_takes_its_promise_back() -> None:
    part = fit("x" * 70_000, CALL, readable=True).value
    assert can_be_continued(part)
    lost = unkept(part)
    assert not can_be_continued(lost)
    assert lost["text"] == part["text"]
    assert unkept({"resume_hint": "mine"}) == {"resume_hint": "mine"}
    assert unkept("text") == "text"
