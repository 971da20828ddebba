"""Mapping of database driver errors to Perdure errors."""

from __future__ import annotations

import ssl

from perdure.errors import Code, Error
from perdure.store.postgres.driver import InterfaceError, InternalClientError, PostgresError, is_unfit

RECONNECT_TIMEOUT_S = 30.0

_LOST_STATES = {"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"}
"""SQL states of a server that stops, has crashed, is starting, or has ended an idle session."""
_CONTENDED_STATES = {"40001", "40P01", "55P03"}
_STALE_STATES = {"0A000", "26000"}
"""SQL states of a prepared statement that a migration, or a pooler missing in the URL, made invalid."""


def state_of(problem: BaseException) -> str:
    """Return the SQL state of a server error; an empty string for other errors."""
    return getattr(problem, "sqlstate", None) or ""


def is_lost(problem: BaseException) -> bool:
    """Return whether the connection is lost, so that the effect of the last statement is unknown."""
    if isinstance(problem, PostgresError):
        state = state_of(problem)
        return state in _LOST_STATES or state.startswith("08")
    broken = OSError | TimeoutError | EOFError | InterfaceError | InternalClientError
    return isinstance(problem, broken) and not is_unfit(problem)


def is_contended(problem: BaseException) -> bool:
    """Return whether a lock conflict prevented the write, so that a retry helps."""
    return state_of(problem) in _CONTENDED_STATES


def is_stale(problem: BaseException) -> bool:
    """Return whether the connection's prepared statements are invalid; nothing was written."""
    return state_of(problem) in _STALE_STATES


def is_refusal(problem: BaseException) -> bool:
    """Return whether the request caused the error: a violated constraint, or a value that the store cannot hold."""
    return is_unfit(problem) or state_of(problem)[:2] in ("22", "23")


def failure(problem: BaseException, place: str, *, connecting: bool = False) -> Error:
    """Return the public error for a driver error. `place` is the address without its password."""
    state = state_of(problem)
    for states, (code, what, hint) in _TABLE.items():
        if state in states:
            return _error(code, place, problem, what, hint)
    if isinstance(problem, ssl.SSLCertVerificationError):
        return _error(Code.STORE_UNAVAILABLE, place, problem, *_UNPROVED)
    if is_lost(problem):
        return _error(Code.STORE_UNAVAILABLE, place, problem, *(_UNREACHED if connecting else _AWAY))
    if is_unfit(problem) or state.startswith("22"):
        return _error(Code.INVALID_TEXT, place, problem, "the store cannot hold this value; nothing was written", "")
    return _error(Code.STORE_FAILED, place, problem, "the store failed", "")


def _error(code: Code, place: str, problem: BaseException, what: str, hint: str) -> Error:
    because = str(problem) or type(problem).__name__
    return Error(
        code, what, because=because, hint=hint, place=place, reason=state_of(problem) or type(problem).__name__
    )


_UNREACHED = ("the server of the store cannot be reached", "check the address, and that the server runs")
_UNPROVED = (
    "the certificate of the server could not be verified",
    "set sslrootcert=… to the authority that signed the certificate, and use the host name in the certificate",
)
_AWAY = (
    "the store does not answer; the durability of the last appends is unknown",
    "check that the server runs and can be reached; append the same plans again: receipts show which were written",
)
_TABLE: dict[tuple[str, ...], tuple[Code, str, str]] = {
    ("28P01", "28000"): (
        Code.STORE_ACCESS_DENIED,
        "the store refused the login",
        "check user and password in the address, and the access rules of the server",
    ),
    ("42501",): (
        Code.STORE_ACCESS_DENIED,
        "this user lacks a permission in the store; nothing was written",
        "let the owner of the database run `perdure db migrate`, then grant this user the permission",
    ),
    ("3D000",): (
        Code.STORE_UNAVAILABLE,
        "the database does not exist",
        "create it first, or correct the name in the address",
    ),
    ("42P01", "3F000"): (
        Code.STORE_UNAVAILABLE,
        "the tables of the store do not exist",
        "restore them from a backup, or run `perdure db migrate` for an empty store",
    ),
    ("25006",): (
        Code.STORE_READ_ONLY,
        "the store cannot be written; nothing was written",
        "connect to the primary: this is a replica, or the database is set to read-only transactions",
    ),
    ("53300",): (
        Code.STORE_CONNECTIONS_EXHAUSTED,
        "the server has no connection left for this process",
        "allow more connections, give each process a smaller `pool_size`, or put a pooler in between",
    ),
    ("53100", "53200"): (
        Code.STORE_FULL,
        "no disk space or memory left for the store; nothing was written",
        "free some disk space or memory; the store then resumes automatically",
    ),
    tuple(_CONTENDED_STATES): (
        Code.STORE_LOCKED,
        "other transactions kept the same rows locked for too long; nothing was written",
        "look for a long transaction on the tables of the store",
    ),
    ("57014",): (
        Code.STORE_LOCKED,
        "a statement took too long and was cancelled; nothing was written",
        "look for locks and slow disks, or raise `statement_timeout` in the address",
    ),
    ("XX001", "XX002"): (Code.STORE_CORRUPT, "the store is damaged", "restore it from a backup"),
}
