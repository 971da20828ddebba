"""HTTP probes of a worker for its supervisor: /live and /ready on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from perdure.errors import Code, Error

if TYPE_CHECKING:
    from perdure.runtime.runtime import Runtime

HOST = "127.0.0.1"
_READ_TIMEOUT_S = 5.0


@asynccontextmanager
async def health(rt: Runtime, port: int | None) -> AsyncGenerator[int | None]:
    """Serve /live and /ready on `port` while the context is open. 0 takes any free port; None serves nothing.

    Raises:
        Error: `invalid_argument` if the port cannot be bound.
    """
    if port is None:
        yield None
        return
    try:
        server = await asyncio.start_server(lambda reader, writer: _answer(rt, reader, writer), HOST, port, limit=4096)
    except OSError as problem:
        raise Error(
            Code.INVALID_ARGUMENT,
            f"cannot bind health port {port}",
            because=problem.strerror or str(problem),
            hint="--health-port 0 takes any free port",
        ) from problem
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def _answer(rt: Runtime, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        async with asyncio.timeout(_READ_TIMEOUT_S):
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(_response(rt, head))
            await writer.drain()
    except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        pass  # the client disconnected, or does not speak HTTP
    finally:
        writer.close()


def _response(rt: Runtime, head: bytes) -> bytes:
    method, _, rest = head.split(b"\r\n", 1)[0].partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    if method not in (b"GET", b"HEAD"):
        status, text = "405 Method Not Allowed", "only GET\n"
    elif path == b"/live":
        status, text = "200 OK", "live\n"
    elif path == b"/ready":
        status, text = ("200 OK", "ready\n") if rt.ready else ("503 Service Unavailable", "not ready\n")
    else:
        status, text = "404 Not Found", "only /live and /ready\n"
    fields = f"Content-Type: text/plain\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    return f"HTTP/1.1 {status}\r\n{fields}{'' if method == b'HEAD' else text}".encode()
