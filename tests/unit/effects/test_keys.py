"""Replay keys: their grammar, spelled out, and proof that no two effects share one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.effects import keys
from perdure.ids import CallId, SessionId, Tenant
from perdure.vocab.effects import EffectKind, Invocation, ProcessSubject, Scope

ACME = Tenant("acme")
SCOPE = Scope(session_id="s1", turn_id="t1", turn_index=4, protocol_iteration=2)
PARENT = Invocation.effect(SCOPE, "e1", EffectKind.TOOL_CALL, "acme:s1:t1:4:2:tool_call:1")
NO_PARENT_KEY = Invocation(scope=SCOPE, subject=ProcessSubject(process_id="p1"))


@pytest.mark.parametrize(
    ("key", "spelled"),
    [
        (keys.turn_effect(ACME, SCOPE, EffectKind.LLM_CALL, 3), "acme:s1:t1:4:2:llm_call:3"),
        (keys.turn_effect(ACME, Scope(session_id="s1"), EffectKind.DIRECT, "x"), "acme:s1::0:0:direct:x"),
        (keys.child(PARENT, "child", "0", "c1"), "acme:s1:t1:4:2:tool_call:1:child:0:c1"),
        (keys.child(NO_PARENT_KEY, "x"), "effect:x"),
        (keys.tool_attempt(ACME, SCOPE, CallId("t1.2.0"), 5), "acme:s1:t1:4:2:tool_call:t1.2.0:attempt:5"),
        (
            keys.tool_idempotency(ACME, SessionId("s1"), CallId("t1.2.0"), "refund"),
            "perdure-tool:acme:s1:t1.2.0:refund",
        ),
        (keys.step("scope", CallId("c1"), "render"), "scope:tool:c1:durable-step:render"),
        (keys.awaited_event("scope", CallId("c1"), "k1"), "scope:tool:c1:await-event:k1"),
        (
            keys.process_command(PARENT, SessionId("s1"), "process:await:p1"),
            "acme:s1:t1:4:2:tool_call:1:process%3Aawait%3Ap1",
        ),
        (keys.process_command(None, SessionId("s1"), "process:await:p1"), "s1:process%3Aawait%3Ap1"),
        (keys.process_sleep("p1", 2), "process:p1:sleep:2"),
        (keys.process_signal_wait("p1", "go", 1), "process:p1:signal.go:await:1"),
        (keys.process_signal("p1", "go", "x"), "process:p1:signal.go:x"),
        (keys.process_event("p1", 7), "process:p1:event:7"),
        (keys.process_terminal("p1", "failed"), "process:p1:terminal:failed"),
        (keys.process_cancel_request("p1", "abc"), "process:p1:cancel_requested:abc"),
        (keys.tool_process_event(CallId("c1"), 0), "tool:c1:durable-process-event:0"),
        (keys.trigger_occurrence("o1"), "trigger:o1"),
        (keys.direct_completion(ACME, SCOPE, "title", "k"), "acme:s1:t1:direct:title:request:k"),
    ],
)
def test_the_grammar_of_each_key(key: str, spelled: str) -> None:
    assert key == spelled


SPITEFUL = ["a", ":", "%", "%3A", "a:a", "a:", ":a", "a:attempt", "attempt:1", "1"]


def all_different(made: Iterable[str]) -> bool:
    found = list(made)
    return len(found) > 90 and len(set(found)) == len(found)


def test_no_two_turn_effects_share_a_key() -> None:
    assert all_different(
        keys.turn_effect(
            Tenant(tenant),
            Scope(session_id=session, turn_id=turn, turn_index=index, protocol_iteration=iteration),
            kind,
            n,
        )
        for tenant, session, turn in product(SPITEFUL[:6], repeat=3)
        for index, iteration in ((0, 1), (1, 0), (1, 1))
        for kind in (EffectKind.TOOL_CALL, EffectKind.SLEEP)
        for n in (1, "1:attempt:1", ":")
    )


def test_no_two_attempts_share_a_key() -> None:
    scope = Scope(session_id="s", turn_id="t", turn_index=0, protocol_iteration=1)
    assert all_different(
        keys.tool_attempt(Tenant(tenant), scope, CallId(call), attempt)
        for tenant, call in product(SPITEFUL, repeat=2)
        for attempt in (1, 2, 11)
    )


def test_no_two_calls_share_an_idempotency_key() -> None:
    assert all_different(
        keys.tool_idempotency(Tenant(tenant), SessionId(session), CallId(call), tool)
        for tenant, session, call, tool in product(SPITEFUL[:6], repeat=4)
    )


TEXT = st.sampled_from(SPITEFUL) | st.text(min_size=1, max_size=5)


def test_the_idempotency_key_is_the_same_for_every_attempt() -> None:
    attempts = {keys.tool_attempt(ACME, SCOPE, CallId("c"), n) for n in (1, 2, 3)}
    assert len(attempts) == 3
    key = keys.tool_idempotency(ACME, SessionId("s"), CallId("c"), "refund")
    assert key == "perdure-tool:acme:s:c:refund"
    assert not any(key in attempt for attempt in attempts)


def test_no_two_children_of_one_effect_share_a_key() -> None:
    assert all_different(
        keys.child(PARENT, *names) for length in (1, 2, 3) for names in product(SPITEFUL, repeat=length)
    )


@given(TEXT, TEXT)
def test_a_suffix_cannot_pass_for_an_attempt_of_its_parent(name: str, step: str) -> None:
    """A step that a user names `x:attempt:1` is one component: it cannot reach into the grammar."""
    attempt = keys.tool_attempt(ACME, SCOPE, CallId(name), 1)
    assert keys.child(PARENT, f"{name}:attempt:1") != attempt
    assert keys.step(attempt, CallId(name), step) != attempt


def test_missing_key_parts_are_written_as_empty_text() -> None:
    outside = keys.turn_effect(ACME, Scope(session_id="s1"), EffectKind.DIRECT, 1)
    inside = keys.turn_effect(ACME, Scope(session_id="s1", turn_id="t", turn_index=0), EffectKind.DIRECT, 1)
    assert (outside, inside) == ("acme:s1::0:0:direct:1", "acme:s1:t:0:0:direct:1")


def test_no_two_signals_waits_or_steps_share_a_key() -> None:
    three = list(product(SPITEFUL, repeat=3))
    assert all_different(keys.process_signal(*names) for names in three)
    assert all_different(keys.step(one, CallId(two), name) for one, two, name in three)
    assert all_different(keys.awaited_event(one, CallId(two), name) for one, two, name in three)
    assert all_different(
        keys.process_signal_wait(one, two, n) for one, two in product(SPITEFUL, repeat=2) for n in (1, 2)
    )
    assert all_different(keys.direct_completion(ACME, Scope(session_id=a), b, c) for a, b, c in three)


@given(TEXT, TEXT)
def test_kinds_of_process_keys_stay_apart(process: str, name: str) -> None:
    found = [
        keys.process_sleep(process, 1),
        keys.process_event(process, 1),
        keys.process_terminal(process, name),
        keys.process_cancel_request(process, name),
        keys.process_signal_wait(process, name, 1),
        keys.process_signal(process, name, name),
    ]
    assert len(set(found)) == len(found)


# --- any two effects, whatever their names

HOSTILE = st.text(alphabet=":%/.3A2F5-a", min_size=1, max_size=6) | st.text(min_size=1, max_size=4) | TEXT
NUMBERS = st.integers(0, 12)
KINDS = st.sampled_from(list(EffectKind))


def _turn_effect(tenant: str, session: str, turn: str, index: int, iteration: int, kind: EffectKind, n: str) -> str:
    scope = Scope(session_id=session, turn_id=turn, turn_index=index, protocol_iteration=iteration)
    return keys.turn_effect(Tenant(tenant), scope, kind, n)


def _attempt(tenant: str, session: str, turn: str, index: int, iteration: int, call: str, attempt: int) -> str:
    scope = Scope(session_id=session, turn_id=turn, turn_index=index, protocol_iteration=iteration)
    return keys.tool_attempt(Tenant(tenant), scope, CallId(call), attempt)


def _first_attempt(tenant: str, call: str) -> str:
    return keys.tool_attempt(Tenant(tenant), SCOPE, CallId(call), 1)


def _direct(tenant: str, session: str, turn: str, source: str, request: str) -> str:
    return keys.direct_completion(Tenant(tenant), Scope(session_id=session, turn_id=turn), source, request)


def made_by(maker: Callable[..., str], *names: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, str]]:
    """An effect, described, and its key."""
    return st.tuples(*names).map(lambda drawn: ((maker, drawn), maker(*drawn)))


OF_A_TURN = st.one_of(
    made_by(_turn_effect, HOSTILE, HOSTILE, HOSTILE, NUMBERS, NUMBERS, KINDS, HOSTILE),
    made_by(_attempt, HOSTILE, HOSTILE, HOSTILE, NUMBERS, NUMBERS, HOSTILE, NUMBERS),
    made_by(_direct, HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE),
)
OF_A_BODY = st.one_of(
    made_by(keys.step, HOSTILE, HOSTILE, HOSTILE),
    made_by(keys.awaited_event, HOSTILE, HOSTILE, HOSTILE),
)
OF_A_PROCESS = st.one_of(
    made_by(keys.process_sleep, HOSTILE, NUMBERS),
    made_by(keys.process_signal_wait, HOSTILE, HOSTILE, NUMBERS),
    made_by(keys.process_signal, HOSTILE, HOSTILE, HOSTILE),
    made_by(keys.process_event, HOSTILE, NUMBERS),
    made_by(keys.process_terminal, HOSTILE, HOSTILE),
    made_by(keys.process_cancel_request, HOSTILE, HOSTILE),
)
OF_CALLS = made_by(keys.tool_idempotency, HOSTILE, HOSTILE, HOSTILE, HOSTILE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", [OF_A_TURN, OF_A_BODY, OF_A_PROCESS, OF_CALLS], ids=["turn", "body", "process", "call"]
)
@settings(max_examples=300)
@given(st.data())
def test_distinct_effects_have_distinct_keys(
    family: st.SearchStrategy[tuple[object, str]], data: st.DataObject
) -> None:
    """Kinds apart as well: a hostile name cannot make a signal look like an end, or an attempt like a request."""
    drawn = data.draw(st.lists(family, min_size=2, max_size=12))
    described = dict(drawn)
    assert len(set(described.values())) == len(described)


@st.composite
def twins(draw: st.DrawFn, components: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Two tuples that a careless key would write alike: one text with separators, taken apart in two ways."""
    text = draw(st.text(alphabet=":%a", min_size=4, max_size=14)) + ":" * components
    places = [at for at, letter in enumerate(text) if letter == ":"]

    def apart() -> tuple[str, ...]:
        cuts = sorted(draw(st.sets(st.sampled_from(places), min_size=components - 1, max_size=components - 1)))
        ends = [*cuts, len(text)]
        return tuple(text[begin:end] for begin, end in zip([0, *(cut + 1 for cut in cuts)], ends, strict=True))

    return apart(), apart()


