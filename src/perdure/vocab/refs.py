"""Names inside one turn: the ids of its effects and of its tool calls."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, get_args

import msgspec

from perdure.errors import Code, Error
from perdure.ids import CallId, EffectId, TurnId

Tail = Literal["", "sleep", "probe", "completion", "approval", "doubt"]
_TAILS: dict[str, Tail] = {
    "sleep": "sleep",
    "probe": "probe",
    "completion": "completion",
    "approval": "approval",
    "doubt": "doubt",
}


class EffectRef(msgspec.Struct, frozen=True, gc=False):
    """What an effect id refers to: a model call (`index` is None) or a tool call, one attempt of it, and its tail."""

    iteration: int
    index: int | None
    attempt: int
    tail: Tail = ""

    @property
    def id(self) -> EffectId:
        """`m{iteration}.{attempt}` or `c{iteration}.{index}.{attempt}`, then the tail."""
        base = f"m{self.iteration}" if self.index is None else f"c{self.iteration}.{self.index}"
        tail = f".{self.tail}" if self.tail else ""
        return EffectId(f"{base}.{self.attempt}{tail}")

    @staticmethod
    @lru_cache(maxsize=1024)  # the effects of most turns have the same few ids
    def parse(effect: EffectId) -> EffectRef:
        """The inverse of `id`."""
        parts = effect[1:].split(".")
        tail: Tail = _TAILS.get(parts[-1], "")
        try:
            numbers = [int(part) for part in (parts[:-1] if tail else parts)]
        except ValueError:
            numbers = []
        match effect[:1], numbers:
            case "m", [iteration, attempt]:
                return EffectRef(iteration, None, attempt, tail)
            case "c", [iteration, index, attempt]:
                return EffectRef(iteration, index, attempt, tail)
            case _:
                raise Error(Code.TURN_EVENT_UNEXPECTED, f"{effect!r} is not the id of an effect of a turn")


PartKind = Literal[
    "step",
    "sleep",
    "event",
    "value",
    "direct",
    "signal",
    "start",
    "wait",
    "ask",
    "answer",
    "first",
    "gather",
    "process",
    "trigger",
    "approval",
    "doubt",
    "client",
    "code",
    "checkpoint",
    "environment",
    "again",
    "asked",
]
_PARTS: dict[str, PartKind] = {kind: kind for kind in get_args(PartKind)}


class PartRef(msgspec.Struct, frozen=True, gc=False):
    """A named part of a call's body. It belongs to the call, whichever attempt came to it first.

    Of a process's body, if the iteration is -1: no call has that.
    """

    iteration: int
    index: int
    kind: PartKind
    name: str

    @property
    def of_process(self) -> bool:
        """Whether it is a part of a process, and of no call."""
        return self.iteration < 0

    @property
    def id(self) -> EffectId:
        """`c{iteration}.{index}/{kind}:{name}`; the name comes last, so that it may hold anything."""
        body = PROCESS_BODY if self.of_process else call_body(self.iteration, self.index)
        return part_id(body, self.kind, self.name)

    @staticmethod
    def parse(effect: EffectId) -> PartRef:
        """The inverse of `id`."""
        call, _, part = effect.partition("/")
        kind, _, name = part.partition(":")
        try:
            iteration, index = (int(n) for n in call[1:].split(".")) if call != PROCESS_BODY else (-1, 0)
            return PartRef(iteration, index, _PARTS[kind], name)
        except (ValueError, KeyError):
            raise Error(Code.TURN_EVENT_UNEXPECTED, f"{effect!r} is not the id of a part of a call") from None


PROCESS_BODY = "p"
"""What the ids of the parts of a process begin with: `p/step:fetch`."""


def call_body(iteration: int, index: int) -> str:
    """What the ids of the parts of a call begin with."""
    return f"c{iteration}.{index}"


def part_id(body: str, kind: PartKind, name: str) -> EffectId:
    """The id of a named part of a body."""
    return EffectId(f"{body}/{kind}:{name}")


def part_beside(effect: EffectId, kind: PartKind) -> EffectId:
    """The part of the same body and name that is of another kind."""
    body, _, part = effect.partition("/")
    return EffectId(f"{body}/{kind}:{part.partition(':')[2]}")


def is_part(effect: EffectId) -> bool:
    """Whether an effect id names a part of a call's body, rather than something the turn itself owes."""
    return "/" in effect


def parse_ref(effect: EffectId) -> EffectRef | PartRef:
    """What an effect id refers to."""
    return PartRef.parse(effect) if is_part(effect) else EffectRef.parse(effect)


def call_id(turn: TurnId, iteration: int, index: int) -> CallId:
    """Our id of a tool call: `{turn}.{iteration}.{index}`."""
    return CallId(f"{turn}.{iteration}.{index}")
