"""Stand-ins for services in tests of tools and hosts. All accept everything and store nothing.

The recording emitter is the exception: it keeps events for the test to inspect.
"""

from __future__ import annotations

from itertools import count

from perdure.codec import Json
from perdure.ids import CallId, SessionId, TurnId
from perdure.observe.emit import EmittedEvent, EventData, EventRequest
from perdure.services.replies import PartialStreamState, StreamProgress
from perdure.services.subagents import SpawnClaimed, SpawnClaimResult
from perdure.services.tool_results import DurableToolCallStatus, ToolCallClaimResult, ToolResultClaimed


class NoopEventEmitter:
    """An emitter that drops events. Their sequence is 0, because none is stored."""

    def __init__(self) -> None:
        self._ids = count(1)

    def emit(self, request: EventRequest) -> EmittedEvent:
        """Drop the event."""
        return request.into_event(f"event_{next(self._ids)}", 0)


class RecordingEventEmitter:
    """An emitter that keeps events in order."""

    def __init__(self) -> None:
        self.requests: list[EventRequest] = []

    @property
    def data(self) -> list[EventData]:
        """The data of the events."""
        return [request.data for request in self.requests]

    def emit(self, request: EventRequest) -> EmittedEvent:
        """Keep the event."""
        self.requests.append(request)
        return request.into_event(f"event_{len(self.requests)}", len(self.requests))


class NoopDurableToolResultStore:
    """A result store without memory: every claim is the first, every settlement is accepted."""

    def __init__(self) -> None:
        self._tokens = count(1)

    async def try_claim_tool_call(
        self, turn_id: TurnId, tool_call_id: CallId, tool_name: str, args_fingerprint: str
    ) -> ToolCallClaimResult:
        """Claim the call under a new token."""
        return ToolResultClaimed(f"claim_{next(self._tokens)}")

    async def settle_tool_call(
        self, turn_id: TurnId, tool_call_id: CallId, result_json: Json, status: str, claim_token: str
    ) -> bool:
        """Accept the settlement."""
        return True

    async def get_tool_call_status(self, turn_id: TurnId, tool_call_id: CallId) -> DurableToolCallStatus | None:
        """Return None: no call is known."""
        return None


class NoopStreamHeartbeater:
    """A heartbeater that ignores progress."""

    async def heartbeat(self, progress: StreamProgress) -> None:
        """Ignore the progress."""


class NoopPartialStreamStore:
    """A partial-stream store that is always empty."""

    async def get_partial_stream(self, session_id: SessionId, turn_id: TurnId) -> PartialStreamState | None:
        """Return None."""
        return None


class NoopSubagentSpawnStore:
    """A spawn store without memory: every claim is the first."""

    def __init__(self) -> None:
        self._handles = count(1)

    async def try_claim_spawn(
        self, parent_session_id: SessionId, tool_call_id: CallId, name: str, task: str, claim_token: str
    ) -> SpawnClaimResult:
        """Claim the spawn under the given token."""
        return SpawnClaimed(f"spawn_{next(self._handles)}", claim_token)

    async def register_child_session(self, spawn_handle_id: str, claim_token: str, child_session_id: SessionId) -> None:
        """Ignore the registration."""

    async def settle_spawn(
        self,
        parent_session_id: SessionId,
        tool_call_id: CallId,
        claim_token: str,
        terminal_status: str,
        terminal_result: str,
    ) -> None:
        """Ignore the settlement."""
