"""Types of returned values, for annotations."""

from __future__ import annotations

from perdure.observe.pending import PendingItem
from perdure.observe.why import Explanation
from perdure.runtime.audit import AuditedAct
from perdure.runtime.deps import DepsContext
from perdure.runtime.instructions import InstructionsContext
from perdure.runtime.sessions.info import SessionDetails, SessionInfo
from perdure.tools.context import Cancellation
from perdure.vocab.messages import AttachmentRef
from perdure.vocab.outcomes import PendingCompletion
from perdure.vocab.usage import Usage

__all__ = [
    "AttachmentRef",
    "AuditedAct",
    "Cancellation",
    "DepsContext",
    "Explanation",
    "InstructionsContext",
    "PendingCompletion",
    "PendingItem",
    "SessionDetails",
    "SessionInfo",
    "Usage",
]
