"""The core of a runtime: the owner of the store, the worker and the observers of one process."""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Collection, Iterable

from perdure.clock import Clock
from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.ids import SessionId, StreamId, Tenant, TurnId, WorkerId, check_id, session_stream
from perdure.inbox.admit import Admission, Delivery
from perdure.inbox.items import Input
from perdure.observe.follow import Sources
from perdure.observe.hub import Hub
from perdure.processes.registration import check_process_id
from perdure.runtime.agent import Agent
from perdure.runtime.agents import agent_unknown, by_name, only_agent, seeds_of
from perdure.runtime.audit import Audit, AuditLog
from perdure.runtime.calls.orphaned_calls import StoredPartialStreams
from perdure.runtime.clock import short_id
from perdure.runtime.files import Files, FilesGiven
from perdure.runtime.input_limits import TenantQueues
from perdure.runtime.lifetime import Lifetime
from perdure.runtime.live_texts import LiveTexts
from perdure.runtime.models import Models, ModelSources
from perdure.runtime.pages import check_limit
from perdure.runtime.processes.admin import Processes
from perdure.runtime.processes.function import ProcessCode, by_definition
from perdure.runtime.processes.handle import ProcessHandle
from perdure.runtime.readable import Readable
from perdure.runtime.redacted_store import redacted
from perdure.runtime.schedules.schedules import Schedules
from perdure.runtime.sessions import answers
from perdure.runtime.sessions.approvals import Approvals
from perdure.runtime.sessions.editing import checked_tag
from perdure.runtime.sessions.sending import OpensAt
from perdure.runtime.sessions.session import Session
from perdure.runtime.shared import Results, Secrets
from perdure.runtime.stores import store_for
from perdure.runtime.tasks.background import BackgroundCode, RunningTasks
from perdure.runtime.tasks.commands import CommandCode, RuntimeCommands, folder_beside
from perdure.runtime.tasks.tasks import StoredTasks
from perdure.runtime.triggers.sources import TriggerSources
from perdure.runtime.triggers.triggers import Triggers
from perdure.runtime.tuning import RuntimeOptions
from perdure.runtime.work import WorkerOptions, check_place
from perdure.runtime.worker.worker import Worker
from perdure.services.secrets import SeenSecrets
from perdure.store.encoded import PayloadCodec, encoded
from perdure.store.protocol import Store
from perdure.store.shapes import Claim, Resolved, StreamInfo
from perdure.tools.context import NOT_GIVEN
from perdure.vocab.promises import EventKey, Failure, Resolution


