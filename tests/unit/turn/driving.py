"""A random but legal owner of a turn: it does what is owed, is killed, cancelled, and hears late from the dead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from msgspec.structs import replace

from perdure.effects.promises import unsigned_key
from perdure.ids import BlobHash, EffectId, InputId, TurnId
from perdure.turn.machine import advance, owed, recovery, stopped, unanswered
from perdure.turn.state import (
    AskModel,
    AwaitApproval,
    AwaitCompletion,
    AwaitVerdict,
    Call,
    EndTurn,
    Owed,
    Probe,
    RetryWait,
    RunCall,
    Turn,
    opened,
)
from perdure.vocab.approvals import Decision, Verdict, consent_to
from perdure.vocab.effects import AwaitEvent, EffectKind, PreparedToolCall
from perdure.vocab.messages import FinishReason, Reply, ReplyPart, Text, Thinking, ToolCall
from perdure.vocab.outcomes import (
    AwaitEventOutcome,
    Failed,
    FailureClass,
    FailureDetail,
    InDoubt,
    LlmCallOutcome,
    LlmError,
    NotRun,
    Pending,
    Success,
    ToolCallOutcome,
    ToolOutput,
)
from perdure.vocab.promises import Cancelled, EventKey, Failure, Ok, Resolution, TimedOut, ToolCompletion
from perdure.vocab.records import (
    CancelRequested,
    EffectSettled,
    EffectStarted,
    InputAdmitted,
    Limits,
    OutcomeArrivedLate,
    Record,
    TurnOpened,
)
from perdure.vocab.refs import EffectRef, Tail
from perdure.vocab.tools import Composition, Durability, EffectClass, RetryPolicy
from perdure.vocab.usage import Usage
from tests.unit.turn.turning import asked, backoff, composition, ended, intent, requests, verdict, woke

LIMITS = Limits(max_iterations=3, no_progress=2, model_attempts=2, max_parallel_calls=2)
TOOLS = composition(
    {
        "plain": Durability(),
        "probed": Durability(doubt="probe"),
        "person": Durability(doubt="ask"),
        "safe": Durability(doubt="probe", retry=RetryPolicy(kind="safe", max_attempts=3)),
        "idempotent": Durability(effect="idempotent", retry=RetryPolicy(kind="idempotent", max_attempts=2)),
        "pure": Durability(effect="pure", concurrency_class="db"),
        "serial": Durability(serial=True),
        "classed": Durability(concurrency_class="db"),
    }
)
_FINISHES: list[FinishReason] = ["stop", "stop", "stop", "length", "refusal"]
_CLASSES: list[FailureClass] = ["tool", "tool", "invalid", "timeout"]
NAMES = [*(tool.name for tool in TOOLS.tools), "unheard"]


@dataclass
class Owner:
    """Drives one turn. Every step appends records; `news` are those of the last step."""

    random: Random
    turn_id: TurnId
    index: int = 0
    limits: Limits = LIMITS
    tools: Composition = TOOLS
    cancellable: bool = True
    steerable: bool = False
    steered: list[str] = field(default_factory=list[str])
    records: list[Record] = field(default_factory=list[Record])
    doubted: list[tuple[EffectId, Call]] = field(default_factory=list[tuple[EffectId, Call]])
    """Attempts that a dead worker may still report on."""
    crashes: int = 0

    def __post_init__(self) -> None:
        self.opening = TurnOpened(turn=self.turn_id, index=self.index, composition=BlobHash("h"), limits=self.limits)
        self.turn = opened(self.opening, self.tools)

    def refolded(self) -> Turn:
        """The turn as a new owner would fold it from the log."""
        turn = opened(self.opening, self.tools)
        for record in self.records:
            turn = advance(turn, record)
        return turn

    def steps(self, most: int = 600) -> Iterator[tuple[Turn, list[Record]]]:
        """The turn before each step, and the records the step added, until the turn is over."""
        for _ in range(most):
            if self.turn.ended:
                return
            before, length = self.turn, len(self.records)
            self._step()
            yield before, self.records[length:]
        raise AssertionError(f"not over after {most} steps")

    def _step(self) -> None:
        luck = self.random.random()
        if luck < 0.06:
            self._crash()
        elif luck < 0.09 and self.doubted:
            self._hear_late()
        elif luck < 0.10 and self.cancellable:
            self._cancel()
        elif luck < 0.18 and self.steerable and any(isinstance(item, AskModel) for item in owed(self.turn)):
            self._steer()
        else:
            self._do(self.random.choice(owed(self.turn)))

    def _add(self, *records: Record) -> None:
        for record in records:
            self.turn = advance(self.turn, record)
            self.records.append(record)

    def _steer(self) -> None:
        """Steer the running turn before its model is called."""
        text = f"<steer {self.turn_id} {len(self.steered)}>"
        self.steered.append(text)
        input = InputId(f"{self.turn_id}-{len(self.steered)}")
        self._add(
            InputAdmitted(input=input, turn=self.turn_id, parts=(Text(text=text),), mode="steer", joins=True)
        )  # fmt: skip

    def _crash(self) -> None:
        self.crashes += 1
        self.turn = self.refolded()
        for settled in recovery(self.turn):
            self._doubt(settled.id)
            self._add(settled)

    def _doubt(self, effect: EffectId) -> None:
        for ref, call in unanswered(self.turn):
            if ref.id == effect:
                self.doubted.append((effect, call))

    def _hear_late(self) -> None:
        effect, call = self.doubted.pop(self.random.randrange(len(self.doubted)))
        output = self.random.choice([Success(value="late"), _failed(self.random)])
        self._add(OutcomeArrivedLate(call=call.request.id, id=effect, tool=call.request.name, output=output))

    def _cancel(self) -> None:
        self._add(CancelRequested(turn=self.turn_id, request="r"))
        for ref, call in unanswered(self.turn):
            if call.pending:
                self._add(completed(ref, Cancelled()))
                continue
            output = call.doubt or (InDoubt(reason="cancelled") if call.started else NotRun())
            self._add(ended(ref.id, output, tool=call.request.name, turn=self.turn_id))
        self._add(stopped(self.turn, "cancelled", "enough"))

    def _do(self, item: Owed) -> None:
        match item:
            case AskModel():
                self._ask(item)
            case RunCall():
                self._run(item)
            case RetryWait(due_at=None):
                self._add(backoff(item.ref.id))
            case RetryWait():
                self._add(woke(item.ref.id))
            case Probe():
                self._add(verdict(item.ref.id, self.random.choice(["happened", "did_not_happen", "unknown"])))
            case AwaitCompletion():
                how: list[Resolution] = [Ok(value=1), Failure(code="no", message="no"), TimedOut()]
                self._add(completed(item.ref, self.random.choice(how)))
            case AwaitApproval():
                self._add(completed(item.ref, self._word("approve", "deny"), tail="approval"))
            case AwaitVerdict():
                self._add(completed(item.ref, self._word("happened", "did_not_happen", "unknown"), tail="doubt"))
            case EndTurn():
                self._add(item.ended)

    def _word(self, *verdicts: Verdict) -> Resolution:
        said = [Decision(verdict=verdict, by="ana", at=1).resolution for verdict in verdicts]
        return self.random.choice([*said, TimedOut(), Cancelled()])

    def _ask(self, item: AskModel) -> None:
        if not any(record == asked(item.ref.id) for record in self.records) and self.random.random() < 0.9:
            self._add(asked(item.ref.id))
            return
        self._add(EffectSettled(id=item.ref.id, outcome=self._model_outcome(item)))

    def _model_outcome(self, item: AskModel) -> LlmCallOutcome:
        if self.random.random() < 0.15:
            error = LlmError(kind="unavailable", message="down", retryable=self.random.random() < 0.9)
            return LlmCallOutcome(error=error)
        count = self.random.choice([0, 1, 1, 2, 3, 5])
        parts: tuple[ReplyPart, ...] = requests(
            [self.random.choice(NAMES) for _ in range(count)], item.ref.iteration, self.turn_id
        )
        if self.random.random() < 0.5:
            parts = (Text(text=self.random.choice(["so", "", " "])), *parts)
        if self.random.random() < 0.3:
            parts = (Thinking(text="hm"), *parts)
        finish: FinishReason = self.random.choice(_FINISHES)
        return LlmCallOutcome(reply=Reply(parts=parts, finish=finish, usage=Usage(output=1, calls=1)))

    def _run(self, item: RunCall) -> None:
        effect: EffectClass = item.contract.durability.effect if item.contract else "once"
        call = next(call for ref, call in unanswered(self.turn) if ref == item.ref)
        assert call.approval is None or call.decision is not None, "the call may not run yet"
        fresh = not (call.started or call.approval) and item.ref.attempt == 1
        if fresh and self.random.random() < 0.3:
            self._add(people_asked(item.ref, item.call))
            return
        if effect == "once" and call.started is None and item.contract:
            doubt = item.contract.durability.doubt
            self._add(intent(item.ref.id, effect=effect, doubt=doubt))
            return
        if call.started and self.random.random() < 0.2:
            key = unsigned_key("scope", ToolCompletion(call_id=item.call.id, attempt=item.ref.attempt))
            if call.completion is None:
                self._add(key_made(item.ref, key))
            else:
                self._add(EffectSettled(id=item.ref.id, outcome=ToolCallOutcome(launch=Pending(key=key))))
            return
        output = self._output(doubtful=call.started is not None)
        if isinstance(output, InDoubt):
            self._doubt(item.ref.id)
        self._add(ended(item.ref.id, output, tool=item.call.name, turn=self.turn_id))

    def _output(self, *, doubtful: bool) -> ToolOutput:
        luck = self.random.random()
        if doubtful and luck < 0.3:
            return InDoubt(reason="timeout")
        return Success(value=self.random.randrange(9)) if luck < 0.6 else _failed(self.random)


def key_made(ref: EffectRef, key: EventKey) -> EffectStarted:
    """Record that a call requested the key for its external completion."""
    id = replace(ref, tail="completion").id
    return EffectStarted(id=id, kind=EffectKind.AWAIT_EVENT, fingerprint="f", command=AwaitEvent(key=key))


def completed(ref: EffectRef, resolution: Resolution, tail: Tail = "completion") -> EffectSettled:
    """Record an external completion or a person's answer."""
    id = replace(ref, tail=tail).id
    return EffectSettled(id=id, outcome=AwaitEventOutcome(resolution=resolution), fingerprint="f")


def people_asked(ref: EffectRef, call: ToolCall) -> EffectStarted:
    """Record the approval request of a call."""
    key = unsigned_key("scope", consent_to(call.id, call.name, call.args))
    about = PreparedToolCall(call_id=call.id, tool_id=f"tool:{call.name}", tool_name=call.name, args=call.args)
    id, command = replace(ref, tail="approval").id, AwaitEvent(key=key, about=about)
    return EffectStarted(id=id, kind=EffectKind.AWAIT_EVENT, fingerprint="f", command=command, due_at=9)


def _failed(random: Random) -> Failed:
    failure_class: FailureClass = random.choice(_CLASSES)
    return Failed(
        failure=FailureDetail(
            code="broke", message="it broke", failure_class=failure_class, retry_safe=random.random() < 0.6
        )
    )
