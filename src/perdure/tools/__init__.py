"""Tools: `@tool`, the context of a call, the toolbox of an agent, and the execution of one attempt."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.tools.execution_result import Image, ToolResult
    from perdure.tools.registry import ToolRegistry

_WHERE = {
    "Image": "perdure.tools.execution_result",
    "ToolRegistry": "perdure.tools.registry",
    "ToolResult": "perdure.tools.execution_result",
}

__all__ = [
    "Image",
    "ToolRegistry",
    "ToolResult",
]


def __getattr__(name: str) -> object:
    """Load a public name on first use."""
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'perdure.tools' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
