"""What a model is asked and what it answers, in terms no provider owns; and how an answer becomes a `Reply` of ours.

Laws: the last item of a stream is its only `ModelReply`; whatever goes wrong is a `ModelError`. Call ids are ours:
servers reuse theirs (`call_0`), so a provider's id is kept beside the call for the wire and never identifies it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import NoReturn, Protocol, TypeAlias, cast

from perdure import codec
from perdure.codec import Json
from perdure.errors import Error
from perdure.ids import BlobHash, CallId, TurnId
from perdure.vocab.effects import ToolChoice
from perdure.vocab.messages import FinishReason, Message, Reply, ReplyPart, Text, Thinking, ToolCall
from perdure.vocab.outcomes import LlmError
from perdure.vocab.tools import ToolDefinition
from perdure.vocab.usage import Usage

MAX_MALFORMED_BYTES = 4096
MAX_NAME_BYTES = 256
MAX_ARGUMENT_DEPTH = 200
"""Deeper arguments could be written to the log but not be read back from it."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """Everything a model is shown, with nothing left by reference.

    `attachments` holds the bytes of every picture and file in the messages, by the hash of its reference. `output_spec`
    is what the last answer must be: `{"name": …, "schema": a JSON schema of an object}`; a provider that can force a
    model to keep to it should.
    """

    model: str
    instructions: str
    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...]
    tool_choice: ToolChoice = "auto"
    settings: Json = None
    output_spec: Json = None
    attachments: Mapping[BlobHash, bytes] = field(default_factory=dict[BlobHash, bytes])


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A bit more of the visible text."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """A bit more of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ProviderCall:
    """A tool call as the wire has it: the provider's id, and arguments that are still text."""

    provider_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ModelReply:
    """One complete answer, before its calls got our ids."""

    parts: tuple[Text | Thinking | ProviderCall, ...]
    finish: FinishReason
    usage: Usage
    model: str


ModelEvent: TypeAlias = TextDelta | ThinkingDelta | ModelReply


class ModelError(Exception):
    """A model call gave no reply; `error` says why, and whether asking again can help."""

    def __init__(self, error: LlmError) -> None:
        super().__init__(f"{error.kind}: {error.message}")
        self.error = error


class Model(Protocol):
    """Something that answers a conversation. Stateless: what it says follows from the request."""

    @property
    def name(self) -> str:
        """The name it is recorded under."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Answer: any number of deltas, then the whole reply.

        Raises:
            ModelError: instead of a reply, also after deltas.
        """
        ...


def adopt(reply: ModelReply, *, turn: TurnId, iteration: int) -> Reply:
    """Make a provider's answer ours: calls get our ids, arguments are parsed once, text is valid Unicode."""
    parts: list[ReplyPart] = []
    index = 0
    for part in reply.parts:
        match part:
            case Text(text=text):
                parts.append(Text(text=_clean(text)))
            case Thinking():
                parts.append(
                    Thinking(text=_clean(part.text), signature=_clean(part.signature), route=_clean(part.route))
                )
            case ProviderCall():
                parts.append(_adopt_call(part, CallId(f"{turn}.{iteration}.{index}")))
                index += 1
    return Reply(parts=tuple(parts), finish=_finish(reply.finish, index), usage=reply.usage, model=_clean(reply.model))


def _finish(said: FinishReason, calls: int) -> FinishReason:
    # Servers disagree about the reason of a reply with calls. The calls themselves decide.
    if calls:
        return "tool_calls"
    return "stop" if said == "tool_calls" else said


def _adopt_call(call: ProviderCall, id: CallId) -> ToolCall:
    name = "" if not call.name.strip() else _capped(_clean(call.name), MAX_NAME_BYTES)
    provider_id = _clean(call.provider_id)
    args = _object(call.arguments) if name else None
    if args is None:
        raw = _capped(_clean(call.arguments), MAX_MALFORMED_BYTES)
        return ToolCall(id=id, name=name, args={}, provider_id=provider_id, malformed=raw)
    return ToolCall(id=id, name=name, args=args, provider_id=provider_id)


def _object(text: str) -> dict[str, Json] | None:
    """The JSON object in `text`; None if it is anything else, or says a key twice and so means two things."""
    if not text.strip():
        return {}
    try:
        value = codec.decode(text, dict[str, Json])
        json.loads(text, object_pairs_hook=_once_each, parse_constant=_refuse)
    except (Error, ValueError, RecursionError):
        return None
    return value if _depth_within(value, MAX_ARGUMENT_DEPTH) else None


def _once_each(pairs: list[tuple[str, Json]]) -> Json:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _depth_within(value: Json, left: int) -> bool:
    if isinstance(value, dict):
        return left > 0 and all(_depth_within(item, left - 1) for item in cast("dict[str, Json]", value).values())
    if isinstance(value, list):
        return left > 0 and all(_depth_within(item, left - 1) for item in cast("list[Json]", value))
    return True


def _clean(text: str) -> str:
    # A lone surrogate cannot be stored, and a reply is too precious to be refused for one.
    return text.encode("utf-8", "replace").decode()


def _capped(text: str, limit: int) -> str:
    return text.encode()[:limit].decode("utf-8", "ignore")
