"""Content-addressed bytes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from perdure.ids import BlobHash


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes that a stream refers to."""

    hash: BlobHash
    media_type: str
    data: bytes


def blob_of(value: bytes, media_type: str) -> Blob:
    """Return bytes as a blob named by their sha256."""
    return Blob(hash=BlobHash(hashlib.sha256(value).hexdigest()), media_type=media_type, data=value)
