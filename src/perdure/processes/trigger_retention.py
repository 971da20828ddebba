"""What of a trigger source is old enough to go.

Laws: what happened last stays, and so does what happened as long as a process that it started goes on. A subscription
that is deleted goes whole, once its deletion is old; of one that lives, the first and the newest record stay, so that
the log folds to the same without the others. The key of an occurrence is forgotten with it and not before.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from perdure.ids import Seq
from perdure.processes.triggers import SourceState, deletion_key, source_key
from perdure.vocab.records import Row
from perdure.vocab.triggers import (
    SubscriptionChanged,
    TriggerDeliveryFailed,
    TriggerOccurred,
)

SLACK = 16
"""What is due is looked for once in so many parts of the retention, not with every occurrence that comes of age."""


def prunes_at(state: SourceState, retention_ms: int) -> int | None:
    """When something of it may be old enough; None if nothing ever is."""
    if not retention_ms or not state.since:
        return None
    return state.since + retention_ms + retention_ms // SLACK


@dataclass(slots=True)
class Old:
    """Old records of a source, sorted into those that go and those that stay. `forgotten` are subscriptions that go,
    `running` processes that have not ended."""

    state: SourceState
    forgotten: Set[str]
    running: Set[str] = frozenset()
    waits: bool = False
    """Whether something stays only because a process goes on."""
    _kept: set[str] = field(default_factory=set[str])

    def sort(self, rows: Iterable[Row]) -> tuple[tuple[Seq, ...], tuple[str, ...]]:
        """What goes of these, in order: places of the log, and source keys."""
        places: list[Seq] = []
        keys: list[str] = []
        for row in rows:
            match row.record:
                case TriggerOccurred(occurrence=occurrence, key=key) as happened:
                    if self._stays(happened):
                        self._kept.add(occurrence)
                        continue
                    keys.append(source_key(key))
                case TriggerDeliveryFailed(occurrence=occurrence) if occurrence in self._kept:
                    continue
                case SubscriptionChanged(subscription=then):
                    now = self.state.known.get(then.id)
                    gone = now is None or then.id in self.forgotten
                    if not gone and (now is None or now.deleted or then.revision in (1, now.revision)):
                        continue
                    keys += [deletion_key(then)] if then.deleted else []
                case TriggerDeliveryFailed():
                    pass
                case _:
                    continue
            places.append(row.seq)
        return tuple(places), tuple(keys)

    def _stays(self, happened: TriggerOccurred) -> bool:
        if happened.occurrence == self.state.last:
            return True
        goes_on = any(one.process_id in self.running for one in happened.deliveries)
        self.waits = self.waits or goes_on
        return goes_on


def started_by(rows: Iterable[Row]) -> tuple[str, ...]:
    """The processes that were started for what happened."""
    happened = (row.record for row in rows)
    return tuple(
        one.process_id
        for record in happened
        if isinstance(record, TriggerOccurred)
        for one in record.deliveries
        if one.failed is None
    )
