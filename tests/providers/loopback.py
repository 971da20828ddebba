"""A provider on this machine: answers requests with what it is given, byte for byte, and can break off anywhere."""

# It reads the JSON of others.
# pyright: basic
from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body) if self.body else None

    @property
    def operation(self) -> str:
        """The last word of the path: which thing is asked for, wherever the provider lives."""
        return operation_of(self.method, self.path)


def operation_of(method: str, url: str) -> str:
    return f"{method} {urlsplit(url).path.rpartition('/')[2]}"


@dataclass(frozen=True, slots=True)
class Answer:
    """A response. `cut`: the connection breaks after the body; `hold`: it stays open and nothing more comes, except
    `pings`, again and again."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict[str, str])
    cut: bool = False
    hold: bool = False
    pings: bytes = b""


def answer(value: object, *, status: int = 200, **headers: str) -> Answer:
    """A response in JSON."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Answer(json.dumps(value).encode(), status, headers=named)


def events(*data: object, done: bool = False, named: bool = False, cut: bool = False, hold: bool = False) -> Answer:
    """A stream of server-sent events; `named` repeats the type of each, as Anthropic and OpenAI's Responses do."""
    text = ""
    for one in data:
        assert isinstance(one, dict)
        text += f"event: {one['type']}\n" if named else ""
        text += f"data: {json.dumps(one)}\n\n"
    text += "data: [DONE]\n\n" if done else ""
    return Answer(text.encode(), content_type="text/event-stream", cut=cut, hold=hold)


Reply = Answer | Callable[[Asked], Answer]


class Loopback:
    """The server: `asked` has every request, and the answers are given in their order."""

    def __init__(self, answers: Sequence[Reply] = (), *, always: Callable[[Asked], Answer] | None = None) -> None:
        self.answers = list(answers)
        self.always = always
        self.asked: list[Asked] = []
        self.holding = asyncio.Event()
        self.pinged = asyncio.Event()
        self.url = ""
        self._connections: set[asyncio.Task[None]] = set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while (asked := await _read(reader)) is not None:
                self.asked.append(asked)
                if not await self._answer(asked, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(self, asked: Asked, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection goes on."""
        nothing_left = Answer(b'{"error": {"message": "nothing is left to say"}}', status=400)
        found = self.answers.pop(0) if self.answers else self.always or nothing_left
        given = found if isinstance(found, Answer) else found(asked)
        unfinished = given.cut or given.hold
        head = [f"HTTP/1.1 {given.status} X", f"content-type: {given.content_type}"]
        head += [f"{name}: {value}" for name, value in given.headers.items()]
        head += ["transfer-encoding: chunked"] if unfinished else [f"content-length: {len(given.body)}"]
        writer.write("\r\n".join(head).encode() + b"\r\n\r\n")
        writer.write(_chunk(given.body) if unfinished else given.body)
        await writer.drain()
        if given.hold:
            self.holding.set()
            for pings in range(10_000 if given.pings else 0):
                writer.write(_chunk(given.pings))
                await writer.drain()
                await asyncio.sleep(0.01)
                if pings == 20:
                    self.pinged.set()
            await asyncio.Event().wait()
        return not given.cut

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Loopback]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        try:
            yield self
        finally:
            server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
            await server.wait_closed()


@contextmanager
def beside(server: Loopback) -> Iterator[Loopback]:
    """The server in a thread of its own, for commands that run meanwhile."""
    ready, over = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with server.running():
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    ready.wait()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


def _chunk(body: bytes) -> bytes:
    return f"{len(body):x}\r\n".encode() + body + b"\r\n" if body else b""


async def _read(reader: asyncio.StreamReader) -> Asked | None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Asked(method, path, headers, body)
