"""Names: what is refused at the edge, and keys that no two tuples share."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import Code, Error
from perdure.ids import SessionId, StreamId, Tenant, check_id, join, process_stream, session_stream, stream_names

HOSTILE = st.sampled_from(
    [
        "",
        ":",
        "/",
        "%",
        "%3A",
        "%2F",
        "%25",
        "%253A",
        "::",
        "a:b",
        "a%3Ab",
        "a",
        "b",
        "session",
        "process",
        "é",
        "é",
        "😀",
    ]
)
NAMES = st.text(max_size=8) | HOSTILE | st.lists(HOSTILE, min_size=2, max_size=3).map("".join)


SPITEFUL = ["", ":", "/", "%", "%3A", "%2F", "%25", "%253A", "a", "a:", ":a", "a:a", "a%3Aa", "session"]


def test_different_tuples_never_give_one_key() -> None:
    tuples = [names for length in (1, 2, 3) for names in product(SPITEFUL, repeat=length)]
    assert len({join(*names) for names in tuples}) == len(tuples) == 14 + 14**2 + 14**3


@given(st.lists(NAMES, min_size=1, max_size=4), st.lists(NAMES, min_size=1, max_size=4))
def test_any_two_different_tuples_give_two_keys(one: list[str], other: list[str]) -> None:
    assert (join(*one) == join(*other)) == (one == other)


def test_a_key_is_readable_where_names_are_ordinary() -> None:
    assert join("default", "session", "customer-42") == "default:session:customer-42"
    assert join("a:b", "c/d", "50%", "", "é") == "a%3Ab:c%2Fd:50%25::é"


@given(NAMES, NAMES)
def test_a_stream_gives_its_names_back(tenant: str, name: str) -> None:
    assert stream_names(session_stream(Tenant(tenant), SessionId(name))) == (tenant, "session", name)
    assert stream_names(process_stream(Tenant(tenant), name)) == (tenant, "process", name)


def test_two_sessions_or_processes_never_share_a_stream() -> None:
    sessions = {session_stream(Tenant(tenant), SessionId(name)) for tenant, name in product(SPITEFUL, repeat=2)}
    processes = {process_stream(Tenant(tenant), name) for tenant, name in product(SPITEFUL, repeat=2)}
    assert len(sessions | processes) == 2 * 14**2


def test_a_stream_is_spelled_tenant_kind_name() -> None:
    assert session_stream(Tenant("acme"), SessionId("a/b:c")) == StreamId("acme:session:a%2Fb%3Ac")
    assert process_stream(Tenant("acme"), "nightly") == StreamId("acme:process:nightly")


@pytest.mark.parametrize("name", ["a", " a ", "customer 42", "é/ü:%", "😀", "x" * 512, "é" * 256])
def test_an_ordinary_name_is_kept_as_it_is(name: str) -> None:
    assert check_id(name, what="the session id") == name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (7, "the session id must be text, not int"),
        (None, "the session id must be text, not NoneType"),
        (b"a", "the session id must be text, not bytes"),
        ("", "the session id is blank"),
        (" \u00a0\t", "the session id is blank"),
        ("a\ud800", "the session id is not valid Unicode text"),
        ("x" * 513, "the session id is 513 bytes long"),
        ("é" * 257, "the session id is 514 bytes long"),
        ("a\nb", "the session id has a control character in it"),
        ("a\x00", "the session id has a control character in it"),
        ("a\x7fb", "the session id has a control character in it"),
        ("a\x85b", "the session id has a control character in it"),
        ("a\x9bb", "the session id has a control character in it"),
    ],
)
def test_a_name_that_breaks_a_rule_is_refused_and_told_which(name: object, said: str) -> None:
    with pytest.raises(Error) as caught:
        check_id(name, what="the session id")
    assert caught.value.code is Code.INVALID_ID
    assert caught.value.message == said
