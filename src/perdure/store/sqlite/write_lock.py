"""The lock of a database file: one connection at a time commits or moves the write-ahead log.

SQLite 3.7.0 to 3.51.2 can lose a commit that restarts the write-ahead log while a checkpoint of another connection
runs (the WAL-reset bug). SQLite's own locks do not exclude that. This lock does, for all processes of the machine.
It is a `flock` on a file of its own: SQLite keeps POSIX locks on the database file, and closing any descriptor of that
file would release them.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from perdure.store.private import FILE_MODE
from perdure.store.shapes import Diagnosis
from perdure.store.sqlite.failures import LOCKED_AFTER_S, failure, is_busy, locked, unlockable

try:
    import fcntl
except ImportError:  # a platform without flock
    fcntl = None

T = TypeVar("T")

FIXED = (3, 51, 3)
BACKPORTS: dict[tuple[int, int], int] = {(3, 44): 6, (3, 50): 7}


def is_fixed(version: tuple[int, int, int] = sqlite3.sqlite_version_info) -> bool:
    """Return whether a version of SQLite is free of the WAL-reset bug."""
    major, minor, patch = version
    return version >= FIXED or patch >= BACKPORTS.get((major, minor), 1_000)


def may_checkpoint() -> bool:
    """Return whether a checkpoint is safe. If not, only the last connection to close moves the write-ahead log."""
    return fcntl is not None or is_fixed()  # threat: S15


def diagnose() -> Diagnosis:
    """Return whether the linked SQLite can lose commits."""
    version = sqlite3.sqlite_version
    if is_fixed():
        return Diagnosis("ok", "wal reset", f"sqlite {version} has no WAL-reset bug")
    if fcntl is None:
        return Diagnosis("warn", "wal reset", f"sqlite {version} has the WAL-reset bug; no checkpoint runs here")
    detail = f"sqlite {version} has the WAL-reset bug; a lock prevents it, if only perdure writes to the file"
    return Diagnosis("ok", "wal reset", detail)


def patiently(action: Callable[[], T], path: Path, *, limit_s: float = LOCKED_AFTER_S) -> T:
    """Retry an action while another connection holds a lock.

    The driver's own backoff grows to 100 ms per try; short random sleeps give concurrent writers equal chances.

    Raises:
        Error: `store_locked` after `limit_s`.
    """
    give_up = time.monotonic() + limit_s
    while True:
        try:
            return action()
        except sqlite3.OperationalError as problem:
            if not is_busy(problem):
                raise
            if time.monotonic() > give_up:
                raise failure(problem, path) from problem
        pause()


def pause() -> None:
    """Sleep for a short random time, before another try."""
    time.sleep(random.uniform(0.0002, 0.002))


class WriteLock:
    """One user's handle to the lock of a database file. A process may have several, which exclude each other."""

    def __init__(self, path: Path) -> None:
        self._database = path
        self._path = path.with_name(f"{path.name}-lock")
        self._descriptor = -1

    def try_hold(self) -> bool:
        """Take the lock if it is free. True on a platform without locks.

        Raises:
            Error: `store_read_only`, `store_unavailable` if the lock file cannot be opened.
        """
        if fcntl is None:
            return True
        if self._descriptor < 0:
            try:
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, FILE_MODE)
            except OSError as problem:
                raise unlockable(problem, self._database) from problem
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Release the lock."""
        if fcntl is not None and self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    @contextmanager
    def held(self, limit_s: float = LOCKED_AFTER_S) -> Generator[None]:
        """Hold the lock. The call blocks: do not use it on the event loop.

        Raises:
            Error: `store_locked` after `limit_s`.
        """
        give_up = time.monotonic() + limit_s
        while not self.try_hold():
            if time.monotonic() > give_up:
                raise locked(self._database)
            pause()
        try:
            yield
        finally:
            self.release()

    def close(self) -> None:
        """Close the file without releasing the lock: a forked child thus leaves the lock to its parent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
