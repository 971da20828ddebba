"""Recorded traffic through the real SDKs: whatever a provider said, our reply says, and gives back what it must.

Every recording of the folder is replayed, whatever is in it; `PERDURE_CASSETTES` names another folder. One that
cannot be is passed over with the reason, except among our own.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest

from perdure.codec import decode, encode
from perdure.ids import TurnId
from perdure.models.protocol import ModelError, adopt
from perdure.vocab.messages import File, ImagePart, Reply, Thinking
from tests.providers import cassettes
from tests.providers.asked import request_of
from tests.providers.asking import Heard, ask, model_at
from tests.providers.cassettes import Interaction, Unreadable
from tests.providers.loopback import Answer, Asked, Loopback
from tests.providers.told import Told, is_error, pieces, told

pytestmark = pytest.mark.filterwarnings("default")  # of old models and settings in a recording

OPAQUE = ("signature", "encrypted_content", "encrypted_index", "thoughtSignature", "thought_signature")
SKIPPED_BY_GOOGLE = "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="
"""What the library says in place of a signature that there is not."""


def scripted(recorded: list[Interaction]) -> list[Any]:
    def one(interaction: Interaction) -> Any:
        def respond(asked: Asked) -> Answer:
            assert asked.operation == interaction.operation
            return interaction.answer

        return respond

    return [one(interaction) for interaction in recorded]


@pytest.mark.parametrize("path", cassettes.all_files(), ids=lambda path: cast("Path", path).stem)
async def test_a_recording_is_replayed(path: Path) -> None:
    try:
        recorded = cassettes.read(path)
    except Unreadable as problem:
        if cassettes.FOLDER == cassettes.OWN:
            raise
        pytest.skip(str(problem))
    replies: list[Reply] = []
    at = 0
    async with Loopback(scripted(recorded)).running() as server:
        while at < len(recorded):
            first = recorded[at]
            model = model_at(server.url + first.prefix, first.provider, first.model)
            request = request_of(first, replies, streamed=first.asks_for_a_stream)
            heard = problem = None
            try:
                heard = await ask(model, request)
            except ModelError as raised:
                problem = raised
            now, before = len(server.asked), at
            assert now > before, f"no request was sent: {problem}"
            gives_back(server.asked[before], recorded[: before + 1])
            at = now
            if is_error(recorded[now - 1]):
                assert problem is not None, "a failed response is no reply"
                is_the_same_failure(problem, recorded[now - 1])
                continue
            if heard is None:
                raise AssertionError("there was a reply") from problem
            says_the_same(heard, recorded[now - 1], told(recorded[before:now]))
            assert heard.reply is not None
            reply = adopt(heard.reply, turn=TurnId("t"), iteration=at)
            assert decode(encode(reply), Reply) == reply, "a reply survives its record"
            replies.append(reply)
    assert len(server.asked) == len(recorded), "everything recorded was asked for, once"


def is_the_same_failure(problem: ModelError, interaction: Interaction) -> None:
    status = problem.error.status
    assert interaction.status < 400 or status == interaction.status or problem.error.kind == "job_lost"
    assert problem.error.message
    assert problem.error.kind != "internal"


def says_the_same(heard: Heard, interaction: Interaction, expected: Told) -> None:
    reply = heard.reply
    assert reply is not None
    adopted = adopt(reply, turn=TurnId("t"), iteration=1)
    if not expected.refused:
        assert adopted.text.strip() == expected.text.strip()
        assert adopted.finish == ("tool_calls" if expected.calls else adopted.finish)
    else:
        assert adopted.finish in ("refusal", "content_filter")
    calls = [(call.name, call.args if call.malformed is None else call.malformed) for call in adopted.calls]
    assert calls == expected.calls
    assert sum(isinstance(part, ImagePart | File) for part in adopted.parts) == expected.files
    thinking = "".join(part.text for part in adopted.parts if isinstance(part, Thinking))
    assert words(thinking) == words(expected.thinking)
    if interaction.streamed:
        assert "".join(heard.deltas) == adopted.text or expected.refused
        assert words("".join(heard.thoughts)) == words(expected.thinking)
    usage = reply.usage
    assert usage.input + usage.cache_read + usage.cache_write == expected.input_tokens
    assert usage.output + usage.reasoning == expected.output_tokens
    assert (usage.cache_read, usage.calls) == (expected.cached, 1)
    assert usage.reasoning == expected.reasoning or not expected.reasoning


def words(text: str) -> str:
    """Summaries of thinking are joined with or without a line between them."""
    return re.sub(r"\s+", "", text)


def gives_back(asked: Asked, recorded: list[Interaction]) -> None:
    """What the recorded request gave back of what its route had told (signatures, encrypted thoughts), ours does."""
    *earlier, interaction = recorded
    told_us = "".join(str(pieces(one)) for one in earlier if one.status < 400 and one.route == interaction.route)
    sent, known = _same(asked.body.decode()), _same(told_us)
    for opaque in map(_same, _opaque(interaction.request)):
        assert opaque in sent or opaque not in known


def _same(text: str) -> str:
    """Some spell base64 for addresses."""
    return text.replace("-", "+").replace("_", "/")


def _opaque(value: Any) -> list[str]:
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        own = [fields[name] for name in OPAQUE if isinstance(fields.get(name), str) and fields[name]]
        own += [fields["data"]] if fields.get("type") == "redacted_thinking" else []
        found = own + [found for inner in fields.values() for found in _opaque(inner)]
        return [one for one in found if one != SKIPPED_BY_GOOGLE]
    if isinstance(value, list):
        return [found for inner in cast("list[Any]", value) for found in _opaque(inner)]
    return []
