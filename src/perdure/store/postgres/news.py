"""Telling other processes that something was committed, and hearing it from them. Only ever a hint to look.

Told after the commit, on a connection of its own, at most once in 10 ms, and in 50 if nobody has anything to do because
of it: a notification inside the append would make all appends of the database queue for one lock. Heard by listening;
where that is not possible, or breaks, a counter in the database is read instead, and now and then it is read anyway.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from perdure.errors import Error
from perdure.store.postgres.connections import Connections, connect, leave
from perdure.store.postgres.driver import TROUBLE, Connection
from perdure.store.postgres.tx import Session
from perdure.store.shapes import Counters

log = logging.getLogger("perdure.store")

QUIET_S = 0.010
CALM_S = 0.050
POLL_S = 0.1
SAFETY_POLL_S = 1.0
RETRY_S = 0.5

_AWAY = (Error, *TROUBLE)


class News:
    """`heard` changes when somebody else has told of a commit."""

    def __init__(self, connections: Connections, store_id: str) -> None:
        self.heard = 0
        self._connections = connections
        self._channel = f"perdure_{store_id}"
        self._me = uuid.uuid1().hex
        self._counters = Counters()  # of its own: how often we tell is a matter of time, not of work
        self._pulse = 0
        self._listening: Connection | None = None
        self._one_at_a_time = asyncio.Lock()
        self._something_to_tell = asyncio.Event()
        self._pressing = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, on: Session) -> None:
        """Know where the counter stands, and begin to tell and to listen."""
        (self._pulse,) = await on.one("pulse_read")
        self._tasks = [
            asyncio.create_task(self._keep_telling(), name="perdure:tell"),
            asyncio.create_task(self._keep_listening(), name="perdure:listen"),
        ]

    # --- telling

    def tell(self, *, pressing: bool = True) -> None:
        """We have committed something. `pressing`: others may have to act on it. Never waits."""
        self._something_to_tell.set()
        if pressing:
            self._pressing.set()

    async def _keep_telling(self) -> None:
        while True:
            await self._something_to_tell.wait()
            told = await self._announce()
            await asyncio.sleep(QUIET_S if told else RETRY_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(CALM_S - QUIET_S):
                    await self._pressing.wait()

    async def _announce(self) -> bool:
        """Tell it. False if that was not possible: then it is still to be told."""
        self._something_to_tell.clear()
        self._pressing.clear()
        try:
            async with self._session() as session:
                pulse, _ = await session.one("announce", self._channel, self._me)
        except _AWAY as problem:
            log.debug("a commit could not be announced: %s", problem)
            self.tell()
            return False
        self._notice(pulse, expected=self._pulse + 1)
        return True

    # --- hearing

    async def _keep_listening(self) -> None:
        pause_s = POLL_S if self._connections.address.pooled else SAFETY_POLL_S
        while True:
            try:
                if not self._connections.address.pooled:
                    await self._listen()
                while True:
                    async with self._session() as session:
                        (pulse,) = await session.one("pulse_read")
                    self._notice(pulse, expected=self._pulse)
                    await asyncio.sleep(pause_s)
            except _AWAY as problem:
                log.debug("not listening for the commits of others: %s", problem)
            self._hang_up()
            await asyncio.sleep(RETRY_S)

    async def _listen(self) -> None:
        connection = await connect(self._connections.address, synchronous_commit="off")
        try:
            await connection.add_listener(self._channel, self._on_news)
        except BaseException:
            connection.terminate()
            raise
        self._listening = connection  # not before: whoever tells would get into the way of this

    def _on_news(self, _connection: object, _pid: int, _channel: str, text: str) -> None:
        sender, _, pulse = text.partition(" ")
        if sender != self._me:
            self.heard += 1
            self._pulse = max(self._pulse, int(pulse))

    def _notice(self, pulse: int, *, expected: int) -> None:
        if pulse > expected:
            self.heard += 1
        self._pulse = max(self._pulse, pulse)

    # --- the connection

    @asynccontextmanager
    async def _session(self) -> AsyncGenerator[Session]:
        """The connection that listens, if there is one; else one of the pool."""
        connection = self._listening
        if connection is None or connection.is_closed():
            async with self._connections.borrow() as session:
                yield self._connections.session(session.connection, self._counters)
        else:
            async with self._one_at_a_time:
                yield self._connections.session(connection, self._counters)

    def _hang_up(self) -> None:
        connection, self._listening = self._listening, None
        if connection is not None:
            connection.terminate()

    async def close(self) -> None:
        """Tell what is left to tell, and stop."""
        if self._something_to_tell.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._announce()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listening is not None:
            await leave(self._listening)
