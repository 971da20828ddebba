"""AES-256-GCM for payloads, with named keys so that they can be rotated."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from perdure.errors import Code, Error

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
_NONCE_BYTES = 12


class AesGcm:
    """A codec: `Runtime(codec=AesGcm({"2026-11": key}))`.

    The keys are 32 bytes each, by names of your own. Payloads are written with the key named `use` (the last one if it
    is left out), and each says which key it was written with: to rotate, add a key and keep the old ones for as long as
    anything written with them is to be read. The nonce is derived from the payload and its place (so the same write
    made twice gives the same bytes), with a key of its own: equal payloads of one place look equal, and nothing else
    shows. What is not encrypted is refused; `accept_plain` accepts it, for a store that has payloads from before.

    Raises:
        Error: `invalid_argument` for keys that cannot be used.
    """

    def __init__(self, keys: Mapping[str, bytes], *, use: str | None = None, accept_plain: bool = False) -> None:
        self.accept_plain = accept_plain
        if not keys:
            raise Error(Code.INVALID_ARGUMENT, "there are no keys", hint='AesGcm({"2026-11": AesGcm.new_key()})')
        for name, key in keys.items():
            _check(name, key)
        self._use = list(keys)[-1] if use is None else use
        if self._use not in keys:
            raise Error(
                Code.INVALID_ARGUMENT, f"there is no key {self._use!r}", because=f"the keys are: {', '.join(keys)}"
            )
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._ciphers: dict[str, AESGCM] = {name: AESGCM(_derived(key, b"payload")) for name, key in keys.items()}
        self._nonce_key = _derived(keys[self._use], b"nonce")

    @staticmethod
    def new_key() -> bytes:
        """A new random key. Keep it where secrets are kept, and never only here."""
        return os.urandom(KEY_BYTES)

    def encode(self, data: bytes, context: bytes) -> bytes:
        """Encrypt, and say with which key."""
        name = self._use.encode()
        mac = hmac.new(self._nonce_key, len(context).to_bytes(8, "big") + context + data, hashlib.sha256)
        nonce = mac.digest()[:_NONCE_BYTES]
        return bytes([len(name)]) + name + nonce + self._ciphers[self._use].encrypt(nonce, data, context)

    def decode(self, data: bytes, context: bytes) -> bytes:
        """Decrypt with the key that the bytes name.

        Raises:
            Error: `codec_failed` if there is no such key, or the bytes were changed or moved.
        """
        from cryptography.exceptions import InvalidTag

        end = 1 + (data[0] if data else 0)
        name = data[1:end].decode(errors="replace")
        cipher = self._ciphers.get(name)
        if cipher is None:
            raise Error(
                Code.CODEC_FAILED, "the payload cannot be read", because=f"it was written with the key {name!r}"
            )
        nonce, sealed = data[end : end + _NONCE_BYTES], data[end + _NONCE_BYTES :]
        try:
            return cipher.decrypt(nonce, sealed, context)
        except (InvalidTag, ValueError):
            because = f"the key {name!r} is another one than it was written with, or it was changed since"
            raise Error(Code.CODEC_FAILED, "the payload cannot be read", because=because) from None

    def __repr__(self) -> str:
        return f"AesGcm(keys={list(self._ciphers)}, use={self._use!r})"


def _check(name: object, key: object) -> None:
    if not isinstance(name, str) or not 1 <= len(name.encode(errors="replace")) <= 100:
        raise Error(Code.INVALID_ARGUMENT, f"{name!r} cannot be the name of a key", because="1 to 100 bytes of text")
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        raise Error(
            Code.INVALID_ARGUMENT,
            f"the key {name!r} cannot be used",
            because=f"a key is {KEY_BYTES} random bytes",
            hint="make one with AesGcm.new_key()",
        )


def _derived(key: bytes, purpose: bytes) -> bytes:
    return hmac.new(key, b"perdure " + purpose, hashlib.sha256).digest()
