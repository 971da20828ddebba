"""Explanation of a session's state: status, current work or waits, and the action that unblocks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from perdure.effects.journal import EffectJournal
from perdure.errors import Code, Error
from perdure.ids import CallId, EffectId, Seq, SessionId, StreamId, TurnId, stream_names
from perdure.inbox.items import Input
from perdure.observe.ends import end_of
from perdure.observe.pending import PendingItem, answered, items
from perdure.session.fold import CODE, SessionState, cancel_of, fold_all
from perdure.store.permits import Permit
from perdure.store.protocol import Store
from perdure.store.shapes import Loaded, Placement, StreamInfo
from perdure.vocab.approvals import approved, did_not_happen
from perdure.vocab.messages import Reply
from perdure.vocab.outcomes import AwaitEventOutcome, CompletedToolCall, Done, LlmCallOutcome, ToolCallOutcome
from perdure.vocab.records import EffectSettled, EffectStarted, Row, SessionPaused, TurnEnded
from perdure.vocab.refs import EffectRef, PartRef, first_time, is_part, parse_ref

MAX_NAMED = 5

Status = Literal["idle", "queued", "running", "waiting", "paused", "failed"]
"""The state of a session. `queued`: work waits for a worker; `waiting`: a turn waits for something outside; `failed`:
the last turn was dead-lettered."""


@dataclass(frozen=True, slots=True)
class WaitInfo:
    """One piece of current work or one wait, with its start, its deadline and the ways to resolve it."""

    what: str
    since: int
    until: int | None = None
    effect: EffectId | None = None
    who: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer to "why is nothing happening?"."""

    status: Status
    summary: str
    turn: TurnId | None = None
    waiting: tuple[WaitInfo, ...] = ()
    queued: int = 0
    owner: str | None = None
    hint: str = ""


_ON_REQUEST = ("cancelled", "imported")
"""Reasons of stops that need no remedy."""

_SEND_AGAIN = "send the input again, with a new key"


async def explain(
    store: Store, stream: StreamId, *, now: int, places: Mapping[str, Placement] | None = None
) -> Explanation:
    """Explain a session's state from the store; `places` are the placements of the agents known here.

    Raises:
        Error: `session_unknown`.
    """
    info = await store.stream(stream)
    if info is None:
        raise Error(
            Code.SESSION_UNKNOWN,
            f"unknown session {stream_names(stream)[2]!r}",
            hint="perdure sessions list",
        )
    loaded = await store.load(stream, code=CODE)
    state = fold_all(loaded.snapshot.data if loaded.snapshot else None, loaded.rows)
    queued = sum(isinstance(row.item, Input) for row in loaded.inbox)
    if info.paused is not None:
        rows = await store.read(stream)
        open_rows = [row for row in rows if row.seq >= state.turn_seq] if state.open_turn else []
        waiting, _ = _waited_for(info, state, open_rows, await answered(store, open_rows))
        return _paused(info, state, queued, rows, waiting)
    if state.open_turn is None:
        queue = info.queue or (places or {}).get(info.agent, Placement()).queue
        stop = None if queued else await _stop_of_last_turn(store, stream, state)
        return _between_turns(info, stop, queued, loaded, await _slots(store, queue) if queued else "")
    rows = await store.read(stream, after=Seq(state.turn_seq - 1))
    wanted = _permits_wanted(stream, await store.permits())
    return _within_turn(info, state, rows, queued, wanted, await answered(store, rows))


async def _slots(store: Store, queue: str) -> str:
    """Return the holders of a queue's slots, if the queue is limited, or a note that no worker serves it."""
    name = f"queue:{queue}"
    held = [permit for permit in await store.permits() if permit.name == name and permit.granted and permit.alive]
    if held:
        return f"; of queue {queue!r} {len(held)} are driven now: {_holders(held)}"
    alive = [worker for worker in await store.workers() if worker.alive]
    served = any(worker.queues is None or queue in worker.queues for worker in alive)
    return f"; no worker serves queue {queue!r}" if alive and not served else ""


def _permits_wanted(stream: StreamId, permits: Sequence[Permit]) -> list[WaitInfo]:
    """Return the permits that a session is queued for, with their current holders."""
    found: list[WaitInfo] = []
    for permit in permits:
        if permit.granted or not permit.alive or not permit.holder.startswith(f"{stream}#"):
            continue
        held = [other for other in permits if other.name == permit.name and other.granted and other.alive]
        effect = EffectId(permit.holder.removeprefix(f"{stream}#").partition("#")[0])
        found.append(WaitInfo(f"a permit of {permit.name}, held by {_holders(held)}", permit.at, None, effect))
    return found


