"""The public kit for testing with Perdure: scripted model, manual clock, a world with a ledger, crashes, store laws.

Names are loaded on first use: the pytest plugin lives here too, and must cost nothing where it is not used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.models.scripted import ScriptedModel, call, calls, cut, fail, malformed, refuse, say
    from perdure.testing.clock import ManualClock
    from perdure.testing.crash import Boundary
    from perdure.testing.faults import faulty
    from perdure.testing.held import Gatekeeper
    from perdure.testing.sweep import Crash, every_boundary
    from perdure.testing.world import Ledger, Line, World

_SCRIPTED = ("ScriptedModel", "call", "calls", "cut", "fail", "malformed", "refuse", "say")
_WHERE = {
    **dict.fromkeys(_SCRIPTED, "perdure.models.scripted"),
    "Boundary": "perdure.testing.crash",
    "Crash": "perdure.testing.sweep",
    "Gatekeeper": "perdure.testing.held",
    "Ledger": "perdure.testing.world",
    "Line": "perdure.testing.world",
    "ManualClock": "perdure.testing.clock",
    "World": "perdure.testing.world",
    "every_boundary": "perdure.testing.sweep",
    "faulty": "perdure.testing.faults",
}

__all__ = [
    "Boundary",
    "Crash",
    "Gatekeeper",
    "Ledger",
    "Line",
    "ManualClock",
    "ScriptedModel",
    "World",
    "call",
    "calls",
    "cut",
    "every_boundary",
    "fail",
    "faulty",
    "malformed",
    "refuse",
    "say",
]


def __getattr__(name: str) -> object:
    """Load a public name on first use."""
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'perdure.testing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
