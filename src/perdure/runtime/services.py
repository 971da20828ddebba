"""The factory of services and clients for every body that runs for a session.

Law: a body gets them bound to the tenant and the stream of its session. Parts that need a turn are absent outside of
one, and their use is an error that names them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from perdure.errors import Code, Error
from perdure.ids import CallId, EffectId, SessionId, StreamId, TurnId, session_stream, stream_names
from perdure.runtime.agent import Agent, setup_of
from perdure.runtime.calls.clients import AttachmentsClient, CallSessionsClient, CallSite, SessionChanges
from perdure.runtime.calls.completions import AskedModels, CompletionsClient
from perdure.runtime.platform import StoredPlatform, info_of
from perdure.runtime.processes.client import CheckStart, ProcessesClient, RunLocal
from perdure.runtime.schedules.schedules import StoredSchedules
from perdure.runtime.secret_store import StoredSecrets
from perdure.runtime.sessions.editing import checked_title, set_title
from perdure.runtime.triggers.client import client_of_call
from perdure.runtime.turns.hydrate import Fetch
from perdure.runtime.turns.transcript import Transcript
from perdure.services.secrets import Redactor
from perdure.services.spawns import LogSpawnStore
from perdure.store.protocol import Store
from perdure.tools.clients.dispatch import Dispatch
from perdure.tools.clients.programs import Programs
from perdure.tools.context import ToolContext, origin_of
from perdure.tools.errors import ToolError, tool_error_of
from perdure.tools.origin import Clients
from perdure.tools.services import Services, StoredSession
from perdure.vocab.log_keys import open_key
from perdure.vocab.messages import AttachmentRef, Message
from perdure.vocab.outcomes import Done, Success, ToolCallOutcome
from perdure.vocab.records import EffectSettled, TurnEnded
from perdure.vocab.tools import Composition

if TYPE_CHECKING:
    from perdure.runtime.core import RuntimeCore

PAGE = 256


@dataclass(frozen=True, slots=True)
class TurnParts:
    """The parts that need a turn: other tools with their approvals, programs, and changes of the session."""

    dispatch: Callable[[CallSite, ToolContext[object]], Dispatch]
    programs: Callable[[CallSite], Programs]
    changes: SessionChanges


@dataclass(frozen=True, slots=True)
class BodyAccess:
    """How a body reaches the log around it: its durability, the bytes of its session, and the permits that it holds.

    `in_turn` is absent outside a turn. `check_start` limits the children of a body that is a process.
    """

    durable: Callable[[], Awaitable[None]]
    fetch: Fetch
    within_limits: Callable[[EffectId, str], AbstractAsyncContextManager[None]]
    in_turn: TurnParts | None = None
    check_start: CheckStart | None = None


def clients_of(core: RuntimeCore, stream: StreamId, agent: Agent, site: CallSite, access: BodyAccess) -> Clients:
    """Return the clients of a session for one body. Each child call gets clients of its own."""
    core = core.of(stream_names(stream)[0])  # threat: S2, T-TEN-01
    models, turn, local = core.models, access.in_turn, RunLocal()
    asked = AskedModels(models.of(agent, site.turn.composition.model), models.utility, access.within_limits)

    def completions(ctx: ToolContext[object]) -> CompletionsClient:
        origin = origin_of(ctx)
        return CompletionsClient(origin.body, site, asked, access.fetch)

    return Clients(
        sessions=CallSessionsClient(site, core, stream, agent, turn.changes if turn else None),
        dispatch=partial(turn.dispatch, site) if turn else None,
        attachments=AttachmentsClient(site, access.fetch, stores=turn is not None),
        direct_completions=completions,
        processes=lambda ctx: ProcessesClient(core, ctx, site, local, access.check_start),
        triggers=lambda ctx: client_of_call(core, ctx, site, access.durable),
        programs=turn.programs(site) if turn else None,
    )


def services_of(
    core: RuntimeCore,
    stream: StreamId,
    agent: Agent,
    *,
    composition: Composition,
    durable: Callable[[], Awaitable[None]],
    in_turn: bool,
) -> Services:
    """Return the services of a session for one body, in a turn or outside."""
    tenant = stream_names(stream)[0]
    core = core.of(tenant)  # threat: S2, T-TEN-01
    sessions, redactor = StoredSessions(core), Redactor(core.seen_secrets, stream)
    return Services(
        secrets=StoredSecrets(core.store, core.secrets, stream, redactor, core.audit_log),
        redactor=redactor,
        locale=agent.locale,
        visible_tool_names=frozenset(composition.names),
        tool_definitions=tuple(contract.definition for contract in composition.tools),
        tool_registry=setup_of(agent).toolbox.registry,
        message_retriever=StoredMessages(core.store, stream, durable),
        session_store=sessions,
        session_mutator=sessions,
        result_reader=StoredResults(core.store, stream, durable),
        file_store=core.files.of(tenant),
        schedule_store=StoredSchedules(core),
        session_task_registry=core.tasks,
        commands=core.commands,
        platform_store=StoredPlatform(core, tenant, stream, in_turn=in_turn),
        subagent_spawn_store=LogSpawnStore(core.store, stream, core.options.subagents, core.clock.wall_ms),
    )


@dataclass(frozen=True, slots=True)
class StoredMessages:
    """The conversation of one session, read from its log."""

    store: Store
    stream: StreamId
    durable: Callable[[], Awaitable[None]]

    async def load(self, *, last: int | None = None) -> tuple[Message, ...]:
        """Return the conversation, or its last messages."""
        await self.durable()  # a call may run before the records that led to it are stored
        transcript = Transcript()
        for row in await self.store.read(self.stream):
            transcript.add(row.seq, row.record)
        messages = transcript.messages(transcript.open)
        return messages if last is None else messages[len(messages) - min(max(0, last), len(messages)) :]

    async def get(self, index: int) -> Message | None:
        """Return one message by its index."""
        messages = await self.load()
        return messages[index] if 0 <= index < len(messages) else None


@dataclass(frozen=True, slots=True)
class StoredSessions:
    """The sessions of one tenant."""

    core: RuntimeCore

    async def update_session_title(self, session_id: SessionId, title: str) -> StoredSession:
        """Set the title of a session, and notify its observers."""
        stream = session_stream(self.core.tenant, session_id)
        if await self.get_session(session_id) is None:
            raise ToolError(f"unknown session {session_id!r}", code="session_unknown")
        try:
            checked = checked_title(title)
        except Error as problem:
            raise tool_error_of(problem) from None
        await set_title(self.core.store, stream, checked, now=self.core.clock.wall_ms())
        self.core.hub.notify(stream)
        if (named := await self.get_session(session_id)) is None:
            raise ToolError(f"the session {session_id!r} was deleted", code="session_unknown")
        return named

    async def get_session(self, session_id: SessionId) -> StoredSession | None:
        """Return a session, or None if the tenant has no such session."""
        info = await self.core.store.stream(session_stream(self.core.tenant, session_id))
        if info is None:
            return None
        return info_of(info)


@dataclass(frozen=True, slots=True)
class StoredResults:
    """The results of one session that are stored outside its log because of their size."""

    store: Store
    stream: StreamId
    durable: Callable[[], Awaitable[None]]

    async def read(self, call: CallId) -> bytes | None:
        """Return all bytes of a result of this session. Calls of other sessions are not searched."""
        await self.durable()  # the result may have been shown before it was stored
        ref = await self._kept(call)
        try:
            return (await self.store.blob(ref.hash, stream=self.stream)).data if ref else None
        except Error as problem:
            if problem.code is Code.BLOB_UNKNOWN:
                return None
            raise

    async def _kept(self, call: CallId) -> AttachmentRef | None:
        opened = await self.store.find(self.stream, open_key(TurnId(call.rsplit(".", 2)[0])))
        after = opened.seq if opened else None
        while after is not None and (rows := await self.store.read(self.stream, after=after, limit=PAGE)):
            for row in rows:
                match row.record:
                    case EffectSettled(outcome=ToolCallOutcome(launch=Done(result=result))) if result.call_id == call:
                        if isinstance(result.output, Success):
                            return result.output.spilled
                    case TurnEnded():
                        return None
                    case _:
                        pass
            after = rows[-1].seq
        return None
