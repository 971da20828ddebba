"""What anybody may do to a session from outside: interrupt its turn, cancel it, pause it, take back what waits or what
was granted, delete it.

Each is one transaction, decided on what was read before; if the session has moved on meanwhile, it is read again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from perdure.commit.changes import MODEL_SET, Intervention, Pause
from perdure.commit.plan import Entry
from perdure.errors import Code, Error
from perdure.ids import InputId, SessionId, TurnId, files_stream, tasks_stream, without_keys
from perdure.inbox.admit import NOBODY, Admission, Delivery, delivery, withdrawn
from perdure.inbox.items import Input, Wake
from perdure.observe.ends import end_of, has_turn
from perdure.processes.visibility import edge_tags
from perdure.runtime.clock import uuid7
from perdure.runtime.shared import TurnResult
from perdure.runtime.turns.subagents import parent_of, told_of_deletion
from perdure.runtime.turns.waiting import Waiting, interrupting
from perdure.session.fold import CODE, SessionState, fold_all
from perdure.store.protocol import Store
from perdure.store.shapes import InboxRow, Loaded
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
    from perdure.runtime.sessions.session import Session

CancelOutcome = Literal["requested", "already_requested", "completion_won", "unknown"]
InputOutcome = Literal["cancelled", "already_claimed", "already_cancelled", "completed", "not_found"]


@dataclass(frozen=True, slots=True)
class Queued:
    """An input that waits: nobody has taken it yet."""

    input: InputId
    turn: TurnId
    parts: tuple[InputPart, ...]
    mode: InputMode
    source: str
    key: str
    merge_key: str
    since: int


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """What became of a request to take inputs back, and which ones are."""

    outcome: InputOutcome
    inputs: tuple[InputId, ...] = ()


# --- what waits


def _inputs(rows: tuple[InboxRow, ...]) -> list[tuple[InboxRow, Input]]:
    found = [(row, row.item) for row in rows]
    return [(row, item) for row, item in found if isinstance(item, Input)]


async def queue(session: Session) -> tuple[Queued, ...]:
    """The inputs that wait, in the order in which they came."""
    rows = await session.runtime.store.inbox(session.stream)
    return tuple(
        Queued(
            item.input, item.turn, item.parts, item.mode, item.source, item.key, item.merge_key, row.at
        )
        for row, item in _inputs(rows)
    )  # fmt: skip


async def replace_queued(session: Session, new: Delivery, item: Input) -> Admission | None:
    """Send an input in place of the one with the same merge key that waits, if one does. What was cancelled is left
    alone: its sender was told that it ends, so another's answer is not its own."""
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
            delivery=new,
            notes=tuple(Entry.of(withdrawn(old, origin=item.source, by=item), at=new.at) for _, old in same),
            withdraw=tuple(row.id for row, _ in same),
            known_inbox=max((row.id for row in rows), default=0),
        )
        try:
            return (await store.intervene(intervention)).admission
        except Error as problem:
            if problem.code is not Code.COMMIT_CONFLICT:
                raise


async def cancel_input(session: Session, input: InputId, *, and_behind: bool, origin: str, reason: str) -> Withdrawal:
    """Take back an input that waits, and with `and_behind` whatever came after it: all of them or none."""
    store = session.runtime.store
    while True:
        rows = await store.inbox(session.stream)
        inputs = _inputs(rows)
        at = next((place for place, (_, item) in enumerate(inputs) if item.input == input), None)
        if at is None:
            return Withdrawal(await _past(store, session.stream, input))
        gone = inputs[at:] if and_behind else inputs[at : at + 1]
        parent = await parent_of(store, session.stream)
        if parent is not None and any(item.turn == parent.turn for _, item in gone):
            # A parent waits for that turn: it is told by the turn's end, and by nothing else.
            await cancel(session, parent.turn, reason=reason, origin=origin)
            gone = [one for one in gone if one[1].turn != parent.turn]
            if not gone:
                return Withdrawal("cancelled", (input,))
        now = session.runtime.clock.wall_ms()
        intervention = Intervention(
            session.stream,
            notes=tuple(Entry.of(withdrawn(item, origin=origin, reason=reason), at=now) for _, item in gone),
            withdraw=tuple(row.id for row, _ in gone),
            known_inbox=max(row.id for row in rows) if and_behind else None,
        )
        try:
            await store.intervene(intervention)
        except Error as problem:
            if problem.code is not Code.COMMIT_CONFLICT:
                raise
        else:
            await session.runtime.tell(session.stream)
            return Withdrawal("cancelled", tuple(item.input for _, item in gone))


