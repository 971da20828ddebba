"""Conversion of conversations to and from the format of Pydantic AI."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from perdure.ids import BlobHash, TurnId
from perdure.models.protocol import ModelReply, ModelRequest, adopt, made_files
from perdure.models.providers.incoming import answer_parts
from perdure.models.providers.outgoing import Outgoing
from perdure.vocab.blobs import Blob, blob_of
from perdure.vocab.messages import AttachmentRef, File, ImagePart, Message, Part, Text, ToolCall, ToolResultPart
from perdure.vocab.usage import Usage

if TYPE_CHECKING:
    from pydantic_ai import messages as m
    from pydantic_ai.models import Model

_SYSTEMS = {"responses": "openai", "chat": "openai", "anthropic": "anthropic", "google": "google", "bedrock": "bedrock"}


def to_pydantic_ai(
    messages: Sequence[Message], *, instructions: str = "", attachments: Mapping[BlobHash, bytes] | None = None
) -> list[m.ModelMessage]:
    """Convert a conversation: `to_pydantic_ai(await session.messages())`. Bytes of attachments are passed by hash.

    Pydantic AI's `ModelMessagesTypeAdapter` serializes the result.
    """
    request = ModelRequest("", instructions, tuple(messages), (), attachments=attachments or {})
    told = _Exporting(request, cast("Model[Any]", _Origin("")), "").messages()
    for message in told:
        if message.kind == "request":
            message.instructions = instructions or None
    return told


@dataclass(frozen=True, slots=True)
class _Origin:
    """A stand-in for the model that a reply came from."""

    system: str
    base_url: str | None = None
    model_name: str = ""


class _Exporting(Outgoing):
    """A conversion that keeps each part's provider state, under the name of its provider."""

    def _reply_parts(self, part: Part) -> Iterable[m.ModelResponsePart]:
        self._route = getattr(part, "route", "")
        wire, _, rest = self._route.partition(" ")
        if wire:
            url, _, name = rest.partition(" ")
            self._model = cast("Model[Any]", _Origin(_SYSTEMS.get(wire, wire), url, name))
        return super()._reply_parts(part)


@dataclass(slots=True)
class Imported:
    """A conversation from Pydantic AI: messages, the bytes they refer to, and the instructions."""

    messages: list[Message] = field(default_factory=list[Message])
    blobs: list[Blob] = field(default_factory=list[Blob])
    instructions: str = ""


def from_pydantic_ai(messages: Sequence[m.ModelMessage]) -> Imported:
    """Convert a conversation of Pydantic AI. Provider state is dropped, because its route is unknown."""
    imported = Imported()
    calls: dict[str, ToolCall] = {}
    for number, message in enumerate(messages):
        if message.kind == "response":
            parts = [part for one in message.parts for part in answer_parts(one, "")]
            reply = ModelReply(tuple(parts), "stop", Usage(), message.model_name or "")
            adopted = adopt(reply, turn=TurnId("imported"), iteration=number)
            imported.blobs += made_files(reply)
            calls |= {call.provider_id: call for call in adopted.calls}
            _add(imported, "assistant", [part for part in adopted.parts if _travels(part)])
        else:
            _add_request(imported, message, calls)
    return imported


def _travels(part: Part) -> bool:
    return isinstance(part, ToolCall | ImagePart | File) or (isinstance(part, Text) and bool(part.text.strip()))


def _add_request(imported: Imported, request: m.ModelRequest, calls: dict[str, ToolCall]) -> None:
    from pydantic_ai import messages as m

    imported.instructions = request.instructions or imported.instructions
    for part in request.parts:
        match part:
            case m.SystemPromptPart(content=text):
                imported.instructions = "\n\n".join(filter(None, (imported.instructions, text)))
            case m.UserPromptPart(content=content):
                said = [content] if isinstance(content, str) else content
                _add(imported, "user", [_shown(imported, one) for one in said if not isinstance(one, m.CachePoint)])
            case m.ToolReturnPart() if part.tool_call_id in calls:
                _add(imported, "tool", [_returned(part, calls[part.tool_call_id])])
            case _:
                if text := getattr(part, "content", ""):
                    _add(imported, "user", [Text(text=str(text))])


def _returned(part: m.ToolReturnPart, call: ToolCall) -> ToolResultPart:
    from pydantic_core import to_jsonable_python

    return ToolResultPart(
        call=call.id,
        name=call.name,
        output=to_jsonable_python(part.content),
        is_error=part.outcome not in ("success",),
        provider_id=call.provider_id,
    )


def _shown(imported: Imported, item: object) -> Part:
    from pydantic_ai import messages as m

    match item:
        case m.BinaryContent():
            blob = blob_of(item.data, item.media_type)
            imported.blobs.append(blob)
            ref = AttachmentRef(hash=blob.hash, media_type=item.media_type, size=len(item.data))
            return ImagePart(ref=ref) if item.media_type.startswith("image/") else File(ref=ref)
        case m.FileUrl(url=url):
            return Text(text=url)
        case m.TextContent(content=text):
            return Text(text=text)
        case _:
            return Text(text=str(item))


def _add(imported: Imported, role: Any, parts: Sequence[Part]) -> None:  # noqa: ANN401 - one of the roles
    """Add parts, merged into the last message if that has the same role."""
    if not parts:
        return
    last = imported.messages[-1] if imported.messages else None
    if last is not None and last.role == role:
        imported.messages[-1] = Message(role=role, parts=(*last.parts, *parts))
    else:
        imported.messages.append(Message(role=role, parts=tuple(parts)))
