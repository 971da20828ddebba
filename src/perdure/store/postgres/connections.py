"""The connections of one store: a small pool that everything borrows from, and patience when the server is away."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from perdure.errors import Code, Error
from perdure.store.postgres.address import Address
from perdure.store.postgres.driver import TROUBLE, Connection, dial
from perdure.store.postgres.failures import PATIENCE_S, failure, is_contended, is_lost, is_refusal, is_stale
from perdure.store.postgres.schema import queries
from perdure.store.postgres.tx import Session
from perdure.store.postgres.vigil import Vigil
from perdure.store.shapes import Counters

T = TypeVar("T")

CONNECT_S = 10.0
COMMAND_S = 60.0
WATCH_S = 5.0
CONTENDED_TRIES = 20


async def connect(address: Address, *, command_s: float | None = COMMAND_S, **settings: str) -> Connection:
    """A connection with our settings.

    Raises:
        Error: why there is none.
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
            problem = FileNotFoundError(f"there is no {missing}, which the address names")
        raise failure(problem, address.shown, connecting=True) from problem


async def leave(connection: Connection) -> None:
    """Say goodbye, or hang up."""
    try:
        await connection.close(timeout=1.0)
    except TROUBLE:
        connection.terminate()


class Connections:
    """Borrowed one at a time, the warmest first. Reads leave two of them to the writers.

    A server that does not answer for a minute is hung up on. One timer looks after all of them: one for each statement
    would cost more than sending it.
    """

    def __init__(self, address: Address, counters: Counters) -> None:
        self.address = address
        self.counters = counters
        self.vigil = Vigil(allowed=address.awake)
        self._queries = queries(address.schema)
        self._idle: list[Session] = []
        self._writing = asyncio.Semaphore(address.pool_size)
        self._reading = asyncio.Semaphore(max(1, address.pool_size - 2))
        self._lent: set[Session] = set()
        self._watching: asyncio.TimerHandle | None = None
        self._closed = False
        self.patience_s = PATIENCE_S

    def session(self, connection: Connection, counters: Counters | None = None) -> Session:
        """Our queries on a connection."""
        return Session(connection, self._queries, counters or self.counters)

    @asynccontextmanager
    async def borrow(self) -> AsyncGenerator[Session]:
        """A connection for a while. One that is left in the middle of something is not used again."""
        session = await self._lend()
        try:
            yield session
        except BaseException as problem:
            self._take_back(session, problem)
            raise
        self._take_back(session)

    async def _lend(self) -> Session:
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

    def _take_back(self, session: Session, problem: BaseException | None = None) -> None:
        self._writing.release()
        self._lent.discard(session)
        sound = problem is None or isinstance(problem, Error) or is_refusal(problem) or is_contended(problem)
        if sound and not self._closed and not session.connection.is_closed():
            self._idle.append(session)
        else:
            session.connection.terminate()

    async def _usable(self) -> Session:
        while self._idle:
            session = self._idle.pop()
            if not session.connection.is_closed():
                return session
        return self.session(await connect(self.address, command_s=None))

    @property
    def at_hand(self) -> bool:
        """Whether one can be borrowed without waiting for anything."""
        return bool(self._idle) and not self._idle[-1].connection.is_closed() and not self._writing.locked()

    async def patiently(self, work: Callable[[Session], Awaitable[T]], *, again: bool = True) -> T:
        """Do something with a connection; again if the server was away or others stood in the way.

        `work` must answer a repetition with what the first time did, unless `again` is off: then a connection lost on
        the way is reported.

        Raises:
            Error: `store_unavailable` or `store_locked` when patience ends; refusals as they come.
            PostgresError: what is to blame on the work itself.
        """
        give_up = time.monotonic() + self.patience_s
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

    async def once(self, work: Callable[[Session], Awaitable[T]]) -> T:
        """Do something with a connection, whatever comes of it."""
        session = await self._lend()
        try:
            result = await work(session)
        except BaseException as problem:
            self._take_back(session, problem)
            raise
        self._take_back(session)
        return result

    async def read(self, work: Callable[[Session], Awaitable[T]]) -> T:
        """Read something, patiently.

        Raises:
            Error: why it cannot be read.
        """
        async with self._reading:
            try:
                return await self.patiently(work)
            except TROUBLE as problem:
                raise failure(problem, self.address.shown) from problem

    async def write(self, work: Callable[[Session], Awaitable[T]], *, again: bool = True) -> T:
        """Write something, patiently. Everything in `work` is one transaction, or one statement.

        Raises:
            Error: why it was not written, or that nobody knows.
        """
        try:
            return await self.patiently(work, again=again)
        except TROUBLE as problem:
            raise failure(problem, self.address.shown) from problem

    async def close(self) -> None:
        """Hang up on all of them."""
        self._closed = True
        while self._idle:
            await leave(self._idle.pop().connection)
        await asyncio.sleep(0)  # those that were hung up on go with the next turn of the loop


def _may_come_back(problem: Error) -> bool:
    """Whether a connection that could not be opened now may be opened soon."""
    return problem.code in (Code.STORE_UNAVAILABLE, Code.STORE_CONNECTIONS_EXHAUSTED) and problem.details.get(
        "reason"
    ) not in ("3D000", "42P01", "3F000")
