"""File search: selection of files, limits, and matching lines.

The pattern comes from a model and the search runs on the event loop, so the engine never backtracks: its time is linear
in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase

from perdure.errors import Code, Error
from perdure.services.files.paths import name_of, shown
from perdure.services.files.shapes import GrepMatch
from perdure.services.patterns import matcher

MAX_PATTERN_BYTES = 1000
MAX_PATTERN_COST = 1000
"""Cost limit of a pattern. The time per character is proportional to the pattern's length with all repetitions
expanded."""
MAX_SEARCHED_FILE_BYTES = 512 * 1024
MAX_SEARCHED_BYTES = 5 * 1024 * 1024


def line_matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that tests whether a line matches.

    Raises:
        Error: `file_pattern_invalid`.
    """
    if not isinstance(pattern, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers pass any type
        raise _invalid(f"the pattern must be text, not {type(pattern).__name__}")
    if not pattern:
        raise _invalid("the pattern is empty")
    if len(pattern.encode("utf-8", "surrogatepass")) > MAX_PATTERN_BYTES:
        raise _invalid(f"the limit is {MAX_PATTERN_BYTES} bytes")
    if cost(pattern) > MAX_PATTERN_COST:
        raise _invalid("the expanded repetitions exceed the cost limit")
    try:
        return matcher(pattern)
    except ValueError as problem:
        raise _invalid(str(problem)) from None


def cost(pattern: str) -> int:
    """Return the approximate length of a pattern with its counted repetitions expanded. Unicode classes weigh more."""
    groups, before, last, at = list[int](), 0, 0, 0
    while at < len(pattern):
        found = _PIECE.match(pattern, at)
        assert found is not None
        at, piece = found.end(), found[0]
        if piece == "(":
            groups.append(before + last)
            before, last = 0, 0
        elif piece == ")" and groups:
            before, last = groups.pop(), before + last
        elif found["times"] is not None:
            last *= max(1, *(int(number) for number in re.findall("[0-9]+", found["times"])))
        elif piece not in "*+?|":
            before, last = before + last, _CLASS_COST if _UNICODE.search(piece) else 1
    return before + last


_CLASS_COST = 20
_UNICODE = re.compile(r"\\[wWdDsSpP]")
_PIECE = re.compile(
    r"""\\[pPxuU]\{[^}]*\} | \\. | \[\^?\]?(?:\\.|[^\\\]])*\] | \{(?P<times>[0-9]+(?:,[0-9]*)?)\} | .""",
    re.VERBOSE | re.DOTALL,
)


def _invalid(because: str) -> Error:
    return Error(
        Code.FILE_PATTERN_INVALID,
        "invalid pattern",
        because=because,
        hint="use a regular expression without look-around and back-references",
    )


def path_filter(pattern: str | None) -> Callable[[str], bool]:
    """Return a function that selects files, by a glob (without a slash: for the name) or by a part of the path.

    Raises:
        Error: `file_pattern_invalid`.
    """
    if pattern is None:
        return lambda path: True
    if not isinstance(pattern, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers pass any type
        raise _invalid(f"the path pattern must be text, not {type(pattern).__name__}")
    if not pattern.strip():
        return lambda path: True
    if len(pattern.encode("utf-8", "surrogatepass")) > MAX_PATTERN_BYTES:
        raise _invalid(f"the limit of the path pattern is {MAX_PATTERN_BYTES} bytes")
    if not any(character in pattern for character in "*?["):
        return lambda path: pattern in path or pattern in shown(path)
    if "/" not in pattern:
        return lambda path: fnmatchcase(name_of(path), pattern)
    whole = pattern if pattern.startswith("/") else f"/{pattern}"
    return lambda path: fnmatchcase(path, whole) or fnmatchcase(shown(path), whole)


def check_scan(size: int) -> None:
    """Reject a search over too much text.

    Raises:
        Error: `file_limit_exceeded`.
    """
    if size > MAX_SEARCHED_BYTES:
        raise Error(
            Code.FILE_LIMIT_EXCEEDED,
            f"the search covers {size} bytes of text",
            because=f"the limit is {MAX_SEARCHED_BYTES}",
            hint="restrict path_pattern",
        )


def matches(path: str, text: str, matches_line: Callable[[str], bool]) -> Iterator[GrepMatch]:
    """Yield the matching lines of a text."""
    for number, line in enumerate(text.split("\n"), start=1):
        if matches_line(line := line.removesuffix("\r")):
            yield GrepMatch(path, number, line)
