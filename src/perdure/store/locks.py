"""Liveness of the workers of this machine: one OS lock per worker, each on its own file.

Law: the kernel frees a lock when its process ends for any reason. A free lock therefore proves that the worker is dead
*now*. A held lock proves nothing; then only the lease decides.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from perdure.errors import Code, Error
from perdure.ids import WorkerId
from perdure.store.private import make_folder

try:
    import fcntl
except ImportError:  # a platform without flock: leases alone decide there
    fcntl = None

_MAX_NAME = 200
_LOCK_TIMEOUT_S = 0.5


def boot_id() -> str:
    """Return an id of this boot of this machine. Monotonic times of different boots cannot be compared."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    booted_s = time.time() - time.monotonic()
    return f"{uuid.getnode():x}-{round(booted_s / 60)}"  # a minute's rounding absorbs the drift of the two clocks


def _identity(descriptor: int) -> str:
    found = os.fstat(descriptor)
    return f"{found.st_dev}:{found.st_ino}"


_kept: list[int] = []
"""Locks of deregistered workers whose calls may still be running; only the end of the process frees them."""


class WorkerLocks:
    """The lock files of one store."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._held: dict[WorkerId, int] = {}

    def hold(self, worker: WorkerId) -> bool:
        """Take this worker's lock for the lifetime of the process. Return False on a platform without file locks."""
        if fcntl is None:
            return False
        if worker in self._held:
            return True
        give_up = time.monotonic() + _LOCK_TIMEOUT_S
        while (descriptor := self._try_hold(self._path(worker))) is None:
            if time.monotonic() > give_up:
                raise Error(Code.STORE_FAILED, f"a worker called {worker} is alive elsewhere", worker=worker)
            time.sleep(0.001)
        self._held[worker] = descriptor
        return True

    def _try_hold(self, path: Path) -> int | None:
        assert fcntl is not None
        try:
            make_folder(self._directory)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:  # the last worker of another process just removed the folder
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # held for an instant by a concurrent `is_free`
            os.close(descriptor)
            return None
        return descriptor

    def holds(self, worker: WorkerId) -> bool:
        """Return whether this process holds the lock."""
        return worker in self._held

    def identity(self, worker: WorkerId) -> str:
        """Return the identity of the file behind a lock of this process. The identity is unique within one boot."""
        descriptor = self._held.get(worker)
        return "" if descriptor is None else _identity(descriptor)

    def is_free(self, worker: WorkerId, *, identity: str = "") -> bool:
        """Return whether this worker's process has certainly ended.

        A missing file proves nothing, and neither does a file with another identity than the given one.
        """
        if fcntl is None or worker in self._held:
            return False
        try:
            descriptor = os.open(self._path(worker), os.O_RDONLY)
        except OSError:
            return False
        try:
            if identity and _identity(descriptor) != identity:
                return False
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: concurrent checks succeed
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True

    def release(self, worker: WorkerId) -> None:
        """Release the lock and remove its file."""
        with suppress(FileNotFoundError):
            self._path(worker).unlink()
        self.drop(worker)
        with suppress(OSError):  # the folder is empty only after the last worker
            self._directory.rmdir()

    def keep(self, worker: WorkerId) -> None:
        """Hold the lock until the process ends, even if the store is closed: a call may still be running."""
        descriptor = self._held.pop(worker, None)
        if descriptor is not None:
            _kept.append(descriptor)

    def drop(self, worker: WorkerId) -> None:
        """Release the lock and leave its file, as a dying process does."""
        descriptor = self._held.pop(worker, None)
        if descriptor is not None:
            os.close(descriptor)

    def drop_all(self) -> None:
        """Release every lock. In a forked child this closes only the copies: the parent keeps its locks."""
        for worker in list(self._held):
            self.drop(worker)

    def _path(self, worker: WorkerId) -> Path:
        name = quote(worker, safe="")
        if len(name) > _MAX_NAME or name.startswith("."):
            name = hashlib.sha256(worker.encode()).hexdigest()
        return self._directory / f"{name}.lock"
