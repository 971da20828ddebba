"""How long tasks are kept once they are over: each has a timer from its end on, and goes when that is due.

Law: nothing that has not ended is swept. What is being swept when a worker dies is swept by the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from perdure.codec import Json
from perdure.ids import SessionId, StreamId, stream_names
from perdure.processes.record import ProcessRecord
from perdure.runtime.shared import Shared
from perdure.runtime.tasks.index import forget
from perdure.vocab.registrations import EngineInput, ExternalInput, Registration

RETENTION = "retention"
"""The name of the timer."""


def task_in(registration: Registration) -> Mapping[str, Json] | None:
    """The task that a process is, as it was asked for; None if it is none."""
    match registration.input:
        case EngineInput(payload=held) | ExternalInput(metadata=held) if isinstance(held, dict):
            given = cast("dict[str, Json]", held).get("task")
            return cast("Mapping[str, Json]", given) if isinstance(given, dict) else None
        case _:
            return None


def kept_until(record: ProcessRecord, retention_ms: int) -> int | None:
    """When a task that is over goes; None if it stays, or is none."""
    over = record.output is not None and task_in(record.known) is not None
    return record.ended_at + retention_ms if over and retention_ms > 0 else None


async def sweep(shared: Shared, stream: StreamId, record: ProcessRecord) -> None:
    """Remove a task: from the list of its session first, so that nobody finds there what is gone."""
    given = task_in(record.known)
    assert given is not None
    assert record.output is not None
    tenant, _, name = stream_names(stream)
    session = SessionId(str(given["session_id"]))
    await forget(shared.store, tenant, session, name, now=shared.clock.wall_ms())
    await shared.store.delete(stream)
    shared.hub.stir(stream)
