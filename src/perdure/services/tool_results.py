"""Claiming and settling tool calls, for hosts that keep the results of calls in a store of their own.

Sessions of a `Runtime` do not need it: their log is that store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from perdure.codec import Json
from perdure.ids import CallId, TurnId


@dataclass(frozen=True, slots=True)
class Claimed:
    """The first claim of a call: run it, and settle it with this token."""

    claim_token: str


@dataclass(frozen=True, slots=True)
class AlreadySettled:
    """The call was answered before: that answer stands."""

    result_json: Json
    args_fingerprint: str


@dataclass(frozen=True, slots=True)
class AlreadyRunning:
    """Somebody claimed the call and never settled it: only what may run twice may run again."""

    args_fingerprint: str


@dataclass(frozen=True, slots=True)
class DeterminismViolation:
    """The same call, with other arguments: loud, before anything runs."""

    stored_fingerprint: str
    current_fingerprint: str


ToolCallClaimResult: TypeAlias = Claimed | AlreadySettled | AlreadyRunning | DeterminismViolation


@dataclass(frozen=True, slots=True)
class Settled:
    """The call has its result."""

    result_json: Json


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The call was given up; what is known of it, if anything."""

    result_json: Json = None


@dataclass(frozen=True, slots=True)
class Running:
    """The call is claimed and has no result."""


DurableToolCallStatus: TypeAlias = Settled | Interrupted | Running


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
        """Give a claimed call its result. False if the claim is somebody else's by now."""
        ...

    async def get_tool_call_status(self, turn_id: TurnId, tool_call_id: CallId) -> DurableToolCallStatus | None:
        """Where a call stands; None if nobody ever claimed it."""
        ...
