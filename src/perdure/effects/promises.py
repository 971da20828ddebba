"""Keys of promises: signed bearer capabilities that cannot be forged.

Laws: the same scope and wait give the same key. A key changed in any part is invalid. Signatures are compared in
constant time and never logged.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from perdure.codec import canonical, digest
from perdure.errors import Error
from perdure.ids import PromiseId, SessionId, StreamId, Tenant, TurnId, join, process_stream, session_stream, split
from perdure.vocab.promises import EventKey, WaitIdentity, unknown_key

SECRET = "promises"
"""The name under which a store keeps the signing secret of keys."""


@dataclass(frozen=True, slots=True)
class TurnScope:
    """The scope of one turn's promises."""

    tenant: Tenant
    session: SessionId
    turn: TurnId

    @property
    def id(self) -> str:
        """The scope as text, for keys."""
        return join(self.tenant, self.session, self.turn)

    @property
    def stream(self) -> StreamId:
        """The session's stream."""
        return session_stream(self.tenant, self.session)

    @staticmethod
    def parse(scope: str) -> TurnScope:
        """Parse the id of a turn scope.

        Raises:
            Error: `event_key_invalid` for anything else.
        """
        match split(scope):
            case [tenant, session, turn]:
                return TurnScope(Tenant(tenant), SessionId(session), TurnId(turn))
            case _:
                raise unknown_key()


@dataclass(frozen=True, slots=True)
class ProcessScope:
    """The scope of one process's promises."""

    tenant: Tenant
    process: str

    @property
    def id(self) -> str:
        """The scope as text. It has four parts, and that of a turn has three."""
        return join(self.tenant, "", "process", self.process)

    @property
    def stream(self) -> StreamId:
        """The process's stream."""
        return process_stream(self.tenant, self.process)


def scope_of(scope: str) -> TurnScope | ProcessScope:
    """Parse the id of a scope.

    Raises:
        Error: `event_key_invalid` for anything else.
    """
    match split(scope):
        case [tenant, "", "process", process]:
            return ProcessScope(Tenant(tenant), process)
        case _:
            return TurnScope.parse(scope)


def promise_id(scope: str, wait: WaitIdentity) -> PromiseId:
    """Return the id of the promise for a wait in a scope."""
    return PromiseId(digest((scope, wait)))


def revocation_id(scope: str) -> PromiseId:
    """Return the id of the promise that is resolved when the keys of a scope are revoked. No wait has this id."""
    return PromiseId(digest((scope, "revoked")))


def unsigned_key(scope: str, wait: WaitIdentity) -> EventKey:
    """Return a key without signature, safe to log."""
    return EventKey(scope=scope, wait=wait, key_id=promise_id(scope, wait))


def signed_key(secret: bytes, scope: str, wait: WaitIdentity) -> EventKey:
    """Return a key with signature, for the resolver."""
    key = unsigned_key(scope, wait)
    return EventKey(scope=scope, wait=wait, key_id=key.key_id, signature=_signature(secret, key))


def check_key(secret: bytes, key: EventKey) -> None:
    """Raise if this store did not sign the key.

    Raises:
        Error: `event_key_invalid`, for any defect.
    """
    try:
        expected = signed_key(secret, key.scope, key.wait)
        given = key.signature.encode("utf-8", "replace")
    except (Error, TypeError, ValueError, AttributeError):  # a malformed key cannot be signed
        raise unknown_key() from None
    ours = hmac.compare_digest(expected.signature.encode(), given)
    if not (ours and expected.key_id == key.key_id):
        raise unknown_key()


def _signature(secret: bytes, key: EventKey) -> str:
    return hmac.new(secret, canonical((key.scope, key.wait, key.key_id)), hashlib.sha256).hexdigest()
