"""Conversion of a tool's result to plain JSON that can be read back, with the exact position of a problem."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TypeAlias, cast

import msgspec

from perdure import codec
from perdure.codec import Json
from perdure.errors import Error
from perdure.tools.result_bounds import MAX_DEPTH, excess


class Kept(msgspec.Struct, frozen=True):
    """The result as plain JSON, and its size in bytes."""

    value: Json
    size: int


class Unstorable(msgspec.Struct, frozen=True):
    """The part of the result that JSON cannot represent, and the reason."""

    path: str
    reason: str


def keep(value: object) -> Kept | Unstorable:
    """Convert a result to JSON. Never raises, even if the value's own code does."""
    try:
        if too_much := excess(value):  # threat: S26
            return Unstorable("$", too_much)
    except Exception as problem:  # noqa: BLE001 - an exception of the value's own code is the finding
        return Unstorable("$", type(problem).__name__)
    kept = _keep(value)
    if isinstance(kept, Kept):
        return kept
    try:
        return _narrowed(value, kept)
    except Exception:  # noqa: BLE001 - the search failed too; the first finding is enough
        return kept


def _keep(value: object) -> Kept | Unstorable:
    try:
        # Converted as read back: a live call must return exactly the value that its replay will.
        plain, written = codec.as_stored(value)
        may_be_deep = len(written) > MAX_DEPTH and written.count(b"[") + written.count(b"{") > MAX_DEPTH
        if may_be_deep and not _depth_within(plain, MAX_DEPTH):  # a converted object may be deeper than its fields
            return Unstorable("$", f"it is nested more than {MAX_DEPTH} levels deep")
    except Error as problem:
        path = str(problem.details.get("path", "$"))
        return Unstorable(_clean(path), _clean(problem.because or problem.message))
    except Exception as problem:  # noqa: BLE001 - an exception of the value's own code is the finding
        return Unstorable("$", type(problem).__name__)
    return Kept(plain, len(written))


def _depth_within(value: Json, left: int) -> bool:
    if isinstance(value, dict):
        return left > 0 and all(_depth_within(item, left - 1) for item in cast("dict[str, Json]", value).values())
    if isinstance(value, list):
        return left > 0 and all(_depth_within(item, left - 1) for item in cast("list[Json]", value))
    return True


Part: TypeAlias = tuple[str, object]


def _narrowed(value: object, found: Unstorable) -> Unstorable:
    """Locate the problem: descend into a part while that part alone has it too."""
    path = ""
    for _ in range(MAX_DEPTH):
        if found.path != "$" or "refers to itself" in found.reason or "nested" in found.reason:
            break
        inner = next(((step, part, bad) for step, part in _parts(value) if (bad := _bad(part))), None)
        if inner is None:
            break
        step, value, found = inner
        path += step
    return Unstorable(f"${path}{found.path[1:]}", found.reason)


def _bad(value: object) -> Unstorable | None:
    kept = _keep(value)
    return kept if isinstance(kept, Unstorable) else None


def _parts(value: object) -> Iterator[Part]:
    if isinstance(value, Mapping):
        for key, item in cast("Mapping[object, object]", value).items():
            yield f".{_clean(str(key))}", item
    elif isinstance(value, list | tuple):
        for index, item in enumerate(cast("list[object]", value)):
            yield f"[{index}]", item
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for one in dataclasses.fields(value):
            yield f".{one.name}", getattr(value, one.name, None)


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
