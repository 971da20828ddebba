"""The client `ctx.sessions`: reads and administers sessions from inside a tool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from perdure.codec import Json
from perdure.ids import SessionId, TurnId
from perdure.services.files.protocol import SessionFiles
from perdure.tools.call_writes import CallWrites
from perdure.tools.services import IdleStatus, PlatformStore, Services, StoredSession, required
from perdure.vocab.messages import Message
from perdure.vocab.tools import ToolDefinition
from perdure.vocab.usage import Usage


@dataclass(frozen=True, slots=True)
class SessionModel:
    """The model of this turn."""

    name: str
    settings: Json = None


@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    """A session as recorded in its durable log."""

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
    """A durable input and the turn that answers it. `duplicate`: the key was used before."""

    session_id: SessionId
    turn_id: TurnId
    duplicate: bool = False


class SessionsClient(Protocol):
    """Operations of a tool on sessions. Failures are `ToolError`s with a code."""

    def model(self) -> SessionModel:
        """Return the model of the running turn."""
        ...

    async def snapshot_current(self) -> SessionSnapshot:
        """Return the durable state of this session, which excludes the current call."""
        ...

    async def snapshot(self, session: str) -> SessionSnapshot:
        """Return the state of another session of this tenant (`session_unknown` for an unknown one)."""
        ...

    async def create_session(self, session: str | None = None, *, agent: str | None = None) -> SessionId:
        """Create a session for an agent of this runtime, durably. Default: this session's agent.

        An equal id and agent give the same session. The default id is derived from the call, so a repeated attempt
        creates no second session. `session_agent_conflict` if the session belongs to another agent.
        """
        ...

    async def close_session(self, session: str) -> bool:
        """Stop all activity in another session; its log stays. Return False if it was idle."""
        ...

    async def start_turn(self, session: str, key: str, text: str) -> StartedTurn:
        """Add an input to a session, durably. Equal key and text give the same turn.

        `input_key_conflict` for another text.
        """
        ...

    async def turn_result(self, started: StartedTurn, timeout: float | str | None = None) -> str:
        """Return the final text of a started turn (`turn_failed` if it was stopped, `result_timeout`).

        A turn of the calling session is refused: it begins after the current turn.
        """
        ...

    async def tool_catalog(self, session: str | None = None) -> list[Json]:
        """Return the tools of this turn as plain JSON, in order, or those of another session's next turn."""
        ...

    async def shared_tool_catalog(self, session: str | None = None) -> tuple[ToolDefinition, ...]:
        """Return the tools as shared immutable values."""
        ...

    async def set_tool_membership(self, names: Sequence[str], present: bool) -> int:
        """Remove tools from this session, or restore them, durably and from the next turn on.

        Returns the generation of its catalog, incremented on a change. `tool_unavailable` for a name that the agent
        does not have.
        """
        ...

    async def hand_over(self, agent: str, reason: str = "") -> None:
        """Hand this conversation over to another agent of this runtime, durably.

        The next model request goes to that agent, with its own instructions, tools and model, and the whole
        conversation. `agent_unknown`; `handed_over` if the turn was handed over before.
        """
        ...


class OtherSession:
    """One session of the tenant: `ctx.sessions.get(id)`. Operations are not recorded with the call."""

    def __init__(self, id: str, services: Services, writes: CallWrites) -> None:
        self.id = SessionId(id)
        self._services = services
        self._writes = writes

    @property
    def files(self) -> SessionFiles:
        """The files of the session. Raises a `ToolError` if absent."""
        store = required(self._services.file_store, "file_store")
        return SessionFiles(store, self.id, self._services.redactor)

    async def info(self) -> StoredSession | None:
        """Return the agent, title, tags and times of the session, or None if unknown."""
        return await required(self._services.session_store, "session_store").get_session(self.id)

    async def set_title(self, title: str) -> StoredSession:
        """Set the session's title; durable on return. An equal title changes nothing.

        Raises:
            ToolError: unknown session, or invalid title.
        """
        return await required(self._services.session_mutator, "session_mutator").update_session_title(self.id, title)

    async def send(self, content: str, *, key: str | None = None) -> None:
        """Send an input to the session, durably. Equal key and content give the same input.

        The default key is derived from the call, so a repeated attempt sends nothing. Code: `session_unknown`.
        """
        own = key or self._writes.id("send", self.id, content)
        await self._platform().send_message(self.id, content, key=own)

    async def messages(self, limit: int | None = None) -> tuple[Message, ...]:
        """Return the conversation as shown to a model, or its last messages. Code: `session_unknown`."""
        return await self._platform().get_messages(self.id, limit)

    async def wait_for_idle(self, timeout_s: float | None = None) -> IdleStatus:
        """Wait until the session is at rest, for at most five minutes.

        Codes: `session_unknown`; `session_is_own` for the session of the current turn.
        """
        return await self._platform().wait_for_idle(self.id, timeout_s)

    def _platform(self) -> PlatformStore:
        return required(self._services.platform_store, "platform_store")


