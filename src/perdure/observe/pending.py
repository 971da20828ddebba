"""Open external waits of a session: approvals, questions, client results, completions, events, timers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from perdure.codec import Json
from perdure.effects.journal import EffectJournal
from perdure.errors import Code, Error
from perdure.ids import CallId, EffectId, PromiseId, Seq, SessionId, StreamId, TurnId, stream_names
from perdure.observe.command_lines import command_line
from perdure.session.fold import CODE, fold_all
from perdure.store.protocol import Store
from perdure.vocab.effects import AwaitEvent, EffectKind, PreparedToolCall
from perdure.vocab.messages import Reply, ToolCall
from perdure.vocab.outcomes import Done, LlmCallOutcome, Pending, ToolCallOutcome
from perdure.vocab.promises import ClientResult, DoubtVerdict, ToolApproval, UserAnswer
from perdure.vocab.questions import Question, questions_of
from perdure.vocab.records import EffectSettled, EffectStarted, OutcomeArrivedLate, Row
from perdure.vocab.refs import EffectRef, PartRef, parse_ref

PendingKind = Literal["approval", "doubt", "client_call", "question", "completion", "event", "sleep"]

_ID_CHARS = 16
_SHOWN_CHARS = 80
_SOME_VALUE = """ --value '"…"'"""
_PREFIXES: dict[PendingKind, str] = {"approval": "apr_", "doubt": "dbt_"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingItem:
    """One open wait: its start, its deadline, and in `who` the ways to resolve it.

    `id` addresses the wait, for example an approval's id or an event's name; blank if only time or a key can end it.
    """

    kind: PendingKind
    id: str
    session: SessionId
    turn: TurnId
    effect: EffectId
    call: CallId | None
    tool: str
    what: str
    who: str
    since: int
    until: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingDecision(PendingItem):
    """A decision about a call with exactly these arguments: permission to run (`approval`) or outcome (`doubt`)."""

    promise: PromiseId
    args: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingClientCall(PendingItem):
    """A call that the client runs; the client posts the result under the call's id."""

    args: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingQuestion(PendingItem):
    """Questions to a person; the answer is posted under the call's id."""

    questions: tuple[Question, ...]


def ask_id(kind: PendingKind, promise: PromiseId) -> str:
    """Return the short public id of a request to a person. The id is not a key and cannot resolve the promise."""
    return f"{_PREFIXES[kind]}{promise[:_ID_CHARS]}"


def who_can_answer(kind: Literal["approval", "doubt"], promise: PromiseId) -> str:
    """Return the calls and commands that resolve a request to a person."""
    id = ask_id(kind, promise)
    if kind == "approval":
        commands = f"`{command_line('approvals approve', id)}` or `{command_line('approvals deny', id)}`"
        return f"rt.approvals.approve({id!r}, by=...) or .deny(...); {commands}"
    return f"rt.approvals.settle({id!r}, ..., by=...); `{command_line('approvals settle', id)} OUTCOME`"


async def pending(store: Store, stream: StreamId) -> tuple[PendingItem, ...]:
    """Return the external waits of a session's open turn, oldest first.

    Raises:
        Error: `session_unknown`.
    """
    if await store.stream(stream) is None:
        name = stream_names(stream)[2]
        hint = "perdure sessions list"
        raise Error(Code.SESSION_UNKNOWN, f"unknown session {name!r}", hint=hint)
    loaded = await store.load(stream, code=CODE)
    state = fold_all(loaded.snapshot.data if loaded.snapshot else None, loaded.rows)
    if state.open_turn is None:
        return ()
    rows = await store.read(stream, after=Seq(state.turn_seq - 1))
    known = await answered(store, rows)
    found = items(SessionId(stream_names(stream)[2]), state.open_turn, rows)
    return tuple(item for item in found if item.effect not in known)


async def answered(store: Store, rows: Sequence[Row]) -> set[EffectId]:
    """Return the unsettled waits among these rows whose promise is already resolved."""
    journal = EffectJournal()
    for row in rows:
        journal.fold(row.record)
    found: set[EffectId] = set()
    for started in journal.unsettled():
        if isinstance(started.command, AwaitEvent):
            state = await store.peek(started.command.key.key_id)
            if state is not None and state.resolution is not None:
                found.add(started.id)
    return found


def items(session: SessionId, turn: TurnId, rows: Sequence[Row]) -> tuple[PendingItem, ...]:
    """Return the external waits of a turn, oldest first, from the rows of that turn."""
    journal = EffectJournal()
    begun: dict[EffectId, int] = {}
    ends: dict[EffectId, Done] = {}
    left: dict[str, int] = {}
    calls: dict[tuple[int, int], ToolCall] = {}
    late: set[CallId] = set()
    for row in rows:
        record = row.record
        journal.fold(record)
        match record:
            case EffectStarted(id=effect):
                begun[effect] = row.at
            case EffectSettled(id=effect, outcome=LlmCallOutcome(reply=Reply(calls=asked))):
                calls.update({(parse_ref(effect).iteration, i): call for i, call in enumerate(asked)})
            case EffectSettled(id=effect, outcome=ToolCallOutcome(launch=Done() as done)):
                ends[effect] = done
            case EffectSettled(id=effect, outcome=ToolCallOutcome(launch=Pending(due_at=int(due_at)))):
                left[f"{effect}.completion"] = due_at  # the deadline that the tool set last applies
            case OutcomeArrivedLate(call=told):
                late.add(told)
            case _:
                pass
    found: list[PendingItem] = []
    for started in journal.unsettled():
        ref = parse_ref(started.id)
        call = calls.get((ref.iteration, ref.index)) if ref.index is not None else None
        if call is not None and call.id in late:
            continue  # its outcome arrived late, so no decision is needed
        tool = journal.tool_around(started.id) or (call.name if call else "")
        place = _PendingPosition(session, turn, call, tool, begun[started.id], left.get(started.id, started.due_at))
        found.extend(_item(started, ref, place, _doubt(ref, ends)))
    return tuple(sorted(found, key=lambda item: item.since))


