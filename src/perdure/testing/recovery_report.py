"""The state after a crash and its judgement, from the log, the ledger and the calls alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from perdure.effects import keys
from perdure.errors import Code, Error
from perdure.ids import CallId, EffectId, InputId, SessionId, Tenant, TurnId
from perdure.inbox.items import Input
from perdure.observe.verify import verify
from perdure.runtime.internals import core_of, ref_of
from perdure.runtime.runtime import Runtime
from perdure.session.fold import CODE
from perdure.testing.validity import complaints
from perdure.testing.world import Ledger
from perdure.vocab.messages import Message
from perdure.vocab.outcomes import (
    CompletedToolCall,
    Done,
    DurableStepOutcome,
    Failed,
    InDoubt,
    Outcome,
    ToolCallOutcome,
)
from perdure.vocab.records import (
    EffectSettled,
    EffectStarted,
    InputAdmitted,
    InputCancelled,
    OutcomeArrivedLate,
    Row,
    SessionOpened,
    TurnEnded,
    TurnOpened,
)
from perdure.vocab.refs import EffectRef, call_id

Effect = tuple[TurnId, EffectId]


@dataclass(frozen=True, slots=True)
class Taken:
    """An input: its turn, and the key it was sent under."""

    turn: TurnId
    key: str


@dataclass(frozen=True, slots=True)
class Story:
    """One session: its log, conversation and queued inputs, and the contradictions found in them."""

    tenant: Tenant
    session: SessionId
    rows: tuple[Row, ...]
    history: tuple[Message, ...]
    waiting: Mapping[InputId, Taken]
    problems: tuple[str, ...]

    @property
    def inputs(self) -> dict[InputId, Taken]:
        """All accepted inputs that were not cancelled, with their keys and turns."""
        admitted = (row.record for row in self.rows)
        taken = {one.input: Taken(one.turn, one.key) for one in admitted if isinstance(one, InputAdmitted)}
        return {**self.waiting, **taken}

    @property
    def who(self) -> str:
        """The session's name in reports, equal in all runs. A sub-agent's session has an id derived from its turn."""
        opened = self.rows[0].record if self.rows else None
        is_child = isinstance(opened, SessionOpened) and opened.parent is not None
        return "a sub-agent" if is_child else f"session {self.session}"

    @property
    def withdrawn(self) -> set[InputId]:
        """The inputs that were cancelled before a turn took them."""
        return {one.input for one in (row.record for row in self.rows) if isinstance(one, InputCancelled)}

    @property
    def cancelled(self) -> bool:
        """True if a turn was asked to end. The progress of that turn then depends on timing."""
        return any(row.kind == "cancel_requested" for row in self.rows)

    @property
    def ends(self) -> dict[TurnId, TurnEnded]:
        """The turns that have ended."""
        return {one.turn: one for one in (row.record for row in self.rows) if isinstance(one, TurnEnded)}

    @property
    def effects(self) -> Iterator[tuple[TurnId, EffectStarted | EffectSettled]]:
        """Effects started and settled, in order, with their turns."""
        turn = TurnId("")
        for record in (row.record for row in self.rows):
            match record:
                case TurnOpened():
                    turn = record.turn
                case EffectStarted() | EffectSettled():
                    yield turn, record
                case _:
                    pass

    @property
    def settled(self) -> dict[Effect, Outcome]:
        """All recorded outcomes."""
        return {(turn, one.id): one.outcome for turn, one in self.effects if isinstance(one, EffectSettled)}

    @property
    def under_way(self) -> set[Effect]:
        """Effects that started and have no outcome."""
        return {(turn, one.id) for turn, one in self.effects if isinstance(one, EffectStarted)} - set(self.settled)

    @property
    def doubted(self) -> dict[Effect, str]:
        """All effects that were ever in doubt, named by tool or by effect id."""
        return {effect: name for effect, outcome in self.settled.items() if (name := _in_doubt(effect[1], outcome))}

    @property
    def doubts(self) -> tuple[str, ...]:
        """The effects still in doubt, settled neither by a probe nor by a late outcome."""
        late = {(one.call, one.id) for one in (row.record for row in self.rows) if isinstance(one, OutcomeArrivedLate)}
        probed = {effect for effect, outcome in self.settled.items() if _verdict(outcome) in _CLEAR}
        return tuple(
            name
            for (turn, id), name in self.doubted.items()
            if (turn, f"{id}.probe") not in probed and (_call(turn, id), id) not in late
        )

    def idempotency_keys(self) -> set[tuple[str, int]]:
        """Return the settled calls as idempotency key and attempt."""
        found: set[tuple[str, int]] = set()
        for (_, id), outcome in self.settled.items():
            match outcome:
                case ToolCallOutcome(launch=Done(result=CompletedToolCall(call_id=call, tool_name=tool))):
                    attempt = EffectRef.parse(id).attempt
                    found.add((keys.tool_idempotency(self.tenant, self.session, call, tool), attempt))
                case _:
                    pass
        return found


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The sessions, the ledger and the calls at one time."""

    stories: tuple[Story, ...]
    world: Ledger
    calls: Ledger

    @property
    def doubts(self) -> tuple[str, ...]:
        """The effects whose outcome is unknown."""
        return tuple(name for story in self.stories for name in story.doubts)


