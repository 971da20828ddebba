"""Log records: the journal and history of a stream. Every other view is a fold of them.

Laws: a record states what happened, in the past tense, and never changes. The lease holder writes owned records, which
move the machine. Any caller writes admitted records, which only add information, so a fold does not depend on their
order among owned records.

Effect ids are local to the open turn. `m2.1` is the first attempt of the second model call, `c2.0.1` the first attempt
of the first call of that reply. `.approval` names what precedes an attempt; `.sleep`, `.probe`, `.completion` and
`.doubt` name what follows one. `c2.0/step:render` is a part of that call's body.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import msgspec

from perdure.codec import Json, encode
from perdure.ids import (
    BlobHash,
    CallId,
    EffectId,
    InputId,
    PromiseId,
    Seq,
    StreamId,
    TurnId,
    WorkerId,
)
from perdure.vocab.children import ChildClaimed, ChildEnded, ChildRegistered, Parent
from perdure.vocab.effects import Command, EffectKind
from perdure.vocab.messages import AttachmentRef, InputPart
from perdure.vocab.outcomes import DirectUsage, Outcome, ToolOutput
from perdure.vocab.registrations import ProcessOutput, Registration
from perdure.vocab.schedules import ScheduleChanged, ScheduleCreated, ScheduleFired, SchedulePruned, ScheduleSkipped
from perdure.vocab.tools import DoubtPolicy, EffectClass
from perdure.vocab.triggers import (
    SubscriptionChanged,
    TriggerDeliveryFailed,
    TriggerOccurred,
    TriggerPruned,
    TriggerSourceOpened,
)
from perdure.vocab.usage import Usage
from perdure.vocab.wire import Value, read_stored, unknown_shape

FORMAT = 1
"""The highest record version that this code writes and reads."""

LIVE = "live:"
"""Prefix of the tags that a stream loses when it ends."""


class Limits(Value, frozen=True):
    """Limits of a turn. Token and cost limits apply to the turn and to its session so far.

    `calls_per_reply` and `calls_per_turn` bound the tool calls of the model; calls above are answered with a refusal.
    `recovery_ms` bounds the total wait for one reply that failed. `stall_ms` is how long a model may write nothing
    (None: no limit). Costs are in billionths of a US dollar. `partial_replies`: request an interrupted reply again, or
    keep the received text.
    """

    max_iterations: int = 50
    no_progress: int = 12
    model_attempts: int = 4
    max_parallel_calls: int = 32
    calls_per_reply: int = 64
    calls_per_turn: int = 1_000
    output_corrections: int = 2
    recovery_ms: int = 90_000
    turn_tokens: int | None = None
    turn_cost_nano: int | None = None
    session_tokens: int | None = None
    session_cost_nano: int | None = None
    stall_ms: int | None = 120_000
    partial_replies: Literal["restart", "finalize"] = "restart"

    @property
    def binds_session(self) -> bool:
        """True if the usage of the session so far counts."""
        return self.session_tokens is not None or self.session_cost_nano is not None


class SessionOpened(Value, frozen=True, tag="session_opened"):
    """The first record of a session. `parent` is set if another agent's call created it."""

    agent: str
    parent: Parent | None = None


InputMode = Literal["queue", "steer", "interrupt"]
"""Delivery mode of an input: after the queued inputs, into the running turn, or in place of the running turn."""


class InputAdmitted(Value, frozen=True, tag="input_admitted"):
    """An input entered the log. This turn answers it, on the model requested with it.

    An input that `joins` did not open the turn: it was steered into it, or drained together with the one that did.
    `source` is the sender. `by_session`: the session caused the input itself, and no person or host did.

    `content` is set on redaction: the digest that still identifies a repeated send of the same key and content.
    """

    input: InputId
    turn: TurnId
    parts: tuple[InputPart, ...]
    key: str = ""
    plugin_input: dict[str, Json] | None = None
    model: str = ""
    redacted: str = ""
    content: str = ""
    mode: InputMode = "queue"
    source: str = ""
    joins: bool = False
    output: Json = None
    by_session: bool = False


class InputCancelled(Value, frozen=True, tag="input_cancelled"):
    """An input was withdrawn before a turn took it. Admitted.

    `replaced_by` is the input sent in its place, and `answered_in` the turn of that input.
    """

    input: InputId
    turn: TurnId
    key: str = ""
    origin: str = ""
    reason: str = ""
    replaced_by: InputId = InputId("")
    answered_in: TurnId = TurnId("")
    redacted: str = ""