class RuntimeCore:
    """The store, worker, observers and services of one runtime, for the modules inside."""

    def __init__(  # noqa: PLR0913 - one keyword for each thing that an application decides once
        self,
        store: str | os.PathLike[str] | Store | None = None,
        *,
        agents: Iterable[Agent] = (),
        processes: Iterable[ProcessCode] = (),
        worker: bool | WorkerOptions = True,
        tenant: str = "default",
        deps: object = NOT_GIVEN,
        payload_codec: PayloadCodec | None = None,
        file_system: FilesGiven = None,
        model_sources: ModelSources | None = None,
        options: RuntimeOptions | None = None,
    ) -> None:
        options = options or RuntimeOptions()
        self.clock = options.clock
        bare = _store(store, self.clock, lease_ms=int(options.lease_s * 1000))
        own = Tenant(check_id(tenant, what="the tenant"))
        self.seen_secrets = SeenSecrets()
        self.store = redacted(
            encoded(bare, payload_codec, own) if payload_codec is not None else bare, self.seen_secrets
        )
        self.payload_codec = payload_codec
        self._readable = Readable(self.store)
        self.queues = TenantQueues(self.store, options.inputs, options.tenant_inputs)
        self.agents = by_name(agents)
        self.files = Files(
            file_system, self.store, self.clock, seeds_of(self.agents, self.store, self._readable), self.seen_secrets
        )
        self.models = Models(model_sources, self.agents)
        self.given_processes = tuple(processes)
        self.background = RunningTasks(self._serves)
        self.process_limits = options.processes
        runs = (BackgroundCode(self, agent, self.background) for agent in self.agents.values())
        root = options.commands_in or folder_beside(bare)
        self.command_code = CommandCode(
            self, root.absolute(), check_id(options.host, what="the host"), limit=options.max_commands
        )
        self.definitions = by_definition((*self.given_processes, *runs, self.command_code))
        self.hub = Hub()
        self.texts = LiveTexts(self.store.live, self.clock)
        self.sources = Sources(self.store, self.hub, self.texts)
        self.results = Results()
        self.secrets = Secrets(self.store)
        self.audit_log = AuditLog(self.store, self.clock, self._readable, int(options.audit_retention_s * 1000))
        self._bind(own)
        self.worker_id = WorkerId(short_id("w", self.clock.wall_ms()))
        self.work = worker if isinstance(worker, WorkerOptions) else WorkerOptions()
        self.wants_worker = worker is not False
        if self.work.all_tenants and payload_codec is not None:
            raise Error(
                Code.INVALID_ARGUMENT,
                "a worker with a codec cannot serve all tenants",
                because="the encryption of a payload is bound to one tenant",
                hint="start one worker per tenant",
            )
        self.deps = deps
        self.options = options
        self._lifetime = Lifetime(self, options, deps)

    def _bind(self, tenant: Tenant) -> None:
        """Make the services of a tenant. Everything else serves all tenants."""
        self.tenant = tenant
        self.partial_streams = self.models.sources.partial_streams or StoredPartialStreams(self.store, tenant)
        self.tasks = StoredTasks(self)
        self.commands = RuntimeCommands(self)
        self.approvals = Approvals(self)
        self.schedules = Schedules(self)
        self.processes = Processes(self)
        self.trigger_sources = TriggerSources(self)
        self.triggers = Triggers(self)
        self.audit = Audit(self)

    def of(self, tenant: Tenant) -> RuntimeCore:
        """Return this core for a tenant that its worker serves: the same store, worker and observers, other services.

        The catalog of triggers and the policy for cancel requests are the application's, and the same for all tenants.
        """
        if tenant == self.tenant:
            return self
        other = copy.copy(self)
        other._bind(tenant)
        other.trigger_sources.catalog = self.trigger_sources.catalog
        other.processes.cancel_ability = self.processes.cancel_ability
        return other

    @property
    def worker(self) -> Worker | None:
        """The worker, while the runtime is open with one."""
        return self._lifetime.worker

    # --- life

    async def open(self) -> None:
        """Open the store and start the worker."""
        await self._lifetime.open()

    async def close(self) -> None:
        """Stop the worker and close the store."""
        await self._lifetime.close()

    async def drain(self, timeout: float | None = None) -> None:
        """Claim no more work, let running turns finish, and hand the rest over."""
        await self._lifetime.drain(timeout)

    @property
    def ready(self) -> bool:
        """True if the runtime is open, not draining, and the lease of its worker is live."""
        return self._lifetime.ready

    def check_usable(self) -> None:
        """Raise if the runtime is closed, not open yet, or inherited through a fork.

        Raises:
            Error: `runtime_closed` or `runtime_forked`.
        """
        self._lifetime.check_usable()

    # --- sessions

    async def session(
        self,
        id: str | None = None,
        *,
        agent: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
    ) -> Session:
        """Return the session of that id, or a new one: see `Runtime.session`."""
        self.check_usable()
        name = (
            SessionId(check_id(id, what="the session id"))
            if id is not None
            else SessionId(short_id("ses", self.clock.wall_ms()))
        )
        self.check_agent(agent)
        if isinstance(agent, str):
            agent = str.__str__(agent)  # also for a subclass: the log accepts only plain str
        info = await self.store.stream(session_stream(self.tenant, name))
        if info is None and agent is None:
            agent = only_agent(self.agents, name)
        if info is not None and agent is not None and info.agent != agent:
            raise Error(
                Code.SESSION_AGENT_CONFLICT,
                f"session {name!r} belongs to agent {info.agent!r}",
                hint="leave `agent` out, or use another session id",
            )
        check_place("default" if queue is None else queue, 0 if priority is None else priority)
        if info is not None and not (queue in (None, info.queue) and priority in (None, info.priority)):
            raise Error(
                Code.INVALID_ARGUMENT,
                f"session {name!r} has another queue or priority",
                hint="await session.move(queue=..., priority=...)",
            )
        return Session(
            self, name, agent or (info.agent if info else None), OpensAt(queue, priority, none_yet=info is None)
        )

    def get_session(self, id: str, *, tenant: str | None = None) -> Session:
        """Return a handle to an existing session without a lookup. The first operation raises `session_unknown` if it
        does not exist. `tenant` is this runtime's, unless given.
        """
        self.check_usable()
        core = self if tenant is None else self.of(Tenant(check_id(tenant, what="the tenant")))  # threat: S2, T-TEN-01
        return Session(core, SessionId(check_id(id, what="the session id")), None)

    async def session_streams(
        self, *, limit: int = 50, before: tuple[int, StreamId] | None = None, tag: str | None = None
    ) -> tuple[StreamInfo, ...]:
        """Return the streams of this tenant's sessions, the most recently changed first."""
        wanted = checked_tag(tag) if tag is not None else None
        return await self.store.streams(
            tenant=self.tenant, kind="session", limit=check_limit(limit), before=before, tag=wanted
        )

    def get_process(self, id: str) -> ProcessHandle:
        """Return a handle to a process without a lookup. The first operation raises if the process does not exist."""
        self.check_usable()
        return ProcessHandle(self, check_process_id(id))

    def check_agent(self, agent: str | None) -> None:
        """Raise if this runtime has a worker and lacks the agent."""
        if agent is not None and agent not in self.agents and self.wants_worker:
            raise agent_unknown(agent, self.agents)

    async def resolve(
        self, key: EventKey | str, value: Json = None, *, error: Failure | None = None, cancel: bool = False
    ) -> Resolved:
        """Resolve the wait behind a key: see `Runtime.resolve`."""
        self.check_usable()
        return await answers.resolve_by_key(self, key, value, error, cancel=cancel)

    async def peek(self, key: EventKey | str) -> Resolution | None:
        """Return the resolution of the wait behind a key: see `Runtime.peek`."""
        self.check_usable()
        return await answers.peek(self, key)

    async def check_readable(self, stream: StreamId) -> None:
        """Raise if this process cannot read the session's payloads: writes in another encoding would block its workers.

        Raises:
            Error: `codec_failed`.
        """
        await self._readable.check(stream)

    # --- between sessions and the worker

    async def admit(self, new: Delivery, *, claims: bool) -> Admission:
        """Add a delivery to an inbox. With `claims`, also claim the stream if it is free and this runtime's worker has
        a slot for which no other work waits.
        """
        if claims and self.worker is not None and self.worker.stream_pool.idle:
            return await self.worker.stream_pool.admit(new)
        return await self.store.admit(new)

    def has_in_hand(self, stream: StreamId) -> bool:
        """Return whether this runtime's worker holds the session in memory."""
        return self.worker is not None and stream in self.worker.stream_pool.hosts

    def _serves(self, stream: StreamId) -> bool:
        return self.worker is not None and self.worker.stream_pool.serves(stream)

    async def hand(self, stream: StreamId, item: Input) -> bool:
        """Hand an input directly to a session that is idle in memory. False means: use the inbox."""
        if self.worker is None:
            return False
        while before := self.worker.stream_pool.offered(stream):
            await asyncio.wait({before.future})  # keeps the order of inputs
        offer = self.worker.stream_pool.offer(stream, item)
        return offer is not None and await offer.future

    def drives(self, stream: StreamId, turn: TurnId) -> bool:
        """Return whether this runtime's worker runs the turn now."""
        return self.worker is not None and self.worker.stream_pool.drives(stream, turn)

    def notify(self, stream: StreamId, claim: Claim | None = None, turn: TurnId | None = None) -> None:
        """Notify the worker that a stream has new work, with its turn if it was claimed together."""
        if self.worker:
            self.worker.notify(stream, claim, turn)

    def notify_streams(self, streams: Collection[StreamId]) -> None:
        """Notify local hosts and observers that the inboxes of these streams have new items. The store notifies other
        processes.
        """
        for stream in streams:
            self.hub.notify(stream)
        if self.worker:
            self.worker.notify_streams(streams)

    def notify_all(self) -> None:
        """Notify all observers and the worker of this runtime."""
        self.hub.notify()
        if self.worker:
            self.worker.changed()

    async def notify_stream(self, stream: StreamId) -> None:
        """Notify the turn and the observers of a stream that it has new records."""
        self.hub.notify(stream)
        if self.worker:
            await self.worker.stream_pool.poll(stream)
            self.worker.notify(stream)


def _store(store: str | os.PathLike[str] | Store | None, clock: Clock, *, lease_ms: int) -> Store:
    if store is None or isinstance(store, str | os.PathLike):
        return store_for(store, clock, lease_ms=lease_ms)
    return store
