"""The connection pool of one store, with retries while the server is away."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from perdure.errors import Code, Error
from perdure.store.postgres.address import Address
from perdure.store.postgres.driver import TROUBLE, PgConnection, dial
from perdure.store.postgres.failures import RECONNECT_TIMEOUT_S, failure, is_contended, is_lost, is_refusal, is_stale
from perdure.store.postgres.heads import Heads
from perdure.store.postgres.schema import queries
from perdure.store.postgres.tx import PgTransaction
from perdure.store.postgres.vigil import Vigil
from perdure.store.shapes import Counters

T = TypeVar("T")

CONNECT_S = 10.0
COMMAND_S = 60.0
WATCH_S = 5.0
CONTENDED_TRIES = 20


async def connect(address: Address, *, command_s: float | None = COMMAND_S, **settings: str) -> PgConnection:
    """Open a connection with the settings of the address.

    Raises:
        Error: the connection cannot be opened.
    """
    try:
        return await dial(
            address.dsn,
            settings=dict(address.settings) | ({} if address.pooled else settings),
            cached=0 if address.pooled else 256,
            connect_s=CONNECT_S,
            command_s=command_s,
        )
    except (*TROUBLE, ValueError) as problem:
        if isinstance(problem, FileNotFoundError) and (missing := address.missing_file()):
            problem = FileNotFoundError(f"missing file {missing}, named in the address")
        raise failure(problem, address.shown, connecting=True) from problem


async def leave(connection: PgConnection) -> None:
    """Close a connection; terminate it if that fails."""
    try:
        await connection.close(timeout=1.0)
    except TROUBLE:
        connection.terminate()


class Connections:
    """A pool of connections; the last used one is lent first. Reads leave two connections to writes.

    A connection is terminated after a minute without a reply. One timer watches all connections: a timer for each
    statement would cost more than sending the statement.
    """

    def __init__(self, address: Address, counters: Counters, heads: Heads | None = None) -> None:
        self.address = address
        self._heads = heads or Heads()
        self.counters = counters
        self.vigil = Vigil(allowed=address.awake)
        self._queries = queries(address.schema)
        self._idle: list[PgTransaction] = []
        self._writing = asyncio.Semaphore(address.pool_size)
        self._reading = asyncio.Semaphore(max(1, address.pool_size - 2))
        self._lent: set[PgTransaction] = set()
        self._watching: asyncio.TimerHandle | None = None
        self._closed = False
        self.reconnect_timeout_s = RECONNECT_TIMEOUT_S

    def session(self, connection: PgConnection, counters: Counters | None = None) -> PgTransaction:
        """Wrap a connection with the named queries."""
        return PgTransaction(connection, self._queries, counters or self.counters, self._heads)

    @asynccontextmanager
    async def borrow(self) -> AsyncGenerator[PgTransaction]:
        """Lend a connection for the length of a block. A connection in an unknown state is not used again."""
        session = await self._lend()
        try:
            yield session
        except BaseException as problem:
            self._take_back(session, problem)
            raise
        self._take_back(session)

    async def _lend(self) -> PgTransaction:
        await self._writing.acquire()
        try:
            session = await self._usable()
        except BaseException:
            self._writing.release()
            raise
        session.asked_at = time.monotonic()
        self._lent.add(session)
        if self._watching is None:
            self._watching = asyncio.get_running_loop().call_later(WATCH_S, self._watch)
        return session

    def _watch(self) -> None:
        late = time.monotonic() - COMMAND_S
        for session in self._lent:
            if session.asked_at < late:
                session.connection.terminate()
        again = self._lent and not self._closed
        self._watching = asyncio.get_running_loop().call_later(WATCH_S, self._watch) if again else None

    def _take_back(self, session: PgTransaction, problem: BaseException | None = None) -> None:
        self._writing.release()
        self._lent.discard(session)
        sound = problem is None or isinstance(problem, Error) or is_refusal(problem) or is_contended(problem)
        if sound and not self._closed and not session.connection.is_closed():
            self._idle.append(session)
        else:
            session.connection.terminate()

    async def _usable(self) -> PgTransaction:
        while self._idle:
            session = self._idle.pop()
            if not session.connection.is_closed():
                return session
        return self.session(await connect(self.address, command_s=None))

    @property
    def at_hand(self) -> bool:
        """True if a connection can be lent without waiting."""
        return bool(self._idle) and not self._idle[-1].connection.is_closed() and not self._writing.locked()

    async def patiently(self, work: Callable[[PgTransaction], Awaitable[T]], *, again: bool = True) -> T:
        """Run work on a connection; retry while the server is away and after lock conflicts.

        A repeated `work` must return the result of the first run. With `again` off, a connection lost during the work
        is reported instead of retried.

        Raises:
            Error: `store_unavailable` or `store_locked` after the time limit; a refusal at once.
            PostgresError: an error of the work itself.
        """
        give_up = time.monotonic() + self.reconnect_timeout_s
        tries, pause = 0, 0.01
        while True:
            try:
                return await self.once(work)
            except Error as problem:
                if not _may_come_back(problem) or time.monotonic() > give_up:
                    raise
            except TROUBLE as problem:
                tries += is_contended(problem)
                hopeless = time.monotonic() > give_up or tries > CONTENDED_TRIES or (is_lost(problem) and not again)
                if not (is_lost(problem) or is_stale(problem) or is_contended(problem)):
                    raise
                if hopeless:
                    raise failure(problem, self.address.shown) from problem
            await asyncio.sleep(random.uniform(pause / 2, pause))
            pause = min(pause * 2, 0.5)

    async def once(self, work: Callable[[PgTransaction], Awaitable[T]]) -> T:
        """Run work on a connection, without retries."""
        session = await self._lend()
        try:
            result = await work(session)
        except BaseException as problem:
            self._take_back(session, problem)
            raise
        self._take_back(session)
        return result

    async def read(self, work: Callable[[PgTransaction], Awaitable[T]]) -> T:
        """Run a read with retries.

        Raises:
            Error: the read failed.
        """
        async with self._reading:
            try:
                return await self.patiently(work)
            except TROUBLE as problem:
                raise failure(problem, self.address.shown) from problem

    async def write(self, work: Callable[[PgTransaction], Awaitable[T]], *, again: bool = True) -> T:
        """Run a write with retries. `work` is one transaction or one statement.

        Raises:
            Error: the write was refused or failed, or its result is unknown.
        """
        try:
            return await self.patiently(work, again=again)
        except TROUBLE as problem:
            raise failure(problem, self.address.shown) from problem

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        while self._idle:
            await leave(self._idle.pop().connection)
        await asyncio.sleep(0)  # terminated connections are closed in the next turn of the loop


def _may_come_back(problem: Error) -> bool:
    """Return whether a failed connection attempt may succeed soon."""
    return problem.code in (Code.STORE_UNAVAILABLE, Code.STORE_CONNECTIONS_EXHAUSTED) and problem.details.get(
        "reason"
    ) not in ("3D000", "42P01", "3F000")
