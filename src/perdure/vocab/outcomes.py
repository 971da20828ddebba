"""Outcomes of effects: what became of a command. Each answers exactly one kind; the extractors insist on it."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias, TypeVar

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.ids import CallId
from perdure.vocab.effects import EffectKind
from perdure.vocab.messages import AttachmentRef, Reply
from perdure.vocab.processes import ProcessOutcome
from perdure.vocab.promises import AwaitEventKey, Cancelled, Err, Ok, Resolution, TimedOut
from perdure.vocab.usage import Usage
from perdure.vocab.wire import Value

FailureClass = Literal["tool", "invalid", "timeout", "cancelled", "unavailable", "internal", "panic"]


class Failure(Value, frozen=True):
    """A known failure: it is certain that the call did not succeed. The code may be the tool's own."""

    code: str
    message: str
    failure_class: FailureClass = "tool"
    retry_safe: bool = False
    retry_after_ms: int | None = None
    attempts: int = 1
    error_type: str = ""


class Success(Value, frozen=True, tag="success", tag_field="status"):
    """The call did what it should. A large value is kept as a blob, and `value` is then its readable head.

    `connection_required`: it could do nothing yet, because nobody has connected an account at this provider.
    """

    value: Json = None
    spilled: AttachmentRef | None = None
    images: tuple[AttachmentRef, ...] = ()
    connection_required: str = ""


class Failed(Value, frozen=True, tag="failure", tag_field="status"):
    """The call failed, and we know it."""

    failure: Failure


class InDoubt(Value, frozen=True, tag="in_doubt", tag_field="status"):
    """The call was dispatched and nobody knows whether it took effect. It is never re-run blindly.

    `left_running`: its body ignored that it should stop, so it may still take effect.
    """

    reason: Literal["worker_lost", "timeout", "cancelled", "drained", "declared"]
    message: str = ""
    left_running: bool = False


class NotRun(Value, frozen=True, tag="cancelled", tag_field="status"):
    """The call was never dispatched."""

    reason: str = ""


ToolOutput: TypeAlias = Success | Failed | InDoubt | NotRun


class CompletedToolCall(Value, frozen=True):
    """The end of one attempt."""

    call_id: CallId
    tool_name: str
    output: ToolOutput
    duration_ms: int = 0


class PendingCompletion(Value, frozen=True):
    """How long to wait for somebody outside, and what silence or a cancel means."""

    deadline_ms: int | None = None
    on_timeout: Literal["error_as_result", "fail_turn"] = "error_as_result"
    on_cancel: Literal["cancel_external_work", "ignore"] = "cancel_external_work"


class Done(Value, frozen=True, tag="done", tag_field="status"):
    """The attempt ended."""

    result: CompletedToolCall


class Pending(Value, frozen=True, tag="pending", tag_field="status"):
    """The attempt handed its end to somebody outside, who has time until `due_at`; `silence` is the value it has if
    nobody answers until then. None: then it has failed.
    """

    key: AwaitEventKey
    pending: PendingCompletion = PendingCompletion()
    due_at: int | None = None
    duration_ms: int = 0
    silence: Json = None


Launch: TypeAlias = Done | Pending


def completed(resolution: Resolution) -> ToolOutput:
    """What an answer from outside makes of a pending call."""
    match resolution:
        case Ok(value=value):
            return Success(value=value)
        case Err(code=code, message=message):
            return Failed(failure=Failure(code=code, message=message))
        case TimedOut():
            message = "nobody completed the call in time"
            return Failed(failure=Failure(code="tool_completion_timeout", message=message, failure_class="timeout"))
        case Cancelled():
            message = "the wait for the call's completion was cancelled"
            return Failed(failure=Failure(code="tool_completion_cancelled", message=message, failure_class="cancelled"))


LlmErrorKind = Literal[
    "auth",
    "quota",
    "rate_limit",
    "unavailable",
    "invalid",
    "too_large",
    "stream_cut",
    "stall",
    "refused",
    "internal",
    "job_lost",
    "worker_lost",
    "cancelled",
]


