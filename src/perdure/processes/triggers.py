"""A trigger source as a fold of its log: subscriptions, and the processes that an occurrence starts.

Laws: matching is decided once, in the transaction that records the occurrence and starts the processes. Process ids are
derived from occurrence, subscription, incarnation and revision, so no process is started twice. A process that cannot
be started is recorded as failed and does not affect the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from perdure.codec import Json, brief, digest
from perdure.errors import Code, Error
from perdure.ids import Seq, StreamId, Tenant, join, split, stream_names, trigger_stream
from perdure.inbox.admit import Delivery, Opening
from perdure.inbox.items import Item, Occurrence
from perdure.processes.registration import environment, starting
from perdure.vocab.causes import TriggerOccurrenceCause
from perdure.vocab.processes import SessionScope
from perdure.vocab.records import Row, kind_of, write
from perdure.vocab.registrations import EngineInput, Provenance, Registration
from perdure.vocab.triggers import (
    StartFailure,
    SubscriptionChange,
    SubscriptionChanged,
    SubscriptionDefinition,
    SubscriptionState,
    TriggerDelivery,
    TriggerOccurred,
    TriggerPruned,
    TriggerSourceOpened,
)
from perdure.vocab.wire import Value

OWNER = "trigger:"
"""The owner in a source's row, in place of an agent. Every worker serves sources."""
CODE = "trigger-2"
MAX_SUBSCRIPTIONS = 100
"""Per source: the starts of one occurrence share one transaction."""
MAX_PAYLOAD_BYTES = 65_536


class SourceState(Value, frozen=True):
    """The state of a source.

    `last` is the last occurrence. `since` is the time of the oldest record that can be pruned some day (0: none),
    `pruned` the position of the last pruning.
    """

    seq: Seq = Seq(0)
    known: dict[str, SubscriptionState] = {}  # noqa: RUF012 - a default of a frozen value
    occurrences: int = 0
    last: str = ""
    since: int = 0
    pruned: Seq = Seq(0)

    @property
    def living(self) -> tuple[SubscriptionState, ...]:
        """The subscriptions that are not deleted, oldest first."""
        return tuple(one for one in self.known.values() if not one.deleted)


# --- names


@dataclass(frozen=True, slots=True)
class SubscriptionName:
    """The parts of a subscription's id: source type, key, source and owner."""

    source_type: str
    key: str
    source: str = ""
    owner: str = ""

    @property
    def id(self) -> str:
        """`mail.received:file`, followed by `:source` and `:owner` if set."""
        return join(self.source_type, self.key, self.source, self.owner).rstrip(":")

    @staticmethod
    def parse(id: str) -> SubscriptionName:
        """Parse the id of a subscription.

        Raises:
            Error: `trigger_subscription_unknown`.
        """
        match split(id):
            case [source_type, key, *rest] if source_type and key and len(rest) <= 2:
                source, owner = (*rest, "", "")[:2]
                return SubscriptionName(source_type, key, source, owner)
            case _:
                raise unknown(id)

    def stream(self, tenant: Tenant) -> StreamId:
        """Return the stream of its source."""
        return trigger_stream(tenant, self.source_type, self.source)


def occurrence_id(stream: StreamId, key: str) -> str:
    """Return the id of an occurrence. The same key at the same source gives the same id."""
    return f"occ_{brief(digest(('occurrence', stream, key)))}"


# --- the fold


def fold(state: SourceState, row: Row) -> SourceState:
    """Fold one record."""
    state = replace(state, seq=row.seq)
    match row.record:
        case SubscriptionChanged(subscription=now, change=change):
            since = state.since or (row.at if change != "registered" else 0)
            return replace(state, known=state.known | {now.id: now}, since=since)
        case TriggerOccurred(occurrence=occurrence):
            counted = state.occurrences + 1
            return replace(state, occurrences=counted, last=occurrence, since=state.since or row.at)
        case TriggerPruned(occurrences=occurrences, subscriptions=gone, since=since):
            known = {id: one for id, one in state.known.items() if id not in gone}
            return replace(state, known=known, occurrences=occurrences, since=since, pruned=row.seq)
        case _:
            return state


def fold_all(rows: Iterable[Row], state: SourceState | None = None) -> SourceState:
    """Fold a whole log, or its tail onto `state`."""
    state = state or SourceState()
    for row in rows:
        state = fold(state, row)
    return state


# --- occurrences


def source_key(key: str) -> str:
    """Return the source key under which an occurrence is admitted."""
    return f"occ:{key}"


def deletion_key(gone: SubscriptionState) -> str:
    """Return the source key of the message that notifies a source of a deleted subscription."""
    return f"del:{gone.id}:{gone.revision}"


def occurring(stream: StreamId, key: str, payload: Json, *, session: str = "", at: int) -> Delivery:
    """Return the delivery of an occurrence to its source."""
    item = Occurrence(occurrence=occurrence_id(stream, key), key=key, payload=payload, session=session)
    return addressed(stream, source_key(key), ("occurrence", payload, session), item, at)


