"""Why something happened: references from an effect or a record to what caused it."""

from __future__ import annotations

from typing import TypeAlias

from perdure.vocab.wire import Value


class EffectCause(Value, frozen=True, tag="effect"):
    """Caused by an effect of a session's turn."""

    session_id: str
    effect_id: str
    turn_id: str | None = None


class TurnCause(Value, frozen=True, tag="turn"):
    """Caused by a turn."""

    session_id: str
    turn_id: str


class ToolCallCause(Value, frozen=True, tag="tool_call"):
    """Caused by one tool call."""

    session_id: str
    call_id: str


class ProcessCause(Value, frozen=True, tag="process"):
    """Caused by a process."""

    process_id: str


class ProcessEventCause(Value, frozen=True, tag="process_event"):
    """Caused by one event of a process."""

    process_id: str
    sequence: int


class TriggerOccurrenceCause(Value, frozen=True, tag="trigger_occurrence"):
    """Caused by a trigger that fired."""

    occurrence_id: str


class SessionNodeCause(Value, frozen=True, tag="session_node"):
    """Caused by a point in a session's history."""

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
