"""Causal references: from an effect or a record to its cause."""

from __future__ import annotations

from typing import TypeAlias

from perdure.vocab.wire import Value


class EffectCause(Value, frozen=True, tag="effect"):
    """The cause is an effect of a session's turn."""

    session_id: str
    effect_id: str
    turn_id: str | None = None


class TurnCause(Value, frozen=True, tag="turn"):
    """The cause is a turn."""

    session_id: str
    turn_id: str


class ToolCallCause(Value, frozen=True, tag="tool_call"):
    """The cause is one tool call."""

    session_id: str
    call_id: str


class ProcessCause(Value, frozen=True, tag="process"):
    """The cause is a process."""

    process_id: str


class ProcessEventCause(Value, frozen=True, tag="process_event"):
    """The cause is one event of a process."""

    process_id: str
    sequence: int


class TriggerOccurrenceCause(Value, frozen=True, tag="trigger_occurrence"):
    """The cause is a trigger occurrence."""

    occurrence_id: str


class SessionNodeCause(Value, frozen=True, tag="session_node"):
    """The cause is a point in a session's history."""

    session_id: str
    node_id: str


CausalRef: TypeAlias = (
    EffectCause
    | TurnCause
    | ToolCallCause
    | ProcessCause
    | ProcessEventCause
    | TriggerOccurrenceCause
    | SessionNodeCause
)
