"""Concurrent calls and pauses of a program, and the recorded order of their answers.

Laws: a call in flight is identified by its number in the program. If several are in flight, the choice of the first
answer is recorded before the program continues, so that a replay takes the same path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

import msgspec

from perdure.codec import Json
from perdure.codemode.pauses import Answer
from perdure.errors import Code, Error
from perdure.tools.body import Body

STOP_S = 0.05
"""Grace period in seconds for cancelled calls."""


class IssuedCall(msgspec.Struct, frozen=True):
    """A tool call, or a pause without a tool: its number for the interpreter, and its number in the one for the log."""

    number: int
    n: int
    tool: str = ""
    args: Json = None
    seconds: float = 0.0


class Promised:
    """The calls in flight of one entry of a program. The body counts as busy unless it can only wait for them."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._tasks: dict[int, asyncio.Task[Answer]] = {}
        self._asked: dict[int, IssuedCall] = {}
        self._arrived: list[int] = []
        self._waiting = False
        self._choices = 0

    async def __aenter__(self) -> Promised:
        self._body.life.minds = True
        self._body.life.began()
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._waiting:
            self._body.life.ended()
        self._waiting = False
        left = [task for task in self._tasks.values() if not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=STOP_S)
        for task in self._tasks.values():
            if task.done() and not task.cancelled():
                task.exception()  # any error: the program has ended

    @property
    def asked(self) -> list[IssuedCall]:
        """The calls in flight whose answers the program has not received."""
        return list(self._asked.values())

    @property
    def choices(self) -> int:
        """Number of recorded choices among several answers."""
        return self._choices

    def resume(self, choices: int) -> None:
        """Restore the state of an earlier entry."""
        self._choices = choices

    def begin(self, asked: IssuedCall, work: Coroutine[Any, Any, Answer]) -> None:
        """Start a call concurrently with the program."""
        self._asked[asked.number] = asked
        self._body.life.began()
        task = asyncio.create_task(self._done(asked.number, work), name=f"perdure:call:{asked.n}")
        self._tasks[asked.number] = task

        def over(_: asyncio.Task[Answer]) -> None:
            work.close()  # closes a coroutine that was cancelled before its first step
            self._body.life.ended()

        task.add_done_callback(over)

    async def _done(self, number: int, work: Coroutine[Any, Any, Answer]) -> Answer:
        try:
            answer = await work
            self._arrived.append(number)
            return answer
        finally:
            self._wake()

    async def first(self, numbers: Iterable[int]) -> tuple[int, Answer]:
        """Return the next answer that the program gets, of several calls in flight.

        Raises:
            Error: `replay_mismatch` if the recorded answer is not one of these calls.
        """
        open = [number for number in numbers if number in self._asked]
        if len(open) == 1:
            return open[0], await self.get(open[0])
        self._choices += 1
        name = str(self._choices)
        known = self._body.recorded("gather", name)
        if isinstance(known, int):
            return await self._as_before(open, known)
        while not (arrived := [number for number in self._arrived if number in open]):
            await self._any()
        self._body.record("gather", name, self._asked[arrived[0]].n)
        return arrived[0], await self.get(arrived[0])

    async def _as_before(self, open: list[int], n: int) -> tuple[int, Answer]:
        for number in open:
            if self._asked[number].n == n:
                return number, await self.get(number)
        raise Error(
            Code.REPLAY_MISMATCH,
            f"the program first continued with call {n}, and does not wait for it now",
            because="the replay takes another path",
        )

    async def get(self, number: int) -> Answer:
        """Wait for one call and return its answer. Raise any error that ends the program meanwhile."""
        while not self._tasks[number].done():
            await self._any()
        del self._asked[number]
        return self._tasks.pop(number).result()

    async def rest(self) -> list[tuple[IssuedCall, Answer]]:
        """Wait for the calls that the program did not await, and return their answers."""
        return [(asked, await self.get(asked.number)) for asked in self.asked]

    async def _any(self) -> None:
        """Wait until one more call in flight has ended. Raise its error if it has no answer."""
        under_way = self._under_way()
        self._waiting = True
        self._body.life.ended()
        try:
            await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._wake()
        self._under_way()

    def _under_way(self) -> set[asyncio.Task[Answer]]:
        for task in self._tasks.values():
            if task.done():
                task.result()
        return {task for task in self._tasks.values() if not task.done()}

    def _wake(self) -> None:
        """Mark the body as busy again, at once, so that it never appears to be only waiting."""
        if self._waiting:
            self._waiting = False
            self._body.life.began()
