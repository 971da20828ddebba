"""Log records: what a stream remembers. Journal and history at once; every other view is a fold of them.

Laws: a record says what happened, in the past tense, and is never changed. Owned records are written by the lease
holder and move the machine; admitted records are written by anyone and only add something to look at, so that
their order among owned records cannot matter to a fold.

Effect ids are local to the open turn: `m2.1` is the first attempt of the second model call, `c2.0.1` the first
attempt of the first call of that reply; `.approval` names what precedes an attempt, `.sleep`, `.probe`,
`.completion` and `.doubt` what follows one, and `c2.0/step:render` is a part of that call's body.
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
"""The highest record version this code writes and reads."""

LIVE = "live:"
"""How the tags begin that a stream loses by its end."""


class Limits(Value, frozen=True):
    """How far a turn may go. `recovery_ms` is how long it may wait, all in all, for one reply that failed to come, and
    `stall_ms` how long a model may write nothing (None: for ever). Tokens and money (in billionths of a US dollar)
    bound what is bought: by the turn, and by its session so far. `partial_replies` says what becomes of a reply that
    breaks off: it is asked for again, or what there is of its text stands.
    """

    max_iterations: int = 50
    no_progress: int = 12
    model_attempts: int = 4
    max_parallel_calls: int = 32
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
        """Whether it matters what the session has bought before."""
        return self.session_tokens is not None or self.session_cost_nano is not None


class SessionOpened(Value, frozen=True, tag="session_opened"):
    """The first record of a session; `parent` is who started it, if that was another agent."""

    agent: str
    parent: Parent | None = None


InputMode = Literal["queue", "steer", "interrupt"]
"""Where an input wants to go: behind what waits, into the running turn, or in place of it."""


class InputAdmitted(Value, frozen=True, tag="input_admitted"):
    """An input entered the log and will be answered by this turn, on the model that was asked for with it.

    One that `joins` did not open the turn: it was steered into it, or drained together with the one that did.
    `source` says who sent it.

    `content` is set when what was said is gone: the digest by which the same key and content is still the same input.
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


class InputCancelled(Value, frozen=True, tag="input_cancelled"):
    """An input was taken back before any turn took it. Admitted. `replaced_by` is what was sent in its place, and
    `answered_in` the turn that one asked for.
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

    Its model is shown the turns from `from_turn` on, whose records begin at `view_seq`. `spent` is what the session
    had used before it, if that is limited.
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

    `asks`: it asks a model outside the conversation, and what it sends comes to that, by an estimate.
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
    asks: DirectUsage | None = None


class ModelJobBegun(Value, frozen=True, tag="model_job_begun"):
    """The provider works by itself on the answer to a model call that is under way: whoever goes on with the turn waits
    for that one. `job` is how the provider finds it."""

    id: EffectId
    job: Json = None
    redacted: str = ""


class EffectSettled(Value, frozen=True, tag="effect_settled"):
    """An effect has its outcome. It is never performed again."""

    id: EffectId
    outcome: Outcome
    fingerprint: str = ""
    redacted: str = ""


class OutcomeArrivedLate(Value, frozen=True, tag="outcome_arrived_late"):
    """A worker that had lost its lease reports how its call really ended."""

    call: CallId
    id: EffectId
    tool: str
    output: ToolOutput
    redacted: str = ""


class AttachmentKept(Value, frozen=True, tag="attachment_kept"):
    """A call keeps bytes in this session, under a reference that it may give to anybody."""

    call: CallId
    ref: AttachmentRef | None = None
    redacted: str = ""


class ToolMembershipChanged(Value, frozen=True, tag="tool_membership_changed"):
    """Tools were taken out of the session's catalog, or put back. Turns that begin after it see the change."""

    names: tuple[str, ...]
    present: bool
    call: CallId = CallId("")


class HandedOver(Value, frozen=True, tag="handed_over"):
    """A call of this turn gave the conversation to another agent, who is asked next: in this turn, if it goes on."""

    turn: TurnId
    call: CallId
    to: str
    reason: str = ""


class TurnRecomposed(Value, frozen=True, tag="turn_recomposed"):
    """From here on the turn is another agent's, the n-th after the one that began it, on a composition of its own."""

    turn: TurnId
    n: int
    agent: str
    composition: BlobHash
    redacted: str = ""


class GrantMade(Value, frozen=True, tag="grant_made"):
    """Somebody approved a call and all later ones of its tool in this session. Named by the promise it answered."""

    grant: PromiseId
    tool: str
    by: str
    at: int
    via: str = ""