def _holders(held: Sequence[Permit]) -> str:
    named = [f"session {stream_names(StreamId(p.holder.partition('#')[0]))[2]} (worker {p.worker})" for p in held]
    more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
    return ", ".join(named[:MAX_NAMED]) + more or "no session"


def _noted(waiting: Sequence[WaitInfo], known: set[EffectId]) -> tuple[WaitInfo, ...]:
    """Mark the waits that are resolved but not yet resumed as answered."""
    return tuple(
        replace(item, what=f"{item.what} (answered)", who="") if item.effect in known else item for item in waiting
    )


def _paused(
    info: StreamInfo, state: SessionState, queued: int, rows: Sequence[Row], stopped: Sequence[WaitInfo]
) -> Explanation:
    assert info.paused is not None
    record = next((row.record for row in reversed(rows) if row.kind == "session_paused"), None)
    reason = record.reason if isinstance(record, SessionPaused) else ""
    summary = f"paused by {info.paused.by or 'an unnamed caller'}" + (f": {reason}" if reason else "")
    since = WaitInfo("an operator to resume it", info.paused.since or 0)
    turn = state.open_turn
    if cancel_of(state, turn) if turn else None:
        summary += "; its turn was cancelled and ends when it is resumed"
    return Explanation(
        "paused", summary + _behind(queued), turn, (since, *stopped), queued, info.owner, "session.resume()"
    )


def _behind(queued: int) -> str:
    if not queued:
        return ""
    return "; 1 input waits" if queued == 1 else f"; {queued} inputs wait"


def _between_turns(info: StreamInfo, stop: TurnEnded | None, queued: int, loaded: Loaded, slots: str) -> Explanation:
    if not queued and (failed := dead_lettered_turn(loaded.rows)) is not None:
        hint = "find out what kills its workers, then: session.retry(), or send something else"
        return Explanation("failed", failed.message, failed.turn, owner=info.owner, hint=hint)
    if stop is not None and stop.reason not in _ON_REQUEST:
        summary = f"the last turn was stopped: {stop.reason}" + (f": {stop.message}" if stop.message else "")
        hint = f"{stop.hint}; then {_SEND_AGAIN}" if stop.hint else _SEND_AGAIN
        return Explanation("idle", summary, stop.turn, owner=info.owner, hint=hint)
    if not queued:
        return Explanation("idle", "nothing is waiting", owner=info.owner, hint="send something")
    oldest = min(row.at for row in loaded.inbox)
    inputs = "1 input" if queued == 1 else f"{queued} inputs"
    waiting = (WaitInfo(f"{inputs} to be taken up", oldest),)
    alive = info.owner is not None and info.owner_alive
    hint = "" if alive else f"no worker serves it: start one that has agent {info.agent!r}"
    return Explanation("queued", f"{inputs} waiting for a worker{slots}", None, waiting, queued, info.owner, hint)


async def _stop_of_last_turn(store: Store, stream: StreamId, state: SessionState) -> TurnEnded | None:
    """Return the end of a session's last turn, if that turn was stopped."""
    found = await end_of(store, stream, state.stopped_turn) if state.stopped_turn else None
    return found.record if found is not None and isinstance(found.record, TurnEnded) else None


def dead_lettered_turn(rows: Sequence[Row]) -> TurnEnded | None:
    """Return the end of a session's last turn, if that turn was dead-lettered. No snapshot is newer than its start."""
    ends = (row.record for row in reversed(rows) if row.kind == "turn_ended")
    last = next(ends, None)
    return last if isinstance(last, TurnEnded) and last.reason == "no_forward_progress" else None


def _within_turn(
    info: StreamInfo,
    state: SessionState,
    rows: Sequence[Row],
    queued: int,
    wanted: Sequence[WaitInfo],
    known: set[EffectId],
) -> Explanation:
    turn = state.open_turn
    under_way, held = _waited_for(info, state, rows, known)
    waiting = (*under_way, *wanted)
    what = "; ".join(item.what for item in waiting) or "the next step"
    behind = f"{_behind(queued)} behind this turn" if queued else ""
    at_work = info.owner is not None and info.owner_alive
    if (info.parked or at_work) and held and all(item.kind == "client_call" for item in held.values()):
        hint = next(item.who for item in held.values())
        return Explanation("waiting", f"waiting for {what}{behind}", turn, waiting, queued, info.owner, hint)
    if info.parked:
        return Explanation(
            "waiting", f"waiting for {what}{behind}", state.open_turn, waiting, queued, info.owner, _who_can(waiting)
        )
    if info.owner is None or not info.owner_alive:
        hint = f"start a worker that has agent {info.agent!r}; it will carry on"
        summary = f"interrupted during {what}; the worker is gone{behind}"
        return Explanation("queued", summary, state.open_turn, waiting, queued, info.owner, hint)
    return Explanation("running", f"waiting for {what}{behind}", state.open_turn, waiting, queued, info.owner)