async def look(reader: Runtime) -> tuple[Story, ...]:
    """Read every session of a store that no worker uses."""
    async with reader as rt:
        infos = await core_of(rt).session_streams(limit=10_000)
        return tuple([await _story(rt, SessionId(info.name)) for info in sorted(infos, key=lambda info: info.name)])


async def _story(rt: Runtime, name: SessionId) -> Story:
    session = rt.get_session(name)
    info = await core_of(rt).store.stream(ref_of(session).stream)
    assert info is not None
    rows = await session.journal()
    history = await session.messages()
    loaded = await core_of(rt).store.load(ref_of(session).stream, code=CODE)
    waiting = {
        row.item.input: Taken(row.item.turn, row.item.key) for row in loaded.inbox if isinstance(row.item, Input)
    }
    problems = (*verify(info, rows, loaded).problems, *(f"the conversation: {one}" for one in complaints(history)))
    return Story(rt.tenant, name, rows, history, waiting, problems)


# --- the judgement


def judge(usual: RecoveryReport, crashed: RecoveryReport, end: RecoveryReport) -> tuple[str, ...]:
    """Return every broken guarantee.

    `usual` is an undisturbed run, `crashed` the state at the crash, `end` the state after the restart.
    """
    broken = [*_inputs(usual, crashed, end), *_ledger(usual, end), *_calls(crashed, end), *_mismatches(usual, end)]
    for story in end.stories:
        broken += [f"session {story.session}: {problem}" for problem in (*story.problems, *_sent_out_again(story))]
    return (*broken, *_doubts(usual, crashed, end))


def _inputs(usual: RecoveryReport, crashed: RecoveryReport, end: RecoveryReport) -> Iterator[str]:
    """Check that every accepted input is kept, answered, and run once."""
    known = {input for story in end.stories for input in (*story.inputs, *story.withdrawn)}
    racing = any(story.cancelled for story in (*usual.stories, *end.stories))
    kept = {(story.tenant, story.session) for story in usual.stories}
    for story in crashed.stories:
        for input, taken in story.inputs.items():
            if (
                input not in known and (story.tenant, story.session) in kept
            ):  # otherwise the script itself deletes the session
                yield f"session {story.session}: the input {taken.key} was accepted and is lost"
    for story in end.stories:
        for taken in story.inputs.values():
            if taken.turn not in story.ends:
                yield f"session {story.session}: the input {taken.key} was accepted and never answered"
    expected, found = _answers(usual), _answers(end)
    for name, statuses in expected.items():
        if len(found.get(name, ())) != len(statuses):
            yield f"the input {name} was answered {len(found.get(name, ()))} times, not {len(statuses)}"
        elif found[name] != statuses and not (end.doubts or racing):
            yield f"the input {name} ended as {', '.join(found[name])}, undisturbed as {', '.join(statuses)}"
    for name in (
        found.keys() - expected.keys() - _taken_back(usual)
    ):  # otherwise its cancellation may have come too late
        yield f"the input {name} was answered, and is not sent in an undisturbed run"


