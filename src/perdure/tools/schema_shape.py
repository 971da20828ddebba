"""Bounds of a JSON schema from outside: size, references and cycles, found without evaluating it.

Time is linear in the schema: the expanded size of each part is computed once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from perdure import codec
from perdure.codec import Json

MAX_BYTES = 131_072
MAX_NODES = 1_000
"""Most subschemas, with each reference that applies to the same value expanded."""
MAX_DEPTH = 64

_SAME_VALUE = ("not", "if", "then", "else")
_SAME_VALUE_LISTS = ("allOf", "anyOf", "oneOf")
_SAME_VALUE_MAPS = ("dependentSchemas",)
_PARTS = ("additionalProperties", "items", "contains", "propertyNames", "unevaluatedProperties", "unevaluatedItems")
_PART_LISTS = ("prefixItems",)
_PART_MAPS = ("properties", "patternProperties")
_REFERENCES = ("$ref", "$dynamicRef")


def shape_problem(schema: Json) -> str | None:
    """Return the reason why a schema exceeds a bound, or None."""
    try:
        if (size := len(codec.encode(schema))) > MAX_BYTES:
            return f"it has {size} bytes, and the limit is {MAX_BYTES}"
        nodes = _Expansion(schema).nodes()
    except _OutOfBounds as problem:
        return str(problem)
    except UnicodeEncodeError:
        return "its text contains a lone surrogate, which UTF-8 cannot encode"
    except RecursionError:
        return f"it is nested more than {MAX_DEPTH} levels deep"
    return f"it has more than {MAX_NODES} subschemas, references expanded" if nodes > MAX_NODES else None


class _OutOfBounds(Exception):
    pass


class _Expansion:
    """The subschemas of a schema, with the number that applies to one value."""

    def __init__(self, schema: Json) -> None:
        self._root = schema
        self._anchors = {name: one for one in _objects(schema) for name in _anchors(one)}
        self._sizes: dict[int, int] = {}
        self._open: set[int] = set()
        self._parts: list[Json] = [schema]

    def nodes(self) -> int:
        """Return the number of subschemas: of each distinct part of a value, those that apply to it."""
        total, seen = 0, set[int]()
        while self._parts and total <= MAX_NODES:
            part = self._parts.pop()
            if not isinstance(part, dict) or id(cast("object", part)) not in seen:
                seen.add(id(cast("object", part)))
                total += self._size(part, 0)
        return total

    def _size(self, schema: Json, depth: int) -> int:
        if not isinstance(schema, dict):
            return 1
        members, name = cast("dict[str, Json]", schema), id(cast("object", schema))
        if (known := self._sizes.get(name)) is not None:
            return known
        if name in self._open:
            raise _OutOfBounds("it refers to itself without going deeper into the value")
        if depth > MAX_DEPTH:
            raise _OutOfBounds(f"it is nested more than {MAX_DEPTH} levels deep")
        self._open.add(name)
        size = 1 + sum(self._size(one, depth + 1) for one in self._applied(members))
        self._open.discard(name)
        self._sizes[name] = size
        self._parts.extend(_under(members, _PARTS, _PART_LISTS, _PART_MAPS))
        return size

    def _applied(self, schema: dict[str, Json]) -> Iterator[Json]:
        """Yield the subschemas that apply to the same value."""
        for keyword in _REFERENCES:
            if keyword in schema:
                yield self._target(schema[keyword])
        yield from _under(schema, _SAME_VALUE, _SAME_VALUE_LISTS, _SAME_VALUE_MAPS)

    def _target(self, reference: Json) -> Json:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise _OutOfBounds(f"its reference {reference!r:.120} leads to another document")
        name = reference[1:]
        try:
            return _pointed(self._root, name) if name == "" or name.startswith("/") else self._anchors[name]
        except (LookupError, ValueError, TypeError):
            raise _OutOfBounds(f"its reference {reference!r:.120} leads nowhere") from None


def _under(
    schema: dict[str, Json], single: tuple[str, ...], lists: tuple[str, ...], maps: tuple[str, ...]
) -> Iterator[Json]:
    yield from (schema[keyword] for keyword in single if keyword in schema)
    for keyword in lists:
        if isinstance(found := schema.get(keyword), list):
            yield from cast("list[Json]", found)
    for keyword in maps:
        if isinstance(found := schema.get(keyword), dict):
            yield from cast("dict[str, Json]", found).values()


def _pointed(root: Json, pointer: str) -> Json:
    """Return the value at a JSON pointer."""
    from urllib.parse import unquote

    here = root
    for step in unquote(pointer).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        here = cast("list[Json]", here)[int(key)] if isinstance(here, list) else cast("dict[str, Json]", here)[key]
    return here


def _anchors(schema: dict[str, Json]) -> Iterator[str]:
    for keyword in ("$anchor", "$dynamicAnchor"):
        if isinstance(name := schema.get(keyword), str):
            yield name


def _objects(schema: Json) -> Iterator[dict[str, Json]]:
    left = [schema]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            members = cast("dict[str, Json]", one)
            yield members
            left.extend(members.values())
        elif isinstance(one, list):
            left.extend(cast("list[Json]", one))