def _doubt(ref: EffectRef | PartRef, ends: dict[EffectId, Done]) -> Done | None:
    return None if isinstance(ref, PartRef) else ends.get(EffectRef(ref.iteration, ref.index, ref.attempt).id)


class _Fields(TypedDict):
    """The fields of every pending item."""

    kind: PendingKind
    id: str
    session: SessionId
    turn: TurnId
    effect: EffectId
    call: CallId | None
    tool: str
    what: str
    who: str
    since: int
    until: int | None


@dataclass(frozen=True, slots=True)
class _PendingPosition:
    session: SessionId
    turn: TurnId
    call: ToolCall | None
    tool: str
    since: int
    until: int | None


def _item(
    started: EffectStarted, ref: EffectRef | PartRef, at: _PendingPosition, ended: Done | None
) -> Iterable[PendingItem]:
    decision = decision_owed(started, at.session, at.turn, at.since)
    match started.command, ref:
        case AwaitEvent(key=key, about=PreparedToolCall() as about), _ if isinstance(key.wait, ClientResult):
            command = command_line("sessions post-result", at.session)
            who = f"the client: session.post_result({about.call_id!r}, ...); `{command}`"
            what = f"the client's result of tool {about.tool_name}"
            yield PendingClientCall(**_fields(started, at, "client_call", about.call_id, what, who), args=about.args)
        case AwaitEvent(key=key, about=PreparedToolCall() as about), _ if isinstance(key.wait, UserAnswer):
            asked = () if started.redacted else questions_of(about.args)
            command = command_line("sessions answer", at.session)
            who = f"a person: session.answer({about.call_id!r}, {{...}}, by=...); `{command}`"
            what = "a person's answer to " + "; ".join(_short(question.question) for question in asked)
            fields = _fields(started, at, "question", about.call_id, what, who)
            yield PendingQuestion(**fields, questions=asked)
        case AwaitEvent(about=PreparedToolCall()), _ if decision is not None:
            yield decision
        case AwaitEvent(), PartRef(kind="event", name=name):
            command = f"`{command_line('resolve', at.session, name, flags=_SOME_VALUE)}`"
            who = f"session.resolve({name!r}, ...), or the key that was handed out; {command}"
            yield _plain(started, at, "event", name, f"event {name!r} of tool {at.tool}", who)
        case AwaitEvent(), EffectRef(tail="completion") if ended is None:
            who = "the holder of the key that was handed out"
            yield _plain(started, at, "completion", "", f"completion of tool {at.tool}", who)
        case _ if started.kind is EffectKind.SLEEP:
            yield _plain(started, at, "sleep", "", f"a timer of {at.tool or 'the model call'}", "the clock")
        case _:
            pass


def _plain(
    started: EffectStarted, at: _PendingPosition, kind: PendingKind, id: str, what: str, who: str
) -> PendingItem:
    return PendingItem(**_fields(started, at, kind, id, what, who))


def _short(question: str) -> str:
    line = " ".join(question.split())
    return repr(line if len(line) <= _SHOWN_CHARS else f"{line[:_SHOWN_CHARS]}…")


def _fields(started: EffectStarted, at: _PendingPosition, kind: PendingKind, id: str, what: str, who: str) -> _Fields:
    about = started.command.about if isinstance(started.command, AwaitEvent) else None
    return _Fields(
        kind=kind,
        id=id,
        session=at.session,
        turn=at.turn,
        effect=started.id,
        call=about.call_id if about else at.call.id if at.call else None,
        tool=about.tool_name if about else at.tool,
        what=what,
        who=who,
        since=at.since,
        until=at.until,
    )


def decision_owed(started: EffectStarted, session: SessionId, turn: TurnId, since: int) -> PendingDecision | None:
    """Return the decision that a wait requests from a person; None for other waits."""
    match started.command:
        case AwaitEvent(key=key, about=PreparedToolCall() as about) if isinstance(
            key.wait, ToolApproval | DoubtVerdict
        ):
            kind = "approval" if isinstance(key.wait, ToolApproval) else "doubt"
        case _:
            return None
    doing = "approval of tool" if kind == "approval" else "a person to settle the outcome of tool"
    return PendingDecision(
        kind=kind,
        id=ask_id(kind, key.key_id),
        session=session,
        turn=turn,
        effect=started.id,
        call=about.call_id,
        tool=about.tool_name,
        what=f"{doing} {about.tool_name}",
        who=who_can_answer(kind, key.key_id),
        since=since,
        until=started.due_at,
        promise=key.key_id,
        args=about.args,
    )
