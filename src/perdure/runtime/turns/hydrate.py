"""Loading of attachment bytes for a model request, newest first and up to a size limit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from perdure.ids import BlobHash
from perdure.vocab.messages import AttachmentRef, File, ImagePart, Message, Part, Text

MAX_SHOWN_BYTES = 33_554_432
"""Most bytes of attachments in one model request. Older attachments are only named."""

_ATTACHMENTS = (ImagePart, File)

Fetch = Callable[[AttachmentRef], Awaitable[bytes]]


async def hydrated(
    messages: tuple[Message, ...], fetch: Fetch, *, limit_bytes: int = MAX_SHOWN_BYTES
) -> tuple[tuple[Message, ...], dict[BlobHash, bytes]]:
    """Return the messages with their attachments loaded, and the bytes by hash.

    Attachments beyond the limit are replaced by a short text, oldest first.

    Raises:
        Error: `blob_unknown` or `codec_failed` if bytes cannot be read.
    """
    shown: dict[BlobHash, bytes] = {}
    left = limit_bytes
    changed: list[Message] = []
    for message in reversed(messages):
        if not any(isinstance(part, _ATTACHMENTS) for part in message.parts):
            changed.append(message)
            continue
        parts: list[Part] = []
        for part in reversed(message.parts):
            if not isinstance(part, ImagePart | File) or part.ref.hash in shown:
                parts.append(part)
            elif left > 0 and len(data := await fetch(part.ref)) <= left:
                shown[part.ref.hash] = data
                left -= len(data)
                parts.append(part)
            else:
                left = 0  # everything older is left out too, so that the model sees no gap
                parts.append(_named(part))
        changed.append(Message(role=message.role, parts=tuple(reversed(parts))))
    return tuple(reversed(changed)), shown


def _named(part: ImagePart | File) -> Text:
    ref = part.ref
    name = f" {ref.name}" if ref.name else ""
    return Text(text=f"[an earlier attachment{name}, {ref.media_type}, {ref.size} bytes, is not shown any more]")
