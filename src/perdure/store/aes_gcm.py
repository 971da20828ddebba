"""AES-256-GCM payload codec with named keys, which allow rotation."""

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


class AesGcmCodec:
    """An AES-256-GCM codec: `Runtime(payload_codec=AesGcmCodec({"2026-11": key}))`.

    `keys` maps freely chosen names to keys of 32 bytes. New payloads use the key named `use`, by default the last one.
    Each payload contains the name of its key. To rotate, add a key and keep the old ones while payloads need them.

    A separate key derives the nonce from the payload and its position, so a repeated write gives the same bytes. An
    attacker can only see that two payloads of one position are equal. Plain payloads are refused unless `accept_plain`
    is set, for a store that was used without encryption before.

    Raises:
        Error: `invalid_argument` for invalid keys.
    """

    def __init__(self, keys: Mapping[str, bytes], *, use: str | None = None, accept_plain: bool = False) -> None:
        self.accept_plain = accept_plain
        if not keys:
            raise Error(
                Code.INVALID_ARGUMENT, "AesGcmCodec needs a key", hint='AesGcmCodec({"2026-11": AesGcmCodec.new_key()})'
            )
        for name, key in keys.items():
            _check(name, key)
        self._use = list(keys)[-1] if use is None else use
        if self._use not in keys:
            raise Error(Code.INVALID_ARGUMENT, f"unknown key {self._use!r}", because=f"the keys are: {', '.join(keys)}")
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._ciphers: dict[str, AESGCM] = {name: AESGCM(_derived(key, b"payload")) for name, key in keys.items()}
        self._nonce_key = _derived(keys[self._use], b"nonce")

    @staticmethod
    def new_key() -> bytes:
        """Return a new random key. Store it in a secret manager: payloads cannot be read without it."""
        return os.urandom(KEY_BYTES)

    def encode(self, data: bytes, context: bytes) -> bytes:
        """Encrypt a payload; the result contains the name of the key."""
        name = self._use.encode()
        mac = hmac.new(self._nonce_key, len(context).to_bytes(8, "big") + context + data, hashlib.sha256)
        nonce = mac.digest()[:_NONCE_BYTES]
        return bytes([len(name)]) + name + nonce + self._ciphers[self._use].encrypt(nonce, data, context)

    def decode(self, data: bytes, context: bytes) -> bytes:
        """Decrypt a payload with the key that it names.

        Raises:
            Error: `codec_failed` for an unknown key, and for bytes that were changed or moved.
        """
        from cryptography.exceptions import InvalidTag

        end = 1 + (data[0] if data else 0)
        name = data[1:end].decode(errors="replace")
        cipher = self._ciphers.get(name)
        if cipher is None:
            raise Error(Code.CODEC_FAILED, "the payload cannot be read", because=f"the payload needs the key {name!r}")
        nonce, encrypted = data[end : end + _NONCE_BYTES], data[end + _NONCE_BYTES :]
        try:
            return cipher.decrypt(nonce, encrypted, context)
        except (InvalidTag, ValueError):
            because = f"the key {name!r} differs from the one used for writing, or the payload was changed"
            raise Error(Code.CODEC_FAILED, "the payload cannot be read", because=because) from None

    def __repr__(self) -> str:
        return f"AesGcmCodec(keys={list(self._ciphers)}, use={self._use!r})"


def _check(name: object, key: object) -> None:
    if not isinstance(name, str) or not 1 <= len(name.encode(errors="replace")) <= 100:
        raise Error(Code.INVALID_ARGUMENT, f"{name!r} is not a valid key name", because="a name has 1 to 100 bytes")
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        raise Error(
            Code.INVALID_ARGUMENT,
            f"the key {name!r} is not valid",
            because=f"a key must have {KEY_BYTES} bytes",
            hint="AesGcmCodec.new_key()",
        )


def _derived(key: bytes, purpose: bytes) -> bytes:
    return hmac.new(key, b"perdure " + purpose, hashlib.sha256).digest()
