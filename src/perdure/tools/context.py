"""The context passed to a tool: ids, idempotency key, dependencies, cancellation, services."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from os import PathLike
from typing import TYPE_CHECKING, Generic, cast

from perdure.codec import Json, brief, digest
from perdure.errors import Code, Error
from perdure.ids import DEFAULT_TENANT, CallId, SessionId, Tenant, TurnId
from perdure.observe.emit import EventData, EventRequest, ToolOutputDeltaData, ToolProgressData
from perdure.services.commands import GRACE_S, KEEP_BYTES, StartedCommand, checked
from perdure.services.files.protocol import SessionFiles
from perdure.services.schedules import SessionScheduleStore
from perdure.services.secrets import Redactor, SecretStore
from perdure.services.tasks import SessionTaskRegistry
from perdure.tools.body import Body
from perdure.tools.call_writes import CallSchedules, CallTasks, CallWrites
from perdure.tools.clients.attachments import Attachments
from perdure.tools.clients.completions import DirectCompletions, DirectRequest
from perdure.tools.clients.dispatch import Dispatch
from perdure.tools.clients.messages import MessagesClient
from perdure.tools.clients.process_events import ProcessEventInfo, emitted, no_process
from perdure.tools.clients.processes import SessionProcesses
from perdure.tools.clients.programs import Programs
from perdure.tools.clients.sessions import Sessions
from perdure.tools.clients.tools import ToolsClient
from perdure.tools.clients.triggers import TriggerClient
from perdure.tools.completion import Completion, CompletionOps
from perdure.tools.durable import DurableOps, recorded_body
from perdure.tools.durations import duration_ms
from perdure.tools.errors import ToolError
from perdure.tools.origin import NO_ORIGIN, NOT_GIVEN, CallOrigin
from perdure.tools.services import Services, missing, required
from perdure.vocab.messages import Message

if TYPE_CHECKING:  # type checkers see a complete bare `ToolContext`; no default is needed at run time
    from typing_extensions import TypeVar

    Deps = TypeVar("Deps", covariant=True, default=Json)
else:
    from typing import TypeVar

    Deps = TypeVar("Deps", covariant=True)

T = TypeVar("T")

logger = logging.getLogger("perdure.tools")


class Cancellation:
    """A thread-safe flag that asks a running call to stop."""

    __slots__ = ("_callbacks", "_cancelled", "_lock", "ignored")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False
        self.ignored = False
        """True if the call exceeded its grace period and was left running."""
        self._callbacks: dict[object, Callable[[], None]] = {}

    @property
    def cancelled(self) -> bool:
        """True if the call should stop."""
        return self._cancelled

    def cancel(self) -> None:
        """Set the flag and run the callbacks on this thread. Later calls do nothing."""
        with self._lock:
            if self._cancelled:
                return
            self._cancelled = True
            callbacks = list(self._callbacks.values())
            self._callbacks.clear()
        for callback in callbacks:
            _run(callback)

    def add_callback(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Run `callback` on cancellation, or now if the flag is set. Return a function that removes it."""
        key = object()
        with self._lock:
            if not self._cancelled:
                self._callbacks[key] = callback
                return lambda: self._forget(key)
        _run(callback)
        return lambda: None

    def _forget(self, key: object) -> None:
        with self._lock:
            self._callbacks.pop(key, None)

    async def wait(self) -> None:
        """Wait until the flag is set."""
        loop = asyncio.get_running_loop()
        reached = loop.create_future()

        def arrive() -> None:
            if not reached.done():
                reached.set_result(None)

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so it has no waiter left
                loop.call_soon_threadsafe(arrive)

        forget = self.add_callback(tell)
        try:
            await reached
        finally:
            forget()

    def __repr__(self) -> str:
        return f"Cancellation(cancelled={self._cancelled})"


