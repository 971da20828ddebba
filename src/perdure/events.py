"""Events of a session or turn, as observers receive them."""

from __future__ import annotations

from perdure.observe.events import (
    Cursor,
    DeltasDropped,
    Event,
    RecordEvent,
    TextDelta,
    TextReset,
    ToolOutputDelta,
    ToolProgress,
)

__all__ = [
    "Cursor",
    "DeltasDropped",
    "Event",
    "RecordEvent",
    "TextDelta",
    "TextReset",
    "ToolOutputDelta",
    "ToolProgress",
]
