"""The bounds of a tool's result, checked before it is converted and encoded: depth, number of values, bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import cast

MAX_DEPTH = 200
"""Depth limit: a deeper value could be written to the log but not read back."""
MAX_VALUES = 200_000
MAX_RESULT_BYTES = 20_000_000
"""Limit of all text and bytes in a result: more than is ever stored, and about 50 ms of the event loop."""

_SCALARS = {bool, int, float, type(None)}


def excess(value: object) -> str:
    """Return which bound a result exceeds, or an empty string. The walk ends at the first bound and never recurses."""
    level, values, size = [value], 0, 0
    for _ in range(MAX_DEPTH + 1):
        deeper: list[object] = []
        for one in level:
            if type(one) in _SCALARS:
                continue
            if isinstance(one, str | bytes | bytearray):
                size += len(one)
                if size > MAX_RESULT_BYTES:
                    return f"it has more than {MAX_RESULT_BYTES} bytes"
                continue
            for parts in _parts(one):
                values += len(parts)
                if values > MAX_VALUES:  # before any of them is looked at
                    return f"it has more than {MAX_VALUES} values"
                deeper += parts
        if not deeper:
            return ""
        level = deeper
    return f"it refers to itself or is nested more than {MAX_DEPTH} levels deep"


def _parts(value: object) -> tuple[Collection[object], ...]:
    """Return the items of a container, the keys and values of a dict, or the fields of an object."""
    if isinstance(value, dict):
        known = cast("dict[object, object]", value)
        return known.keys(), known.values()
    if isinstance(value, list | tuple | set | frozenset):
        return (cast("Collection[object]", value),)
    if dataclasses.is_dataclass(value):
        return ([getattr(value, field.name, None) for field in dataclasses.fields(value)],)
    if (names := getattr(type(value), "__struct_fields__", None)) is not None:
        return ([getattr(value, name) for name in names],)
    return (vars(value).values(),) if hasattr(type(value), "model_dump") else ()
