"""A clock that only moves when a test says so."""

from __future__ import annotations

import asyncio
import heapq
import itertools


class ManualClock:
    """Two readings that a test moves, together or apart. Sleepers wake in the order of their moments."""

    def __init__(self, wall_ms: int = 1_700_000_000_000, monotonic_ms: int = 1_000_000) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return self._wall_ms

    def monotonic_ms(self) -> int:
        """Milliseconds on a clock that never jumps."""
        return self._monotonic_ms

    def advance(self, ms: int) -> None:
        """Let time pass: both readings move, and whoever slept long enough wakes."""
        self._monotonic_ms += ms
        self.jump_wall(ms)

    def jump_wall(self, ms: int) -> None:
        """Somebody sets the wall clock; no time passes."""
        self._wall_ms += ms
        while self._sleepers and self._sleepers[0][0] <= self._wall_ms:
            _, _, sleeper = heapq.heappop(self._sleepers)
            if not sleeper.done():
                sleeper.set_result(None)

    async def sleep_until(self, wall_ms: int) -> None:
        """Return once the wall clock has been moved there; at once if it has passed."""
        if wall_ms <= self._wall_ms:
            return
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (wall_ms, next(self._order), sleeper))
        await sleeper
