"""Service interfaces available to tools. All are optional: a context may lack any of them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from perdure.ids import CallId, SessionId, Tenant
from perdure.services.commands import Commands
from perdure.services.files.protocol import SessionFileSystem
from perdure.services.schedules import SessionScheduleStore
from perdure.services.secrets import Redactor, SecretStore
from perdure.services.subagents import SubagentSpawnStore
from perdure.services.tasks import SessionTaskRegistry
from perdure.tools.errors import ToolError
from perdure.vocab.messages import Message
from perdure.vocab.tools import ToolDefinition

if TYPE_CHECKING:
    from perdure.tools.registry import ToolRegistry

T = TypeVar("T")


class MessageRetriever(Protocol):
    """Read-only access to the conversation of the call's session."""

    async def load(self, *, last: int | None = None) -> tuple[Message, ...]:
        """Return the conversation as shown to a model, or its last messages."""
        ...

    async def get(self, index: int) -> Message | None:
        """Return one message by its index, counted from 0, or None."""
        ...


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session as visible to a tool. Times are milliseconds since 1970."""

    id: SessionId
    tenant: Tenant
    agent: str
    created_at: int
    updated_at: int
    title: str = ""
    tags: tuple[str, ...] = ()


class SessionStore(Protocol):
    """Read-only access to the sessions of the call's tenant."""

    async def get_session(self, session_id: SessionId) -> StoredSession | None:
        """Return a session of the tenant, or None."""
        ...


class SessionMutator(Protocol):
    """Changes that a tool may make to the sessions of its tenant."""

    async def update_session_title(self, session_id: SessionId, title: str) -> StoredSession:
        """Set a session's title; durable on return. An equal title changes nothing.

        Raises:
            ToolError: unknown session, or invalid title.
        """
        ...


IdleStatus = Literal["idle", "error", "paused", "waiting_for_tool_results", "timeout"]
"""The resting state of a session: it has answered, its last turn was stopped, it is paused, it waits for a client or a
person.

`timeout` means that it was still busy at the end of the wait.
"""


class PlatformStore(Protocol):
    """Access to the tenant's other sessions. Failures are `ToolError`s with a code.

    Operations are not recorded with the call. An id or a key makes an operation idempotent.
    """

    async def create_session(
        self, agent: str, *, session_id: str | None = None, title: str | None = None
    ) -> StoredSession:
        """Create a session for an agent of this runtime, durably. An equal id and agent give the same session.

        Without an id, each call creates a new session. Codes: `agent_unknown`, `session_agent_conflict`.
        """
        ...

    async def get_session_by_id(self, session_id: str) -> StoredSession | None:
        """Return a session of the tenant, or None."""
        ...

    async def send_message(self, session_id: str, content: str, *, key: str | None = None) -> None:
        """Send an input to a session, durably. Equal key and content give the same input. Code: `session_unknown`."""
        ...

    async def get_messages(self, session_id: str, limit: int | None = None) -> tuple[Message, ...]:
        """Return the conversation of a session as shown to a model, or its last messages. Code: `session_unknown`."""
        ...

    async def wait_for_idle(self, session_id: str, timeout_secs: float | None = None) -> IdleStatus:
        """Wait until a session is at rest, for at most five minutes.

        Codes: `session_unknown`; `session_is_own` for the session of the current turn.
        """
        ...


class NetworkAccess(Protocol):
    """The network policy for tools of this session. A tool that sends requests checks it before each one."""

    def allows(self, url: str) -> bool:
        """Return True if this URL may be requested."""
        ...


class ResultReader(Protocol):
    """Access to complete results that were truncated for the model."""

    async def read(self, call: CallId) -> bytes | None:
        """Return all bytes of the result of a call in this session, or None if not stored."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Services:
    """The services of a runtime for the tools of one session. Every field has a user."""

    locale: str | None = None
    """A BCP 47 tag, such as `uk-UA`."""
    visible_tool_names: frozenset[str] | None = None
    """The tools visible to the model in this turn; the registry may contain more. None means no restriction."""
    tool_definitions: tuple[ToolDefinition, ...] | None = None
    """The definitions sent to the model when the turn began, including those of providers."""
    network_access: NetworkAccess | None = None
    tool_registry: ToolRegistry | None = None
    message_retriever: MessageRetriever | None = None
    session_store: SessionStore | None = None
    session_mutator: SessionMutator | None = None
    result_reader: ResultReader | None = None
    schedule_store: SessionScheduleStore | None = None
    secrets: SecretStore | None = None
    redactor: Redactor = field(default_factory=Redactor, compare=False)
    """Redactor of the session's secrets in the output of tools."""
    file_store: SessionFileSystem | None = None
    session_task_registry: SessionTaskRegistry | None = None
    commands: Commands | None = None
    platform_store: PlatformStore | None = None
    subagent_spawn_store: SubagentSpawnStore | None = None

    def __repr__(self) -> str:
        # Presence only: services hold connections and credentials.
        named = (f"{one.name}={getattr(self, one.name) is not None}" for one in fields(self))
        return f"Services({', '.join(named)})"


NO_SERVICES = Services()


def missing(service: str) -> ToolError:
    """Return the error for a tool that needs an absent service."""
    name = service.replace("_", " ").capitalize()
    return ToolError(f"{name} not available in this context.", code="service_unavailable")


def required(service: T | None, name: str) -> T:
    """Return the service, or raise the error that names it."""
    if service is None:
        raise missing(name)
    return service
