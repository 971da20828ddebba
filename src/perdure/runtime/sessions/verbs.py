"""Control of a session from outside its lease: interrupt, cancel, pause, withdraw inputs, revoke approvals, delete.

Each is one transaction, based on an earlier read. If the session has changed since, it is read again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from perdure.commit.changes import MODEL_SET, Audit, Intervention, Pause
from perdure.commit.plan import Entry
from perdure.errors import Code, Error
from perdure.ids import InputId, SessionId, TurnId, files_stream, tasks_stream, without_keys
from perdure.inbox.admit import NO_INPUT, Admission, Delivery, Room, delivery, withdrawn
from perdure.inbox.items import Input, Wake
from perdure.observe.ends import end_of, has_turn
from perdure.processes.visibility import edge_tags
from perdure.runtime.audit import Actor, act
from perdure.runtime.clock import uuid7
from perdure.runtime.shared import TurnResult
from perdure.runtime.turns.subagents import parent_of, told_of_deletion
from perdure.runtime.turns.waiting import InboxView, interrupting
from perdure.session.fold import CODE, SessionState, fold_all
from perdure.store.protocol import Store
from perdure.store.shapes import InboxRow, Loaded
from perdure.vocab.audit import ActRecorded
from perdure.vocab.log_keys import gate_key, input_key
from perdure.vocab.messages import InputPart
from perdure.vocab.processes import SessionScope
from perdure.vocab.records import (
    CancelRequested,
    GrantRevoked,
    InputAdmitted,
    InputCancelled,
    InputMode,
    ModelSet,
    Row,
    SessionPaused,
    SessionResumed,
)

if TYPE_CHECKING:
    from perdure.ids import StreamId
    from perdure.runtime.sessions.ref import SessionRef

CancelOutcome = Literal["requested", "already_requested", "completion_won", "unknown"]
InputOutcome = Literal["cancelled", "already_claimed", "already_cancelled", "completed", "not_found"]


@dataclass(frozen=True, slots=True)
class Queued:
    """An input that no turn has taken."""

    input: InputId
    turn: TurnId
    parts: tuple[InputPart, ...]
    mode: InputMode
    sent_by: str
    key: str
    replace_key: str
    since: int


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """The outcome of a request to withdraw inputs, and the withdrawn inputs."""

    outcome: InputOutcome
    inputs: tuple[InputId, ...] = ()


async def audited(session: SessionRef, *acts: ActRecorded) -> Audit:
    """Return the audit entries of acts on a session, for their transaction."""
    return await session.runtime.audit_log.notes(session.tenant, *acts)


# --- queued inputs


def _inputs(rows: tuple[InboxRow, ...]) -> list[tuple[InboxRow, Input]]:
    found = [(row, row.item) for row in rows]
    return [(row, item) for row, item in found if isinstance(item, Input)]


async def queue(session: SessionRef) -> tuple[Queued, ...]:
    """Return the queued inputs, oldest first."""
    rows = await session.runtime.store.inbox(session.stream)
    return tuple(
        Queued(
            item.input, item.turn, item.parts, item.mode, item.source, item.key, item.merge_key, row.at
        )
        for row, item in _inputs(rows)
    )  # fmt: skip


async def sent(session: SessionRef, new: Delivery, done: ActRecorded) -> Admission | None:
    """Send an input in one write with the audit entry of the act that sent it."""
    audit = await audited(session, done)
    return (await session.runtime.store.intervene(Intervention(session.stream, delivery=new, audit=audit))).admission


async def replace_queued(session: SessionRef, new: Delivery, item: Input) -> Admission | None:
    """Send an input in place of the queued one with the same replace key, if there is one.

    A cancelled input is not replaced, so that its sender does not receive the answer to another input.
    """
    store = session.runtime.store
    if await store.stream(session.stream) is None:
        return await store.admit(new)
    while True:
        rows = await store.inbox(session.stream)
        same = [
            (row, old)
            for row, old in _inputs(rows)
            if (old.merge_key, old.mode) == (item.merge_key, item.mode)
            and await store.find(session.stream, gate_key(old.turn)) is None
        ]
        intervention = Intervention(
            session.stream,
            delivery=replace(new, room=_with_room_of(new.room, same)),
            notes=tuple(Entry.of(withdrawn(old, origin=item.source, by=item), at=new.at) for _, old in same),
            withdraw=tuple(row.id for row, _ in same),
            known_inbox=max((row.id for row in rows), default=0),
        )
        try:
            return (await store.intervene(intervention)).admission
        except Error as problem:
            if problem.code is not Code.COMMIT_CONFLICT:
                raise


def _with_room_of(room: Room | None, gone: list[tuple[InboxRow, Input]]) -> Room | None:
    """Return the room of a queue for an input that replaces others in the same write."""
    if room is None:
        return None
    return Room(room.inputs + len(gone), room.bytes + sum(len(row.data) for row, _ in gone))


async def cancel_input(
    session: SessionRef, input: InputId, *, include_later: bool, who: Actor, reason: str
) -> Withdrawal:
    """Withdraw a queued input, and with `include_later` all later ones: all or none."""
    store = session.runtime.store
    while True:
        rows = await store.inbox(session.stream)
        inputs = _inputs(rows)
        at = next((place for place, (_, item) in enumerate(inputs) if item.input == input), None)
        if at is None:
            return Withdrawal(await _past(store, session.stream, input))
        gone = inputs[at:] if include_later else inputs[at : at + 1]
        parent = await parent_of(store, session.stream)
        if parent is not None and any(item.turn == parent.turn for _, item in gone):
            # A parent waits for that turn, and only the turn's end notifies it.
            await cancel(session, parent.turn, reason=reason, who=who)
            gone = [one for one in gone if one[1].turn != parent.turn]
            if not gone:
                return Withdrawal("cancelled", (input,))
        now, origin = session.runtime.clock.wall_ms(), who.by or who.via
        done = [act("input_cancelled", who, session=session.id, target=item.input) for _, item in gone]
        intervention = Intervention(
            session.stream,
            audit=await audited(session, *done),
            notes=tuple(Entry.of(withdrawn(item, origin=origin, reason=reason), at=now) for _, item in gone),
            withdraw=tuple(row.id for row, _ in gone),
            known_inbox=max(row.id for row in rows) if include_later else None,
        )
        try:
            await store.intervene(intervention)
        except Error as problem:
            if problem.code is not Code.COMMIT_CONFLICT:
                raise
        else:
            await session.runtime.notify_stream(session.stream)
            return Withdrawal("cancelled", tuple(item.input for _, item in gone))


async def _past(store: Store, stream: StreamId, input: InputId) -> InputOutcome:
    """Return the outcome of an input that is not queued."""
    found = await store.find(stream, input_key(input))
    record = found.record if found else None
    if record is None:
        records = (row.record for row in await store.read(stream) if row.kind == "input_admitted")
        record = next((one for one in records if isinstance(one, InputAdmitted) and one.input == input), None)
    match record:
        case InputCancelled():
            return "already_cancelled"
        case InputAdmitted(turn=turn):
            return "completed" if await end_of(store, stream, turn) else "already_claimed"
        case _:
            return "not_found"


async def input_status(session: SessionRef, input: InputId) -> TurnResult | tuple[TurnId, InputId] | None:
    """Return the turn and input that answer an input which opened no turn, its result if it was cancelled, or None."""
    found = await session.runtime.store.find(session.stream, input_key(input)) if input else None
    match found.record if found else None:
        case InputAdmitted(turn=turn):
            return turn, NO_INPUT
        case InputCancelled(replaced_by=other, answered_in=turn) if other:
            return turn, other
        case InputCancelled(turn=turn, reason=reason):
            message = reason or "the input was cancelled before a turn took it"
            return TurnResult(turn, "stopped", "", "cancelled", message)
        case _:
            return None


# --- turns


async def loaded(session: SessionRef) -> tuple[SessionState, Loaded]:
    """Return the current state of the session."""
    found = await session.runtime.store.load(session.stream, code=CODE)
    return fold_all(found.snapshot.data if found.snapshot else None, found.rows), found


async def existing(session: SessionRef) -> tuple[SessionState, Loaded]:
    """Return the current state of the session.

    Raises:
        Error: `session_unknown` if it has no record.
    """
    state, found = await loaded(session)
    if not state.seq:
        raise session_unknown(session.id)
    return state, found


def session_unknown(id: SessionId) -> Error:
    """Return the error for an unknown session."""
    return Error(
        Code.SESSION_UNKNOWN,
        f"unknown session {without_keys(id)!r}",
        hint="perdure sessions list",
    )


async def has(session: SessionRef, turn: TurnId) -> bool:
    """Return whether the session has this turn, open, ended or queued.

    Raises:
        Error: `session_unknown`.
    """
    store = session.runtime.store
    if await store.stream(session.stream) is None:
        raise session_unknown(session.id)
    return await has_turn(store, session.stream, turn)


async def turns_to_come(session: SessionRef) -> list[TurnId]:
    """Return the running turn and the turns of queued inputs, in order.

    A running turn that is not durable yet is the first queued one.

    Raises:
        Error: `session_unknown`.
    """
    state, found = await existing(session)
    waiting = InboxView()
    waiting.see(found.inbox)
    running = [state.open_turn] if state.open_turn else []
    return running + [item.turn for _, item in waiting.line() if item.turn not in running]


async def current_turn(session: SessionRef) -> TurnId | None:
    """Return the running turn, or the next queued one."""
    return next(iter(await turns_to_come(session)), None)


async def interrupt(session: SessionRef, new: Delivery, item: Input) -> Admission | None:
    """Send an input and cancel the running turn, in one write. A turn that begins meanwhile is
    cancelled by its worker."""
    store = session.runtime.store
    if await store.stream(session.stream) is None:
        return await store.admit(new)
    state, _ = await loaded(session)
    turn = state.open_turn
    notes = (Entry.of(interrupting(item, turn), at=new.at),) if turn is not None else ()
    return (await store.intervene(Intervention(session.stream, delivery=new, notes=notes))).admission


async def cancel(session: SessionRef, turn: TurnId, *, reason: str, who: Actor) -> CancelOutcome:
    """Request the end of a turn, unless its completion wins. The request and the wake of the session are one write."""
    store, now = session.runtime.store, session.runtime.clock.wall_ms()
    gate = await store.find(session.stream, gate_key(turn))
    if gate is not None:
        return _told(gate, new=False)
    request = CancelRequested(turn=turn, request=uuid7(now), origin=who.by or who.via, reason=reason)
    name = f"cancel:{turn}"
    wake = delivery(session.stream, name, Wake(reason=name), at=now)
    audit = await audited(session, act("turn_cancelled", who, session=session.id, target=turn))
    done = await store.intervene(
        Intervention(session.stream, delivery=wake, notes=(Entry.of(request, at=now),), audit=audit)
    )
    if done.done:
        noted = done.notes[0]
        await session.runtime.notify_stream(session.stream)
        return _told(noted.row, new=noted.new)
    gate = await store.find(session.stream, gate_key(turn))  # a concurrent request won
    return _told(gate, new=False) if gate is not None else "unknown"


def _told(gate: Row, *, new: bool) -> CancelOutcome:
    if gate.kind != "cancel_requested":
        return "completion_won"
    return "requested" if new else "already_requested"


# --- pause and resume


async def pause(session: SessionRef, *, who: Actor, reason: str) -> bool:
    """Pause the session. False if it was paused already."""
    now = session.runtime.clock.wall_ms()
    note = Entry.of(SessionPaused(origin=who.by, reason=reason), at=now)
    audit = await audited(session, act("session_paused", who, session=session.id))
    return await _set_pause(session, Intervention(session.stream, notes=(note,), pause=Pause(who.by, now), audit=audit))


async def resume(session: SessionRef, *, who: Actor) -> bool:
    """Resume the session. A wake makes it claimable even if only an interrupted turn is left. False if it was not
    paused."""
    now = session.runtime.clock.wall_ms()
    name = f"resume:{uuid7(now)}"
    wake = delivery(session.stream, name, Wake(reason="resumed"), at=now)
    note = Entry.of(SessionResumed(origin=who.by), at=now)
    audit = await audited(session, act("session_resumed", who, session=session.id))
    return await _set_pause(
        session, Intervention(session.stream, wake, (note,), pause=Pause(who.by, None), audit=audit)
    )


async def _set_pause(session: SessionRef, intervention: Intervention) -> bool:
    done = (await session.runtime.store.intervene(intervention)).done
    await session.runtime.notify_stream(session.stream)
    return done


async def set_model(session: SessionRef, model: str, who: Actor) -> None:
    """Set the model of later turns. The wake makes the owner read the log before it begins the next turn."""
    now = session.runtime.clock.wall_ms()
    wake = delivery(session.stream, f"model:{uuid7(now)}", Wake(reason=MODEL_SET), at=now)
    note = Entry.of(ModelSet(model=model), at=now)
    audit = await audited(session, act("model_set", who, session=session.id, target=model))
    await session.runtime.store.intervene(Intervention(session.stream, wake, (note,), audit=audit))
    await session.runtime.notify_stream(session.stream)


# --- removal


async def revoke(session: SessionRef, grant: str, *, who: Actor) -> None:
    """Revoke the approval with this id."""
    state, _ = await existing(session)
    found = [made.grant for made in state.grants if made.grant == grant]
    if not found:
        what = f"session {session.id!r} has no grant {without_keys(grant)!r}"
        raise Error(Code.APPROVAL_UNKNOWN, what, hint="session.grants()")
    rt = session.runtime
    await rt.check_readable(session.stream)
    revoked = Entry.of(GrantRevoked(grant=found[0], by=who.by, via=who.via), at=rt.clock.wall_ms())
    audit = await audited(session, act("grant_revoked", who, session=session.id, target=grant))
    await rt.store.intervene(Intervention(session.stream, notes=(revoked,), audit=audit))
    await rt.notify_stream(session.stream)


async def delete(session: SessionRef, who: Actor) -> bool:
    """Delete the session and the streams beside it. A waiting parent is notified in the same write."""
    rt, stream = session.runtime, session.stream
    beside = (files_stream(session.tenant, session.id), tasks_stream(session.tenant, session.id))
    parent = await parent_of(rt.store, stream)
    edges = edge_tags(SessionScope(session_id=session.id))
    told = (told_of_deletion(stream, parent, now=rt.clock.wall_ms()),) if parent is not None else ()
    audit = await audited(session, act("session_deleted", who, session=session.id))
    deleted = await rt.store.delete(stream, beside=beside, edges=edges, outbox=told, audit=audit)
    if deleted and parent is not None:
        rt.notify(parent.stream)
        await rt.notify_stream(parent.stream)
    if rt.worker:
        rt.worker.stream_pool.forget(stream)
    rt.seen_secrets.forget(stream)
    rt.hub.notify(stream)
    return deleted
