"""A session as the modules inside address it: its runtime, names and stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.ids import SessionId, StreamId, Tenant, session_stream

if TYPE_CHECKING:
    from perdure.runtime.core import RuntimeCore


@dataclass(frozen=True, slots=True)
class SessionRef:
    """A session of one tenant, and the runtime that reaches it."""

    runtime: RuntimeCore
    tenant: Tenant
    id: SessionId

    @property
    def stream(self) -> StreamId:
        """The stream of the session."""
        return session_stream(self.tenant, self.id)
