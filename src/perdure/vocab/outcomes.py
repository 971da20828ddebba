"""Outcomes of effects. Each answers exactly one kind of command; the extractors enforce it."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias, TypeVar

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.ids import CallId
from perdure.vocab.effects import EffectKind
from perdure.vocab.messages import AttachmentRef, Reply
from perdure.vocab.processes import ProcessOutcome
from perdure.vocab.promises import Cancelled, EventKey, Failure, Ok, Resolution, TimedOut
from perdure.vocab.usage import Usage
from perdure.vocab.wire import Value

FailureClass = Literal["tool", "invalid", "timeout", "cancelled", "unavailable", "internal", "panic"]


class FailureDetail(Value, frozen=True):
    """A known failure: the call certainly did not succeed. The code may be the tool's own."""

    code: str
    message: str
    failure_class: FailureClass = "tool"
    retry_safe: bool = False
    retry_after_ms: int | None = None
    attempts: int = 1
    error_type: str = ""


class Success(Value, frozen=True, tag="success", tag_field="status"):
    """A successful call. A large value is stored as a blob, and `value` is then a readable prefix.

    `connection_required`: the call did nothing yet, because no account is connected at this provider.
    """

    value: Json = None
    spilled: AttachmentRef | None = None
    images: tuple[AttachmentRef, ...] = ()
    connection_required: str = ""


class Failed(Value, frozen=True, tag="failure", tag_field="status"):
    """A call that is known to have failed."""

    failure: FailureDetail


class InDoubt(Value, frozen=True, tag="in_doubt", tag_field="status"):
    """A dispatched call whose outcome is unknown, and which is therefore not re-run blindly.

    `left_running`: the body ignored the request to stop and may still take effect.
    """

    reason: Literal["worker_lost", "timeout", "cancelled", "drained", "declared"]
    message: str = ""
    left_running: bool = False


class NotRun(Value, frozen=True, tag="cancelled", tag_field="status"):
    """A call that was never dispatched."""

    reason: str = ""


ToolOutput: TypeAlias = Success | Failed | InDoubt | NotRun


class CompletedToolCall(Value, frozen=True):
    """The end of one attempt."""

    call_id: CallId
    tool_name: str
    output: ToolOutput
    duration_ms: int = 0


class PendingCompletion(Value, frozen=True):
    """How long to wait for an external completion, and what a timeout or a cancel means."""

    deadline_ms: int | None = None
    on_timeout: Literal["error_as_result", "fail_turn"] = "error_as_result"
    on_cancel: Literal["cancel_external_work", "ignore"] = "cancel_external_work"


class Done(Value, frozen=True, tag="done", tag_field="status"):
    """The attempt ended."""

    result: CompletedToolCall


class Pending(Value, frozen=True, tag="pending", tag_field="status"):
    """The attempt waits for an external completion until `due_at`.

    `silence` is the call's value if the wait times out; None: the call fails.
    """

    key: EventKey
    pending: PendingCompletion = PendingCompletion()
    due_at: int | None = None
    duration_ms: int = 0
    silence: Json = None


Launch: TypeAlias = Done | Pending


def completed(resolution: Resolution) -> ToolOutput:
    """Return the output of a pending call from its external resolution."""
    match resolution:
        case Ok(value=value):
            return Success(value=value)
        case Failure(code=code, message=message):
            return Failed(failure=FailureDetail(code=code, message=message))
        case TimedOut():
            message = "the external completion of the call timed out"
            return Failed(
                failure=FailureDetail(code="tool_completion_timeout", message=message, failure_class="timeout")
            )
        case Cancelled():
            message = "the wait for the call's completion was cancelled"
            return Failed(
                failure=FailureDetail(code="tool_completion_cancelled", message=message, failure_class="cancelled")
            )


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
    """The reason a model call gave no reply, and a remedy if one is known."""

    kind: LlmErrorKind
    message: str
    hint: str = ""
    retryable: bool = False
    retry_after_ms: int | None = None
    status: int | None = None


class LlmCallOutcome(Value, frozen=True, tag="llm_call"):
    """A reply, or the error of this attempt.

    `output` is the result of the output check of a final reply, if the turn has one; `problem` the reason it failed.
    `spent` is the usage of an attempt without a reply, reported by the provider or estimated.
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
        """The text of a turn that ends with this reply; if an output form was required, only the part that has it."""
        if self.reply is None:
            return ""
        return self.reply.answer if self.output == "valid" else self.reply.text

    @property
    def bought(self) -> Usage:
        """The usage charged, with or without a reply."""
        return self.reply.usage if self.reply is not None else self.spent


class DirectOutcome(Value, frozen=True, tag="direct"):
    """The reply or the error of a model call outside the loop, and its usage source.

    `spent` and `model` are the usage and the model of a call whose reply is missing or not stored.
    """

    reply: Reply | None = None
    error: LlmError | None = None
    source: str = ""
    spent: Usage = Usage()
    model: str = ""

    @property
    def bought(self) -> Usage:
        """The usage charged, with or without a reply."""
        return self.reply.usage if self.reply is not None else self.spent

    @property
    def lost(self) -> bool:
        """True if the call was cut off by a lost worker or a cancel, so that it is made again."""
        return self.error is not None and self.error.kind in ("worker_lost", "cancelled")

    kind: ClassVar[EffectKind] = EffectKind.DIRECT


class DirectUsage(Value, frozen=True):
    """The usage of a model call outside the loop, and its source."""

    source: str
    model: str
    usage: Usage


class ToolCallOutcome(Value, frozen=True, tag="tool_call"):
    """The outcome of one attempt, with the triggers it fired and the usage of its own model calls."""

    launch: Launch
    triggers: tuple[Json, ...] = ()
    direct: tuple[DirectUsage, ...] = ()
    kind: ClassVar[EffectKind] = EffectKind.TOOL_CALL


class ToolBatchOutcome(Value, frozen=True, tag="tool_batch"):
    """The outcome of each call, in order."""

    launches: tuple[Launch, ...]
    triggers: tuple[Json, ...] = ()
    kind: ClassVar[EffectKind] = EffectKind.TOOL_BATCH


class StepFailure(Value, frozen=True):
    """A step's own error, recorded and replayed like a value."""

    code: str
    message: str
    retry_safe: bool = False
    retry_after_ms: int | None = None
    error_type: str = ""


