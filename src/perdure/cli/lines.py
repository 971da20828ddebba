"""A log as text: one line per record, with names and durations filled in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from perdure.cli.screen import clock, due, one_line, utc
from perdure.codec import encode
from perdure.ids import EffectId, stream_names
from perdure.observe.events import Cursor, RecordEvent
from perdure.vocab.approvals import decision_of
from perdure.vocab.children import ChildClaimed, ChildEnded, ChildRegistered
from perdure.vocab.effects import EffectKind
from perdure.vocab.messages import InputPart, Reply, Text, ToolCall
from perdure.vocab.outcomes import (
    AwaitEventOutcome,
    CompletedToolCall,
    Done,
    DurableStepOutcome,
    Failed,
    InDoubt,
    LlmCallOutcome,
    LlmError,
    NotRun,
    Outcome,
    Pending,
    SleepOutcome,
    StepFailure,
    Success,
    ToolCallOutcome,
    ToolOutput,
    completed,
)
from perdure.vocab.promises import Failure, Ok, Resolution, TimedOut
from perdure.vocab.records import (
    AbandonRequested,
    ApprovalGranted,
    AttachmentStored,
    CancelRequested,
    EffectSettled,
    EffectStarted,
    GrantRevoked,
    HandedOver,
    InputAdmitted,
    InputCancelled,
    ModelJobBegun,
    ModelSet,
    OutcomeArrivedLate,
    ProcessEvent,
    ProcessFirstStarted,
    ProcessRegistered,
    RecordRedacted,
    Row,
    SessionImported,
    SessionOpened,
    SessionPaused,
    SessionResumed,
    TagsSet,
    TitleSet,
    ToolMembershipChanged,
    TurnAgentChanged,
    TurnEnded,
    TurnOpened,
)
from perdure.vocab.refs import EffectRef, PartRef, parse_ref
from perdure.vocab.registrations import ProcessFailure, ProcessSucceeded
from perdure.vocab.schedules import ScheduleChanged, ScheduleCreated, ScheduleFired, SchedulePruned, ScheduleSkipped
from perdure.vocab.triggers import (
    SubscriptionChanged,
    TriggerDeliveryFailed,
    TriggerOccurred,
    TriggerPruned,
    TriggerSourceOpened,
)

FromOutside: TypeAlias = (
    InputCancelled
    | SessionPaused
    | SessionResumed
    | TitleSet
    | ModelSet
    | TagsSet
    | RecordRedacted
    | ApprovalGranted
    | GrantRevoked
    | ChildClaimed
    | ChildRegistered
    | ChildEnded
    | SessionImported
)

OfTrigger: TypeAlias = (
    TriggerSourceOpened | SubscriptionChanged | TriggerOccurred | TriggerDeliveryFailed | TriggerPruned
)

OfProcess: TypeAlias = ProcessRegistered | ProcessFirstStarted | ProcessEvent | AbandonRequested

UNNAMED = "-"
DOUBTS = {
    "worker_lost": "worker died",
    "timeout": "timed out",
    "cancelled": "cancelled",
    "drained": "worker stopped",
    "declared": "outcome unknown to the tool",
}


@dataclass(frozen=True, slots=True)
class JournalLine:
    """The text line of one record. `begun` marks the start of work whose end has a separate line."""

    seq: int
    at: int
    kind: str
    name: str
    result: str
    tone: str = ""
    turn: int | None = None
    attempt: int | None = None
    ms: int | None = None
    tokens: int | None = None
    begun: bool = False
    effect: str = ""

    def cells(self) -> tuple[str, ...]:
        """Return the columns of `journal show`."""
        return (
            str(self.seq),
            clock(self.at),
            self.kind,
            self.name,
            _or_dash(self.attempt),
            self.result,
            _or_dash(self.ms),
            _or_dash(self.tokens),
        )

    def fields(self) -> dict[str, object]:
        """Return the line as fields for JSON."""
        return {
            "seq": self.seq,
            "at": utc(self.at),
            "turn": self.turn,
            "kind": self.kind,
            "name": self.name,
            "effect": self.effect or None,
            "attempt": self.attempt,
            "result": self.result,
            "ms": self.ms,
            "tokens": self.tokens,
        }


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def facts(rows: Iterable[Row]) -> list[RecordEvent]:
    """Convert rows to the facts that an observer receives."""
    return [RecordEvent(Cursor(row.seq), row.at, row.record) for row in rows]


class Reader:
    """Converter of a log into lines. Reads from the first record, because a line depends on earlier ones."""

    def __init__(self) -> None:
        self._turn: int | None = None
        self._opened_at = 0
        self._started: dict[EffectId, int] = {}
        self._model = UNNAMED
        self._calls: tuple[ToolCall, ...] = ()

    def lines(self, rows: Iterable[Row]) -> list[JournalLine]:
        """Return the lines of some rows. A start takes its name from its end where only the end has one."""
        lines = [self.line(fact) for fact in facts(rows)]
        names = {(line.turn, line.effect): line.name for line in lines if line.effect and line.name != UNNAMED}
        return [replace(line, name=names.get((line.turn, line.effect), line.name)) for line in lines]

    def line(self, fact: RecordEvent) -> JournalLine:
        """Return the line of the next record."""
        match fact.record:
            case SessionOpened(agent=agent, parent=parent):
                by = f" by {stream_names(parent.stream)[2]}" if parent else ""
                return self._plain(fact, "session", agent, f"opened{by}")
            case InputAdmitted(parts=parts, mode=mode, source=source):
                return self._plain(fact, "input" if mode == "queue" else mode, source or "-", _quoted(parts))
            case TurnOpened(index=index):
                self._turn, self._opened_at = index + 1, fact.at
                self._started.clear()
                return self._plain(fact, "turn", "start", f"turn {index + 1}")
            case EffectStarted() as started:
                return self._start(fact, started)
            case EffectSettled() as settled:
                return self._settle(fact, settled)
            case ModelJobBegun(id=effect):
                return self._plain(fact, "llm_call", effect, "running as a provider job")
            case OutcomeArrivedLate(tool=tool, output=output):
                return self._plain(fact, "late", tool, *_output(output))
            case (AttachmentStored() | ToolMembershipChanged() | HandedOver() | TurnAgentChanged()) as record:
                return self._by_a_call(fact, record)
            case CancelRequested(origin=origin, reason=reason):
                return self._plain(fact, "cancel", origin or "-", one_line(reason) or "requested", "warn")
            case TurnEnded() as ended:
                return self._end(fact, ended)
            case ProcessRegistered() | ProcessFirstStarted() | ProcessEvent() | AbandonRequested():
                return self._process(fact, fact.record)
            case (
                ScheduleCreated() | ScheduleFired() | ScheduleSkipped() | ScheduleChanged() | SchedulePruned()
            ) as record:
                return self._plain(fact, "schedule", "-", of_schedule(record))
            case (
                TriggerSourceOpened()
                | SubscriptionChanged()
                | TriggerOccurred()
                | TriggerDeliveryFailed()
                | TriggerPruned()
            ):
                return self._trigger(fact, fact.record)
            case _:
                return self._from_outside(fact, fact.record)

    def _by_a_call(
        self, fact: RecordEvent, record: AttachmentStored | ToolMembershipChanged | HandedOver | TurnAgentChanged
    ) -> JournalLine:
        """Return the line of a record that a call added to its session."""
        match record:
            case AttachmentStored(ref=ref):
                kind, size = (ref.media_type, f"{ref.size} bytes") if ref else ("-", "redacted")
                return self._plain(fact, "attached", kind, size)
            case ToolMembershipChanged(names=names, present=present):
                return self._plain(fact, "tools", ", ".join(names), "restored" if present else "removed")
            case HandedOver(to=to, reason=reason):
                return self._plain(fact, "handoff", to, one_line(reason) or "requested")
            case TurnAgentChanged(agent=agent):
                return self._plain(fact, "handoff", agent, "took over")

    def _process(self, fact: RecordEvent, record: OfProcess) -> JournalLine:
        """Return the line of a process record."""
        match record:
            case ProcessRegistered(registration=registration):
                return self._plain(fact, "process", registration.definition, "registered")
            case ProcessFirstStarted(worker=worker):
                return self._plain(fact, "process", worker, "first started")
            case AbandonRequested(by=by, reason=reason):
                return self._plain(fact, "abandon", one_line(by, 40) or "-", one_line(reason) or "requested", "warn")
            case ProcessEvent(event=event, payload=payload, output=None):
                said = "" if payload is None else one_line(encode(payload).decode(), 48)
                return self._plain(fact, "event", event, said)
            case ProcessEvent(event=event, output=ProcessSucceeded()):
                return self._plain(fact, "process", "end", event, "ok")
            case ProcessEvent(event=event, output=ProcessFailure(code=code)):
                return self._plain(fact, "process", "end", f"{event}: {one_line(code, 40)}", "fail")
            case ProcessEvent(event=event):
                return self._plain(fact, "process", "end", event, "warn")

    def _trigger(self, fact: RecordEvent, record: OfTrigger) -> JournalLine:
        """Return the line of a trigger record."""
        match record:
            case TriggerSourceOpened(source_type=source_type):
                return self._plain(fact, "trigger", source_type, "opened")
            case SubscriptionChanged(subscription=now, change=change, by=by):
                return self._plain(fact, "trigger", now.id, f"{change} {one_line(by, 40)}".strip())
            case TriggerOccurred(occurrence=name, deliveries=deliveries):
                return self._plain(fact, "trigger", name, f"occurred, {len(deliveries)} deliveries")
            case TriggerDeliveryFailed(subscription=name, failure=failure):
                return self._plain(fact, "trigger", name, failure.code, "fail")
            case TriggerPruned(occurrences=occurrences):
                return self._plain(fact, "trigger", "pruned", f"old occurrences removed, {occurrences} in all")

    def _from_outside(self, fact: RecordEvent, record: FromOutside) -> JournalLine:
        """Return the line of a record that a control request added to the session."""
        match record:
            case ApprovalGranted(tool=tool, by=by):
                return self._plain(fact, "grant", tool, f"approved for this session by {one_line(by, 40)}")
            case GrantRevoked(by=by):
                return self._plain(fact, "grant", "-", f"revoked by {one_line(by, 40)}", "warn")
            case TitleSet(title=title):
                return self._plain(fact, "title", "-", f'"{one_line(title, 48)}"')
            case ModelSet(model=model):
                return self._plain(
                    fact, "model", one_line(model, 48) or "-", "set" if model else "reset to the agent's"
                )
            case TagsSet(tags=tags):
                return self._plain(fact, "tags", "-", one_line(", ".join(tags), 48) or "none")
            case RecordRedacted(seq=seq, origin=origin):
                return self._plain(fact, "redact", origin or "-", f"content of #{seq} removed", "warn")
            case InputCancelled(origin=origin, reason=reason, replaced_by=other):
                told = one_line(reason) or ("replaced by a later one" if other else "cancelled")
                return self._plain(fact, "input", origin or "-", told, "warn")
            case SessionPaused(origin=origin, reason=reason):
                return self._plain(fact, "pause", origin or "-", one_line(reason) or "paused", "warn")
            case SessionResumed(origin=origin):
                return self._plain(fact, "pause", origin or "-", "resumed")
            case SessionImported(agent=agent):
                return self._plain(fact, "import", agent, "imported; agent, model and tools start anew")
            case ChildClaimed(number=number):
                return self._plain(fact, "sub-agent", f"#{number}", "claimed")
            case ChildRegistered(child=child):
                return self._plain(fact, "sub-agent", child, "started")
            case ChildEnded(child=child, source=source) if source:
                return self._plain(fact, "process", child, f"asked a model for {one_line(source, 40)}")
            case ChildEnded(child=child, status=status):
                return self._plain(fact, "sub-agent", child, status, "ok" if status == "finished" else "warn")

    def _plain(self, fact: RecordEvent, kind: str, name: str, result: str, tone: str = "") -> JournalLine:
        return JournalLine(fact.cursor.seq, fact.at, kind, name, result, tone, self._turn)

    def _end(self, fact: RecordEvent, ended: TurnEnded) -> JournalLine:
        turn, self._turn = self._turn, None
        finished = ended.status == "finished"
        return JournalLine(
            fact.cursor.seq,
            fact.at,
            "turn",
            "end",
            "finished" if finished else f"stopped: {(ended.reason or '').replace('_', ' ')}",
            "ok" if finished else "fail",
            turn,
            ms=fact.at - self._opened_at,
            tokens=ended.usage.tokens,
        )

    def _start(self, fact: RecordEvent, started: EffectStarted) -> JournalLine:
        self._started[started.id] = fact.at
        ref = parse_ref(started.id)
        if isinstance(ref, PartRef):
            return self._part(fact, ref, _part_begun(started), "dim", begun=True)
        kind, name, result = "tool", self._tool(ref), "begun"
        match started.kind:
            case EffectKind.SLEEP:
                kind, result = "pause", f"until {due(started.due_at)}" if started.due_at else "begun"
            case EffectKind.LLM_CALL:
                kind, result = "model", "called"
            case EffectKind.AWAIT_EVENT if ref.tail in ("approval", "doubt"):
                kind, result = ref.tail, "waiting for a person"
            case EffectKind.AWAIT_EVENT:
                result = "waiting for external completion"
            case _ if started.effect == "once":
                result = "intent saved"
            case _:
                pass
        seq, at = fact.cursor.seq, fact.at
        return JournalLine(seq, at, kind, name, result, "dim", self._turn, ref.attempt, begun=True, effect=started.id)

    def _settle(self, fact: RecordEvent, settled: EffectSettled) -> JournalLine:
        ref = parse_ref(settled.id)
        if isinstance(ref, PartRef):
            return self._part(fact, ref, *_part_ended(settled.outcome))
        begun_at = self._started.get(settled.id)
        ms = fact.at - begun_at if begun_at is not None else None
        tokens: int | None = None
        match settled.outcome:
            case LlmCallOutcome(reply=Reply() as reply):
                self._calls, tokens = reply.calls, reply.usage.tokens
                self._model = reply.model or self._model
                kind, name, result, tone = "model", self._model, _replied(reply), "ok"
            case LlmCallOutcome(error=LlmError(kind=problem)):
                kind, name, result, tone = "model", self._model, f"failed: {problem.replace('_', ' ')}", "fail"
            case ToolCallOutcome(launch=Done(result=CompletedToolCall() as done)):
                kind, name, (result, tone) = "tool", done.tool_name, _output(done.output)
                ms = done.duration_ms if isinstance(done.output, Success | Failed) else None
            case DurableStepOutcome(value={"verdict": str(verdict)}):
                kind, name, result = "probe", self._tool(ref), verdict.replace("_", " ")
                tone = "warn" if verdict == "unknown" else "ok"
            case ToolCallOutcome(launch=Pending()):
                kind, name, result, tone = "tool", self._tool(ref), "pending external completion", ""
            case AwaitEventOutcome(resolution=resolution) if ref.tail in ("approval", "doubt"):
                kind, name, (result, tone) = ref.tail, self._tool(ref), _decided(resolution)
            case AwaitEventOutcome(resolution=resolution):
                kind, name, (result, tone) = "tool", self._tool(ref), _output(completed(resolution))
            case SleepOutcome():
                kind, name, result, tone = "pause", self._tool(ref), "over", ""
            case other:
                kind, name, result, tone = other.kind.value, settled.id, "ok", ""
        seq, at = fact.cursor.seq, fact.at
        return JournalLine(seq, at, kind, name, result, tone, self._turn, ref.attempt, ms, tokens, effect=settled.id)

    def _part(self, fact: RecordEvent, ref: PartRef, result: str, tone: str, *, begun: bool = False) -> JournalLine:
        """Return the line of a part of a body, with the part's name."""
        at, begun_at = fact.at, self._started.get(ref.id)
        ms = None if begun or begun_at is None else at - begun_at
        names = (ref.name,) if ref.of_process else (self._tool(ref), *filter(None, (ref.inside, ref.name)))
        name = "/".join(one_line(one, 40) for one in names)
        return JournalLine(
            fact.cursor.seq, at, ref.kind, name, result, tone, self._turn, ms=ms, begun=begun, effect=ref.id
        )

    def _tool(self, ref: EffectRef | PartRef) -> str:
        if ref.index is None:
            return self._model
        return self._calls[ref.index].name if ref.index < len(self._calls) else UNNAMED


