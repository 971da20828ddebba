"""Where turns that only wait sit in memory."""

from __future__ import annotations

from collections.abc import Callable


class Lounge:
    """The turns that wait in memory: a few, for a while. Whoever comes when it is full makes the oldest leave."""

    def __init__(self, seats: int, patience_s: float) -> None:
        self.patience_s = patience_s
        self._seats = seats
        self._sitting: dict[object, Callable[[], None]] = {}

    def sit(self, guest: object, hurry: Callable[[], None]) -> None:
        """Take a seat; `hurry` is called when it is needed for somebody else."""
        self._sitting[guest] = hurry
        while len(self._sitting) > self._seats:
            oldest = next(iter(self._sitting))
            self._sitting.pop(oldest)()

    def close(self) -> None:
        """Nobody waits in memory any more."""
        self.patience_s = 0.0
        for hurry in tuple(self._sitting.values()):
            hurry()

    def leave(self, guest: object) -> None:
        """Give the seat up."""
        self._sitting.pop(guest, None)
