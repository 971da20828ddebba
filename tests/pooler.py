"""A pooler in transaction mode, as small as it can be: every transaction may run on another server connection.

It speaks just enough of the protocol: it answers a client's startup itself, and lends it a server connection from the
first message of a transaction to the moment the server says that none is open.
"""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

READY = b"Z"
IDLE = b"I"


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    kind = await reader.readexactly(1)
    (size,) = struct.unpack("!I", await reader.readexactly(4))
    return kind, kind + struct.pack("!I", size) + await reader.readexactly(size - 4)


def _packet(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


class Pooler:
    """Clients share `size` server connections and are never given the same one twice in a row if another is idle."""

    def __init__(self, socket: Path, *, user: str, database: str, size: int = 4) -> None:
        self._socket = socket
        self._startup = f"user\0{user}\0database\0{database}\0\0".encode()
        self._size = size
        self._idle: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self._opened: list[asyncio.StreamWriter] = []
        self._greeting = b""
        self.lent = 0
        self.refused: list[str] = []

    async def open(self) -> int:
        """Connect to the server; the port on which clients are served."""
        for _ in range(self._size):
            reader, writer = await asyncio.open_unix_connection(str(self._socket))
            writer.write(struct.pack("!II", len(self._startup) + 8, 196608) + self._startup)
            greeting = b""
            while True:
                kind, packet = await _message(reader)
                greeting += packet if kind != b"K" else b""
                if kind == READY:
                    break
            self._greeting = greeting
            self._opened.append(writer)
            self._idle.put_nowait((reader, writer))
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Hang up."""
        self._server.close()
        await self._server.wait_closed()
        for writer in self._opened:
            writer.close()
            await writer.wait_closed()

    async def _serve(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        try:
            if await self._greet(client, answers):
                await self._transactions(client, answers)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            answers.close()

    async def _greet(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> bool:
        while True:
            (size, code) = struct.unpack("!II", await client.readexactly(8))
            body = await client.readexactly(size - 8)
            if code != 80877103:  # a request for TLS is declined
                break
            answers.write(b"N")
        names = body.split(b"\0")[::2]
        extra = [name.decode() for name in names if name not in (b"", b"user", b"database", b"client_encoding")]
        if extra:  # as poolers do: settings of a session mean nothing here
            self.refused += extra
            answers.write(_packet(b"E", b"SFATAL\0C08P01\0Munsupported startup parameter\0\0"))
            return False
        answers.write(self._greeting)
        return True

    async def _transactions(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        said = asyncio.create_task(_message(client))
        try:
            while (await said)[0] != b"X":
                reader, writer = await self._idle.get()
                self.lent += 1
                over = asyncio.create_task(self._until_idle(reader, answers))
                while not over.done():
                    if said.done():
                        writer.write(said.result()[1])
                        said = asyncio.create_task(_message(client))
                    await asyncio.wait({said, over}, return_when=asyncio.FIRST_COMPLETED)
                over.result()
                self._idle.put_nowait((reader, writer))
        finally:
            said.cancel()

    async def _until_idle(self, reader: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        while True:
            kind, packet = await _message(reader)
            answers.write(packet)
            await answers.drain()
            if kind == READY and packet[-1:] == IDLE:
                return
