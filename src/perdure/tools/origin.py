"""The wiring of a tool's context: enclosing turn or process, prepared payload, services and clients of the runtime."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from perdure.codec import Json
from perdure.ids import CallId
from perdure.observe.emit import EventContext, EventEmitter
from perdure.services.secrets import OutputPieces
from perdure.tools.body import Body
from perdure.tools.clients.attachments import Attachments
from perdure.tools.clients.completions import DirectCompletions
from perdure.tools.clients.dispatch import Dispatch
from perdure.tools.clients.process_events import ProcessEvents
from perdure.tools.clients.processes import SessionProcesses
from perdure.tools.clients.programs import Programs
from perdure.tools.clients.sessions import SessionsClient
from perdure.tools.clients.triggers import TriggerClient
from perdure.tools.clients.turn import TurnContext
from perdure.tools.completion import Completion
from perdure.tools.services import NO_SERVICES, Services
from perdure.vocab.effects import Invocation

if TYPE_CHECKING:
    from perdure.tools.context import ToolContext


class _NotGiven:
    """Sentinel for absent dependencies, because None may be a dependency."""

    def __repr__(self) -> str:
        return "NOT_GIVEN"


NOT_GIVEN: Final = _NotGiven()


@dataclass(frozen=True, slots=True)
class Clients:
    """The clients of a runtime for one call. None means that the service is absent."""

    sessions: SessionsClient | None = None
    dispatch: Callable[[ToolContext[object]], Dispatch] | None = None
    attachments: Attachments | None = None
    direct_completions: Callable[[ToolContext[object]], DirectCompletions] | None = None
    process_events: ProcessEvents | None = None
    processes: Callable[[ToolContext[object]], SessionProcesses] | None = None
    triggers: Callable[[ToolContext[object]], TriggerClient] | None = None
    programs: Programs | None = None

    def __repr__(self) -> str:
        # Presence only, as for all contents of a context.
        there = [one.name for one in dataclasses.fields(self) if getattr(self, one.name) is not None]
        return f"Clients({', '.join(there)})"


NO_CLIENTS = Clients()


@dataclass(frozen=True, slots=True)
class ChildProcessStarted:
    """A process started by a call. `entry_name` is its entry point, if known."""

    process_id: str
    entry_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CallOrigin:
    """The origin of one call, and the parts of the runtime that serve it. Tools do not see it."""

    deps: object = NOT_GIVEN
    """The argument `Runtime(deps=...)`; tools read it through `ctx.deps`."""
    services: Services = NO_SERVICES
    clients: Clients = NO_CLIENTS
    body: Body | None = None
    completion: Completion | None = None
    event_emitter: EventEmitter | None = None
    event_context: EventContext | None = None
    pieces: OutputPieces = field(default_factory=OutputPieces, compare=False)
    prepared_payload: Json = None
    turn_context: TurnContext = field(default_factory=TurnContext)
    agent_frame_id: str = ""
    parent_call_id: CallId | None = None
    parent_invocation: Invocation | None = None
    async_process_id: str | None = None
    own_process_id: str | None = None
    process_events_id: str | None = None
    on_child_process: Callable[[ChildProcessStarted], None] | None = None

    @property
    def runtime_process_id(self) -> str | None:
        """The enclosing process: the asynchronous one, else the runtime's, else the one that receives events."""
        return self.async_process_id or self.own_process_id or self.process_events_id

    def emit_child_process_started(self, process_id: str, entry_name: str | None = None) -> None:
        """Report a started process to the tracer of this call, if it has one."""
        if self.on_child_process is not None:
            self.on_child_process(ChildProcessStarted(process_id, entry_name))


NO_ORIGIN: Final = CallOrigin()
