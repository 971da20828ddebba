"""What a tool knows about the call it serves: who asks, under which key, with which dependencies, and until when."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import TYPE_CHECKING, Final, Generic, Self

from perdure.codec import Json, brief, digest
from perdure.errors import Code, Error
from perdure.ids import CallId, Tenant, TurnId
from perdure.observe.emit import (
    EventContext,
    EventData,
    EventEmitter,
    EventRequest,
    ToolOutputDeltaData,
    ToolProgressData,
)
from perdure.services.commands import GRACE_S, KEEP_BYTES, StartedCommand, checked
from perdure.services.files.protocol import SessionFiles, SessionFileSystem
from perdure.services.schedules import SessionScheduleStore
from perdure.services.secrets import SecretStore
from perdure.services.subagents import SubagentSpawnStore
from perdure.services.tasks import SessionTaskRegistry
from perdure.tools.body import Body
from perdure.tools.clients.process_events import ProcessEventInfo
from perdure.tools.clients.progress import ProgressSender, SandboxMessage
from perdure.tools.clients.surface import CallSurface
from perdure.tools.completion import Completion, CompletionOps
from perdure.tools.durable import DurableOps
from perdure.tools.durations import duration_ms
from perdure.tools.services import (
    NO_SERVICES,
    MessageRetriever,
    NetworkAccess,
    PlatformStore,
    ResultReader,
    Services,
    SessionMutator,
    SessionStore,
    missing,
)

if TYPE_CHECKING:  # so that a bare `ToolContext` is complete to a type checker; at run time it needs no default
    from typing_extensions import TypeVar

    from perdure.tools.registry import ToolRegistry
    from perdure.vocab.tools import ToolDefinition

    Deps = TypeVar("Deps", covariant=True, default=Json)
else:
    from typing import TypeVar

    Deps = TypeVar("Deps", covariant=True)

logger = logging.getLogger("perdure.tools")


class CancelToken:
    """Tells a running call that nobody waits for it any more. Safe to read and to set from any thread."""

    __slots__ = ("_callbacks", "_cancelled", "_lock", "ignored")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False
        self.ignored = False
        """Whether the call went on for longer than it was given to stop, and was left running."""
        self._callbacks: dict[object, Callable[[], None]] = {}

    @property
    def cancelled(self) -> bool:
        """Whether the call should stop."""
        return self._cancelled

    def cancel(self) -> None:
        """Set it, once and for all, and run the callbacks on this thread."""
        with self._lock:
            if self._cancelled:
                return
            self._cancelled = True
            callbacks = list(self._callbacks.values())
            self._callbacks.clear()
        for callback in callbacks:
            _run(callback)

    def add_callback(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Run `callback` on cancellation, at once if that has passed. Returns a function that takes it back."""
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
        """Return once it is set."""
        loop = asyncio.get_running_loop()
        reached = loop.create_future()

        def arrive() -> None:
            if not reached.done():
                reached.set_result(None)

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # that loop is closed: nobody waits in it any more
                loop.call_soon_threadsafe(arrive)

        forget = self.add_callback(tell)
        try:
            await reached
        finally:
            forget()

    def __repr__(self) -> str:
        return f"CancelToken(cancelled={self._cancelled})"


