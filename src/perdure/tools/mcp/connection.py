"""A connection to one server, re-established after a loss. One task owns all of it.

Laws: a call that was sent and not answered is never sent again. A loss before sending is reported as "not run", a loss
afterwards as unknown. A failed refresh of the tool list does not close the connection: the server may be busy with a
call.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from perdure.services.secrets import Redactor
from perdure.tools.mcp.config import Expanded, ServerConfig
from perdure.tools.mcp.lines import ENCODING, MAX_LINE_BYTES

if TYPE_CHECKING:
    import httpx2
    import mcp_types as types
    from mcp import Client
    from mcp.client._transport import Transport, TransportStreams

log = logging.getLogger("perdure.mcp")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
MAX_PAGES = 100
MAX_TOOLS = 1000
KEY = "io.perdure/idempotency-key"
"""The `_meta` field with a call's idempotency key, for servers."""

T = TypeVar("T")


class NotConnected(Exception):
    """No connection: nothing was sent."""


class ConnectionLost(Exception):
    """The connection ended before the answer. The outcome of the request is unknown."""


Elicit = Callable[["types.ElicitRequestParams"], Awaitable["types.ElicitResult"]]


class McpConnection:
    """A connection kept alive by its own task between `start` and `stop`."""

    def __init__(
        self, name: str, config: ServerConfig, on_list: Callable[[Sequence[types.Tool]], Awaitable[None]]
    ) -> None:
        self.name = name
        self.config = config
        self.redactor = Redactor()
        """Redactor of the configuration's expanded references."""
        self.statuses: dict[str, int] = {}
        """HTTP status of responses without an MCP answer, by the key of the running call."""
        self._on_list = on_list
        self._task: asyncio.Task[None] | None = None
        self._client: Client | None = None
        self._tried = asyncio.Event()
        self._lost = asyncio.Event()
        self._wake = asyncio.Event()
        self._stale = False
        self._listed_at = 0.0
        self._elicit: Elicit | None = None
        self.alone = asyncio.Lock()  # a server that asks during a call does not name the call

    async def start(self) -> None:
        """Connect, and return after the first success or failure."""
        self._tried.clear()
        self._task = asyncio.create_task(self._keep_up(), name=f"perdure:mcp:{self.name}")
        await self._tried.wait()

    async def stop(self) -> None:
        """End the connection."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None

    @property
    def connected(self) -> bool:
        """True if a call could be sent now."""
        return self._client is not None and not self._lost.is_set()

    def refresh(self) -> None:
        """Request a new list of tools soon."""
        self._stale = True
        self._wake.set()

    def look(self) -> None:
        """Refresh an old tool list at the start of a turn. The new list serves later turns."""
        if self.connected and asyncio.get_running_loop().time() - self._listed_at >= self.config.refresh:
            self.refresh()

    async def request(self, send: Callable[[Client], Awaitable[T]]) -> T:
        """Send a request and wait for the answer.

        Raises:
            NotConnected: the request was not sent.
            ConnectionLost: the request was sent, or may have been, without an answer.
        """
        client, lost = self._client, self._lost
        if client is None or lost.is_set():
            raise NotConnected(self.name)
        asking = asyncio.ensure_future(send(client))
        losing = asyncio.create_task(lost.wait())
        try:
            await asyncio.wait({asking, losing}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise ConnectionLost(self.name)
            return await self._answer(asking)
        finally:
            losing.cancel()
            if not asking.done():
                asking.cancel()
                asking.add_done_callback(_retrieved)

    async def _answer(self, asking: asyncio.Future[T]) -> T:
        if asking.cancelled():
            raise ConnectionLost(self.name)
        match _lost(asking.exception()):
            case "session":
                self._on_end()
                raise NotConnected(self.name)
            case "connection":
                self._on_end()
                raise ConnectionLost(self.name)
            case "answer":
                self.refresh()  # the refresh detects whether the server is alive
                raise ConnectionLost(self.name)
            case None:
                return asking.result()

    def eliciting(self, elicit: Elicit | None) -> None:
        """Set the handler of a server's questions during a call."""
        self._elicit = elicit

    # --- the task

    async def _keep_up(self) -> None:
        me, pause = asyncio.current_task(), FIRST_PAUSE_S
        assert me is not None
        while True:
            self._lost, self._stale = asyncio.Event(), False
            try:
                await self._connected()
                pause = FIRST_PAUSE_S
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as problem:  # noqa: BLE001 - also exception groups, and cancellation from inside
                if not me.cancelling() and not isinstance(problem, asyncio.CancelledError):
                    log.warning("MCP server not connected server=%s error=%s", self.name, self._error_text(problem))
            finally:
                self._client = None
                self._lost.set()
                self._tried.set()
            if me.cancelling():  # regardless of how the connection handled its cancellation
                raise asyncio.CancelledError
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _connected(self) -> None:
        """Connect, and stay connected until the connection is lost."""
        from mcp import Client

        async with AsyncExitStack() as stack:
            async with asyncio.timeout(self.config.start_timeout):
                target = await self._target(stack)
                callback = self._on_elicit if self.config.elicit else None
                client = await stack.enter_async_context(
                    Client(
                        target,
                        mode=self.config.protocol,
                        elicitation_callback=callback,
                        message_handler=self._on_message,
                        cache=None,
                    )
                )
                await self._list(client)
            self._client = client
            self._tried.set()
            while not self._lost.is_set():
                self._wake.clear()
                if self._stale:
                    self._stale = False
                    await self._list_again(client)
                await self._wake.wait()

    async def _target(self, stack: AsyncExitStack) -> Transport:
        config, expanded = self.config, Expanded(self.name)
        env, headers = expanded.values(config.env), expanded.values(config.headers)
        args, url = [expanded.value(one) for one in config.args], expanded.value(config.url)
        for secret in expanded.secrets:
            self.redactor.add(secret)
        if config.command:
            import os

            from mcp import StdioServerParameters, stdio_client

            parameters = StdioServerParameters(
                command=config.command, args=args, env=env or None, cwd=config.cwd or None, encoding=ENCODING
            )
            if log.isEnabledFor(logging.DEBUG):
                return _watched(stdio_client(parameters, errlog=sys.stderr), self._on_end)
            quiet = stack.enter_context(open(os.devnull, "w"))  # noqa: ASYNC230, SIM115 - a device, closed by the stack
            return _watched(stdio_client(parameters, errlog=quiet), self._on_end)
        from mcp.client.streamable_http import streamable_http_client
        from mcp.shared._httpx_utils import create_mcp_http_client

        from perdure.services.http_bytes import ENCODINGS

        http = await stack.enter_async_context(create_mcp_http_client(headers={**ENCODINGS, **headers}))
        http.event_hooks["response"] += [_bounded, self._on_response]
        return streamable_http_client(url, http_client=http)

    async def _on_response(self, response: httpx2.Response) -> None:
        """Record the status of a response without an MCP answer, which the SDK reports as a server error."""
        kind = response.headers.get("content-type", "").lower()
        answers = kind.startswith(("application/json", "text/event-stream")) and response.status_code != 202
        if response.request.method == "POST" and (response.status_code >= 400 or not answers):
            key = _key_of(response.request.content)
            if key is not None:
                self.statuses[key] = response.status_code

    async def _list(self, client: Client) -> None:
        await self._on_list(await self._tools(client))
        self._listed_at = asyncio.get_running_loop().time()

    async def _list_again(self, client: Client) -> None:
        """Refresh the tool list. After a failure the old list stays."""
        from mcp import MCPError

        try:
            async with asyncio.timeout(self.config.start_timeout):
                await self._list(client)
        except (TimeoutError, MCPError, ValueError) as problem:
            if _lost(problem) is not None:
                raise
            log.warning("MCP tool list not refreshed server=%s error=%s", self.name, self._error_text(problem))
            self._listed_at = asyncio.get_running_loop().time()

    async def _tools(self, client: Client) -> list[types.Tool]:
        found: list[types.Tool] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            found += page.tools
            cursor = page.next_cursor
            if not cursor or len(found) > MAX_TOOLS:
                break
        return found[:MAX_TOOLS]

    def _error_text(self, problem: BaseException) -> str:
        """Return a short error text without secrets. Of a group, the first error."""
        while isinstance(problem, BaseExceptionGroup):
            problem = cast("BaseExceptionGroup[BaseException]", problem).exceptions[0]
        what = f"{type(problem).__name__}: {problem}" if str(problem) else type(problem).__name__
        return self.redactor.text(what)

    def _on_end(self) -> None:
        """Mark the connection as lost after the server process ended, also while idle."""
        self._lost.set()
        self._wake.set()

    async def _on_message(self, message: object) -> None:
        from mcp_types import ToolListChangedNotification

        inner = getattr(message, "root", message)
        if isinstance(inner, ToolListChangedNotification):
            self.refresh()

    async def _on_elicit(self, context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
        from mcp_types import ElicitResult

        return await self._elicit(params) if self._elicit else ElicitResult(action="decline")


@asynccontextmanager
async def _watched(transport: Transport, on_end: Callable[[], None]) -> AsyncGenerator[TransportStreams]:
    """Wrap a transport and report its end."""
    import anyio

    async with transport as (read, write), anyio.create_task_group() as relaying:
        ahead, behind = anyio.create_memory_object_stream[Any](0)

        async def relay() -> None:
            async with ahead:
                async for message in read:
                    await ahead.send(message)
            on_end()

        relaying.start_soon(relay)
        yield behind, write
        relaying.cancel_scope.cancel()


async def _bounded(response: httpx2.Response) -> None:
    """Limit a response like a line over stdio. The SDK limits each event of a stream."""
    from perdure.services.http_bytes import limit_bytes

    streams = response.headers.get("content-type", "").lower().startswith("text/event-stream")
    limit_bytes(response, sys.maxsize if streams else MAX_LINE_BYTES)


def _retrieved(future: asyncio.Future[T]) -> None:
    if not future.cancelled():
        future.exception()


def _lost(problem: BaseException | None) -> Literal["session", "connection", "answer"] | None:
    """Classify a loss reported by the SDK, or return None for the server's own error.

    Servers use the same codes, so the message decides. An unknown session proves that the server did nothing.
    """
    from mcp import MCPError
    from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST

    if not isinstance(problem, MCPError):
        return None
    match problem.error.code, problem.error.message:
        case code, "Session terminated" if code == INVALID_REQUEST:
            return "session"
        case code, "Connection closed" if code == CONNECTION_CLOSED:
            return "connection"
        case code, message if code == CONNECTION_CLOSED and message.startswith("SSE stream "):
            return "answer"
        case _:
            return None


def _key_of(request: bytes) -> str | None:
    """Return the idempotency key in a request, or None."""
    try:
        params = json.loads(request)["params"]
        return params["_meta"][KEY]
    except (ValueError, LookupError, TypeError):
        return None
