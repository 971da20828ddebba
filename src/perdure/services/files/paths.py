"""What a path may be, and the one spelling that every path has.

A path begins at the root, with or without a slash; `/workspace` is another name of the root. `..` is refused, not
followed: whoever writes it means something that is not there. A backslash is a character like others.
"""

from __future__ import annotations

from perdure.codec import check_text
from perdure.errors import Code, Error

ROOT = "/"
WORKSPACE = "/workspace"
MAX_PATH_BYTES = 1024
MAX_NAME_BYTES = 255


def normal(path: str) -> str:
    """The one spelling of a path.

    Raises:
        Error: `file_path_invalid` saying which rule it breaks.
    """
    if not isinstance(path, str) or not path.strip():  # pyright: ignore[reportUnnecessaryIsInstance] - a model gives it
        raise _invalid(path, "it is blank")
    try:
        check_text(path, where="path")
    except Error as problem:
        raise _invalid("…", problem.because) from None
    if any(ord(character) < 32 or ord(character) == 127 for character in path):
        raise _invalid(path, "it has a control character in it")
    if len(path.encode()) > MAX_PATH_BYTES:
        raise _invalid(path, f"it is longer than {MAX_PATH_BYTES} bytes")
    names = [name for name in path.split("/") if name not in ("", ".")]
    if ".." in names:
        raise _invalid(path, "it leads upwards")
    if path.startswith(WORKSPACE) and names[:1] == [WORKSPACE[1:]]:
        names = names[1:]
    if any(len(name.encode()) > MAX_NAME_BYTES for name in names):
        raise _invalid(path, f"a name in it is longer than {MAX_NAME_BYTES} bytes")
    return ROOT + "/".join(names)


def _invalid(path: object, because: str) -> Error:
    return Error(Code.FILE_PATH_INVALID, f"{path!r:.120} cannot be a path", because=because)


def name_of(path: str) -> str:
    """The last name of a normal path."""
    return path.rsplit("/", 1)[1] or ROOT


def parents_of(path: str) -> list[str]:
    """The directories above a normal path, the nearest last, without the root."""
    names = path[1:].split("/")
    return [ROOT + "/".join(names[:count]) for count in range(1, len(names))]


def parent_of(path: str) -> str:
    """The directory a normal path stands in."""
    return path.rsplit("/", 1)[0] or ROOT


def below(path: str) -> str:
    """What every path under a normal path begins with."""
    return path if path == ROOT else f"{path}/"


def shown(path: str) -> str:
    """A normal path as a model sees it."""
    return WORKSPACE if path == ROOT else WORKSPACE + path
