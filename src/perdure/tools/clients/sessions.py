"""`ctx.sessions`: reading and administering sessions from inside a tool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from perdure.codec import Json
from perdure.ids import SessionId, TurnId
from perdure.vocab.messages import Message
from perdure.vocab.tools import ToolDefinition
from perdure.vocab.usage import Usage


@dataclass(frozen=True, slots=True)
class SessionModel:
    """The model this turn runs on."""

    name: str
    settings: Json = None


@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    """A session as its durable log tells it."""

    session_id: SessionId
    agent: str
    turns: int
    open_turn: TurnId | None
    messages: tuple[Message, ...]
    usage: Usage
    without_tools: tuple[str, ...] = ()
    tools_generation: int = 0


@dataclass(frozen=True, slots=True)
class StartedTurn:
    """An input that is durable and the turn that answers it. `duplicate`: it had been started under this key before."""

    session_id: SessionId
    turn_id: TurnId
    duplicate: bool = False


class Sessions(Protocol):
    """What a tool can do with sessions. Everything raises `ToolError` with the code that says why it cannot be done."""

    def model(self) -> SessionModel:
        """The model of the turn that runs."""
        ...

    async def snapshot_current(self) -> SessionSnapshot:
        """This session: what is durable of it by now, so without the call that asks."""
        ...

    async def snapshot(self, session: str) -> SessionSnapshot:
        """Another session of this tenant (`session_unknown` if there is none)."""
        ...

    async def create_session(self, session: str | None = None, *, agent: str | None = None) -> SessionId:
        """Open a session, durably, for an agent of this runtime (this session's own unless named).

        The same id and agent again is the same session, and an id that is left out follows from the call: an attempt
        that runs again does not open a second one. `session_agent_conflict` if it belongs to another agent.
        """
        ...

    async def close_session(self, session: str) -> bool:
        """Stop whatever runs or waits in another session; its log stays. False if nothing did."""
        ...

    async def start_turn(self, session: str, key: str, text: str) -> StartedTurn:
        """Put an input into a session, durably. The same key and text again is the same turn
        (`input_key_conflict` for another text)."""
        ...

    async def turn_result(self, started: StartedTurn, timeout: float | str | None = None) -> str:
        """The text a started turn ended with (`turn_failed` if it was stopped, `result_timeout`).

        A turn of this very session is refused: it begins when this one has ended.
        """
        ...

    async def tool_catalog(self, session: str | None = None) -> list[Json]:
        """The tools of this turn as plain JSON, in their order; or those that another session's next turn will have."""
        ...

    async def shared_tool_catalog(self, session: str | None = None) -> tuple[ToolDefinition, ...]:
        """The same as shared values: nobody copies them, nobody can change them."""
        ...

    async def set_tool_membership(self, names: Sequence[str], present: bool) -> int:
        """Take tools out of this session, or put them back, durably and from the next turn on.

        Returns the generation of its catalog: one more than before if anything changed. `tool_unavailable` for a name
        that the agent does not have.
        """
        ...

    async def hand_over(self, agent: str, reason: str = "") -> None:
        """Give this conversation to another agent of this runtime, durably: whatever the model is asked next, that
        one is asked, with its own instructions, tools and model, and with everything that was said before it.

        `agent_unknown`; `handed_over` if that happened already.
        """
        ...
