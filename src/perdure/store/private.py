"""Files and folders that only their owner can read, with any umask."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from perdure.errors import Code, Error
from perdure.store.shapes import Diagnosis

FILE_MODE = 0o600  # threat: S7, T-SEC-03
FOLDER_MODE = 0o700
_OTHERS = 0o077
_OTHERS_WRITE = 0o022


def make_file(path: Path) -> None:
    """Create an empty file with mode 0600 unless it exists. A failure is left to the program that opens the file.

    The file is linked into place and never opened under its name: closing a descriptor of a database file would
    release the locks that SQLite holds on it in this process.
    """
    target = os.path.realpath(path)
    if os.path.exists(target):
        return
    with suppress(OSError):
        descriptor, new = tempfile.mkstemp(prefix=".perdure-new-", dir=os.path.dirname(target))
        os.close(descriptor)
        try:
            os.chmod(new, FILE_MODE)
            os.link(new, target)
        finally:
            os.unlink(new)


def write_file(path: Path, data: bytes) -> None:
    """Replace the content of a file; a new file has mode 0600."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, each with mode 0700. An existing folder is not changed."""
    missing: list[Path] = []
    while not path.exists() and path != path.parent:
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        with suppress(FileExistsError):  # created by another process
            folder.mkdir(mode=FOLDER_MODE)
            folder.chmod(FOLDER_MODE)
    if missing and not missing[0].is_dir():
        raise NotADirectoryError(f"{missing[0]} is not a folder")


def own_folder(path: Path) -> None:
    """Create a folder under a name that other users can predict, or refuse what they could have put there.

    Raises:
        Error: `folder_unsafe` for a link, a folder of another user, and a folder that others can write.
    """
    make_folder(path)
    found = path.lstat()
    if (because := _unsafe(found)) is not None:
        raise Error(
            Code.FOLDER_UNSAFE,
            f"the folder {str(path)!r} is not private to this user",
            because=because,
            hint="remove the folder, or set XDG_RUNTIME_DIR to a folder that belongs to this user",
            path=str(path),
        )
    if stat.S_IMODE(found.st_mode) & _OTHERS:  # only readable by others, so its content is still this user's
        path.chmod(FOLDER_MODE)


def _unsafe(found: os.stat_result) -> str | None:
    if not stat.S_ISDIR(found.st_mode):
        return "the path is a link or a file"
    if hasattr(os, "getuid") and found.st_uid != os.getuid():
        return f"the folder belongs to user {found.st_uid}"
    if found.st_mode & _OTHERS_WRITE:
        return f"the mode is {stat.S_IMODE(found.st_mode):04o}, so other users can write there"
    return None


def diagnose(paths: Iterable[Path]) -> Diagnosis:
    """Return a warning that names the files and folders that other users can open."""
    loose = [f"{path.name} ({mode:04o})" for path in paths if (mode := _mode(path)) & _OTHERS]
    if not loose:
        return Diagnosis("ok", "permissions", "only this user can open the files of the store")
    return Diagnosis("warn", "permissions", f"other users can open {', '.join(loose)}; run chmod go= on them")


def _mode(path: Path) -> int:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return 0
