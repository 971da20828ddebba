"""The owned append. All checks run before the first change, so nothing needs a rollback."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from perdure.commit.plan import (
    AlreadyApplied,
    Apply,
    Plan,
    Receipt,
    Refuse,
    SetTimer,
    check_budget,
    check_use,
    inbox_gone,
    judge,
    key_taken,
    recall,
)
from perdure.ids import PromiseId
from perdure.store.memory.admissions import send
from perdure.store.memory.state import Stream, Tables
from perdure.vocab.promises import PromiseState, Resolution


def append(on: Tables, plan: Plan) -> Receipt:
    """Write a plan, or return its first receipt if it was written before.

    Raises:
        Error: the plan was refused. Nothing was written.
    """
    check_budget(plan)
    stream = on.streams.get(plan.stream)
    judgement = judge(plan, stream.state if stream else None)
    if isinstance(judgement, Refuse):
        raise judgement.error
    assert stream is not None  # judge refuses an unknown stream
    if isinstance(judgement, AlreadyApplied):
        return _receipt_again(on, plan, stream)
    _check(on, plan, stream)
    return _apply(on, plan, stream, judgement)


def _receipt_again(on: Tables, plan: Plan, stream: Stream) -> Receipt:
    rows, before = stream.written_by(plan.fence, plan.n)
    first, last = recall(plan, stream.state, rows, before)
    return Receipt(
        stream=plan.stream,
        fence=plan.fence,
        n=plan.n,
        first_seq=first,
        last_seq=last,
        missed=stream.admitted_between(plan.known_seq, first),
        resolved=_answers(on, plan.waits),
        replayed=True,
        sent=stream.outbox_rejections.get((plan.fence, plan.n), ()),
    )


def _check(on: Tables, plan: Plan, stream: Stream) -> None:
    """Run all checks before the first change: this store has no transaction to roll back."""
    taken = {key: row.kind for key, row in stream.keys.items()}
    for entry in plan.entries:
        if entry.key is not None:
            if entry.key in taken:
                raise key_taken(plan.stream, entry.key, taken[entry.key])
            taken[entry.key] = entry.kind
    for position, inbox_id in enumerate(plan.consume):
        if inbox_id not in stream.inbox or inbox_id in plan.consume[:position]:
            raise inbox_gone(plan, inbox_id)
    for key in plan.unless:
        if key in stream.keys:
            raise key_taken(plan.stream, key, stream.keys[key].kind)
    now, used = on.clock.wall_ms(), dict[PromiseId, PromiseState]()
    for promise in plan.uses:
        known = used.get(promise) or on.promises.get(promise)
        check_use(plan, promise, known, now)
        used[promise] = structs.replace(on.promises[promise], consumed_at=now)


def _apply(on: Tables, plan: Plan, stream: Stream, judgement: Apply) -> Receipt:
    resolved = _answers(on, plan.waits)
    missed = stream.admitted_between(plan.known_seq, judgement.first_seq)
    for entry in plan.entries:
        stream.write(entry, fence=plan.fence, n=plan.n)
    for inbox_id in plan.consume:
        stream.take_out(inbox_id)
    for timer in plan.timers:
        if isinstance(timer, SetTimer):
            stream.timers.setdefault(timer.name, timer.due_at)
        else:
            stream.timers.pop(timer.name, None)
    on.refer(stream, plan.blobs)
    on.unrefer(stream, plan.drops)
    if plan.prunes is not None:
        stream.prune(plan.prunes)
    if plan.snapshot is not None:
        stream.snapshot = plan.snapshot
    sent = tuple(send(on, new) for new in plan.outbox)
    if sent:
        stream.outbox_rejections[plan.fence, plan.n] = sent
    for promise in plan.uses:
        used = structs.replace(on.promises[promise], consumed_at=on.clock.wall_ms())
        on.promises[promise] = used
    for ask in plan.person_requests:
        asked = PromiseState(
            id=ask.promise, stream=stream.id, deadline_at=ask.deadline_at, request_kind=ask.kind, requested_at=ask.at
        )
        on.promises.setdefault(ask.promise, asked)
    _park(on, plan, stream, resolved)
    on.extend(plan.worker)
    on.counters.plans += 1
    on.committed()
    return Receipt(
        stream=plan.stream,
        fence=plan.fence,
        n=plan.n,
        first_seq=judgement.first_seq,
        last_seq=stream.last_seq,
        missed=missed,
        resolved=resolved,
        sent=sent,
        quiet=not (plan.active or stream.inbox),
    )


def _park(on: Tables, plan: Plan, stream: Stream, resolved: tuple[tuple[PromiseId, Resolution], ...]) -> None:
    """Update the stream's state, and park it unless one of its waits is already resolved.

    A stream with a resolved wait stays owned and active, so that a crash cannot lose the resolution.
    """
    stream.n = plan.n
    if plan.recovers:
        stream.stuck_seq = stream.last_seq
    stream.updated_at = stream.served_at = on.clock.wall_ms()
    stream.active = plan.active or bool(resolved)
    stream.parked = plan.parked and not resolved
    if not resolved:
        stream.waits.update(plan.waits)
        if plan.lease == "release":
            stream.owner = None


def _answers(on: Tables, waits: Iterable[PromiseId]) -> tuple[tuple[PromiseId, Resolution], ...]:
    states = (on.promises.get(wait) for wait in waits)
    return tuple((s.id, s.resolution) for s in states if s is not None and s.resolution is not None)
