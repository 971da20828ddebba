"""Commit notifications between processes. A notification is only a hint to read the store.

Notifications are sent after the commit, on a separate connection, at most once per 10 ms. If no other worker has to
act, the interval is 50 ms. A notification inside the append would make all appends of the database wait for one lock.
The receiver listens; behind a pooler, and after a broken connection, it reads a counter in the database instead. The
counter is also read once per second as a safeguard.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from perdure.errors import Error
from perdure.store.postgres.connections import Connections, connect, leave
from perdure.store.postgres.driver import TROUBLE, PgConnection
from perdure.store.postgres.tx import PgTransaction
from perdure.store.shapes import Counters

log = logging.getLogger("perdure.store")

QUIET_S = 0.010
CALM_S = 0.050
POLL_S = 0.1
SAFETY_POLL_S = 1.0
RETRY_S = 0.5

_AWAY = (Error, *TROUBLE)


class CommitNotifier:
    """Sends and receives commit notifications; `heard` changes when another store object has committed."""

    def __init__(self, connections: Connections, store_id: str) -> None:
        self.heard = 0
        self._connections = connections
        self._channel = f"perdure_{store_id}"
        self._me = uuid.uuid1().hex
        self._counters = Counters()  # separate: the number of notifications depends on time, not on work
        self._counter = 0
        self._listening: PgConnection | None = None
        self._one_at_a_time = asyncio.Lock()
        self._something_to_tell = asyncio.Event()
        self._pressing = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, on: PgTransaction) -> None:
        """Read the counter, and start to send and to receive notifications."""
        (self._counter,) = await on.one("commit_counter_read")
        self._tasks = [
            asyncio.create_task(self._keep_telling(), name="perdure:tell"),
            asyncio.create_task(self._keep_listening(), name="perdure:listen"),
        ]

    # --- telling

    def tell(self, *, pressing: bool = True) -> None:
        """Schedule a notification of a commit, without waiting. `pressing`: other workers may have to act on it."""
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
        """Send a notification. Return False on failure. A notification that failed or was cancelled stays scheduled."""
        self._something_to_tell.clear()
        self._pressing.clear()
        try:
            async with self._session() as session:
                counter, _ = await session.one("announce", self._channel, self._me)
        except _AWAY as problem:
            log.debug("commit notification failed error=%s", problem)
            self.tell()
            return False
        except asyncio.CancelledError:
            self.tell()
            raise
        self._notice(counter, expected=self._counter + 1)
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
                        (counter,) = await session.one("commit_counter_read")
                    self._notice(counter, expected=self._counter)
                    await asyncio.sleep(pause_s)
            except _AWAY as problem:
                log.debug("commit listener failed error=%s", problem)
            self._hang_up()
            await asyncio.sleep(RETRY_S)

    async def _listen(self) -> None:
        connection = await connect(self._connections.address, synchronous_commit="off")
        try:
            await connection.add_listener(self._channel, self._on_news)
        except BaseException:
            connection.terminate()
            raise
        self._listening = connection  # not earlier: a notification would use the connection concurrently

    def _on_news(self, _connection: object, _pid: int, _channel: str, text: str) -> None:
        sender, _, counter = text.partition(" ")
        if sender != self._me:
            self.heard += 1
            self._counter = max(self._counter, int(counter))

    def _notice(self, counter: int, *, expected: int) -> None:
        if counter > expected:
            self.heard += 1
        self._counter = max(self._counter, counter)

    # --- the connection

    @asynccontextmanager
    async def _session(self) -> AsyncGenerator[PgTransaction]:
        """Provide the listening connection if it is open, else a connection of the pool."""
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
        """Send a scheduled notification and stop."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._something_to_tell.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._announce()
        if self._listening is not None:
            await leave(self._listening)
