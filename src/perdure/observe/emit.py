"""Events that code inside a turn emits to observers: requests, emitted events and the emitter protocol."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeAlias

from perdure.codec import Json
from perdure.ids import CallId, EffectId, SessionId, TurnId


@dataclass(frozen=True, slots=True, kw_only=True)
class EventContext:
    """The origin of an event in a session. `exec_id` is the effect id; the trace fields belong to a tracer."""

    turn_id: TurnId | None = None
    input_message_id: str | None = None
    exec_id: EffectId | None = None
    trace_id: str | None = None
    span_id: str | None = None
    parent_span_id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolProgressData:
    """A progress message of a running call."""

    tool_call_id: CallId
    tool_name: str
    message: str
    display_name: str | None = None
    type: ClassVar[str] = "tool.progress"


@dataclass(frozen=True, slots=True)
class ToolOutputDeltaData:
    """A piece of the output of a running call."""

    tool_call_id: CallId
    tool_name: str
    delta: str
    stream: str
    type: ClassVar[str] = "tool.output.delta"


EventData: TypeAlias = ToolProgressData | ToolOutputDeltaData


@dataclass(frozen=True, slots=True)
class EventRequest:
    """An event before an emitter accepts it, without id and sequence."""

    session_id: SessionId
    context: EventContext
    data: EventData
    metadata: Json = None
    tags: tuple[str, ...] = field(default=())

    @property
    def type(self) -> str:
        """The event type, as given by the data."""
        return self.data.type

    def into_event(self, id: str, sequence: int) -> EmittedEvent:
        """Return the event with an id and a sequence. Sequence 0 means that the event is not stored."""
        return EmittedEvent(id=id, sequence=sequence, request=self)


@dataclass(frozen=True, slots=True)
class EmittedEvent:
    """An event that an emitter accepted."""

    id: str
    sequence: int
    request: EventRequest

    @property
    def type(self) -> str:
        """The event type."""
        return self.request.type


class EventEmitter(Protocol):
    """A receiver of events. Tools call it from any thread, so it must not block."""

    def emit(self, request: EventRequest) -> EmittedEvent:
        """Accept an event and return it with its id."""
        ...