def _taken_back(of: RecoveryReport) -> set[str]:
    records = [(story, row.record) for story in of.stories for row in story.rows]
    return {f"{one.key or '?'} of {story.who}" for story, one in records if isinstance(one, InputCancelled)}


def _answers(of: RecoveryReport) -> dict[str, list[str]]:
    answers: dict[str, list[str]] = {}
    for story in of.stories:
        for taken in story.inputs.values():
            if ended := story.ends.get(taken.turn):
                key = (
                    taken.key if not taken.key.startswith("subagent:") else "subagent"
                )  # the key contains ids that differ between runs
                name = f"{key or '?'} of {story.who}"
                answers.setdefault(name, []).append(f"{ended.status} {ended.reason or ''}".strip())
    return answers


def _ledger(usual: RecoveryReport, end: RecoveryReport) -> Iterator[str]:
    """Check that effects happen as often as in the undisturbed run.

    Fewer are allowed only if an outcome is unknown. The progress of a cancelled turn differs between runs, but no
    effect happens twice.
    """
    racing = any(story.cancelled for story in (*usual.stories, *end.stories))
    for what in sorted({line.what for line in (*usual.world, *end.world)}):
        most, times = usual.world.count(what), end.world.count(what)
        per_key = max(usual.world.by_key(what).values(), default=int(racing))
        for key, count in end.world.by_key(what).items():
            if count > per_key > 0:
                yield f"{what!r} happened {count} times under the key {key or '(none)'}, expected {per_key}"
        if racing:
            continue
        if times > most:
            yield f"{what!r} happened {times} times, expected {most} as in the undisturbed run"
        elif times < most and not end.doubts:
            yield f"{what!r} happened {times} times, expected {most}, and nothing is in doubt"


def _calls(crashed: RecoveryReport, end: RecoveryReport) -> Iterator[str]:
    """Check that no settled call runs again, and that a `once` call is dispatched once per attempt."""
    once = Counter(
        (line.what, line.key, line.details.get("attempt")) for line in end.calls if line.details.get("effect") == "once"
    )
    for (tool, key, attempt), times in once.items():
        if times > 1:
            yield f"the once tool {tool} was dispatched {times} times as attempt {attempt} of the call {key}"
    settled = {known for story in crashed.stories for known in story.idempotency_keys()}
    for line in end.calls.lines[len(crashed.calls) :]:
        if (line.key, line.details.get("attempt")) in settled:
            yield f"the tool {line.what} ran again after its outcome was recorded: call {line.key}"


def _mismatches(usual: RecoveryReport, end: RecoveryReport) -> Iterator[str]:
    """Check that a re-entered body repeats its steps. A body that does not is not resumable."""
    always = {id for story in usual.stories for (_, id), outcome in story.settled.items() if _mismatch(outcome)}
    for story in end.stories:
        for (_, id), outcome in story.settled.items():
            if id not in always and (message := _mismatch(outcome)):
                yield f"session {story.session}: {id} ran again with different steps: {message}"


def _sent_out_again(story: Story) -> Iterator[str]:
    """Check that a later attempt of a `once` call follows a proof that the earlier one was not done."""
    not_done = {effect for effect, outcome in story.settled.items() if _is_not_done(outcome)}
    for record in (row.record for row in story.rows):
        match record:
            case OutcomeArrivedLate(call=call, id=id, output=Failed(failure=failure)) if failure.retry_safe:
                not_done.add((TurnId(call.rsplit(".", 2)[0]), id))
            case _:
                pass
    for turn, record in story.effects:
        ref = _ref(record.id)
        if isinstance(record, EffectStarted) and record.effect == "once" and ref and ref.index is not None:
            before = EffectRef(ref.iteration, ref.index, ref.attempt - 1).id
            if ref.attempt > 1 and not ref.tail and not {(turn, before), (turn, f"{before}.probe")} & not_done:
                yield f"the call {record.id} was dispatched without proof that {before} did not happen"


