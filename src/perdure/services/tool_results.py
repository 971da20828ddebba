"""Claims and results of tool calls, for hosts that store call results themselves.

Sessions of a `Runtime` do not need it, because their log stores the results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from perdure.codec import Json
from perdure.ids import CallId, TurnId


@dataclass(frozen=True, slots=True)
class ToolResultClaimed:
    """The first claim of a call: run it, and settle it with this token."""

    claim_token: str


@dataclass(frozen=True, slots=True)
class ToolResultSettled:
    """The call has a result already, which stays."""

    result_json: Json
    args_fingerprint: str


@dataclass(frozen=True, slots=True)
class ToolResultRunning:
    """The call was claimed and never settled. Run it again only if repetition is safe."""

    args_fingerprint: str


@dataclass(frozen=True, slots=True)
class ToolResultMismatch:
    """The same call with other arguments. Raise an error before anything runs."""

    stored_fingerprint: str
    current_fingerprint: str


ToolCallClaimResult: TypeAlias = ToolResultClaimed | ToolResultSettled | ToolResultRunning | ToolResultMismatch


@dataclass(frozen=True, slots=True)
class ToolCallSettled:
    """The call has its result."""

    result_json: Json


@dataclass(frozen=True, slots=True)
class ToolCallInterrupted:
    """The call was abandoned; contains its known result, if any."""

    result_json: Json = None


@dataclass(frozen=True, slots=True)
class ToolCallRunning:
    """The call is claimed and has no result."""


DurableToolCallStatus: TypeAlias = ToolCallSettled | ToolCallInterrupted | ToolCallRunning


class DurableToolResultStore(Protocol):
    """At most one claim per call, and one result per claim."""

    async def try_claim_tool_call(
        self, turn_id: TurnId, tool_call_id: CallId, tool_name: str, args_fingerprint: str
    ) -> ToolCallClaimResult:
        """Claim a call before it is dispatched."""
        ...

    async def settle_tool_call(
        self, turn_id: TurnId, tool_call_id: CallId, result_json: Json, status: str, claim_token: str
    ) -> bool:
        """Settle a claimed call. Return False if another claim holds it."""
        ...

    async def get_tool_call_status(self, turn_id: TurnId, tool_call_id: CallId) -> DurableToolCallStatus | None:
        """Return the status of a call, or None if it was never claimed."""
        ...