def _decided(resolution: Resolution) -> tuple[str, str]:
    decision = decision_of(resolution)
    if isinstance(resolution, Failure) and resolution.code == "approval_expired":
        return "approved, expired before the start", "warn"
    if decision is None:
        return "timed out" if isinstance(resolution, TimedOut) else "cancelled", "warn"
    said = {"approve": "approved", "deny": "denied"}.get(decision.verdict, decision.verdict.replace("_", " "))
    changed = ", with edited arguments" if decision.args is not None else ""
    return f"{said} by {one_line(decision.by, 40)}{changed}", "fail" if decision.verdict == "deny" else "ok"


def _part_begun(started: EffectStarted) -> str:
    if started.due_at is not None:
        return f"until {due(started.due_at)}"
    return "intent saved" if started.effect == "once" else "begun"


def _part_ended(outcome: Outcome) -> tuple[str, str]:
    match outcome:
        case DurableStepOutcome(in_doubt=InDoubt(reason=reason)):
            return f"in doubt: {DOUBTS[reason]}", "warn"
        case DurableStepOutcome(error=StepFailure(code=code)):
            return f"failed: {code}", "fail"
        case AwaitEventOutcome(resolution=Ok()):
            return "answered", "ok"
        case AwaitEventOutcome(resolution=Failure(code=code)):
            return f"answered: {code}", "fail"
        case AwaitEventOutcome(resolution=resolution):
            return "timed out" if isinstance(resolution, TimedOut) else "cancelled", "warn"
        case SleepOutcome():
            return "over", ""
        case _:
            return "ok", "ok"


