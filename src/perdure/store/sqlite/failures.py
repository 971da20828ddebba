"""Mapping of SQLite driver errors to Perdure errors."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from perdure.errors import Code, Error

LOCKED_AFTER_S = 30.0


def primary(problem: sqlite3.Error) -> int:
    """Return the primary result code, or 0 if the error has none (a misuse error of the driver)."""
    return getattr(problem, "sqlite_errorcode", 0) & 0xFF


def is_busy(problem: sqlite3.Error) -> bool:
    """Return whether another connection held a lock, so that a retry helps."""
    return primary(problem) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_io(problem: sqlite3.Error) -> bool:
    """Return whether the disk failed, so that the connection's cache is no longer reliable."""
    return primary(problem) == sqlite3.SQLITE_IOERR


def failure(problem: sqlite3.Error, path: Path) -> Error:
    """Return the public error for a driver error."""
    code = primary(problem)
    read_only = code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM) or (
        code == sqlite3.SQLITE_CANTOPEN and path.parent.exists() and not os.access(path.parent, os.W_OK)
    )
    if read_only:
        return _error(Code.STORE_READ_ONLY, path, problem, "the store cannot be written", _WRITABLE)
    if code in _TABLE:
        return _error(_TABLE[code][0], path, problem, _TABLE[code][1], _TABLE[code][2])
    return _error(Code.STORE_FAILED, path, problem, "the store failed", "")


def locked(path: Path) -> Error:
    """Return the error for a lock that another process kept."""
    _, message, hint = _TABLE[sqlite3.SQLITE_BUSY]
    return Error(Code.STORE_LOCKED, message, because="another process holds the lock file", hint=hint, path=str(path))


def unlockable(problem: OSError, path: Path) -> Error:
    """Return the error for a lock file that cannot be opened."""
    if problem.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        code, message, hint = Code.STORE_READ_ONLY, "the store cannot be written", _WRITABLE
    else:
        code, message, hint = _TABLE[sqlite3.SQLITE_CANTOPEN]
    return Error(code, message, because=str(problem), hint=hint, path=str(path))


def _error(code: Code, path: Path, problem: sqlite3.Error, what: str, hint: str) -> Error:
    name = getattr(problem, "sqlite_errorname", type(problem).__name__)
    return Error(code, what, because=str(problem), hint=hint, path=str(path), reason=name)


_WRITABLE = "make the file and its folder writable for this user: the write-ahead log is created in that folder"
_TABLE = {
    sqlite3.SQLITE_FULL: (
        Code.STORE_FULL,
        "no disk space left for the store; nothing was written",
        "free some disk space; the store then resumes automatically",
    ),
    sqlite3.SQLITE_BUSY: (
        Code.STORE_LOCKED,
        f"another process has kept the store locked for {LOCKED_AFTER_S:.0f} seconds; nothing was written",
        "look for a process that holds a long transaction on this file, such as a database browser",
    ),
    sqlite3.SQLITE_LOCKED: (
        Code.STORE_LOCKED,
        "the store is locked; nothing was written",
        "look for a process that holds a long transaction on this file, such as a database browser",
    ),
    sqlite3.SQLITE_CORRUPT: (Code.STORE_CORRUPT, "the store file is damaged", "restore it from a backup"),
    sqlite3.SQLITE_NOTADB: (
        Code.STORE_CORRUPT,
        "the store file is not a database",
        "check the path, or restore the store from a backup",
    ),
    sqlite3.SQLITE_IOERR: (
        Code.STORE_UNAVAILABLE,
        "the disk of the store failed; the durability of the last appends is unknown",
        "append the same plans again: receipts show which were written",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        Code.STORE_UNAVAILABLE,
        "the store file cannot be opened",
        "check the path and its permissions",
    ),
}
