"""Public kit for tests of applications: scripted model, manual clock, ledger, crash points, store laws.

Names are loaded on first use. The pytest plugin imports this package and must cost nothing where it is not used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.models.scripted import ScriptedModel, call, calls, fail, give, malformed, refuse, say, truncate
    from perdure.testing.clock import ManualClock
    from perdure.testing.contexts import tool_context
    from perdure.testing.crash import Boundary
    from perdure.testing.faults import faulty_store
    from perdure.testing.gated_store import AppendGate
    from perdure.testing.sweep import CrashReport, every_boundary
    from perdure.testing.world import Ledger, LedgerEntry, World

_SCRIPTED = ("ScriptedModel", "call", "calls", "fail", "give", "malformed", "refuse", "say", "truncate")
_WHERE = {
    **dict.fromkeys(_SCRIPTED, "perdure.models.scripted"),
    "AppendGate": "perdure.testing.gated_store",
    "Boundary": "perdure.testing.crash",
    "CrashReport": "perdure.testing.sweep",
    "Ledger": "perdure.testing.world",
    "LedgerEntry": "perdure.testing.world",
    "ManualClock": "perdure.testing.clock",
    "World": "perdure.testing.world",
    "every_boundary": "perdure.testing.sweep",
    "faulty_store": "perdure.testing.faults",
    "tool_context": "perdure.testing.contexts",
}

__all__ = [
    "AppendGate",
    "Boundary",
    "CrashReport",
    "Ledger",
    "LedgerEntry",
    "ManualClock",
    "ScriptedModel",
    "World",
    "call",
    "calls",
    "every_boundary",
    "fail",
    "faulty_store",
    "give",
    "malformed",
    "refuse",
    "say",
    "tool_context",
    "truncate",
]


def __getattr__(name: str) -> object:
    """Load a public name on first use."""
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'perdure.testing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
