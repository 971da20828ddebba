"""What a program was promised: calls and naps under way beside each other, and which of them it gets first.

Laws: what is under way is known by its number in the program, whenever it ends. Whichever is given first while others
are out is recorded before the program goes on with it, so that a program that runs again takes the same way.
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
"""How long what is told to stop may take to do so."""


class Asked(msgspec.Struct, frozen=True):
    """A call of a tool, or a nap if it names none: its number for the interpreter, and the one it is recorded under."""

    number: int
    n: int
    tool: str = ""
    args: Json = None
    seconds: float = 0.0


class Promised:
    """What one entry of a program has under way. The body counts as busy but while it can only wait for that."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._tasks: dict[int, asyncio.Task[Answer]] = {}
        self._asked: dict[int, Asked] = {}
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
                task.exception()  # whatever it is, the program is over

    @property
    def asked(self) -> list[Asked]:
        """What the program was promised and has not got."""
        return list(self._asked.values())

    @property
    def choices(self) -> int:
        """How often it got one of several."""
        return self._choices

    def resume(self, choices: int) -> None:
        """Stand where an earlier entry stood."""
        self._choices = choices

    def begin(self, asked: Asked, work: Coroutine[Any, Any, Answer]) -> None:
        """Have something done beside the program."""
        self._asked[asked.number] = asked
        self._body.life.began()
        task = asyncio.create_task(self._done(asked.number, work), name=f"perdure:call:{asked.n}")
        self._tasks[asked.number] = task

        def over(_: asyncio.Task[Answer]) -> None:
            work.close()  # one that is stopped before it began
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
        """The next thing that the program gets, of several that it waits for.

        Raises:
            Error: `replay_mismatch` if it was another one that the program does not wait for now.
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
            f"the program went on with call {n} when it ran first, and does not wait for that now",
            because="it runs again and takes another way",
        )

    async def get(self, number: int) -> Answer:
        """What became of one thing; whatever ends the program while it waits is raised."""
        while not self._tasks[number].done():
            await self._any()
        del self._asked[number]
        return self._tasks.pop(number).result()

    async def rest(self) -> list[tuple[Asked, Answer]]:
        """What became of what the program did not wait for."""
        return [(asked, await self.get(asked.number)) for asked in self.asked]

    async def _any(self) -> None:
        """Wait until one more of what is under way has ended; raise what is no answer."""
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
        """There is something to do again: at once, so that nobody takes the program for one that only waits."""
        if self._waiting:
            self._waiting = False
            self._body.life.began()