def _quoted(parts: tuple[InputPart, ...]) -> str:
    texts = [part.text for part in parts if isinstance(part, Text)]
    return f'"{one_line(" ".join(texts), 48)}"' if texts else f"{len(parts)} attachments"


def _replied(reply: Reply) -> str:
    if not reply.calls:
        return "ok"
    return "ok, 1 call" if len(reply.calls) == 1 else f"ok, {len(reply.calls)} calls"


def _output(output: ToolOutput) -> tuple[str, str]:
    match output:
        case Success():
            return "ok", "ok"
        case Failed(failure=failure):
            return f"failed: {one_line(failure.code, 40)}", "fail"
        case InDoubt(reason=reason, left_running=left):
            return f"in doubt ({DOUBTS[reason]}{', left running' if left else ''})", "doubt"
        case NotRun():
            return "not run", "warn"


def of_schedule(record: ScheduleCreated | ScheduleFired | ScheduleSkipped | ScheduleChanged | SchedulePruned) -> str:
    """Summarise a schedule record in a few words."""
    match record:
        case ScheduleCreated(schedule=schedule):
            return f"created: {schedule.cron or 'once'} ({schedule.timezone})"
        case ScheduleFired(request=request, missed=missed):
            made_up = f", {missed} missed" if missed else ""
            return f"run{' on request' if request else ''}{made_up}"
        case ScheduleSkipped(reason="overlap"):
            return "skipped: the previous run has not ended"
        case ScheduleSkipped(missed=missed):
            return f"skipped: {missed} missed"
        case ScheduleChanged(change=change, by=by, reason=reason):
            return " ".join(part for part in (change, one_line(reason), f"by {one_line(by, 40)}" if by else "") if part)
        case SchedulePruned(runs=runs):
            return f"old records removed, {runs} runs so far"
