"""A session as a fold of its log. The state stays small at any age of the session.

Law: fold(snapshot + tail) equals fold(log), byte for byte. The state contains no messages: history is the log itself,
and the state only marks the open turn and the start of the model view. Admitted records only add to `cancels` or set
`paused`, so their order among owned records cannot matter.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from perdure.codec import Json, decode
from perdure.ids import Seq, TurnId
from perdure.vocab.children import ChildEnded, Parent
from perdure.vocab.outcomes import SyncOutcome
from perdure.vocab.records import (
    ApprovalGranted,
    CancelRequested,
    EffectSettled,
    EffectStarted,
    GrantRevoked,
    HandedOver,
    InputAdmitted,
    ModelSet,
    OutcomeArrivedLate,
    Record,
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
from perdure.vocab.tools import ToolContract
from perdure.vocab.usage import Usage
from perdure.vocab.wire import Value

CODE = "session-14"
"""The version of this fold. Snapshots of other versions are ignored."""


class SessionState(Value, frozen=True):
    """The state needed to continue a session.

    `turn_seq` is the first record of the open (or next) turn, 0 if there is none. `cancels` are the requests for turns
    that have not ended. `without_tools` are the agent's tools removed from this session, after `tools_generation`
    changes. `usage` is that of its own turns, `child_usage` that of its sub-agents. `next_agent` receives the open turn
    by handoff, until it takes over. `environment` is what the last program of the model left for the next one.
    `stopped_turn` is the last ended turn, if it was stopped. `own_turns` is the number of turns in a row that the
    session caused itself.
    """

    agent: str = ""
    next_agent: str = ""
    seq: Seq = Seq(0)
    turns: int = 0
    open_turn: TurnId | None = None
    turn_seq: Seq = Seq(0)
    view_seq: Seq = Seq(0)
    view_turn: int = 0
    cancels: tuple[CancelRequested, ...] = ()
    usage: Usage = Usage()
    without_tools: tuple[str, ...] = ()
    tools_generation: int = 0
    title: str = ""
    tags: tuple[str, ...] = ()
    paused: bool = False
    grants: tuple[ApprovalGranted, ...] = ()
    parent: Parent | None = None
    child_usage: Usage = Usage()
    environment: Json = None
    model: str = ""
    stopped_turn: TurnId | None = None
    own_turns: int = 0


def fold(state: SessionState, seq: Seq, record: Record) -> SessionState:
    """Fold one record at its position in the log."""
    if isinstance(record, EffectStarted):  # most records are effects, and they only advance `seq`
        return replace(state, seq=seq)
    if isinstance(record, EffectSettled):
        synced = record.outcome.sync if isinstance(record.outcome, SyncOutcome) else None
        return replace(state, seq=seq, environment=synced) if synced else replace(state, seq=seq)
    match record:
        case SessionOpened(agent=agent, parent=parent):
            return replace(state, seq=seq, agent=agent, parent=parent)
        case ChildEnded(usage=usage):
            return replace(state, seq=seq, child_usage=state.child_usage + usage)
        case InputAdmitted() | OutcomeArrivedLate():
            return replace(state, seq=seq, turn_seq=state.turn_seq or seq, own_turns=_own_turns(state, record))
        case TurnOpened(turn=turn, from_turn=view_turn, view_seq=view_seq):
            opened = replace(state, seq=seq, turns=state.turns + 1, open_turn=turn)
            return replace(opened, view_turn=view_turn, view_seq=view_seq)
        case TurnEnded(turn=turn, usage=usage, status=status):
            cancels = tuple(request for request in state.cancels if request.turn != turn)
            ended = replace(state, seq=seq, open_turn=None, turn_seq=Seq(0), cancels=cancels)
            ended = replace(ended, stopped_turn=turn if status == "stopped" else None)
            return replace(ended, usage=state.usage + usage, agent=state.next_agent or state.agent, next_agent="")
        case HandedOver() | TurnAgentChanged():
            return replace(_in_hands(state, record), seq=seq)
        case ToolMembershipChanged():
            return replace(with_membership(state, record), seq=seq)
        case CancelRequested():
            return replace(state, seq=seq, cancels=(*state.cancels, record))
        case SessionPaused() | SessionResumed():
            return replace(state, seq=seq, paused=isinstance(record, SessionPaused))
        case TitleSet() | ModelSet() | TagsSet() | SessionImported():
            return replace(_with_label(state, record), seq=seq)
        case ApprovalGranted():
            return replace(state, seq=seq, grants=_with_grant(state.grants, record))
        case GrantRevoked(grant=revoked):
            kept = tuple(grant for grant in state.grants if grant.grant != revoked)
            return replace(state, seq=seq, grants=kept)
        case _:
            return replace(state, seq=seq)


def _own_turns(state: SessionState, record: InputAdmitted | OutcomeArrivedLate) -> int:
    """Return the number of turns in a row that the session caused itself, after a record."""
    if isinstance(record, InputAdmitted) and not record.by_session:
        return 0
    begins = isinstance(record, InputAdmitted) and not record.joins
    return state.own_turns + begins


def _without_privileges(state: SessionState, agent: str) -> SessionState:
    """Return the state after an import: nothing of a foreign past chooses agent, model, tools, approvals or code."""
    plain = replace(state, agent=agent, next_agent="", parent=None, model="", grants=(), cancels=())
    plain = replace(plain, environment=None)  # threat: S5
    return replace(plain, without_tools=(), tools_generation=state.tools_generation + 1, paused=False)


def _with_label(state: SessionState, record: TitleSet | ModelSet | TagsSet | SessionImported) -> SessionState:
    match record:
        case SessionImported(agent=agent):
            return _without_privileges(state, agent)
        case TitleSet(title=title):
            return replace(state, title=title)
        case ModelSet(model=model):
            return replace(state, model=model)
        case TagsSet(tags=tags):
            return replace(state, tags=tags)


def _in_hands(state: SessionState, change: HandedOver | TurnAgentChanged) -> SessionState:
    if isinstance(change, HandedOver):
        return replace(state, next_agent=change.to)
    return replace(state, agent=change.agent, next_agent="")


def with_membership(state: SessionState, change: ToolMembershipChanged) -> SessionState:
    """Return the state after one change of the session's tools."""
    kept = tuple(name for name in state.without_tools if name not in change.names)
    without = kept if change.present else (*kept, *change.names)
    return replace(state, without_tools=without, tools_generation=state.tools_generation + 1)


