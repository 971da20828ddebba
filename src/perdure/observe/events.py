"""What an observer gets, and the cursor from which it can go on anywhere."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import Literal, TypeAlias

from perdure.errors import Code, Error
from perdure.ids import CallId, EffectId, Seq, TurnId
from perdure.vocab.records import Record

LAST = 2**63
"""No store counts further."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in a session: after this record, and after so many characters of that attempt's live text, in that run
    of it."""

    seq: Seq = Seq(0)
    effect: EffectId = EffectId("")
    offset: int = 0
    run: int = 0

    def __str__(self) -> str:
        seq = f"{self.seq}.{self.run}" if self.run else str(self.seq)
        return urlsafe_b64encode(f"{seq}:{self.effect}:{self.offset}".encode()).decode().rstrip("=")

    @staticmethod
    def parse(text: str) -> Cursor:
        """Read a cursor; the empty text is the beginning.

        Raises:
            Error: `invalid_cursor`.
        """
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - it comes from outside
            raise Error(Code.INVALID_CURSOR, f"a cursor is text, not {type(text).__name__}")
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
class Fact:
    """A durable record."""

    cursor: Cursor
    at: int
    record: Record
    type: Literal["fact"] = "fact"


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a reply while it is being written. Not durable: the saved reply replaces it."""

    cursor: Cursor
    turn: TurnId
    effect: EffectId
    text: str
    thinking: bool = False
    type: Literal["delta"] = "delta"


@dataclass(frozen=True, slots=True)
class Superseded:
    """The pieces of a reply that were shown so far, this many characters, are void: the model is asked again, or its
    attempt has failed. `turn` is blank if they were shown before the cursor this observer came with."""

    cursor: Cursor
    turn: TurnId
    effect: EffectId
    chars: int
    type: Literal["superseded"] = "superseded"


@dataclass(frozen=True, slots=True)
class Progress:
    """A running call says how far it is. Not durable."""

    cursor: Cursor
    turn: TurnId
    effect: EffectId
    call: CallId
    tool: str
    message: str
    display_name: str = ""
    type: Literal["tool.progress"] = "tool.progress"


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """A piece of what a running call prints, on the stream it prints to (`stdout`, `stderr`). Not durable."""

    cursor: Cursor
    turn: TurnId
    effect: EffectId
    call: CallId
    tool: str
    text: str
    stream: str
    type: Literal["tool.output.delta"] = "tool.output.delta"


@dataclass(frozen=True, slots=True)
class Gap:
    """Live pieces were dropped: this observer was slow, or a tool said too much. Durable facts never are."""

    cursor: Cursor
    dropped: int
    type: Literal["gap"] = "gap"


Live: TypeAlias = Delta | Progress | OutputDelta
Event: TypeAlias = Fact | Live | Superseded | Gap
