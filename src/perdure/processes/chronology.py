"""The timeline of a process: its log as plain entries, to display or evaluate.

Law: a fold of the log alone, so the same rows give the same entries. Every row gives at most one entry, in log order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from perdure.codec import Json
from perdure.ids import Seq
from perdure.processes.events import PHASE, SIGNAL
from perdure.vocab.records import (
    AbandonRequested,
    EffectSettled,
    EffectStarted,
    ProcessEvent,
    ProcessFirstStarted,
    ProcessRegistered,
    Row,
)
from perdure.vocab.wire import Value

What = Literal["registered", "started", "began", "settled", "signal", "phase", "event", "ended", "abandon_requested"]


class Moment(Value, frozen=True):
    """One entry of the timeline: position in the log, time, kind and name. `detail` is the payload of an event."""

    seq: Seq
    at: int
    what: What
    name: str = ""
    detail: Json = None


def timeline(rows: Iterable[Row]) -> Iterator[Moment]:
    """Yield the timeline of a log."""
    for row in rows:
        match row.record:
            case ProcessRegistered(registration=registration):
                yield Moment(seq=row.seq, at=row.at, what="registered", name=registration.definition)
            case ProcessFirstStarted(worker=worker):
                yield Moment(seq=row.seq, at=row.at, what="started", name=worker)
            case EffectStarted(id=id):
                yield Moment(seq=row.seq, at=row.at, what="began", name=id.partition("/")[2] or id)
            case EffectSettled(id=id):
                yield Moment(seq=row.seq, at=row.at, what="settled", name=id.partition("/")[2] or id)
            case AbandonRequested(by=by):
                yield Moment(seq=row.seq, at=row.at, what="abandon_requested", name=by)
            case ProcessEvent() as event:
                yield _of_event(row, event)
            case _:
                pass


def _of_event(row: Row, event: ProcessEvent) -> Moment:
    if event.output is not None:
        return Moment(seq=row.seq, at=row.at, what="ended", name=event.event)
    if event.event == PHASE:
        name, edge = event.payload["phase"], event.payload["edge"]
        return Moment(seq=row.seq, at=row.at, what="phase", name=name, detail=edge)
    if event.event.startswith(SIGNAL):
        name = event.event.removeprefix(SIGNAL)
        return Moment(seq=row.seq, at=row.at, what="signal", name=name, detail=event.payload)
    return Moment(seq=row.seq, at=row.at, what="event", name=event.event, detail=event.payload)