async def _past(store: Store, stream: StreamId, input: InputId) -> InputOutcome:
    """What became of an input that does not wait."""
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


async def whereabouts(session: Session, input: InputId) -> TurnResult | tuple[TurnId, InputId] | None:
    """Who answers an input that opened no turn: another turn, the input that replaced it, or nobody ever."""
    found = await session.runtime.store.find(session.stream, input_key(input)) if input else None
    match found.record if found else None:
        case InputAdmitted(turn=turn):
            return turn, NOBODY
        case InputCancelled(replaced_by=other, answered_in=turn) if other:
            return turn, other
        case InputCancelled(turn=turn, reason=reason):
            message = reason or "the input was cancelled before a turn took it"
            return TurnResult(turn, "stopped", "", "cancelled", message)
        case _:
            return None


# --- turns


async def loaded(session: Session) -> tuple[SessionState, Loaded]:
    """The session as it is now."""
    found = await session.runtime.store.load(session.stream, code=CODE)
    return fold_all(found.snapshot.data if found.snapshot else None, found.rows), found


async def existing(session: Session) -> tuple[SessionState, Loaded]:
    """The session as it is now.

    Raises:
        Error: `session_unknown` if there is not even a first record.
    """
    state, found = await loaded(session)
    if not state.seq:
        raise session_unknown(session.id)
    return state, found


def session_unknown(id: SessionId) -> Error:
    """The refusal to tell anything of a session that is not there."""
    return Error(
        Code.SESSION_UNKNOWN,
        f"there is no session {without_keys(id)!r}",
        hint="list them with `perdure sessions list`, or create it by sending something with agent=",
    )


async def has(session: Session, turn: TurnId) -> bool:
    """Whether the session has this turn: waiting in the inbox, or begun.

    Raises:
        Error: `session_unknown`.
    """
    store = session.runtime.store
    if await store.stream(session.stream) is None:
        raise session_unknown(session.id)
    return await has_turn(store, session.stream, turn)


async def turns_to_come(session: Session) -> list[TurnId]:
    """The turn that runs, and those that inputs wait for, in line.

    What runs may not be durable yet: then it is the first of those that wait.

    Raises:
        Error: `session_unknown`.
    """
    state, found = await existing(session)
    waiting = Waiting()
    waiting.see(found.inbox)
    running = [state.open_turn] if state.open_turn else []
    return running + [item.turn for _, item in waiting.line() if item.turn not in running]


async def current_turn(session: Session) -> TurnId | None:
    """The turn that runs, or the next in line.

    Raises:
        Error: `session_unknown`.
    """
    return next(iter(await turns_to_come(session)), None)


async def interrupt(session: Session, new: Delivery, item: Input) -> Admission | None:
    """Send an input and end the turn that runs, in one write. A turn that begins meanwhile is ended by its worker."""
    store = session.runtime.store
    if await store.stream(session.stream) is None:
        return await store.admit(new)
    state, _ = await loaded(session)
    turn = state.open_turn
    notes = (Entry.of(interrupting(item, turn), at=new.at),) if turn is not None else ()
    return (await store.intervene(Intervention(session.stream, delivery=new, notes=notes))).admission


