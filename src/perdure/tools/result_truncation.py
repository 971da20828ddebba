"""Truncation of large results for the model, and paging through the rest.

Laws: a shown part has at most `MAX_SHOWN_BYTES` of JSON and never splits a character. A hint to continue appears only
where continuing works.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from perdure.codec import Json, encode, head_of
from perdure.commit.plan import Blob, blob_of
from perdure.ids import CallId

MAX_SHOWN_BYTES = 65_536
MAX_KEPT_BYTES = 16_777_216
_HEAD_BYTES = 61_440  # leaves room for the surrounding fields
_GONE = "the rest is not kept; ask the tool for a narrower part"
READ_RESULT = "read_result"


@dataclass(frozen=True, slots=True)
class TruncatedValue:
    """The value shown to the model, and the complete bytes if it was truncated."""

    value: Json
    rest: Blob | None = None


def fit(value: Json, call: CallId, *, readable: bool) -> TruncatedValue:
    """Return the value if it fits, or its head with instructions for the rest.

    `readable`: the model can call `read_result` with this call's id.
    """
    data = encode(value)
    if len(data) <= MAX_SHOWN_BYTES:
        return TruncatedValue(value)
    is_text = isinstance(value, str)
    whole = value.encode() if is_text else data
    rest = blob_of(whole, "text/plain" if is_text else "application/json") if len(whole) <= MAX_KEPT_BYTES else None
    return TruncatedValue(_part(whole, 0, call, readable=readable and rest is not None), rest)


def page(whole: bytes, offset: int, call: CallId) -> Json:
    """Return the part of a stored result from a byte offset, rounded down to a character boundary."""
    start = max(0, min(offset, len(whole)))
    while 0 < start < len(whole) and whole[start] & 0xC0 == 0x80:
        start -= 1
    return _part(whole, start, call, readable=True)


def _part(whole: bytes, start: int, call: CallId, *, readable: bool) -> Json:
    text = head_of(whole[start : start + _HEAD_BYTES].decode(errors="ignore"), _HEAD_BYTES)
    end = start + len(text.encode())
    part: dict[str, Json] = {
        "call": call,
        "truncated": end < len(whole),
        "reason": "size_cap",
        "bytes_total": len(whole),
        "bytes_returned": end - start,
        "offset": start,
        "text": text,
    }
    if end >= len(whole):
        del part["reason"]
    elif readable:
        part["next_offset"] = end
        part["resume_hint"] = f"call {READ_RESULT} with this call and offset {end} for the next part"
    else:
        part["hint"] = _GONE
    return part


def can_be_continued(output: Json) -> bool:
    """Return True if `read_result` can continue the shown part."""
    return isinstance(output, dict) and "resume_hint" in output and "next_offset" in output


def unkept(value: Json) -> Json:
    """Remove the offer to continue from a part whose rest was lost."""
    if not can_be_continued(value):
        return value
    going_on = ("next_offset", "resume_hint")
    part = {key: item for key, item in cast("dict[str, Json]", value).items() if key not in going_on}
    return {**part, "hint": _GONE}
