"""Runs in the background: a tool executed as a process of its session's agent, which leaves files and a message.

Law: a tool that may not run twice is begun once. That it is being begun is durable before it is, and whoever finds
that of a run begins it again only if its tool allows it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import msgspec

from perdure.codec import Json, decode, encode
from perdure.errors import Code, Error
from perdure.ids import CallId, InputId, SessionId, StreamId, Tenant, TurnId, process_stream, session_stream
from perdure.inbox.admit import Delivery, delivery
from perdure.inbox.items import Input
from perdure.processes.record import ProcessRecord
from perdure.runtime.agent import Agent
from perdure.runtime.clock import short_id, uuid7
from perdure.services.background import BackgroundOutcome, BackgroundProgress, OutputLog, Run, capped
from perdure.services.secrets import Veil
from perdure.services.tasks import ORPHANED, CreateSessionTask, SessionTaskUpdate
from perdure.store.protocol import Place
from perdure.tools.background import BackgroundExecutableTool, executor_of
from perdure.tools.clients.surface import Clients
from perdure.tools.contained import drive, end_of
from perdure.tools.context import ToolContext
from perdure.tools.errors import ToolError, foremost, message_of
from perdure.tools.execution_result import INTERNAL_ERROR, ConnectionRequired, FailedVisibly
from perdure.tools.services import Services
from perdure.tools.threads import Ended, Raised, Returned
from perdure.vocab.messages import Text
from perdure.vocab.records import ProcessEvent
from perdure.vocab.registrations import (
    EngineInput,
    ProcessFailure,
    ProcessInput,
    ProcessOutput,
    ProcessWasAbandoned,
    ProcessWasCancelled,
    Succeeded,
)

if TYPE_CHECKING:
    from perdure.runtime.process_context import ProcessContext
    from perdure.runtime.runtime import Runtime

log = logging.getLogger("perdure.runtime")

STARTING = "Starting"
REATTACHING = "Re-attaching"
CANCELED = "Canceled by request."
UNEXPECTED = "Background run ended unexpectedly"
PROGRESS_EVERY_S = 0.25
"""Of progress that comes faster, the latest is told."""
GRACE_S = 1.0
_UPDATED = "task.updated"


def definition_of(agent: str) -> str:
    """The code that runs what sessions of an agent have in the background."""
    return f"background:{agent}"


def message_to(stream: StreamId, key: str, text: str, *, source: str, now: int) -> Delivery:
    """Something that a program says to a session that exists, once under this key."""
    item = Input(
        input=InputId(short_id("in", now)), turn=TurnId(uuid7(now)), parts=(Text(text=text),), key=key, source=source
    )  # fmt: skip
    return delivery(stream, key, item, at=now)


@dataclass(slots=True)
class Running:
    """How many runs this worker executes."""

    count: int = 0


@dataclass(frozen=True, slots=True)
class BackgroundCode:
    """What executes the runs of one agent's sessions."""

    host: Runtime
    agent: Agent
    running: Running = field(compare=False)
    last: dict[str, Run] = field(default_factory=dict[str, Run], compare=False)
    """The attempt that is under way here, by process."""

    @property
    def definitions(self) -> tuple[str, ...]:
        """The name under which processes ask for it."""
        return (definition_of(self.agent.name),)

    @property
    def place(self) -> Place:
        """Where the sessions of the agent are."""
        return self.agent.place

    async def run(self, ctx: ProcessContext, given: ProcessInput) -> object:
        """Execute a run to its end; what it returns is the end of its task.

        Raises:
            ToolError: it failed, and this is why.
            asyncio.CancelledError: its end was asked for.
        """
        task = _task(given)
        self.running.count += 1
        try:
            return await self._run(ctx, task, cast("dict[str, Json]", task.spec))
        finally:
            self.running.count -= 1
            self.last.pop(ctx.process_id, None)

    async def _run(self, ctx: ProcessContext, task: CreateSessionTask, spec: dict[str, Json]) -> object:
        name = str(spec["tool"])
        again = await self._was_begun(ctx)
        tool = self._tool(name, again=again, reattachable=bool(spec["reattachable"]))
        run = Run(f"bg_{os.urandom(16).hex()}" if again else str(spec["run_id"]), task.display_name, name)
        self.last[ctx.process_id] = run
        sink = Sink(self.host, ctx.tenant, ctx.process_id, task.session_id, run)
        await sink.update(
            SessionTaskUpdate(
                state_detail=REATTACHING if again else STARTING,
                worker_id=self.host.worker_id,
                increment_attempt=again,
                result_path=run.result_path,
            )
        )
        context = self._context(ctx, task, name)
        arguments = cast("dict[str, Json]", spec.get("arguments") or {})
        ended = await _race(lambda: tool.execute_background(arguments, context, sink), ctx)
        return await sink.finish(ended)

    async def _was_begun(self, ctx: ProcessContext) -> bool:
        """Whether somebody has begun it before; `Starting` is written before anything is."""
        rows = await self.host.store.read(process_stream(ctx.tenant, ctx.process_id))
        begun = (row.record for row in rows if row.kind == "process_event")
        return any(
            isinstance(one, ProcessEvent) and one.event == _UPDATED and one.payload.get("state_detail") == STARTING
            for one in begun
        )

    def _tool(self, name: str, *, again: bool, reattachable: bool) -> BackgroundExecutableTool:
        tool = self.agent.toolbox.registry.get(name)
        if tool is None:
            raise ToolError(f"tool '{name}' not found in registry; cannot re-attach", code=ORPHANED)
        if (executor := executor_of(tool)) is None:
            raise ToolError(f"tool '{name}' does not support background execution; cannot re-attach", code=ORPHANED)
        if again and not reattachable:
            raise ToolError(f"tool '{name}' is not idempotent or readonly; re-attach declined", code=ORPHANED)
        return executor

    def _context(self, ctx: ProcessContext, task: CreateSessionTask, name: str) -> ToolContext[object]:
        services = Services(
            locale=self.agent.locale,
            tool_registry=self.agent.toolbox.registry,
            file_store=self.host.files.of(ctx.tenant),
            veil=Veil(self.host.revealed, session_stream(ctx.tenant, task.session_id)),
            commands=self.host.commands if ctx.tenant == self.host.tenant else None,
        )
        return ToolContext(
            session_id=task.session_id,
            turn_id=TurnId(""),
            call_id=CallId(ctx.process_id),
            tool_name=name,
            tenant=ctx.tenant,
            idempotency_key=ctx.idempotency_key,
            cancellation=ctx.cancellation,
            given=ctx.given,
            services=services,
            process_events_id=ctx.process_id,
            clients=Clients(process_events=ctx.runtime.process(ctx.process_id).process_events),
        )

    def farewell(self, record: ProcessRecord, output: ProcessOutput, tenant: Tenant, now: int) -> tuple[Delivery, ...]:
        """What is sent with the end of a run: a message to its session, if that was asked for."""
        task = _task(record.known.input)
        spec = cast("dict[str, Json]", task.spec)
        if not spec["signal_on_completion"]:
            return ()
        process = record.known.process_id
        run = self.last.get(process) or Run(str(spec["run_id"]), task.display_name, str(spec["tool"]))
        stream, text = session_stream(tenant, task.session_id), run.signal(*_said(output))
        return (message_to(stream, f"background:{process}", text, source=f"background:{run.run_id}", now=now),)


