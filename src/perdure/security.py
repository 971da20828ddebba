"""Encryption of payloads before they reach the store."""

from __future__ import annotations

from perdure.store.aes_gcm import AesGcmCodec
from perdure.store.encoded import PayloadCodec

__all__ = [
    "AesGcmCodec",
    "PayloadCodec",
]
