"""Keys of promises: bearer capabilities. Whoever has one may answer, and nobody can make one up.

Laws: the same scope and wait give the same key; a key that was changed in any part is not a key; signatures are
compared in constant time and never written to a log.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from perdure.codec import canonical, digest
from perdure.errors import Error
from perdure.ids import PromiseId, SessionId, StreamId, Tenant, TurnId, join, process_stream, session_stream, split
from perdure.vocab.promises import AwaitEventKey, WaitIdentity, unknown_key

SECRET = "promises"
"""The name under which a store keeps the secret that keys are signed with."""


@dataclass(frozen=True, slots=True)
class TurnScope:
    """Where the promises of one turn live."""

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
        """The inverse of `id`.

        Raises:
            Error: `await_event_unknown_or_revoked` for what is not the scope of a turn.
        """
        match split(scope):
            case [tenant, session, turn]:
                return TurnScope(Tenant(tenant), SessionId(session), TurnId(turn))
            case _:
                raise unknown_key()


@dataclass(frozen=True, slots=True)
class ProcessScope:
    """Where the promises of one process live."""

    tenant: Tenant
    process: str

    @property
    def id(self) -> str:
        """The scope as text; no turn has one of four parts."""
        return join(self.tenant, "", "process", self.process)

    @property
    def stream(self) -> StreamId:
        """The process's stream."""
        return process_stream(self.tenant, self.process)


def scope_of(scope: str) -> TurnScope | ProcessScope:
    """Whose scope it is.

    Raises:
        Error: `await_event_unknown_or_revoked` for what is nobody's.
    """
    match split(scope):
        case [tenant, "", "process", process]:
            return ProcessScope(Tenant(tenant), process)
        case _:
            return TurnScope.parse(scope)


def promise_id(scope: str, wait: WaitIdentity) -> PromiseId:
    """The promise that a wait in a scope is about."""
    return PromiseId(digest((scope, wait)))


def revocation_id(scope: str) -> PromiseId:
    """The promise that is answered once the keys of a scope were revoked. No wait has this id."""
    return PromiseId(digest((scope, "revoked")))


def unsigned_key(scope: str, wait: WaitIdentity) -> AwaitEventKey:
    """A key as logs may show it."""
    return AwaitEventKey(scope=scope, wait=wait, key_id=promise_id(scope, wait))


def signed_key(secret: bytes, scope: str, wait: WaitIdentity) -> AwaitEventKey:
    """A key as it is given to whoever shall answer."""
    key = unsigned_key(scope, wait)
    return AwaitEventKey(scope=scope, wait=wait, key_id=key.key_id, signature=_signature(secret, key))


def check_key(secret: bytes, key: AwaitEventKey) -> None:
    """Refuse a key that this store has not signed.

    Raises:
        Error: `await_event_unknown_or_revoked`, whatever is wrong with it.
    """
    try:
        expected = signed_key(secret, key.scope, key.wait)
        given = key.signature.encode("utf-8", "replace")
    except (Error, TypeError, ValueError, AttributeError):  # no key of ours could be written like that
        raise unknown_key() from None
    ours = hmac.compare_digest(expected.signature.encode(), given)
    if not (ours and expected.key_id == key.key_id):
        raise unknown_key()


def _signature(secret: bytes, key: AwaitEventKey) -> str:
    return hmac.new(secret, canonical((key.scope, key.wait, key.key_id)), hashlib.sha256).hexdigest()
