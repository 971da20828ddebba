"""Who waits for an answer that is about to come does not go to sleep.

A process that sleeps until the server has answered is woken late, on a processor that has forgotten all it knew: that
costs a lone append more than its way to the server and back. So the event loop looks for the answer instead, over and
over, and does whatever else there is to do.

Laws: only who asks again and again stays awake, and whoever else wants the processor has it first. One answer is
watched for `PATIENCE_S` at most; after one that took longer the next ones are slept through. Where processor time is
rationed nobody stays awake.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

PATIENCE_S = 0.001
"""A server on this machine, or next to it, has mostly answered by then."""

SOON_S = 0.003
"""Who asks again within this goes on at once with what it is answered; who was away for longer has slept anyway."""

NAPS = 16
"""So many answers are slept through after one that took too long: at a server far away little is wasted."""

PROCESSORS = 2
"""With less than these, staying awake takes from the work itself."""


class Vigil:
    """Keeps the event loop awake while one answer is under way."""

    def __init__(self, *, allowed: bool = True, give_way: Callable[[], None] | None = None) -> None:
        self._give_way = give_way or getattr(os, "sched_yield", None)
        self._allowed = allowed and self._give_way is not None and processors() >= PROCESSORS
        self._answer: asyncio.Future[Any] | None = None
        self._until = 0.0
        self._asked_at = 0.0
        self._naps = 0

    def keep(self, answer: asyncio.Future[Any]) -> None:
        """Stay awake for this answer, if that is worth it. It takes the place of the one before."""
        if not self._allowed:
            return
        if self._naps:
            self._naps -= 1
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        before, self._asked_at = self._asked_at, now
        if now - before > SOON_S:
            return
        watching, self._answer, self._until = self._answer, answer, now + PATIENCE_S
        if watching is None:
            loop.call_soon(self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Once in every turn of the loop, which does not sleep as long as this is to be called again."""
        if self._answer is None or self._answer.done():
            self._answer = None
        elif loop.time() > self._until:
            self._answer, self._naps = None, NAPS
        else:
            assert self._give_way is not None
            self._give_way()
            loop.call_soon(self._look, loop)


def processors(system: Path = Path("/")) -> float:
    """How many processors this process may use, by its affinity and by the quotas of its control groups."""
    affinity = getattr(os, "sched_getaffinity", None)
    allowed = len(affinity(0)) if affinity else os.cpu_count() or 1
    return min([float(allowed), *_quotas(system)])


def _quotas(system: Path) -> list[float]:
    quotas: list[float] = []
    with suppress(OSError, ValueError):
        for line in (system / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                quotas += _along(system / "sys/fs/cgroup", path, _quota)
            elif "cpu" in controllers.split(","):
                quotas += _along(system / "sys/fs/cgroup/cpu", path, _old_quota)
    return quotas


def _along(root: Path, path: str, quota: Callable[[Path], float]) -> list[float]:
    """The quotas of a group and of all that it is in. In a container only the outermost may be seen."""
    group = root / path.lstrip("/")
    found: list[float] = []
    for folder in (group, *group.parents):
        if folder.is_relative_to(root):
            with suppress(OSError, ValueError):
                found.append(quota(folder))
    return found


def _quota(group: Path) -> float:
    used, period = (group / "cpu.max").read_text().split()
    return int(used) / int(period)  # it says "max" where there is none


def _old_quota(group: Path) -> float:
    used, period = (int((group / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
    if used <= 0:
        raise ValueError("it has no quota")
    return used / period
