"""Parser for durations: seconds as a number, or `500ms`, `30s`, `2m`, `1h`, `1d`."""

from __future__ import annotations

import math
import re
from typing import cast

from perdure.errors import Code, Error

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
LONGEST_MS = 100 * 365 * 86_400_000
"""The longest duration: a century."""

_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*")


def to_ms(duration: object) -> int | None:
    """Convert to milliseconds, at least 1. Return None for an invalid duration."""
    match duration:
        case bool():
            return None
        case str():
            found = _TEXT.fullmatch(duration)
            ms = float(found.group(1)) * _UNITS_MS[found.group(2)] if found else math.nan
        case int() | float():
            ms = duration * 1000
        case _:
            return None
    return max(1, round(ms)) if 0 < ms <= LONGEST_MS else None


def seconds(timeout: object) -> float | None:
    """Convert a timeout to seconds. None means no timeout.

    Raises:
        Error: `invalid_argument` for an invalid duration.
    """
    if timeout is None or (isinstance(timeout, int | float) and not isinstance(timeout, bool)):
        return timeout
    return duration_ms(cast("str", timeout), what="the timeout") / 1000


def duration_ms(duration: float | str, *, what: str) -> int:
    """Convert a duration to milliseconds.

    Raises:
        Error: `invalid_argument` for an invalid duration.
    """
    ms = to_ms(duration)
    if ms is None:
        raise Error(
            Code.INVALID_ARGUMENT, f"{what}: invalid duration {duration!r}", hint='use seconds, or "30s", "2h", "3d"'
        )
    return ms
