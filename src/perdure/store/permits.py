"""Permits: limits on concurrent work, enforced across all workers of a store.

Law: among live workers, the granted permits of a name never exceed the limit given with the request. A request gets
all its permits at once or none, in request order, so limits cannot deadlock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perdure.ids import WorkerId


@dataclass(frozen=True, slots=True)
class PermitRequest:
    """A request of one holder for a permit of every limit: name and maximum number of holders.

    Without `waits`, a refused request is not queued."""

    holder: str
    limits: tuple[tuple[str, int], ...]
    waits: bool = True


@dataclass(frozen=True, slots=True)
class Permit:
    """A granted or queued permit. A permit of a dead worker (not `alive`) does not count."""

    name: str
    holder: str
    worker: WorkerId
    at: int
    granted: bool
    alive: bool = True


def allot(
    known: Sequence[Permit], asks: Iterable[PermitRequest], worker: WorkerId
) -> tuple[frozenset[str], tuple[Permit, ...]]:
    """Return the holders of a worker's requests that have their permits now, and the permit rows to write.

    `known` contains all permits of the requested names, in request order. A permit belongs to one worker: a permit of
    another worker for the same holder counts against the limit. The store sets the request time of the rows.
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
    """Return the number of permits of this name that are granted or were requested earlier."""
    return sum(row.name == name and (row.granted or at < place) for at, row in enumerate(rows) if at != place)
