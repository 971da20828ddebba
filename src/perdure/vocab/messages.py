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


class Text(Value, frozen=True, tag="text"):
    """Plain text."""

    text: str


class Thinking(Value, frozen=True, tag="thinking"):
    """A model's reasoning. `signature` is opaque and only goes back to the route it came from."""

    text: str
    signature: str = ""
    route: str = ""


class Image(Value, frozen=True, tag="image"):
    """A picture, by reference."""

    ref: AttachmentRef


class File(Value, frozen=True, tag="file"):
    """A document, by reference."""

    ref: AttachmentRef


class ToolCall(Value, frozen=True, tag="tool_call"):
    """The model asks for a tool. `id` is ours; the provider's own id is kept for the wire only.

    `malformed` holds the argument text when it was not a JSON object; such a call is answered, never run.
    """

    id: CallId
    name: str
    args: Json
    provider_id: str = ""
    malformed: str | None = None


class ToolResult(Value, frozen=True, tag="tool_result"):
    """What the model is told about one call."""

    call: CallId
    name: str
    output: Json
    is_error: bool = False
    provider_id: str = ""


InputPart: TypeAlias = Text | Image | File
ReplyPart: TypeAlias = Text | Thinking | ToolCall
Part: TypeAlias = Text | Thinking | Image | File | ToolCall | ToolResult
Role = Literal["system", "user", "assistant", "tool"]


class Message(Value, frozen=True):
    """One entry of what a model is shown."""

    role: Role
    parts: tuple[Part, ...]


FinishReason = Literal["stop", "tool_calls", "length", "refusal", "content_filter"]


class Reply(Value, frozen=True):
    """One complete answer of a model."""

    parts: tuple[ReplyPart, ...]
    finish: FinishReason = "stop"
    usage: Usage = Usage()
    model: str = ""

    @property
    def text(self) -> str:
        """The visible text, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls, in the order the model made them."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))
