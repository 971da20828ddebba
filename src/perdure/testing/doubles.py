"""Stand-ins for services in tests of tools and hosts: they take everything and keep nothing.

The recording emitter is the exception: it keeps what tools said, so that a test can look at it.
"""

from __future__ import annotations

from itertools import count

from perdure.codec import Json
from perdure.ids import CallId, SessionId, TurnId
from perdure.observe.emit import EmittedEvent, EventData, EventRequest
from perdure.services.replies import PartialStreamState, StreamProgress
from perdure.services.subagents import SpawnClaimed, SpawnClaimResult
from perdure.services.tool_results import Claimed, DurableToolCallStatus, ToolCallClaimResult


class NoopEventEmitter:
    """Takes events and drops them. Their sequence is 0: they are stored nowhere."""

    def __init__(self) -> None:
        self._ids = count(1)

    def emit(self, request: EventRequest) -> EmittedEvent:
        """Drop it."""
        return request.into_event(f"event_{next(self._ids)}", 0)


class RecordingEventEmitter:
    """Takes events and keeps them in order."""

    def __init__(self) -> None:
        self.requests: list[EventRequest] = []

    @property
    def data(self) -> list[EventData]:
        """What the events said."""
        return [request.data for request in self.requests]

    def emit(self, request: EventRequest) -> EmittedEvent:
        """Keep it."""
        self.requests.append(request)
        return request.into_event(f"event_{len(self.requests)}", len(self.requests))


class NoopDurableToolResultStore:
    """Every claim is the first one, every settlement is accepted, and nothing is remembered."""

    def __init__(self) -> None:
        self._tokens = count(1)

    async def try_claim_tool_call(
        self, turn_id: TurnId, tool_call_id: CallId, tool_name: str, args_fingerprint: str
    ) -> ToolCallClaimResult:
        """Claimed, with a token of its own."""
        return Claimed(f"claim_{next(self._tokens)}")

    async def settle_tool_call(
        self, turn_id: TurnId, tool_call_id: CallId, result_json: Json, status: str, claim_token: str
    ) -> bool:
        """Accepted."""
        return True

    async def get_tool_call_status(self, turn_id: TurnId, tool_call_id: CallId) -> DurableToolCallStatus | None:
        """Unknown."""
        return None


class NoopStreamHeartbeater:
    """Takes every stream for alive."""

    async def heartbeat(self, progress: StreamProgress) -> None:
        """Ignore it."""


class NoopPartialStreamStore:
    """Knows of no reply that broke off."""

    async def get_partial_stream(self, session_id: SessionId, turn_id: TurnId) -> PartialStreamState | None:
        """None."""
        return None


class NoopSubagentSpawnStore:
    """Every claim is the first one, and nothing is remembered."""

    def __init__(self) -> None:
        self._handles = count(1)

    async def try_claim_spawn(
        self, parent_session_id: SessionId, tool_call_id: CallId, name: str, task: str, claim_token: str
    ) -> SpawnClaimResult:
        """Claimed, with the token that was given."""
        return SpawnClaimed(f"spawn_{next(self._handles)}", claim_token)

    async def register_child_session(self, spawn_handle_id: str, claim_token: str, child_session_id: SessionId) -> None:
        """Forget it."""

    async def settle_spawn(
        self,
        parent_session_id: SessionId,
        tool_call_id: CallId,
        claim_token: str,
        terminal_status: str,
        terminal_result: str,
    ) -> None:
        """Forget it."""
