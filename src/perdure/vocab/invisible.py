"""Characters that no reader sees, and text in which each of them is spelled out.

Law: text that passed `spelled` or `one_line_json` is one line for every reader, and no character of it moves a cursor,
reorders its neighbours or hides.
"""

from __future__ import annotations

import re
import unicodedata

_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0e\uffa0\U000e0100-\U000e01ef]")
"""Letters and marks that are drawn as nothing. U+FE0F stays: it makes a picture of the character before it."""
_UNUSUAL = re.compile(r"[^ -~]+")


def spelled(text: str, *, keep: str = "") -> str:
    r"""Return the text with its invisible characters as escapes (`\u202e`), except those of `keep`."""
    return _UNUSUAL.sub(lambda run: _visible(run[0], keep, json=False), text)


def one_line_json(json: str) -> str:
    """Return JSON with its invisible characters as escapes of JSON, so that the value stays the same."""
    return _UNUSUAL.sub(lambda run: _visible(run[0], "", json=True), json)


def _visible(run: str, keep: str, *, json: bool) -> str:
    if run.isprintable() and not _BLANK.search(run):
        return run
    return "".join(_escaped(char, json=json) if char not in keep and _is_invisible(char) else char for char in run)


def _is_invisible(char: str) -> bool:
    return unicodedata.category(char) in _CATEGORIES or _BLANK.match(char) is not None


def _escaped(char: str, *, json: bool) -> str:
    if not json:
        return ascii(char)[1:-1]
    code = ord(char)
    if code < 0x10000:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
