"""How every stored or sent value is shaped: frozen, keyword-only, defaults left out of the JSON."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from perdure.codec import SEALED, sealed
from perdure.errors import Code, Error

T = TypeVar("T")


class Value(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """Base of every value that is stored or sent. Plain data has no cycles, so the collector need not look at it."""


def read_stored(decoder: msgspec.json.Decoder[T], data: bytes, *, what: str) -> T:
    """Decode what some version of Perdure stored.

    Raises:
        Error: `format_newer` for a shape this version does not know, `store_corrupt` for bytes that are not JSON.
    """
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as problem:
        raise unknown_shape(what, str(problem)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        if data.startswith(SEALED):
            raise sealed(what) from None
        raise Error(Code.STORE_CORRUPT, f"a stored {what} is damaged", because=str(problem)) from None


def unknown_shape(what: str, because: str) -> Error:
    """The refusal of something that a later version wrote."""
    return Error(
        Code.FORMAT_NEWER,
        f"a stored {what} has a shape this version does not know",
        because=because,
        hint="open the store with the version that wrote it, or a later one",
    )
