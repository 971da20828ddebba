"""Input content: text, images and files, checked and converted to references."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from perdure.codec import check_text
from perdure.effects.attachments import Attachment, check_attachment_name, check_bytes, check_media_type, no_bytes
from perdure.errors import Code, Error
from perdure.ids import BlobHash
from perdure.vocab.blobs import Blob, blob_of
from perdure.vocab.messages import AttachmentRef, File, ImagePart, InputPart, Text

MAX_INPUT_BYTES = 262_144
MAX_PART_BYTES = 16_777_216
MAX_ATTACHED_BYTES = 33_554_432
MAX_PARTS = 64
MAX_REASON_BYTES = 4096

_HASH = re.compile(r"[0-9a-f]{64}")

GivenPart: TypeAlias = str | Attachment | AttachmentRef | InputPart
Content: TypeAlias = str | Sequence[GivenPart]


@dataclass(frozen=True, slots=True)
class Said:
    """The content of an input: its parts, its new bytes, and the hashes of bytes that were sent before."""

    parts: tuple[InputPart, ...]
    blobs: tuple[Blob, ...] = ()
    refers: tuple[BlobHash, ...] = ()


def checked_content(content: object) -> Said:
    """Check the content of an input.

    Raises:
        Error: `invalid_argument`, `invalid_text`, `input_too_large`, `runtime_effect_attachment_media_type` or
            `runtime_effect_attachment_missing_reference`.
    """
    if isinstance(content, str):
        return _limited([_text(content)], [])
    if not isinstance(content, list | tuple):
        raise Error(
            Code.INVALID_ARGUMENT,
            f"an input must be text or a list of parts, not {type(content).__name__}",
            hint='session.send(["Look at this", Attachment("image/png", data)])',
        )
    given = cast("Sequence[object]", content)
    if not given:
        raise Error(Code.INVALID_ARGUMENT, "empty input", because="the list has no parts")
    blobs: list[Blob] = []
    return _limited([_part(one, blobs) for one in given], blobs)


def _part(one: object, blobs: list[Blob]) -> InputPart:
    match one:
        case str(text) | Text(text=text):
            return _text(text)
        case AttachmentRef():
            return _shown(_known(one))
        case Attachment(reference=AttachmentRef() as ref):
            return _shown(_known(ref))
        case ImagePart(ref=ref) | File(ref=ref):
            return _shown(_known(ref))
        case Attachment():
            return _shown(_stored(one, blobs))
        case _:
            raise Error(
                Code.INVALID_ARGUMENT,
                f"a part must be text, an Attachment or an AttachmentRef, not {type(one).__name__}",
                hint='wrap bytes: Attachment("image/png", data)',
            )


def _text(text: object) -> Text:
    if not isinstance(text, str):
        raise Error(Code.INVALID_ARGUMENT, f"a text part must be text, not {type(text).__name__}")
    plain = check_text(text, where="the input")
    if not plain.strip():
        raise Error(Code.INVALID_ARGUMENT, "empty input", because="the text is blank")
    return Text(text=plain)


def _shown(ref: AttachmentRef) -> ImagePart | File:
    return ImagePart(ref=ref) if ref.media_type.startswith("image/") else File(ref=ref)


def _stored(given: Attachment, blobs: list[Blob]) -> AttachmentRef:
    data = given.data
    if not isinstance(data, bytes):  # pyright: ignore[reportUnnecessaryIsInstance] - any input
        raise Error(Code.INVALID_ARGUMENT, f"an attachment must be bytes, not {type(data).__name__}")
    if not data:
        raise no_bytes()
    if len(data) > MAX_PART_BYTES:
        raise _too_large(f"an attachment is {len(data)} bytes", MAX_PART_BYTES)
    check_bytes(data, given.media_type)
    blob = blob_of(data, given.media_type)
    blobs.append(blob)
    return AttachmentRef(
        hash=blob.hash, media_type=given.media_type, size=len(data), name=check_attachment_name(given.name)
    )


def _known(ref: AttachmentRef) -> AttachmentRef:
    check_media_type(ref.media_type)
    if not _HASH.fullmatch(ref.hash) or not 0 < ref.size <= MAX_PART_BYTES:
        raise Error(
            Code.INVALID_ARGUMENT,
            "invalid attachment reference",
            because="the hash is not a sha256, or the size is out of range",
            hint="take it from session.messages(), or send the bytes",
        )
    check_attachment_name(ref.name)
    return ref


def _limited(parts: list[InputPart], blobs: list[Blob]) -> Said:
    if len(parts) > MAX_PARTS:
        raise _too_large(f"the input has {len(parts)} parts", MAX_PARTS)
    texts = sum(len(part.text.encode()) for part in parts if isinstance(part, Text))
    if texts > MAX_INPUT_BYTES:
        raise _too_large(f"the input is {texts} bytes", MAX_INPUT_BYTES)
    attached = sum(part.ref.size for part in parts if not isinstance(part, Text))
    if attached > MAX_ATTACHED_BYTES:
        raise _too_large(f"the attachments of the input are {attached} bytes", MAX_ATTACHED_BYTES)
    new = {blob.hash for blob in blobs}
    refers = {part.ref.hash for part in parts if not isinstance(part, Text)} - new
    unique = {blob.hash: blob for blob in blobs}
    return Said(tuple(parts), tuple(unique.values()), tuple(sorted(refers)))


def _too_large(what: str, limit: int) -> Error:
    return Error(
        Code.INPUT_TOO_LARGE,
        what,
        because=f"the limit is {limit}",
        hint="store large content elsewhere, and give the agent a tool that reads it",
    )


def short_text(text: str, what: str) -> str:
    """Return a short text, such as a source or a reason.

    Raises:
        Error: `invalid_argument`, `invalid_text`, `input_too_large`.
    """
    plain = check_text(text, where=what)
    if "\x00" in plain:
        raise Error(Code.INVALID_TEXT, f"{what} contains a NUL character", because="some stores cannot store it")
    if len(plain.encode()) > MAX_REASON_BYTES:
        raise Error(Code.INPUT_TOO_LARGE, f"{what} is too long", because=f"the limit is {MAX_REASON_BYTES} bytes")
    return plain
