"""Ids inside one turn: of effects, of body parts and of tool calls."""

from __future__ import annotations

import re
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
    """A parsed effect id: a model call (`index` is None) or a tool call, one attempt of it, and its tail."""

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
    @lru_cache(maxsize=1024)  # most turns use the same few effect ids
    def parse(effect: EffectId) -> EffectRef:
        """Parse an effect id."""
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
    """A named part of a call's body. It belongs to the call, not to an attempt.

    Iteration -1 marks a part of a process's body. `inside` names the step whose own body contains the part.
    """

    iteration: int
    index: int
    kind: PartKind
    name: str
    inside: str = ""

    @property
    def of_process(self) -> bool:
        """True for a part of a process, not of a call."""
        return self.iteration < 0

    @property
    def id(self) -> EffectId:
        """`c{iteration}.{index}/{kind}:{name}`, and `c{iteration}.{index}~{step}/{kind}:{name}` inside a step.

        The name comes last, so that it may contain any character.
        """
        body = PROCESS_BODY if self.of_process else call_body(self.iteration, self.index)
        return part_id(inner_body(body, self.inside) if self.inside else body, self.kind, self.name)

    @staticmethod
    def parse(effect: EffectId) -> PartRef:
        """Parse the id of a body part."""
        body, _, part = effect.partition("/")
        call, _, step = body.partition("~")
        kind, _, name = part.partition(":")
        inside = step.replace("%7E", "~").replace("%2F", "/").replace("%25", "%")
        try:
            iteration, index = (int(n) for n in call[1:].split(".")) if call != PROCESS_BODY else (-1, 0)
            return PartRef(iteration, index, _PARTS[kind], name, inside)
        except (ValueError, KeyError):
            raise Error(Code.TURN_EVENT_UNEXPECTED, f"{effect!r} is not the id of a part of a call") from None


_AGAIN = re.compile(r":again:\d+\Z")

PROCESS_BODY = "p"
"""Prefix of the ids of a process's parts: `p/step:fetch`."""


def call_body(iteration: int, index: int) -> str:
    """Return the prefix of the ids of a call's parts."""
    return f"c{iteration}.{index}"


def inner_body(body: str, step: str) -> str:
    """Return the prefix of the part ids of a body that a step of another body runs."""
    return f"{body}~{step.replace('%', '%25').replace('/', '%2F').replace('~', '%7E')}"


def outer_body(effect: EffectId) -> str:
    """Return the body of the call that contains a part, directly or in an inner body."""
    return effect.partition("/")[0].partition("~")[0]


def is_within(effect: EffectId, body: str) -> bool:
    """Return True if the effect is a part of this body or of one inside it. An empty name matches every effect."""
    return not body or effect.startswith((f"{body}/", f"{body}~"))


def again(step: str, time: int) -> str:
    """Return the name of the step that runs a call for the n-th time, from 0."""
    return step if not time else f"{step}:again:{time}"


def first_time(step: str) -> str:
    """Return the name of the step that first ran the same call. The parts of later runs belong to it."""
    return _AGAIN.sub("", step)


def part_id(body: str, kind: PartKind, name: str) -> EffectId:
    """Return the id of a named part of a body."""
    return EffectId(f"{body}/{kind}:{name}")


def part_beside(effect: EffectId, kind: PartKind) -> EffectId:
    """Return the id of the part of another kind with the same body and name."""
    body, _, part = effect.partition("/")
    return EffectId(f"{body}/{kind}:{part.partition(':')[2]}")


PART = "/"
"""The separator in the id of every body part, and in no other id: a cheap test for hot loops."""


def is_part(effect: EffectId, kind: PartKind | None = None) -> bool:
    """Return True if an effect id names a part (of this kind) of a body, not an effect that the turn owes."""
    return PART in effect and (kind is None or effect.partition("/")[2].startswith(f"{kind}:"))


def parse_ref(effect: EffectId) -> EffectRef | PartRef:
    """Parse any effect id."""
    return PartRef.parse(effect) if is_part(effect) else EffectRef.parse(effect)


def call_id(turn: TurnId, iteration: int, index: int) -> CallId:
    """Return Perdure's id of a tool call: `{turn}.{iteration}.{index}`."""
    return CallId(f"{turn}.{iteration}.{index}")
