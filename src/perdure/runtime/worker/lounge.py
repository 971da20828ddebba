"""Where turns that only wait sit in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection

from perdure.ids import StreamId


class Lounge:
    """The turns that wait in memory: a few, for a while. Whoever comes when it is full makes the oldest leave."""

    def __init__(self, seats: int, patience_s: float) -> None:
        self.patience_s = patience_s
        self._seats = seats
        self._sitting: dict[StreamId, Callable[[], None]] = {}

    def sit(self, stream: StreamId, hurry: Callable[[], None]) -> None:
        """Take a seat; `hurry` is called when it is needed for somebody else."""
        self._sitting[stream] = hurry
        while len(self._sitting) > self._seats:
            self.make_room()

    def make_room(self, among: Collection[StreamId] | None = None) -> None:
        """Make whoever has sat for longest leave, of these or of all: somebody could go on and has no seat."""
        longest = next((stream for stream in self._sitting if among is None or stream in among), None)
        if longest is not None:
            self._sitting.pop(longest)()

    def close(self) -> None:
        """Nobody waits in memory any more."""
        self.patience_s = 0.0
        for hurry in tuple(self._sitting.values()):
            hurry()

    def leave(self, stream: StreamId) -> None:
        """Give the seat up."""
        self._sitting.pop(stream, None)
