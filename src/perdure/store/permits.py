"""Permits: how many may do the same thing at once, counted across all workers of a store.

Law: among the workers that are not gone, never more hold a permit of a name than its limit said when it was given.
Whoever asks gets all permits it needs or none, in the order of asking, so nobody waits while it holds a part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perdure.ids import WorkerId


@dataclass(frozen=True, slots=True)
class Ask:
    """One holder and the limits it falls under: name and how many may hold it at once. Without `waits`, it is not
    remembered that it was refused."""

    holder: str
    limits: tuple[tuple[str, int], ...]
    waits: bool = True


@dataclass(frozen=True, slots=True)
class Permit:
    """One that is held, or waited for. That of a worker that is gone (not `alive`) counts for nothing."""

    name: str
    holder: str
    worker: WorkerId
    at: int
    granted: bool
    alive: bool = True


def allot(known: Sequence[Permit], asks: Iterable[Ask], worker: WorkerId) -> tuple[frozenset[str], tuple[Permit, ...]]:
    """Who of those for whom a worker asks holds its permits now, and what has to be written for it.

    `known` is everything about the names in question, in the order of asking. A holding is that of one worker: what
    another has for the same holder is taken. What is returned has no moment yet: that of the asking.
    """
    rows = [permit for permit in known if permit.alive]
    granted: set[str] = set()
    changed: list[Permit] = []
    for ask in asks:
        places = {row.name: place for place, row in enumerate(rows) if (row.holder, row.worker) == (ask.holder, worker)}
        mine = [rows[place] for place in places.values()]
        if len(mine) == len(ask.limits) and all(row.granted for row in mine):
            granted.add(ask.holder)
            continue
        may = all(_ahead(rows, name, places.get(name, len(rows))) < most for name, most in ask.limits)
        if may:
            granted.add(ask.holder)
        elif not ask.waits or len(mine) == len(ask.limits):
            continue
        for name, _ in ask.limits:
            row = Permit(name, ask.holder, worker, 0, may)
            changed.append(row)
            if name in places:
                rows[places[name]] = row
            else:
                rows.append(row)
    return frozenset(granted), tuple(changed)


def _ahead(rows: Sequence[Permit], name: str, place: int) -> int:
    """How many hold a permit of that name, or asked for it before."""
    return sum(row.name == name and (row.granted or at < place) for at, row in enumerate(rows) if at != place)
