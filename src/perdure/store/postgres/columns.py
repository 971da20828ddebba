"""Columns of a hot statement, each as one text: the driver asks three questions about every element of a list.

The server reads them with `$1::text::bigint[]`. Bytes go in one piece, with where each begins and how long it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate


def numbers(values: Iterable[int | None]) -> str:
    """Whole numbers, and none."""
    return f"{{{','.join(['NULL' if value is None else str(value) for value in values])}}}"


def flags(values: Iterable[bool]) -> str:
    """Yes or no."""
    return f"{{{','.join(['t' if value else 'f' for value in values])}}}"


def texts(values: Iterable[str | None]) -> str:
    """Texts, whatever is in them, and none."""
    return f"{{{','.join([_quoted(value) for value in values])}}}"


def _quoted(value: str | None) -> str:
    if value is None:
        return "NULL"
    if '"' in value or "\\" in value:
        value = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{value}"'


def pieces(values: Sequence[bytes]) -> tuple[bytes, str, str]:
    """Bytes: all of them, and where each begins (from 1) and how long it is."""
    sizes = [len(value) for value in values]
    return b"".join(values), numbers(accumulate(sizes[:-1], initial=1) if sizes else ()), numbers(sizes)
