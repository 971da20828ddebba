"""Detection of wait cycles: processes that wait for each other's end, found from their logs.

A process is stuck if it waits only for the end of stuck processes, without a deadline. A process that is about to park
and finds itself in such a cycle is refused its wait. Of several that check at once, all but one park, so that the last
one sees the others as parked.
"""

from __future__ import annotations

from dataclasses import dataclass

from perdure.ids import Tenant, process_stream
from perdure.processes.record import ProcessRecord, fold_all
from perdure.store.protocol import Store
from perdure.vocab.refs import PartRef, is_part

MAX_LOOKED_AT = 64


@dataclass(frozen=True, slots=True)
class WaitCycle:
    """A wait cycle, the process that was checked first. `unparked` are the other members that may still be running."""

    members: tuple[str, ...]
    unparked: tuple[str, ...]

    @property
    def description(self) -> str:
        """The cycle as text for people."""
        return " -> ".join((*self.members, self.members[0]))


def waits_for(record: ProcessRecord) -> tuple[str, ...]:
    """Return the processes whose ends a process waits for, if it waits for nothing else and without a deadline."""
    if record.output is not None or record.cancel is not None or record.abandon is not None:
        return ()
    parts = [PartRef.parse(wait.effect) for wait in record.waiting if is_part(wait.effect) and wait.until is None]
    if len(parts) != len(record.waiting) or any(part.kind != "wait" for part in parts):
        return ()
    return tuple(part.name.partition("#")[0] for part in parts)  # a repeated wait has a number


async def find_wait_cycle(store: Store, tenant: Tenant, record: ProcessRecord) -> WaitCycle | None:
    """Return the wait cycle of a process, or None if one of its waits can still end."""
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
            return None  # not stuck, so its waiters may go on too
        if not info.parked:
            unparked.append(name)
        ahead += edges[name]
    path = _path(edges, me)
    return None if path is None else WaitCycle(path, tuple(unparked))


def _path(edges: dict[str, tuple[str, ...]], me: str) -> tuple[str, ...] | None:
    """Return a path from a process back to itself, or None."""
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
