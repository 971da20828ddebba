"""The clock protocol. Time is an argument; the real clock lives in `runtime`."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """A wall clock, a monotonic clock and a sleep. `wall_ms` can jump; `monotonic_ms` cannot."""

    def wall_ms(self) -> int:
        """Return milliseconds since the Unix epoch."""
        ...

    def monotonic_ms(self) -> int:
        """Return milliseconds of a clock that all processes of this boot share."""
        ...

    async def sleep_until(self, wall_ms: int) -> None:
        """Return once `wall_ms()` has reached the given time; at once if it has passed."""
        ...
