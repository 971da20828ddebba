"""What a probe may answer about a call nobody knows the outcome of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from perdure.codec import Json


@dataclass(frozen=True, slots=True)
class Happened:
    """The call took effect; `value` is what it would have returned."""

    value: Json = None


@dataclass(frozen=True, slots=True)
class DidNotHappen:
    """The call had no effect, and none is on its way."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The outside system cannot say either."""

    reason: str = ""


Verdict: TypeAlias = Happened | DidNotHappen | Unknown
