"""Dead-lettering: the end of a turn that no worker can advance.

A turn that kills its worker would kill each next one too. After the third takeover in a row without a new record, the
worker does not run the turn again. It records what is known of every call and ends the turn. The session continues. The
same happens after the third unexpected exception of the turn in one worker.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from perdure.clock import Clock
from perdure.effects.journal import EffectJournal
from perdure.runtime.worker.waits import resolve
from perdure.store.protocol import Store
from perdure.turn.machine import advance, owed, recovery, settlement, stopped, unanswered
from perdure.turn.state import Call, RunCall, Turn
from perdure.vocab.effects import AwaitEvent, EffectKind
from perdure.vocab.outcomes import (
    AwaitEventOutcome,
    DurableStepOutcome,
    Failed,
    FailureDetail,
    InDoubt,
    NotRun,
)
from perdure.vocab.promises import Cancelled
from perdure.vocab.records import EffectSettled, Record
from perdure.vocab.refs import EffectRef, is_part

MAX_BREAKAGES = 3
MAX_TAKEOVERS = 3
"""Takeovers in a row without progress after which a turn is dead-lettered."""

_LOST = "every attempt to continue the turn failed; the progress of this call is unknown"
_STOPPED = "the turn was stopped because every attempt to continue it failed"


async def dead_letter(turn: Turn, records: Iterable[Record], message: str, store: Store, clock: Clock) -> list[Record]:
    """Return the records that end a turn: an outcome for everything that was in flight, and the reason."""
    closing: list[Record] = []
    for record in (*recovery(turn), *await _parts(records, store, clock)):
        turn = advance(turn, record)
        closing.append(record)
    owes = [item for item in owed(turn) if isinstance(item, RunCall)]
    started = {item.ref.id for item in owes if not (item.contract and item.contract.client_side)}
    while left := unanswered(turn):
        ref, call = left[0]
        record = _answer(ref, call, may_have_run=ref.id in started)
        turn = advance(turn, record)
        closing.append(record)
    return [*closing, stopped(turn, "no_forward_progress", message)]


async def _parts(records: Iterable[Record], store: Store, clock: Clock) -> list[EffectSettled]:
    """Return the ends of open body parts: `once` steps are in doubt, and event waits are cancelled."""
    journal = EffectJournal()
    for record in records:
        journal.fold(record)
    ended: list[EffectSettled] = []
    for started in journal.unsettled():
        if isinstance(started.command, AwaitEvent):
            resolution = await resolve(store, started.command.key, Cancelled(), now=clock.wall_ms())
            if is_part(started.id):
                ended.append(EffectSettled(id=started.id, outcome=AwaitEventOutcome(resolution=resolution)))
        elif started.effect == "once" and started.kind is EffectKind.DURABLE_STEP:
            doubt = InDoubt(reason="worker_lost", message=_LOST)
            ended.append(EffectSettled(id=started.id, outcome=DurableStepOutcome(in_doubt=doubt)))
    for settled in ended:
        journal.fold(settled)
    inner = journal.unfinished_inner_bodies()
    return [*ended, *(EffectSettled(id=one.id, outcome=journal.cut_short(one)) for one in inner)]


def _answer(ref: EffectRef, call: Call, *, may_have_run: bool) -> EffectSettled:
    """Return a settlement for a call without an outcome, from what is known of it."""
    if call.pending is not None:
        return EffectSettled(id=replace(ref, tail="completion").id, outcome=AwaitEventOutcome(resolution=Cancelled()))
    if call.undecided is not None:
        return EffectSettled(id=replace(ref, tail="approval").id, outcome=AwaitEventOutcome(resolution=Cancelled()))
    if call.doubt is not None and call.policy == "ask":
        return EffectSettled(id=replace(ref, tail="doubt").id, outcome=AwaitEventOutcome(resolution=Cancelled()))
    if call.doubt is not None:
        unknown = DurableStepOutcome(value={"verdict": "unknown", "reason": _STOPPED})
        return EffectSettled(id=replace(ref, tail="probe").id, outcome=unknown)
    if call.started is not None or may_have_run:
        return settlement(ref, call.request, InDoubt(reason="worker_lost", message=_LOST))
    if call.failures:
        failure = FailureDetail(code="no_forward_progress", message=_STOPPED, failure_class="invalid")
        return settlement(ref, call.request, Failed(failure=failure))
    return settlement(ref, call.request, NotRun(reason=_STOPPED))
