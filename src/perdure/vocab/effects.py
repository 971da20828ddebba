"""Effects as data. Every nondeterministic operation is described here, performed through one seam, and recorded.

An envelope is an invocation (scope, cause, replay key) and a command. An outcome answers exactly one kind of command;
the typed extractors raise on any other.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Literal, TypeAlias

from perdure.codec import Json, digest
from perdure.errors import Code, Error
from perdure.ids import BlobHash, CallId
from perdure.vocab import causes
from perdure.vocab.messages import AttachmentRef, Message
from perdure.vocab.processes import ProcessCommand
from perdure.vocab.promises import EventKey
from perdure.vocab.wire import Value


class EffectKind(StrEnum):
    """The eleven kinds of effect."""

    LLM_CALL = "llm_call"
    DIRECT = "direct"
    TOOL_CALL = "tool_call"
    TOOL_BATCH = "tool_batch"
    DURABLE_STEP = "durable_step"
    PROCESS = "process"
    EXEC_CODE = "exec_code"
    CHECKPOINT = "checkpoint"
    SYNC_EXECUTION_ENVIRONMENT = "sync_execution_environment"
    SLEEP = "sleep"
    AWAIT_EVENT = "await_event"


# --- invocation -------------------------------------------------------------------------------------------------


class Scope(Value, frozen=True):
    """The session, turn and iteration of an effect."""

    session_id: str
    turn_id: str | None = None
    turn_index: int | None = None
    protocol_iteration: int | None = None


class EffectSubject(Value, frozen=True, tag="effect"):
    """The invocation concerns an effect."""

    effect_id: str
    kind: EffectKind


class ProcessSubject(Value, frozen=True, tag="process"):
    """The invocation concerns a process."""

    process_id: str


class ProcessEventSubject(Value, frozen=True, tag="process_event"):
    """The invocation concerns one process event."""

    process_id: str
    sequence: int
    event_type: str


class TriggerOccurrenceSubject(Value, frozen=True, tag="trigger_occurrence"):
    """The invocation concerns a trigger occurrence."""

    occurrence_id: str


class SessionNodeSubject(Value, frozen=True, tag="session_node"):
    """The invocation concerns a point in a session's history."""

    node_id: str


Subject: TypeAlias = (
    EffectSubject | ProcessSubject | ProcessEventSubject | TriggerOccurrenceSubject | SessionNodeSubject
)


class Replay(Value, frozen=True):
    """The key under which an effect is answered once."""

    key: str


class Invocation(Value, frozen=True):
    """Origin of a request: scope, subject, cause and replay key."""

    scope: Scope
    subject: Subject
    caused_by: causes.CausalRef | None = None
    replay: Replay | None = None

    @staticmethod
    def effect(
        scope: Scope,
        effect_id: str,
        kind: EffectKind,
        replay_key: str,
        caused_by: causes.CausalRef | None = None,
    ) -> Invocation:
        """Return the invocation of an effect with a replay key, the usual form."""
        return Invocation(
            scope=scope,
            subject=EffectSubject(effect_id=effect_id, kind=kind),
            caused_by=caused_by,
            replay=Replay(key=replay_key),
        )

    @property
    def effect_id(self) -> str | None:
        """The effect's id; None for every other subject."""
        return self.subject.effect_id if isinstance(self.subject, EffectSubject) else None

    @property
    def effect_kind(self) -> EffectKind | None:
        """The effect's kind; None for every other subject."""
        return self.subject.kind if isinstance(self.subject, EffectSubject) else None

    @property
    def replay_key(self) -> str | None:
        """The replay key, or None."""
        return self.replay.key if self.replay else None

    def causal_ref(self) -> causes.CausalRef:
        """Return the reference by which effects and records name this invocation as their cause."""
        session = self.scope.session_id
        match self.subject:
            case EffectSubject(effect_id=effect_id):
                return causes.EffectCause(session_id=session, turn_id=self.scope.turn_id, effect_id=effect_id)
            case ProcessSubject(process_id=process_id):
                return causes.ProcessCause(process_id=process_id)
            case ProcessEventSubject(process_id=process_id, sequence=sequence):
                return causes.ProcessEventCause(process_id=process_id, sequence=sequence)
            case TriggerOccurrenceSubject(occurrence_id=occurrence_id):
                return causes.TriggerOccurrenceCause(occurrence_id=occurrence_id)
            case SessionNodeSubject(node_id=node_id):
                return causes.SessionNodeCause(session_id=session, node_id=node_id)


