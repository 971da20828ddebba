"""Triggers as values: who wants a process for what happens at a source, and what is recorded of it."""

from __future__ import annotations

from typing import Literal

from perdure.codec import Json
from perdure.vocab.processes import SessionScope
from perdure.vocab.registrations import EventType
from perdure.vocab.wire import Value

SubscriptionChange = Literal["registered", "updated", "enabled", "disabled", "deleted", "revived"]


class SubscriptionDefinition(Value, frozen=True):
    """A process of this definition for everything that happens at a source.

    With `uses_event`, what happened (the payload) is its only argument; else it is started with `fixed`. `owner` is the
    session that it belongs to (blank: the application): processes are started in its name, and tell `wake_target`.
    """

    key: str
    definition: str
    uses_event: bool = True
    fixed: Json = None
    owner: str = ""
    wake_target: SessionScope | None = None
    event_types: tuple[EventType, ...] = ()


class SubscriptionState(Value, frozen=True):
    """A subscription as it is after a change. A deleted one is kept for a while, and may be revived as another
    incarnation."""

    id: str
    definition: SubscriptionDefinition
    revision: int = 1
    incarnation: int = 1
    enabled: bool = True
    deleted: bool = False


class StartFailure(Value, frozen=True):
    """Why a process was not started."""

    code: str
    message: str


class TriggerDelivery(Value, frozen=True):
    """What a subscription gets for an occurrence: a process, which is started in the transaction that records this;
    or, with `failed`, none."""

    subscription: str
    revision: int
    incarnation: int
    process_id: str
    failed: StartFailure | None = None


class TriggerSourceOpened(Value, frozen=True, tag="trigger_source_opened"):
    """The first record of a source."""

    source_type: str
    source: str = ""


class SubscriptionChanged(Value, frozen=True, tag="subscription_changed"):
    """A subscription became this. Admitted: the log key of its revision belongs to the first who takes it.

    `operation` names the request, so that the same one again finds this record as its receipt.
    """

    change: SubscriptionChange
    subscription: SubscriptionState
    operation: str
    by: str = ""


class TriggerOccurred(Value, frozen=True, tag="trigger_occurred"):
    """Something happened at the source; `deliveries` are decided here, once."""

    occurrence: str
    key: str
    payload: Json = None
    session: str = ""
    deliveries: tuple[TriggerDelivery, ...] = ()


class TriggerPruned(Value, frozen=True, tag="trigger_pruned"):
    """What was old is not kept any more. `occurrences` happened in all, `subscriptions` are forgotten, and what could
    go next is there since `since` (0: nothing is). There is one such record at most: the next one takes its place."""

    occurrences: int
    subscriptions: tuple[str, ...] = ()
    since: int = 0


class TriggerDeliveryFailed(Value, frozen=True, tag="trigger_delivery_failed"):
    """The store did not take the start of a process: another one has its id."""

    occurrence: str
    subscription: str
    failure: StartFailure
