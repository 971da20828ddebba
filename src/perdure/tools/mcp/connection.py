"""One connection to one server: made, kept, made again when it is lost. Everything of it lives in one task.

Laws: a call that was sent and not answered is never sent again. What is known to be lost before a call is sent is told
as "not run"; what is lost afterwards as unknown. A server that does not list its tools anew is left in peace: it may be
busy with a call.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from perdure.services.secrets import Veil
from perdure.tools.mcp.config import Expanded, ServerConfig
from perdure.tools.mcp.lines import ENCODING

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
"""Under which servers find the idempotency key of a call, in its `_meta`."""

T = TypeVar("T")


class NotConnected(Exception):
    """There is no connection: nothing was sent."""


class ConnectionLost(Exception):
    """The connection ended while an answer was owed: nobody knows what became of the request."""


Elicit = Callable[["types.ElicitRequestParams"], Awaitable["types.ElicitResult"]]


class Connection:
    """A connection that is kept up by a task of its own between `start` and `stop`."""

    def __init__(self, name: str, config: ServerConfig, on_list: Callable[[Sequence[types.Tool]], None]) -> None:
        self.name = name
        self.config = config
        self.veil = Veil()
        """Hides what references of the configuration have brought in."""
        self.statuses: dict[str, int] = {}
        """Of calls under way over HTTP, by key: the status of a response that is no answer."""
        self._on_list = on_list
        self._task: asyncio.Task[None] | None = None
        self._client: Client | None = None
        self._tried = asyncio.Event()
        self._lost = asyncio.Event()
        self._wake = asyncio.Event()
        self._stale = False
        self._listed_at = 0.0
        self._elicit: Elicit | None = None
        self.alone = asyncio.Lock()  # a server that asks in the middle of a call does not say of which

    async def start(self) -> None:
        """Connect, and return once that worked or failed for the first time."""
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
        """Whether a call could be sent now."""
        return self._client is not None and not self._lost.is_set()

    def refresh(self) -> None:
        """Ask for the list of tools again, soon."""
        self._stale = True
        self._wake.set()

    def look(self) -> None:
        """A turn begins: if the list is old, it is asked for, for the turns after this one."""
        if self.connected and asyncio.get_running_loop().time() - self._listed_at >= self.config.refresh:
            self.refresh()

    async def request(self, send: Callable[[Client], Awaitable[T]]) -> T:
        """Send something and wait for the answer.

        Raises:
            NotConnected: it was not sent.
            ConnectionLost: it was, or may have been, and no answer came.
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
                self.refresh()  # which finds out whether the server is there
                raise ConnectionLost(self.name)
            case None:
                return asking.result()

    def eliciting(self, elicit: Elicit | None) -> None:
        """Who asks people when the server does so in the middle of a call."""
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
            except BaseException as problem:  # noqa: BLE001 - also groups of them, and being cancelled from inside
                if not me.cancelling() and not isinstance(problem, asyncio.CancelledError):
                    log.warning("the MCP server %s is not connected: %s", self.name, self._told(problem))
            finally:
                self._client = None
                self._lost.set()
                self._tried.set()
            if me.cancelling():  # whatever the connection made of it when it was told to end
                raise asyncio.CancelledError
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _connected(self) -> None:
        """Connect and stay so, until the connection is lost."""
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
            self.veil.add(secret)
        if config.command:
            import os
            import sys

            from mcp import StdioServerParameters, stdio_client

            parameters = StdioServerParameters(
                command=config.command, args=args, env=env or None, cwd=config.cwd or None, encoding=ENCODING
            )
            if log.isEnabledFor(logging.DEBUG):
                return _watched(stdio_client(parameters, errlog=sys.stderr), self._on_end)
            quiet = stack.enter_context(open(os.devnull, "w"))  # noqa: ASYNC230, SIM115 - a device, and the stack's
            return _watched(stdio_client(parameters, errlog=quiet), self._on_end)
        from mcp.client.streamable_http import streamable_http_client
        from mcp.shared._httpx_utils import create_mcp_http_client

        http = await stack.enter_async_context(create_mcp_http_client(headers=headers or None))
        http.event_hooks["response"].append(self._on_response)
        return streamable_http_client(url, http_client=http)

    async def _on_response(self, response: httpx2.Response) -> None:
        """Of a response that is no answer the SDK tells as if the server had answered with an error: remember it."""
        kind = response.headers.get("content-type", "").lower()
        answers = kind.startswith(("application/json", "text/event-stream")) and response.status_code != 202
        if response.request.method == "POST" and (response.status_code >= 400 or not answers):
            key = _key_of(response.request.content)
            if key is not None:
                self.statuses[key] = response.status_code

    async def _list(self, client: Client) -> None:
        self._on_list(await self._tools(client))
        self._listed_at = asyncio.get_running_loop().time()

    async def _list_again(self, client: Client) -> None:
        """Ask for the tools anew. If the server does not tell, those that it has told stand."""
        from mcp import MCPError

        try:
            async with asyncio.timeout(self.config.start_timeout):
                await self._list(client)
        except (TimeoutError, MCPError, ValueError) as problem:
            if _lost(problem) is not None:
                raise
            log.warning("the MCP server %s does not list its tools anew: %s", self.name, self._told(problem))
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

    def _told(self, problem: BaseException) -> str:
        """What went wrong, in few words and without secrets: of a group, the first of its errors."""
        while isinstance(problem, BaseExceptionGroup):
            problem = cast("BaseExceptionGroup[BaseException]", problem).exceptions[0]
        what = f"{type(problem).__name__}: {problem}" if str(problem) else type(problem).__name__
        return self.veil.text(what)

    def _on_end(self) -> None:
        """The server's process is gone, perhaps while nobody asked it anything."""
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
    """The same transport, whose end is told."""
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


def _retrieved(future: asyncio.Future[T]) -> None:
    if not future.cancelled():
        future.exception()


def _lost(problem: BaseException | None) -> Literal["session", "connection", "answer"] | None:
    """What an error of the SDK itself says is lost; None if it is the server's own. Servers use the same codes, so its
    words have to tell. Of a server that does not know the session any more it is certain that it did nothing."""
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
    """The key of the call that a request is."""
    try:
        params = json.loads(request)["params"]
        return params["_meta"][KEY]
    except (ValueError, LookupError, TypeError):
        return None
