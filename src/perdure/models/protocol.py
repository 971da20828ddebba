"""The provider-neutral model protocol: requests, stream events, and the conversion of an answer to a `Reply`.

Laws: the last item of a stream is its only `ModelReply`; every failure is a `ModelError`. Call ids are Perdure's.
Servers reuse theirs (`call_0`), so a provider's id is kept for the wire only and identifies nothing.
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
    ImagePart,
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
"""Deeper arguments can be written to the log but not read back."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A model request with all references resolved.

    `attachments` contains the bytes of every image and file in the messages, by the hash of its reference.
    `output_spec` is the form of the final answer: `{"name": …, "schema": a JSON schema of an object}`; providers that
    can enforce it should. `job` is the reference of an earlier attempt's `JobBegun`: its answer is already charged.
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
class TextPiece:
    """A piece of the visible text."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """A piece of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class HiddenDelta:
    """A piece that is not shown while it streams: the name or arguments of a call, or a file."""

    chars: int


@dataclass(frozen=True, slots=True)
class ComesWhole:
    """The reply will come in one piece, so silence until then does not count as a stall."""


@dataclass(frozen=True, slots=True)
class ProviderCall:
    """A tool call as on the wire: the provider's id, and arguments as text."""

    provider_id: str
    name: str
    arguments: str
    state: Json = None
    route: str = ""


@dataclass(frozen=True, slots=True)
class MadeFile:
    """An image or file that a model made. Its bytes are stored, and the reply refers to them."""

    data: bytes
    media_type: str
    state: Json = None
    route: str = ""


AnswerPart: TypeAlias = Text | Thinking | ProviderCall | MadeFile | Opaque


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A complete answer, before calls get Perdure's ids and files get references."""

    parts: tuple[AnswerPart, ...]
    finish: FinishReason
    usage: Usage
    model: str


@dataclass(frozen=True, slots=True)
class JobBegun:
    """The provider produces the answer in a background job.

    A later request with this `job` waits for the same answer.
    """

    job: Json


@dataclass(frozen=True, slots=True)
class UsageSoFar:
    """Usage reported before the reply is complete; most providers report the input at once.

    It counts if the reply never comes. The price may be unknown.
    """

    usage: Usage


ModelEvent: TypeAlias = TextPiece | ThinkingDelta | HiddenDelta | ComesWhole | JobBegun | UsageSoFar | ModelReply


class ModelError(Exception):
    """A failed model call. `error` is the reason and whether a retry can help, `spent` the usage charged."""

    def __init__(self, error: LlmError, spent: Usage = Usage()) -> None:
        super().__init__(f"{error.kind}: {error.message}")
        self.error = error
        self.spent = spent.bounded()


class Model(Protocol):
    """A model. Stateless: its answer depends only on the request."""

    @property
    def name(self) -> str:
        """The name in records."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Answer with any number of deltas, then the whole reply.

        Silence longer than `Agent(stall_timeout=)` counts as a stall. A model that cannot stream yields `ComesWhole`.

        Raises:
            ModelError: instead of a reply, also after deltas.
        """
        ...


@runtime_checkable
class CancelsJobs(Protocol):
    """A model whose provider can cancel background jobs."""

    async def cancel(self, job: Json) -> None:
        """Cancel the job of a `JobBegun`. May raise any exception."""
        ...


@runtime_checkable
class KnowsPrices(Protocol):
    """A model with known prices."""

    async def priced(self, usage: Usage) -> Usage:
        """Return the same usage of one call, with its price if known."""
        ...


def kept(reply: ModelReply, *, turn: TurnId, iteration: int) -> Reply:
    """Convert a provider's answer to the reply in the log.

    Raises:
        ModelError: `too_large`; `unavailable` for an answer of invalid types. Such an answer is charged and not
            requested again, because the next one would be invalid too.
    """
    try:
        written = codec.encode(adopt(reply, turn=turn, iteration=iteration))
        adopted: Reply = codec.decode(written, Reply)
    except (Error, TypeError, AttributeError, ValueError) as problem:
        message = f"the model's answer cannot be read: {problem}"[:MAX_MALFORMED_BYTES]
        spent = reply.usage if isinstance(reply.usage, Usage) else Usage()  # pyright: ignore[reportUnnecessaryIsInstance] - user models may return any type
        raise ModelError(LlmError(kind="unavailable", message=clean(message)), spent) from problem
    if len(written) > MAX_REPLY_BYTES:
        message = f"the reply has {len(written)} bytes, more than the limit of {MAX_REPLY_BYTES} bytes"
        raise ModelError(LlmError(kind="too_large", message=message), reply.usage)
    return adopted


def adopt(reply: ModelReply, *, turn: TurnId, iteration: int) -> Reply:
    """Convert a provider's answer: calls get Perdure's ids, arguments are parsed once, text becomes valid Unicode."""
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
    return Reply(
        parts=tuple(parts), finish=_finish(reply.finish, index), usage=reply.usage.bounded(), model=clean(reply.model)
    )


def made_files(reply: ModelReply) -> tuple[Blob, ...]:
    """Return the bytes that an adopted reply refers to."""
    return tuple(blob_of(part.data, clean(part.media_type)) for part in reply.parts if isinstance(part, MadeFile))


def _kept(made: MadeFile) -> ImagePart | File:
    stored = blob_of(made.data, clean(made.media_type))
    ref = AttachmentRef(hash=stored.hash, media_type=stored.media_type, size=len(stored.data))
    part = ImagePart if made.media_type.startswith("image/") else File
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
    """Return the JSON object in `text`, or None for any other value and for duplicate keys."""
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
        raise ValueError("duplicate key")
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
    """Make a text storable instead of refusing the reply: join surrogate pairs and replace lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        return joined.encode("utf-8", "replace").decode()
    return text


def _clean_state(state: Json) -> Json:
    """Make all strings in a provider's opaque state storable."""
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
