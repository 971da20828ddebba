"""The public runtime: one object to send inputs, start processes and answer waits."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Self, TypeVar

from perdure.ids import SessionId, check_id, session_stream
from perdure.runtime.internals import core_of
from perdure.services.commands import GRACE_S, KEEP_BYTES
from perdure.tools.durations import duration_ms
from perdure.tools.origin import NOT_GIVEN

if TYPE_CHECKING:  # a program that declares agents and tools need not load what runs them
    from datetime import datetime

    from perdure.codec import Json
    from perdure.runtime.agent import Agent
    from perdure.runtime.files import FilesGiven
    from perdure.runtime.models import ModelSources
    from perdure.runtime.processes.function import ProcessCode, ProcessFunction
    from perdure.runtime.processes.handle import ProcessHandle
    from perdure.runtime.schedules.schedules import ScheduleHandle
    from perdure.runtime.sessions import importing
    from perdure.runtime.sessions.info import SessionInfo
    from perdure.runtime.sessions.session import Session
    from perdure.runtime.tuning import RuntimeOptions
    from perdure.runtime.work import WorkerOptions
    from perdure.store.encoded import PayloadCodec
    from perdure.store.protocol import Store
    from perdure.store.shapes import Resolved
    from perdure.vocab.promises import EventKey, Failure, Resolution
    from perdure.vocab.schedules import CatchUp, Overlap

T = TypeVar("T")


class Runtime:
    """The durable agent runtime of an application: a store, a worker and an API in one.

    `Runtime("app.db", agents=[agent])` is an async context manager.

    - `store` is a path or a URL (`sqlite:///app.db`, `postgresql://user@host/database`, `memory://`).
    - `worker=False` only sends and observes; workers elsewhere do the work. `worker=WorkerOptions(...)` sets the served
      queues, the concurrency and the fleet-wide limits.
    - `deps` is passed to tools as `ctx.deps`: one object for all turns, or `per_turn(...)`, which makes one for each
      turn.
    - `payload_codec` (such as `AesGcmCodec`) encrypts payloads before they reach the store.
    - `file_system` stores the files of sessions: a custom file system or a factory of one, instead of the store.

    Raises:
        Error: `agent_invalid` if two agents share a name; `store_url_invalid`. On entry: the error that keeps the store
            from opening.
    """

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
        from perdure.runtime.core import RuntimeCore

        core = self._core = RuntimeCore(
            store,
            agents=agents,
            processes=processes,
            worker=worker,
            tenant=tenant,
            deps=deps,
            payload_codec=payload_codec,
            file_system=file_system,
            model_sources=model_sources,
            options=options,
        )
        self.tenant = core.tenant
        self.worker_id = core.worker_id
        self.agents = core.agents
        self.models = core.models
        self.files = core.files
        self.approvals = core.approvals
        self.processes = core.processes
        self.schedules = core.schedules
        self.triggers = core.triggers
        self.tasks = core.tasks
        self.audit = core.audit

    async def __aenter__(self) -> Self:
        await self._core.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._core.close()

    async def drain(self, timeout: float | None = None) -> None:
        """Claim no more work, let running turns finish, and hand the rest over. Interrupted calls are recorded as in
        doubt.
        """
        await self._core.drain(timeout)

    @property
    def ready(self) -> bool:
        """True if the runtime is open, not draining, and the lease of its worker is live."""
        return self._core.ready

    # --- sessions

    async def session(
        self,
        id: str | None = None,
        *,
        agent: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
    ) -> Session:
        """Return the session of that id, or a new one, which its first input creates.

        `queue` and `priority` override those of the agent for a new session.

        Raises:
            Error: `session_unknown` if the session does not exist and no agent is named; `agent_unknown`;
                `session_agent_conflict` if it belongs to another agent; `invalid_argument` if it has another queue or
                priority: `session.move(...)` changes them.
        """
        return await self._core.session(id, agent=agent, queue=queue, priority=priority)

    def get_session(self, id: str, *, tenant: str | None = None) -> Session:
        """Return a handle to an existing session without a lookup. The first operation raises `session_unknown` if it
        does not exist. `tenant` is this runtime's, unless given.
        """
        return self._core.get_session(id, tenant=tenant)

    async def list_sessions(
        self, *, limit: int = 50, after: str = "", tag: str | None = None
    ) -> tuple[SessionInfo, ...]:
        """Return the sessions of this tenant, the most recently changed first; with `tag`, only those that have it.

        `after` is the cursor of the last session of the previous page.

        Raises:
            Error: `invalid_argument` for an invalid tag or limit; `invalid_cursor`.
        """
        from perdure.runtime.sessions.info import info_of, place_after

        before = place_after(after, self._core.tenant)
        return tuple(info_of(row) for row in await self._core.session_streams(limit=limit, before=before, tag=tag))

    async def import_session(
        self, id: str, data: importing.Past, *, agent: str | None = None, by: str = "", via: str = "api"
    ) -> Session:
        """Create a session with a past: an export, plain messages (`role` and `content`), or the result of
        `from_pydantic_ai`.

        All or nothing. Unfinished work is not continued: its turn is recorded as stopped, and calls that may have
        happened as in doubt. Queued inputs are not part of an export. The audit log gets `by` and `via`.

        Raises:
            Error: `session_exists`; `export_invalid`; `agent_unknown`; `invalid_id`.
        """
        from perdure.runtime.audit import act, actor
        from perdure.runtime.sessions import importing
        from perdure.runtime.sessions.session import Session

        core = self._core
        core.check_usable()
        name = SessionId(check_id(id, what="the session id"))
        core.check_agent(agent)
        done = act("session_imported", actor(by, via), session=name)
        new = await importing.create(
            core.store,
            session_stream(core.tenant, name),
            data,
            agent=agent,
            agents=core.agents,
            now=core.clock.wall_ms(),
            audit=await core.audit_log.notes(core.tenant, done),
        )
        return Session(core, name, new.agent)

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

        A repeated start with the same id and input returns the same process, whatever its outcome. Without an id, each
        start creates a new process. A name may replace the function where it cannot be imported. `extensions` are
        captured with the process and its children: `ctx.extension(name, type)`.

        Raises:
            Error: `process_conflict` if another process has that id; `process_definition_unknown` for a name
                that this worker does not know; `invalid_id`, `invalid_argument`, `invalid_json`, `input_too_large`.
        """
        from perdure.runtime.processes import starting

        core = self._core
        core.check_usable()
        return await starting.start(
            core, process, args, kwargs, id=id, label=label, queue=queue, extensions=extensions
        )  # fmt: skip

    def get_process(self, id: str) -> ProcessHandle:
        """Return a handle to a process without a lookup. The first operation raises if the process does not exist."""
        return self._core.get_process(id)

    async def start_command(  # noqa: PLR0913 - its options, each one word
        self,
        argv: str | Sequence[str],
        *,
        id: str | None = None,
        shell: bool = False,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        inherit: Sequence[str] = (),
        session: str | None = None,
        notify: bool = False,
        label: str = "",
        grace: float | str = GRACE_S,
        keep_bytes: int = KEEP_BYTES,
    ) -> ProcessHandle:
        """Run a command of the operating system, detached: `rt.start_command(["make", "test"], id="test-1")`.

        Durable when this returns. A worker on this machine spawns the command once; the command outlives that worker. A
        list is executed directly, a text only with `shell=True`. The same command under the same id is the same
        process. The command gets `PATH`, `HOME` and a few more variables of the worker, those that `inherit` names, and
        `env`. The command belongs to `session`; with `notify`, its end is sent there as a message. A stop request
        allows `grace` before the command is killed. The log keeps the first `keep_bytes` of each output.

        Raises:
            Error: `command_invalid`, `command_unknown`, `command_folder_unknown`, `input_too_large`,
                `process_conflict`, `invalid_id`, `invalid_argument`.
        """
        from perdure.runtime.tasks.commands import start_command

        core = self._core
        core.check_usable()
        return await start_command(
            core,
            argv,
            id=id,
            shell=shell,
            cwd=cwd,
            env=env,
            inherit=inherit,
            session=session,
            notify=notify,
            label=label,
            grace_ms=duration_ms(grace, what="the grace"),
            keep_bytes=keep_bytes,
        )

    # --- schedules

    async def schedule(  # noqa: PLR0913 - its options, each one word
        self,
        id: str | None = None,
        *,
        send: str | None = None,
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
        """Create a schedule: repeated (`cron`, five fields, in a time zone), or once (`at`).

        A run sends the text `send` to a `session`, starts the process `start` with `args`, or emits an occurrence
        `emit` at a trigger source. Durable when this returns; the same schedule under the same id is the same one. With
        `agent`, a run creates a missing session. The schedule ends with its `owner`, a session; by default the target
        session, if it exists.

        Raises:
            Error: `schedule_invalid`, `schedule_zone_unknown`, `schedule_limit`, `schedule_conflict`,
                `session_unknown`, `agent_unknown`; the errors of `start` and `triggers.emit`.
        """
        from perdure.runtime.clock import short_id
        from perdure.runtime.schedules.schedules import ms_of
        from perdure.runtime.schedules.targets import ScheduleTarget, target_of
        from perdure.vocab.schedules import Schedule, SendInput

        core = self._core
        core.check_usable()
        core.check_agent(agent)
        name = short_id("sch", core.clock.wall_ms()) if id is None else id
        target = await target_of(core, name, ScheduleTarget(send, session, agent, start, args, emit, payload, source))
        if owner is None and isinstance(target, SendInput):
            speaks_to = session_stream(core.tenant, SessionId(target.session))
            owner = target.session if await core.store.stream(speaks_to) is not None else None
        new = Schedule(
            target=target,
            cron=cron or "",
            at=ms_of(at, what="at") if at is not None else None,
            timezone=timezone,
            description=description,
            owner=owner or "",
            overlap=overlap,
            catch_up=catch_up,
            max_catch_up=max_catch_up,
            max_runs=max_runs or 0,
        )
        return await core.schedules.create(new, id=name, by=by)

    # --- answers from outside

    async def resolve(
        self, key: EventKey | str, value: Json = None, *, error: Failure | None = None, cancel: bool = False
    ) -> Resolved:
        """Resolve the wait behind `key` with a value, an error or a cancellation. The first resolution wins.

        A later call returns the first resolution. The key of `sent.cancel_key()` requests the end of its turn; a text
        value becomes the reason.

        Raises:
            Error: `event_key_invalid` for a key that is not, or no longer, valid in this store and tenant;
                `invalid_json`, `invalid_text`, `input_too_large`.
        """
        return await self._core.resolve(key, value, error=error, cancel=cancel)

    async def peek(self, key: EventKey | str) -> Resolution | None:
        """Return the resolution of the wait behind a key, or None while it is open. Changes nothing.

        An external worker on a pending call polls this to learn that the call was cancelled (`Cancelled`).

        Raises:
            Error: `event_key_invalid`.
        """
        return await self._core.peek(key)


def alike(runtime: Runtime, *, store: str | Store, agents: Iterable[Agent], worker: bool | WorkerOptions) -> Runtime:
    """Return a runtime with the same settings, on another store or with other agents."""
    core = core_of(runtime)
    return Runtime(
        store,
        agents=agents,
        processes=core.given_processes,
        worker=core.work if worker is True else worker,
        tenant=core.tenant,
        deps=core.deps,
        payload_codec=core.payload_codec,
        file_system=core.files.given,
        model_sources=core.models.sources,
        options=core.options,
    )


def run(main: Coroutine[object, None, T]) -> T:
    """Run a coroutine from synchronous code."""
    return asyncio.run(main)