class LlmError(Value, frozen=True):
    """Why a model call gave no reply."""

    kind: LlmErrorKind
    message: str
    retryable: bool = False
    retry_after_ms: int | None = None
    status: int | None = None


class LlmCallOutcome(Value, frozen=True, tag="llm_call"):
    """A reply, or the error of this attempt.

    `output` tells what became of the check of a final reply, if the turn asks for one; `problem` why it failed.
    `spent` is what an attempt that gave no reply cost, as its provider told or as it was estimated.
    """

    reply: Reply | None = None
    error: LlmError | None = None
    text_streamed: bool = False
    output: Literal["", "valid", "invalid"] = ""
    problem: str = ""
    spent: Usage = Usage()
    kind: ClassVar[EffectKind] = EffectKind.LLM_CALL

    @property
    def text(self) -> str:
        """What a turn that ends with it has for its text: where a form was asked for, what has that form."""
        if self.reply is None:
            return ""
        return self.reply.answer if self.output == "valid" else self.reply.text

    @property
    def bought(self) -> Usage:
        """What it cost, whatever came of it."""
        return self.reply.usage if self.reply is not None else self.spent


class DirectOutcome(Value, frozen=True, tag="direct"):
    """A reply, or the error, and on whose account it was asked for. `spent` is what was bought without a reply, or
    where none is kept, and `model` by whom then."""

    reply: Reply | None = None
    error: LlmError | None = None
    source: str = ""
    spent: Usage = Usage()
    model: str = ""

    @property
    def bought(self) -> Usage:
        """What it cost, whatever came of it."""
        return self.reply.usage if self.reply is not None else self.spent

    @property
    def lost(self) -> bool:
        """Whether nobody waited for the answer any more, so that it is asked for again."""
        return self.error is not None and self.error.kind in ("worker_lost", "cancelled")

    kind: ClassVar[EffectKind] = EffectKind.DIRECT


class DirectUsage(Value, frozen=True):
    """What a model call outside the loop cost, and on whose account."""

    source: str
    model: str
    usage: Usage


class ToolCallOutcome(Value, frozen=True, tag="tool_call"):
    """What became of one attempt, with the triggers it fired and the model calls it made itself."""

    launch: Launch
    triggers: tuple[Json, ...] = ()
    direct: tuple[DirectUsage, ...] = ()
    kind: ClassVar[EffectKind] = EffectKind.TOOL_CALL


class ToolBatchOutcome(Value, frozen=True, tag="tool_batch"):
    """What became of each call, in order."""

    launches: tuple[Launch, ...]
    triggers: tuple[Json, ...] = ()
    kind: ClassVar[EffectKind] = EffectKind.TOOL_BATCH


class StepFailure(Value, frozen=True):
    """A step's own error: recorded and replayed like a value."""

    code: str
    message: str
    retry_safe: bool = False
    retry_after_ms: int | None = None
    error_type: str = ""


class DurableStepOutcome(Value, frozen=True, tag="durable_step"):
    """The step's value, its error, or the doubt it was left in."""

    value: Json = None
    error: StepFailure | None = None
    in_doubt: InDoubt | None = None
    kind: ClassVar[EffectKind] = EffectKind.DURABLE_STEP


class ProcessEffectOutcome(Value, frozen=True, tag="process"):
    """What the process table answered."""

    result: ProcessOutcome
    kind: ClassVar[EffectKind] = EffectKind.PROCESS


class ExecCodeOutcome(Value, frozen=True, tag="exec_code"):
    """What the program answered, or its error."""

    response: Json = None
    error: str | None = None
    kind: ClassVar[EffectKind] = EffectKind.EXEC_CODE


class CheckpointOutcome(Value, frozen=True, tag="checkpoint"):
    """What the checkpoint delivered, or its error."""

    delivery: Json = None
    error: StepFailure | None = None
    kind: ClassVar[EffectKind] = EffectKind.CHECKPOINT


class SyncOutcome(Value, frozen=True, tag="sync_execution_environment"):
    """What changed, or the error."""

    sync: Json = None
    error: str | None = None
    kind: ClassVar[EffectKind] = EffectKind.SYNC_EXECUTION_ENVIRONMENT


