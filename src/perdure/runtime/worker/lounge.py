"""Bounded cache of waiting turns."""

from __future__ import annotations

from collections.abc import Callable, Collection

from perdure.ids import StreamId


class Lounge:
    """Bounded cache of waiting turns; evicts the oldest when full."""

    def __init__(self, slots: int, idle_timeout_s: float) -> None:
        self.idle_timeout_s = idle_timeout_s
        self._slots = slots
        self._sitting: dict[StreamId, Callable[[], None]] = {}

    def sit(self, stream: StreamId, evict: Callable[[], None]) -> None:
        """Add a turn; `evict` is called to remove it."""
        self._sitting[stream] = evict
        while len(self._sitting) > self._slots:
            self.evict_one()

    def evict_one(self, among: Collection[StreamId] | None = None) -> None:
        """Evict the turn that has waited longest, among these or all, because other work needs its slot."""
        longest = next((stream for stream in self._sitting if among is None or stream in among), None)
        if longest is not None:
            self._sitting.pop(longest)()

    def close(self) -> None:
        """Evict all turns. From now on none waits in memory."""
        self.idle_timeout_s = 0.0
        for evict in tuple(self._sitting.values()):
            evict()

    def leave(self, stream: StreamId) -> None:
        """Remove a turn."""
        self._sitting.pop(stream, None)