# --- commands ---------------------------------------------------------------------------------------------------


class ViewRef(Value, frozen=True):
    """The messages of a model request by reference: turns `from_turn` to `turn`, as of one iteration of `turn`."""

    from_turn: int
    turn: int
    iteration: int


ToolChoice = Literal["auto", "none", "required"]


class LlmRequestSpec(Value, frozen=True):
    """A model request that refers to the composition and the conversation instead of containing them.

    A turn's request uses `composition` and `view`; a direct completion carries its own short `messages`. Attachments
    are always references; see `effects.attachments` for how they become so.
    """

    model: str
    composition: BlobHash | None = None
    view: ViewRef | None = None
    messages: tuple[Message, ...] = ()
    attachments: tuple[AttachmentRef, ...] = ()
    tool_choice: ToolChoice = "auto"
    model_variant: str | None = None
    generation: Json = None
    session_id: str | None = None
    output_spec: Json = None


class PreparedToolCall(Value, frozen=True):
    """A call that passed preparation, with everything its execution needs."""

    call_id: CallId
    tool_id: str
    tool_name: str
    args: Json
    replay: Replay | None = None
    prepared_payload: Json = None

    @property
    def identity(self) -> PreparedToolCall:
        """The call itself: preparation that changes nothing."""
        return self


class BatchedCall(Value, frozen=True):
    """One call of a batch, with the suffix that makes its replay key unique in the batch."""

    call: PreparedToolCall
    replay_suffix: str


class PreparedToolBatch(Value, frozen=True):
    """Calls prepared together."""

    batch_id: str
    calls: tuple[BatchedCall, ...]

    @staticmethod
    def of(calls: tuple[PreparedToolCall, ...]) -> PreparedToolBatch:
        """Return a batch named by the content of its ordered calls."""
        batched = tuple(
            BatchedCall(call=call, replay_suffix=f"child:{index}:{call.call_id}") for index, call in enumerate(calls)
        )
        content = [(call.call_id, call.tool_id, call.args) for call in calls]
        return PreparedToolBatch(batch_id=f"tool-batch:{digest(content)}", calls=batched)

    @property
    def is_empty(self) -> bool:
        """True if the batch has no calls."""
        return not self.calls

    def __len__(self) -> int:
        return len(self.calls)


class LlmCall(Value, frozen=True, tag="llm_call"):
    """A model request within a turn."""

    request: LlmRequestSpec
    kind: ClassVar[EffectKind] = EffectKind.LLM_CALL


class Direct(Value, frozen=True, tag="direct"):
    """A model request outside the turn loop."""

    request: LlmRequestSpec
    usage_source: str
    kind: ClassVar[EffectKind] = EffectKind.DIRECT


class CallTool(Value, frozen=True, tag="tool_call"):
    """One attempt of one prepared call."""

    call: PreparedToolCall
    kind: ClassVar[EffectKind] = EffectKind.TOOL_CALL


class CallTools(Value, frozen=True, tag="tool_batch"):
    """A batch of prepared calls."""

    batch: PreparedToolBatch
    kind: ClassVar[EffectKind] = EffectKind.TOOL_BATCH


class DurableStep(Value, frozen=True, tag="durable_step"):
    """One named local step; its input is part of its identity."""

    step_id: str
    input: Json = None
    kind: ClassVar[EffectKind] = EffectKind.DURABLE_STEP


class Process(Value, frozen=True, tag="process"):
    """A command to the process table."""

    command: ProcessCommand
    kind: ClassVar[EffectKind] = EffectKind.PROCESS