class Sessions:
    """`ctx.sessions`: this session and the others of its tenant. Failures are `ToolError`s with a code."""

    def __init__(self, client: SessionsClient | None, services: Services, writes: CallWrites) -> None:
        self._client = client
        self._services = services
        self._writes = writes

    def _own(self) -> SessionsClient:
        return required(self._client, "sessions")

    def get(self, session: str) -> OtherSession:
        """Return a session of this tenant: `files`, `info`, `set_title`, `send`, `messages`, `wait_for_idle`."""
        return OtherSession(session, self._services, self._writes)

    async def create(self, agent: str, *, id: str | None = None, title: str | None = None) -> StoredSession:
        """Create a session for an agent of this runtime, durably. An equal id and agent give the same session.

        The default id is derived from the call, so a repeated attempt creates none. Codes: `agent_unknown`,
        `session_agent_conflict`.
        """
        id = id or self._writes.id("ses", agent, title)
        return await required(self._services.platform_store, "platform_store").create_session(
            agent, session_id=id, title=title
        )

    def model(self) -> SessionModel:
        """Return the model of the running turn."""
        return self._own().model()

    async def snapshot_current(self) -> SessionSnapshot:
        """Return the durable state of this session, which excludes the current call."""
        return await self._own().snapshot_current()

    async def snapshot(self, session: str) -> SessionSnapshot:
        """Return the state of another session of this tenant (`session_unknown` for an unknown one)."""
        return await self._own().snapshot(session)

    async def create_session(self, session: str | None = None, *, agent: str | None = None) -> SessionId:
        """Create a session for an agent of this runtime, durably. Default: this session's agent.

        An equal id and agent give the same session. The default id is derived from the call, so a repeated attempt
        creates no second session. `session_agent_conflict` if the session belongs to another agent.
        """
        return await self._own().create_session(session, agent=agent)

    async def close_session(self, session: str) -> bool:
        """Stop all activity in another session; its log stays. Return False if it was idle."""
        return await self._own().close_session(session)

    async def start_turn(self, session: str, key: str, text: str) -> StartedTurn:
        """Add an input to a session, durably. Equal key and text give the same turn.

        `input_key_conflict` for another text.
        """
        return await self._own().start_turn(session, key, text)

    async def turn_result(self, started: StartedTurn, timeout: float | str | None = None) -> str:
        """Return the final text of a started turn (`turn_failed` if it was stopped, `result_timeout`).

        A turn of the calling session is refused: it begins after the current turn.
        """
        return await self._own().turn_result(started, timeout)

    async def tool_catalog(self, session: str | None = None) -> list[Json]:
        """Return the tools of this turn as plain JSON, in order, or those of another session's next turn."""
        return await self._own().tool_catalog(session)

    async def shared_tool_catalog(self, session: str | None = None) -> tuple[ToolDefinition, ...]:
        """Return the tools as shared immutable values."""
        return await self._own().shared_tool_catalog(session)

    async def set_tool_membership(self, names: Sequence[str], present: bool) -> int:
        """Remove tools from this session, or restore them, durably and from the next turn on.

        Returns the generation of its catalog, incremented on a change. `tool_unavailable` for a name that the agent
        does not have.
        """
        return await self._own().set_tool_membership(names, present)

    async def hand_over(self, agent: str, reason: str = "") -> None:
        """Hand this conversation over to another agent of this runtime, durably.

        The next model request goes to that agent, with its own instructions, tools and model, and the whole
        conversation. `agent_unknown`; `handed_over` if the turn was handed over before.
        """
        await self._own().hand_over(agent, reason)
