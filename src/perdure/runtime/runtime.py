"""The runtime: one object that owns the store, the worker and the observers of a process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Self, TypeVar

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
from perdure.runtime.calls.lost import StoredPartialStreams
from perdure.runtime.clock import short_id
from perdure.runtime.files import Files, FilesGiven
from perdure.runtime.lifetime import Lifetime
from perdure.runtime.live_texts import LiveTexts
from perdure.runtime.models import Models, ModelSources
from perdure.runtime.pages import check_limit
from perdure.runtime.processes import starting
from perdure.runtime.processes.admin import Processes
from perdure.runtime.processes.function import ProcessCode, ProcessFunction, by_definition
from perdure.runtime.processes.handle import ProcessHandle
from perdure.runtime.readable import Readable
from perdure.runtime.schedules.schedules import ScheduleHandle, Schedules, StoredSchedules, ms_of
from perdure.runtime.schedules.targets import Wanted, target_of
from perdure.runtime.sessions import answers, importing
from perdure.runtime.sessions.approvals import Approvals
from perdure.runtime.sessions.editing import checked_tag
from perdure.runtime.sessions.sending import OpensAt
from perdure.runtime.sessions.session import Session
from perdure.runtime.shared import Results, Secrets
from perdure.runtime.stores import store_for
from perdure.runtime.tasks.background import BackgroundCode, Running
from perdure.runtime.tasks.commands import CommandCode, RuntimeCommands, folder_beside, start_command
from perdure.runtime.tasks.tasks import StoredTasks
from perdure.runtime.triggers.triggers import Triggers
from perdure.runtime.tuning import Tuning
from perdure.runtime.work import Work, check_place
from perdure.runtime.worker.worker import Worker
from perdure.services.commands import GRACE_S, KEEP_BYTES
from perdure.store.encoded import Codec, encoded
from perdure.store.protocol import Store
from perdure.store.shapes import Claim, Resolved, StreamInfo
from perdure.tools.context import NOT_GIVEN
from perdure.tools.durations import duration_ms
from perdure.vocab.promises import AwaitEventKey, Err, Resolution
from perdure.vocab.schedules import CatchUp, Overlap, SayToSession, Schedule

T = TypeVar("T")


class Runtime:
    """Runs agents durably.

    `Runtime("sqlite:///app.db", agents=[agent])` is a store, a worker and an API in one; use it as an async context
    manager. With `worker=False` it only sends and observes, and workers elsewhere do the work; `worker=Work(...)` says
    which queues it serves, how much at once, and under which limits of the fleet. `deps` is handed to
    tools as `ctx.deps`: one object for all, or `per_turn(...)`, which makes one for each turn. With `codec` (such as
    `AesGcm`), payloads are encrypted before they reach the store. `files` keeps the files of sessions: a file system of
    your own or a factory of one, instead of the store.

    Raises:
        Error: `agent_invalid` if two agents share a name; `store_url_invalid`; on entry, whatever keeps the store from
            opening.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each thing that an application decides once
        self,
        store: str | Store | None = None,
        *,
        agents: Iterable[Agent] = (),
        processes: Iterable[ProcessCode] = (),
        worker: bool | Work = True,
        tenant: str = "default",
        deps: object = NOT_GIVEN,
        codec: Codec | None = None,
        files: FilesGiven = None,
        models: ModelSources | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        tuning = tuning or Tuning()
        self.clock = tuning.clock
        bare = _store(store, self.clock, lease_ms=int(tuning.lease_s * 1000))
        self.tenant = Tenant(check_id(tenant, what="the tenant"))
        self.store = encoded(bare, codec, self.tenant) if codec is not None else bare
        self._codec = codec
        self._readable = Readable(self.store)
        self.agents = by_name(agents)
        self.files = Files(files, self.store, self.clock, seeds_of(self.agents, self.store, self._readable))
        self.models = Models(models, self.agents)
        self.partial_streams = self.models.sources.partial_streams or StoredPartialStreams(self.store, self.tenant)
        self._processes = tuple(processes)
        self.background = Running(self._serves)
        self.process_limits = tuning.processes
        runs = (BackgroundCode(self, agent, self.background) for agent in self.agents.values())
        root = tuning.commands_in or folder_beside(bare)
        self.command_code = CommandCode(
            self, root.absolute(), check_id(tuning.host, what="the host"), limit=tuning.max_commands
        )
        self.definitions = by_definition((*self._processes, *runs, self.command_code))
        self.tasks = StoredTasks(self)
        self.commands = RuntimeCommands(self)
        self.hub = Hub()
        self.texts = LiveTexts(self.store.live, self.clock)
        self.sources = Sources(self.store, self.hub, self.texts)
        self.results = Results()
        self.secrets = Secrets(self.store)
        self.revealed: dict[StreamId, tuple[str, ...]] = {}
        self.approvals = Approvals(self)
        self.schedules = Schedules(self)
        self.processes = Processes(self)
        self.triggers = Triggers(self, self.tenant)
        self.worker_id = WorkerId(short_id("w", self.clock.wall_ms()))
        self.worker: Worker | None = None
        self.work = worker if isinstance(worker, Work) else Work()
        self.wants_worker = worker is not False
        if self.work.all_tenants and codec is not None:
            raise Error(
                Code.INVALID_ARGUMENT,
                "a worker with a codec cannot serve all tenants",
                because="each tenant's bytes are encrypted under its own name",
                hint="start a worker for each tenant",
            )
        self._deps = deps
        self._tuning = tuning
        self._lifetime = Lifetime(self, tuning, deps)

    def like(self, *, store: str | Store, agents: Iterable[Agent], worker: bool | Work) -> Runtime:
        """A runtime for the same tenant, dependencies, work and tuning, on another store or with other agents."""
        return Runtime(
            store,
            agents=agents,
            processes=self._processes,
            worker=self.work if worker is True else worker,
            tenant=self.tenant,
            deps=self._deps,
            codec=self._codec,
            files=self.files.given,
            models=self.models.sources,
            tuning=self._tuning,
        )

    # --- life

    async def __aenter__(self) -> Self:
        await self._lifetime.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._lifetime.close()

    async def drain(self, timeout: float | None = None) -> None:
        """Take no more work; let running turns finish, then hand the rest over with its doubts recorded."""
        await self._lifetime.drain(timeout)

    @property
    def ready(self) -> bool:
        """Whether this runtime takes work: it is open, not draining, and the lease of its worker has not lapsed."""
        return self._lifetime.ready

    def check_usable(self) -> None:
        """Refuse a runtime that is closed, not yet open, or inherited through a fork.

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
        """A session: the existing one of that id, or a new one that its first input creates, with a `queue` and a
        `priority` of its own instead of its agent's.

        Raises:
            Error: `session_unknown` if it does not exist and no agent is named; `agent_unknown`;
                `session_agent_conflict` if it belongs to another agent; `invalid_argument` if it exists and stands
                elsewhere: `session.place(...)` moves it.
        """
        self.check_usable()
        name = (
            SessionId(check_id(id, what="the session id"))
            if id is not None
            else SessionId(short_id("ses", self.clock.wall_ms()))
        )
        self._check_agent(agent)
        if isinstance(agent, str):
            agent = str.__str__(agent)  # of a subclass too: the log takes nothing but plain text
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
                f"session {name!r} exists, with another queue or priority",
                hint="await session.place(queue=..., priority=...) moves it",
            )
        return Session(
            self, name, agent or (info.agent if info else None), OpensAt(queue, priority, none_yet=info is None)
        )

    def existing(self, id: str, *, tenant: str | None = None) -> Session:
        """A session that is expected to exist; the first use finds out. It is of this tenant, unless said."""
        self.check_usable()
        of = OpensAt(tenant=Tenant(tenant)) if tenant is not None else OpensAt()
        return Session(self, SessionId(check_id(id, what="the session id")), None, of)

    async def sessions(
        self, *, limit: int = 50, before: tuple[int, StreamId] | None = None, tag: str | None = None
    ) -> tuple[StreamInfo, ...]:
        """The sessions of this tenant, the most recently changed first; with `tag`, only those that have it.

        Raises:
            Error: `invalid_argument` for what cannot be a tag.
        """
        wanted = checked_tag(tag) if tag is not None else None
        return await self.store.streams(
            tenant=self.tenant, kind="session", limit=check_limit(limit), before=before, tag=wanted
        )

    async def import_session(self, id: str, data: importing.Past, *, agent: str | None = None) -> Session:
        """A new session with a past: that of an export, plain messages (`role` and `content`) of elsewhere, or what
        `from_pydantic_ai` made of a conversation.

        All of it or nothing. Work that was under way elsewhere is not continued: its turn is recorded as stopped, and
        calls that may have happened as in doubt. Inputs that waited are not part of an export.

        Raises:
            Error: `session_exists`; `export_invalid`; `agent_unknown`; `invalid_id`.
        """
        self.check_usable()
        name = SessionId(check_id(id, what="the session id"))
        self._check_agent(agent)
        new = await importing.create(
            self.store,
            session_stream(self.tenant, name),
            data,
            session=name,
            agent=agent,
            agents=self.agents,
            now=self.clock.wall_ms(),
        )
        return Session(self, name, new.agent)

    # --- processes

    async def start(
        self,
        process: ProcessFunction | str,
        /,
        *args: object,
        id: str | None = None,
        label: str = "",
        queue: str | None = None,
        extensions: Mapping[str, Json] | None = None,
        **kwargs: object,
    ) -> ProcessHandle:
        """Start a process: `rt.start(nightly, "2026-11-15", id="nightly-2026-11-15")`. Durable when this returns.

        The same start again under the same id is the same process, whatever became of it; without an id, each start is
        a new one. A name instead of the function will do where it is not at hand. `extensions` are captured with it,
        and with its children: `ctx.protocol_extension(name, type)`.

        Raises:
            Error: `process_conflict` if there is another process of that id; `process_definition_unknown` for a name
                that this worker does not know; `invalid_id`, `invalid_argument`, `invalid_json`, `input_too_large`.
        """
        self.check_usable()
        return await starting.start(
            self, process, args, kwargs, id=id, label=label, queue=queue, extensions=extensions
        )  # fmt: skip

    def process(self, id: str) -> ProcessHandle:
        """A process that is expected to exist; the first use finds out."""
        self.check_usable()
        return ProcessHandle(self, check_process_id(id))

    async def command(  # noqa: PLR0913 - its options, each one word
        self,
        argv: str | Sequence[str],
        *,
        id: str | None = None,
        shell: bool = False,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        session: str | None = None,
        tell: bool = False,
        label: str = "",
        grace: float | str = GRACE_S,
        keep_bytes: int = KEEP_BYTES,
    ) -> ProcessHandle:
        """Run a command of the operating system, detached: `rt.command(["make", "test"], id="test-1")`. Durable when
        this returns; a worker on this machine spawns it, once, and it goes on when that worker dies.

        A list is executed as it is; a text only with `shell=True`. The same command again under the same id is the same
        one. It belongs to `session`, and with `tell` its end is said there. When its end is asked for it has `grace` to
        come to it by itself. Of each output the first `keep_bytes` are kept in its log.

        Raises:
            Error: `command_invalid`, `command_unknown`, `command_folder_unknown`, `input_too_large`,
                `process_conflict`, `invalid_id`, `invalid_argument`.
        """
        self.check_usable()
        return await start_command(
            self,
            argv,
            id=id,
            shell=shell,
            cwd=cwd,
            env=env,
            session=session,
            tell=tell,
            label=label,
            grace_ms=duration_ms(grace, what="the grace"),
            keep_bytes=keep_bytes,
        )

    # --- schedules

    async def schedule(  # noqa: PLR0913 - its options, each one word
        self,
        id: str | None = None,
        *,
        say: str | None = None,
        session: str = "",
        start: ProcessFunction | str | None = None,
        args: tuple[object, ...] = (),
        emit: str | None = None,
        payload: Json = None,
        source: str = "",
        cron: str | None = None,
        at: datetime | None = None,
        timezone: str = "UTC",
        agent: str | None = None,
        owner: str | None = None,
        description: str = "",
        overlap: Overlap = "skip",
        catch_up: CatchUp = "one",
        max_catch_up: int = 10,
        max_runs: int | None = None,
        by: str = "",
    ) -> ScheduleHandle:
        """Do something again and again (`cron`, five fields, in a time zone), or once (`at`): `say` something to a
        `session`, `start` a process with `args`, or `emit` that something happened at a trigger source.

        Durable when this returns; the same schedule again under the same id is the same one. With `agent`, a run opens
        the session if there is none. It belongs to `owner`, a session, and ends with it; if not said, to the session it
        speaks to, if that exists.

        Raises:
            Error: `schedule_invalid`, `schedule_zone_unknown`, `schedule_limit`, `schedule_conflict`,
                `session_unknown`, `agent_unknown`; what `start` and `triggers.emit` refuse.
        """
        self.check_usable()
        self._check_agent(agent)
        name = short_id("sch", self.clock.wall_ms()) if id is None else id
        target = target_of(self, name, Wanted(say, session, agent, start, args, emit, payload, source))
        if owner is None and isinstance(target, SayToSession):
            speaks_to = session_stream(self.tenant, SessionId(target.session))
            owner = target.session if await self.store.stream(speaks_to) is not None else None
        new = Schedule(
            target=target,
            cron=cron or "",
            at=ms_of(at, what="the moment") if at is not None else None,
            timezone=timezone,
            description=description,
            owner=owner or "",
            overlap=overlap,
            catch_up=catch_up,
            max_catch_up=max_catch_up,
            max_runs=max_runs or 0,
        )
        return await self.schedules.create(new, id=name, by=by)

    def _check_agent(self, agent: str | None) -> None:
        """Only a runtime without a worker may name an agent that it does not have."""
        if agent is not None and agent not in self.agents and self.wants_worker:
            raise agent_unknown(agent, self.agents)

    # --- answers from outside

    async def resolve(
        self, key: AwaitEventKey | str, value: Json = None, *, error: Err | None = None, cancel: bool = False
    ) -> Resolved:
        """Answer whatever waits under a key that was handed out: with a value, a failure, or that nobody will.

        The first answer stands; a later one is told what it was. Answering the key of `sent.cancel_key()` asks for the
        turn to end, with the value as the reason if it is text.

        Raises:
            Error: `await_event_unknown_or_revoked` for a key that is not one of this store and tenant, or not any more;
                `invalid_json`, `invalid_text`, `input_too_large`.
        """
        self.check_usable()
        return await answers.resolve_by_key(self, key, answers.answer_of(value, error, cancel=cancel))

    async def peek(self, key: AwaitEventKey | str) -> Resolution | None:
        """How the wait under a key ended; None while it is open. Looking changes nothing.

        This is how whoever works on a pending call finds out that nobody waits for it any more (`Cancelled`).

        Raises:
            Error: `await_event_unknown_or_revoked`.
        """
        self.check_usable()
        return await answers.peek(self, key)

    async def check_readable(self, stream: StreamId) -> None:
        """Refuse to write into a session whose payloads we cannot read: whoever can would not be able to go on.

        Raises:
            Error: `codec_failed`.
        """
        await self._readable.check(stream)

    # --- between sessions and the worker

    async def admit(self, new: Delivery, *, claims: bool) -> Admission:
        """Put something into an inbox; with `claims`, be given the stream with it, if it is free and this runtime's
        worker may begin something new at once: it has a seat, and nobody waits for it."""
        if claims and self.worker is not None and self.worker.serving.idle:
            return await self.worker.serving.admit(new)
        return await self.store.admit(new)

    def has_in_hand(self, stream: StreamId) -> bool:
        """Whether this runtime's worker holds the session in memory."""
        return self.worker is not None and stream in self.worker.serving.residents

    def _serves(self, stream: StreamId) -> bool:
        return self.worker is not None and self.worker.serving.serves(stream)

    async def hand(self, stream: StreamId, item: Input) -> bool:
        """Hand an input to a session that is idle in memory. False: it must go into the inbox."""
        if self.worker is None:
            return False
        while before := self.worker.serving.offered(stream):
            await asyncio.wait({before.future})  # who came first is first
        offer = self.worker.serving.offer(stream, item)
        return offer is not None and await offer.future

    def drives(self, stream: StreamId, turn: TurnId) -> bool:
        """Whether this runtime's worker is running the turn, now."""
        return self.worker is not None and self.worker.serving.drives(stream, turn)

    def nudge(self, stream: StreamId, claim: Claim | None = None, turn: TurnId | None = None) -> None:
        """A stream has new work: this turn, if it was claimed with it."""
        if self.worker:
            self.worker.poke(stream, claim, turn)

    def session_schedules(self) -> StoredSchedules:
        """The schedules of its sessions, for tools."""
        return StoredSchedules(self)

    def stir(self, streams: Collection[StreamId]) -> None:
        """An append of ours has put something into the inboxes of these streams: look at once, here. Others are told
        by the store."""
        for stream in streams:
            self.hub.stir(stream)
        if self.worker:
            self.worker.stir(streams)

    def news(self) -> None:
        """Something has happened that anybody here may wait for: look at once."""
        self.hub.stir()
        if self.worker:
            self.worker.changed()

    async def tell(self, stream: StreamId) -> None:
        """Something was written into a stream: its turn and its observers should look."""
        self.hub.stir(stream)
        if self.worker:
            await self.worker.serving.look(stream)
            self.worker.poke(stream)


def _store(store: str | Store | None, clock: Clock, *, lease_ms: int) -> Store:
    if store is None or isinstance(store, str):
        return store_for(store, clock, lease_ms=lease_ms)
    return store


def run(main: Coroutine[object, None, T]) -> T:
    """Run a coroutine from synchronous code: the one bridge there is."""
    return asyncio.run(main)
