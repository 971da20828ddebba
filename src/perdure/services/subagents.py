"""Starting a session from a tool call, once: whoever runs the call again finds the child that is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from perdure.ids import CallId, SessionId


@dataclass(frozen=True, slots=True)
class SpawnClaimed:
    """The first claim: create the child, then register it."""

    spawn_handle_id: str
    claim_token: str


@dataclass(frozen=True, slots=True)
class SpawnPendingChild:
    """Claimed before, and the child never registered: create it and register it, with the stored token."""

    spawn_handle_id: str
    claim_token: str


@dataclass(frozen=True, slots=True)
class SpawnRunning:
    """The child exists and works: wait for it, and settle with the stored token."""

    child_session_id: SessionId
    claim_token: str


@dataclass(frozen=True, slots=True)
class SpawnSettled:
    """The child has finished: this is what it came to."""

    child_session_id: SessionId
    terminal_status: str
    terminal_result: str


SpawnClaimResult: TypeAlias = SpawnClaimed | SpawnPendingChild | SpawnRunning | SpawnSettled


class SubagentSpawnStore(Protocol):
    """Claim, register, settle: one child per call."""

    async def try_claim_spawn(
        self, parent_session_id: SessionId, tool_call_id: CallId, name: str, task: str, claim_token: str
    ) -> SpawnClaimResult:
        """Claim the place of a call's child, before there is a child."""
        ...

    async def register_child_session(self, spawn_handle_id: str, claim_token: str, child_session_id: SessionId) -> None:
        """Say which session the child is."""
        ...

    async def settle_spawn(
        self,
        parent_session_id: SessionId,
        tool_call_id: CallId,
        claim_token: str,
        terminal_status: str,
        terminal_result: str,
    ) -> None:
        """Say what the child came to."""
        ...
