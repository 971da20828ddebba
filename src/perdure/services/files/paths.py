"""Valid paths of session files, and their normal form.

Paths start at the root, with or without a slash; `/workspace` is another name of the root. `..` is rejected, because a
path that leaves the root is an error. A backslash is an ordinary character.
"""

from __future__ import annotations

from perdure.codec import check_text
from perdure.errors import Code, Error

ROOT = "/"
WORKSPACE = "/workspace"
MAX_PATH_BYTES = 1024
MAX_NAME_BYTES = 255


def normal(path: str) -> str:
    """Return the normal form of a path.

    Raises:
        Error: `file_path_invalid` naming the broken rule.
    """
    if not isinstance(path, str) or not path.strip():  # pyright: ignore[reportUnnecessaryIsInstance] - paths come from a model
        raise _invalid(path, "the path is blank")
    try:
        check_text(path, where="path")
    except Error as problem:
        raise _invalid("…", problem.because) from None
    if any(ord(character) < 32 or ord(character) == 127 for character in path):
        raise _invalid(path, "the path contains a control character")
    if len(path.encode()) > MAX_PATH_BYTES:
        raise _invalid(path, f"the limit is {MAX_PATH_BYTES} bytes")
    names = [name for name in path.split("/") if name not in ("", ".")]
    if ".." in names:
        raise _invalid(path, "the path contains '..'")
    if path.startswith(WORKSPACE) and names[:1] == [WORKSPACE[1:]]:
        names = names[1:]
    if any(len(name.encode()) > MAX_NAME_BYTES for name in names):
        raise _invalid(path, f"the limit of each name is {MAX_NAME_BYTES} bytes")
    return ROOT + "/".join(names)


def _invalid(path: object, because: str) -> Error:
    return Error(Code.FILE_PATH_INVALID, f"invalid path {path!r:.120}", because=because)


def name_of(path: str) -> str:
    """Return the last name of a normal path."""
    return path.rsplit("/", 1)[1] or ROOT


def parents_of(path: str) -> list[str]:
    """Return the directories above a normal path, the nearest last, without the root."""
    names = path[1:].split("/")
    return [ROOT + "/".join(names[:count]) for count in range(1, len(names))]


def parent_of(path: str) -> str:
    """Return the directory of a normal path."""
    return path.rsplit("/", 1)[0] or ROOT


def below(path: str) -> str:
    """Return the prefix of all paths under a normal path."""
    return path if path == ROOT else f"{path}/"


def shown(path: str) -> str:
    """Return a normal path in the form shown to a model."""
    return WORKSPACE if path == ROOT else WORKSPACE + path
