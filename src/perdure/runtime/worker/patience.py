"""How long a turn that only waits stays in memory, and when a parked one is looked at although nothing has happened."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from perdure.clock import Clock
from perdure.ids import EffectId
from perdure.runtime.worker.lounge import Lounge
from perdure.runtime.worker.waits import Waits
from perdure.tools.body import Body
from perdure.tools.life import Life

QUIET_S = 1.0
"""How long a body that waits in tasks of its own must have done nothing that we can see before it is parked."""

LOOK_AGAIN_MS = 60_000
ASK_AGAIN_MS = 1_000


class UnderWay(Protocol):
    """An effect or a process that has begun, with the body that it may have."""

    @property
    def id(self) -> EffectId:
        """Its name."""
        ...

    @property
    def body(self) -> Body | None:
        """Its body."""
        ...


class Patience:
    """Judges what is under way in one turn."""

    def __init__(self, waits: Waits, lounge: Lounge, clock: Clock, opened_at: int) -> None:
        self._waits = waits
        self._lounge = lounge
        self._clock = clock
        self._opened_at = opened_at

    def left_s(self, flights: Collection[UnderWay], *, hurried: bool) -> float | None:
        """How much longer to wait in memory; None while something else than waiting is under way."""
        if not flights or not all(self._is_waiting(flight) for flight in flights):
            return None
        quiet = max((QUIET_S - self._waits.quiet_s(flight.id) for flight in self._loose(flights)), default=0.0)
        return max(0.0, quiet, 0.0 if hurried else self._worth_waiting_s())

    def look_again_at(self, flights: Collection[UnderWay], *, in_line: bool = False) -> int | None:
        """The moment at which a parked turn must be looked at, whatever happens.

        Loose bodies are entered again even if nothing has happened, since what was cut off in them may matter: each
        time after as long as the turn has lasted already, so that a wait of months costs a few entries. A turn that
        gave up its place in line for a permit asks again sooner.
        """
        moments = [] if self._waits.due_at is None else [self._waits.due_at]
        now = self._clock.wall_ms()
        if in_line:
            moments.append(now + min(max(ASK_AGAIN_MS, now - self._opened_at), LOOK_AGAIN_MS))
        if self._loose(flights):
            moments.append(now + max(LOOK_AGAIN_MS, now - self._opened_at))
        return min(moments, default=None)

    def _is_waiting(self, flight: UnderWay) -> bool:
        return self._waits.waiting(flight.id) and not (flight.body and flight.body.life.running)

    def _loose(self, flights: Collection[UnderWay]) -> list[UnderWay]:
        """Bodies that wait in tasks they have made: whatever else such a body does cannot be seen from here."""
        bodies = [(flight, flight.body.life) for flight in flights if flight.body]
        return [flight for flight, life in bodies if any(self._is_loose(flight, one) for one in (life, *life.inside))]

    def _is_loose(self, flight: UnderWay, life: Life) -> bool:
        return not life.minds and not self._waits.holds_up(flight.id, life.main)

    def _worth_waiting_s(self) -> float:
        """Nobody need wait in memory for a moment that is known to be far away."""
        patience, due_at = self._lounge.patience_s, self._waits.due_at
        far_away = due_at is not None and due_at - self._clock.wall_ms() > patience * 1000
        return 0.0 if far_away and not self._waits.promises else patience
