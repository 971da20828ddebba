"""Limits of child processes: the number of children per process, and the depth of live ancestors.

Law: a refused start leaves nothing, neither in the parent's log nor elsewhere. A child that was started before is not
refused when its parent is re-entered.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from perdure.errors import Code, Error
from perdure.ids import Tenant, process_stream
from perdure.store.protocol import Store
from perdure.vocab.log_keys import PROCESS_END
from perdure.vocab.records import ProcessRegistered
from perdure.vocab.registrations import Provenance


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """Limits of child processes.

    `children` limits all processes and commands that one process starts. `depth` limits the live ancestors of a child.
    """

    depth: int = 16
    children: int = 1_000


async def check_child(
    store: Store,
    tenant: Tenant,
    limits: ProcessLimits,
    parent: tuple[str, Provenance],
    started: Collection[str],
    child: str,
) -> None:
    """Raise if a process may not start another child beside those `started`. One of these passes.

    Raises:
        Error: `process_depth_exceeded`, `process_children_exceeded`.
    """
    if child in started:
        return
    name, provenance = parent
    if await _above(store, tenant, provenance, limits.depth) >= limits.depth:
        raise Error(
            Code.PROCESS_DEPTH_EXCEEDED,
            f"the process {name} cannot start a child: it has {limits.depth} live ancestors",
            because=f"the limit is {limits.depth}",
            hint="end a process before its successor starts, or raise RuntimeOptions(processes=ProcessLimits(depth=))",
            process=name,
        )
    if len(started) >= limits.children:
        raise Error(
            Code.PROCESS_CHILDREN_EXCEEDED,
            f"the process {name} has started {limits.children} children",
            because=f"the limit is {limits.children}",
            hint="let each child start a group, or raise RuntimeOptions(processes=ProcessLimits(children=))",
            process=name,
        )


async def _above(store: Store, tenant: Tenant, provenance: Provenance, limit: int) -> int:
    """Count a process and its ancestors, up to the first that has ended."""
    count = 1
    while provenance.parent and count < limit:
        stream = process_stream(tenant, provenance.parent)
        rows = await store.read(stream, limit=1)
        if not rows or not isinstance(rows[0].record, ProcessRegistered):
            break
        if await store.find(stream, PROCESS_END) is not None:
            break
        count, provenance = count + 1, rows[0].record.registration.provenance
    return count
