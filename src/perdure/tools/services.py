"""What a tool may ask the runtime for, each as small as its use. All are optional: a context may lack any of them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Literal, Protocol

from perdure.ids import CallId, SessionId, Tenant
from perdure.services.commands import Commands
from perdure.services.files.protocol import SessionFileSystem
from perdure.services.schedules import SessionScheduleStore
from perdure.services.secrets import SecretStore, Veil
from perdure.services.subagents import SubagentSpawnStore
from perdure.services.tasks import SessionTaskRegistry
from perdure.tools.errors import ToolError
from perdure.vocab.messages import Message
from perdure.vocab.tools import ToolDefinition

if TYPE_CHECKING:
    from perdure.tools.registry import ToolRegistry


class MessageRetriever(Protocol):
    """Read-only access to the conversation of the session a call belongs to."""

    async def load(self, *, last: int | None = None) -> tuple[Message, ...]:
        """The conversation as a model would be shown it, or its last messages."""
        ...

    async def get(self, index: int) -> Message | None:
        """One message by its place, counted from 0."""
        ...


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session as a tool may see it. Moments are milliseconds since 1970."""

    id: SessionId
    tenant: Tenant
    agent: str
    created_at: int
    updated_at: int
    title: str = ""
    tags: tuple[str, ...] = ()


class SessionStore(Protocol):
    """Read-only access to the sessions of the tenant a call belongs to."""

    async def get_session(self, session_id: SessionId) -> SessionInfo | None:
        """A session, if the tenant has it."""
        ...


class SessionMutator(Protocol):
    """What a tool may change about the sessions of its tenant."""

    async def update_session_title(self, session_id: SessionId, title: str) -> SessionInfo:
        """Name a session; durable when this returns. The same title again changes nothing that anybody reads.

        Raises:
            ToolError: there is no such session, or this cannot be a title.
        """
        ...


IdleStatus = Literal["idle", "error", "paused", "waiting_for_tool_results", "timeout"]
"""How a session rests: it has answered, its last turn was stopped, somebody paused it, it waits for what only a client
or a person can bring; or it does not rest yet."""


class PlatformStore(Protocol):
    """The sessions of the tenant around the one a call belongs to. What cannot be done is a `ToolError` with its code.

    Nothing here is recorded with the call: what must not happen twice is named, by an id or a key.
    """

    async def create_session(
        self, agent: str, *, session_id: str | None = None, title: str | None = None
    ) -> SessionInfo:
        """Open a session for an agent of this runtime, durably. The same id and agent again is the same session;
        without an id it is a new one each time. `agent_unknown`, `session_agent_conflict`.
        """
        ...

    async def get_session_by_id(self, session_id: str) -> SessionInfo | None:
        """A session, if the tenant has it."""
        ...

    async def send_message(self, session_id: str, content: str, *, key: str | None = None) -> None:
        """Say something to a session, durably; the same key and content again is the same input. `session_unknown`."""
        ...

    async def get_messages(self, session_id: str, limit: int | None = None) -> tuple[Message, ...]:
        """What was said in a session, as a model would be shown it, or the last so many. `session_unknown`."""
        ...

    async def wait_for_idle(self, session_id: str, timeout_secs: float | None = None) -> IdleStatus:
        """Wait, for five minutes at most, until a session has nothing to do by itself. `session_unknown`;
        `session_is_own` for the one whose turn this is."""
        ...


class NetworkAccess(Protocol):
    """Which addresses tools of this session may reach. A tool that makes requests asks before each."""

    def allows(self, url: str) -> bool:
        """Whether this address may be reached."""
        ...


class ResultReader(Protocol):
    """Access to the whole of results that were too long to be shown."""

    async def read(self, call: CallId) -> bytes | None:
        """All bytes of the result of a call of this session; None if there is no such result."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Services:
    """What a runtime offers to the tools of one session. A slot exists here once something fills and uses it."""

    locale: str | None = None
    """A BCP 47 tag, such as `uk-UA`."""
    visible_tool_names: frozenset[str] | None = None
    """The tools the model knows of in this turn; the registry may hold more. None is no restriction."""
    tool_definitions: tuple[ToolDefinition, ...] | None = None
    """What the model was told of its tools when the turn began, those of providers included."""
    network_access: NetworkAccess | None = None
    tool_registry: ToolRegistry | None = None
    message_retriever: MessageRetriever | None = None
    session_store: SessionStore | None = None
    session_mutator: SessionMutator | None = None
    result_reader: ResultReader | None = None
    schedule_store: SessionScheduleStore | None = None
    secrets: SecretStore | None = None
    veil: Veil = field(default_factory=Veil, compare=False)
    """What hides the secrets of the session in whatever its tools say."""
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
    """What a model is told when a tool needs a service that this context does not have."""
    name = service.replace("_", " ").capitalize()
    return ToolError(f"{name} not available in this context.", code="service_unavailable")
