from typing import Any

import pytest

from perdure import codec
from perdure.ids import TurnId
from perdure.models.protocol import MAX_MALFORMED_BYTES, ModelError, ModelReply, ProviderCall, adopt, kept
from perdure.vocab.messages import FinishReason, Opaque, Reply, Text, Thinking, ToolCall
from perdure.vocab.usage import Usage


def adopted(*parts: Text | Thinking | ProviderCall | Opaque, finish: FinishReason = "stop") -> Reply:
    return adopt(
        ModelReply(parts=parts, finish=finish, usage=Usage(output=3), model="m"), turn=TurnId("t1"), iteration=2
    )


def adopted_call(arguments: str, name: str = "search") -> ToolCall:
    return adopted(ProviderCall("call_0", name, arguments)).calls[0]


def test_calls_get_our_ids_and_keep_the_providers_beside_them() -> None:
    reply = adopted(ProviderCall("call_0", "a", "{}"), Text(text="and"), ProviderCall("call_0", "b", "{}"))
    assert [(call.id, call.provider_id, call.name) for call in reply.calls] == [
        ("t1.2.0", "call_0", "a"),
        ("t1.2.1", "call_0", "b"),
    ]
    assert reply.text == "and"
    assert reply.usage == Usage(output=3)


def test_arguments_are_parsed_once() -> None:
    call = adopted_call('{"city": "Lisbon", "n": 12345678901234567890123, "deep": [{"x": null}]}')
    assert call.args == {"city": "Lisbon", "n": 12345678901234567890123, "deep": [{"x": None}]}
    assert call.malformed is None


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_no_argument_text_means_no_arguments(text: str) -> None:
    call = adopted_call(text)
    assert call.args == {}
    assert call.malformed is None


@pytest.mark.parametrize(
    "text",
    [
        '{"city": "Lis',
        "[1, 2]",
        "null",
        '"text"',
        "7",
        '{"x": NaN}',
        '{"x": Infinity}',
        '{"x": -Infinity}',
        '{"x": 1e999}',
        '{"a": 1}{"a": 1}',
        '{"a": 1, "a": 2}',
        '{"deep": {"a": 1, "a": 2}}',
        "{'a': 1}",
        '{"a": 1,}',
        '```json\n{"a": 1}\n```',
        '{"a": "\\ud800"}',
        '{"a": "\ud800"}',
        '{"n": 1' + "0" * 5000 + "}",
        '{"a": ' + "[" * 300 + "]" * 300 + "}",
        '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}",
    ],
)
def test_text_that_is_not_one_json_object_is_kept_and_never_run(text: str) -> None:
    call = adopted_call(text)
    assert call.args == {}
    assert call.malformed is not None
    codec.encode(call)


def test_malformed_text_is_kept_up_to_four_kibibytes_without_breaking_a_character() -> None:
    call = adopted_call("é" * 5000)
    assert call.malformed is not None
    assert len(call.malformed.encode()) <= MAX_MALFORMED_BYTES
    assert set(call.malformed) == {"é"}


@pytest.mark.parametrize("name", ["", "  ", "\t"])
def test_a_call_that_names_no_tool_is_malformed(name: str) -> None:
    call = adopted_call('{"a": 1}', name=name)
    assert (call.name, call.args, call.malformed) == ("", {}, '{"a": 1}')


def test_a_lone_surrogate_in_a_reply_cannot_break_the_log() -> None:
    reply = adopted(
        Text(text="a\ud800b"), Thinking(text="\udfff", signature="\ud800"), ProviderCall("\ud800", "\ud800", "{}")
    )
    assert reply.text == "a?b"
    codec.encode(reply)


def test_a_character_that_came_in_two_halves_is_one() -> None:
    assert adopted(Text(text="a\ud83d\ude00b\ud83d")).text == "a😀b?"


def test_a_name_as_long_as_a_book_is_cut() -> None:
    assert len(adopted_call("{}", name="x" * 100_000).name) == 256


@pytest.mark.parametrize("said", ["stop", "length", "content_filter"])
def test_calls_decide_the_finish_reason(said: FinishReason) -> None:
    assert adopted(ProviderCall("p", "a", "{}"), finish=said).finish == "tool_calls"


def test_a_reply_without_calls_does_not_finish_for_calls() -> None:
    assert adopted(Text(text="x"), finish="tool_calls").finish == "stop"
    assert adopted(Text(text="x"), finish="refusal").finish == "refusal"


def test_provider_state_with_half_characters_is_storable() -> None:
    half = {"sig\ud83d": ["a\ud83d", {"b": "\udc00"}], "n": 1}
    parts = (Text(text="t", state=half), Thinking(text="h", state=half), ProviderCall("c", "a", "{}", state=half))
    reply = adopted(*parts, Opaque(kind="k", state=half, route="r"))
    clean = {"sig?": ["a?", {"b": "?"}], "n": 1}
    assert [part.state for part in reply.parts] == [clean] * 4
    assert codec.decode(codec.encode(reply), Reply) == reply


@pytest.mark.parametrize("text", [7, None, ["a"]])
def test_malformed_reply_is_charged_and_not_retryable(text: Any) -> None:
    reply = ModelReply(parts=(Text(text=text),), finish="stop", usage=Usage(output=3, calls=1), model="m")
    with pytest.raises(ModelError) as caught:
        kept(reply, turn=TurnId("t1"), iteration=1)
    assert (caught.value.error.kind, caught.value.error.retryable) == ("unavailable", False)
    assert caught.value.spent == Usage(output=3, calls=1)
