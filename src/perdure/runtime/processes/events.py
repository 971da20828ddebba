"""The events of a process, checked against its declarations, and the client for tools that emit them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from perdure.codec import Json
from perdure.effects import keys
from perdure.errors import Code, Error
from perdure.ids import CallId, Seq, join
from perdure.processes.events import event as event_of
from perdure.processes.events import type_of
from perdure.runtime.clock import short_id
from perdure.tools.clients.process_events import ProcessEventInfo
from perdure.tools.json_schema import foreign_problem, mismatches
from perdure.vocab.log_keys import event_key
from perdure.vocab.records import ProcessEvent, Row
from perdure.vocab.registrations import EventType, Registration

if TYPE_CHECKING:
    from perdure.runtime.processes.handle import ProcessHandle


async def check_schemas(types: Iterable[EventType]) -> None:
    """Raise if an event type has an invalid schema.

    Raises:
        Error: `process_event_type_invalid`.
    """
    for one in types:
        problem = None if one.payload_schema is None else await foreign_problem(one.payload_schema)
        if problem is not None:
            raise Error(
                Code.PROCESS_EVENT_TYPE_INVALID,
                f"the event type {one.name} has an invalid schema; nothing was written",
                because=problem,
                event=one.name,
            )


async def checked_event(registration: Registration, name: str, payload: Json, replay: str) -> ProcessEvent:
    """Return a declared event, whose payload matches its schema.

    Raises:
        Error: `process_event_undeclared`, `process_event_invalid`, `process_event_replay_key_required`.
    """
    schema = type_of(registration, name).payload_schema
    problems = [] if schema is None else await mismatches(schema, payload)
    if problems:
        raise Error(
            Code.PROCESS_EVENT_INVALID,
            f"the payload of the event {name} does not match its schema; nothing was written",
            because="; ".join(line.removeprefix("- ") for line in problems),
            process=registration.process_id,
        )
    return event_of(registration, name, payload, replay)


def info_of(process: str, row: Row) -> ProcessEventInfo:
    """Return an event with its position."""
    record = row.record
    assert isinstance(record, ProcessEvent)
    return ProcessEventInfo(process, row.seq, record.event, record.payload, record.replay or None)


class RunEventsClient:
    """The events that the tool of a background run declares. A re-attached run emits under the keys of the first."""

    def __init__(self, handle: ProcessHandle, call: CallId, declared: Iterable[EventType]) -> None:
        self._process = ProcessEventsClient(handle)
        self._call = call
        self._declared = frozenset(one.name for one in declared)
        self._emitted = 0

    async def emit(self, event_type: str, payload: Json) -> ProcessEventInfo:
        """Append an event under the number of the call."""
        key = keys.tool_process_event(self._call, self._emitted)
        self._emitted += 1
        return await self.emit_request(event_type, payload, replay_key=key)

    async def emit_request(self, event_type: str, payload: Json, *, replay_key: str) -> ProcessEventInfo:
        """Append an event under a key.

        Raises:
            Error: `process_event_undeclared` for a type that the tool does not declare, such as those of its task.
        """
        if event_type not in self._declared:
            raise Error(
                Code.PROCESS_EVENT_UNDECLARED,
                f"the tool declares no event {event_type!r}; nothing was written",
                hint=f"process_events = (EventType(name={event_type!r}),)",
            )
        return await self._process.emit_request(event_type, payload, replay_key=replay_key)

    async def wait_event_after(self, event_type: str, after: int) -> ProcessEventInfo:
        """Wait for the first event of a type after a sequence number."""
        return await self._process.wait_event_after(event_type, after)


class ProcessEventsClient:
    """The events of one process."""

    def __init__(self, handle: ProcessHandle) -> None:
        self._handle = handle

    async def emit(self, event_type: str, payload: Json) -> ProcessEventInfo:
        """Append an event."""
        key = short_id("evt", self._handle.runtime.clock.wall_ms())
        return await self.emit_request(event_type, payload, replay_key=key)

    async def emit_request(self, event_type: str, payload: Json, *, replay_key: str) -> ProcessEventInfo:
        """Append an event under a key. The same key and content again is the same event."""
        await self._handle.append_event(event_type, payload, replay=replay_key)
        row = await self._handle.runtime.store.find(self._handle.stream, event_key(event_type, replay_key))
        assert row is not None
        return info_of(self._handle.id, row)

    async def count_events_through(self, event_type: str, sequence: int) -> int:
        """Count the events of a type up to a sequence number."""
        begins = f"{join('event', event_type)}:"
        return await self._handle.runtime.store.count(self._handle.stream, begins, until=Seq(sequence))

    async def wait_event_after(self, event_type: str, after: int) -> ProcessEventInfo:
        """Wait for the first event of a type after a sequence number."""
        store, stream, seq = self._handle.runtime.store, self._handle.stream, Seq(after)
        with self._handle.runtime.hub.subscribe(stream, live=False) as news:
            while True:
                for row in await store.read(stream, after=seq):
                    seq = row.seq
                    if isinstance(row.record, ProcessEvent) and row.record.event == event_type:
                        return info_of(self._handle.id, row)
                await news.wait()
