"""What an application gives its tools to work with: one object for all, or one made for each turn."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncContextDecorator, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import cast

from perdure.errors import Code, Error
from perdure.ids import SessionId, Tenant

log = logging.getLogger("perdure.runtime")

OPEN_S = 60
CLOSE_S = 10


@dataclass(frozen=True, slots=True)
class DepsContext:
    """Whom dependencies are made for."""

    session: SessionId
    tenant: Tenant
    agent: str


@dataclass(frozen=True, slots=True)
class PerTurn:
    """Dependencies that are made when a turn first needs them. See `per_turn`."""

    factory: Callable[[DepsContext], object]


def per_turn(factory: Callable[[DepsContext], object]) -> PerTurn:
    """Make dependencies anew for every turn: `Runtime(..., deps=per_turn(open_deps))`.

    An async generator function yields them, and what stands after its `yield` runs when the turn is over; a function
    decorated with `asynccontextmanager` works the same way. An async function returns them, or a plain one does: then
    nothing is closed. They are made at most once while a turn is in memory, when its instructions or its first call
    need them; a turn that is continued after a crash or a long wait gets new ones.

    Raises:
        Error: `invalid_argument` if it cannot be called with one argument.
    """
    if not callable(factory):
        raise Error(Code.INVALID_ARGUMENT, f"per_turn needs a function, not {type(factory).__name__}")
    try:
        inspect.signature(factory).bind(None)
    except TypeError:
        raise Error(
            Code.INVALID_ARGUMENT,
            "per_turn needs a function of one argument",
            because="it is called with a DepsContext",
            hint="async def open_deps(ctx: DepsContext): ...",
        ) from None
    except ValueError:
        pass  # a callable without a signature: it will see
    return PerTurn(asynccontextmanager(factory) if inspect.isasyncgenfunction(factory) else factory)


class DepsFailed(Exception):
    """The application's factory failed. Its error is logged, and nobody's business outside."""


class TurnDeps:
    """The dependencies of one turn: opened on first need, closed with the turn."""

    def __init__(self, given: object, context: DepsContext) -> None:
        self._given = given
        self._context = context
        self._stack = AsyncExitStack()
        self._opening: asyncio.Task[object] | None = None
        self._users = 0
        self._over = False

    @property
    def at_hand(self) -> object:
        """The dependencies, if they have been made; None if not."""
        if not isinstance(self._given, PerTurn):
            return self._given
        opening = self._opening
        if opening is None or not opening.done() or opening.cancelled() or opening.exception():
            return None
        return opening.result()

    async def make(self) -> None:
        """Have them at hand before anybody uses them. A factory that fails is met again by who does."""
        with suppress(DepsFailed):
            async with self.use():
                pass

    @asynccontextmanager
    async def use(self) -> AsyncGenerator[object]:
        """The dependencies themselves, which stay open for as long as they are used.

        Raises:
            DepsFailed: the factory failed, now or before.
        """
        if not isinstance(self._given, PerTurn):
            yield self._given
            return
        self._users += 1
        try:
            if self._opening is None:
                self._opening = asyncio.create_task(self._open(self._given), name="perdure:deps")
            opening = self._opening
            await asyncio.wait({opening})  # a call that is cancelled does not take them from the others
            if opening.cancelled():
                raise DepsFailed
            yield opening.result()
        finally:
            self._users -= 1
            if self._over:
                await self.close()

    async def _open(self, given: PerTurn) -> object:
        try:
            async with asyncio.timeout(OPEN_S):
                made = given.factory(self._context)
                if isinstance(made, AsyncContextDecorator):
                    manager = cast("AbstractAsyncContextManager[object]", made)
                    return await self._stack.enter_async_context(manager)
                return await made if inspect.isawaitable(made) else made
        except BaseException as problem:
            # Of any kind: a SystemExit would end the event loop, a CancelledError pass for that of a call.
            if not self._over:
                log.exception("the dependencies of a turn could not be made", extra=self._extra())
            raise DepsFailed from problem

    async def close(self) -> None:
        """The turn is over: close them, or let the last call that still uses them do it.

        Never raises for what the application's code does: it has nothing to do with how the turn ended.
        """
        self._over = True
        if self._opening is None or self._users:
            return
        opening, self._opening = self._opening, None
        closing = asyncio.ensure_future(self._close(opening))
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await closing  # it is bounded in time, and a connection left open is not
            raise

    async def _close(self, opening: asyncio.Task[object]) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                if not opening.done():
                    opening.cancel()
                await asyncio.wait({opening})
                if not opening.cancelled():
                    opening.exception()
                await self._stack.aclose()
        except BaseException:
            log.exception("the dependencies of a turn could not be closed", extra=self._extra())

    def _extra(self) -> dict[str, object]:
        return {"session": self._context.session, "tenant": self._context.tenant}
