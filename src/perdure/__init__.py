"""Perdure: a durable agent runtime. After a crash, every session continues from its last recorded step."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from perdure.errors import Code, Error
from perdure.ids import VERSION as __version__

if TYPE_CHECKING:
    from perdure.codemode.mode import code_mode
    from perdure.effects.attachments import Attachment
    from perdure.runtime.agent import Agent
    from perdure.runtime.deps import per_turn
    from perdure.runtime.processes.context import ProcessContext
    from perdure.runtime.processes.function import process
    from perdure.runtime.runtime import Runtime, run
    from perdure.runtime.sessions.sent import TurnHandle
    from perdure.runtime.sessions.session import Session
    from perdure.runtime.shared import TurnResult
    from perdure.runtime.tuning import RuntimeOptions
    from perdure.runtime.usage_limits import UsageLimits
    from perdure.runtime.work import WorkerOptions
    from perdure.services.files.shapes import InitialFile
    from perdure.tools.client_side import ask_user, client_tool
    from perdure.tools.context import ToolContext
    from perdure.tools.decorator import Tool, tool
    from perdure.tools.errors import OutcomeUnknown, ToolError
    from perdure.tools.handoff import handoff
    from perdure.tools.mcp.servers import McpServers
    from perdure.tools.objects import BaseTool
    from perdure.tools.spawn_subagent import spawn_subagent
    from perdure.tools.step_outcomes import EventFailed, EventTimedOut, StepFailed
    from perdure.tools.verdicts import CannotTell, DidNotHappen, Happened
    from perdure.vocab.promises import EventKey, Failure
    from perdure.vocab.tools import RetryPolicy, ToolHints

_WHERE = {
    "Agent": "perdure.runtime.agent",
    "Attachment": "perdure.effects.attachments",
    "BaseTool": "perdure.tools.objects",
    "CannotTell": "perdure.tools.verdicts",
    "DidNotHappen": "perdure.tools.verdicts",
    "EventFailed": "perdure.tools.step_outcomes",
    "EventKey": "perdure.vocab.promises",
    "EventTimedOut": "perdure.tools.step_outcomes",
    "Failure": "perdure.vocab.promises",
    "Happened": "perdure.tools.verdicts",
    "InitialFile": "perdure.services.files.shapes",
    "McpServers": "perdure.tools.mcp.servers",
    "OutcomeUnknown": "perdure.tools.errors",
    "ProcessContext": "perdure.runtime.processes.context",
    "RetryPolicy": "perdure.vocab.tools",
    "Runtime": "perdure.runtime.runtime",
    "RuntimeOptions": "perdure.runtime.tuning",
    "Session": "perdure.runtime.sessions.session",
    "StepFailed": "perdure.tools.step_outcomes",
    "Tool": "perdure.tools.decorator",
    "ToolContext": "perdure.tools.context",
    "ToolError": "perdure.tools.errors",
    "ToolHints": "perdure.vocab.tools",
    "TurnHandle": "perdure.runtime.sessions.sent",
    "TurnResult": "perdure.runtime.shared",
    "UsageLimits": "perdure.runtime.usage_limits",
    "WorkerOptions": "perdure.runtime.work",
    "ask_user": "perdure.tools.client_side",
    "client_tool": "perdure.tools.client_side",
    "code_mode": "perdure.codemode.mode",
    "handoff": "perdure.tools.handoff",
    "per_turn": "perdure.runtime.deps",
    "process": "perdure.runtime.processes.function",
    "run": "perdure.runtime.runtime",
    "spawn_subagent": "perdure.tools.spawn_subagent",
    "tool": "perdure.tools.decorator",
}

__all__ = [
    "Agent",
    "Attachment",
    "BaseTool",
    "CannotTell",
    "Code",
    "DidNotHappen",
    "Error",
    "EventFailed",
    "EventKey",
    "EventTimedOut",
    "Failure",
    "Happened",
    "InitialFile",
    "McpServers",
    "OutcomeUnknown",
    "ProcessContext",
    "RetryPolicy",
    "Runtime",
    "RuntimeOptions",
    "Session",
    "StepFailed",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolHints",
    "TurnHandle",
    "TurnResult",
    "UsageLimits",
    "WorkerOptions",
    "__version__",
    "ask_user",
    "client_tool",
    "code_mode",
    "handoff",
    "per_turn",
    "process",
    "run",
    "spawn_subagent",
    "tool",
]


def __getattr__(name: str) -> object:
    """Load a public name on first use: importing perdure itself costs almost nothing."""
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'perdure' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
