"""Start of a session from a tool call, once: a repeated call finds the existing child."""

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
    """An earlier claim without a registered child: create and register it with the stored token."""

    spawn_handle_id: str
    claim_token: str


@dataclass(frozen=True, slots=True)
class SpawnRunning:
    """An active child: wait for it, and settle with the stored token."""

    child_session_id: SessionId
    claim_token: str


@dataclass(frozen=True, slots=True)
class SpawnSettled:
    """A finished child, with its result."""

    child_session_id: SessionId
    terminal_status: str
    terminal_result: str


SpawnClaimResult: TypeAlias = SpawnClaimed | SpawnPendingChild | SpawnRunning | SpawnSettled


class SubagentSpawnStore(Protocol):
    """Claim, register, settle: one child per call."""

    async def try_claim_spawn(
        self, parent_session_id: SessionId, tool_call_id: CallId, name: str, task: str, claim_token: str
    ) -> SpawnClaimResult:
        """Claim the child of a call, before the child exists."""
        ...

    async def register_child_session(self, spawn_handle_id: str, claim_token: str, child_session_id: SessionId) -> None:
        """Register the child's session."""
        ...

    async def settle_spawn(
        self,
        parent_session_id: SessionId,
        tool_call_id: CallId,
        claim_token: str,
        terminal_status: str,
        terminal_result: str,
    ) -> None:
        """Record the result of a child."""
        ...