def _run(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception:
        logger.exception("a cancellation callback failed")


class _NotGiven:
    """Stands for absent dependencies, since None may be a dependency."""

    def __repr__(self) -> str:
        return "NOT_GIVEN"


NOT_GIVEN: Final = _NotGiven()


@dataclass(frozen=True, kw_only=True, repr=False)  # no slots: with them, `ToolContext[Deps](...)` fails on 3.11
class ToolContext(CallSurface, DurableOps, CompletionOps, Generic[Deps]):
    """One call, as its tool sees it. `idempotency_key` is the same for every attempt, after every restart.

    `given` is what the runtime was given as `deps=`; tools read it through `deps`.
    """

    turn_id: TurnId
    args: Json = None
    cancellation: CancelToken = field(default_factory=CancelToken)
    given: Deps | _NotGiven = NOT_GIVEN
    services: Services = NO_SERVICES
    event_emitter: EventEmitter | None = None
    event_context: EventContext | None = None
    body: Body | None = None
    completion: Completion | None = None

    async def emit_process_event(self, event_type: str, payload: Json) -> ProcessEventInfo:
        """Tell those who watch the process this runs in, once however often the body is entered.

        Raises:
            Error: `durable_effect_process_event_unavailable` outside a process, `…_empty_process_event_type`,
                `…_process_event_append_failed` or `…_process_event_process_mismatch`.
        """
        body = self.durable_effects()
        return await body.emit(self.clients.process_events, self.runtime_process_id, event_type, payload)

    @property
    def deps(self) -> Deps:
        """What the application gave its tools to work with.

        Raises:
            Error: `invalid_argument` if it gave nothing.
        """
        if isinstance(self.given, _NotGiven):
            raise Error(
                Code.INVALID_ARGUMENT,
                f"the tool {self.tool_name} asks for ctx.deps, and there are none",
                because="the runtime was opened without deps",
                hint="pass them: Runtime(..., deps=...)",
            )
        return self.given

    # --- what the runtime offers: a tool that needs what is not there fails visibly, and says what it needs

    @property
    def org_id(self) -> Tenant:
        """The tenant, by its other name."""
        return self.tenant

    @property
    def tool_call_id(self) -> CallId:
        """The call, by its other name."""
        return self.call_id

    @property
    def locale(self) -> str | None:
        """The language to answer in, as a BCP 47 tag, if anybody chose one."""
        return self.services.locale

    @property
    def visible_tool_names(self) -> frozenset[str] | None:
        """The tools the model knows of in this turn; None is no restriction."""
        return self.services.visible_tool_names

    @property
    def network_access(self) -> NetworkAccess | None:
        """Which addresses may be reached; None if nobody restricted them."""
        return self.services.network_access

    @property
    def message_retriever(self) -> MessageRetriever:
        """The conversation so far, to read. A `ToolError` that says so, if there is none."""
        if self.services.message_retriever is None:
            raise missing("message_retriever")
        return self.services.message_retriever

    @property
    def session_store(self) -> SessionStore:
        """The sessions of this tenant, to read. A `ToolError` that says so, if there is none."""
        if self.services.session_store is None:
            raise missing("session_store")
        return self.services.session_store

    @property
    def session_mutator(self) -> SessionMutator:
        """Changes to sessions of this tenant. A `ToolError` that says so, if there is none."""
        if self.services.session_mutator is None:
            raise missing("session_mutator")
        return self.services.session_mutator

    @property
    def tool_registry(self) -> ToolRegistry:
        """The agent's own tools, without those of providers. A `ToolError` that says so, if there is no registry.

        It may hold more than the model knows of: show others `visible_tools` only. What is called through it is not
        recorded.
        """
        if self.services.tool_registry is None:
            raise missing("tool_registry")
        return self.services.tool_registry

    @property
    def result_reader(self) -> ResultReader:
        """The whole of results that were too long to be shown. A `ToolError` that says so, if there is none."""
        if self.services.result_reader is None:
            raise missing("result_reader")
        return self.services.result_reader

    @property
    def schedule_store(self) -> SessionScheduleStore:
        """The schedules of this session."""
        if self.services.schedule_store is None:
            raise missing("schedule_store")
        return self.services.schedule_store

    @property
    def secrets(self) -> SecretStore:
        """What people gave this session in secret, by reference: `(await ctx.secrets.get(ref)).reveal()`.

        A value that was read is replaced by `[secret]` in whatever tools of this session say from then on. A
        `ToolError` that says so, if there is no such service.
        """
        if self.services.secrets is None:
            raise missing("secrets")
        return self.services.secrets

    @property
    def file_store(self) -> SessionFileSystem:
        """The files of all sessions of this tenant. A `ToolError` that says so, if there are none."""
        if self.services.file_store is None:
            raise missing("file_store")
        return self.services.file_store

    @property
    def files(self) -> SessionFiles:
        """The files of this session. A `ToolError` that says so, if there are none."""
        return SessionFiles(self.file_store, self.session_id)

    @property
    def session_task_registry(self) -> SessionTaskRegistry:
        """The tasks of sessions of this tenant. A `ToolError` that says so, if there is no registry."""
        if self.services.session_task_registry is None:
            raise missing("session_task_registry")
        return self.services.session_task_registry

    @property
    def platform_store(self) -> PlatformStore:
        """The other sessions of this tenant, to open, speak to, read and wait for. A `ToolError` that says so, if there
        is none."""
        if self.services.platform_store is None:
            raise missing("platform_store")
        return self.services.platform_store

    @property
    def subagent_spawn_store(self) -> SubagentSpawnStore:
        """Who starts which session for which call: claim, register, settle. A `ToolError` that says so, if there is
        none."""
        if self.services.subagent_spawn_store is None:
            raise missing("subagent_spawn_store")
        return self.services.subagent_spawn_store

    async def command(  # noqa: PLR0913 - its options, each one word
        self,
        argv: str | Sequence[str],
        *,
        name: str = "command",
        shell: bool = False,
        cwd: str | PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        tell: bool = True,
        label: str = "",
        grace: float | str = GRACE_S,
        keep_bytes: int = KEEP_BYTES,
    ) -> StartedCommand:
        """Run a command of the operating system that goes on when this call, its turn and its worker are over. This
        returns once it is registered; when it ends, the session is told, unless `tell` is false.

        It is named after this call and `name`, so that however often the call runs, it is one command. Give each a name
        of its own if a call starts several.

        Raises:
            Error: `command_invalid`, `command_unknown`, `command_folder_unknown`, `input_too_large`,
                `process_conflict` for another command under that name.
        """
        if (commands := self.services.commands) is None:
            raise missing("commands")
        asked = checked(
            argv,
            host=commands.host,
            shell=shell,
            cwd=cwd,
            env=env,
            grace_ms=duration_ms(grace, what="the grace"),
            keep_bytes=keep_bytes,
        )
        id = f"cmd_{brief(digest(('command', self.idempotency_key, name)))}"
        return await commands.start(asked, id=id, label=label, session=self.session_id, tell=tell)

    def visible_tools(self) -> tuple[ToolDefinition, ...]:
        """The definitions of the agent's tools that the model knows of, as it was told them."""
        visible, found = self.visible_tool_names, self.services.tool_definitions
        if found is None:
            found = self.tool_registry.tool_definitions()
        return tuple(one for one in found if visible is None or one.name in visible)

    def with_(self, **changes: object) -> Self:
        """This context with other fields; the original stays as it is."""
        return replace(self, **changes)

    def with_services(self, **services: object) -> Self:
        """This context with other services; the rest stay."""
        return replace(self, services=replace(self.services, **services))

    # --- telling observers something, live

    def emit_progress(self, message: str) -> None:
        """Tell observers how far the call is. Best effort: never stored, never waited for, and nothing fails by it."""
        self._emit(ToolProgressData(self.call_id, self.tool_name, self._veiled(message)))

    def emit_tool_output(self, delta: str, stream: str = "stdout") -> None:
        """Show observers a piece of what the call prints. Best effort, as `emit_progress`."""
        self._emit(ToolOutputDeltaData(self.call_id, self.tool_name, self._veiled(delta), stream))

    def _veiled(self, text: str) -> str:
        return self.services.veil.text(text) if isinstance(text, str) else text  # pyright: ignore[reportUnnecessaryIsInstance] - whatever a tool says

    @property
    def progress(self) -> ProgressSender:
        """Takes messages about how far the call is, and pieces of what it prints. A `ToolError` if nobody listens."""
        if self.event_emitter is None:
            raise missing("progress")
        return self._send

    def _send(self, message: SandboxMessage) -> None:
        if message.kind in ("stdout", "stderr"):
            self.emit_tool_output(message.text, message.kind)
        else:
            self.emit_progress(message.text)

    def _emit(self, data: EventData) -> None:
        if self.event_emitter is None or self.event_context is None or not self.call_id:
            return
        try:
            self.event_emitter.emit(EventRequest(self.session_id, self.event_context, data))
        except Exception as problem:  # noqa: BLE001 - a tool must not fail because nobody could be told about it
            logger.debug("an event of the tool %s was lost: %r", self.tool_name, problem)

    def __repr__(self) -> str:
        # Presence only: contexts end up in logs and tracebacks, dependencies hold credentials.
        return (
            f"ToolContext(session_id={self.session_id!r}, turn_id={self.turn_id!r}, call_id={self.call_id!r}, "
            f"tool_name={self.tool_name!r}, tenant={self.tenant!r}, attempt={self.attempt}/{self.max_attempts}, "
            f"idempotency_key={_presence(bool(self.idempotency_key))}, args={_presence(self.args is not None)}, "
            f"deps={_presence(self.given is not NOT_GIVEN)}, services={self.services!r}, "
            f"clients={self.clients!r}, prepared_payload={_presence(self.prepared_payload is not None)}, "
            f"event_emitter={_presence(self.event_emitter is not None)}, cancelled={self.cancellation.cancelled})"
        )


def _presence(there: bool) -> str:
    return "present" if there else "absent"