def _doubts(usual: RecoveryReport, crashed: RecoveryReport, end: RecoveryReport) -> Iterator[str]:
    """Check that only effects under way at the crash are in doubt.

    Effects also in doubt in the undisturbed run, and effects of cancelled turns, are exempt.
    """
    allowed = {effect for story in crashed.stories for effect in story.under_way | story.doubted.keys()}
    always = {id for story in usual.stories for _, id in story.doubted}
    for story in end.stories:
        for effect, name in story.doubted.items():
            if effect not in allowed and effect[1] not in always and not story.cancelled:
                yield f"session {story.session}: {name} ({effect[1]}) is in doubt but was not under way at the crash"


# --- reading outcomes

_CLEAR = ("happened", "did_not_happen")


def _in_doubt(id: EffectId, outcome: Outcome) -> str:
    match outcome:
        case ToolCallOutcome(launch=Done(result=CompletedToolCall(tool_name=tool, output=InDoubt()))):
            return tool
        case DurableStepOutcome(in_doubt=InDoubt()):
            return id
        case _:
            return ""


def _verdict(outcome: Outcome) -> str:
    match outcome:
        case DurableStepOutcome(value={"verdict": str(verdict)}):
            return verdict
        case _:
            return ""


def _mismatch(outcome: Outcome) -> str:
    match outcome:
        case ToolCallOutcome(launch=Done(result=CompletedToolCall(tool_name=tool, output=Failed(failure=failure)))):
            return f"{tool}: {failure.message}" if failure.code == Code.REPLAY_MISMATCH else ""
        case _:
            return ""


def _is_not_done(outcome: Outcome) -> bool:
    match outcome:
        case ToolCallOutcome(launch=Done(result=CompletedToolCall(output=Failed(failure=failure)))):
            return failure.retry_safe
        case _:
            return _verdict(outcome) == "did_not_happen"


def _ref(id: EffectId) -> EffectRef | None:
    try:
        return EffectRef.parse(id)
    except Error:
        return None


def _call(turn: TurnId, id: EffectId) -> CallId | None:
    ref = _ref(id)
    return call_id(turn, ref.iteration, ref.index) if ref and ref.index is not None else None


def journal_lines(stories: Iterable[Story]) -> Iterator[str]:
    """Return the logs as text, a few words per record."""
    for story in stories:
        yield f"session {story.session}:"
        for row in story.rows:
            yield f"  {row.seq:>3} {_words(row)}"
        for taken in story.waiting.values():
            yield f"      waiting: the input {taken.key} for turn {taken.turn}"


def _words(row: Row) -> str:
    match row.record:
        case InputAdmitted(key=key):
            return f"{row.kind} {key}"
        case EffectStarted(id=id, effect=effect):
            return f"{row.kind} {id} ({effect})"
        case EffectSettled(id=id, outcome=outcome):
            return f"{row.kind} {id} {_outcome_words(outcome)}".rstrip()
        case TurnEnded(status=status, reason=reason):
            return f"{row.kind} {status} {reason or ''}".rstrip()
        case OutcomeArrivedLate(id=id, tool=tool, output=output):
            return f"{row.kind} {id} {tool}: {type(output).__name__}"
        case _:
            return row.kind


def _outcome_words(outcome: Outcome) -> str:
    match outcome:
        case ToolCallOutcome(launch=Done(result=CompletedToolCall(tool_name=tool, output=output))):
            return f"{tool}: {type(output).__name__}"
        case _:
            return _verdict(outcome)
