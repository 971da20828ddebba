"""What a model is asked and what it answers, in terms no provider owns; and how an answer becomes a `Reply` of ours.

Laws: the last item of a stream is its only `ModelReply`; whatever goes wrong is a `ModelError`. Call ids are ours:
servers reuse theirs (`call_0`), so a provider's id is kept beside the call for the wire and never identifies it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import NoReturn, Protocol, TypeAlias, cast, runtime_checkable

from msgspec.structs import replace

from perdure import codec
from perdure.codec import Json
from perdure.errors import Error
from perdure.ids import BlobHash, CallId, TurnId
from perdure.vocab.blobs import Blob, blob_of
from perdure.vocab.effects import ToolChoice
from perdure.vocab.messages import (
    AttachmentRef,
    File,
    FinishReason,
    Image,
    Message,
    Opaque,
    Reply,
    ReplyPart,
    Text,
    Thinking,
    ToolCall,
)
from perdure.vocab.outcomes import LlmError
from perdure.vocab.tools import ToolDefinition
from perdure.vocab.usage import Usage

MAX_REPLY_BYTES = 524_288
MAX_MALFORMED_BYTES = 4096
MAX_NAME_BYTES = 256
MAX_ARGUMENT_DEPTH = 200
"""Deeper arguments could be written to the log but not be read back from it."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """Everything a model is shown, with nothing left by reference.

    `attachments` holds the bytes of every picture and file in the messages, by the hash of its reference. `output_spec`
    is what the last answer must be: `{"name": …, "schema": a JSON schema of an object}`; a provider that can force a
    model to keep to it should. `job` is what a `JobBegun` of an earlier attempt said: the answer is bought already.
    """

    model: str
    instructions: str
    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...]
    tool_choice: ToolChoice = "auto"
    settings: Json = None
    output_spec: Json = None
    attachments: Mapping[BlobHash, bytes] = field(default_factory=dict[BlobHash, bytes])
    job: Json = None


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A bit more of the visible text."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """A bit more of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class HiddenDelta:
    """A bit more of what nobody is shown while it is written: the name or the arguments of a call, a file."""

    chars: int


@dataclass(frozen=True, slots=True)
class ComesWhole:
    """What is asked for comes in one piece: until then, silence means nothing."""


@dataclass(frozen=True, slots=True)
class ProviderCall:
    """A tool call as the wire has it: the provider's id, and arguments that are still text."""

    provider_id: str
    name: str
    arguments: str
    state: Json = None
    route: str = ""


@dataclass(frozen=True, slots=True)
class MadeFile:
    """A picture or file that a model made: its bytes are stored, and the reply refers to them."""

    data: bytes
    media_type: str
    state: Json = None
    route: str = ""


AnswerPart: TypeAlias = Text | Thinking | ProviderCall | MadeFile | Opaque


@dataclass(frozen=True, slots=True)
class ModelReply:
    """One complete answer, before its calls got our ids and its files their references."""

    parts: tuple[AnswerPart, ...]
    finish: FinishReason
    usage: Usage
    model: str


@dataclass(frozen=True, slots=True)
class JobBegun:
    """The provider works on the answer by itself; whoever asks again with this `job` waits for that one."""

    job: Json


@dataclass(frozen=True, slots=True)
class UsageSoFar:
    """What the provider has told of the cost before the reply is there: most tell the input at once. If the reply never
    comes, that counts. Its price need not be known."""

    usage: Usage


ModelEvent: TypeAlias = TextDelta | ThinkingDelta | HiddenDelta | ComesWhole | JobBegun | UsageSoFar | ModelReply


class ModelError(Exception):
    """A model call gave no reply; `error` says why, and whether asking again can help, `spent` what it cost."""

    def __init__(self, error: LlmError, spent: Usage = Usage()) -> None:
        super().__init__(f"{error.kind}: {error.message}")
        self.error = error
        self.spent = spent


class Model(Protocol):
    """Something that answers a conversation. Stateless: what it says follows from the request."""

    @property
    def name(self) -> str:
        """The name it is recorded under."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Answer: any number of deltas, then the whole reply.

        Who says nothing for long (`Agent(stall_timeout=)`) is taken for stuck; who cannot stream yields `ComesWhole`.

        Raises:
            ModelError: instead of a reply, also after deltas.
        """
        ...


@runtime_checkable
class CancelsJobs(Protocol):
    """A model whose provider can be told that nobody wants a job any more."""

    async def cancel(self, job: Json) -> None:
        """Give up what a `JobBegun` told of. May raise anything."""
        ...


