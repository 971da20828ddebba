"""Attachments become references before an effect is described."""

from __future__ import annotations

import hashlib

import pytest

from perdure.codec import encode
from perdure.effects.attachments import MEDIA_TYPES, Attachment, normalise
from perdure.errors import Code, Error
from perdure.ids import BlobHash
from perdure.vocab.effects import LlmCall, LlmRequestSpec
from perdure.vocab.messages import AttachmentRef


class Shelf:
    """Keeps bytes and remembers in which order they came."""

    def __init__(self, *, broken: bool = False) -> None:
        self.kept: list[bytes] = []
        self.broken = broken

    async def put(self, data: bytes, media_type: str) -> AttachmentRef:
        if self.broken:
            raise OSError("disk full")
        self.kept.append(data)
        return AttachmentRef(hash=BlobHash(hashlib.sha256(data).hexdigest()), media_type=media_type, size=len(data))


STORED = AttachmentRef(hash=BlobHash("h1"), media_type="application/x-anything", size=9)


async def test_references_pass_through_and_bytes_are_stored_in_order() -> None:
    shelf = Shelf()
    given = [
        Attachment(media_type="image/png", data=b"first"),
        Attachment(reference=STORED),
        Attachment(media_type="text/csv", data=b"second"),
    ]
    references = await normalise(given, shelf)
    assert [(ref.media_type, ref.size) for ref in references] == [
        ("image/png", 5),
        ("application/x-anything", 9),
        ("text/csv", 6),
    ]
    assert references[1] is STORED
    assert shelf.kept == [b"first", b"second"]


async def test_no_attachments_are_no_references() -> None:
    assert await normalise([], Shelf(broken=True)) == ()


async def test_a_reference_wins_over_bytes_and_nothing_is_stored_again() -> None:
    shelf = Shelf()
    assert await normalise([Attachment(media_type="image/png", data=b"x", reference=STORED)], shelf) == (STORED,)
    assert shelf.kept == []


async def test_neither_reference_nor_bytes_is_refused() -> None:
    with pytest.raises(Error) as caught:
        await normalise([Attachment(media_type="image/png")], Shelf())
    assert caught.value.code is Code.RUNTIME_EFFECT_ATTACHMENT_MISSING_REFERENCE


@pytest.mark.parametrize("media_type", ["", "image/x-unknown", "IMAGE/PNG", "text/plain; charset=utf-8"])
async def test_a_media_type_that_cannot_be_stored_is_refused_by_name(media_type: str) -> None:
    shelf = Shelf()
    with pytest.raises(Error) as caught:
        await normalise([Attachment(media_type=media_type, data=b"x")], shelf)
    assert caught.value.code is Code.RUNTIME_EFFECT_ATTACHMENT_MEDIA_TYPE
    assert repr(media_type) in caught.value.message
    assert shelf.kept == []


@pytest.mark.parametrize("media_type", sorted(MEDIA_TYPES))
async def test_every_known_media_type_is_stored(media_type: str) -> None:
    (reference,) = await normalise([Attachment(media_type=media_type, data=b"x")], Shelf())
    assert reference.media_type == media_type


async def test_a_store_that_fails_is_told_with_its_reason() -> None:
    with pytest.raises(Error) as caught:
        await normalise([Attachment(media_type="image/png", data=b"x")], Shelf(broken=True))
    assert caught.value.code is Code.RUNTIME_EFFECT_ATTACHMENT_STORE
    assert caught.value.because == "disk full"
    assert isinstance(caught.value.__cause__, OSError)


async def test_bytes_never_enter_the_description_of_an_effect() -> None:
    secret = b"PIXELS" * 100
    references = await normalise([Attachment(media_type="image/png", data=secret)], Shelf())
    described = encode(LlmCall(request=LlmRequestSpec(model="sim:x", attachments=references)))
    assert b"PIXELS" not in described
    assert len(described) < 250
