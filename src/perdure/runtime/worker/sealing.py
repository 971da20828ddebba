"""Sealing: the end of a turn that nobody gets further with.

A turn that kills its worker would kill every other one too. Whoever takes a session over for the third time without a
new record does not try again: it says of every call what is known of it, and ends the turn. The session goes on.
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
    Failure,
    InDoubt,
    NotRun,
)
from perdure.vocab.promises import Cancelled
from perdure.vocab.records import EffectSettled, Record
from perdure.vocab.refs import EffectRef, is_part

MAX_TAKEOVERS = 3
"""How many workers in a row may find a turn as the one before them left it."""

_LOST = "every worker that took up the turn died; nobody knows how far this call came"
_STOPPED = "the turn was stopped because every worker that took it up died"


async def sealing(turn: Turn, records: Iterable[Record], takeovers: int, store: Store, clock: Clock) -> list[Record]:
    """The records that end a turn: what is known of everything that was under way, and why it goes no further."""
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
    message = f"the turn was taken over {takeovers} times without getting any further"
    return [*closing, stopped(turn, "no_forward_progress", message)]


async def _parts(records: Iterable[Record], store: Store, clock: Clock) -> list[EffectSettled]:
    """Parts of bodies that are left open: `once` steps are in doubt, and nobody waits for events any more."""
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
    """What is known of a call that has no outcome."""
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
        failure = Failure(code="no_forward_progress", message=_STOPPED, failure_class="invalid")
        return settlement(ref, call.request, Failed(failure=failure))
    return settlement(ref, call.request, NotRun(reason=_STOPPED))
