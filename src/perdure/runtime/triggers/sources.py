"""The sources of triggers: occurrences on their way in, subscriptions, and what a source has recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from perdure.codec import Json, to_json
from perdure.errors import Code, Error
from perdure.ids import Seq, StreamId, check_id, split, stream_names, trigger_stream
from perdure.inbox.admit import Delivery
from perdure.inbox.items import Wake
from perdure.offload import offload, weight_of
from perdure.processes.registration import stream_of
from perdure.processes.triggers import MAX_SUBSCRIPTIONS, SourceState, addressed, occurring
from perdure.runtime.clock import short_id
from perdure.runtime.pages import check_limit
from perdure.runtime.triggers.subscriptions import (
    SubscriptionHandle,
    SubscriptionRequest,
    check_owner,
    check_size,
    check_source,
    register_subscription,
    state_of,
)
from perdure.tools.json_schema import mismatches
from perdure.tools.step_arguments import refuse_unordered
from perdure.vocab.log_keys import failure_key
from perdure.vocab.records import ProcessRegistered
from perdure.vocab.triggers import StartFailure, TriggerDelivery, TriggerDeliveryFailed, TriggerOccurred

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
class Source:
    """A source in a list: its state, the time of its last change, and its queued items."""

    source_type: str
    source: str
    stream: StreamId
    state: SourceState
    updated_at: int
    waiting: int


class TriggerSources:
    """The sources of one tenant and their declared event types, for the modules inside."""

    def __init__(self, runtime: RuntimeCore) -> None:
        self._runtime = runtime
        self._tenant = runtime.tenant
        self.catalog: dict[str, TriggerEvent] = {}

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
        plain = await offload(weight_of(payload), _payload, payload)
        event = self.catalog.get(source_type)
        found = await mismatches(event.payload_schema, plain) if event and event.payload_schema is not None else ()
        if found:
            raise invalid(f"the payload does not match the schema of {source_type}", because="; ".join(found[:3]))
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

    async def occurrences(self, stream: StreamId, *, limit: int = 20) -> tuple[tuple[int, TriggerOccurred], ...]:
        """Return the last occurrences at a source, latest first, each with its time and the outcome of its
        deliveries.
        """
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


def invalid(what: str, *, because: str = "", hint: str = "") -> Error:
    """Return the error of an invalid event type or payload."""
    return Error(Code.TRIGGER_INVALID, what, because=because, hint=hint)


def _too_many() -> Error:
    return Error(
        Code.TRIGGER_LIMIT,
        f"the source has {MAX_SUBSCRIPTIONS} subscriptions, the maximum",
        hint="delete one, or let one process start the others",
    )


def _payload(payload: Json) -> Json:
    """Return the payload of an occurrence as plain JSON."""
    refuse_unordered(payload, "the payload")
    plain = to_json(payload, where="the payload")
    check_size(plain, "the payload")
    return plain
