"""The turn of a call, as visible to a tool or a provider."""

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
    """The turn and the host's plugin inputs for it (`send(plugin_input=…)`)."""

    session_id: SessionId | None = None
    turn_id: TurnId | None = None
    turn_index: int = 0
    iteration: int = 0
    agent: str = ""
    model: str = ""
    plugin_inputs: Mapping[str, Json] = field(default_factory=dict[str, Json], repr=False)

    def plugin_input(self, plugin_id: str, type: type[T]) -> T | None:
        """Return the host's input to one plugin as `type`, or None if absent or of another type."""
        if plugin_id not in self.plugin_inputs:
            return None
        try:
            return msgspec.convert(self.plugin_inputs[plugin_id], type)
        except msgspec.ValidationError:
            return None
