"""Text files as shown to a model, and the application of edits. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import unified_diff
from itertools import pairwise

from perdure.tools.errors import ToolError

MAX_LINES = 2000
LOG_LINES = 500
CSV_ROWS = 100
MINIFIED_LINES = 20
MAX_SHOWN_BYTES = 50_000
MAX_DIFF_CHARS = 16_000
MAX_DIFF_LINES = 2000
_CUT = " […]"
_MARK = "\ufeff"


@dataclass(frozen=True, slots=True)
class Window:
    """A range of lines of a file, each as `N|text`. `last` is 0 if the range is empty."""

    text: str
    first: int
    last: int
    total: int

    @property
    def truncated(self) -> bool:
        """True if the file has more lines than shown."""
        return self.first > 1 or self.last < self.total


def lines_of(text: str) -> list[str]:
    """Split a text into lines without line ends. A trailing line end adds no line."""
    lines = [line.removesuffix("\r") for line in text.removeprefix(_MARK).split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def window(name: str, text: str, offset: int | None, limit: int | None) -> Window:
    """Return the requested lines, or a default range by file name.

    Defaults: the end of a log, the head of a table, a few lines of minified code.
    """
    lines = lines_of(text)
    usual = _usual(name, lines)
    count = min(max(1, limit if limit is not None else usual), MAX_LINES)
    first = max(1, offset if offset is not None else 1)
    if offset is None and name.endswith(".log"):
        first = max(1, len(lines) - count + 1)
    shown: list[str] = []
    size = 0
    for number, line in enumerate(lines[first - 1 : first - 1 + count], start=first):
        numbered = f"{number}|{line}"
        size += len(numbered.encode()) + 1
        if size > MAX_SHOWN_BYTES:
            if not shown:  # a single line over the limit: show its head
                shown.append(numbered.encode()[:MAX_SHOWN_BYTES].decode(errors="ignore") + _CUT)
            break
        shown.append(numbered)
    return Window("\n".join(shown), first, first + len(shown) - 1, len(lines))


def _usual(name: str, lines: Sequence[str]) -> int:
    if name.endswith(".log"):
        return LOG_LINES
    if name.endswith((".csv", ".tsv")):
        return CSV_ROWS + 1
    is_minified = re.search(r"\.min\.\w+$", name) or (len(lines) < MINIFIED_LINES and any(len(x) > 5000 for x in lines))
    return MINIFIED_LINES if is_minified else MAX_LINES


@dataclass(frozen=True, slots=True)
class Edit:
    """The replacement of a text that occurs exactly once in the file."""

    old_text: str
    new_text: str


def edited(text: str, edits: Sequence[Edit]) -> str:
    """Apply all edits to the original text. A byte order mark and the kind of line ends are kept.

    Raises:
        ToolError: an edit does not match.
    """
    if not edits:
        raise ToolError("Missing required parameter: edits (at least one)", code="edit_invalid")
    mark, body = (_MARK, text[1:]) if text.startswith(_MARK) else ("", text)
    windows = "\r\n" in body and not re.search(r"(?<!\r)\n", body)
    spans: list[tuple[int, int, str, int]] = []
    for number, edit in enumerate(edits, start=1):
        old, new = (_ended(part, windows) for part in (edit.old_text, edit.new_text))
        spans.append((*_place(body, old, number), new, number))
    spans.sort()
    for (_, end, _, one), (start, _, _, other) in pairwise(spans):
        if start < end:
            raise ToolError(f"Edits {min(one, other)} and {max(one, other)} overlap", code="edit_invalid")
    parts: list[str] = []
    at = 0
    for start, end, new, _ in spans:
        parts += [body[at:start], new]
        at = end
    return mark + "".join([*parts, body[at:]])


def _ended(text: str, windows: bool) -> str:
    plain = text.replace("\r\n", "\n")
    return plain.replace("\n", "\r\n") if windows else text


def _place(body: str, old: str, number: int) -> tuple[int, int]:
    if not old:
        raise ToolError(f"Edit {number}: old_text must not be empty", code="edit_invalid")
    start = body.find(old)
    if start < 0:
        raise ToolError(f"Edit {number}: old_text is not in the file", code="edit_invalid")
    if body.find(old, start + 1) >= 0:
        raise ToolError(
            f"Edit {number}: old_text occurs more than once in the file; include more context",
            code="edit_invalid",
        )
    return start, start + len(old)


def diff(path: str, old: str, new: str) -> str:
    """Return a unified diff of the change, or an empty string if it is too large."""
    before, after = lines_of(old), lines_of(new)
    head = _common(before, after)
    tail = _common(before[head:][::-1], after[head:][::-1])
    begin = max(0, head - 3)
    before, after = (lines[begin : len(lines) - max(0, tail - 3)] for lines in (before, after))
    if max(len(before), len(after)) > MAX_DIFF_LINES:
        return ""
    hunks = unified_diff(before, after, path, path, lineterm="")
    text = "\n".join(_moved(line, begin) for line in hunks)
    return text if len(text) <= MAX_DIFF_CHARS else text[:MAX_DIFF_CHARS] + _CUT


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _moved(line: str, by: int) -> str:
    """Shift the line numbers of a hunk header to those of the whole file."""
    found = re.match(r"@@ -(\d+)(,\d+)? \+(\d+)(,\d+)? @@$", line)
    if not found:
        return line
    return f"@@ -{int(found[1]) + by}{found[2] or ''} +{int(found[3]) + by}{found[4] or ''} @@"