class TurnOpened(Value, frozen=True, tag="turn_opened"):
    """A turn began, on a composition that no deploy can change.

    The model view begins with turn `from_turn`, whose records begin at `view_seq`. `spent` is the earlier usage of the
    session, if a limit counts it.
    """

    turn: TurnId
    index: int
    composition: BlobHash
    from_turn: int = 0
    view_seq: Seq = Seq(0)
    limits: Limits | None = None
    redacted: str = ""
    spent: Usage = Usage()


class EffectStarted(Value, frozen=True, tag="effect_started"):
    """An effect is about to be dispatched. For a `once` effect this is the intent, durable before dispatch.

    `estimated_usage`: for a model call outside the conversation, the estimated usage of its request.
    """

    id: EffectId
    kind: EffectKind
    fingerprint: str
    command: Command | None = None
    effect: EffectClass = "pure"
    doubt: DoubtPolicy = "tell"
    worker: WorkerId = WorkerId("")
    deadline_at: int | None = None
    due_at: int | None = None
    redacted: str = ""
    estimated_usage: DirectUsage | None = msgspec.field(default=None, name="asks")


class ModelJobBegun(Value, frozen=True, tag="model_job_begun"):
    """The provider processes a model call as a background job. The next owner of the turn attaches to it.

    `job` is the provider's reference to it.
    """

    id: EffectId
    job: Json = None
    redacted: str = ""


class EffectSettled(Value, frozen=True, tag="effect_settled"):
    """The outcome of an effect. The effect is never performed again."""

    id: EffectId
    outcome: Outcome
    fingerprint: str = ""
    redacted: str = ""


class OutcomeArrivedLate(Value, frozen=True, tag="outcome_arrived_late"):
    """The real outcome of a call, reported by a worker that had lost its lease."""

    call: CallId
    id: EffectId
    tool: str
    output: ToolOutput
    redacted: str = ""


class AttachmentStored(Value, frozen=True, tag="attachment_stored"):
    """A call stored bytes in this session, under a reference that it may pass on."""

    call: CallId
    ref: AttachmentRef | None = None
    redacted: str = ""


class ToolMembershipChanged(Value, frozen=True, tag="tool_membership_changed"):
    """Tools were removed from the session's catalog, or put back. Later turns see the change."""

    names: tuple[str, ...]
    present: bool
    call: CallId = CallId("")


class HandedOver(Value, frozen=True, tag="handed_over"):
    """A call of this turn handed the conversation to another agent. That agent gets the next model call."""

    turn: TurnId
    call: CallId
    to: str
    reason: str = ""


class TurnAgentChanged(Value, frozen=True, tag="turn_agent_changed"):
    """Another agent took over the turn, on its own composition. `n` counts the handoffs of the turn."""

    turn: TurnId
    n: int
    agent: str
    composition: BlobHash
    redacted: str = ""


class ApprovalGranted(Value, frozen=True, tag="approval_granted"):
    """An approver allowed this call and later calls of the tool in this session. `grant` is the resolved promise.

    The grant covers calls by this agent of the tool with this contract, given by its digest.
    """

    grant: PromiseId
    tool: str
    agent: str
    contract: str
    by: str
    at: int
    via: str = ""


class GrantRevoked(Value, frozen=True, tag="grant_revoked"):
    """A session-wide approval was revoked. Admitted, once."""

    grant: PromiseId
    by: str
    via: str = ""


class CancelRequested(Value, frozen=True, tag="cancel_requested"):
    """A request to end a turn. Admitted. `superseded_by` is the interrupting input."""

    turn: TurnId
    request: str
    origin: str = ""
    reason: str = ""
    superseded_by: InputId = InputId("")
    redacted: str = ""


class SessionPaused(Value, frozen=True, tag="session_paused"):
    """The session was paused: nothing new begins. Admitted; the latest of pause and resume applies."""

    origin: str = ""
    reason: str = ""
    redacted: str = ""


class SessionResumed(Value, frozen=True, tag="session_resumed"):
    """The session was resumed. Admitted."""

    origin: str = ""


class SessionImported(Value, frozen=True, tag="session_imported"):
    """The past of an imported session ends here. It belongs to `agent`, on the agent's own model and tools."""

    agent: str


class TitleSet(Value, frozen=True, tag="title_set"):
    """The session got a title. Admitted; the last one applies."""

    title: str
    redacted: str = ""


class ModelSet(Value, frozen=True, tag="model_set"):
    """The session got a model; blank restores the agent's. Admitted; the last one applies."""

    model: str


class TagsSet(Value, frozen=True, tag="tags_set"):
    """The session got tags. Admitted; the last record replaces all earlier tags."""

    tags: tuple[str, ...]
    redacted: str = ""