def addressed(stream: StreamId, key: str, content: tuple[object, ...], item: Item, at: int) -> Delivery:
    """Return a delivery to a source; it creates a missing source."""
    source_type, source = split(stream_names(stream)[2])
    opened = TriggerSourceOpened(source_type=source_type, source=source)
    return Delivery(
        stream=stream,
        source_key=key,
        content=brief(digest(content)),
        item=item,
        at=at,
        agent=OWNER,
        opening=Opening(kind_of(opened), write(opened)),
    )


def matching(state: SourceState, session: str) -> tuple[SubscriptionState, ...]:
    """Return the subscriptions that match an occurrence, in a fixed order; with a session, only those it owns."""
    wanted = (one for one in state.living if one.enabled and (not session or one.definition.owner == session))
    return tuple(sorted(wanted, key=lambda one: (one.definition.owner, one.definition.key)))


def ingested(
    tenant: Tenant, item: Occurrence, wanted: Iterable[SubscriptionState], *, at: int
) -> tuple[TriggerOccurred, tuple[Delivery, ...]]:
    """Return the record of an occurrence, and the process starts that are written with it."""
    deliveries: list[TriggerDelivery] = []
    outbox: list[Delivery] = []
    for one in wanted:
        reserved = reservation(item.occurrence, one)
        try:
            outbox.append(start_of(tenant, item.occurrence, item.payload, one, at=at))
        except Error as problem:
            reserved = replace(reserved, failed=StartFailure(code=problem.code, message=problem.message))
        deliveries.append(reserved)
    record = TriggerOccurred(
        occurrence=item.occurrence,
        key=item.key,
        payload=item.payload,
        session=item.session,
        deliveries=tuple(deliveries),
    )
    return record, tuple(outbox)


def reservation(occurrence: str, one: SubscriptionState) -> TriggerDelivery:
    """Return the delivery of an occurrence to a subscription, with its process id."""
    named = (occurrence, one.id, one.incarnation, one.revision)
    return TriggerDelivery(
        subscription=one.id,
        revision=one.revision,
        incarnation=one.incarnation,
        process_id=f"trg_{brief(digest(named))}",
    )


def start_of(tenant: Tenant, occurrence: str, payload: Json, one: SubscriptionState, *, at: int) -> Delivery:
    """Return the delivery that starts the process of a subscription.

    Raises:
        Error: as `check_registration` does.
    """
    asked = one.definition
    env, blob = environment({}, {})
    given: Json = {"args": [payload], "kwargs": {}} if asked.uses_event else asked.fixed
    originator = SessionScope(session_id=asked.owner) if asked.owner else None
    registration = Registration(
        process_id=reservation(occurrence, one).process_id,
        definition=asked.definition,
        input=EngineInput(kind="python", payload=given),
        recovery="rerunnable",
        env=env,
        event_types=asked.event_types,
        provenance=Provenance(originator=originator, caused_by=TriggerOccurrenceCause(occurrence_id=occurrence)),
        wake_target=asked.wake_target or originator,
        label=one.id,
    )
    return starting(tenant, registration, at=at, env=blob)


# --- changing subscriptions


def changed(
    id: str,
    known: SubscriptionState | None,
    change: SubscriptionChange,
    *,
    definition: SubscriptionDefinition | None = None,
    expected: int | None = None,
) -> SubscriptionState:
    """Return a subscription after a change, if the change is valid.

    Raises:
        Error: `trigger_subscription_unknown`, `trigger_revision_conflict`.
    """
    if known is None:
        if change != "registered" or definition is None:
            raise unknown(id)
        return SubscriptionState(id=id, definition=definition)
    if expected is not None and expected != known.revision:
        raise conflict(known, f"revision {expected} was expected")
    if known.deleted != (change == "revived"):
        raise conflict(known, "it is deleted" if known.deleted else "only a deleted one can be revived")
    if change == "registered":
        raise conflict(known, "it is registered with another definition")
    now = replace(known, revision=known.revision + 1, definition=definition or known.definition)
    match change:
        case "enabled" | "disabled":
            return replace(now, enabled=change == "enabled")
        case "deleted":
            return replace(now, deleted=True)
        case "revived":
            return replace(now, deleted=False, enabled=True, incarnation=known.incarnation + 1)
        case "updated":
            return now


def unknown(id: str) -> Error:
    """Return the error for a subscription that does not exist."""
    return Error(
        Code.TRIGGER_SUBSCRIPTION_UNKNOWN,
        f"unknown subscription {id!r}",
        hint="perdure subscriptions list",
    )


def conflict(known: SubscriptionState, because: str) -> Error:
    """Return the error for an invalid change, with the current revision."""
    return Error(
        Code.TRIGGER_REVISION_CONFLICT,
        f"the subscription {known.id} is at revision {known.revision}; nothing was written",
        because=because,
        hint="read it again and pass its current revision",
        subscription=known.id,
        revision=known.revision,
    )
