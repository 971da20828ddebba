"""For authors of tool providers: tools that come from another system."""

from __future__ import annotations

from perdure.tools.prepare import ToolPrepareContext
from perdure.tools.provider import ProviderContext, ToolProvider
from perdure.vocab.effects import PreparedToolCall
from perdure.vocab.tools import ToolManifest

__all__ = [
    "PreparedToolCall",
    "ProviderContext",
    "ToolManifest",
    "ToolPrepareContext",
    "ToolProvider",
]
