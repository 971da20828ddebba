"""Attachments become references before an effect is described: bytes never enter a journal row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from perdure.errors import Code, Error
from perdure.vocab.messages import AttachmentRef

MEDIA_TYPES = frozenset(
    {
        "image/png",
        "image/jpeg",
        "image/gif",
        "image/webp",
        "application/pdf",
        "application/json",
        "text/plain",
        "text/markdown",
        "text/csv",
        "text/html",
    }
)


@dataclass(frozen=True, slots=True)
class Attachment:
    """Something to show a model: stored already, or bytes still in hand."""

    media_type: str = ""
    data: bytes = b""
    reference: AttachmentRef | None = None


class AttachmentStore(Protocol):
    """Whoever keeps bytes."""

    async def put(self, data: bytes, media_type: str) -> AttachmentRef:
        """Store bytes and say under which reference."""
        ...


async def normalise(attachments: Sequence[Attachment], store: AttachmentStore) -> tuple[AttachmentRef, ...]:
    """References for all attachments, in their order; inline bytes are stored first.

    Raises:
        Error: `runtime_effect_attachment_missing_reference`, `runtime_effect_attachment_media_type` or
            `runtime_effect_attachment_store`.
    """
    return tuple([await _reference(attachment, store) for attachment in attachments])


async def _reference(attachment: Attachment, store: AttachmentStore) -> AttachmentRef:
    if attachment.reference is not None:
        return attachment.reference
    if not attachment.data:
        raise Error(
            Code.RUNTIME_EFFECT_ATTACHMENT_MISSING_REFERENCE, "an attachment has neither a reference nor any bytes"
        )
    if attachment.media_type not in MEDIA_TYPES:
        raise Error(
            Code.RUNTIME_EFFECT_ATTACHMENT_MEDIA_TYPE,
            f"the media type {attachment.media_type!r} cannot be stored as an attachment",
            hint=f"one of {', '.join(sorted(MEDIA_TYPES))}",
        )
    try:
        return await store.put(attachment.data, attachment.media_type)
    except Exception as problem:
        raise Error(
            Code.RUNTIME_EFFECT_ATTACHMENT_STORE,
            "an attachment could not be stored before the effect",
            because=str(problem),
        ) from problem
