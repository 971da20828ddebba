"""The idle timeout of waiting turns, and the time at which a parked turn is re-entered without news."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from perdure.clock import Clock
from perdure.ids import EffectId
from perdure.runtime.worker.lounge import Lounge
from perdure.runtime.worker.waits import Waits
from perdure.tools.body import Body
from perdure.tools.body_lifetime import BodyLifetime

QUIET_S = 1.0
"""Inactivity after which a body that waits in tasks of its own is parked, in seconds."""

LOOK_AGAIN_MS = 60_000
ASK_AGAIN_MS = 1_000


class RunningWork(Protocol):
    """An effect or a process that has begun, with its body, if any."""

    @property
    def id(self) -> EffectId:
        """The id of the effect."""
        ...

    @property
    def body(self) -> Body | None:
        """The body, or None."""
        ...


class IdlePolicy:
    """The rules by which a waiting turn stays in memory or parks."""

    def __init__(self, waits: Waits, lounge: Lounge, clock: Clock, opened_at: int) -> None:
        self._waits = waits
        self._lounge = lounge
        self._clock = clock
        self._opened_at = opened_at

    def left_s(self, flights: Collection[RunningWork], *, evicting: bool) -> float | None:
        """Return how many more seconds to wait in memory, or None while other work than waiting is in flight."""
        if not flights or not all(self._is_waiting(flight) for flight in flights):
            return None
        quiet = max((QUIET_S - self._waits.quiet_s(flight.id) for flight in self._untracked(flights)), default=0.0)
        return max(0.0, quiet, 0.0 if evicting else self._worth_waiting_s())

    def look_again_at(self, flights: Collection[RunningWork], *, in_line: bool = False) -> int | None:
        """Return the time at which a parked turn is re-entered, even without news.

        Untracked bodies are re-entered, because an interrupted task of theirs may matter. Each interval is as long as
        the turn has lasted already, so that a wait of months costs a few entries. A turn that left the line for a
        permit asks again sooner.
        """
        moments = [] if self._waits.due_at is None else [self._waits.due_at]
        now = self._clock.wall_ms()
        if in_line:
            moments.append(now + min(max(ASK_AGAIN_MS, now - self._opened_at), LOOK_AGAIN_MS))
        if self._untracked(flights):
            moments.append(now + max(LOOK_AGAIN_MS, now - self._opened_at))
        return min(moments, default=None)

    def _is_waiting(self, flight: RunningWork) -> bool:
        return self._waits.waiting(flight.id) and not (flight.body and flight.body.life.running)

    def _untracked(self, flights: Collection[RunningWork]) -> list[RunningWork]:
        """Return the bodies that wait in tasks of their own, whose other activity cannot be seen from here."""
        bodies = [(flight, flight.body.life) for flight in flights if flight.body]
        return [
            flight for flight, life in bodies if any(self._is_untracked(flight, one) for one in (life, *life.inside))
        ]

    def _is_untracked(self, flight: RunningWork, life: BodyLifetime) -> bool:
        return not life.minds and not self._waits.holds_up(flight.id, life.main)

    def _worth_waiting_s(self) -> float:
        """Return the idle timeout, or 0 for a turn that waits only for a time beyond it."""
        patience, due_at = self._lounge.idle_timeout_s, self._waits.due_at
        far_away = due_at is not None and due_at - self._clock.wall_ms() > patience * 1000
        return 0.0 if far_away and not self._waits.promises else patience
