"""Sentences about calls: in the reader's language, short, and without anything that looks like a secret."""

from __future__ import annotations

import logging

import pytest

from perdure.codec import Json
from perdure.ids import CallId
from perdure.tools.builtin import EchoTool
from perdure.tools.decorator import tool
from perdure.tools.narration import Phase, looks_secret, narration, shown
from perdure.tools.objects import as_tool
from perdure.vocab.messages import ToolCall
from perdure.vocab.tools import ToolHints

SENTENCES: dict[str, dict[Phase, str]] = {
    "en": {"started": "Refunding {order}", "completed": "Refunded {order}"},
    "de": {"started": "Erstatte {order}"},
    "de-CH": {"started": "Erstatte {order} (CH)"},
}


def calling(**args: Json) -> ToolCall:
    return ToolCall(id=CallId("c"), name="refund", args=args)


@tool(title="Refund", narrate=SENTENCES)
def refund(order: str) -> str:
    """Refund."""
    return order


@pytest.mark.parametrize(
    ("locale", "said"),
    [
        ("de-CH", "Erstatte o7 (CH)"),
        ("de_ch", "Erstatte o7 (CH)"),
        ("de-AT", "Erstatte o7"),
        ("fr-FR", "Refunding o7"),
        (None, "Refunding o7"),
    ],
)
def test_the_exact_language_then_its_base_then_english(locale: str | None, said: str) -> None:
    assert refund.narrate(calling(order="o7"), "started", locale) == said


def test_a_phase_without_a_sentence_in_the_language_is_said_in_english() -> None:
    assert refund.narrate(calling(order="o7"), "completed", "de") == "Refunded o7"


@pytest.mark.parametrize(
    ("phase", "said"),
    [
        ("started", "Running Echo"),
        ("waiting", "Waiting for Echo"),
        ("completed", "Finished Echo"),
        ("failed", "Echo failed"),
    ],
)
def test_a_tool_without_sentences_is_named(phase: Phase, said: str) -> None:
    assert as_tool(EchoTool()).narrate(calling(message="m"), phase, "uk") == said


def test_the_noun_of_the_hints_comes_before_the_display_name() -> None:
    @tool(title="Refund", hints=ToolHints(narration_noun="the refund"))
    def pay() -> None:
        """Pay."""

    assert pay.narrate(calling(), "waiting") == "Waiting for the refund"


def test_a_function_may_say_it_and_may_decline_or_fail(caplog: pytest.LogCaptureFixture) -> None:
    def say(call: ToolCall, phase: Phase, locale: str | None) -> str | None:
        if phase == "failed":
            raise KeyError("order")
        return f"{phase} {call.args['order']} in {locale}" if phase == "started" else None

    assert narration(calling(order="o7"), "started", "uk", noun="Refund", own=say) == "started o7 in uk"
    assert narration(calling(order="o7"), "completed", None, noun="Refund", own=say) == "Finished Refund"
    with caplog.at_level(logging.ERROR, "perdure.tools"):
        assert narration(calling(), "failed", None, noun="Refund", own=say) == "Refund failed"


@pytest.mark.parametrize(
    "name", ["password", "api_key", "apiKey", "accessKey", "auth_header", "client_secret", "Token", "cvv", "key", "pin"]
)
def test_argument_named_like_a_secret_is_not_shown(name: str) -> None:
    assert looks_secret(name)
    own: dict[str, dict[Phase, str]] = {"en": {"started": f"Using {{{name}}}"}}
    assert narration(calling(**{name: "hunter2"}), "started", None, noun="X", own=own) == "Using …"


@pytest.mark.parametrize("name", ["order", "keyword", "path", "shopping", "monkey"])
def test_ordinary_names_are_shown(name: str) -> None:
    assert not looks_secret(name)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("two\n  lines", "two lines"),
        ("x" * 100, "x" * 59 + "…"),
        ("https://ann:pw@bank.example/pay?token=1#top", "https://bank.example/pay"),
        ("http://[broken", "…"),
        (7, "7"),
        (10**100, "1" + "0" * 59),
        (True, "true"),
        (None, "null"),
        ([1, 2, 3], "3 items"),
        ({"a": 1}, "1 items"),
    ],
)
def test_arguments_are_shown_in_a_few_characters(value: Json, text: str) -> None:
    assert shown(value) == text


def test_an_argument_that_is_not_there_is_a_dot() -> None:
    assert refund.narrate(calling(), "started") == "Refunding …"
    assert refund.narrate(ToolCall(id=CallId("c"), name="refund", args=None), "started") == "Refunding …"