class DurableStepOutcome(Value, frozen=True, tag="durable_step"):
    """The step's value, its error, or its doubt."""

    value: Json = None
    error: StepFailure | None = None
    in_doubt: InDoubt | None = None
    kind: ClassVar[EffectKind] = EffectKind.DURABLE_STEP


class ProcessEffectOutcome(Value, frozen=True, tag="process"):
    """The result of a command to the process table."""

    result: ProcessOutcome
    kind: ClassVar[EffectKind] = EffectKind.PROCESS


class ExecCodeOutcome(Value, frozen=True, tag="exec_code"):
    """The program's response, or its error."""

    response: Json = None
    error: str | None = None
    kind: ClassVar[EffectKind] = EffectKind.EXEC_CODE


class CheckpointOutcome(Value, frozen=True, tag="checkpoint"):
    """The delivery of the checkpoint, or its error."""

    delivery: Json = None
    error: StepFailure | None = None
    kind: ClassVar[EffectKind] = EffectKind.CHECKPOINT


class SyncOutcome(Value, frozen=True, tag="sync_execution_environment"):
    """The changed environment, or the error."""

    sync: Json = None
    error: str | None = None
    kind: ClassVar[EffectKind] = EffectKind.SYNC_EXECUTION_ENVIRONMENT


class SleepOutcome(Value, frozen=True, tag="sleep"):
    """The sleep is over."""

    kind: ClassVar[EffectKind] = EffectKind.SLEEP


class AwaitEventOutcome(Value, frozen=True, tag="await_event"):
    """The resolution of the promise."""

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
    """Return the outcome of an `llm_call`; raise `runtime_effect_wrong_outcome` for any other."""
    return _of_kind(outcome, LlmCallOutcome)


def into_direct(outcome: Outcome) -> DirectOutcome:
    """Return the outcome of a `direct`; raise `runtime_effect_wrong_outcome` for any other."""
    return _of_kind(outcome, DirectOutcome)


def into_tool_call_effect(outcome: Outcome) -> ToolCallOutcome:
    """Return the outcome of a `tool_call`, pending or done; raise `runtime_effect_wrong_outcome` for any other."""
    return _of_kind(outcome, ToolCallOutcome)


def into_tool_call(outcome: Outcome) -> CompletedToolCall:
    """Return the completed call; raise `runtime_effect_tool_call_pending` while its external completion is open."""
    match into_tool_call_effect(outcome).launch:
        case Done(result=result):
            return result
        case Pending():
            raise Error(Code.RUNTIME_EFFECT_TOOL_CALL_PENDING, "the tool call is pending: it has no output yet")


def into_tool_batch(outcome: Outcome) -> ToolBatchOutcome:
    """Return the outcome of a `tool_batch`; raise `runtime_effect_wrong_outcome` for any other."""
    return _of_kind(outcome, ToolBatchOutcome)


def into_durable_step(outcome: Outcome) -> DurableStepOutcome:
    """Return the outcome of a `durable_step`; raise `runtime_effect_wrong_outcome` for any other."""
    return _of_kind(outcome, DurableStepOutcome)


def into_process(outcome: Outcome) -> ProcessOutcome:
    """Return the result of a process command; raise `runtime_effect_wrong_outcome` for any other outcome."""
    return _of_kind(outcome, ProcessEffectOutcome).result


def into_exec_code(outcome: Outcome) -> ExecCodeOutcome:
    """Return the outcome of an `exec_code`; raise `runtime_effect_wrong_outcome` for any other."""
    return _of_kind(outcome, ExecCodeOutcome)


def into_checkpoint(outcome: Outcome) -> CheckpointOutcome:
    """Return the outcome of a `checkpoint`; raise `runtime_effect_wrong_outcome` for any other."""
    return _of_kind(outcome, CheckpointOutcome)


def into_sync_execution_environment(outcome: Outcome) -> SyncOutcome:
    """Return the outcome of a `sync_execution_environment`; raise `runtime_effect_wrong_outcome` for any other."""
    return _of_kind(outcome, SyncOutcome)


def into_sleep(outcome: Outcome) -> SleepOutcome:
    """Return the outcome of a `sleep`; raise `runtime_effect_wrong_outcome` for any other."""
    return _of_kind(outcome, SleepOutcome)


def into_await_event(outcome: Outcome) -> Resolution:
    """Return the resolution of an `await_event`; raise `runtime_effect_wrong_outcome` for any other outcome."""
    return _of_kind(outcome, AwaitEventOutcome).resolution
