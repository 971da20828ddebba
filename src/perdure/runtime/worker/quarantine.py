"""Quarantine: a turn that two workers abandoned without progress is tried once more, alone.

Law: a worker drives one quarantined stream at a time. So no healthy turn is present at all three crashes, and none is
dead-lettered because of another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from perdure.ids import StreamId
from perdure.runtime.shared import Crowd
from perdure.runtime.worker.dead_letter import MAX_TAKEOVERS
from perdure.store.shapes import Claim

TRIAL_S = 10.0
"""How long no other work starts beside a quarantined turn, in seconds.

A turn without a record by then continues anyway.
"""
CALM_S = 2.0
"""How long no new work starts before a quarantined turn, in seconds.

What still runs by then has not crashed the worker.
"""
LOOK_S = 1.0
PAUSE_S = 0.25
"""Pause between two quarantined turns, in seconds, for other work."""


class Quarantine:
    """The quarantined stream that a worker drives, and whether other work must wait for it."""

    def __init__(self, crowd: Crowd, *, on_room: Callable[[], None]) -> None:
        self._crowd = crowd
        self._on_room = on_room
        self._suspect: StreamId | None = None
        self._hold: asyncio.TimerHandle | None = None
        self._waits_since: float | None = None
        self._look_at = 0.0

    @property
    def hot(self) -> bool:
        """True if a quarantined stream has begun and no other work may start yet."""
        return self._hold is not None

    @property
    def due(self) -> bool:
        """True if it is time to poll for a quarantined stream. A worker that drives one polls for no other."""
        return self._suspect is None and _now() >= self._look_at

    def calm(self, running: int) -> bool:
        """Hold back other work for a quarantined stream. Return True if that may start now, beside `running` others."""
        now = _now()
        self._waits_since = self._waits_since or now
        self._crowd.quarantine = True
        return not running or now - self._waits_since >= CALM_S

    def none_waits(self) -> None:
        """Note that no quarantined stream can be claimed."""
        self._waits_since = None
        self._crowd.quarantine = False
        self._look_at = _now() + LOOK_S

    def begin(self, stream: StreamId) -> None:
        """Note that this quarantined stream begins."""
        if self._suspect is None:
            self._suspect, self._waits_since, self._crowd.quarantine = stream, None, True
            self._hold = asyncio.get_running_loop().call_later(TRIAL_S, self._let_others)

    def claimed(self, claim: Claim) -> bool:
        """Note a claim. Return True if its stream is quarantined. A turn that is dead-lettered is not driven."""
        if claim.takeovers == MAX_TAKEOVERS - 1:
            self.begin(claim.stream)
        else:
            self.over(claim.stream)
        return self._suspect == claim.stream

    def over(self, stream: StreamId) -> None:
        """Release a stream from quarantine: it has made progress, or it is no longer driven here."""
        if stream == self._suspect:
            self._suspect = None
            self._look_at = _now() + PAUSE_S
            self._let_others()

    def _let_others(self) -> None:
        if self._hold is not None:
            self._hold.cancel()
            self._hold = None
        self._crowd.quarantine = False
        self._on_room()


def _now() -> float:
    return asyncio.get_running_loop().time()
