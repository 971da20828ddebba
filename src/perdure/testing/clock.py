"""A clock that tests move by hand."""

from __future__ import annotations

import asyncio
import heapq
import itertools


class ManualClock:
    """A wall clock and a monotonic clock that a test moves, together or apart. Sleepers wake in order of their due
    times.
    """

    def __init__(self, wall_ms: int = 1_700_000_000_000, monotonic_ms: int = 1_000_000) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def wall_ms(self) -> int:
        """Return milliseconds since the Unix epoch."""
        return self._wall_ms

    def monotonic_ms(self) -> int:
        """Return milliseconds on a clock that never jumps."""
        return self._monotonic_ms

    def advance(self, ms: int) -> None:
        """Move both clocks forward and wake the sleepers whose time has come."""
        self._monotonic_ms += ms
        self.jump_wall(ms)

    def jump_wall(self, ms: int) -> None:
        """Set the wall clock forward or back. No monotonic time passes."""
        self._wall_ms += ms
        while self._sleepers and self._sleepers[0][0] <= self._wall_ms:
            _, _, sleeper = heapq.heappop(self._sleepers)
            if not sleeper.done():
                sleeper.set_result(None)

    async def sleep_until(self, wall_ms: int) -> None:
        """Wait until the wall clock reaches a time. Return at once if the time has passed."""
        if wall_ms <= self._wall_ms:
            return
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (wall_ms, next(self._order), sleeper))
        await sleeper
