"""How much of a result a model is shown, and how it gets at the rest.

Laws: what is shown is at most `MAX_SHOWN_BYTES` of JSON and never cuts a character in half. A hint that tells how to
go on is only given where going on works.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from perdure.codec import Json, encode, head_of
from perdure.commit.plan import Blob, blob_of
from perdure.ids import CallId

MAX_SHOWN_BYTES = 65_536
MAX_KEPT_BYTES = 16_777_216
_HEAD_BYTES = 61_440  # leaves room for what stands around it
_GONE = "the rest is not kept; ask the tool for a narrower part"
READ_RESULT = "read_result"


@dataclass(frozen=True, slots=True)
class Shown:
    """What the model sees of a value, and the whole of it where that is more."""

    value: Json
    rest: Blob | None = None


def fit(value: Json, call: CallId, *, readable: bool) -> Shown:
    """A value under the ceiling: itself, or its head and what to do about the rest.

    `readable`: the model can call `read_result` with this call's id.
    """
    data = encode(value)
    if len(data) <= MAX_SHOWN_BYTES:
        return Shown(value)
    is_text = isinstance(value, str)
    whole = value.encode() if is_text else data
    rest = blob_of(whole, "text/plain" if is_text else "application/json") if len(whole) <= MAX_KEPT_BYTES else None
    return Shown(_part(whole, 0, call, readable=readable and rest is not None), rest)


def page(whole: bytes, offset: int, call: CallId) -> Json:
    """The part of a kept result that begins at a byte; a place inside a character counts as its beginning."""
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
    """Whether what a model was shown is a part that `read_result` can continue."""
    return isinstance(output, dict) and "resume_hint" in output and "next_offset" in output


def unkept(value: Json) -> Json:
    """A part whose rest went missing on the way: it must not promise what nobody can keep."""
    if not can_be_continued(value):
        return value
    going_on = ("next_offset", "resume_hint")
    part = {key: item for key, item in cast("dict[str, Json]", value).items() if key not in going_on}
    return {**part, "hint": _GONE}
