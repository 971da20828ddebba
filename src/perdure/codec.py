"""JSON encoding: the wire encoding, its canonical form, and the refusal of values that JSON cannot carry.

Canonical JSON is msgspec's encoding with every object key and struct field sorted. It is frozen by test vectors:
fingerprints stored years ago must still compare equal.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, TypeAlias, TypeVar

import msgspec

from perdure.errors import Code, Error

Json: TypeAlias = Any
"""A JSON value: None, bool, int, float, str, or lists and string-keyed dicts of them."""

T = TypeVar("T")

_any = msgspec.json.Decoder()

encode = msgspec.json.Encoder().encode
"""Encode a value, already known to be encodable, as compact JSON."""

canonical = msgspec.json.Encoder(order="sorted").encode
"""Encode a value as canonical JSON: equal values give equal bytes, regardless of key order."""


SEALED = b"\x00perdure-sealed-1\x00"
"""Prefix of an encrypted payload."""


def undecodable(what: str) -> Error:
    """Return the error for an encrypted payload when no codec is configured."""
    return Error(
        Code.CODEC_FAILED,
        f"a stored {what} is encrypted",
        because="this runtime was opened without a codec",
        hint="open it with Runtime(payload_codec=...); on the command line, PERDURE_CODEC=module:name names one",
    )


def decode(data: bytes | str, type: type[T] | Any = Any) -> T | Any:
    """Read stored or received JSON into `type`.

    Raises:
        Error: `invalid_json` when the text is not JSON or does not have that shape.
    """
    try:
        return msgspec.json.decode(data, type=type)
    except RecursionError:
        raise Error(Code.INVALID_JSON, "the JSON text cannot be read", because="the nesting is too deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        if isinstance(data, bytes) and data.startswith(SEALED):
            raise undecodable("payload") from None
        raise Error(Code.INVALID_JSON, "the JSON text does not have the expected shape", because=str(problem)) from None


def check_readable(value: object, *, what: str, code: Code = Code.INVALID_ARGUMENT) -> None:
    """Raise if a value can be encoded but not decoded again, because a field has another type than declared.

    Raises:
        Error: with this code; nothing was written.
    """
    try:
        decode(encode(value), type(value))
    except Error as problem:
        raise Error(code, f"{what} cannot be stored; nothing was written", because=problem.because) from None


def head_of(text: str, limit_bytes: int) -> str:
    """Return the longest prefix of a text whose JSON fits in the limit."""
    low, high = 0, min(len(text), limit_bytes)
    if len(encode(text[:high])) <= limit_bytes:
        return text[:high]
    while low < high:
        middle = (low + high + 1) // 2
        if len(encode(text[:middle])) <= limit_bytes:
            low = middle
        else:
            high = middle - 1
    return text[:low]


def digest(value: object) -> str:
    """Return the sha256 (hex) of the canonical JSON."""
    return hashlib.sha256(canonical(value)).hexdigest()


def brief(digest: str) -> str:
    """Return the first 128 bits of a digest, enough to tell contents apart."""
    return digest[:32]


def to_json(value: object, *, where: str = "$") -> Json:
    """Convert a caller's value to plain JSON.

    Raises:
        Error: `invalid_json` with the JSON path of the first NaN, infinity, overlong number, cycle or unknown type;
            `invalid_text` for text that is not valid Unicode.
    """
    return _checked(value, where)[0]


def as_stored(value: object, *, where: str = "$") -> tuple[Json, bytes]:
    """Return a value as it is read back from storage (a tuple becomes a list), and its encoded bytes.

    Raises:
        Error: as `to_json` does.
    """
    plain, found = _checked(value, where)
    return found or _round_trip(plain)


def _checked(value: object, where: str) -> tuple[Json, tuple[Json, bytes] | None]:
    """Return the value as plain JSON, and its round trip through JSON if that preserves it."""
    try:
        plain = _plain(value)
        try:
            found = _round_trip(plain)
        except ValueError:
            found = None
        if found is None or found[0] != plain:
            _refuse_what_json_cannot_carry(plain, where)
    except RecursionError:
        path = _refused_at(value, where)
        raise Error(Code.INVALID_JSON, f"{path} refers to itself or is nested too deeply", path=path) from None
    except (TypeError, NotImplementedError, ValueError) as problem:
        path = _refused_at(value, where)
        raise Error(Code.INVALID_JSON, f"{path} cannot be stored as JSON", because=str(problem), path=path) from None
    return plain, found


def _plain(value: object) -> Json:
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_convert)


def _round_trip(plain: Json) -> tuple[Json, bytes]:
    data = encode(plain)
    return _any.decode(data), data


def _refused_at(value: object, where: str) -> str:
    """Return the JSON path of the unencodable part: followed through lists and dicts, up to a cycle or a foreign
    object.
    """
    above: list[object] = []
    path = where
    while len(above) < _BLAMED_LEVELS:
        if any(value is other for other in above):
            return path
        above.append(value)
        refused = next(((step, part) for step, part in _parts(value) if not _is_plain(part)), None)
        if refused is None:
            return path
        path, value = f"{path}{refused[0]}", refused[1]
    return where


def _parts(value: Json) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        yield from ((f".{key}", item) for key, item in _items(value))
    elif isinstance(value, list | tuple):
        yield from ((f"[{index}]", item) for index, item in enumerate(_elements(value)))


def _is_plain(value: object) -> bool:
    try:
        _plain(value)
    except (RecursionError, TypeError, NotImplementedError, ValueError):
        return False
    return True


def _convert(value: object) -> object:
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    raise NotImplementedError(f"{type(value).__name__} is not JSON")


def _refuse_what_json_cannot_carry(value: Json, where: str) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Error(Code.INVALID_JSON, f"{where} is {value}, which JSON cannot carry", path=where)
    elif isinstance(value, int):
        _refuse_endless(value, where)
    elif isinstance(value, str):
        check_text(value, where=where)
    elif isinstance(value, dict):
        for key, item in _items(value):
            check_text(key, where=where)
            _refuse_what_json_cannot_carry(item, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(_elements(value)):
            _refuse_what_json_cannot_carry(item, f"{where}[{index}]")


def _refuse_endless(number: int, where: str) -> None:
    try:
        str(number)
    except ValueError:  # more digits than Python's limit for int-to-str conversion
        message = f"{where} is a number of {number.bit_length()} bits, which is too long to be written"
        raise Error(Code.INVALID_JSON, message, path=where) from None


def _items(value: Json) -> Iterable[tuple[str, Json]]:
    return value.items()


def _elements(value: Json) -> Sequence[Json]:
    return value


def check_text(text: str, *, where: str) -> str:
    """Return a str (also of a str subclass) as plain text.

    Raises:
        Error: `invalid_argument` for a value that is not text; `invalid_text` for a lone surrogate, which UTF-8 cannot
            encode.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may pass any type
        raise Error(Code.INVALID_ARGUMENT, f"{where} must be text, not {type(text).__name__}", path=where)
    try:
        text.encode()
    except UnicodeEncodeError as problem:
        raise Error(
            Code.INVALID_TEXT,
            f"{where} is not valid Unicode text",
            because=f"character {problem.start} is a lone surrogate",
            hint="decode the bytes with errors='replace' before sending",
            path=where,
        ) from None
    return str.__str__(text)


def differences(recorded: Json, current: Json, *, limit: int = 8) -> tuple[list[str], int]:
    """Describe the first `limit` JSON paths at which two values differ, and return the number of all."""
    found = list(_walk(recorded, current, "$"))
    return found[:limit], len(found)


def _walk(a: Json, b: Json, path: str) -> Iterator[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        left, right = dict(_items(a)), dict(_items(b))
        for key in sorted({*left, *right}):
            yield from _walk(left.get(key, _ABSENT), right.get(key, _ABSENT), f"{path}.{key}")
    elif isinstance(a, list) and isinstance(b, list):
        for index, (one, other) in enumerate(zip_longest(_elements(a), _elements(b), fillvalue=_ABSENT)):
            yield from _walk(one, other, f"{path}[{index}]")
    elif _different(a, b):
        yield f"{path}: {_show(a)} -> {_show(b)}"


def _different(a: Json, b: Json) -> bool:
    return type(a) is not type(b) or a != b


def _show(value: Json) -> str:
    if value is _ABSENT:
        return "absent"
    text = encode(value)
    return text.decode() if len(text) <= _SHOWN_BYTES else f"<{len(text)} bytes>"


_ABSENT = object()
_SHOWN_BYTES = 2048
_BLAMED_LEVELS = 64
