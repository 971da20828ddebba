"""Columns of a hot statement, each encoded as one text, because the driver encodes every element of a list separately.

The server decodes them with `$1::text::bigint[]`. Byte values are joined into one, with the start and size of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate


def numbers(values: Iterable[int | None]) -> str:
    """Encode integers and None as an array literal."""
    return f"{{{','.join(['NULL' if value is None else str(value) for value in values])}}}"


def flags(values: Iterable[bool]) -> str:
    """Encode booleans as an array literal."""
    return f"{{{','.join(['t' if value else 'f' for value in values])}}}"


def texts(values: Iterable[str | None]) -> str:
    """Encode arbitrary texts and None as an array literal."""
    return f"{{{','.join([_quoted(value) for value in values])}}}"


def _quoted(value: str | None) -> str:
    if value is None:
        return "NULL"
    if '"' in value or "\\" in value:
        value = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{value}"'


def hexes(values: Iterable[bytes]) -> str:
    """Encode short byte values as an array literal."""
    return "{" + ",".join([f'"\\\\x{value.hex()}"' for value in values]) + "}"


def pieces(values: Sequence[bytes]) -> tuple[bytes, str, str]:
    """Join byte values; return them with the start (from 1) and the size of each as array literals."""
    sizes = [len(value) for value in values]
    return b"".join(values), numbers(accumulate(sizes[:-1], initial=1) if sizes else ()), numbers(sizes)
