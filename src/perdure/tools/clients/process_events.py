"""The client behind `ctx.emit`: events of the enclosing process for its observers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from perdure.codec import Json
from perdure.errors import Code, Error


@dataclass(frozen=True, slots=True)
class ProcessEventInfo:
    """One event of a process with its position."""

    process_id: str
    sequence: int
    event_type: str
    payload: Json
    replay_key: str | None = None


class ProcessEvents(Protocol):
    """The events of the enclosing process. Absent outside a process."""

    async def emit(self, event_type: str, payload: Json) -> ProcessEventInfo:
        """Append an event."""
        ...

    async def emit_request(self, event_type: str, payload: Json, *, replay_key: str) -> ProcessEventInfo:
        """Append an event under a key. Equal key and content give the same event."""
        ...

    async def wait_event_after(self, event_type: str, after: int) -> ProcessEventInfo:
        """Wait for the first event of a type after a sequence number."""
        ...


def no_process(called: str) -> Error:
    """Return the error of a call that emits an event and runs in no process."""
    return Error(
        Code.DURABLE_EFFECT_PROCESS_EVENT_UNAVAILABLE,
        f"{called} does not run in a process, so it cannot emit process events",
    )


async def emitted(
    event_type: str, process: str | None, append: Callable[[], Awaitable[ProcessEventInfo]]
) -> ProcessEventInfo:
    """Append an event to the enclosing process of a call.

    Raises:
        Error: `durable_effect_empty_process_event_type`, `…_process_event_append_failed`, `…_process_mismatch`.
    """
    if not event_type.strip():
        raise Error(Code.DURABLE_EFFECT_EMPTY_PROCESS_EVENT_TYPE, "a process event needs a type")
    try:
        event = await append()
    except Error as problem:
        raise Error(
            Code.DURABLE_EFFECT_PROCESS_EVENT_APPEND_FAILED,
            f"the process event {event_type} was not appended",
            because=problem.message,
            hint=problem.hint,
        ) from problem
    if event.process_id != process:
        raise Error(
            Code.DURABLE_EFFECT_PROCESS_EVENT_PROCESS_MISMATCH,
            f"the process event {event_type} went to process {event.process_id}, not to {process}",
        )
    return event
