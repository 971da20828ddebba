"""Access of tools to other sessions: open, send, read, wait."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.errors import Code, Error
from perdure.ids import SessionId, StreamId, Tenant, check_id, session_stream, stream_names
from perdure.inbox.admit import delivery
from perdure.inbox.items import Wake
from perdure.runtime.calls.clients import visibly
from perdure.runtime.clock import short_id
from perdure.runtime.sessions.editing import checked_title, set_title
from perdure.runtime.sessions.ref import SessionRef
from perdure.runtime.sessions.sending import send_as_tool
from perdure.store.shapes import StreamInfo
from perdure.tools.errors import ToolError
from perdure.tools.services import IdleStatus, StoredSession
from perdure.vocab.messages import Message
from perdure.vocab.records import TurnEnded

if TYPE_CHECKING:
    from perdure.runtime.core import RuntimeCore

MAX_WAIT_S = 300.0
LOOK_EVERY_S = 1.0
"""The poll interval for a session that another process drives, in case its notification is lost."""


@dataclass(frozen=True, slots=True)
class StoredPlatform:
    """The sessions of one tenant, as a tool in one of them sees them."""

    runtime: RuntimeCore
    tenant: Tenant
    own: StreamId
    in_turn: bool = True

    async def create_session(
        self, agent: str, *, session_id: str | None = None, title: str | None = None
    ) -> StoredSession:
        """Create a session, durably."""
        now = self.runtime.clock.wall_ms()
        with visibly():
            if agent not in self.runtime.agents:
                raise Error(Code.AGENT_UNKNOWN, f"unknown agent {agent!r}")
            stream = self._stream(short_id("ses", now) if session_id is None else session_id)
            named = None if title is None else checked_title(title)
            opening = delivery(stream, "created", Wake(reason="created"), at=now, agent=agent)
            await self.runtime.store.admit(opening)
            if named is not None:
                await set_title(self.runtime.store, stream, named, now=now)
        self.runtime.notify_streams((stream,))
        made = await self.get_session_by_id(stream_names(stream)[2])
        if made is None:
            raise ToolError("the session was deleted just now", code=Code.SESSION_UNKNOWN.value)
        return made

    async def get_session_by_id(self, session_id: str) -> StoredSession | None:
        """Return a session, or None if the tenant has no such session."""
        info = await self.runtime.store.stream(session_stream(self.tenant, SessionId(session_id)))
        return None if info is None else info_of(info)

    async def send_message(self, session_id: str, content: str, *, key: str | None = None) -> None:
        """Send an input to a session, durably."""
        with visibly():
            session = self.runtime.get_session(session_id, tenant=self.tenant)
            ref = SessionRef(self.runtime, self.tenant, SessionId(session_id))
            await send_as_tool(session, ref, content, key=key, own=ref.stream == self.own)

    async def get_messages(self, session_id: str, limit: int | None = None) -> tuple[Message, ...]:
        """Return the conversation of a session, or its last messages."""
        with visibly():
            said = await self.runtime.get_session(session_id, tenant=self.tenant).messages()
        return said if limit is None else said[len(said) - min(max(0, limit), len(said)) :]

    async def wait_for_idle(self, session_id: str, timeout_secs: float | None = None) -> IdleStatus:
        """Wait until a session has no work to do."""
        stream = self._stream(session_id)
        if stream == self.own and self.in_turn:
            raise ToolError("A session is never idle during a call of its own turn", code="session_is_own")
        limit = MAX_WAIT_S if timeout_secs is None else min(max(0.0, timeout_secs), MAX_WAIT_S)
        loop = asyncio.get_running_loop()
        until = loop.time() + limit
        with self.runtime.hub.subscribe(stream, live=False) as news:
            while (status := await self._status(session_id)) is None:
                left = until - loop.time()
                if left <= 0:
                    return "timeout"
                try:
                    async with asyncio.timeout(min(left, LOOK_EVERY_S)):
                        await news.wait()
                except TimeoutError:
                    continue
        return status

    async def _status(self, session_id: str) -> IdleStatus | None:
        """Return how a session rests, or None if it has work."""
        with visibly():
            session = self.runtime.get_session(session_id, tenant=self.tenant)
            why = await session.why()
            match why.status:
                case "idle":
                    ends = [row.record for row in await session.journal() if isinstance(row.record, TurnEnded)]
                    return "error" if ends and ends[-1].status != "finished" else "idle"
                case "paused":
                    return "paused"
                case "failed":
                    return "error"
                case "waiting":
                    pending = await session.pending()
                    clients = pending and all(item.kind == "client_call" for item in pending)
                    return "waiting_for_tool_results" if clients else None
                case _:
                    return None

    def _stream(self, session_id: str) -> StreamId:
        with visibly():
            return session_stream(self.tenant, SessionId(check_id(session_id, what="the session id")))


def info_of(info: StreamInfo) -> StoredSession:
    """Return what a tool may see of a session."""
    return StoredSession(
        SessionId(info.name), info.tenant, info.agent, info.created_at, info.updated_at, info.title, info.tags
    )  # fmt: skip