class ExecCode(Value, frozen=True, tag="exec_code"):
    """A program that the model wrote."""

    code: str
    kind: ClassVar[EffectKind] = EffectKind.EXEC_CODE


CheckpointKind = Literal["after_model", "after_tools", "before_final", "in_code"]


class Checkpoint(Value, frozen=True, tag="checkpoint"):
    """A check for steering, wakes and cancellation between iterations, or a stored state of a model's program."""

    checkpoint: CheckpointKind
    kind: ClassVar[EffectKind] = EffectKind.CHECKPOINT


class SyncExecutionEnvironment(Value, frozen=True, tag="sync_execution_environment"):
    """A refresh of the execution environment of the turn's code."""

    update_machine_config: bool = False
    kind: ClassVar[EffectKind] = EffectKind.SYNC_EXECUTION_ENVIRONMENT


class Sleep(Value, frozen=True, tag="sleep"):
    """A wait for a duration. The due time is fixed when the sleep is first recorded."""

    duration_ms: int
    kind: ClassVar[EffectKind] = EffectKind.SLEEP


class AwaitEvent(Value, frozen=True, tag="await_event"):
    """A wait for a promise. `about` is the call that needs a person's decision, exactly as it would run."""

    key: EventKey
    about: PreparedToolCall | None = None
    kind: ClassVar[EffectKind] = EffectKind.AWAIT_EVENT


Command: TypeAlias = (
    LlmCall
    | Direct
    | CallTool
    | CallTools
    | DurableStep
    | Process
    | ExecCode
    | Checkpoint
    | SyncExecutionEnvironment
    | Sleep
    | AwaitEvent
)


class Envelope(Value, frozen=True):
    """One effect, validated on construction. Its hash detects another request under the same key.

    Raises:
        Error: `runtime_effect_invocation_subject`, `runtime_effect_invocation_kind`,
            `runtime_effect_tool_batch_empty` or `runtime_effect_replay_required` if invocation and command do not fit.
    """

    invocation: Invocation
    command: Command

    def __post_init__(self) -> None:
        subject = self.invocation.subject
        if not isinstance(subject, EffectSubject):
            raise Error(Code.RUNTIME_EFFECT_INVOCATION_SUBJECT, "the subject of an effect envelope must be an effect")
        if not subject.effect_id.strip():
            raise Error(Code.RUNTIME_EFFECT_INVOCATION_SUBJECT, "the effect id of an envelope must not be blank")
        if subject.kind != self.command.kind:
            raise Error(
                Code.RUNTIME_EFFECT_INVOCATION_KIND,
                f"the invocation has kind {subject.kind.value}, the command {self.command.kind.value}",
            )
        if isinstance(self.command, CallTools) and self.command.batch.is_empty:
            raise Error(Code.RUNTIME_EFFECT_TOOL_BATCH_EMPTY, "the batch of tool calls is empty")
        if (replay := self.invocation.replay) is None or not replay.key:
            raise Error(Code.RUNTIME_EFFECT_REPLAY_REQUIRED, "an effect envelope needs a replay key")

    @property
    def id(self) -> str:
        """The effect id."""
        subject = self.invocation.subject
        return subject.effect_id if isinstance(subject, EffectSubject) else ""

    @property
    def key(self) -> str:
        """The replay key."""
        return self.invocation.replay_key or ""

    @property
    def kind(self) -> EffectKind:
        """The kind of the command."""
        return self.command.kind

    def fingerprint(self) -> str:
        """Return the sha256 of the canonical JSON of the whole envelope.

        Raises:
            Error: `runtime_effect_envelope_hash` if a part of it cannot be encoded.
        """
        try:
            return digest(self)
        except (TypeError, ValueError, OverflowError, RecursionError) as problem:
            raise Error(
                Code.RUNTIME_EFFECT_ENVELOPE_HASH, "the effect envelope cannot be encoded", because=str(problem)
            ) from None
