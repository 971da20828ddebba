"""How far processes may start each other: how many children one may have, and how long a line of them that all go on.

Law: what is refused has left nothing: neither in the log of the parent, nor anywhere else. What was started before is
not refused when its parent is entered again.
"""

from __future__ import annotations

from dataclasses import dataclass

from perdure.errors import Code, Error
from perdure.ids import Tenant, process_stream
from perdure.store.protocol import Store
from perdure.tools.body import Body
from perdure.vocab.log_keys import PROCESS_END
from perdure.vocab.records import ProcessRegistered
from perdure.vocab.registrations import Provenance


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """`children` is how many processes and commands one process may start altogether; `depth` how many that have not
    ended may stand above a child, each started by the one before it."""

    depth: int = 16
    children: int = 1_000


async def check_child(
    store: Store, tenant: Tenant, limits: ProcessLimits, body: Body, parent: tuple[str, Provenance], child: str
) -> None:
    """Refuse one more child of a process, unless it was started before.

    Raises:
        Error: `process_depth_exceeded`, `process_children_exceeded`.
    """
    if child in body.names("start"):
        return
    name, provenance = parent
    if await _above(store, tenant, provenance, limits.depth) >= limits.depth:
        raise Error(
            Code.PROCESS_DEPTH_EXCEEDED,
            f"the process {name} may start no child: {limits.depth} that have not ended stand above it",
            because=f"the limit is {limits.depth}",
            hint="let a process end before it is followed by another, or raise Tuning(processes=ProcessLimits(depth=))",
            process=name,
        )
    if len(body.names("start")) >= limits.children:
        raise Error(
            Code.PROCESS_CHILDREN_EXCEEDED,
            f"the process {name} has started {limits.children} children",
            because=f"the limit is {limits.children}",
            hint="start them in groups, each by a child, or raise Tuning(processes=ProcessLimits(children=))",
            process=name,
        )


async def _above(store: Store, tenant: Tenant, provenance: Provenance, limit: int) -> int:
    """How many that have not ended stand above a process and itself: its line, up to the first that is over."""
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
