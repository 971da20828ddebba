"""Concurrency of the calls of a body."""

from __future__ import annotations

import asyncio
from typing import cast

from perdure.runtime.calls.lanes import Lanes
from perdure.tools.body_lifetime import BodyLifetime
from perdure.vocab.tools import Durability


class Counting:
    """A body that counts what of it is not at rest."""

    def __init__(self) -> None:
        self.running = 0

    def rest(self) -> None:
        self.running -= 1

    def rise(self) -> None:
        self.running += 1


class Track:
    """Calls that run until they are told to end."""

    def __init__(self, most: int = 32) -> None:
        self.body = Counting()
        self.running: list[str] = []
        self._most = most
        self._lanes = Lanes()
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self, name: str, *, serial: bool = False, lane: str = "") -> None:
        self._ends[name] = asyncio.Event()
        self.body.running += 1
        promises = Durability(serial=serial, concurrency_class=lane)
        self._tasks[name] = asyncio.create_task(self._run(name, promises))
        await self._settle()

    async def _run(self, name: str, promises: Durability) -> None:
        try:
            async with self._lanes.turn(cast("BodyLifetime", self.body), promises, self._most):
                self.running.append(name)
                await self._ends[name].wait()
                self.running.remove(name)
        finally:
            self.body.running -= 1

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self._settle()

    async def stop(self, name: str) -> None:
        self._tasks[name].cancel()
        await self._settle()

    async def _settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


async def test_calls_run_in_order_up_to_the_limit() -> None:
    track = Track(most=2)
    for name in "abcd":
        await track.start(name)
    assert track.running == ["a", "b"]
    assert track.body.running == 2
    await track.end("b")
    assert track.running == ["a", "c"]


async def test_one_of_each_class_runs() -> None:
    track = Track()
    await track.start("a", lane="x")
    await track.start("b", lane="x")
    await track.start("c", lane="y")
    await track.start("d")
    assert track.running == ["a", "c", "d"]
    await track.end("a")
    assert track.running == ["c", "d", "b"]


async def test_serial_call_runs_alone_and_is_not_overtaken() -> None:
    track = Track()
    await track.start("a")
    await track.start("s", serial=True)
    await track.start("b")
    assert track.running == ["a"]
    await track.end("a")
    assert track.running == ["s"]
    await track.end("s")
    assert track.running == ["b"]
    await track.end("b")
    assert track.body.running == 0


async def test_one_that_is_stopped_makes_room_whether_it_waits_or_runs() -> None:
    track = Track()
    await track.start("s", serial=True)
    await track.start("t", serial=True)
    await track.start("a")
    await track.stop("t")
    await track.stop("s")
    assert track.running[-1] == "a"
    assert track.body.running == 1
