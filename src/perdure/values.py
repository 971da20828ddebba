"""Types of returned values, for annotations, and the limits that `RuntimeOptions` takes."""

from __future__ import annotations

from perdure.observe.pending import PendingItem
from perdure.observe.why import Explanation
from perdure.runtime.audit import AuditedAct
from perdure.runtime.deps import DepsContext
from perdure.runtime.input_limits import InputLimits
from perdure.runtime.instructions import InstructionsContext
from perdure.runtime.processes.limits import ProcessLimits
from perdure.runtime.sessions.info import SessionDetails, SessionInfo
from perdure.services.spawns import SpawnLimits
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
    "InputLimits",
    "InstructionsContext",
    "PendingCompletion",
    "PendingItem",
    "ProcessLimits",
    "SessionDetails",
    "SessionInfo",
    "SpawnLimits",
    "Usage",
]
