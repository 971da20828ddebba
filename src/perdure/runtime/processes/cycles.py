"""Processes that wait for each other's end: found from their logs, so that none of them waits for ever.

A process is stuck if all it waits for is the end of processes that are stuck too, without a deadline. Whoever is about
to park and finds that it stands in such a circle is refused its wait. Of several that look at once, all but one park,
so that this one sees the others as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from perdure.ids import Tenant, process_stream
from perdure.processes.record import ProcessRecord, fold_all
from perdure.store.protocol import Store
from perdure.vocab.refs import PartRef, is_part

MAX_LOOKED_AT = 64


@dataclass(frozen=True, slots=True)
class Circle:
    """Processes that wait for each other, the one that was asked about first; `unparked` are those of the others which
    may still have something under way."""

    members: tuple[str, ...]
    unparked: tuple[str, ...]

    @property
    def told(self) -> str:
        """The circle, as people are told it."""
        return " -> ".join((*self.members, self.members[0]))


def waits_for(record: ProcessRecord) -> tuple[str, ...]:
    """Whose ends a process waits for, if it waits for nothing else and for as long as it takes; empty otherwise."""
    if record.output is not None or record.cancel is not None or record.abandon is not None:
        return ()
    parts = [PartRef.parse(wait.effect) for wait in record.waiting if is_part(wait.effect) and wait.until is None]
    if len(parts) != len(record.waiting) or any(part.kind != "wait" for part in parts):
        return ()
    return tuple(part.name.partition("#")[0] for part in parts)  # the same one again has a number


async def circle_of(store: Store, tenant: Tenant, record: ProcessRecord) -> Circle | None:
    """The circle in which a process stands, if nothing that it waits for could ever come."""
    me = record.known.process_id
    edges = {me: waits_for(record)}
    unparked: list[str] = []
    ahead = list(edges[me])
    if not ahead:
        return None
    while ahead:
        name = ahead.pop()
        if name in edges:
            continue
        if len(edges) >= MAX_LOOKED_AT:
            return None
        stream = process_stream(tenant, name)
        info, rows = await store.stream(stream), await store.read(stream)
        if info is None or not rows:
            return None
        edges[name] = waits_for(fold_all(rows))
        if not edges[name]:
            return None  # it goes on by itself, and so may all who wait for it
        if not info.parked:
            unparked.append(name)
        ahead += edges[name]
    path = _path(edges, me)
    return None if path is None else Circle(path, tuple(unparked))


def _path(edges: dict[str, tuple[str, ...]], me: str) -> tuple[str, ...] | None:
    """A way from a process back to itself; None if there is none."""
    ways: list[tuple[str, ...]] = [(me,)]
    seen = {me}
    while ways:
        way = ways.pop(0)
        for target in edges[way[-1]]:
            if target == me:
                return way
            if target not in seen:
                seen.add(target)
                ways.append((*way, target))
    return None
