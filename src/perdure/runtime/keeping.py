"""Keeping secrets in the store: encrypted, one promise for each, which belongs to its session and goes with it.

A reference is derived from the value with a key of the store, so the same answer given twice is one secret, and says
nothing about the value to whoever has not that key.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from dataclasses import dataclass

from perdure.codec import canonical
from perdure.errors import Error
from perdure.ids import PromiseId, StreamId
from perdure.runtime.shared import Secrets
from perdure.services.secrets import REFERENCE, Secret, Veil
from perdure.store.aes_gcm import AesGcm
from perdure.store.protocol import Store
from perdure.tools.errors import ToolError
from perdure.vocab.promises import Ok, PromiseState

KEY = "secrets"
"""The name under which a store keeps the key that secrets are encrypted with."""


@dataclass(frozen=True, slots=True)
class KeptSecrets:
    """The secrets of one session, in its store."""

    store: Store
    keys: Secrets
    stream: StreamId
    veil: Veil

    async def put(self, call: str, question: str, value: str) -> str:
        """Keep the answer to a question: its reference. Durable when this returns.

        Raises:
            Error: `session_unknown`.
        """
        key = await self.keys.get(KEY)
        self.veil.add(value)
        named = canonical([self.stream, call, question, value])
        reference = REFERENCE + hmac.new(key, b"reference" + named, hashlib.sha256).hexdigest()[:32]
        sealed = _cipher(key).encode(value.encode(), self._context(reference))
        kept = Ok(value=b64encode(sealed).decode())
        await self.store.promise(PromiseState(id=PromiseId(reference), stream=self.stream, resolution=kept))
        return reference

    async def get(self, reference: str) -> Secret:
        """The secret that a reference of this session stands for; from now on, it is hidden in what tools say."""
        known = isinstance(reference, str) and reference.startswith(REFERENCE)  # pyright: ignore[reportUnnecessaryIsInstance] - whatever a model says
        state = await self.store.peek(PromiseId(reference)) if known else None
        match state.resolution if state is not None and state.stream == self.stream else None:
            case Ok(value=str(sealed)):
                cipher = _cipher(await self.keys.get(KEY))
            case _:
                raise ToolError(
                    "This session has no such secret. Use a reference as it was given", code="secret_unknown"
                )
        try:
            value = cipher.decode(b64decode(sealed), self._context(reference)).decode()
        except (Error, ValueError):
            raise ToolError("The secret cannot be read: it was kept with another key", code="secret_unknown") from None
        self.veil.add(value)
        return Secret(value)

    def _context(self, reference: str) -> bytes:
        return f"{self.stream}\n{reference}".encode()


def _cipher(key: bytes) -> AesGcm:
    return AesGcm({"store": key})
