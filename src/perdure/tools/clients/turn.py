"""The turn a call belongs to, as a tool or a provider may know it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from perdure.codec import Json
from perdure.ids import SessionId, TurnId

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnContext:
    """Which turn this is, and what the host said about it besides the input (`send(plugin_input=…)`)."""

    session_id: SessionId | None = None
    turn_id: TurnId | None = None
    turn_index: int = 0
    iteration: int = 0
    agent: str = ""
    model: str = ""
    plugin_inputs: Mapping[str, Json] = field(default_factory=dict[str, Json], repr=False)

    def plugin_input(self, plugin_id: str, type: type[T]) -> T | None:
        """What the host said to one plugin, as `type`; None if it said nothing, or something of another shape."""
        if plugin_id not in self.plugin_inputs:
            return None
        try:
            return msgspec.convert(self.plugin_inputs[plugin_id], type)
        except msgspec.ValidationError:
            return None
