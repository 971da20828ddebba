"""The API of triggers: declare event types, emit occurrences, manage subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from perdure.codec import Json, to_json
from perdure.errors import Code, Error
from perdure.ids import Seq, StreamId, check_id, split, stream_names, trigger_stream
from perdure.inbox.admit import Admitted, Conflict, Delivery
from perdure.inbox.items import Occurrence, Wake
from perdure.processes.registration import stream_of
from perdure.processes.triggers import (
    MAX_SUBSCRIPTIONS,
    SourceState,
    SubscriptionName,
    addressed,
    occurring,
)
from perdure.runtime.clock import short_id
from perdure.runtime.pages import check_limit
from perdure.runtime.processes.function import ProcessFunction
from perdure.runtime.processes.handle import ProcessHandle
from perdure.runtime.triggers.subscriptions import (
    SubscriptionHandle,
    SubscriptionRequest,
    check_owner,
    check_size,
    check_source,
    register_subscription,
    state_of,
)
from perdure.tools.durations import seconds
from perdure.tools.json_schema import mismatches, schema_problem
from perdure.tools.step_arguments import refuse_unordered
from perdure.vocab.log_keys import failure_key, occurrence_key
from perdure.vocab.records import ProcessRegistered
from perdure.vocab.triggers import (
    StartFailure,
    TriggerDelivery,
    TriggerDeliveryFailed,
    TriggerOccurred,
)

if TYPE_CHECKING:
    from perdure.runtime.core import RuntimeCore

PAGE = 100


@dataclass(frozen=True, slots=True)
class TriggerEvent:
    """A type of event on a resource: `source_type` is `alias.event`. A schema constrains the payload."""

    alias: str
    event: str
    resource_type: str = ""
    payload_schema: Json = None

    @property
    def source_type(self) -> str:
        """The name of the event type in occurrences and subscriptions."""
        return f"{self.alias}.{self.event}"


@dataclass(frozen=True, slots=True)
class OccurrenceHandle:
    """A durable occurrence. `duplicate` is true if its key was known before."""

    runtime: RuntimeCore
    stream: StreamId
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
        triggers = self.runtime.triggers
        return tuple([await triggers.settled(self.stream, self.id, one) for one in record.deliveries])

    async def processes(self, timeout: float | str | None = None) -> tuple[ProcessHandle, ...]:
        """Return the processes started for the occurrence."""
        started = (one for one in await self.deliveries(timeout) if one.failed is None)
        return tuple(ProcessHandle(self.runtime, one.process_id) for one in started)

    async def _recorded(self) -> TriggerOccurred:
        with self.runtime.hub.subscribe(self.stream, live=False) as news:
            while True:
                row = await self.runtime.store.find(self.stream, occurrence_key(self.id))
                if row is not None and isinstance(row.record, TriggerOccurred):
                    return row.record
                await news.wait()


@dataclass(frozen=True, slots=True)
class Source:
    """A source in a list: its state, the time of its last change, and its queued items."""

    source_type: str
    source: str
    stream: StreamId
    state: SourceState
    updated_at: int
    waiting: int


class Triggers:
    """Trigger client of a tenant: `rt.triggers`."""

    def __init__(self, runtime: RuntimeCore) -> None:
        self._runtime = runtime
        self._tenant = runtime.tenant
        self.catalog: dict[str, TriggerEvent] = {}

    # --- event types

    def declare(self, source_type: str, payload_schema: Json = None, *, resource_type: str = "") -> TriggerEvent:
        """Declare an event type `alias.event`. Emitted payloads must match the schema.

        Raises:
            Error: `trigger_invalid` if it is declared already, or its schema is invalid.
        """
        alias, _, event = source_type.rpartition(".")
        if not alias.strip() or not event.strip():
            raise _invalid(f"invalid source type {source_type!r}", hint='"mail.received"')
        if source_type in self.catalog:
            raise _invalid(f"{source_type} is declared already", hint="use another alias")
        if payload_schema is not None and (problem := schema_problem(payload_schema)) is not None:
            raise _invalid(f"invalid schema for {source_type}", because=problem)
        self.catalog[source_type] = known = TriggerEvent(alias, event, resource_type, payload_schema)
        return known

    # --- occurrences

    async def emit(
        self, source_type: str, payload: Json = None, *, key: str | None = None, source: str = "", session: str = ""
    ) -> OccurrenceHandle:
        """Emit an occurrence. Durable when this returns.

        The same key and payload again is the same occurrence. With `session`, only subscriptions of that session match.

        Raises:
            Error: `trigger_conflict` if the key has another payload; `trigger_invalid` if the payload does not match
                the
                declared schema; `invalid_json`, `input_too_large`, `invalid_id`.
        """
        rt = self._runtime
        rt.check_usable()
        new = await self.occurrence(source_type, payload, key=key, source=source, session=session)
        assert isinstance(new.item, Occurrence)
        admission = await rt.store.admit(new)
        if isinstance(admission, Conflict):
            raise _other_content(new.item.key)
        if isinstance(admission, Admitted):
            rt.hub.notify(new.stream)
            rt.notify(new.stream)
        duplicate = not isinstance(admission, Admitted)
        return OccurrenceHandle(rt, new.stream, new.item.occurrence, new.item.key, duplicate)

    async def occurrence(
        self, source_type: str, payload: Json, *, key: str | None = None, source: str = "", session: str = ""
    ) -> Delivery:
        """Return the delivery that `emit` adds to the source's inbox."""
        check_source(source_type, source)
        plain = await self._checked(source_type, payload)
        now = self._runtime.clock.wall_ms()
        name = check_id(key, what="the key of an occurrence") if key is not None else short_id("key", now)
        stream = trigger_stream(self._tenant, source_type, source)
        return occurring(stream, name, plain, session=session, at=now)

    async def _checked(self, source_type: str, payload: Json) -> Json:
        refuse_unordered(payload, "the payload")
        plain = to_json(payload, where="the payload")
        check_size(plain, "the payload")
        event = self.catalog.get(source_type)
        found = await mismatches(event.payload_schema, plain) if event and event.payload_schema is not None else ()
        if found:
            raise _invalid(f"the payload does not match the schema of {source_type}", because="; ".join(found[:3]))
        return plain

    async def settled(self, stream: StreamId, occurrence: str, reserved: TriggerDelivery) -> TriggerDelivery:
        """Return a delivery with its outcome: the process exists, or the reason why not."""
        self._check_own(stream)
        if reserved.failed is not None:
            return reserved
        store = self._runtime.store
        noted = await store.find(stream, failure_key(occurrence, reserved.subscription))
        if noted is not None and isinstance(noted.record, TriggerDeliveryFailed):
            return replace(reserved, failed=noted.record.failure)
        first = await store.read(stream_of(self._tenant, reserved.process_id), limit=1)
        match [row.record for row in first]:
            case [ProcessRegistered(registration=asked)] if asked.label == reserved.subscription:
                return reserved
            case []:
                gone = StartFailure(code=Code.PROCESS_UNKNOWN, message="the process was deleted")
            case _:
                gone = StartFailure(code=Code.PROCESS_CONFLICT, message="another process has its id")
        return replace(reserved, failed=gone)

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
        return await self.register(SubscriptionRequest(source_type, process, key, source, args, owner))

    async def register(
        self, wanted: SubscriptionRequest, *, operation: str | None = None, by: str = ""
    ) -> SubscriptionHandle:
        """Subscribe like `subscribe`, with all options of a request. The same `operation` again returns its receipt.

        Raises:
            Error: the errors of `subscribe`.
        """
        rt = self._runtime
        rt.check_usable()
        handle, definition, now = (
            SubscriptionHandle(rt, self._tenant, wanted.name),
            wanted.definition(),
            rt.clock.wall_ms(),
        )
        await check_owner(rt.store, self._tenant, definition)
        content = ("open", wanted.source_type, wanted.source)
        await rt.store.admit(addressed(handle.stream, "open", content, Wake(reason="open"), now))
        state = await self.state(handle.stream)
        known = state.known.get(handle.id)
        if known is not None and known.definition == definition and not known.deleted:
            return handle
        if known is None and len(state.living) >= MAX_SUBSCRIPTIONS:
            raise _too_many()
        await register_subscription(handle, definition, operation=operation, by=by)
        living = (await self.state(handle.stream)).living
        if len(living) > MAX_SUBSCRIPTIONS and handle.id not in [one.id for one in living[:MAX_SUBSCRIPTIONS]]:
            await handle.delete(by="limit")  # concurrent subscriptions exceeded the limit: the latest are deleted
            raise _too_many()
        return handle

    def subscription(self, id: str) -> SubscriptionHandle:
        """Return a handle to a subscription without a lookup. The first operation raises if it does not exist.

        Raises:
            Error: `trigger_subscription_unknown` for an invalid id.
        """
        return SubscriptionHandle(self._runtime, self._tenant, SubscriptionName.parse(id))

    # --- reading

    async def state(self, stream: StreamId) -> SourceState:
        """Return the state of a source: a fold of its log."""
        self._check_own(stream)
        return await state_of(self._runtime.store, stream)

    async def source(self, source_type: str, source: str = "") -> Source:
        """Return one source.

        Raises:
            Error: `trigger_source_unknown`.
        """
        stream = trigger_stream(self._tenant, source_type, source)
        info = await self._runtime.store.stream(stream)
        if info is None:
            raise _source_unknown(source_type, source)
        state = await self.state(stream)
        return Source(source_type, source, stream, state, info.updated_at, info.waiting_inputs)

    async def list(self, *, limit: int = PAGE, before: tuple[int, StreamId] | None = None) -> tuple[Source, ...]:
        """Return the sources of this tenant, the last changed first; `before` continues a page."""
        store, most = self._runtime.store, check_limit(limit)
        infos = await store.streams(tenant=self._tenant, kind="trigger", limit=most, before=before)
        found: list[Source] = []
        for info in infos:
            source_type, source = split(info.name)
            state = await self.state(info.stream)
            found.append(Source(source_type, source, info.stream, state, info.updated_at, info.waiting_inputs))
        return tuple(found)

    async def occurrences(self, stream: StreamId, *, limit: int = 20) -> tuple[tuple[int, TriggerOccurred], ...]:
        """Return the last occurrences at a source, latest first, each with its time and the outcome
        of its deliveries."""
        self._check_own(stream)
        check_limit(limit)
        found: list[tuple[int, TriggerOccurred]] = []
        async for at, record in self._backwards(stream):
            settled = [await self.settled(stream, record.occurrence, one) for one in record.deliveries]
            found.append((at, replace(record, deliveries=tuple(settled))))
            if len(found) >= limit:
                break
        return tuple(found)

    def _check_own(self, stream: StreamId) -> None:
        """Raise if a stream is no source of this tenant."""
        tenant, kind, name = stream_names(stream)
        if (tenant, kind) != (self._tenant, "trigger"):
            raise _source_unknown(*split(name)[:2])

    async def _backwards(self, stream: StreamId) -> AsyncIterator[tuple[int, TriggerOccurred]]:
        info = await self._runtime.store.stream(stream)
        until = info.last_seq if info is not None else Seq(0)
        while until > 0:
            after = Seq(max(0, until - PAGE))
            rows = await self._runtime.store.read(stream, after=after, until=until)
            if not rows:  # these rows were pruned, so few are left before them
                after, rows = Seq(0), await self._runtime.store.read(stream, until=until)
            for row in reversed(rows):
                if isinstance(row.record, TriggerOccurred):
                    yield row.at, row.record
            until = after


def _source_unknown(source_type: str, source: str = "") -> Error:
    return Error(
        Code.TRIGGER_SOURCE_UNKNOWN,
        f"unknown trigger source {source_type!r}" + (f" at {source!r}" if source else ""),
        because="the source has no subscription and no occurrence",
        hint="perdure triggers list",
    )


def _invalid(what: str, *, because: str = "", hint: str = "") -> Error:
    return Error(Code.TRIGGER_INVALID, what, because=because, hint=hint)


def _too_many() -> Error:
    return Error(
        Code.TRIGGER_LIMIT,
        f"the source has {MAX_SUBSCRIPTIONS} subscriptions, the maximum",
        hint="delete one, or let one process start the others",
    )


def _other_content(key: str) -> Error:
    return Error(
        Code.TRIGGER_CONFLICT,
        f"the key {key!r} was used for another occurrence",
        because="one key identifies one payload",
        hint="use a new key for a new occurrence",
    )
