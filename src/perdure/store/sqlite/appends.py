"""The owned append: one plan inside one transaction. A refusal is raised, and the caller rolls back."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.codec import decode
from perdure.commit.plan import (
    AlreadyApplied,
    OutboxResult,
    Plan,
    Receipt,
    Refuse,
    SetTimer,
    StreamState,
    check_use,
    inbox_gone,
    judge,
    key_taken,
    lease_lost,
    recall,
)
from perdure.ids import PromiseId, Seq, stream_names
from perdure.store.sqlite.admissions import send
from perdure.store.sqlite.claims import extend
from perdure.store.sqlite.log import find_row, log_rows, write_log
from perdure.store.sqlite.promises import read_promise
from perdure.store.sqlite.streams import refer, unrefer
from perdure.store.sqlite.tx import Statements, Tx
from perdure.vocab.promises import Resolution
from perdure.vocab.records import Row

Answers = tuple[tuple[PromiseId, Resolution], ...]


def checks_first(plan: Plan) -> bool:
    """Return whether a plan can only be refused before its first write: no log keys, and no rows shared with others."""
    if plan.consume or plan.waits or plan.outbox or plan.blobs or plan.is_rare:
        return False
    return not [True for entry in plan.entries if entry.key is not None]


def append(tx: Tx, plan: Plan) -> Receipt:
    """Write a plan, or return its first receipt if it was written before."""
    found = tx.one("stream_state", (plan.stream,))
    if found is None:
        raise lease_lost(plan.stream)
    stream, state, head = found[0], StreamState(*found[1:-1]), found[-1]
    judgement = judge(plan, state)
    if isinstance(judgement, Refuse):
        raise judgement.error
    if isinstance(judgement, AlreadyApplied):
        return _receipt_again(tx, plan, stream, state)
    first = judgement.first_seq
    head = write_log(tx, (plan.stream, stream), (state.last_seq, head), plan.entries, by=(plan.fence, plan.n))
    _side_effects(tx, plan, stream)
    sent = _send(tx, plan, stream) if plan.outbox else ()
    resolved = _answers(tx, plan.waits) if plan.waits else ()
    last = Seq(first + len(plan.entries) - 1)
    _move(tx, plan, stream, state, (last, head), parked=not resolved)
    if plan.recovers:
        tx.run("stream_still_stuck", (last, stream))
    extend(tx, plan.worker)
    tx.plans += 1
    missed = _missed(tx, plan, stream, first)
    quiet = not plan.active and tx.one("inbox_some", (stream,)) is None
    return Receipt(plan.stream, plan.fence, plan.n, first, last, missed, resolved, sent=sent, quiet=quiet)


def _side_effects(tx: Tx, plan: Plan, stream: int) -> None:
    for inbox_id in plan.consume:
        if tx.run("inbox_consume", (inbox_id, stream)).rowcount != 1:
            raise inbox_gone(plan, inbox_id)
    for timer in plan.timers:
        if isinstance(timer, SetTimer):
            tx.run("timer_set", (stream, timer.name, timer.due_at))
        else:
            tx.run("timer_clear", (stream, timer.name))
    refer(tx, stream, plan.blobs)
    unrefer(tx, stream, plan.drops)
    if plan.snapshot is not None:
        tx.run("snapshot_put", (stream, plan.snapshot.seq, plan.snapshot.code, plan.snapshot.data))
    if plan.concerns_people:
        _ask_and_use(tx, plan, stream)
    if plan.prunes is not None:
        for seq in plan.prunes.seqs:
            tx.run("log_prune", (stream, seq))
        for key in plan.prunes.source_keys:
            tx.run("admission_prune", (stream, key))


def _send(tx: Tx, plan: Plan, stream: int) -> tuple[OutboxResult, ...]:
    """Deliver the outbox of a plan. Rejections are stored, so that a repeated plan returns the same results."""
    sent = tuple(send(tx, new) for new in plan.outbox)
    for place, one in enumerate(sent):
        if one.verdict != "accepted":
            tx.run("outbox_rejection_insert", (stream, plan.fence, plan.n, place, one.verdict, one.because))
    return sent


def _sent_before(tx: Tx, plan: Plan, stream: int) -> tuple[OutboxResult, ...]:
    noted = {
        place: OutboxResult(*rest) for place, *rest in tx.all("outbox_rejections_read", (stream, plan.fence, plan.n))
    }
    return tuple(noted.get(place, OutboxResult("accepted")) for place in range(len(plan.outbox)))


def _ask_and_use(tx: Tx, plan: Plan, stream: int) -> None:
    for key in plan.unless:
        if (taken := find_row(tx, plan.stream, key)) is not None:
            raise key_taken(plan.stream, key, taken.kind)
    now = tx.clock.wall_ms()
    for promise in plan.uses:
        check_use(plan, promise, read_promise(tx, promise), now)
        tx.run("promise_use", (now, promise))
    tenant = stream_names(plan.stream)[0]
    for ask in plan.person_requests:
        tx.run("promise_ask", (ask.promise, stream, ask.deadline_at, ask.kind, ask.at, tenant))


def _move(tx: Tx, plan: Plan, stream: int, state: StreamState, end: tuple[Seq, bytes], *, parked: bool) -> None:
    """Update the stream's row, and park it unless one of its waits is already resolved.

    A stream with a resolved wait stays owned and active, so that a crash cannot lose the resolution.
    """
    if parked:
        for wait in plan.waits:
            tx.run("wait_insert", (wait, stream))
    owner = None if parked and plan.lease == "release" else plan.worker
    format = max([state.format, *[entry.version for entry in plan.entries]])
    active, waits = plan.active or not parked, plan.parked and parked
    now = tx.clock.wall_ms()
    tx.run("stream_advance", (*end, plan.n, owner, active, waits, format, now, now, stream))


def _receipt_again(tx: Tx, plan: Plan, stream: int, state: StreamState) -> Receipt:
    rows = log_rows(plan.stream, tx.all("log_of_append", (stream, plan.fence, plan.n)))
    (before,) = tx.one("log_before_append", (stream, plan.fence, plan.n))
    first, last = recall(plan, state, rows, before)
    missed = _missed(tx, plan, stream, first)
    resolved, sent = _answers(tx, plan.waits), _sent_before(tx, plan, stream) if plan.outbox else ()
    return Receipt(plan.stream, plan.fence, plan.n, first, last, missed, resolved, replayed=True, sent=sent)


def _missed(tx: Tx, plan: Plan, stream: int, first: Seq) -> tuple[Row, ...]:
    if plan.known_seq + plan.ahead + 1 >= first:  # seqs are dense: no admitted row in between
        return ()
    return log_rows(plan.stream, tx.all("log_admitted_between", (stream, plan.known_seq, first)))


def _answers(tx: Statements, waits: Iterable[PromiseId]) -> Answers:
    found = ((wait, tx.one("promise_read", (wait,))) for wait in waits)
    return tuple((wait, decode(row[2], Resolution)) for wait, row in found if row is not None and row[2] is not None)
