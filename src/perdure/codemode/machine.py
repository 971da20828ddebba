"""The interpreter: a child process per program that can do nothing but compute, pause at a call, and be kept as bytes.

It has no files, no network, no clock and no imports of its own; whatever it asks for comes to whoever drives it. An
endless loop is ended by the limits inside the process, and the process by us if it does not obey. The worker survives
whatever becomes of it.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable
from contextlib import AsyncExitStack, suppress
from typing import NoReturn, Self, TypeVar, cast
from weakref import WeakKeyDictionary

import pydantic_monty as monty

from perdure.codemode.limits import Limits
from perdure.codemode.pauses import (
    Answer,
    Call,
    Finished,
    Later,
    Lookup,
    NoSuchThing,
    Pause,
    ProgramEnded,
    Raises,
    Returns,
    Unloadable,
    Waiting,
    Wish,
)
from perdure.codemode.sites import Texts

GRACE_S = 5.0
"""How much longer than its limit an interpreter may take before its process is ended."""

SUSPENSIONS = 100_000
"""Ours is counted across restarts; theirs only has to be out of the way."""

_BROKE_DOWN = "The interpreter of the program broke down; nothing more of it was run."

_LIMIT = re.compile("limit exceeded|exceeded its memory limit")
"""How the interpreter says that it was ended by a limit: inside, or by the death of its process."""

T = TypeVar("T")


class Machine:
    """One interpreter process, for one entry of one program: `async with Machine(limits) as machine`."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._stack = AsyncExitStack()
        self._session: monty.AsyncMontySession | None = None
        self._at: monty.AsyncSnapshot | None = None
        self._printed: monty.CollectString | None = None
        self._before = ""
        self.texts = Texts()

    @property
    def version(self) -> str:
        """What can read what is kept here."""
        return f"monty {monty.__version__}, 2"

    @property
    def printed(self) -> str:
        """What the program has printed so far, before it was kept included."""
        return self._before + (self._printed.output if self._printed else "")

    @property
    def pid(self) -> int | None:
        """The process, while it does not run a program."""
        return self._session.worker_pid if self._session else None

    async def __aenter__(self) -> Self:
        limits = self._limits
        pool = monty.AsyncMonty(
            min_processes=1,
            max_processes=1,
            request_timeout=limits.seconds + GRACE_S,
            feed_duration_limit_grace=GRACE_S / 2,
        )
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(pool)
            self._session = await stack.enter_async_context(
                pool.checkout(
                    script_name="program.py",
                    limits={
                        "max_feed_duration_secs": limits.seconds,
                        "max_memory": limits.memory_bytes,
                        "max_suspensions": SUSPENSIONS,
                    },
                    os_policy={"datetime": "call_host", "sleep": "call_host", "random_start": "call_host"},
                )
            )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    # --- running

    async def run(self, code: str) -> Pause:
        """Begin a program, with the variables that the machine has."""
        self._before = ""
        self._printed = self._sink()
        self.texts = self.texts.and_(code)
        return await self._next(self._open.feed_start(code, print_callback=self._printed))

    async def answer(self, answer: Answer | Later) -> Pause:
        """Let the program go on from where it paused."""
        at = self._at
        if isinstance(at, monty.AsyncNameLookupSnapshot):
            known = isinstance(answer, Returns)
            return await self._next(at.resume(value=_named(at.variable_name)) if known else at.resume())
        assert isinstance(at, monty.AsyncFunctionSnapshot)
        match answer:
            case Later():
                return await self._next(at.resume({"future": ...}))
            case NoSuchThing():
                return await self._next(at.resume_not_handled())
            case _:
                return await self._next(at.resume(_result(answer)))

    async def deliver(self, number: int, answer: Answer) -> Pause:
        """Give the program what it was promised, and let it go on. One thing at a time: so the order is known."""
        at = self._at
        assert isinstance(at, monty.AsyncFutureSnapshot)
        return await self._next(at.resume({number: _result(answer)}))

    # --- keeping

    async def save(self) -> bytes:
        """Where the program stands, or the variables that it left."""
        return await self._drive(self._open.dump())

    async def load_variables(self, state: bytes) -> None:
        """Begin with the variables that an earlier program left.

        Raises:
            Unloadable: they cannot be read.
        """
        try:
            await self._drive(self._open.load_session(state))
        except (ProgramEnded, RuntimeError, ValueError) as problem:
            raise Unloadable(str(problem)) from None

    async def load_program(self, state: bytes, printed: str) -> Pause:
        """Stand where an earlier entry of the program stood.

        Raises:
            Unloadable: it cannot be read.
        """
        self._before = printed
        self._printed = self._sink()
        try:
            return await self._next(self._open.load_snapshot(state, print_callback=self._printed))
        except (ProgramEnded, RuntimeError, ValueError) as problem:
            raise Unloadable(str(problem)) from None

    # --- the process

    @property
    def _open(self) -> monty.AsyncMontySession:
        assert self._session is not None
        return self._session

    def _sink(self) -> monty.CollectString:
        left = self._limits.output_bytes - len(self._before.encode())
        return monty.CollectString(max_bytes=max(1, left))

    async def _next(self, running: Awaitable[monty.AsyncSnapshot]) -> Pause:
        self._at = at = await self._drive(running)
        match at:
            case monty.MontyComplete():
                return Finished(at.output)
            case monty.AsyncNameLookupSnapshot():
                return Lookup(at.variable_name)
            case monty.AsyncFunctionSnapshot():
                if at.is_os_function:
                    return Wish(at.function_name, at.args, at.call_id, at.function_name == "asyncio.sleep")
                where = at.position
                awaited = at.allow_eager_await or self.texts.awaits(where.filename, (where.start, where.end))
                return Call(at.function_name, at.args, at.kwargs, at.call_id, awaited)
            case monty.AsyncFutureSnapshot() if at.pending_call_ids:
                return Waiting(tuple(sorted(at.pending_call_ids)))
            case _:
                with suppress(ProgramEnded):
                    await self._drive(at.resume({}))  # it cannot go on, and says so
                message = "The program awaits what an earlier program was promised: await calls where you make them."
                raise ProgramEnded("failed", message)

    async def _drive(self, running: Awaitable[T]) -> T:
        async with _executing():
            try:
                return await running
            except monty.MontyError as problem:
                self._ended(problem)
            except RuntimeError as problem:  # its process is gone
                raise ProgramEnded("crashed", _BROKE_DOWN) from problem

    def _ended(self, problem: monty.MontyError) -> NoReturn:
        if isinstance(problem, monty.MontyCrashedError | monty.MontyDisconnectError):
            raise ProgramEnded("crashed", _BROKE_DOWN) from problem
        told = problem.display() if isinstance(problem, monty.MontyRuntimeError | monty.MontySyntaxError) else ""
        told = told or str(problem)
        inner = problem.exception()
        if isinstance(inner, TimeoutError | MemoryError) and _LIMIT.search(str(inner)):
            raise ProgramEnded("limit", f"The program exceeded a limit and was ended: {inner}") from problem
        raise ProgramEnded("failed", told) from problem


def _result(answer: Answer) -> monty.ExternalSettledResult:
    match answer:
        case Raises(message=message, kind=kind):
            return cast("monty.ExternalSettledResult", {"exc_type": kind, "message": message})
        case Returns(value=value):
            return {"return_value": value}
        case NoSuchThing():
            return {"exc_type": "NameError", "message": "there is no such function"}


def _named(name: str) -> object:
    """A function of the host, as far as the program can tell: calling it comes back to us by its name."""

    def stand_in() -> None: ...

    stand_in.__name__ = name
    return stand_in


_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


def _executing() -> asyncio.Semaphore:
    """Programs compute at the same time as this machine has processors for; those that wait for tools do not count."""
    loop = asyncio.get_running_loop()
    if loop not in _gates:
        _gates[loop] = asyncio.Semaphore(os.cpu_count() or 1)
    return _gates[loop]
