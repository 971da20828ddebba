"""Busy-poll the event loop for up to 1 ms while one append is in flight.

A process that sleeps until the server replies is woken late, on a processor with cold caches. For a lone append that
costs more than the round trip. With busy polling the event loop does not sleep, and still runs all other tasks.

Laws: only consecutive appends are polled for, and other processes get the processor first. One reply is polled for at
most `PATIENCE_S`; after a slower reply the next `NAPS` appends sleep. With a limited processor quota nothing is polled.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

PATIENCE_S = 0.001
"""Maximum polling time for one reply; a server on this machine or nearby usually replies earlier."""

SOON_S = 0.003
"""Maximum interval between consecutive appends; after a longer pause the process has slept anyway."""

NAPS = 16
"""Number of appends without polling after a slow reply, which limits the waste with a distant server."""

PROCESSORS = 2
"""Minimum number of processors: with fewer, polling slows down the work itself."""


class Vigil:
    """Busy polling of the event loop while one reply is in flight."""

    def __init__(self, *, allowed: bool = True, give_way: Callable[[], None] | None = None) -> None:
        self._give_way = give_way or getattr(os, "sched_yield", None)
        self._allowed = allowed and self._give_way is not None and processors() >= PROCESSORS
        self._answer: asyncio.Future[Any] | None = None
        self._until = 0.0
        self._asked_at = 0.0
        self._naps = 0

    def keep(self, answer: asyncio.Future[Any]) -> None:
        """Poll for this reply instead of the previous one, if polling is allowed and useful."""
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
        """Check the reply and schedule the next check, which keeps the event loop from sleeping."""
        if self._answer is None or self._answer.done():
            self._answer = None
        elif loop.time() > self._until:
            self._answer, self._naps = None, NAPS
        else:
            assert self._give_way is not None
            self._give_way()
            loop.call_soon(self._look, loop)


def processors(system: Path = Path("/")) -> float:
    """Return the number of processors that this process may use, from its affinity and its control group quotas."""
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
    """Return the quotas of a group and its parents. In a container only the outermost group may be visible."""
    group = root / path.lstrip("/")
    found: list[float] = []
    for folder in (group, *group.parents):
        if folder.is_relative_to(root):
            with suppress(OSError, ValueError):
                found.append(quota(folder))
    return found


def _quota(group: Path) -> float:
    used, period = (group / "cpu.max").read_text().split()
    return int(used) / int(period)  # ValueError for "max", which means no quota


def _old_quota(group: Path) -> float:
    used, period = (int((group / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
    if used <= 0:
        raise ValueError("no quota")
    return used / period
