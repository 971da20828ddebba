"""Time as an argument: what the rest of Perdure may know about clocks. The real one lives in `runtime`."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Two readings and a way to wait. `wall_ms` can jump; `monotonic_ms` cannot."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds on a clock shared by all processes of this boot."""
        ...

    async def sleep_until(self, wall_ms: int) -> None:
        """Return once `wall_ms()` has reached the given moment; at once if it has passed."""
        ...
