"""Conversion of attachments to references before an effect is described. Bytes never enter a journal row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from perdure.codec import check_text
from perdure.errors import Code, Error
from perdure.vocab.messages import AttachmentRef

MAX_NAME_BYTES = 255

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
    """An attachment for a model: inline bytes, or a reference to stored ones."""

    media_type: str = ""
    data: bytes = field(default=b"", repr=False)
    name: str = ""
    reference: AttachmentRef | None = None


class AttachmentStore(Protocol):
    """A store of attachment bytes."""

    async def put(self, data: bytes, media_type: str) -> AttachmentRef:
        """Store bytes and return their reference."""
        ...


async def normalise(attachments: Sequence[Attachment], store: AttachmentStore) -> tuple[AttachmentRef, ...]:
    """Return references for all attachments, in order; inline bytes are stored first.

    Raises:
        Error: `runtime_effect_attachment_missing_reference`, `runtime_effect_attachment_media_type` or
            `runtime_effect_attachment_store`.
    """
    return tuple([await _reference(attachment, store) for attachment in attachments])


async def _reference(attachment: Attachment, store: AttachmentStore) -> AttachmentRef:
    if attachment.reference is not None:
        return attachment.reference
    if not attachment.data:
        raise no_bytes()
    check_media_type(attachment.media_type)
    try:
        return await store.put(attachment.data, attachment.media_type)
    except Exception as problem:
        raise Error(
            Code.RUNTIME_EFFECT_ATTACHMENT_STORE,
            "an attachment could not be stored before the effect",
            because=str(problem),
        ) from problem


def check_media_type(media_type: str) -> None:
    """Raise if no model accepts the media type.

    Raises:
        Error: `runtime_effect_attachment_media_type`.
    """
    if media_type not in MEDIA_TYPES:
        raise Error(
            Code.RUNTIME_EFFECT_ATTACHMENT_MEDIA_TYPE,
            f"the media type {media_type!r} cannot be stored as an attachment",
            hint=f"one of {', '.join(sorted(MEDIA_TYPES))}",
        )


_BEGINNINGS = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
    "application/pdf": (b"%PDF-",),
}


def check_bytes(data: bytes, media_type: str) -> None:
    """Raise if the bytes contradict their media type. A provider would refuse them later, and the turn would fail.

    Raises:
        Error: `runtime_effect_attachment_media_type`.
    """
    check_media_type(media_type)
    beginnings = _BEGINNINGS.get(media_type)
    if beginnings is None:
        try:
            data.decode()
        except UnicodeDecodeError as problem:
            raise _not_what_it_says(media_type, f"byte {problem.start} is not UTF-8") from None
    elif not data.startswith(beginnings) or (media_type == "image/webp" and data[8:12] != b"WEBP"):
        raise _not_what_it_says(media_type, "they lack the signature of that format")


def _not_what_it_says(media_type: str, because: str) -> Error:
    return Error(
        Code.RUNTIME_EFFECT_ATTACHMENT_MEDIA_TYPE,
        f"the bytes are not {media_type}",
        because=because,
        hint="pass the media type of the bytes",
    )


def check_attachment_name(name: object) -> str:
    """Return the name of an attachment if it is valid: one line, at most 255 bytes.

    Raises:
        Error: `invalid_argument` or `invalid_text`.
    """
    if not isinstance(name, str):
        raise Error(Code.INVALID_ARGUMENT, f"the name of an attachment must be text, not {type(name).__name__}")
    name = check_text(name, where="the name of an attachment")
    if len(name.encode()) > MAX_NAME_BYTES or any(ord(c) < 32 or 127 <= ord(c) < 160 for c in name):
        raise Error(
            Code.INVALID_ARGUMENT,
            "invalid attachment name",
            because=f"the name is longer than {MAX_NAME_BYTES} bytes, or contains a control character",
        )
    return name


def no_bytes() -> Error:
    """Return the error for an attachment without reference and bytes."""
    return Error(
        Code.RUNTIME_EFFECT_ATTACHMENT_MISSING_REFERENCE, "an attachment has neither a reference nor any bytes"
    )
