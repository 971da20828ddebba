"""What is said in a conversation: messages and the parts they are made of. Bytes are always references."""

from __future__ import annotations

from typing import Literal, TypeAlias

from perdure.codec import Json
from perdure.ids import BlobHash, CallId
from perdure.vocab.usage import Usage
from perdure.vocab.wire import Value


class AttachmentRef(Value, frozen=True):
    """Stored bytes, named by their content."""

    hash: BlobHash
    media_type: str
    size: int
    name: str = ""


class Citation(Value, frozen=True):
    """What a text rests on: a page or a document. `start` and `end` are places in the text, if they were told;
    `marker` says that they are those of a sign such as `[1]`.
    """

    url: str = ""
    title: str = ""
    document: str = ""
    excerpts: tuple[str, ...] = ()
    start: int | None = None
    end: int | None = None
    marker: bool = False


class Text(Value, frozen=True, tag="text"):
    """Plain text. `state` is what its provider wants back with it, and only goes to the route it came from. An `aside`
    is shown and is no part of the answer: what a model says of its work.
    """

    text: str
    citations: tuple[Citation, ...] = ()
    state: Json = None
    route: str = ""
    aside: bool = False


class Thinking(Value, frozen=True, tag="thinking"):
    """A model's reasoning. `signature` and `state` are opaque and only go back to the route they came from."""

    text: str
    signature: str = ""
    route: str = ""
    state: Json = None


class Opaque(Value, frozen=True, tag="opaque"):
    """Something in a reply that only its provider understands. It goes back to the route it came from, or nowhere."""

    kind: str
    state: Json
    route: str


class Image(Value, frozen=True, tag="image"):
    """A picture, by reference. `state` is what the provider that made it wants back, and only goes to its route."""

    ref: AttachmentRef
    state: Json = None
    route: str = ""


class File(Value, frozen=True, tag="file"):
    """A document, by reference. `state` is what the provider that made it wants back, and only goes to its route."""

    ref: AttachmentRef
    state: Json = None
    route: str = ""


class ToolCall(Value, frozen=True, tag="tool_call"):
    """The model asks for a tool. `id` is ours; the provider's own id is kept for the wire only.

    `malformed` holds the argument text when it was not a JSON object; such a call is answered, never run. `state` is
    what the provider wants back with the call, and only goes to the route it came from.
    """

    id: CallId
    name: str
    args: Json
    provider_id: str = ""
    malformed: str | None = None
    state: Json = None
    route: str = ""


class ToolResult(Value, frozen=True, tag="tool_result"):
    """What the model is told about one call."""

    call: CallId
    name: str
    output: Json
    is_error: bool = False
    provider_id: str = ""


InputPart: TypeAlias = Text | Image | File
ReplyPart: TypeAlias = Text | Thinking | ToolCall | Image | File | Opaque
Part: TypeAlias = Text | Thinking | Image | File | ToolCall | ToolResult | Opaque
Role = Literal["system", "user", "assistant", "tool"]


class Message(Value, frozen=True):
    """One entry of what a model is shown."""

    role: Role
    parts: tuple[Part, ...]


FinishReason = Literal["stop", "tool_calls", "length", "refusal", "content_filter"]


class Reply(Value, frozen=True):
    """One complete answer of a model; or, if `partial` says why, what there was of one that broke off."""

    parts: tuple[ReplyPart, ...]
    finish: FinishReason = "stop"
    usage: Usage = Usage()
    model: str = ""
    partial: str = ""

    @property
    def text(self) -> str:
        """The visible text, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def answer(self) -> str:
        """The text without what was said beside it."""
        return "".join(part.text for part in self.parts if isinstance(part, Text) and not part.aside)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls, in the order the model made them."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))
