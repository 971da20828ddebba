"""The API of triggers: declare event types, emit occurrences, manage subscriptions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.ids import StreamId, split
from perdure.inbox.admit import Admitted, Conflict
from perdure.inbox.items import Occurrence
from perdure.processes.triggers import (
    SubscriptionName,
)
from perdure.runtime.pages import check_limit
from perdure.runtime.processes.function import ProcessFunction
from perdure.runtime.processes.handle import ProcessHandle
from perdure.runtime.triggers.sources import PAGE, Source, TriggerEvent, invalid
from perdure.runtime.triggers.subscriptions import (
    SubscriptionHandle,
    SubscriptionRequest,
)
from perdure.tools.durations import seconds
from perdure.tools.json_schema import schema_problem
from perdure.vocab.log_keys import occurrence_key
from perdure.vocab.triggers import (
    TriggerDelivery,
    TriggerOccurred,
)

if TYPE_CHECKING:
    from perdure.runtime.core import RuntimeCore


@dataclass(frozen=True, slots=True)
class OccurrenceHandle:
    """A durable occurrence. `is_duplicate` is true if its key was known before."""

    _runtime: RuntimeCore = field(repr=False)
    _stream: StreamId = field(repr=False)
    id: str
    key: str
    is_duplicate: bool = False

    async def deliveries(self, timeout: float | str | None = None) -> tuple[TriggerDelivery, ...]:
        """Return the started processes and the failed starts, once a worker has processed the occurrence.

        Raises:
            Error: `result_timeout`.
        """
        within = seconds(timeout)
        try:
            async with asyncio.timeout(within):
                record = await self._recorded()
        except TimeoutError:
            raise Error(
                Code.RESULT_TIMEOUT,
                f"no worker processed the occurrence {self.id} within {within} s; it stays queued",
                hint="perdure worker",
            ) from None
        sources = self._runtime.trigger_sources
        return tuple([await sources.settled(self._stream, self.id, one) for one in record.deliveries])

    async def processes(self, timeout: float | str | None = None) -> tuple[ProcessHandle, ...]:
        """Return the processes started for the occurrence."""
        started = (one for one in await self.deliveries(timeout) if one.failed is None)
        return tuple(ProcessHandle(self._runtime, one.process_id) for one in started)

    async def _recorded(self) -> TriggerOccurred:
        with self._runtime.hub.subscribe(self._stream, live=False) as news:
            while True:
                row = await self._runtime.store.find(self._stream, occurrence_key(self.id))
                if row is not None and isinstance(row.record, TriggerOccurred):
                    return row.record
                await news.wait()


class Triggers:
    """Trigger client of a tenant: `rt.triggers`."""

    def __init__(self, runtime: RuntimeCore) -> None:
        self._runtime = runtime
        self._tenant = runtime.tenant
        self._sources = runtime.trigger_sources

    # --- event types

    def declare(self, source_type: str, payload_schema: Json = None, *, resource_type: str = "") -> TriggerEvent:
        """Declare an event type `alias.event`. Emitted payloads must match the schema.

        Raises:
            Error: `trigger_invalid` if it is declared already, or its schema is invalid.
        """
        alias, _, event = source_type.rpartition(".")
        if not alias.strip() or not event.strip():
            raise invalid(f"invalid source type {source_type!r}", hint='"mail.received"')
        if source_type in self._sources.catalog:
            raise invalid(f"{source_type} is declared already", hint="use another alias")
        if payload_schema is not None and (problem := schema_problem(payload_schema)) is not None:
            raise invalid(f"invalid schema for {source_type}", because=problem)
        self._sources.catalog[source_type] = known = TriggerEvent(alias, event, resource_type, payload_schema)
        return known

    # --- occurrences

    async def emit(
        self, source_type: str, payload: Json = None, *, key: str | None = None, source: str = "", session: str = ""
    ) -> OccurrenceHandle:
        """Emit an occurrence. Durable when this returns.

        The same key and payload again is the same occurrence. With `session`, only subscriptions of that session match.

        Raises:
            Error: `trigger_conflict` if the key has another payload; `trigger_invalid` if the payload does not match
                the declared schema; `invalid_json`, `input_too_large`, `invalid_id`.
        """
        rt = self._runtime
        rt.check_usable()
        new = await self._sources.occurrence(source_type, payload, key=key, source=source, session=session)
        assert isinstance(new.item, Occurrence)
        admission = await rt.store.admit(new)
        if isinstance(admission, Conflict):
            raise _other_content(new.item.key)
        if isinstance(admission, Admitted):
            rt.hub.notify(new.stream)
            rt.notify(new.stream)
        duplicate = not isinstance(admission, Admitted)
        return OccurrenceHandle(rt, new.stream, new.item.occurrence, new.item.key, duplicate)

    # --- subscriptions

    async def subscribe(
        self,
        source_type: str,
        process: ProcessFunction | str,
        *,
        key: str,
        source: str = "",
        args: tuple[object, ...] | None = None,
        owner: str = "",
    ) -> SubscriptionHandle:
        """Start a process for each later occurrence at a source. The same subscription again is the same one.

        `key` is the owner's name for the subscription. Without `args` the process receives the payload as its only
        argument. The subscription belongs to `owner`, a session, and ends with it; without one, to the application.

        Raises:
            Error: `trigger_revision_conflict` if that owner and key have another subscription; `trigger_limit`;
                `session_unknown` if its owner does not exist; `invalid_id`, `invalid_argument`, `invalid_json`.
        """
        return await self._sources.register(SubscriptionRequest(source_type, process, key, source, args, owner))

    def subscription(self, id: str) -> SubscriptionHandle:
        """Return a handle to a subscription without a lookup. The first operation raises if it does not exist.

        Raises:
            Error: `trigger_subscription_unknown` for an invalid id.
        """
        return SubscriptionHandle(self._runtime, self._tenant, SubscriptionName.parse(id))

    # --- reading

    async def list(self, *, limit: int = PAGE, before: tuple[int, StreamId] | None = None) -> tuple[Source, ...]:
        """Return the sources of this tenant, the last changed first; `before` continues a page."""
        store, most = self._runtime.store, check_limit(limit)
        infos = await store.streams(tenant=self._tenant, kind="trigger", limit=most, before=before)
        found: list[Source] = []
        for info in infos:
            source_type, source = split(info.name)
            state = await self._sources.state(info.stream)
            found.append(Source(source_type, source, info.stream, state, info.updated_at, info.waiting_inputs))
        return tuple(found)


def _other_content(key: str) -> Error:
    return Error(
        Code.TRIGGER_CONFLICT,
        f"the key {key!r} was used for another occurrence",
        because="one key identifies one payload",
        hint="use a new key for a new occurrence",
    )
