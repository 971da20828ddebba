"""Phases of a turn and owed effects, as plain values."""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from perdure.codec import Json
from perdure.ids import TurnId, WorkerId
from perdure.turn.spending import spent_up
from perdure.vocab.approvals import Decision
from perdure.vocab.effects import AwaitEvent, ToolChoice
from perdure.vocab.messages import ToolCall
from perdure.vocab.outcomes import FailureDetail, InDoubt, Pending, ToolOutput
from perdure.vocab.records import (
    CancelRequested,
    EffectStarted,
    Limits,
    StopReason,
    TurnAgentChanged,
    TurnEnded,
    TurnOpened,
)
from perdure.vocab.refs import EffectRef
from perdure.vocab.tools import Composition, Durability, ToolContract
from perdure.vocab.usage import Usage

NO_USAGE = Usage()


# --- what is owed -------------------------------------------------------------------------------------------------


class AskModel(msgspec.Struct, frozen=True, gc=False):
    """Request the model's next reply, or attach to the provider job that is already producing it."""

    ref: EffectRef
    tool_choice: ToolChoice = "auto"
    job: Json = None


class RunCall(msgspec.Struct, frozen=True, gc=False):
    """Dispatch one attempt of a tool call. A `refusal` is its outcome without a dispatch."""

    ref: EffectRef
    call: ToolCall
    contract: ToolContract | None
    decision: Decision | None = None
    refusal: FailureDetail | None = None


class AwaitApproval(msgspec.Struct, frozen=True, gc=False):
    """Wait for the decision whether a call may run."""

    ref: EffectRef
    call: ToolCall
    contract: ToolContract | None
    command: AwaitEvent
    due_at: int | None


class AwaitVerdict(msgspec.Struct, frozen=True, gc=False):
    """Wait for a person's verdict on a call in doubt."""

    ref: EffectRef
    call: ToolCall
    contract: ToolContract | None
    worker: WorkerId


class Probe(msgspec.Struct, frozen=True, gc=False):
    """Query the external system whether a call in doubt took effect."""

    ref: EffectRef
    call: ToolCall
    contract: ToolContract | None
    doubt: InDoubt
    worker: WorkerId


class RetryWait(msgspec.Struct, frozen=True, gc=False):
    """Sleep before the next attempt; `due_at` is set once the sleep is recorded."""

    ref: EffectRef
    duration_ms: int
    due_at: int | None


class AwaitCompletion(msgspec.Struct, frozen=True, gc=False):
    """Wait for the external completion of a call."""

    ref: EffectRef
    call: ToolCall
    pending: Pending


class EndTurn(msgspec.Struct, frozen=True, gc=False):
    """Commit the end: nothing else is owed."""

    ended: TurnEnded


Effect: TypeAlias = AskModel | RunCall | Probe | RetryWait | AwaitCompletion | AwaitApproval | AwaitVerdict
Owed: TypeAlias = Effect | EndTurn


# --- where a turn can be ------------------------------------------------------------------------------------------


class Backoff(msgspec.Struct, frozen=True, gc=False):
    """The backoff before an attempt."""

    duration_ms: int
    due_at: int | None = None


class AwaitingReply(msgspec.Struct, frozen=True, gc=False):
    """The turn awaits a model reply.

    `waited_ms` is the total backoff so far. `job` is the provider's background job, unless it is known to be lost.
    `started`: this attempt was begun. `lost` counts earlier attempts whose worker died.
    """

    attempt: int = 1
    backoff: Backoff | None = None
    tool_choice: ToolChoice = "auto"
    waited_ms: int = 0
    job: Json = None
    started: bool = False
    lost: int = 0


class Call(msgspec.Struct, frozen=True, gc=False):
    """One tool call of the current reply. `output` is set once the call is final.

    `approval` is the recorded request for approval, `decision` the approval. `completion` records that the attempt
    issued a completion key; `pending` that its end was left to the external completion.
    """

    request: ToolCall
    index: int
    contract: ToolContract | None
    attempt: int = 1
    started: EffectStarted | None = None
    backoff: Backoff | None = None
    doubt: InDoubt | None = None
    completion: EffectStarted | None = None
    pending: Pending | None = None
    approval: EffectStarted | None = None
    decision: Decision | None = None
    redispatches: int = 0
    failures: int = 0
    output: ToolOutput | None = None

    @property
    def client_side(self) -> bool:
        """True if the client runs the call."""
        return self.contract is not None and self.contract.client_side

    @property
    def durability(self) -> Durability:
        """The durability captured with the turn. An unknown tool gets the most careful one."""
        return self.contract.durability if self.contract else Durability()

    @property
    def undecided(self) -> EffectStarted | None:
        """The open request for approval, or None."""
        return self.approval if self.decision is None and self.output is None else None

    @property
    def policy(self) -> str:
        """The doubt policy of the intent, else of the contract."""
        return self.started.doubt if self.started else self.durability.doubt


class Acting(msgspec.Struct, frozen=True, gc=False):
    """The calls of the last reply are being answered."""

    calls: tuple[Call, ...]


class Concluding(msgspec.Struct, frozen=True, gc=False):
    """Everything is settled except the end of the turn."""

    status_reason: StopReason | None = None
    message: str = ""
    hint: str = ""


class Ended(msgspec.Struct, frozen=True, gc=False):
    """The turn ended."""

    record: TurnEnded


Phase: TypeAlias = AwaitingReply | Acting | Concluding | Ended


class Turn(msgspec.Struct, frozen=True, gc=False):
    """One turn as a value, with everything needed to continue it on any worker.

    `to` is the agent of a pending handoff, `hands` the number of completed handoffs. `before` is the session's usage at
    the start of the turn, `children` the usage of its sub-agents since. `called` counts the calls of its replies.
    """

    id: TurnId
    index: int
    from_turn: int
    composition: Composition
    limits: Limits
    phase: Phase = AwaitingReply()
    iteration: int = 1
    fruitless: int = 0
    corrections: int = 0
    usage: Usage = NO_USAGE
    cancel: CancelRequested | None = None
    to: str = ""
    hands: int = 0
    before: Usage = NO_USAGE
    children: Usage = NO_USAGE
    called: int = 0

    @property
    def spent_up(self) -> str:
        """The limit that forbids the next model call, or an empty string."""
        bought = self.usage + self.children
        return spent_up(self.limits, bought, self.before + bought)

    @property
    def changes_hands(self) -> bool:
        """True if a handoff is due: the next model call belongs to another agent."""
        return bool(self.to) and isinstance(self.phase, AwaitingReply)

    @property
    def ended(self) -> TurnEnded | None:
        """The end record, if the turn ended."""
        return self.phase.record if isinstance(self.phase, Ended) else None


def opened(record: TurnOpened, composition: Composition) -> Turn:
    """Return a turn at its start, on the composition it captured."""
    limits = record.limits or Limits()
    turn = Turn(record.turn, record.index, record.from_turn, composition, limits, before=record.spent)
    return replace(turn, phase=Concluding("limit_reached", turn.spent_up)) if turn.spent_up else turn


def taken_over(turn: Turn, record: TurnAgentChanged, composition: Composition) -> Turn:
    """Return the turn after the handoff to another agent."""
    return replace(turn, composition=composition, to="", hands=record.n)
