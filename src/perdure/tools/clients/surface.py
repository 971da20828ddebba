"""The part of a tool's context that reaches beyond the call: what was prepared, where it runs, which services exist."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, TypeVar

import msgspec

from perdure.codec import Json
from perdure.effects import keys
from perdure.errors import Code, Error
from perdure.ids import DEFAULT_TENANT, CallId, SessionId, Tenant
from perdure.tools.clients.attachments import Attachments
from perdure.tools.clients.completions import DirectCompletions, DirectRequest
from perdure.tools.clients.dispatch import Dispatch
from perdure.tools.clients.process_events import ProcessEvents
from perdure.tools.clients.processes import SessionProcesses
from perdure.tools.clients.programs import Programs
from perdure.tools.clients.sessions import Sessions
from perdure.tools.clients.triggers import TriggerClient
from perdure.tools.clients.turn import TurnContext
from perdure.tools.services import missing
from perdure.vocab.effects import Invocation, PreparedToolCall

if TYPE_CHECKING:
    from perdure.tools.context import CancelToken

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Clients:
    """What the runtime offers one call. None is a service that does not exist there."""

    sessions: Sessions | None = None
    dispatch: Callable[[CallSurface], Dispatch] | None = None
    attachments: Attachments | None = None
    direct_completions: Callable[[CallSurface], DirectCompletions] | None = None
    process_events: ProcessEvents | None = None
    processes: Callable[[CallSurface], SessionProcesses] | None = None
    triggers: Callable[[CallSurface], TriggerClient] | None = None
    programs: Programs | None = None

    def __repr__(self) -> str:
        # Presence only, as of everything a context holds.
        there = [one.name for one in dataclasses.fields(self) if getattr(self, one.name) is not None]
        return f"Clients({', '.join(there)})"


NO_CLIENTS = Clients()


@dataclass(frozen=True, slots=True)
class ChildProcessStarted:
    """A call started a process; `entry_name` says what of, if anybody knows."""

    process_id: str
    entry_name: str | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class CallSurface:
    """What a context carries besides the call itself. Immutable: every `with_…` gives a changed copy."""

    session_id: SessionId
    call_id: CallId
    tool_name: str
    tenant: Tenant = DEFAULT_TENANT
    attempt: int = 1
    max_attempts: int = 1
    idempotency_key: str = ""
    prepared_payload: Json = None
    turn_context: TurnContext = field(default_factory=TurnContext)
    agent_frame_id: str = ""
    parent_call_id: CallId | None = None
    parent_invocation: Invocation | None = None
    async_process_id: str | None = None
    own_process_id: str | None = None
    process_events_id: str | None = None
    on_child_process: Callable[[ChildProcessStarted], None] | None = None
    clients: Clients = NO_CLIENTS

    # --- the call

    @property
    def attempt_number(self) -> int:
        """Which attempt this is, from 1."""
        return self.attempt

    @property
    def replay_key(self) -> str | None:
        """The idempotency key: the same for every attempt of the call. None where there is no prepared call."""
        return self.idempotency_key or None

    @property
    def runtime_process_id(self) -> str | None:
        """The process this runs in: the asynchronous one first, then the runtime's, then the one events go to."""
        return self.async_process_id or self.own_process_id or self.process_events_id

    def decode_prepared_payload(self, type: type[T]) -> T:
        """What preparation sealed, as `type`.

        Raises:
            Error: `invalid_json` if it has another shape.
        """
        try:
            return msgspec.convert(self.prepared_payload, type)
        except msgspec.ValidationError as problem:
            raise Error(
                Code.INVALID_JSON, "the prepared payload does not have the expected shape", because=str(problem)
            ) from None

    def plugin_input(self, plugin_id: str, type: type[T]) -> T | None:
        """What the host said to one plugin with this turn's input; None if nothing of that shape."""
        return self.turn_context.plugin_input(plugin_id, type)

    def emit_child_process_started(self, process_id: str, entry_name: str | None = None) -> None:
        """Tell whoever traces this call that it started a process. Nobody does: nothing happens."""
        if self.on_child_process is not None:
            self.on_child_process(ChildProcessStarted(process_id, entry_name))

    # --- changed copies

    def prepared_call(self, call: PreparedToolCall) -> Self:
        """For this prepared call: its id and its payload."""
        return dataclasses.replace(self, call_id=call.call_id, prepared_payload=call.prepared_payload)

    def with_retry_context(self, tool_name: str, attempt: int, max_attempts: int) -> Self:
        """For one attempt of so many (each at least 1), under the key that all of them share."""
        key = keys.tool_idempotency(self.tenant, self.session_id, self.call_id, tool_name) if self.call_id else ""
        return dataclasses.replace(
            self, attempt=max(1, attempt), max_attempts=max(1, max_attempts), idempotency_key=key
        )

    def with_async_process(self, process_id: str, cancellation: CancelToken) -> Self:
        """For a process of its own, with its own cancellation."""
        changes: dict[str, Json] = {"cancellation": cancellation}
        return dataclasses.replace(self, async_process_id=process_id, own_process_id=process_id, **changes)

    # --- services

    @property
    def sessions(self) -> Sessions:
        """Sessions, this one and others."""
        return self._need(self.clients.sessions, "sessions")

    @property
    def dispatch(self) -> Dispatch:
        """The other tools of this turn."""
        return self._need(self.clients.dispatch, "dispatch")(self)

    @property
    def attachments(self) -> Attachments:
        """Bytes that belong to the session."""
        return self._need(self.clients.attachments, "attachments")

    @property
    def direct_completions(self) -> DirectCompletions:
        """The session's model, outside the conversation."""
        return self._need(self.clients.direct_completions, "direct_completions")(self)

    async def complete(
        self,
        question: str,
        *,
        source: str,
        instructions: str = "",
        utility: bool = False,
        settings: Json = None,
        key: str = "",
    ) -> str:
        """The text of one answer, outside the conversation: `direct_completions.complete`, for plain questions.

        `source` is on whose account it is counted; `utility` asks the host's own model for small work.

        Raises:
            ToolError: `direct_completion_failed`, or `service_unavailable` if there is no such model.
        """
        asked = DirectRequest(question, instructions, settings, key, utility)
        return (await self.direct_completions.complete(asked, source)).text

    @property
    def process_events(self) -> ProcessEvents:
        """The events of the process this runs in; missing outside a process."""
        return self._need(self.clients.process_events, "process_events")

    @property
    def processes(self) -> SessionProcesses:
        """The processes that are seen from this session."""
        return self._need(self.clients.processes, "processes")(self)

    @property
    def triggers(self) -> TriggerClient:
        """What happens, and who wants a process for it."""
        return self._need(self.clients.triggers, "triggers")(self)

    @property
    def programs(self) -> Programs:
        """What is kept between the programs that the model writes."""
        return self._need(self.clients.programs, "programs")

    def _need(self, service: T | None, name: str) -> T:
        if service is None:
            raise missing(name)
        return service