async def cancel(session: Session, turn: TurnId, *, reason: str, origin: str) -> CancelOutcome:
    """Race for the gate of a turn. The request and what wakes its session are one write."""
    store, now = session.runtime.store, session.runtime.clock.wall_ms()
    gate = await store.find(session.stream, gate_key(turn))
    if gate is not None:
        return _told(gate, new=False)
    request = CancelRequested(turn=turn, request=uuid7(now), origin=origin, reason=reason)
    name = f"cancel:{turn}"
    wake = delivery(session.stream, name, Wake(reason=name), at=now)
    done = await store.intervene(Intervention(session.stream, delivery=wake, notes=(Entry.of(request, at=now),)))
    if done.done:
        noted = done.notes[0]
        await session.runtime.tell(session.stream)
        return _told(noted.row, new=noted.new)
    gate = await store.find(session.stream, gate_key(turn))  # somebody asked for the same in this moment
    return _told(gate, new=False) if gate is not None else "unknown"


def _told(gate: Row, *, new: bool) -> CancelOutcome:
    if gate.kind != "cancel_requested":
        return "completion_won"
    return "requested" if new else "already_requested"


# --- pause and resume


async def pause(session: Session, *, by: str, reason: str) -> bool:
    """Begin nothing more. False if the session was paused already."""
    now = session.runtime.clock.wall_ms()
    note = Entry.of(SessionPaused(origin=by, reason=reason), at=now)
    return await _set_pause(session, Intervention(session.stream, notes=(note,), pause=Pause(by, now)))


async def resume(session: Session, *, by: str) -> bool:
    """Go on: whatever waits makes the session claimable, and a wake does if a turn stopped in the middle."""
    now = session.runtime.clock.wall_ms()
    name = f"resume:{uuid7(now)}"
    wake = delivery(session.stream, name, Wake(reason="resumed"), at=now)
    note = Entry.of(SessionResumed(origin=by), at=now)
    return await _set_pause(session, Intervention(session.stream, wake, (note,), pause=Pause(by, None)))


async def _set_pause(session: Session, intervention: Intervention) -> bool:
    done = (await session.runtime.store.intervene(intervention)).done
    await session.runtime.tell(session.stream)
    return done


async def set_model(session: Session, model: str) -> None:
    """Let a model answer whatever comes next; its owner finds a wake, and looks at the log before it begins a turn."""
    now = session.runtime.clock.wall_ms()
    wake = delivery(session.stream, f"model:{uuid7(now)}", Wake(reason=MODEL_SET), at=now)
    note = Entry.of(ModelSet(model=model), at=now)
    await session.runtime.store.intervene(Intervention(session.stream, wake, (note,)))
    await session.runtime.tell(session.stream)


# --- taking away


async def revoke(session: Session, prefix: str, *, by: str, via: str) -> None:
    """Take back the grant whose id begins like that."""
    state, _ = await existing(session)
    found = [made.grant for made in state.grants if made.grant.startswith(prefix) and prefix]
    if len(found) > 1:
        raise Error(Code.INVALID_ID, f"{without_keys(prefix)!r} could be several grants", hint="type more of the id")
    if not found:
        what = f"session {session.id!r} has no grant {without_keys(prefix)!r}"
        raise Error(Code.APPROVAL_UNKNOWN, what, hint="session.grants()")
    rt = session.runtime
    await rt.check_readable(session.stream)
    revoked = GrantRevoked(grant=found[0], by=by, via=via)
    await rt.store.annotate(session.stream, Entry.of(revoked, at=rt.clock.wall_ms()))
    await rt.tell(session.stream)


async def delete(session: Session) -> bool:
    """Remove the session and what stands beside it; a parent that waits for it is told in the same write."""
    rt, stream = session.runtime, session.stream
    beside = (files_stream(session.tenant, session.id), tasks_stream(session.tenant, session.id))
    parent = await parent_of(rt.store, stream)
    edges = edge_tags(SessionScope(session_id=session.id))
    told = (told_of_deletion(stream, parent, now=rt.clock.wall_ms()),) if parent is not None else ()
    deleted = await rt.store.delete(stream, beside=beside, edges=edges, sends=told)
    if deleted and parent is not None:
        rt.nudge(parent.stream)
        await rt.tell(parent.stream)
    if rt.worker:
        rt.worker.serving.forget(stream)
    rt.revealed.pop(stream, None)
    rt.hub.stir(stream)
    return deleted
