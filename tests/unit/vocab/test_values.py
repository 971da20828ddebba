"""Small rules of the shared nouns: waits, retries, usage, replies, log keys."""

from __future__ import annotations

import pytest

from perdure.errors import Code, Error
from perdure.ids import BlobHash, CallId, EffectId, InputId, TurnId
from perdure.vocab.log_keys import key_of
from perdure.vocab.messages import Reply, Text, Thinking, ToolCall
from perdure.vocab.outcomes import SleepOutcome
from perdure.vocab.promises import Custom, ProcessSignal, ToolCompletion, TurnCancelGate, TurnTerminal
from perdure.vocab.records import (
    CancelRequested,
    EffectSettled,
    InputAdmitted,
    Record,
    SessionOpened,
    StopReason,
    TurnEnded,
    TurnOpened,
    kind_of,
)
from perdure.vocab.tools import Composition, Durability, RetryPolicy, ToolContract, ToolDefinition
from perdure.vocab.usage import Usage


@pytest.mark.parametrize("blank", ["", " ", "\n\t"])
def test_a_wait_must_be_named(blank: str) -> None:
    for make in (
        lambda: ToolCompletion(call_id=blank),
        lambda: TurnCancelGate(turn_id=blank),
        lambda: TurnTerminal(turn_id=blank),
        lambda: ProcessSignal(process_id=blank, name="go", ordinal=1),
        lambda: ProcessSignal(process_id="p", name=blank, ordinal=1),
        lambda: Custom(key=blank),
    ):
        with pytest.raises(Error) as caught:
            make()
        assert caught.value.code is Code.INVALID_AWAIT_EVENT_WAIT_IDENTITY


@pytest.mark.parametrize("ordinal", [0, -1])
def test_signals_and_attempts_are_counted_from_one(ordinal: int) -> None:
    for make in (
        lambda: ProcessSignal(process_id="p", name="go", ordinal=ordinal),
        lambda: ToolCompletion(call_id="c", attempt=ordinal),
    ):
        with pytest.raises(Error) as caught:
            make()
        assert caught.value.code is Code.INVALID_AWAIT_EVENT_WAIT_IDENTITY


def test_waits_with_names_and_numbers_are_fine() -> None:
    assert ToolCompletion(call_id="c").attempt == 1
    assert ProcessSignal(process_id="p", name="go", ordinal=1).ordinal == 1
    assert Custom(key="reviewed").key == "reviewed"


def test_delays_double_from_the_base_up_to_the_cap() -> None:
    policy = RetryPolicy(kind="safe", max_attempts=9, base_delay_ms=200, max_delay_ms=1_000)
    assert [policy.delay_ms(failed, None) for failed in (1, 2, 3, 4, 5, 60)] == [200, 400, 800, 1_000, 1_000, 1_000]


def test_requested_retry_delay_exceeds_the_cap() -> None:
    policy = RetryPolicy(kind="safe", max_attempts=9, base_delay_ms=200, max_delay_ms=1_000)
    assert [policy.delay_ms(1, after) for after in (None, 0, 100, 201, 5_000)] == [200, 200, 200, 201, 5_000]


def test_a_tool_that_says_nothing_is_once_and_never_retried() -> None:
    durability = Durability()
    assert (durability.effect, durability.doubt, durability.serial) == ("once", "tell", False)
    assert (durability.retry.kind, durability.retry.max_attempts) == ("never", 1)


def test_a_composition_finds_its_tools_by_name() -> None:
    refund = ToolContract(definition=ToolDefinition(name="refund", description="", parameters={}))
    composition = Composition(agent="a", model="m", tools=(refund,))
    assert composition.tool("refund") is refund
    assert composition.tool("Refund") is None


def test_the_digest_of_arguments_changes_only_with_the_arguments() -> None:
    def contract(description: str, parameters: dict[str, object]) -> ToolContract:
        return ToolContract(definition=ToolDefinition(name="x", description=description, parameters=parameters))

    one = contract("old words", {"type": "object", "properties": {"a": {}}})
    assert one.arguments_digest == contract("new", {"properties": {"a": {}}, "type": "object"}).arguments_digest
    assert one.arguments_digest != contract("old words", {"type": "object", "properties": {"b": {}}}).arguments_digest


def test_usage_adds_up_bucket_by_bucket() -> None:
    one = Usage(input=1, output=2, cache_read=3, cache_write=4, reasoning=5, calls=1)
    other = Usage(input=10, output=20, cache_read=30, cache_write=40, reasoning=50, calls=2)
    total = one + other
    assert total == Usage(input=11, output=22, cache_read=33, cache_write=44, reasoning=55, calls=3)
    assert total.tokens == 165


def test_a_reply_joins_its_texts_and_keeps_its_calls_in_order() -> None:
    calls = [ToolCall(id=CallId(name), name=name, args={}) for name in ("b", "a")]
    reply = Reply(parts=(Thinking(text="hm"), Text(text="one "), calls[0], Text(text="two"), calls[1]))
    assert reply.text == "one two"
    assert [call.name for call in reply.calls] == ["b", "a"]


T = TurnId("t1")
STOPS: list[StopReason] = ["max_iterations", "no_progress", "provider_error", "refused", "composition_lost"]


@pytest.mark.parametrize(
    ("record", "kind", "key"),
    [
        (SessionOpened(agent="a"), "session_opened", None),
        (InputAdmitted(input=InputId("i"), turn=T, parts=()), "input_admitted", None),
        (TurnOpened(turn=T, index=0, composition=BlobHash("h")), "turn_opened", "open:t1"),
        (EffectSettled(id=EffectId("m1.1"), outcome=SleepOutcome()), "effect_settled", None),
        (CancelRequested(turn=T, request="r"), "cancel_requested", "gate:t1"),
        (TurnEnded(turn=T, status="finished"), "turn_ended", "gate:t1"),
        *[(TurnEnded(turn=T, status="stopped", reason=reason), "turn_ended", "gate:t1") for reason in STOPS],
        (TurnEnded(turn=T, status="stopped", reason="cancelled"), "turn_ended", "end:t1"),
    ],
)
def test_completion_and_cancellation_race_for_one_log_key(record: Record, kind: str, key: str | None) -> None:
    assert kind_of(record) == kind
    assert key_of(record) == key
