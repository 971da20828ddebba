"""How code that runs inside a turn tells its observers something: requests, and whoever takes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeAlias

from perdure.codec import Json
from perdure.ids import CallId, EffectId, SessionId, TurnId


@dataclass(frozen=True, slots=True, kw_only=True)
class EventContext:
    """Where in a session something happened. `exec_id` is the effect; the trace fields belong to a tracer."""

    turn_id: TurnId | None = None
    input_message_id: str | None = None
    exec_id: EffectId | None = None
    trace_id: str | None = None
    span_id: str | None = None
    parent_span_id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolProgressData:
    """A running call says how far it is."""

    tool_call_id: CallId
    tool_name: str
    message: str
    display_name: str | None = None
    type: ClassVar[str] = "tool.progress"


@dataclass(frozen=True, slots=True)
class ToolOutputDeltaData:
    """A running call shows a piece of what it prints."""

    tool_call_id: CallId
    tool_name: str
    delta: str
    stream: str
    type: ClassVar[str] = "tool.output.delta"


EventData: TypeAlias = ToolProgressData | ToolOutputDeltaData


@dataclass(frozen=True, slots=True)
class EventRequest:
    """An event before somebody took it: it has no id and no place yet."""

    session_id: SessionId
    context: EventContext
    data: EventData
    metadata: Json = None
    tags: tuple[str, ...] = field(default=())

    @property
    def type(self) -> str:
        """What kind of event it is; the data decides."""
        return self.data.type

    def into_event(self, id: str, sequence: int) -> EmittedEvent:
        """The event, once somebody has given it an id and a place. A sequence of 0 means that it is not stored."""
        return EmittedEvent(id=id, sequence=sequence, request=self)


@dataclass(frozen=True, slots=True)
class EmittedEvent:
    """An event that was taken."""

    id: str
    sequence: int
    request: EventRequest

    @property
    def type(self) -> str:
        """What kind of event it is."""
        return self.request.type


class EventEmitter(Protocol):
    """Whoever takes events. It is called from any thread, in the middle of somebody's tool: it must not wait."""

    def emit(self, request: EventRequest) -> EmittedEvent:
        """Take an event and say under which id."""
        ...