@runtime_checkable
class KnowsPrices(Protocol):
    """A model that knows what it costs."""

    async def priced(self, usage: Usage) -> Usage:
        """The same tokens of one call, with their price if it is known."""
        ...


def kept(reply: ModelReply, *, turn: TurnId, iteration: int) -> Reply:
    """A provider's answer as the log will have it.

    Raises:
        ModelError: `too_large`; `unavailable` if it is not made of what it should be. It was bought all the same, and
            whoever makes such answers makes the next one like it: it is not asked again.
    """
    try:
        written = codec.encode(adopt(reply, turn=turn, iteration=iteration))
        adopted: Reply = codec.decode(written, Reply)
    except (Error, TypeError, AttributeError, ValueError) as problem:
        message = f"the model's answer cannot be read: {problem}"[:MAX_MALFORMED_BYTES]
        spent = reply.usage if isinstance(reply.usage, Usage) else Usage()  # pyright: ignore[reportUnnecessaryIsInstance] - whatever a model gives
        raise ModelError(LlmError(kind="unavailable", message=clean(message)), spent) from problem
    if len(written) > MAX_REPLY_BYTES:
        message = f"the reply is {len(written)} bytes, more than the {MAX_REPLY_BYTES} that are kept"
        raise ModelError(LlmError(kind="too_large", message=message), reply.usage)
    return adopted


def adopt(reply: ModelReply, *, turn: TurnId, iteration: int) -> Reply:
    """Make a provider's answer ours: calls get our ids, arguments are parsed once, text is valid Unicode."""
    parts: list[ReplyPart] = []
    index = 0
    for part in reply.parts:
        match part:
            case Text(text=text):
                parts.append(replace(part, text=clean(text), state=_clean_state(part.state)))
            case Thinking(text=text, signature=signature, route=route):
                signed = replace(part, signature=clean(signature), route=clean(route), state=_clean_state(part.state))
                parts.append(replace(signed, text=clean(text)))
            case MadeFile():
                parts.append(_kept(part))
            case Opaque():
                parts.append(replace(part, state=_clean_state(part.state)))
            case ProviderCall():
                parts.append(_adopt_call(part, CallId(f"{turn}.{iteration}.{index}")))
                index += 1
    return Reply(parts=tuple(parts), finish=_finish(reply.finish, index), usage=reply.usage, model=clean(reply.model))


def made_files(reply: ModelReply) -> tuple[Blob, ...]:
    """The bytes that an adopted reply refers to."""
    return tuple(blob_of(part.data, clean(part.media_type)) for part in reply.parts if isinstance(part, MadeFile))


def _kept(made: MadeFile) -> Image | File:
    stored = blob_of(made.data, clean(made.media_type))
    ref = AttachmentRef(hash=stored.hash, media_type=stored.media_type, size=len(stored.data))
    part = Image if made.media_type.startswith("image/") else File
    return part(ref=ref, state=_clean_state(made.state), route=made.route)


def _finish(said: FinishReason, calls: int) -> FinishReason:
    # Servers disagree about the reason of a reply with calls. The calls themselves decide.
    if calls:
        return "tool_calls"
    return "stop" if said == "tool_calls" else said


def _adopt_call(call: ProviderCall, id: CallId) -> ToolCall:
    name = "" if not call.name.strip() else _capped(clean(call.name), MAX_NAME_BYTES)
    provider_id = clean(call.provider_id)
    args = _object(call.arguments) if name else None
    if args is None:
        raw = _capped(clean(call.arguments), MAX_MALFORMED_BYTES)
        return ToolCall(id=id, name=name, args={}, provider_id=provider_id, malformed=raw)
    state = _clean_state(call.state)
    return ToolCall(id=id, name=name, args=args, provider_id=provider_id, state=state, route=call.route)


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


def clean(text: str) -> str:
    """A text that can be stored. Halves of one character are joined, and a half alone (a lone surrogate) is replaced:
    a reply is too precious to be refused for one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        return joined.encode("utf-8", "replace").decode()
    return text


def _clean_state(state: Json) -> Json:
    """What a provider wants back, if it can be stored; what else is in it stays as it came."""
    match state:
        case str():
            return clean(state)
        case list():
            return [_clean_state(one) for one in cast("list[Json]", state)]
        case dict():
            return {clean(name): _clean_state(one) for name, one in cast("dict[str, Json]", state).items()}
        case _:
            return state


def _capped(text: str, limit: int) -> str:
    return text.encode()[:limit].decode("utf-8", "ignore")
