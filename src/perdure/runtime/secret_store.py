"""Secrets in the store: each encrypted in one promise that belongs to its session and is deleted with it.

A reference is an HMAC of the value under a key of the store. The same answer to the same question gives the same
reference, which reveals nothing about the value without the key. Numbered promises list the references of a session, so
that a worker that takes over reads all values before it writes.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from contextlib import suppress
from dataclasses import dataclass

from perdure.codec import canonical
from perdure.errors import Code, Error
from perdure.ids import PromiseId, StreamId, stream_names
from perdure.runtime.audit import Actor, AuditLog, act
from perdure.runtime.shared import Secrets
from perdure.services.secrets import LISTED, REFERENCE, Redactor, Secret, SeenSecrets
from perdure.store.aes_gcm import AesGcmCodec
from perdure.store.protocol import Store
from perdure.tools.errors import ToolError
from perdure.vocab.promises import Ok, PromiseState

KEY = "secrets"
"""The name under which a store keeps the key that encrypts secrets."""

MAX_SECRETS = 100
"""Maximum number of secrets of one session."""


@dataclass(frozen=True, slots=True)
class StoredSecrets:
    """The secrets of one session, in its store."""

    store: Store
    keys: Secrets
    stream: StreamId
    redactor: Redactor
    audit: AuditLog

    async def reference(self, call: str, question: str, value: str) -> str:
        """Return the reference of an answer, which need not be stored."""
        key = await self.keys.get(KEY, stream_names(self.stream)[0])
        named = canonical([self.stream, call, question, value])
        return REFERENCE + hmac.new(key, b"reference" + named, hashlib.sha256).hexdigest()[:32]

    async def put(self, call: str, question: str, value: str) -> str:
        """Store the answer to a question, and return its reference. Durable when this returns.

        Raises:
            Error: `session_unknown`, `input_too_large`.
        """
        key = await self.keys.get(KEY, stream_names(self.stream)[0])
        reference = await self.reference(call, question, value)
        listed = await self._listed()
        if len(listed) >= MAX_SECRETS and reference not in listed:
            raise Error(
                Code.INPUT_TOO_LARGE,
                "the session has too many secrets; nothing was written",
                because=f"the limit is {MAX_SECRETS} secrets of one session",
                hint="delete the session and use a new one",
            )
        self.redactor.add(value)
        encrypted = _cipher(key).encode(value.encode(), _context(self.stream, reference))
        kept = Ok(value=b64encode(encrypted).decode())
        await self.store.promise(PromiseState(id=PromiseId(reference), stream=self.stream, resolution=kept))
        while reference not in listed:
            entry = PromiseState(
                id=_listed(self.stream, len(listed) + 1), stream=self.stream, resolution=Ok(value=reference)
            )
            await self.store.promise(entry)  # another process may have taken the number
            listed = await self._listed()
        return reference

    async def get(self, reference: str) -> Secret:
        """Return the secret behind a reference of this session, after its audit entry is durable. From now on, tool
        output hides its value."""
        known = isinstance(reference, str) and reference.startswith(REFERENCE)  # pyright: ignore[reportUnnecessaryIsInstance] - a model may send any type
        try:
            value = await _value(self.store, self.keys, self.stream, reference) if known else None
        except (Error, ValueError):
            raise ToolError("The secret cannot be read: it was kept with another key", code="secret_unknown") from None
        if value is None:
            raise ToolError("This session has no such secret. Use a reference as it was given", code="secret_unknown")
        self.redactor.add(value)
        tenant, _, session = stream_names(self.stream)
        await self.audit.record(tenant, act("secret_read", Actor(via="tool"), session=session, target=reference))
        return Secret(value)

    async def _listed(self) -> tuple[str, ...]:
        return await hide_stored(self.store, self.keys, self.stream, self.redactor.seen)


async def hide_stored(store: Store, keys: Secrets, stream: StreamId, seen: SeenSecrets) -> tuple[str, ...]:
    """Hide the stored secrets of a session in all that this process writes for it, and return their references.

    A process that takes over the session, or other work of it, has not read or received its secrets. The cost is one
    read, and one or two for each secret.
    """
    found: list[str] = []
    while (entry := await store.peek(_listed(stream, len(found) + 1))) is not None:
        found.append(str(entry.resolution.value) if isinstance(entry.resolution, Ok) else "")
        if found[-1] not in seen.references.get(stream, ()):
            with suppress(Error, ValueError):  # kept with another key, so that no tool can read it
                seen.add(stream, await _value(store, keys, stream, found[-1]) or "")
            seen.references[stream] = (*seen.references.get(stream, ()), found[-1])
    return tuple(found)


async def _value(store: Store, keys: Secrets, stream: StreamId, reference: str) -> str | None:
    """Return a stored value, or None if the session has no such secret.

    Raises:
        Error, ValueError: the value was stored with another key.
    """
    state = await store.peek(PromiseId(reference))
    match state.resolution if state is not None and state.stream == stream else None:
        case Ok(value=str(encrypted)):
            cipher = _cipher(await keys.get(KEY, stream_names(stream)[0]))
            return cipher.decode(b64decode(encrypted), _context(stream, reference)).decode()
        case _:
            return None


def _listed(stream: StreamId, number: int) -> PromiseId:
    return PromiseId(f"{LISTED}{number}:{stream}")


def _context(stream: StreamId, reference: str) -> bytes:
    return f"{stream}\n{reference}".encode()


def _cipher(key: bytes) -> AesGcmCodec:
    return AesGcmCodec({"store": key})