class RecordRedacted(Value, frozen=True, tag="record_redacted"):
    """The payload of the record at `seq` was replaced by its sha256. Admitted."""

    seq: Seq
    sha256: str
    origin: str = ""


StopReason = Literal[
    "cancelled",
    "max_iterations",
    "no_progress",
    "provider_error",
    "refused",
    "composition_lost",
    "replay_mismatch",
    "instructions_failed",
    "output_invalid",
    "limit_reached",
    "imported",
    "completion_timeout",
    "no_forward_progress",
    "own_turns_exceeded",
]


class TurnEnded(Value, frozen=True, tag="turn_ended"):
    """A turn ended: finished with its last reply, or stopped for a reason, with a remedy if one is known."""

    turn: TurnId
    status: Literal["finished", "stopped"]
    reason: StopReason | None = None
    message: str = ""
    hint: str = ""
    usage: Usage = Usage()
    redacted: str = ""


class ProcessRegistered(Value, frozen=True, tag="process_registered"):
    """The first record of a process. `hash` identifies a repeated registration."""

    registration: Registration
    hash: str


class ProcessFirstStarted(Value, frozen=True, tag="process_first_started"):
    """A worker is about to execute the process for the first time."""

    worker: WorkerId


class ProcessEvent(Value, frozen=True, tag="process_event"):
    """An event of a process. Owned or admitted; `replay` identifies a repeated event.

    An event with an `output` ends the process; there is only one. `authority` names the writer of the end if that is
    not the owner.
    """

    event: str
    payload: Json = None
    replay: str = ""
    output: ProcessOutput | None = None
    authority: str = ""


class AbandonRequested(Value, frozen=True, tag="abandon_requested"):
    """A request to abandon the process. Unfenced; the first one wins."""

    by: str
    reason: str = ""


Record: TypeAlias = (
    SessionOpened
    | InputAdmitted
    | TurnOpened
    | EffectStarted
    | ModelJobBegun
    | EffectSettled
    | OutcomeArrivedLate
    | AttachmentStored
    | ToolMembershipChanged
    | HandedOver
    | TurnAgentChanged
    | CancelRequested
    | TurnEnded
    | TitleSet
    | ModelSet
    | TagsSet
    | RecordRedacted
    | InputCancelled
    | SessionPaused
    | SessionResumed
    | ApprovalGranted
    | GrantRevoked
    | SessionImported
    | ProcessRegistered
    | ProcessFirstStarted
    | ProcessEvent
    | AbandonRequested
    | ScheduleCreated
    | ScheduleFired
    | ScheduleSkipped
    | ScheduleChanged
    | SchedulePruned
    | ChildClaimed
    | ChildRegistered
    | ChildEnded
    | TriggerSourceOpened
    | SubscriptionChanged
    | TriggerOccurred
    | TriggerDeliveryFailed
    | TriggerPruned
)


_kinds: dict[type[Record], str] = {type: str(type.__struct_config__.tag) for type in get_args(Record)}
_decoders = {kind: msgspec.json.Decoder(type) for type, kind in _kinds.items()}
KINDS = frozenset(_decoders)
"""The kinds of all records."""


class Row(Value, frozen=True):
    """A record with its position in a stream."""

    stream: StreamId
    seq: Seq
    at: int
    kind: str
    data: bytes
    key: str | None = None
    version: int = FORMAT

    @property
    def record(self) -> Record:
        """The decoded record."""
        return read(self.kind, self.data)


def write(record: Record) -> bytes:
    """Encode a record for storage. The kind is stored in its own column, so the bytes omit it."""
    rest = encode(record)[_TAG_BYTES + len(_kinds[type(record)]) :]
    return b"{" + rest.removeprefix(b",")


def write_readable(record: Record) -> tuple[str, bytes]:
    """Return a record's kind and its stored bytes, after reading them back.

    Raises:
        Error: as `read` does, for a record that can be written but not read back.
    """
    kind, data = _kinds[type(record)], write(record)
    read_stored(_decoders[kind], data, what="record")
    return kind, data


_TAG_BYTES = len('{"type":""')


def read(kind: str, data: bytes) -> Record:
    """Decode a stored record.

    Raises:
        Error: `format_newer` for a record unknown to this version, `store_corrupt` for a damaged one.
    """
    if (decoder := _decoders.get(kind)) is None:
        raise unknown_shape("record", f"its kind is {kind!r}")
    return read_stored(decoder, data, what="record")


def kind_of(record: Record) -> str:
    """Return the tag under which a record is stored."""
    return _kinds[type(record)]
