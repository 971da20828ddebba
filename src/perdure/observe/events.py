"""Events for observers, and the cursor from which any observer can continue."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import Literal, TypeAlias

from perdure.errors import Code, Error
from perdure.ids import CallId, EffectId, Seq, TurnId
from perdure.vocab.records import Record

LAST = 2**63
"""Upper bound of every number in a cursor: no store counts further."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position in a session: after record `seq`, and after `offset` characters of live text in `run` of `effect`."""

    seq: Seq = Seq(0)
    effect: EffectId = EffectId("")
    offset: int = 0
    run: int = 0

    def __str__(self) -> str:
        seq = f"{self.seq}.{self.run}" if self.run else str(self.seq)
        return urlsafe_b64encode(f"{seq}:{self.effect}:{self.offset}".encode()).decode().rstrip("=")

    @staticmethod
    def parse(text: str) -> Cursor:
        """Parse a cursor; the empty string is the beginning.

        Raises:
            Error: `invalid_cursor`.
        """
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - it comes from outside
            raise Error(Code.INVALID_CURSOR, f"a cursor must be a string, not {type(text).__name__}")
        if not text:
            return Cursor()
        try:
            place, rest = urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode().split(":", 1)
            seq, _, run = place.partition(".")
            effect, offset = rest.rsplit(":", 1)
            numbers = [int(one) if one.isascii() and one.isdecimal() else -1 for one in (seq, offset, run or "0")]
            if place.endswith(".") or not all(0 <= one < LAST for one in numbers):
                raise ValueError(text)
            return Cursor(Seq(numbers[0]), EffectId(effect), numbers[1], numbers[2])
        except ValueError:
            raise Error(
                Code.INVALID_CURSOR,
                f"{text[:40]!r} is not a cursor",
                hint="pass the cursor of an event you received, or nothing to start at the beginning",
            ) from None


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """A durable record."""

    cursor: Cursor
    at: int
    record: Record
    type: Literal["fact"] = "fact"


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of a reply in progress. Not durable: the saved reply replaces it."""

    cursor: Cursor
    turn: TurnId
    effect: EffectId
    text: str
    thinking: bool = False
    type: Literal["delta"] = "delta"


@dataclass(frozen=True, slots=True)
class TextReset:
    """Notice that the `chars` characters of a reply shown so far are void: the model call was repeated or has failed.

    `turn` is blank if the text was shown before the observer's first cursor."""

    cursor: Cursor
    turn: TurnId
    effect: EffectId
    chars: int
    type: Literal["superseded"] = "superseded"


@dataclass(frozen=True, slots=True)
class ToolProgress:
    """A progress message of a running call. Not durable."""

    cursor: Cursor
    turn: TurnId
    effect: EffectId
    call: CallId
    tool: str
    message: str
    display_name: str = ""
    type: Literal["tool.progress"] = "tool.progress"


@dataclass(frozen=True, slots=True)
class ToolOutputDelta:
    """A piece of the output of a running call, with its stream (`stdout`, `stderr`). Not durable."""

    cursor: Cursor
    turn: TurnId
    effect: EffectId
    call: CallId
    tool: str
    text: str
    stream: str
    type: Literal["tool.output.delta"] = "tool.output.delta"


@dataclass(frozen=True, slots=True)
class DeltasDropped:
    """Notice of dropped live pieces: the observer was slow, or a tool emitted too much. Facts are never dropped."""

    cursor: Cursor
    dropped: int
    type: Literal["gap"] = "gap"


Live: TypeAlias = TextDelta | ToolProgress | ToolOutputDelta
Event: TypeAlias = RecordEvent | Live | TextReset | DeltasDropped
