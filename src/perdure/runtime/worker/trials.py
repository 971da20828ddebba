"""Trials: a turn that two workers left behind as they found it is tried once more, and nothing is begun beside it.

Law: a worker drives one suspect at a time. So whatever a turn that kills takes with it, none of its neighbours was
there all three times, and none is sealed for what another one did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from perdure.ids import StreamId
from perdure.runtime.shared import Crowd
from perdure.runtime.worker.sealing import MAX_TAKEOVERS
from perdure.store.shapes import Claim

TRIAL_S = 10.0
"""For how long nothing else is begun here. What takes longer before it writes a record goes on, beside other work."""
CALM_S = 2.0
"""For how long nothing new is begun before: whatever runs here has then done so for a while, and not killed at once."""
LOOK_S = 1.0
PAUSE_S = 0.25
"""Between two trials it is the turn of others."""


class Trials:
    """Which suspect a worker drives, and whether other work must wait for it."""

    def __init__(self, crowd: Crowd, *, on_room: Callable[[], None]) -> None:
        self._crowd = crowd
        self._on_room = on_room
        self._suspect: StreamId | None = None
        self._hold: asyncio.TimerHandle | None = None
        self._waits_since: float | None = None
        self._look_at = 0.0

    @property
    def hot(self) -> bool:
        """Whether a suspect was begun here, and nothing else may be yet."""
        return self._hold is not None

    @property
    def due(self) -> bool:
        """Whether it is time to look for a suspect. Who has one looks for no other, however long it takes."""
        return self._suspect is None and _now() >= self._look_at

    def calm(self, running: int) -> bool:
        """A suspect waits: begin nothing more. Whether it may begin, now that so many others run here."""
        now = _now()
        self._waits_since = self._waits_since or now
        self._crowd.trial = True
        return not running or now - self._waits_since >= CALM_S

    def none_waits(self) -> None:
        """There is no suspect that could be taken."""
        self._waits_since = None
        self._crowd.trial = False
        self._look_at = _now() + LOOK_S

    def begin(self, stream: StreamId) -> None:
        """It is this one's trial."""
        if self._suspect is None:
            self._suspect, self._waits_since, self._crowd.trial = stream, None, True
            self._hold = asyncio.get_running_loop().call_later(TRIAL_S, self._let_others)

    def claimed(self, claim: Claim) -> bool:
        """Something is driven here: whether it is on trial. Who seals a turn does not drive it."""
        if claim.takeovers == MAX_TAKEOVERS - 1:
            self.begin(claim.stream)
        else:
            self.over(claim.stream)
        return self._suspect == claim.stream

    def over(self, stream: StreamId) -> None:
        """It has got further, or it is not driven here any more."""
        if stream == self._suspect:
            self._suspect = None
            self._look_at = _now() + PAUSE_S
            self._let_others()

    def _let_others(self) -> None:
        if self._hold is not None:
            self._hold.cancel()
            self._hold = None
        self._crowd.trial = False
        self._on_room()


def _now() -> float:
    return asyncio.get_running_loop().time()
