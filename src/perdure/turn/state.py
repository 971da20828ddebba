"""Where a turn can be, and what can be owed at each place: plain values."""

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
from perdure.vocab.outcomes import InDoubt, Pending, ToolOutput
from perdure.vocab.records import (
    CancelRequested,
    EffectStarted,
    Limits,
    StopReason,
    TurnEnded,
    TurnOpened,
    TurnRecomposed,
)
from perdure.vocab.refs import EffectRef
from perdure.vocab.tools import Composition, Durability, ToolContract
from perdure.vocab.usage import Usage

NO_USAGE = Usage()


# --- what is owed -------------------------------------------------------------------------------------------------


class AskModel(msgspec.Struct, frozen=True, gc=False):
    """Ask the model for its next reply; or for that of a job which the provider works on already."""

    ref: EffectRef
    tool_choice: ToolChoice = "auto"
    job: Json = None


class RunCall(msgspec.Struct, frozen=True, gc=False):
    """Dispatch one attempt of a tool call."""

    ref: EffectRef
    call: ToolCall
    contract: ToolContract | None
    decision: Decision | None = None


class AwaitApproval(msgspec.Struct, frozen=True, gc=False):
    """Wait until somebody allows a call, or does not."""

    ref: EffectRef
    call: ToolCall
    command: AwaitEvent
    due_at: int | None


class AwaitVerdict(msgspec.Struct, frozen=True, gc=False):
    """Wait until somebody says what became of a call in doubt."""

    ref: EffectRef
    call: ToolCall
    contract: ToolContract | None
    worker: WorkerId


class Probe(msgspec.Struct, frozen=True, gc=False):
    """Ask the outside system whether a call in doubt took effect."""

    ref: EffectRef
    call: ToolCall
    contract: ToolContract | None
    doubt: InDoubt
    worker: WorkerId


class Wait(msgspec.Struct, frozen=True, gc=False):
    """Sleep before the next attempt; `due_at` is known once the sleep has been recorded."""

    ref: EffectRef
    duration_ms: int
    due_at: int | None


class AwaitCompletion(msgspec.Struct, frozen=True, gc=False):
    """Wait until somebody outside tells how a call ended."""

    ref: EffectRef
    call: ToolCall
    pending: Pending


class EndTurn(msgspec.Struct, frozen=True, gc=False):
    """Nothing else is owed: commit."""

    ended: TurnEnded


Effect: TypeAlias = AskModel | RunCall | Probe | Wait | AwaitCompletion | AwaitApproval | AwaitVerdict
Owed: TypeAlias = Effect | EndTurn


# --- where a turn can be ------------------------------------------------------------------------------------------


class Nap(msgspec.Struct, frozen=True, gc=False):
    """A pause before an attempt."""

    duration_ms: int
    due_at: int | None = None


class Asking(msgspec.Struct, frozen=True, gc=False):
    """The model's reply is awaited. `waited_ms` is what the pauses between its attempts come to. `job` is what the
    provider works on by itself, if it said so and it is not known to be lost. `started`: this attempt was begun;
    `lost` of those before it had no end, because their worker was gone."""

    attempt: int = 1
    nap: Nap | None = None
    tool_choice: ToolChoice = "auto"
    waited_ms: int = 0
    job: Json = None
    started: bool = False
    lost: int = 0


class Call(msgspec.Struct, frozen=True, gc=False):
    """One tool call of the current reply. `output` is set once nothing more will happen to it.

    `approval` records that somebody was asked to allow it, `decision` that they did. `completion` records that the
    attempt made a key under which somebody outside may end it; `pending` that it left its end to them.
    """

    request: ToolCall
    index: int
    contract: ToolContract | None
    attempt: int = 1
    started: EffectStarted | None = None
    nap: Nap | None = None
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
        """Whether it is run elsewhere."""
        return self.contract is not None and self.contract.client_side

    @property
    def durability(self) -> Durability:
        """The promises captured with the turn; a tool nobody knows is treated as carefully as possible."""
        return self.contract.durability if self.contract else Durability()

    @property
    def undecided(self) -> EffectStarted | None:
        """The question whether it may run, as long as nobody has answered it."""
        return self.approval if self.decision is None and self.output is None else None

    @property
    def policy(self) -> str:
        """What to do about doubt: the intent governs, then the contract."""
        return self.started.doubt if self.started else self.durability.doubt


class Acting(msgspec.Struct, frozen=True, gc=False):
    """The calls of the last reply are being answered."""

    calls: tuple[Call, ...]


class Concluding(msgspec.Struct, frozen=True, gc=False):
    """Everything is settled except the end itself."""

    status_reason: StopReason | None = None
    message: str = ""


class Ended(msgspec.Struct, frozen=True, gc=False):
    """Over."""

    record: TurnEnded


Phase: TypeAlias = Asking | Acting | Concluding | Ended


class Turn(msgspec.Struct, frozen=True, gc=False):
    """One turn, as a value: everything needed to continue it anywhere.

    `to` is the agent to whom it was handed over and who has not begun, `hands` how many have had it after the first.
    `before` is what the session had used when it began, `children` what its sub-agents have used since.
    """

    id: TurnId
    index: int
    from_turn: int
    composition: Composition
    limits: Limits
    phase: Phase = Asking()
    iteration: int = 1
    fruitless: int = 0
    corrections: int = 0
    usage: Usage = NO_USAGE
    cancel: CancelRequested | None = None
    to: str = ""
    hands: int = 0
    before: Usage = NO_USAGE
    children: Usage = NO_USAGE

    @property
    def spent_up(self) -> str:
        """Which limit stands in the way of the next model call, if one does."""
        bought = self.usage + self.children
        return spent_up(self.limits, bought, self.before + bought)

    @property
    def changes_hands(self) -> bool:
        """Whether nothing is left for the agent that has it: another one is asked next."""
        return bool(self.to) and isinstance(self.phase, Asking)

    @property
    def ended(self) -> TurnEnded | None:
        """The last record, if the turn is over."""
        return self.phase.record if isinstance(self.phase, Ended) else None


def opened(record: TurnOpened, composition: Composition) -> Turn:
    """A turn at its beginning, on the composition it captured."""
    limits = record.limits or Limits()
    turn = Turn(record.turn, record.index, record.from_turn, composition, limits, before=record.spent)
    return replace(turn, phase=Concluding("limit_reached", turn.spent_up)) if turn.spent_up else turn


def taken_over(turn: Turn, record: TurnRecomposed, composition: Composition) -> Turn:
    """The turn in the hands of another agent."""
    return replace(turn, composition=composition, to="", hands=record.n)
