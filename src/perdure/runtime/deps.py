"""Dependencies for tools: one object for all turns, or one made for each turn."""

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
    """The turn for which dependencies are made."""

    session: SessionId
    tenant: Tenant
    agent: str


@dataclass(frozen=True, slots=True)
class PerTurn:
    """A factory of dependencies, called when a turn first needs them. See `per_turn`."""

    factory: Callable[[DepsContext], object]


def per_turn(factory: Callable[[DepsContext], object]) -> PerTurn:
    """Make new dependencies for every turn: `Runtime(..., deps=per_turn(open_deps))`.

    An async generator function yields the dependencies; the code after its `yield` runs when the turn ends. A function
    decorated with `asynccontextmanager` works the same way. A plain or async function returns the dependencies, and
    nothing is closed. The factory runs at most once while a turn is in memory, when its instructions or its first call
    need the dependencies. A turn that resumes after a crash or a long wait gets new ones.

    Raises:
        Error: `invalid_argument` if the factory cannot be called with one argument.
    """
    if not callable(factory):
        raise Error(Code.INVALID_ARGUMENT, f"per_turn needs a function, not {type(factory).__name__}")
    try:
        inspect.signature(factory).bind(None)
    except TypeError:
        raise Error(
            Code.INVALID_ARGUMENT,
            "per_turn needs a function of one argument",
            because="the function receives a DepsContext",
            hint="async def open_deps(ctx: DepsContext): ...",
        ) from None
    except ValueError:
        pass  # a callable without a signature: the call shows whether it takes one argument
    return PerTurn(asynccontextmanager(factory) if inspect.isasyncgenfunction(factory) else factory)


class DepsFailed(Exception):
    """The application's factory failed. The cause is logged and not shown to models or clients."""


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
        """The dependencies if they are open, else None."""
        if not isinstance(self._given, PerTurn):
            return self._given
        opening = self._opening
        if opening is None or not opening.done() or opening.cancelled() or opening.exception():
            return None
        return opening.result()

    async def make(self) -> None:
        """Open the dependencies before they are used. A failure is raised by the next `use`."""
        with suppress(DepsFailed):
            async with self.use():
                pass

    @asynccontextmanager
    async def use(self) -> AsyncGenerator[object]:
        """Yield the dependencies and keep them open while they are in use.

        Raises:
            DepsFailed: the factory failed, now or earlier.
        """
        if not isinstance(self._given, PerTurn):
            yield self._given
            return
        self._users += 1
        try:
            if self._opening is None:
                self._opening = asyncio.create_task(self._open(self._given), name="perdure:deps")
            opening = self._opening
            await asyncio.wait({opening})  # a cancelled call does not cancel the factory for the other calls
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
            # Any exception: a SystemExit would end the event loop, a CancelledError would look like that of a call.
            if not self._over:
                log.exception("turn dependencies failed to open", extra=self._extra())
            raise DepsFailed from problem

    async def close(self) -> None:
        """Close the dependencies when the turn ends, or leave that to the last call that still uses them.

        Exceptions of the application's code are logged, not raised: they do not change how the turn ended.
        """
        self._over = True
        if self._opening is None or self._users:
            return
        opening, self._opening = self._opening, None
        closing = asyncio.ensure_future(self._close(opening))
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await closing  # bounded in time; a connection left open is not
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
            log.exception("turn dependencies failed to close", extra=self._extra())

    def _extra(self) -> dict[str, object]:
        return {"session": self._context.session, "tenant": self._context.tenant}
