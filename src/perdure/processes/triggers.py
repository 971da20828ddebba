"""A trigger source as a fold of its log: who is subscribed, and which processes an occurrence starts.

Laws: what matches is decided once, in the transaction that records the occurrence and starts the processes. The id of a
process follows from occurrence, subscription, incarnation and revision, so no two are started for one. A process that
cannot be started is said so in the record; it keeps nothing else from being started.
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
"""What stands in a source's row in place of an agent: every worker serves them."""
CODE = "trigger-2"
MAX_SUBSCRIPTIONS = 100
"""Of one source: what they are started with goes into one transaction."""
MAX_PAYLOAD_BYTES = 65_536


class SourceState(Value, frozen=True):
    """What is known of a source. `last` is what happened last; what can be pruned some day is there since `since` (0:
    nothing is), and was pruned before at `pruned`."""

    seq: Seq = Seq(0)
    known: dict[str, SubscriptionState] = {}  # noqa: RUF012 - a default of a frozen value
    occurrences: int = 0
    last: str = ""
    since: int = 0
    pruned: Seq = Seq(0)

    @property
    def living(self) -> tuple[SubscriptionState, ...]:
        """The subscriptions that are not deleted, the oldest first."""
        return tuple(one for one in self.known.values() if not one.deleted)


# --- names


@dataclass(frozen=True, slots=True)
class SubscriptionName:
    """Where a subscription is, whose it is, and what they call it. Its id says all of that."""

    source_type: str
    key: str
    source: str = ""
    owner: str = ""

    @property
    def id(self) -> str:
        """`mail.received:file`, with `:source` and `:owner` if there are any."""
        return join(self.source_type, self.key, self.source, self.owner).rstrip(":")

    @staticmethod
    def parse(id: str) -> SubscriptionName:
        """The inverse of `id`.

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
        """Where everything about its source is."""
        return trigger_stream(tenant, self.source_type, self.source)


def occurrence_id(stream: StreamId, key: str) -> str:
    """The name of something that happened: the same key at the same source is the same."""
    return f"occ_{brief(digest(('occurrence', stream, key)))}"


# --- the fold


def fold(state: SourceState, row: Row) -> SourceState:
    """One more record."""
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
    """A whole log, or the rest of one."""
    state = state or SourceState()
    for row in rows:
        state = fold(state, row)
    return state


# --- something happens


def source_key(key: str) -> str:
    """Under which the key of an occurrence is remembered."""
    return f"occ:{key}"


def deletion_key(gone: SubscriptionState) -> str:
    """Under which whoever serves a source is told that a subscription was deleted."""
    return f"del:{gone.id}:{gone.revision}"


def occurring(stream: StreamId, key: str, payload: Json, *, session: str = "", at: int) -> Delivery:
    """The delivery that says that something happened at a source."""
    item = Occurrence(occurrence=occurrence_id(stream, key), key=key, payload=payload, session=session)
    return addressed(stream, source_key(key), ("occurrence", payload, session), item, at)


def addressed(stream: StreamId, key: str, content: tuple[object, ...], item: Item, at: int) -> Delivery:
    """Something for a source, which it opens if there is none."""
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
    """Who wants a process for an occurrence, in one order; with a session, only what belongs to it."""
    wanted = (one for one in state.living if one.enabled and (not session or one.definition.owner == session))
    return tuple(sorted(wanted, key=lambda one: (one.definition.owner, one.definition.key)))


def ingested(
    tenant: Tenant, item: Occurrence, wanted: Iterable[SubscriptionState], *, at: int
) -> tuple[TriggerOccurred, tuple[Delivery, ...]]:
    """The record of an occurrence, and the starts that are written with it."""
    deliveries: list[TriggerDelivery] = []
    sends: list[Delivery] = []
    for one in wanted:
        reserved = reservation(item.occurrence, one)
        try:
            sends.append(start_of(tenant, item.occurrence, item.payload, one, at=at))
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
    return record, tuple(sends)


def reservation(occurrence: str, one: SubscriptionState) -> TriggerDelivery:
    """The process that a subscription gets for an occurrence."""
    named = (occurrence, one.id, one.incarnation, one.revision)
    return TriggerDelivery(
        subscription=one.id,
        revision=one.revision,
        incarnation=one.incarnation,
        process_id=f"trg_{brief(digest(named))}",
    )


def start_of(tenant: Tenant, occurrence: str, payload: Json, one: SubscriptionState, *, at: int) -> Delivery:
    """The delivery that starts it.

    Raises:
        Error: whatever `check_registration` refuses.
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


# --- changing who wants one


def changed(
    id: str,
    known: SubscriptionState | None,
    change: SubscriptionChange,
    *,
    definition: SubscriptionDefinition | None = None,
    expected: int | None = None,
) -> SubscriptionState:
    """What a subscription would become, if that makes sense.

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
    """The refusal of something for a subscription that does not exist."""
    return Error(
        Code.TRIGGER_SUBSCRIPTION_UNKNOWN,
        f"there is no subscription {id!r}",
        hint="perdure triggers subscriptions shows those there are",
    )


def conflict(known: SubscriptionState, because: str) -> Error:
    """The refusal of a change, with what the subscription is now."""
    return Error(
        Code.TRIGGER_REVISION_CONFLICT,
        f"the subscription {known.id} is at revision {known.revision}; nothing was written",
        because=because,
        hint="look at it again, and give the revision you saw",
        subscription=known.id,
        revision=known.revision,
    )
