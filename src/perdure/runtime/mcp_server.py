"""The agents of a runtime and their sessions as an MCP server.

Execution does not live in a request: a disconnected client changes nothing. Needs the extra `mcp`; imported only to
serve.

Laws: a message repeated with the same key is the same input, and returns the result of the same turn. Clients reach
only sessions that they opened here: their names have a prefix that clients do not see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from hmac import compare_digest
from typing import TypeVar, cast

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import JsonValue
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from perdure.errors import Code, Error
from perdure.ids import TurnId
from perdure.runtime.internals import core_of, ref_of
from perdure.runtime.runtime import Runtime
from perdure.runtime.sessions.results import wait_for
from perdure.runtime.sessions.session import Session
from perdure.store.shapes import StreamInfo
from perdure.tools.mcp.calls import KEY
from perdure.tools.mcp.servers import plain_name
from perdure.vocab.messages import Text

WAIT_S = 50.0
LONGEST_WAIT_S = 600.0
MOST_MESSAGES = 200
SESSION = "mcp"
_OWN = "mcp:"
"""Prefix of the sessions of this server. A client cannot name a session without it."""

Told = dict[str, JsonValue]
T = TypeVar("T")

_ASK = (
    "Ask the agent {agent}. `session` names the conversation, which the agent remembers. Send your own `key` with "
    "each request: a repeated request with the same key returns the same turn instead of a new one. If `status` is "
    "`running`, the turn continues after `wait` seconds: fetch the answer with turn_result."
)


def mcp_server(rt: Runtime, *, name: str = "perdure") -> MCPServer:
    """Return a server that offers the agents of an open runtime: `await mcp_server(rt).run_stdio_async()`."""
    server = MCPServer(name, log_level="WARNING")
    reads = ToolAnnotations(read_only_hint=True)
    for agent in rt.agents:
        server.add_tool(_asking(rt, agent), name=f"ask_{plain_name(agent)}", description=_ASK.format(agent=agent))
    for read in (_turn_result(rt), _session_history(rt), _list_sessions(rt)):
        server.add_tool(read, annotations=reads)
    return server


def _asking(rt: Runtime, agent: str) -> Callable[..., Awaitable[Told]]:
    async def ask(ctx: Context, message: str, session: str = SESSION, key: str = "", wait: float = WAIT_S) -> Told:
        meta = cast("Mapping[str, object]", ctx.request_context.meta or {})
        own = key or str(meta.get(KEY) or "")

        async def send() -> Told:
            found = await rt.session(_OWN + session, agent=agent)
            sent = await found.send(message, key=own or None)
            return await _ended(found, sent.turn_id, wait)

        return await _plainly(send)

    return ask


def _turn_result(rt: Runtime) -> Callable[..., Awaitable[Told]]:
    async def turn_result(session: str, turn: str, wait: float = WAIT_S) -> Told:
        """Return the answer of a turn, or status `running` if it does not end within `wait` seconds."""

        async def look() -> Told:
            return await _ended(await rt.session(_OWN + session), TurnId(turn), wait)

        return await _plainly(look)

    return turn_result


def _session_history(rt: Runtime) -> Callable[..., Awaitable[Told]]:
    async def session_history(session: str, last: int = 20) -> Told:
        """Return the last messages of a session, as text."""

        async def read() -> Told:
            history = await (await rt.session(_OWN + session)).messages()
            said: list[JsonValue] = [
                {"role": one.role, "text": "".join(part.text for part in one.parts if isinstance(part, Text))}
                for one in history[-min(max(1, last), MOST_MESSAGES) :]
            ]
            return {"session": session, "messages": said}

        return await _plainly(read)

    return session_history


def _list_sessions(rt: Runtime) -> Callable[..., Awaitable[Told]]:
    async def list_sessions(limit: int = 20) -> Told:
        """List the sessions, the most recently changed first."""

        async def read() -> Told:
            found = await _own_sessions(rt, min(max(1, limit), MOST_MESSAGES))
            listed: list[JsonValue] = [
                {
                    "session": one.name.removeprefix(_OWN),
                    "agent": one.agent,
                    "title": one.title,
                    "changed": _utc(one.updated_at),
                }
                for one in found
            ]
            return {"sessions": listed}

        return await _plainly(read)

    return list_sessions


async def _own_sessions(rt: Runtime, limit: int) -> list[StreamInfo]:
    """Return the sessions of this server, the most recently changed first."""
    own: list[StreamInfo] = []
    before = None
    while len(own) < limit and (page := await core_of(rt).session_streams(limit=MOST_MESSAGES, before=before)):
        own += [one for one in page if one.name.startswith(_OWN)]  # threat: S22
        before = page[-1].updated_at, page[-1].stream
    return own[:limit]


async def _ended(session: Session, turn: TurnId, wait: float) -> Told:
    """Return the outcome of a turn, or status `running`. A client that stops waiting cancels nothing."""
    told: Told = {"session": session.id.removeprefix(_OWN), "turn": turn}
    try:
        async with asyncio.timeout(min(max(0.0, wait), LONGEST_WAIT_S)):
            ended = await wait_for(ref_of(session), turn)
    except TimeoutError:
        return {**told, "status": "running", "because": (await session.why()).summary}
    return {**told, "status": ended.status, "text": ended.text, **({"reason": ended.reason} if ended.reason else {})}


class TokenGate:
    """ASGI application that passes only requests with the bearer token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request, or answer 401."""
        if scope["type"] == "http":
            given = [value for name, value in scope["headers"] if name == b"authorization"]
            if len(given) != 1 or not compare_digest(given[0], self._expected):  # threat: S22
                response = Response(status_code=401, headers={"www-authenticate": "Bearer"})
                return await response(scope, receive, send)
        return await self._app(scope, receive, send)


async def serve_http(server: MCPServer, *, port: int, token: str) -> None:
    """Serve over HTTP on the loopback address, to clients with the token."""
    app = TokenGate(server.streamable_http_app(), token)
    await uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning")).serve()


async def _plainly(do: Callable[[], Awaitable[T]]) -> T:
    """Show refusals to the client; leave internal errors to the log."""
    try:
        return await do()
    except Error as problem:
        if problem.code in (Code.STORE_FAILED, Code.TURN_FAILED):
            raise
        because = f" (because {problem.because})" if problem.because else ""
        raise ToolError(f"{problem.code}: {problem.message}{because}") from None


def _utc(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
