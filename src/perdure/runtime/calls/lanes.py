"""Concurrency rules for the calls of one body: a maximum, serial calls alone, one call per concurrency group.

The rules are those for calls of the model. Calls that may run start in order of arrival. None overtakes a waiting
serial call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from perdure.tools.body_lifetime import BodyLifetime
from perdure.vocab.tools import Durability


@dataclass(eq=False, slots=True)
class _Runner:
    life: BodyLifetime
    serial: bool
    concurrency_class: str
    most: int
    go: asyncio.Event = field(default_factory=asyncio.Event)


class Lanes:
    """The waiting and running calls of one body."""

    def __init__(self) -> None:
        self._waiting: list[_Runner] = []
        self._running: list[_Runner] = []

    @asynccontextmanager
    async def turn(self, life: BodyLifetime, promises: Durability, most: int) -> AsyncGenerator[None]:
        """Wait until a call may run, with fewer than `most` others, and count it as running during the block.

        A waiting call does not count as activity of the body: the calls before it may wait for days.
        """
        mine = _Runner(life, promises.serial, promises.concurrency_class, most)
        self._waiting.append(mine)
        life.rest()
        self._call_up()
        try:
            await mine.go.wait()
            yield
        finally:
            if not mine.go.is_set():
                life.rise()
            (self._running if mine.go.is_set() else self._waiting).remove(mine)
            self._call_up()

    def _call_up(self) -> None:
        for one in tuple(self._waiting):
            if self._fits(one):
                self._waiting.remove(one)
                self._running.append(one)
                one.life.rise()
                one.go.set()
            elif one.serial:
                return

    def _fits(self, one: _Runner) -> bool:
        if one.serial or any(other.serial for other in self._running):
            return not self._running
        taken = {other.concurrency_class for other in self._running} - {""}
        return len(self._running) < one.most and one.concurrency_class not in taken
