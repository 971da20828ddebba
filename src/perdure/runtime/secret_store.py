"""Secrets in the store: each encrypted in one promise that belongs to its session and is deleted with it.

A reference is an HMAC of the value under a key of the store. The same answer to the same question gives the same
reference, which reveals nothing about the value without the key.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from dataclasses import dataclass

from perdure.codec import canonical
from perdure.errors import Error
from perdure.ids import PromiseId, StreamId, stream_names
from perdure.runtime.audit import Actor, AuditLog, act
from perdure.runtime.shared import Secrets
from perdure.services.secrets import REFERENCE, Redactor, Secret
from perdure.store.aes_gcm import AesGcmCodec
from perdure.store.protocol import Store
from perdure.tools.errors import ToolError
from perdure.vocab.promises import Ok, PromiseState

KEY = "secrets"
"""The name under which a store keeps the key that encrypts secrets."""


@dataclass(frozen=True, slots=True)
class StoredSecrets:
    """The secrets of one session, in its store."""

    store: Store
    keys: Secrets
    stream: StreamId
    redactor: Redactor
    audit: AuditLog

    async def put(self, call: str, question: str, value: str) -> str:
        """Store the answer to a question, and return its reference. Durable when this returns.

        Raises:
            Error: `session_unknown`.
        """
        key = await self.keys.get(KEY, stream_names(self.stream)[0])
        self.redactor.add(value)
        named = canonical([self.stream, call, question, value])
        reference = REFERENCE + hmac.new(key, b"reference" + named, hashlib.sha256).hexdigest()[:32]
        encrypted = _cipher(key).encode(value.encode(), self._context(reference))
        kept = Ok(value=b64encode(encrypted).decode())
        await self.store.promise(PromiseState(id=PromiseId(reference), stream=self.stream, resolution=kept))
        return reference

    async def get(self, reference: str) -> Secret:
        """Return the secret behind a reference of this session, after its audit entry is durable. From now on, tool
        output hides its value."""
        known = isinstance(reference, str) and reference.startswith(REFERENCE)  # pyright: ignore[reportUnnecessaryIsInstance] - a model may send any type
        state = await self.store.peek(PromiseId(reference)) if known else None
        match state.resolution if state is not None and state.stream == self.stream else None:
            case Ok(value=str(encrypted)):
                cipher = _cipher(await self.keys.get(KEY, stream_names(self.stream)[0]))
            case _:
                raise ToolError(
                    "This session has no such secret. Use a reference as it was given", code="secret_unknown"
                )
        try:
            value = cipher.decode(b64decode(encrypted), self._context(reference)).decode()
        except (Error, ValueError):
            raise ToolError("The secret cannot be read: it was kept with another key", code="secret_unknown") from None
        self.redactor.add(value)
        tenant, _, session = stream_names(self.stream)
        await self.audit.record(tenant, act("secret_read", Actor(via="tool"), session=session, target=reference))
        return Secret(value)

    def _context(self, reference: str) -> bytes:
        return f"{self.stream}\n{reference}".encode()


def _cipher(key: bytes) -> AesGcmCodec:
    return AesGcmCodec({"store": key})