def cancel_of(state: SessionState, turn: TurnId) -> CancelRequested | None:
    """Return the request to cancel this turn, or None."""
    return next((request for request in state.cancels if request.turn == turn), None)


def _with_grant(grants: tuple[ApprovalGranted, ...], made: ApprovalGranted) -> tuple[ApprovalGranted, ...]:
    """Return the grants with a new one. An agent has one grant per tool, so that one revocation suffices."""
    before = next((one for one in grants if (one.agent, one.tool) == (made.agent, made.tool)), None)
    if before is None:
        return (*grants, made)
    if before.contract == made.contract:
        return grants
    return tuple(made if one is before else one for one in grants)


def grant_for(state: SessionState, agent: str, contract: ToolContract) -> ApprovalGranted | None:
    """Return the grant that covers calls of a tool with this contract by this agent, or None."""
    known = next((one for one in state.grants if (one.agent, one.tool) == (agent, contract.name)), None)  # threat: S11
    return known if known is not None and known.contract == contract.digest else None


def fold_all(snapshot: bytes | None, rows: Iterable[Row]) -> SessionState:
    """Fold rows onto a snapshot, or onto the initial state."""
    state = decode(snapshot, SessionState) if snapshot else SessionState()
    for row in rows:
        state = fold(state, row.seq, row.record)
    return state