@pytest.mark.slow
@settings(max_examples=200)
@given(twins(4), twins(3), twins(2))
def test_names_that_only_differ_in_where_one_ends_and_the_next_begins(
    four: tuple[tuple[str, ...], tuple[str, ...]],
    three: tuple[tuple[str, ...], tuple[str, ...]],
    two: tuple[tuple[str, ...], tuple[str, ...]],
) -> None:
    pairs: list[tuple[Callable[..., str], tuple[tuple[str, ...], tuple[str, ...]]]] = [
        (keys.tool_idempotency, four),
        (lambda *names: _direct("acme", *names), four),
        (keys.step, three),
        (keys.awaited_event, three),
        (keys.process_signal, three),
        (lambda *names: keys.child(PARENT, *names), three),
        (keys.process_terminal, two),
        (keys.process_cancel_request, two),
        (_first_attempt, two),
    ]
    for maker, (one, other) in pairs:
        assert (maker(*one) == maker(*other)) == (one == other)


@pytest.mark.slow
@settings(max_examples=300)
@given(HOSTILE, HOSTILE, NUMBERS, st.lists(HOSTILE, min_size=1, max_size=3))
def test_child_effect_never_shares_a_key_with_a_sibling(call: str, other: str, attempt: int, names: list[str]) -> None:
    """A child's key begins with its parent's, and goes on: no effect of the turn itself does."""
    parent_key = keys.tool_attempt(ACME, SCOPE, CallId(call), attempt)
    parent = Invocation.effect(SCOPE, "e1", EffectKind.TOOL_CALL, parent_key)
    inside = keys.child(parent, *names)
    assert inside.startswith(f"{parent_key}:")
    beside = {keys.tool_attempt(ACME, SCOPE, CallId(one), n) for one in (call, other, *names) for n in range(13)}
    beside |= {keys.turn_effect(ACME, SCOPE, kind, one) for kind in EffectKind for one in (call, other, *names)}
    assert inside not in beside