class SleepOutcome(Value, frozen=True, tag="sleep"):
    """The moment has come."""

    kind: ClassVar[EffectKind] = EffectKind.SLEEP


class AwaitEventOutcome(Value, frozen=True, tag="await_event"):
    """How the promise ended."""

    resolution: Resolution
    kind: ClassVar[EffectKind] = EffectKind.AWAIT_EVENT


Outcome: TypeAlias = (
    LlmCallOutcome
    | DirectOutcome
    | ToolCallOutcome
    | ToolBatchOutcome
    | DurableStepOutcome
    | ProcessEffectOutcome
    | ExecCodeOutcome
    | CheckpointOutcome
    | SyncOutcome
    | SleepOutcome
    | AwaitEventOutcome
)


AnyOutcome = TypeVar("AnyOutcome", bound=Outcome)


def _of_kind(outcome: Outcome, wanted: type[AnyOutcome]) -> AnyOutcome:
    if isinstance(outcome, wanted):
        return outcome
    raise Error(
        Code.RUNTIME_EFFECT_WRONG_OUTCOME,
        f"expected the outcome of {wanted.kind.value}, got that of {outcome.kind.value}",
        expected=wanted.kind.value,
        actual=outcome.kind.value,
    )


def into_llm_call(outcome: Outcome) -> LlmCallOutcome:
    """The outcome of an `llm_call`, or `runtime_effect_wrong_outcome`."""
    return _of_kind(outcome, LlmCallOutcome)


def into_direct(outcome: Outcome) -> DirectOutcome:
    """The outcome of a `direct`, or `runtime_effect_wrong_outcome`."""
    return _of_kind(outcome, DirectOutcome)


def into_tool_call_effect(outcome: Outcome) -> ToolCallOutcome:
    """The outcome of a `tool_call`, pending or done, or `runtime_effect_wrong_outcome`."""
    return _of_kind(outcome, ToolCallOutcome)


def into_tool_call(outcome: Outcome) -> CompletedToolCall:
    """The completed call; `runtime_effect_tool_call_pending` while somebody outside still owes its end."""
    match into_tool_call_effect(outcome).launch:
        case Done(result=result):
            return result
        case Pending():
            raise Error(Code.RUNTIME_EFFECT_TOOL_CALL_PENDING, "the tool call is pending: it has no output yet")


def into_tool_batch(outcome: Outcome) -> ToolBatchOutcome:
    """The outcome of a `tool_batch`, or `runtime_effect_wrong_outcome`."""
    return _of_kind(outcome, ToolBatchOutcome)


def into_durable_step(outcome: Outcome) -> DurableStepOutcome:
    """The outcome of a `durable_step`, or `runtime_effect_wrong_outcome`."""
    return _of_kind(outcome, DurableStepOutcome)


def into_process(outcome: Outcome) -> ProcessOutcome:
    """What the process table answered, or `runtime_effect_wrong_outcome`."""
    return _of_kind(outcome, ProcessEffectOutcome).result


def into_exec_code(outcome: Outcome) -> ExecCodeOutcome:
    """The outcome of an `exec_code`, or `runtime_effect_wrong_outcome`."""
    return _of_kind(outcome, ExecCodeOutcome)


def into_checkpoint(outcome: Outcome) -> CheckpointOutcome:
    """The outcome of a `checkpoint`, or `runtime_effect_wrong_outcome`."""
    return _of_kind(outcome, CheckpointOutcome)


def into_sync_execution_environment(outcome: Outcome) -> SyncOutcome:
    """The outcome of a `sync_execution_environment`, or `runtime_effect_wrong_outcome`."""
    return _of_kind(outcome, SyncOutcome)


def into_sleep(outcome: Outcome) -> SleepOutcome:
    """The outcome of a `sleep`, or `runtime_effect_wrong_outcome`."""
    return _of_kind(outcome, SleepOutcome)


def into_await_event(outcome: Outcome) -> Resolution:
    """How the promise ended, or `runtime_effect_wrong_outcome`."""
    return _of_kind(outcome, AwaitEventOutcome).resolution
