"""The interpreter: one child process per program, which computes, pauses at calls, and can be stored as bytes.

The interpreter has no files, network, clock or imports; its requests go to the host. Limits inside the process end an
endless loop. If they fail, the host ends the process. The worker survives any failure of the process.
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

from perdure.codemode.limits import ProgramLimits
from perdure.codemode.pauses import (
    Answer,
    Finished,
    FunctionCall,
    Later,
    Lookup,
    NoSuchThing,
    Pause,
    PendingCall,
    ProgramEnded,
    Raises,
    Returns,
    Unloadable,
    Wish,
)
from perdure.codemode.sites import Texts

GRACE_S = 5.0
"""Seconds that an interpreter may exceed its limit before its process is ended."""

SUSPENSIONS = 100_000
"""The interpreter's own call limit, set high. The real limit is counted across restarts."""

_BROKE_DOWN = "The interpreter of the program crashed; the rest of the program did not run."

_LIMIT = re.compile("limit exceeded|exceeded its memory limit")
"""Error texts of the interpreter for a limit that stopped it, from inside or by the end of its process."""

T = TypeVar("T")


class Machine:
    """One interpreter process, for one entry of one program: `async with Machine(limits) as machine`."""

    def __init__(self, limits: ProgramLimits) -> None:
        self._limits = limits
        self._stack = AsyncExitStack()
        self._session: monty.AsyncMontySession | None = None
        self._at: monty.AsyncSnapshot | None = None
        self._printed: monty.CollectString | None = None
        self._before = ""
        self.texts = Texts()

    @property
    def version(self) -> str:
        """The format version of the stored state."""
        return f"monty {monty.__version__}, 2"

    @property
    def printed(self) -> str:
        """The program's printed output so far, including output before its stored state."""
        return self._before + (self._printed.output if self._printed else "")

    @property
    def pid(self) -> int | None:
        """The process id while no program runs, else None."""
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
        """Start a program with the variables of the machine."""
        self._before = ""
        self._printed = self._sink()
        self.texts = self.texts.and_(code)
        return await self._next(self._open.feed_start(code, print_callback=self._printed))

    async def answer(self, answer: Answer | Later) -> Pause:
        """Continue the program after a pause."""
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
        """Deliver one awaited answer and continue. One at a time, so that the order is known."""
        at = self._at
        assert isinstance(at, monty.AsyncFutureSnapshot)
        return await self._next(at.resume({number: _result(answer)}))

    # --- stored state

    async def save(self) -> bytes:
        """Return the program's current state, or the variables it left."""
        return await self._drive(self._open.dump())

    async def load_variables(self, state: bytes) -> None:
        """Load the variables left by an earlier program.

        Raises:
            Unloadable: they cannot be read.
        """
        try:
            await self._drive(self._open.load_session(state))
        except (ProgramEnded, RuntimeError, ValueError) as problem:
            raise Unloadable(str(problem)) from None

    async def load_program(self, state: bytes, printed: str) -> Pause:
        """Restore the state of an earlier entry of the program.

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
                return FunctionCall(at.function_name, at.args, at.kwargs, at.call_id, awaited)
            case monty.AsyncFutureSnapshot() if at.pending_call_ids:
                return PendingCall(tuple(sorted(at.pending_call_ids)))
            case _:
                with suppress(ProgramEnded):
                    await self._drive(at.resume({}))  # the interpreter cannot continue, and raises the reason
                message = "The program awaits a call of an earlier program: await calls in the program that makes them."
                raise ProgramEnded("failed", message)

    async def _drive(self, running: Awaitable[T]) -> T:
        async with _executing():
            try:
                return await running
            except monty.MontyError as problem:
                self._ended(problem)
            except RuntimeError as problem:  # the process has ended
                raise ProgramEnded("crashed", _BROKE_DOWN) from problem

    def _ended(self, problem: monty.MontyError) -> NoReturn:
        if isinstance(problem, monty.MontyCrashedError | monty.MontyDisconnectError):
            raise ProgramEnded("crashed", _BROKE_DOWN) from problem
        told = problem.display() if isinstance(problem, monty.MontyRuntimeError | monty.MontySyntaxError) else ""
        told = told or str(problem)
        inner = problem.exception()
        if isinstance(inner, TimeoutError | MemoryError) and _LIMIT.search(str(inner)):
            raise ProgramEnded("limit", f"The program exceeded a limit and was stopped: {inner}") from problem
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
    """Return a stand-in for a host function. Its calls reach the host by name."""

    def stand_in() -> None: ...

    stand_in.__name__ = name
    return stand_in


_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


def _executing() -> asyncio.Semaphore:
    """Limit concurrent execution to the number of processors. Programs that wait for tools do not count."""
    loop = asyncio.get_running_loop()
    if loop not in _gates:
        _gates[loop] = asyncio.Semaphore(os.cpu_count() or 1)
    return _gates[loop]
