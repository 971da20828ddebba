"""Messages and their parts. Bytes are always references."""

from __future__ import annotations

from typing import Literal, TypeAlias

from perdure.codec import Json
from perdure.ids import BlobHash, CallId
from perdure.vocab.usage import Usage
from perdure.vocab.wire import Value


class AttachmentRef(Value, frozen=True):
    """A reference to stored bytes, named by their content."""

    hash: BlobHash
    media_type: str
    size: int
    name: str = ""


class Citation(Value, frozen=True):
    """A source of a text: a page or a document.

    `start` and `end` are positions in the text, if known; `marker` means that they delimit a mark such as `[1]`.
    """

    url: str = ""
    title: str = ""
    document: str = ""
    excerpts: tuple[str, ...] = ()
    start: int | None = None
    end: int | None = None
    marker: bool = False


class Text(Value, frozen=True, tag="text"):
    """Plain text. An `aside` is shown, but is no part of the answer: a model's comment on its work.

    `state` is opaque data that the provider needs back; it returns only to the `route` that issued it.
    """

    text: str
    citations: tuple[Citation, ...] = ()
    state: Json = None
    route: str = ""
    aside: bool = False


class Thinking(Value, frozen=True, tag="thinking"):
    """A model's reasoning. `signature` and `state` are opaque and return only to the route that issued them."""

    text: str
    signature: str = ""
    route: str = ""
    state: Json = None


class Opaque(Value, frozen=True, tag="opaque"):
    """A part of a reply that only its provider understands. It returns only to the route that issued it."""

    kind: str
    state: Json
    route: str


class ImagePart(Value, frozen=True, tag="image"):
    """An image, by reference. `state` is the provider's opaque data and returns only to the route that issued it."""

    ref: AttachmentRef
    state: Json = None
    route: str = ""


class File(Value, frozen=True, tag="file"):
    """A document, by reference. `state` is the provider's opaque data and returns only to the route that issued it."""

    ref: AttachmentRef
    state: Json = None
    route: str = ""


class ToolCall(Value, frozen=True, tag="tool_call"):
    """A tool call by the model. `id` is Perdure's; the provider's id is kept for the wire only.

    `malformed` contains the argument text if it was not a JSON object; such a call is answered, never run. `state` is
    the provider's opaque data and returns only to the route that issued it.
    """

    id: CallId
    name: str
    args: Json
    provider_id: str = ""
    malformed: str | None = None
    state: Json = None
    route: str = ""


class ToolResultPart(Value, frozen=True, tag="tool_result"):
    """The result of one call, as told to the model."""

    call: CallId
    name: str
    output: Json
    is_error: bool = False
    provider_id: str = ""


InputPart: TypeAlias = Text | ImagePart | File
ReplyPart: TypeAlias = Text | Thinking | ToolCall | ImagePart | File | Opaque
Part: TypeAlias = Text | Thinking | ImagePart | File | ToolCall | ToolResultPart | Opaque
Role = Literal["system", "user", "assistant", "tool"]


class Message(Value, frozen=True):
    """One entry of a model view."""

    role: Role
    parts: tuple[Part, ...]


FinishReason = Literal["stop", "tool_calls", "length", "refusal", "content_filter"]


class Reply(Value, frozen=True):
    """A complete reply of a model, or the received part of an interrupted one; `partial` is then the reason."""

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
        """The visible text without asides."""
        return "".join(part.text for part in self.parts if isinstance(part, Text) and not part.aside)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls, in the model's order."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))