class GrantRevoked(Value, frozen=True, tag="grant_revoked"):
    """A grant holds no more. Admitted: written by anyone, once."""

    grant: PromiseId
    by: str
    via: str = ""


class CancelRequested(Value, frozen=True, tag="cancel_requested"):
    """Somebody asked for a turn to end. Admitted: written by anyone. `superseded_by` is the input that interrupts."""

    turn: TurnId
    request: str
    origin: str = ""
    reason: str = ""
    superseded_by: InputId = InputId("")
    redacted: str = ""


class SessionPaused(Value, frozen=True, tag="session_paused"):
    """From here on nothing of the session is begun. Admitted: the last one of this and its counterpart counts."""

    origin: str = ""
    reason: str = ""
    redacted: str = ""


class SessionResumed(Value, frozen=True, tag="session_resumed"):
    """The session goes on. Admitted."""

    origin: str = ""


class TitleSet(Value, frozen=True, tag="title_set"):
    """Somebody named the session. Admitted: the last one counts."""

    title: str
    redacted: str = ""


class ModelSet(Value, frozen=True, tag="model_set"):
    """Somebody chose the model that answers in the session; blank: its agent's again. Admitted: the last one counts."""

    model: str


class TagsSet(Value, frozen=True, tag="tags_set"):
    """Somebody tagged the session. Admitted: the last one counts, as a whole."""

    tags: tuple[str, ...]
    redacted: str = ""


class RecordRedacted(Value, frozen=True, tag="record_redacted"):
    """What the record at `seq` said was replaced by its sha256. Admitted: written by anyone."""

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
]


class TurnEnded(Value, frozen=True, tag="turn_ended"):
    """A turn is over: finished with its last reply, or stopped for a reason."""

    turn: TurnId
    status: Literal["finished", "stopped"]
    reason: StopReason | None = None
    message: str = ""
    usage: Usage = Usage()
    redacted: str = ""


class ProcessRegistered(Value, frozen=True, tag="process_registered"):
    """The first record of a process: what it is. `hash` is what makes the same registration again the same process."""

    registration: Registration
    hash: str


class ProcessFirstStarted(Value, frozen=True, tag="process_first_started"):
    """A worker is about to execute the process for the first time."""

    worker: WorkerId


class ProcessEvent(Value, frozen=True, tag="process_event"):
    """Something happened to a process or in it. Owned or admitted; `replay` makes the same event again the same one.

    An event with an `output` is its end, and there is one. `authority` says who ended it, if it was not its owner.
    """

    event: str
    payload: Json = None
    replay: str = ""
    output: ProcessOutput | None = None
    authority: str = ""


class AbandonRequested(Value, frozen=True, tag="abandon_requested"):
    """Somebody gave the process up. Admitted: the first one counts."""

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
    | AttachmentKept
    | ToolMembershipChanged
    | HandedOver
    | TurnRecomposed
    | CancelRequested
    | TurnEnded
    | TitleSet
    | ModelSet
    | TagsSet
    | RecordRedacted
    | InputCancelled
    | SessionPaused
    | SessionResumed
    | GrantMade
    | GrantRevoked
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


class Row(Value, frozen=True):
    """A record where it stands in a stream."""

    stream: StreamId
    seq: Seq
    at: int
    kind: str
    data: bytes
    key: str | None = None
    version: int = FORMAT

    @property
    def record(self) -> Record:
        """The record itself."""
        return read(self.kind, self.data)


def write(record: Record) -> bytes:
    """A record as it is stored: beside its kind, which is therefore not repeated in the bytes."""
    rest = encode(record)[_TAG_BYTES + len(_kinds[type(record)]) :]
    return b"{" + rest.removeprefix(b",")


def write_readable(record: Record) -> tuple[str, bytes]:
    """The kind of a record, and the record as it is stored, once it was read back.

    Raises:
        Error: as `read` does, for a record that could be written and never be read again.
    """
    kind, data = _kinds[type(record)], write(record)
    read_stored(_decoders[kind], data, what="record")
    return kind, data


_TAG_BYTES = len('{"type":""')


def read(kind: str, data: bytes) -> Record:
    """A stored record.

    Raises:
        Error: `format_newer` for a record this version does not know, `store_corrupt` for one that is damaged.
    """
    if (decoder := _decoders.get(kind)) is None:
        raise unknown_shape("record", f"its kind is {kind!r}")
    return read_stored(decoder, data, what="record")


def kind_of(record: Record) -> str:
    """The tag under which a record is stored."""
    return _kinds[type(record)]
