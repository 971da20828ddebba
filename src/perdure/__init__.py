"""Perdure: a durable agent runtime. Kill the process anywhere, start it again, and every session carries on."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from perdure.errors import Code, Error
from perdure.ids import VERSION as __version__

if TYPE_CHECKING:
    from perdure.effects.attachments import Attachment
    from perdure.observe.events import Cursor, Delta, Event, Fact, Gap, OutputDelta, Progress
    from perdure.observe.pending import PendingItem
    from perdure.observe.why import Why
    from perdure.runtime.agent import Agent
    from perdure.runtime.deps import DepsContext, per_turn
    from perdure.runtime.instructions import InstructionsContext
    from perdure.runtime.processes.context import ProcessContext
    from perdure.runtime.processes.function import process
    from perdure.runtime.runtime import Runtime, run
    from perdure.runtime.sessions.sent import Sent
    from perdure.runtime.sessions.session import Session
    from perdure.runtime.shared import TurnResult
    from perdure.runtime.tuning import Tuning
    from perdure.runtime.work import Work
    from perdure.services.files.shapes import InitialFile
    from perdure.store.aes_gcm import AesGcm
    from perdure.store.encoded import Codec
    from perdure.tools.client_side import ask_user, client_tool
    from perdure.tools.clients.completions import DirectRequest
    from perdure.tools.clients.dispatch import ChildCall
    from perdure.tools.context import CancelToken, ToolContext
    from perdure.tools.decorator import Tool, tool
    from perdure.tools.endings import EventFailed, EventTimedOut, StepFailed
    from perdure.tools.errors import OutcomeUnknown, ToolError
    from perdure.tools.execution_result import ToolExecutionResult, ToolResultImage
    from perdure.tools.objects import ToolObject
    from perdure.tools.prepare import ToolPrepareContext
    from perdure.tools.provider import ToolProvider
    from perdure.tools.registry import ToolRegistry
    from perdure.tools.verdicts import DidNotHappen, Happened, Unknown
    from perdure.vocab.effects import PreparedToolCall
    from perdure.vocab.messages import AttachmentRef
    from perdure.vocab.outcomes import PendingCompletion
    from perdure.vocab.promises import AwaitEventKey, Err
    from perdure.vocab.tools import RetryPolicy, ToolHints, ToolManifest
    from perdure.vocab.usage import Usage

_WHERE = {
    "AesGcm": "perdure.store.aes_gcm",
    "Agent": "perdure.runtime.agent",
    "Attachment": "perdure.effects.attachments",
    "AttachmentRef": "perdure.vocab.messages",
    "AwaitEventKey": "perdure.vocab.promises",
    "CancelToken": "perdure.tools.context",
    "ChildCall": "perdure.tools.clients.dispatch",
    "Codec": "perdure.store.encoded",
    "Cursor": "perdure.observe.events",
    "Delta": "perdure.observe.events",
    "DepsContext": "perdure.runtime.deps",
    "DidNotHappen": "perdure.tools.verdicts",
    "DirectRequest": "perdure.tools.clients.completions",
    "Err": "perdure.vocab.promises",
    "Event": "perdure.observe.events",
    "EventFailed": "perdure.tools.endings",
    "EventTimedOut": "perdure.tools.endings",
    "Fact": "perdure.observe.events",
    "Gap": "perdure.observe.events",
    "Happened": "perdure.tools.verdicts",
    "InitialFile": "perdure.services.files.shapes",
    "InstructionsContext": "perdure.runtime.instructions",
    "OutcomeUnknown": "perdure.tools.errors",
    "OutputDelta": "perdure.observe.events",
    "PendingCompletion": "perdure.vocab.outcomes",
    "PendingItem": "perdure.observe.pending",
    "PreparedToolCall": "perdure.vocab.effects",
    "ProcessContext": "perdure.runtime.processes.context",
    "Progress": "perdure.observe.events",
    "RetryPolicy": "perdure.vocab.tools",
    "Runtime": "perdure.runtime.runtime",
    "Sent": "perdure.runtime.sessions.sent",
    "Session": "perdure.runtime.sessions.session",
    "StepFailed": "perdure.tools.endings",
    "Tool": "perdure.tools.decorator",
    "ToolContext": "perdure.tools.context",
    "ToolError": "perdure.tools.errors",
    "ToolExecutionResult": "perdure.tools.execution_result",
    "ToolHints": "perdure.vocab.tools",
    "ToolManifest": "perdure.vocab.tools",
    "ToolObject": "perdure.tools.objects",
    "ToolPrepareContext": "perdure.tools.prepare",
    "ToolProvider": "perdure.tools.provider",
    "ToolRegistry": "perdure.tools.registry",
    "ToolResultImage": "perdure.tools.execution_result",
    "Tuning": "perdure.runtime.tuning",
    "TurnResult": "perdure.runtime.shared",
    "Unknown": "perdure.tools.verdicts",
    "Usage": "perdure.vocab.usage",
    "Why": "perdure.observe.why",
    "Work": "perdure.runtime.work",
    "ask_user": "perdure.tools.client_side",
    "client_tool": "perdure.tools.client_side",
    "per_turn": "perdure.runtime.deps",
    "process": "perdure.runtime.processes.function",
    "run": "perdure.runtime.runtime",
    "tool": "perdure.tools.decorator",
}

__all__ = [
    "AesGcm",
    "Agent",
    "Attachment",
    "AttachmentRef",
    "AwaitEventKey",
    "CancelToken",
    "ChildCall",
    "Code",
    "Codec",
    "Cursor",
    "Delta",
    "DepsContext",
    "DidNotHappen",
    "DirectRequest",
    "Err",
    "Error",
    "Event",
    "EventFailed",
    "EventTimedOut",
    "Fact",
    "Gap",
    "Happened",
    "InitialFile",
    "InstructionsContext",
    "OutcomeUnknown",
    "OutputDelta",
    "PendingCompletion",
    "PendingItem",
    "PreparedToolCall",
    "ProcessContext",
    "Progress",
    "RetryPolicy",
    "Runtime",
    "Sent",
    "Session",
    "StepFailed",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolExecutionResult",
    "ToolHints",
    "ToolManifest",
    "ToolObject",
    "ToolPrepareContext",
    "ToolProvider",
    "ToolRegistry",
    "ToolResultImage",
    "Tuning",
    "TurnResult",
    "Unknown",
    "Usage",
    "Why",
    "Work",
    "__version__",
    "ask_user",
    "client_tool",
    "per_turn",
    "process",
    "run",
    "tool",
]


def __getattr__(name: str) -> object:
    """Load a public name on first use: importing perdure itself costs almost nothing."""
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'perdure' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