def _waited_for(
    info: StreamInfo, state: SessionState, rows: Sequence[Row], known: set[EffectId]
) -> tuple[tuple[WaitInfo, ...], dict[EffectId, PendingItem]]:
    """Return the current work of the open turn, and its unanswered external waits by effect."""
    if state.open_turn is None:
        return (), {}
    named = items(SessionId(stream_names(info.stream)[2]), state.open_turn, rows)
    held = {item.effect: item for item in named if item.effect not in known}
    told = (_with_pending(item, held.get(item.effect) if item.effect else None) for item in _under_way(rows))
    return _noted(tuple(told), known), held


def _with_pending(waiting: WaitInfo, held: PendingItem | None) -> WaitInfo:
    """Return a wait with the description, deadline and ways to resolve of its pending item, if it has one."""
    if held is None:
        return waiting
    what = held.what if held.kind in _IN_THEIR_WORDS else waiting.what
    return replace(waiting, what=what, until=held.until, who=held.who)


_IN_THEIR_WORDS = ("client_call", "question")


def _who_can(waiting: Sequence[WaitInfo]) -> str:
    ways = ("a person", "the client", "rt.approvals", "session.resolve")
    return next((item.who for way in ways for item in waiting if item.who.startswith(way)), "")


def _under_way(rows: Sequence[Row]) -> list[WaitInfo]:
    journal = EffectJournal()
    begun: dict[EffectId, Row] = {}
    reply: tuple[Row, Reply] | None = None
    answered: set[CallId] = set()
    for row in rows:
        record = row.record
        journal.fold(record)
        match record:
            case EffectStarted(id=effect):
                begun[effect] = row
                if reply and (again := _call_of(effect, reply[1])):
                    answered.discard(again)  # another attempt, or the pause before it
            case EffectSettled(outcome=LlmCallOutcome(reply=Reply() as said)):
                reply, answered = (row, said), set()
            case EffectSettled(outcome=ToolCallOutcome(launch=Done(result=CompletedToolCall(call_id=call)))):
                answered.add(call)
            case EffectSettled(id=effect, outcome=AwaitEventOutcome(resolution=told)) if reply and not is_part(effect):
                if approved(told) is None and not did_not_happen(told):
                    answered.update(filter(None, [_call_of(effect, reply[1])]))
            case _:
                pass
    names = {call.id: call.name for call in reply[1].calls} if reply else {}
    order = [call.id for call in reply[1].calls] if reply else []
    found: list[WaitInfo] = []
    unsettled = [(started, parse_ref(started.id)) for started in journal.unsettled()]
    in_bodies = {ref.index for _, ref in unsettled if isinstance(ref, PartRef)}
    in_inner = {(ref.index, ref.inside) for _, ref in unsettled if isinstance(ref, PartRef) and ref.inside}
    for started, ref in unsettled:
        if isinstance(ref, PartRef) and ref.kind == "step" and (ref.index, first_time(ref.name)) in in_inner:
            continue  # a step is described by the work inside it
        call = order[ref.index] if ref.index is not None and ref.index < len(order) else None
        if call in answered or (isinstance(ref, EffectRef) and not ref.tail and ref.index in in_bodies):
            continue  # a body is described by the work inside it
        tool = journal.tool_around(started.id) or (names.get(call) if call else None)
        what = _describe(started, ref, tool)
        found.append(WaitInfo(what, begun[started.id].at, started.due_at, started.id))
    answered.update(order[ref.index] for _, ref in unsettled if ref.index is not None and ref.index < len(order))
    if reply:
        found.extend(WaitInfo(f"tool {names[call]}", reply[0].at) for call in order if call not in answered)
    return found


def _call_of(effect: EffectId, reply: Reply) -> CallId | None:
    ref = parse_ref(effect)
    return reply.calls[ref.index].id if ref.index is not None and ref.index < len(reply.calls) else None


def _describe(started: EffectStarted, ref: EffectRef | PartRef, tool: str | None) -> str:
    if isinstance(ref, PartRef):
        return f"{ref.kind} {ref.name!r} of tool {tool or started.id}"
    attempt = ref.attempt
    match started.kind.value:
        case "await_event" if ref.tail == "approval":
            return f"approval of tool {tool or started.id}"
        case "await_event" if ref.tail == "doubt":
            return f"a person to settle the outcome of tool {tool or started.id}"
        case "await_event":
            return f"completion of tool {tool or started.id}"
        case "llm_call":
            return "the model's reply" if attempt == 1 else f"the model's reply (attempt {attempt})"
        case "sleep":
            return f"the pause before the next attempt of {tool or 'the model call'}"
        case _:
            return f"tool {tool or started.id}" + (f" (attempt {attempt})" if attempt > 1 else "")