def _run(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception:
        logger.exception("a cancellation callback failed")


@dataclass(frozen=True, kw_only=True, repr=False)  # no slots: with them, `ToolContext[Deps](...)` fails on 3.11
class ToolContext(DurableOps, CompletionOps, Generic[Deps]):
    """The context of one call. `idempotency_key` is the same for every attempt and after every restart.

    A service that the runtime lacks raises a `ToolError` that names it.
    """

    session_id: SessionId
    """The session that made the call."""
    turn_id: TurnId
    """The turn that made the call."""
    call_id: CallId
    """The id of the call: unique in its turn, the same for every attempt."""
    tool_name: str
    """The name under which the tool was called."""
    tenant: Tenant = DEFAULT_TENANT
    """The tenant of the session."""
    attempt: int = 1
    """The number of this attempt, from 1."""
    max_attempts: int = 1
    """The number of attempts that the tool's retry policy allows."""
    idempotency_key: str = ""
    """A key for the external system: the same for every attempt and after every restart, different for every call."""
    args: Json = None
    """The arguments of the call as JSON, as the model sent them or a person edited them."""
    cancellation: Cancellation = field(default_factory=Cancellation)
    """The flag that asks this call to stop."""
    _call: CallOrigin = NO_ORIGIN

    @cached_property
    def _writes(self) -> CallWrites:
        return CallWrites(self.idempotency_key)

    def _body(self) -> Body:
        return recorded_body(self._call.body, self.call_id, self.tool_name)

    def _completion(self) -> Completion | None:
        return self._call.completion

    @property
    def readable_key(self) -> str | None:
        """The idempotency key in its readable form. None without a prepared call."""
        return self.idempotency_key or None

    @property
    def deps(self) -> Deps:
        """The dependencies passed to `Runtime(deps=...)`.

        Raises:
            Error: `invalid_argument` if the runtime has none.
        """
        if self._call.deps is NOT_GIVEN:
            raise Error(
                Code.INVALID_ARGUMENT,
                f"the tool {self.tool_name} reads ctx.deps, which is not set",
                because="the runtime was opened without deps",
                hint="Runtime(..., deps=...)",
            )
        return cast("Deps", self._call.deps)

    @property
    def locale(self) -> str | None:
        """The language for answers as a BCP 47 tag, or None if not chosen."""
        return self._call.services.locale

    def plugin_input(self, plugin_id: str, type: type[T]) -> T | None:
        """Return the host's input to one plugin for this turn, or None if absent or of another type."""
        return self._call.turn_context.plugin_input(plugin_id, type)

    async def emit(self, event_type: str, payload: Json) -> ProcessEventInfo:
        """Append an event to the enclosing process. Recorded once; re-entry does not repeat it.

        The process of a background run has the events that its tool declares: `process_events = (EventType(...),)`.

        Raises:
            Error: `durable_effect_process_event_unavailable` outside a process, `…_empty_process_event_type`,
                `…_process_event_append_failed` or `…_process_event_process_mismatch`.
        """
        origin = self._call
        events, process = origin.clients.process_events, origin.runtime_process_id
        if events is None:
            raise no_process(f"the tool {self.tool_name}")
        if origin.body is None:  # a background run, whose events number themselves
            return await emitted(event_type, process, lambda: events.emit(event_type, payload))
        return await self._body().emit(events, process, event_type, payload)

    # --- services of the runtime: a missing service is a visible failure that names it

    @property
    def services(self) -> Services:
        """All services of the runtime by name: `ctx.services.network_access`. An absent one is None."""
        return self._call.services

    @property
    def sessions(self) -> Sessions:
        """Session client: this session, and the others of its tenant through `sessions.get(id)`."""
        return Sessions(self._call.clients.sessions, self._call.services, self._writes)

    @property
    def tools(self) -> ToolsClient:
        """Client for the other tools of this turn: `call`, `batch`, `visible`."""
        return ToolsClient(partial(dispatch_of, self), self._call.services)

    @property
    def messages(self) -> MessagesClient:
        """The conversation so far: `list`, `get`, and `result` for complete results that were truncated."""
        return MessagesClient(self._call.services)

    @property
    def files(self) -> SessionFiles:
        """The files of this session."""
        services = self._call.services
        return SessionFiles(required(services.file_store, "file_store"), self.session_id, services.redactor)

    @property
    def attachments(self) -> Attachments:
        """Attachment client: bytes that belong to the session."""
        return required(self._call.clients.attachments, "attachments")

    @property
    def secrets(self) -> SecretStore:
        """The secrets stored for this session, by reference: `(await ctx.secrets.get(ref)).reveal()`.

        After a secret was read, tools of this session show `[secret]` in its place.
        """
        return required(self._call.services.secrets, "secrets")

    @property
    def schedules(self) -> SessionScheduleStore:
        """The schedules of this session. Their ids are derived from this call, so a repeated attempt makes none."""
        return CallSchedules(required(self._call.services.schedule_store, "schedule_store"), self._writes)

    @property
    def tasks(self) -> SessionTaskRegistry:
        """The task registry for sessions of this tenant. Default ids are derived from this call."""
        return CallTasks(required(self._call.services.session_task_registry, "session_task_registry"), self._writes)

    @property
    def processes(self) -> SessionProcesses:
        """Process client: the processes visible to this session."""
        return required(self._call.clients.processes, "processes")(self)

    @property
    def triggers(self) -> TriggerClient:
        """Trigger client: emit occurrences, manage subscriptions."""
        return required(self._call.clients.triggers, "triggers")(self)

    async def complete(
        self,
        question: str = "",
        *,
        source: str,
        messages: Sequence[Message] | None = None,
        instructions: str = "",
        utility: bool = False,
        settings: Json = None,
        key: str = "",
    ) -> str:
        """Return the text of one answer of the session's model, outside the conversation and without tools.

        Ask a question, or pass `messages`, a whole conversation that ends with a user message. `source` is the account
        for the usage. `utility` uses the host's utility model, with only the settings given here.

        In an ordinary tool the request belongs to the attempt: a repeated attempt asks again. In a `resumable` tool it
        is recorded under its `key` or content. An answered request, by a reply or an error, is replayed.

        Raises:
            ToolError: `direct_completion_failed`, or `service_unavailable` without such a model.
        """
        content = question if messages is None else messages
        asked = DirectRequest(content, instructions, settings, key, utility)
        return (await completions_of(self).complete(asked, source)).text

    async def start_command(  # noqa: PLR0913 - independent options
        self,
        argv: str | Sequence[str],
        *,
        name: str = "command",
        shell: bool = False,
        cwd: str | PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        inherit: Sequence[str] = (),
        notify: bool = True,
        label: str = "",
        grace: float | str = GRACE_S,
        keep_bytes: int = KEEP_BYTES,
    ) -> StartedCommand:
        """Start an operating system command that outlives this call, its turn and its worker.

        Returns once the command is registered. Its end is reported to the session unless `notify` is false. The id is
        derived from this call and `name`, so a repeated call starts nothing new. Use distinct names to start several
        commands in one call.

        Raises:
            Error: `command_invalid`, `command_unknown`, `command_folder_unknown`, `input_too_large`,
                `process_conflict` for another command under that name.
        """
        if (commands := self._call.services.commands) is None:
            raise missing("commands")
        asked = checked(
            argv,
            host=commands.host,
            shell=shell,
            cwd=cwd,
            env=env,
            inherit=inherit,
            grace_ms=duration_ms(grace, what="the grace"),
            keep_bytes=keep_bytes,
        )
        _refuse_secrets(self._call.services.redactor, [list(asked.argv), dict(asked.env), asked.cwd])
        id = f"cmd_{brief(digest(('command', self.idempotency_key, name)))}"
        return await commands.start(asked, id=id, label=label, session=self.session_id, notify=notify)

    # --- live notifications to observers

    def progress(self, message: str) -> None:
        """Send a progress message to observers. Best effort: not stored, never blocks, never fails the call."""
        shown = self._call.services.redactor.text(message) if isinstance(message, str) else message  # pyright: ignore[reportUnnecessaryIsInstance] - tools pass any type
        self._emit(ToolProgressData(self.call_id, self.tool_name, shown))

    def output(self, text: str, stream: str = "stdout") -> None:
        """Send a piece of output to observers. Best effort, like `progress`."""
        services, pieces = self._call.services, self._call.pieces
        shown = pieces.add(stream, text, services.redactor) if isinstance(text, str) else text  # pyright: ignore[reportUnnecessaryIsInstance] - tools pass any type
        if shown or not text:
            self._emit(ToolOutputDeltaData(self.call_id, self.tool_name, shown, stream))

    def _end_output(self) -> None:
        for stream, text in self._call.pieces.rest(self._call.services.redactor).items():
            self._emit(ToolOutputDeltaData(self.call_id, self.tool_name, text, stream))

    def _emit(self, data: EventData) -> None:
        emitter, where = self._call.event_emitter, self._call.event_context
        if emitter is None or where is None or not self.call_id:
            return
        try:
            emitter.emit(EventRequest(self.session_id, where, data))
        except Exception as problem:  # noqa: BLE001 - a lost event must not fail the tool
            logger.debug("event lost tool=%s error=%r", self.tool_name, problem)

    def __repr__(self) -> str:
        # Presence only: contexts end up in logs and tracebacks, and dependencies hold credentials.
        origin = self._call
        return (
            f"ToolContext(session_id={self.session_id!r}, turn_id={self.turn_id!r}, call_id={self.call_id!r}, "
            f"tool_name={self.tool_name!r}, tenant={self.tenant!r}, attempt={self.attempt}/{self.max_attempts}, "
            f"idempotency_key={_presence(bool(self.idempotency_key))}, args={_presence(self.args is not None)}, "
            f"deps={_presence(origin.deps is not NOT_GIVEN)}, services={origin.services!r}, "
            f"clients={origin.clients!r}, prepared_payload={_presence(origin.prepared_payload is not None)}, "
            f"event_emitter={_presence(origin.event_emitter is not None)}, cancelled={self.cancellation.cancelled})"
        )


def _presence(there: bool) -> str:
    return "present" if there else "absent"


def origin_of(ctx: ToolContext[object]) -> CallOrigin:
    """Return the wiring of a context: the runtime's own view of a call."""
    return ctx._call  # pyright: ignore[reportPrivateUsage] - the only access from other modules


def _refuse_secrets(redactor: Redactor, recorded: list[Json]) -> None:
    """Refuse a command with a secret in its record: a command with the secret redacted would be another command."""
    if redactor.json(recorded) != recorded:  # threat: S10, T-TOOL-08
        message = "The arguments and variables of a command are recorded, so they cannot contain a secret"
        raise ToolError(f"{message}. Pass it in a file outside the session, or by `inherit`", code="secret_in_command")


def end_output(ctx: ToolContext[object]) -> None:
    """Send the output that was held back as the possible beginning of a secret."""
    ctx._end_output()  # pyright: ignore[reportPrivateUsage] - part of this module


def dispatch_of(ctx: ToolContext[object]) -> Dispatch:
    """Return the dispatcher of calls to other tools."""
    return required(origin_of(ctx).clients.dispatch, "dispatch")(ctx)


def completions_of(ctx: ToolContext[object]) -> DirectCompletions:
    """Return the client for model calls outside the conversation."""
    return required(origin_of(ctx).clients.direct_completions, "direct_completions")(ctx)


def programs_of(ctx: ToolContext[object]) -> Programs:
    """Return the state shared by the code-mode programs of the session."""
    return required(origin_of(ctx).clients.programs, "programs")
