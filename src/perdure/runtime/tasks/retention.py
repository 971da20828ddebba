"""Retention of ended tasks: a timer from the end of a task, and its deletion when the timer is due.

Law: a task that has not ended is never deleted. The next worker completes a deletion that a crash interrupted.
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
"""The name of the retention timer."""


def task_in(registration: Registration) -> Mapping[str, Json] | None:
    """Return the task of a process, as it was requested, or None if the process is no task."""
    match registration.input:
        case EngineInput(payload=held) | ExternalInput(metadata=held) if isinstance(held, dict):
            given = cast("dict[str, Json]", held).get("task")
            return cast("Mapping[str, Json]", given) if isinstance(given, dict) else None
        case _:
            return None


def kept_until(record: ProcessRecord, retention_ms: int) -> int | None:
    """Return the time at which an ended task is deleted, or None if it stays or is no task."""
    over = record.output is not None and task_in(record.known) is not None
    return record.ended_at + retention_ms if over and retention_ms > 0 else None


async def sweep(shared: Shared, stream: StreamId, record: ProcessRecord) -> None:
    """Delete a task. The list of its session comes first, so that it never names a deleted task."""
    given = task_in(record.known)
    assert given is not None
    assert record.output is not None
    tenant, _, name = stream_names(stream)
    session = SessionId(str(given["session_id"]))
    await forget(shared.store, tenant, session, name, now=shared.clock.wall_ms())
    await shared.store.delete(stream)
    shared.hub.notify(stream)
