"""Verdicts of a probe about a call in doubt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from perdure.codec import Json


@dataclass(frozen=True, slots=True)
class Happened:
    """The call took effect. `value` is the result it would have returned."""

    value: Json = None


@dataclass(frozen=True, slots=True)
class DidNotHappen:
    """The call had no effect, and cannot take effect later."""


@dataclass(frozen=True, slots=True)
class CannotTell:
    """The external system cannot tell."""

    reason: str = ""


Verdict: TypeAlias = Happened | DidNotHappen | CannotTell
