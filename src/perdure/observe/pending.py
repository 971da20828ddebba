"""What a session waits for that somebody or something outside must bring: answers of people, completions, moments."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from perdure.codec import Json
from perdure.effects.journal import EffectJournal
from perdure.errors import Code, Error
from perdure.ids import CallId, EffectId, PromiseId, Seq, SessionId, StreamId, TurnId, stream_names
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
_PREFIXES: dict[PendingKind, str] = {"approval": "apr_", "doubt": "dbt_"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingItem:
    """One thing that is waited for: since when, until when, and who can bring it.

    `id` is what it is answered by: an approval's id, an event's name; blank if nobody can do anything but wait.
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
    """Something that people are asked about a call with exactly these arguments: whether it may run (`approval`), or
    what became of it (`doubt`).
    """

    promise: PromiseId
    args: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingClientCall(PendingItem):
    """A call that the client runs: its result is posted under its id."""

    args: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingQuestion(PendingItem):
    """Questions to a person, which are answered under the id of their call."""

    questions: tuple[Question, ...]


def ask_id(kind: PendingKind, promise: PromiseId) -> str:
    """What people call a question: short, and never the key by which a promise is answered."""
    return f"{_PREFIXES[kind]}{promise[:_ID_CHARS]}"


def who_can_answer(kind: Literal["approval", "doubt"], promise: PromiseId) -> str:
    """How a question to people is answered, in words."""
    id = ask_id(kind, promise)
    if kind == "approval":
        return f"rt.approvals.approve({id!r}, by=...) or .deny(...); `perdure approvals approve {id}` or `deny`"
    return f"rt.approvals.settle({id!r}, ..., by=...); `perdure approvals settle {id} OUTCOME`"


async def pending(store: Store, stream: StreamId) -> tuple[PendingItem, ...]:
    """What the open turn of a session waits for, the longest waiting first.

    Raises:
        Error: `session_unknown`.
    """
    if await store.stream(stream) is None:
        name = stream_names(stream)[2]
        hint = "list them with `perdure sessions list`"
        raise Error(Code.SESSION_UNKNOWN, f"there is no session {name!r}", hint=hint)
    loaded = await store.load(stream, code=CODE)
    state = fold_all(loaded.snapshot.data if loaded.snapshot else None, loaded.rows)
    if state.open_turn is None:
        return ()
    rows = await store.read(stream, after=Seq(state.turn_seq - 1))
    known = await answered(store, rows)
    found = items(SessionId(stream_names(stream)[2]), state.open_turn, rows)
    return tuple(item for item in found if item.effect not in known)


async def answered(store: Store, rows: Sequence[Row]) -> set[EffectId]:
    """The waits among these rows whose answer is there, and which nobody has acted on yet."""
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
    """What a turn waits for, from the rows of that turn."""
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
                left[f"{effect}.completion"] = due_at  # what the tool said last counts
            case OutcomeArrivedLate(call=told):
                late.add(told)
            case _:
                pass
    found: list[PendingItem] = []
    for started in journal.unsettled():
        ref = parse_ref(started.id)
        call = calls.get((ref.iteration, ref.index)) if ref.index is not None else None
        if call is not None and call.id in late:
            continue  # what was asked about it is known by now
        tool = journal.tool_around(started.id) or (call.name if call else "")
        place = _Place(session, turn, call, tool, begun[started.id], left.get(started.id, started.due_at))
        found.extend(_item(started, ref, place, _doubt(ref, ends)))
    return tuple(sorted(found, key=lambda item: item.since))


def _doubt(ref: EffectRef | PartRef, ends: dict[EffectId, Done]) -> Done | None:
    return None if isinstance(ref, PartRef) else ends.get(EffectRef(ref.iteration, ref.index, ref.attempt).id)


class _Fields(TypedDict):
    """What every pending item says."""

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
class _Place:
    session: SessionId
    turn: TurnId
    call: ToolCall | None
    tool: str
    since: int
    until: int | None


def _item(started: EffectStarted, ref: EffectRef | PartRef, at: _Place, ended: Done | None) -> Iterable[PendingItem]:
    decision = decision_owed(started, at.session, at.turn, at.since)
    match started.command, ref:
        case AwaitEvent(key=key, about=PreparedToolCall() as about), _ if isinstance(key.wait, ClientResult):
            who = f"the client: session.post_result({about.call_id!r}, ...); `perdure sessions post {_word(at)}`"
            what = f"the client's result of tool {about.tool_name}"
            yield PendingClientCall(**_fields(started, at, "client_call", about.call_id, what, who), args=about.args)
        case AwaitEvent(key=key, about=PreparedToolCall() as about), _ if isinstance(key.wait, UserAnswer):
            asked = () if started.redacted else questions_of(about.args)
            who = f"a person: session.answer({about.call_id!r}, {{...}}, by=...); `perdure sessions answer {_word(at)}`"
            what = "a person's answer to " + "; ".join(_short(question.question) for question in asked)
            fields = _fields(started, at, "question", about.call_id, what, who)
            yield PendingQuestion(**fields, questions=asked)
        case AwaitEvent(about=PreparedToolCall()), _ if decision is not None:
            yield decision
        case AwaitEvent(), PartRef(kind="event", name=name):
            command = f"`perdure resolve {_word(at)} {shlex.quote(name)}`"
            who = f"session.resolve({name!r}, ...), or the key that was handed out; {command}"
            yield _plain(started, at, "event", name, f"event {name!r} of tool {at.tool}", who)
        case AwaitEvent(), EffectRef(tail="completion") if ended is None:
            who = "whoever has the key that was handed out"
            yield _plain(started, at, "completion", "", f"somebody to complete tool {at.tool}", who)
        case _ if started.kind is EffectKind.SLEEP:
            yield _plain(started, at, "sleep", "", f"a moment, for {at.tool or 'the model'}", "nobody: time passes")
        case _:
            pass


def _plain(started: EffectStarted, at: _Place, kind: PendingKind, id: str, what: str, who: str) -> PendingItem:
    return PendingItem(**_fields(started, at, kind, id, what, who))


def _short(question: str) -> str:
    line = " ".join(question.split())
    return repr(line if len(line) <= _SHOWN_CHARS else f"{line[:_SHOWN_CHARS]}…")


def _fields(started: EffectStarted, at: _Place, kind: PendingKind, id: str, what: str, who: str) -> _Fields:
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


def _word(at: _Place) -> str:
    return shlex.quote(at.session)


def decision_owed(started: EffectStarted, session: SessionId, turn: TurnId, since: int) -> PendingDecision | None:
    """What people are asked by the start of a wait; None if that is nothing."""
    match started.command:
        case AwaitEvent(key=key, about=PreparedToolCall() as about) if isinstance(
            key.wait, ToolApproval | DoubtVerdict
        ):
            kind = "approval" if isinstance(key.wait, ToolApproval) else "doubt"
        case _:
            return None
    doing = "approval of tool" if kind == "approval" else "somebody to say what became of tool"
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