def _task(given: ProcessInput) -> CreateSessionTask:
    assert isinstance(given, EngineInput)
    return decode(encode(given.payload["task"]), CreateSessionTask)


def _said(output: ProcessOutput) -> tuple[str, str]:
    match output:
        case Succeeded(value=value):
            said = cast("dict[str, Json]", value) if isinstance(value, dict) else {}
            return "completed", str(said.get("summary", ""))
        case ProcessFailure(message=message):
            return "failed", message
        case ProcessWasCancelled():
            return "canceled", CANCELED
        case ProcessWasAbandoned(reason=reason):
            return "failed", reason


async def _race(call: Callable[[], object], ctx: ProcessContext) -> Ended | None:
    """How the tool ended; None if its end was asked for first."""
    work = asyncio.create_task(drive(call), name=f"perdure:background:{ctx.process_id}")
    asked = asyncio.create_task(ctx.cancellation.wait())
    try:
        await asyncio.wait({work, asked}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done() and ctx.record.cancel is None:
            await asyncio.wait({work})  # the worker stops: it may come to its end before that
    finally:
        asked.cancel()
        if not work.done():
            work.cancel()
            await asyncio.wait({work}, timeout=GRACE_S)
    return end_of(work) if work.done() and ctx.record.cancel is None else None


class Sink:
    """What a run says and leaves. Telling is best effort; files and the end are not."""

    def __init__(self, host: Runtime, tenant: Tenant, process: str, session: SessionId, run: Run) -> None:
        self._host = host
        self._tenant = tenant
        self._process = process
        self._session = session
        self._run = run
        self._veil = Veil(host.revealed, session_stream(tenant, session))
        self._log = OutputLog()
        self._updates = 0
        self._told_at = 0.0

    @property
    def tail(self) -> str:
        """The last of what was printed."""
        return self._log.tail

    # --- on the way

    async def update(self, update: SessionTaskUpdate) -> None:
        """Write something about the task; durable when this returns."""
        self._updates += 1
        replay = f"{self._run.run_id}:{self._updates}"
        await self._host.process(self._process).append(_UPDATED, msgspec.to_builtins(update), replay=replay)

    async def _mirror(self, update: SessionTaskUpdate) -> None:
        try:
            await self.update(update)
        except Error as problem:
            log.debug("what a run in the background said was lost: %s", problem)

    async def status(self, message: str) -> None:
        """What it is doing."""
        await self._mirror(SessionTaskUpdate(state_detail=self._veil.text(str(message))))

    async def output(self, stream: str, delta: str) -> None:
        """A piece of what it prints."""
        self._log.add(stream, self._veil.text(str(delta)))

    async def progress(self, progress: BackgroundProgress) -> None:
        """How far it is."""
        now = asyncio.get_running_loop().time()
        if now - self._told_at >= PROGRESS_EVERY_S:
            self._told_at = now
            await self._mirror(SessionTaskUpdate(progress=progress))

    # --- at the end

    async def finish(self, ended: Ended | None) -> Json:
        """Leave the files of the run, and say how it ended: log, result, task, and then the end itself."""
        if ended is None:
            await self._leave(f"{self._log.text()}\n{CANCELED}\n", {"status": "canceled"}, "Canceled")
            raise asyncio.CancelledError
        if isinstance(ended, Returned) and isinstance(ended.value, BackgroundOutcome):
            outcome = ended.value
            raw = outcome.raw_output
            text = self._log.text() if raw is None else capped(self._veil.text(raw))
            await self._leave(text, self._veil.json(outcome.result), "Completed")
            return {
                "summary": self._veil.text(outcome.summary),
                "result_path": self._run.result_path,
                "log_path": self._run.log_path,
                "run_id": self._run.run_id,
            }
        message = self._veil.text(_why(ended, self._run.tool))
        await self._leave(self._log.text(), {"status": "failed", "error": message}, "Failed")
        raise ToolError(message, code="background_failed")

    async def _leave(self, text: str, result: Json, status: str) -> None:
        shown = json.dumps(result, indent=2, ensure_ascii=False)
        try:
            files = self._host.files.of_session(self._tenant, self._session)
            await files.write_file(self._run.log_path, text)
            await files.write_file(self._run.result_path, shown)
        except Error as problem:
            if problem.code is not Code.SESSION_UNKNOWN:  # it was deleted: nobody is left to read them
                raise
        await self._mirror(SessionTaskUpdate(state_detail=status))


def _why(ended: Ended, tool: str) -> str:
    match ended:
        case Returned(value=FailedVisibly(message=message)):
            return message
        case Returned(value=ConnectionRequired(provider=provider)):
            return f"Background tool requires connection setup: {provider}"
        case Returned():
            return UNEXPECTED
        case Raised(error=error):
            said = foremost(error)
            if isinstance(said, ToolError):
                return message_of(said)
            log.error("a run in the background failed", exc_info=said, extra={"tool": tool})
            return INTERNAL_ERROR
        case _:
            return INTERNAL_ERROR
