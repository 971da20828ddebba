"""The two load shapes of agents: one long session, and many short ones."""

from __future__ import annotations

import asyncio
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable

from measure import cpu_s, share, speed

Turn = Callable[[str], Awaitable[object]]


async def ask(turn: Turn, chosen: Namespace) -> dict[str, object]:
    """Run w2a or w2b. `turn(session)` runs one turn in that session."""
    await turn("warm")
    return await (_one_session if chosen.work == "w2a" else _many_sessions)(turn, chosen)


async def _one_session(turn: Turn, chosen: Namespace) -> dict[str, object]:
    took: list[float] = []
    cpu, began = cpu_s(), time.perf_counter()
    while len(took) < chosen.turns and time.perf_counter() - began < chosen.cap:
        started = time.perf_counter()
        await turn("s")
        took.append(time.perf_counter() - started)
    seconds = time.perf_counter() - began
    early, late = share(took[5:15], 0.5), share(took[-10:], 0.5)
    growth = round(late / early, 2)
    return speed(len(took), seconds, cpu_s() - cpu, turn_10_ms=early, turn_200_ms=late, growth=growth)


async def _many_sessions(turn: Turn, chosen: Namespace) -> dict[str, object]:
    took: list[float] = []
    names = iter([f"s{n}" for n in range(chosen.turns)])
    cpu, began = cpu_s(), time.perf_counter()

    async def worker() -> None:
        for name in names:
            if time.perf_counter() - began > chosen.cap:
                return
            started = time.perf_counter()
            await turn(name)
            took.append(time.perf_counter() - started)

    await asyncio.gather(*(worker() for _ in range(chosen.at_once)))
    seconds = time.perf_counter() - began
    return speed(len(took), seconds, cpu_s() - cpu, p50_ms=share(took, 0.5), p99_ms=share(took, 0.99))
