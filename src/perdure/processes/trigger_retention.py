"""Retention of trigger sources: which old records are pruned.

Laws: the last occurrence stays, and so does every occurrence with a running process. A deleted subscription is removed
as a whole once its deletion is old. Of a live one the first and the newest record stay, so that the log folds to the
same state. The key of an occurrence is removed with it, not before.
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
"""Divisor of the retention period: pruning is delayed by that fraction, so that it runs in batches."""


def prunes_at(state: SourceState, retention_ms: int) -> int | None:
    """Return the time at which a record may be old enough to prune, or None."""
    if not retention_ms or not state.since:
        return None
    return state.since + retention_ms + retention_ms // SLACK


@dataclass(slots=True)
class Old:
    """Old records of a source, sorted into pruned and kept.

    `forgotten` are the subscriptions to remove, `running` the processes that have not ended.
    """

    state: SourceState
    forgotten: Set[str]
    running: Set[str] = frozenset()
    waits: bool = False
    """True if a record is kept only because its process is running."""
    _kept: set[str] = field(default_factory=set[str])

    def sort(self, rows: Iterable[Row]) -> tuple[tuple[Seq, ...], tuple[str, ...]]:
        """Return what to prune of these rows, in order: positions in the log, and source keys."""
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
    """Return the processes started for these occurrences."""
    happened = (row.record for row in rows)
    return tuple(
        one.process_id
        for record in happened
        if isinstance(record, TriggerOccurred)
        for one in record.deliveries
        if one.failed is None
    )
