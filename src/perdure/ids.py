"""Typed ids, their validation, and keys that are unique per tuple of names."""

from __future__ import annotations

import re
from typing import NewType

from perdure.errors import Code, Error

Tenant = NewType("Tenant", str)
SessionId = NewType("SessionId", str)
StreamId = NewType("StreamId", str)
TurnId = NewType("TurnId", str)
CallId = NewType("CallId", str)
InputId = NewType("InputId", str)
EffectId = NewType("EffectId", str)
WorkerId = NewType("WorkerId", str)
PromiseId = NewType("PromiseId", str)
BlobHash = NewType("BlobHash", str)
Fence = NewType("Fence", int)
Seq = NewType("Seq", int)

VERSION = "0.1.0"
"""The version of this package; workers announce it."""

DEFAULT_TENANT = Tenant("default")
MAX_ID_BYTES = 512
_KEY = re.compile(r"[A-Za-z0-9_-]{80,}")  # the text of a key is longer, and that of a hash is shorter


def check_id(value: object, *, what: str) -> str:
    """Return a user's name if it is valid: text, not blank, at most 512 bytes, valid Unicode, no control characters.

    Raises:
        Error: `invalid_id` with the rule that it breaks.
    """
    if not isinstance(value, str):
        raise Error(Code.INVALID_ID, f"{what} must be text, not {type(value).__name__}")
    if not value.strip():
        raise Error(Code.INVALID_ID, f"{what} is blank", hint="give it a name with at least one visible character")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise Error(Code.INVALID_ID, f"{what} is not valid Unicode text") from None
    if size > MAX_ID_BYTES:
        raise Error(Code.INVALID_ID, f"{what} is {size} bytes long", because=f"the limit is {MAX_ID_BYTES}")
    if not value.isprintable() and any(ord(c) < 32 or 127 <= ord(c) < 160 for c in value):
        raise Error(Code.INVALID_ID, f"{what} has a control character in it")
    return str.__str__(value)  # also for a subclass: the log stores plain str only


def without_keys(text: str) -> str:
    """Shorten everything that looks like a signed key, so that the text can be shown or logged.

    A user may pass a key where an id belongs; the error must not leak it.
    """
    return _KEY.sub(lambda found: f"{found[0][:8]}…", text)


def join(*parts: str) -> str:
    """Join names into one key. Every part is escaped, so different tuples give different keys."""
    plain = ":".join(parts)  # threat: T-TEN-03
    if "%" not in plain and "/" not in plain and plain.count(":") == len(parts) - 1:
        return plain  # fast path: nothing to escape
    return ":".join([_escape(part) for part in parts])


def _escape(part: str) -> str:
    return part.replace("%", "%25").replace(":", "%3A").replace("/", "%2F")


def split(key: str) -> list[str]:
    """Split a key of `join` into its names."""
    return [_unescape(part) for part in key.split(":")]


def session_stream(tenant: Tenant, session: SessionId) -> StreamId:
    """Return the stream of a session's log."""
    return StreamId(join(tenant, "session", session))


def process_stream(tenant: Tenant, process: str) -> StreamId:
    """Return the stream of a process's log."""
    return StreamId(join(tenant, "process", process))


def files_stream(tenant: Tenant, session: SessionId) -> StreamId:
    """Return the stream of the log of a session's files."""
    return StreamId(join(tenant, "files", session))


def schedule_stream(tenant: Tenant, schedule: str) -> StreamId:
    """Return the stream of a schedule's log."""
    return StreamId(join(tenant, "schedule", schedule))


def trigger_stream(tenant: Tenant, source_type: str, source: str) -> StreamId:
    """Return the stream of a trigger source: its subscriptions and occurrences."""
    return StreamId(join(tenant, "trigger", join(source_type, source)))


def tasks_stream(tenant: Tenant, session: SessionId) -> StreamId:
    """Return the stream that lists a session's tasks."""
    return StreamId(join(tenant, "tasks", session))


def audit_stream(tenant: Tenant, month: str) -> StreamId:
    """Return the stream with the audited acts of a tenant in one month, such as `2026-11`."""
    return StreamId(join(tenant, "audit", month))


def stream_names(stream: StreamId) -> tuple[Tenant, str, str]:
    """Return tenant, kind and name of a stream: the inverse of the functions above."""
    tenant, kind, name = split(stream)
    return Tenant(tenant), kind, name


def _unescape(part: str) -> str:
    return part.replace("%2F", "/").replace("%3A", ":").replace("%25", "%")
