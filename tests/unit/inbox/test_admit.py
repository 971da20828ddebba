"""Admission: the same thing twice is one thing; something else under its key is a conflict."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import Code, Error
from perdure.ids import BlobHash, CallId, EffectId, InputId, PromiseId, StreamId, TurnId
from perdure.inbox.admit import (
    Conflict,
    Duplicate,
    content_of,
    decide,
    delivery,
    ids_of,
    key_conflict,
    opens,
    stream_unknown,
    wake,
)
from perdure.inbox.items import Input, Item, LateOutcome, Wake, read
from perdure.vocab.messages import AttachmentRef, ImagePart, InputPart, Text
from perdure.vocab.outcomes import Success

S = StreamId("default:session:s1")


def said(*parts: InputPart, input: str = "i1", turn: str = "t1", key: str = "") -> Input:
    return Input(input=InputId(input), turn=TurnId(turn), parts=parts, key=key)


def late(call: str = "c1", id: str = "c1.0.1", value: str = "ok") -> LateOutcome:
    return LateOutcome(call=CallId(call), id=EffectId(id), tool="x", output=Success(value=value))


def test_unseen_delivery_is_new() -> None:
    assert decide(None, delivery(S, "k", said(Text(text="hi")), at=1)) is None


def test_the_same_content_is_a_duplicate_and_gets_the_first_ids() -> None:
    first, again = said(Text(text="hi")), said(Text(text="hi"), input="i2", turn="t2", key="other")
    known = (content_of(first), *ids_of(first))
    assert decide(known, delivery(S, "k", again, at=2)) == Duplicate(TurnId("t1"), InputId("i1"))


PICTURE = ImagePart(ref=AttachmentRef(hash=BlobHash("h"), media_type="image/png", size=1))
CONTENTS: list[Item] = [
    said(Text(text="hi")),
    said(Text(text="hi ")),
    said(Text(text="Hi")),
    said(Text(text="h"), Text(text="i")),
    said(Text(text="hi"), PICTURE),
    said(PICTURE, Text(text="hi")),
    said(PICTURE),
    said(),
    Input(input=InputId("i"), turn=TurnId("t"), parts=(), plugin_input={"crm": 1}),
    Input(input=InputId("i"), turn=TurnId("t"), parts=(), plugin_input={"crm": 2}),
    late(),
    late(call="c2"),
    late(id="c1.0.2"),
    Wake(reason="promise:p1"),
    Wake(reason="promise:p2"),
]


def test_any_other_content_under_the_key_is_a_conflict() -> None:
    for one in CONTENTS:
        for other in CONTENTS:
            known = (content_of(one), TurnId("t"), InputId("i"))
            judged = decide(known, delivery(S, "k", other, at=1))
            assert judged == (Duplicate(TurnId("t"), InputId("i")) if one is other else Conflict("k"))


@given(st.text(), st.text())
def test_two_texts_are_one_content_only_if_they_are_equal(one: str, other: str) -> None:
    assert (content_of(said(Text(text=one))) == content_of(said(Text(text=other)))) == (one == other)


def test_late_outcomes_of_one_effect_have_equal_content() -> None:
    assert content_of(late(value="paid")) == content_of(late(value="paid after all"))


def test_the_content_of_an_input_never_changes_its_spelling() -> None:
    # the first 128 bits of the sha256 of ["input",[{"text":"hi","type":"text"}]]
    assert content_of(said(Text(text="hi"))) == "a650a182e902f261929df775ec2507f9"


def test_only_an_input_opens_a_turn() -> None:
    assert ids_of(said(Text(text="hi"))) == ("t1", "i1")
    assert ids_of(late()) == ("", "")
    assert ids_of(Wake(reason="r")) == ("", "")


def test_a_delivery_carries_its_item_as_stored() -> None:
    item = said(Text(text="hi"), key="k")
    sent = delivery(S, "k", item, at=7, agent="billing")
    assert (sent.stream, sent.source_key, sent.at, sent.agent) == (S, "k", 7, "billing")
    assert read(sent.data) == item


@pytest.mark.parametrize(
    ("agent", "asked", "new"), [(None, "a", True), ("a", "a", False), ("a", None, False), ("", None, False)]
)
def test_whether_a_delivery_opens_its_stream(agent: str | None, asked: str | None, new: bool) -> None:
    assert opens(agent, delivery(S, "k", said(Text(text="hi")), at=1, agent=asked)) is new


def test_delivery_without_agent_needs_an_existing_stream() -> None:
    with pytest.raises(Error) as caught:
        opens(None, delivery(S, "k", said(Text(text="hi")), at=1))
    assert caught.value.code is Code.SESSION_UNKNOWN
    assert caught.value.details == stream_unknown(S).details == {"stream": S}


def test_a_stream_keeps_its_agent() -> None:
    with pytest.raises(Error) as caught:
        opens("a", delivery(S, "k", said(Text(text="hi")), at=1, agent="b"))
    assert caught.value.code is Code.SESSION_AGENT_CONFLICT
    assert caught.value.message == "the session belongs to agent a, not to b"


def test_a_resolved_promise_wakes_a_stream_once() -> None:
    woken = wake(S, PromiseId("p1"), at=3)
    assert (woken.source_key, woken.item, woken.agent) == ("promise:p1", Wake(reason="promise:p1"), None)
    assert woken.content == wake(S, PromiseId("p1"), at=9).content


def test_the_refusal_names_the_key() -> None:
    error = key_conflict(delivery(S, "webhook-1", said(), at=1))
    assert error.code is Code.INPUT_KEY_CONFLICT
    assert error.details == {"stream": S, "key": "webhook-1"}
