"""Triggers as values: subscriptions, occurrences, and their records."""

from __future__ import annotations

from typing import Literal

from perdure.codec import Json
from perdure.vocab.processes import SessionScope
from perdure.vocab.registrations import EventType
from perdure.vocab.wire import Value

SubscriptionChange = Literal["registered", "updated", "enabled", "disabled", "deleted", "revived"]


class SubscriptionDefinition(Value, frozen=True):
    """A subscription: one process of this definition per occurrence at a source.

    With `uses_event` the payload of the occurrence is the only argument; else the process gets `fixed`. `owner` is the
    owning session (blank: the application). Processes are started in its name and notify `wake_target`.
    """

    key: str
    definition: str
    uses_event: bool = True
    fixed: Json = None
    owner: str = ""
    wake_target: SessionScope | None = None
    event_types: tuple[EventType, ...] = ()


class SubscriptionState(Value, frozen=True):
    """A subscription after a change. A deleted one is kept for a while and can be revived as a new incarnation."""

    id: str
    definition: SubscriptionDefinition
    revision: int = 1
    incarnation: int = 1
    enabled: bool = True
    deleted: bool = False


class StartFailure(Value, frozen=True):
    """The reason a process was not started."""

    code: str
    message: str


class TriggerDelivery(Value, frozen=True):
    """The process of a subscription for an occurrence, started in the transaction of this record.

    With `failed` no process was started.
    """

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
    """A subscription changed to this state. Admitted: concurrent changes race for the log key of the revision.

    `operation` names the request, so that a repeated request finds this record as its receipt.
    """

    change: SubscriptionChange
    subscription: SubscriptionState
    operation: str
    by: str = ""


class TriggerOccurred(Value, frozen=True, tag="trigger_occurred"):
    """An occurrence at the source. `deliveries` are decided here, once."""

    occurrence: str
    key: str
    payload: Json = None
    session: str = ""
    deliveries: tuple[TriggerDelivery, ...] = ()


class TriggerPruned(Value, frozen=True, tag="trigger_pruned"):
    """Old records were pruned. At most one such record exists; the next one replaces it.

    `occurrences` is the total so far. `subscriptions` were removed. `since` is the time of the oldest record that can
    be pruned next (0: none).
    """

    occurrences: int
    subscriptions: tuple[str, ...] = ()
    since: int = 0


class TriggerDeliveryFailed(Value, frozen=True, tag="trigger_delivery_failed"):
    """The store refused the start of a process, because another process has its id."""

    occurrence: str
    subscription: str
    failure: StartFailure
