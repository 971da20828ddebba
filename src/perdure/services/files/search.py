"""File search: selection of files, limits, and matching lines.

Law: the pattern comes from a model, so only a child process with a budget of CPU time matches it. The engine never
backtracks: its time is linear in the text, but the factor depends on the pattern.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import cast

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.services.budgeted import Evaluated, Exceeded, evaluate
from perdure.services.files.paths import name_of, shown
from perdure.services.files.shapes import GrepMatch
from perdure.services.patterns import matcher

MAX_PATTERN_BYTES = 1000
MAX_PATTERN_COST = 1000
"""Cost limit of a pattern. The time per character is proportional to the pattern's length with all repetitions
expanded."""
MAX_MATCHES = 10_000
MAX_MATCHED_CHARS = 1024 * 1024
MAX_MATCH_CHARS = 2_000
"""Limits of a result: matches, characters of all lines, and characters shown of one line."""
MAX_PATHS_HERE = 100
"""Most paths that a glob is compared with on the event loop."""
PRELOADED = ("pydantic_core",)
"""Loaded by the child process before it searches."""
MAX_SEARCHED_FILE_BYTES = 512 * 1024
MAX_SEARCHED_BYTES = 5 * 1024 * 1024


def check_pattern(pattern: str) -> None:
    """Reject a pattern that exceeds a limit.

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


async def wanted_paths(pattern: str | None, paths: Sequence[str]) -> list[str]:
    """Return the paths selected by a glob (without a slash: for the name) or by a part of the path.

    Raises:
        Error: `file_pattern_invalid`, `file_limit_exceeded`.
    """
    if pattern is None:
        return list(paths)
    if not isinstance(pattern, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers pass any type
        raise _invalid(f"the path pattern must be text, not {type(pattern).__name__}")
    if not pattern.strip():
        return list(paths)
    if len(pattern.encode("utf-8", "surrogatepass")) > MAX_PATTERN_BYTES:
        raise _invalid(f"the limit of the path pattern is {MAX_PATTERN_BYTES} bytes")
    if len(paths) <= MAX_PATHS_HERE:
        return evaluated_paths(pattern, paths)
    answer = await evaluate(evaluated_paths, pattern, list[Json](paths))
    if isinstance(answer, Exceeded):
        raise _too_slow(answer)
    return cast("list[str]", answer.value)


def evaluated_paths(pattern: str, paths: Sequence[str]) -> list[str]:
    """Return the selected paths. Bounded only by the number of paths."""
    selects = _path_filter(pattern)
    return [path for path in paths if selects(path)]


def _path_filter(pattern: str) -> Callable[[str], bool]:
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


async def search(pattern: str, texts: Sequence[tuple[str, str]]) -> tuple[GrepMatch, ...]:
    """Return the matching lines of texts, which are given with their paths.

    Raises:
        Error: `file_pattern_invalid`, `file_limit_exceeded`.
    """
    answer = await evaluate(evaluated_search, pattern, [text for _, text in texts])  # threat: S3, T-TOOL-03
    match answer:
        case Evaluated(value=str(reason)):
            raise _invalid(reason)
        case Evaluated(value=value):
            found = cast("list[tuple[int, int, str]]", value)
            return tuple(GrepMatch(texts[index][0], number, line) for index, number, line in found)
        case Exceeded():
            raise _too_slow(answer)


def evaluated_search(pattern: str, texts: Sequence[str]) -> list[tuple[int, int, str]] | str:
    """Return index, line number and line of each match, or the reason why the pattern is invalid.

    The cost has no bound: call `search`.
    """
    try:
        matches_line = matcher(pattern)
    except ValueError as problem:
        return str(problem)
    found, chars = list[tuple[int, int, str]](), 0
    for index, text in enumerate(texts):
        for number, line in enumerate(text.split("\n"), start=1):
            if matches_line(line.removesuffix("\r")):
                found.append((index, number, line.removesuffix("\r")[:MAX_MATCH_CHARS]))
                chars += len(found[-1][2])
                if len(found) >= MAX_MATCHES or chars >= MAX_MATCHED_CHARS:
                    return found
    return found


def _too_slow(exceeded: Exceeded) -> Error:
    return Error(
        Code.FILE_LIMIT_EXCEEDED,
        "the search takes too long",
        because=exceeded.problem,
        hint="use a shorter pattern, or restrict path_pattern",
    )
