"""Names inside one turn: the ids of its effects and of its tool calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perdure.errors import Code, Error
from perdure.ids import CallId, EffectId, TurnId

Tail = Literal["", "sleep", "probe"]


@dataclass(frozen=True, slots=True)
class EffectRef:
    """What an effect id refers to: a model call (`index` is None) or a tool call, one attempt of it, and its tail."""

    iteration: int
    index: int | None
    attempt: int
    tail: Tail = ""

    @property
    def id(self) -> EffectId:
        """`m{iteration}.{attempt}` or `c{iteration}.{index}.{attempt}`, then `.sleep` or `.probe`."""
        base = f"m{self.iteration}" if self.index is None else f"c{self.iteration}.{self.index}"
        tail = f".{self.tail}" if self.tail else ""
        return EffectId(f"{base}.{self.attempt}{tail}")

    @staticmethod
    def parse(effect: EffectId) -> EffectRef:
        """The inverse of `id`."""
        parts = effect[1:].split(".")
        tail: Tail = "sleep" if parts[-1] == "sleep" else "probe" if parts[-1] == "probe" else ""
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


def call_id(turn: TurnId, iteration: int, index: int) -> CallId:
    """Our id of a tool call: `{turn}.{iteration}.{index}`."""
    return CallId(f"{turn}.{iteration}.{index}")
