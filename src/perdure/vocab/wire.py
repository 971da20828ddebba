"""Base of all stored and sent values: frozen, keyword-only, defaults omitted from the JSON."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from perdure.codec import SEALED, undecodable
from perdure.errors import Code, Error

T = TypeVar("T")

HIDDEN = "[secret]"
"""The replacement for the value of a secret."""


class Value(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """Base of every stored or sent value. Plain data has no cycles, so garbage collection skips it."""


def read_stored(decoder: msgspec.json.Decoder[T], data: bytes, *, what: str) -> T:
    """Decode bytes that any version of Perdure stored.

    Raises:
        Error: `format_newer` for a shape unknown to this version, `store_corrupt` for bytes that are not JSON.
    """
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as problem:
        raise unknown_shape(what, str(problem)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        if data.startswith(SEALED):
            raise undecodable(what) from None
        raise Error(Code.STORE_CORRUPT, f"a stored {what} is damaged", because=str(problem)) from None


def unknown_shape(what: str, because: str) -> Error:
    """Return the error for a shape that a later version wrote."""
    return Error(
        Code.FORMAT_NEWER,
        f"a stored {what} has a shape this version does not know",
        because=because,
        hint="open the store with the version that wrote it, or a later one",
    )
