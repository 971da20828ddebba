"""Background runs: a tool executed as a process of its session's agent, which leaves files and a message.

Law: a tool that may not run twice is started once. The start is durable before the tool is called, and a worker that
finds it in the log starts the tool again only if the tool allows it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, cast

import msgspec
from msgspec.structs import replace

from perdure.codec import Json, brief, check_readable, decode, digest, encode
from perdure.errors import Code, Error
from perdure.ids import CallId, EffectId, InputId, SessionId, StreamId, Tenant, TurnId, process_stream, session_stream
from perdure.inbox.admit import Delivery, delivery
from perdure.inbox.items import Input
from perdure.processes.record import ProcessRecord
from perdure.runtime.agent import Agent, setup_of
from perdure.runtime.clock import short_id, uuid7
from perdure.runtime.processes.context import wiring_of
from perdure.runtime.processes.events import RunEventsClient
from perdure.runtime.processes.session_context import context_of_run
from perdure.services.background import (
    MAX_ACTIVE_PER_WORKER,
    BackgroundOutcome,
    BackgroundProgress,
    OutputLog,
    RunAttempt,
    capped,
)
from perdure.services.secrets import OutputPieces, Redactor
from perdure.services.tasks import ORPHANED, CreateSessionTask, SessionTaskUpdate
from perdure.store.shapes import Placement
from perdure.tools.background import reattach_background_run
from perdure.tools.contained import drive, end_of
from perdure.tools.context import ToolContext
from perdure.tools.door import (
    AdmittedCall,
    BackgroundExecutableTool,
    RunAdmission,
    admit_begun_run,
    executor_of,
)
from perdure.tools.errors import ToolError, foremost, message_of
from perdure.tools.execution_result import INTERNAL_ERROR, ConnectionRequired, FailedVisibly
from perdure.tools.results import Unstorable, keep
from perdure.tools.threads import Ended, Raised, Returned
from perdure.vocab.messages import Text, ToolCall
from perdure.vocab.notifications import notification
from perdure.vocab.outcomes import FailureDetail
from perdure.vocab.records import ProcessEvent
from perdure.vocab.registrations import (
    EngineInput,
    ProcessFailure,
    ProcessInput,
    ProcessOutput,
    ProcessSucceeded,
    ProcessWasAbandoned,
    ProcessWasCancelled,
)

if TYPE_CHECKING:
    from perdure.runtime.core import RuntimeCore
    from perdure.runtime.processes.context import ProcessContext

log = logging.getLogger("perdure.runtime")

STARTING = "Starting"
REATTACHING = "Re-attaching"
CANCELED = "Canceled by request."
UNEXPECTED = "Background run ended unexpectedly"
PROGRESS_EVERY_S = 0.25
"""The interval of progress updates. Faster updates are dropped."""
GRACE_S = 1.0
MAX_SUMMARY_CHARS = 32_768
_UPDATED = "task.updated"


def definition_of(agent: str) -> str:
    """Return the name of the process code for the background runs of an agent's sessions."""
    return f"background:{agent}"


def message_to(stream: StreamId, key: str, text: str, *, source: str, now: int) -> Delivery:
    """Return a delivery that sends a text to an existing session, once per key, for work that the session began."""
    item = Input(
        input=InputId(short_id("in", now)),
        turn=TurnId(uuid7(now)),
        parts=(Text(text=text),),
        key=key,
        source=source,
        by_session=True,
    )
    return delivery(stream, key, item, at=now)


class TaskNews(NamedTuple):
    """The change of a task that its session is told."""

    title: str
    state: str
    text: str


def task_message(tenant: Tenant, session: SessionId, task: str, what: str, news: TaskNews, now: int) -> Delivery:
    """Return the message that a task's wake policy sends to its session, once for each `what`."""
    stream, key = session_stream(tenant, session), f"task:{task}:{what}"
    fields = {"task_id": task, **news._asdict()}
    return message_to(stream, key, notification("Task news.", fields, text="text"), source=f"task:{task}", now=now)


@dataclass(slots=True)
class RunningTasks:
    """The background runs that this worker executes or registers. Both count, so concurrent spawns cannot exceed the
    limit.

    Runs whose stream this worker no longer hosts do not count.
    """

    in_hand: Callable[[StreamId], bool]
    has_capacity: Callable[[], None] = lambda: None
    """The callback after a slot has become free."""
    _runs: set[StreamId] = field(default_factory=set[StreamId])
    _coming: set[StreamId] = field(default_factory=set[StreamId])

    @property
    def count(self) -> int:
        """The number of runs."""
        self._runs = {run for run in self._runs if run in self._coming or self.in_hand(run)}
        return len(self._runs)

    def take(self, run: StreamId, refusal: str) -> None:
        """Reserve a slot for a run, once.

        Raises:
            Error: `task_limit_exceeded`, with this refusal. The run may be retried, here or on another worker.
        """
        if run not in self._runs and self.count >= MAX_ACTIVE_PER_WORKER:
            raise Error(Code.TASK_LIMIT_EXCEEDED, refusal)
        self._runs.add(run)

    def leave(self, run: StreamId) -> None:
        """Release the slot of a run that has ended."""
        if run in self._runs:
            self._runs.discard(run)
            self.has_capacity()

    @contextmanager
    def coming(self, run: StreamId) -> Generator[None]:
        """Hold a slot for a run while it is being registered.

        Raises:
            Error: `task_limit_exceeded`.
        """
        full = f"Worker is already running the maximum {MAX_ACTIVE_PER_WORKER} active background runs. "
        self.take(run, full + "Try again after an existing run finishes.")
        self._coming.add(run)
        try:
            yield
        finally:
            self._coming.discard(run)


@dataclass(frozen=True, slots=True)
class BackgroundCode:
    """The process code for the background runs of one agent's sessions."""

    host: RuntimeCore
    agent: Agent
    running: RunningTasks = field(compare=False)
    last: dict[str, RunAttempt] = field(default_factory=dict[str, RunAttempt], compare=False)
    """The current attempt of each process here."""

    @property
    def definitions(self) -> tuple[str, ...]:
        """The name of this code in process registrations."""
        return (definition_of(self.agent.name),)

    @property
    def place(self) -> Placement:
        """The queue and priority of the agent's sessions."""
        return setup_of(self.agent).place

    async def run(self, ctx: ProcessContext, given: ProcessInput) -> object:
        """Execute a run to its end. The return value becomes the result of its task.

        Raises:
            ToolError: the run failed.
            asyncio.CancelledError: the run was cancelled.
        """
        task = _task(given)
        try:
            return await self._run(ctx, task, given)
        finally:
            self.running.leave(process_stream(ctx.tenant, ctx.process_id))
            self.last.pop(ctx.process_id, None)

    def check_capacity(self, run: StreamId, *, again: bool) -> None:
        """Reserve a slot for a run that starts or is re-attached.

        Raises:
            Error: `task_limit_exceeded`: the run waits for a slot here or on another worker.
        """
        what = "re-attach" if again else "start"
        self.running.take(run, f"worker background run limit reached; {what} deferred")

    async def _run(self, ctx: ProcessContext, task: CreateSessionTask, given: ProcessInput) -> object:
        spec = cast("dict[str, Json]", task.spec)
        name = str(spec.get("tool", ""))
        again, context = await self._was_begun(ctx), await self._context(ctx, task, name, given)
        _ = reattach_background_run(spec, context) if again else self._tool(name)
        admitted = await self._admitted(ctx, name, spec, given)
        run = (
            RunAttempt(f"bg_{os.urandom(16).hex()}", task.display_name, name)
            if again
            else _first_run(ctx.process_id, task)
        )
        self.last[ctx.process_id] = run
        sink = Sink(self.host.of(ctx.tenant), ctx.tenant, ctx.process_id, task, run)
        await sink.update(
            SessionTaskUpdate(
                state_detail=REATTACHING if again else STARTING,
                worker_id=self.host.worker_id,
                increment_attempt=again,
                result_path=run.result_path,
            )
        )

        async def body() -> object:
            worker, stream = self.host.worker, process_stream(ctx.tenant, ctx.process_id)
            assert worker is not None  # a worker runs this
            async with worker.permits.held(stream, EffectId(name), f"tool:{name}"):
                return await admitted.enter_in_background(context, sink)

        return await sink.finish(await _race(body, ctx))

    async def _admitted(
        self, ctx: ProcessContext, name: str, spec: dict[str, Json], given: ProcessInput
    ) -> AdmittedCall:
        """Check a run again, by the contract and the consent of its turn, against the code of this worker."""
        admission = _admission(given)
        call = ToolCall(id=CallId(ctx.process_id), name=name, args=spec.get("arguments") or {})
        prepared = setup_of(self.agent).toolbox.prepare(call, admission.contract)
        checked = prepared if isinstance(prepared, FailureDetail) else await prepared.checked()
        admitted = checked if isinstance(checked, FailureDetail) else admit_begun_run(checked, admission)
        if isinstance(admitted, FailureDetail):
            raise ToolError(admitted.message, code=admitted.code)
        return admitted

    async def _was_begun(self, ctx: ProcessContext) -> bool:
        """Return whether an attempt has begun before: `Starting` is recorded before the tool is called."""
        rows = await self.host.store.read(process_stream(ctx.tenant, ctx.process_id))
        begun = (row.record for row in rows if row.kind == "process_event")
        return any(
            isinstance(one, ProcessEvent) and one.event == _UPDATED and one.payload.get("state_detail") == STARTING
            for one in begun
        )

    def _tool(self, name: str) -> BackgroundExecutableTool:
        if (executor := executor_of(setup_of(self.agent).toolbox.registry.get(name))) is None:
            raise ToolError(
                f"tool '{name}' does not support background execution here; it was not begun", code=ORPHANED
            )
        return executor

    async def _context(
        self, ctx: ProcessContext, task: CreateSessionTask, name: str, given: ProcessInput
    ) -> ToolContext[object]:
        wiring = wiring_of(ctx)
        process = wiring.runtime.get_process(ctx.process_id)
        events = RunEventsClient(process, CallId(ctx.process_id), _admission(given).event_types)
        args = cast("dict[str, Json]", task.spec).get("arguments")
        return await context_of_run(ctx, task.session_id, self.agent, tool=name, args=args, events=events)

    def end_notification(
        self, record: ProcessRecord, output: ProcessOutput, tenant: Tenant, now: int
    ) -> tuple[Delivery, ...]:
        """Return the messages to the session that commit with the end of a run, if they were requested."""
        task = _task(record.known.input)
        spec = cast("dict[str, Json]", task.spec)
        process, (status, summary) = record.known.process_id, _said(output)
        told = (self._news(tenant, process, task, status, summary, now),) if task.wake_policy != "silent" else ()
        if spec.get("signal_on_completion") is False:
            return told
        run = self.last.get(process) or _first_run(process, task)
        stream, text = session_stream(tenant, task.session_id), run.signal(status, summary)
        signal = message_to(stream, f"background:{process}", text, source=f"background:{run.run_id}", now=now)
        return (*told, signal)

    @staticmethod
    def _news(tenant: Tenant, process: str, task: CreateSessionTask, status: str, summary: str, now: int) -> Delivery:
        state = "succeeded" if status == "completed" else status
        return task_message(tenant, task.session_id, process, state, TaskNews(task.display_name, state, summary), now)


def _admission(given: ProcessInput) -> RunAdmission:
    assert isinstance(given, EngineInput)
    return decode(encode(given.payload["admission"]), RunAdmission)


def _task(given: ProcessInput) -> CreateSessionTask:
    assert isinstance(given, EngineInput)
    task = decode(encode(given.payload["task"]), CreateSessionTask)
    return task if isinstance(task.spec, dict) else replace(task, spec={})


def _first_run(process: str, task: CreateSessionTask) -> RunAttempt:
    spec = cast("dict[str, Json]", task.spec)
    run_id = spec.get("run_id") or f"bg_{brief(digest(('background', process)))}"
    return RunAttempt(str(run_id), task.display_name, str(spec.get("tool", "")))


def _said(output: ProcessOutput) -> tuple[str, str]:
    match output:
        case ProcessSucceeded(value=value):
            said = cast("dict[str, Json]", value) if isinstance(value, dict) else {}
            return "completed", str(said.get("summary", ""))
        case ProcessFailure(message=message):
            return "failed", message
        case ProcessWasCancelled():
            return "canceled", CANCELED
        case ProcessWasAbandoned(reason=reason):
            return "failed", reason


async def _race(call: Callable[[], object], ctx: ProcessContext) -> Ended | None:
    """Return how the tool ended, or None if the run was cancelled first."""
    work = asyncio.create_task(drive(call), name=f"perdure:background:{ctx.process_id}")
    asked = asyncio.create_task(ctx.cancellation.wait())
    try:
        await asyncio.wait({work, asked}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done() and ctx.info.cancel is None:
            await asyncio.wait({work})  # the worker drains: the tool may still end in time
    finally:
        asked.cancel()
        if not work.done():
            work.cancel()
            await asyncio.wait({work}, timeout=GRACE_S)
    return end_of(work) if work.done() and ctx.info.cancel is None else None


class Sink:
    """The output of a run. Status and progress are best effort; files and the end are durable."""

    def __init__(
        self, host: RuntimeCore, tenant: Tenant, process: str, task: CreateSessionTask, run: RunAttempt
    ) -> None:
        self._host = host
        self._tenant = tenant
        self._process = process
        self._task = task
        self._session = task.session_id
        self._run = run
        self._veil = Redactor(host.seen_secrets, session_stream(tenant, task.session_id))
        self._log, self._pieces = OutputLog(), OutputPieces()
        self._updates = 0
        self._told_at = 0.0

    @property
    def tail(self) -> str:
        """The last part of the output."""
        return self._log.tail

    # --- on the way

    async def update(self, update: SessionTaskUpdate) -> None:
        """Append an update of the task. Durable when this returns."""
        check_readable(update, what="the update of a run")
        self._updates += 1
        replay = f"{self._run.run_id}:{self._updates}"
        told = self._task.wake_policy == "on_activity" and update.state_detail is not None
        outbox = (self._news(replay, update.state_detail or ""),) if told else ()
        await self._host.get_process(self._process).append_event(
            _UPDATED, msgspec.to_builtins(update), replay=replay, outbox=outbox
        )  # fmt: skip

    def _news(self, what: str, detail: str) -> Delivery:
        news, now = TaskNews(self._task.display_name, "running", detail), self._host.clock.wall_ms()
        return task_message(self._tenant, self._session, self._process, what, news, now)

    async def _mirror(self, update: SessionTaskUpdate) -> None:
        try:
            await self.update(update)
        except Error as problem:
            log.debug("background update lost error=%s", problem)

    async def status(self, message: str) -> None:
        """Report the current activity."""
        await self._mirror(SessionTaskUpdate(state_detail=self._veil.text(str(message))))

    async def output(self, stream: str, delta: str) -> None:
        """Add a piece of output."""
        self._log.add(stream, self._pieces.add(stream, str(delta), self._veil))

    async def progress(self, progress: BackgroundProgress) -> None:
        """Report the progress."""
        now = asyncio.get_running_loop().time()
        if now - self._told_at >= PROGRESS_EVERY_S:
            self._told_at = now
            await self._mirror(SessionTaskUpdate(progress=progress))

    # --- at the end

    async def finish(self, ended: Ended | None) -> Json:
        """Write the log and result files and the final update, then return the result or raise the failure."""
        for stream, text in self._pieces.rest(self._veil).items():
            self._log.add(stream, text)
        if ended is None:
            await self._leave(f"{self._log.text()}\n{CANCELED}\n", {"status": "canceled"}, "Canceled")
            raise asyncio.CancelledError
        if isinstance(ended, Returned) and isinstance(ended.value, BackgroundOutcome):
            outcome = ended.value
            raw, result = outcome.raw_output, keep(outcome.result)
            text = self._log.text() if raw is None else capped(self._veil.text(str(raw)))
            if isinstance(result, Unstorable):
                message = f"the run ended, but its result cannot be stored, at {result.path}: {result.reason}"
                await self._leave(text, {"status": "failed", "error": message}, "Failed")
                raise ToolError(message, code="background_result_invalid")
            await self._leave(text, result.value, "Completed")
            return {
                "summary": _sayable(self._veil.text(str(outcome.summary)))[:MAX_SUMMARY_CHARS],
                "result_path": self._run.result_path,
                "log_path": self._run.log_path,
                "run_id": self._run.run_id,
            }
        message = _sayable(self._veil.text(_why(ended, self._run.tool)))
        await self._leave(self._log.text(), {"status": "failed", "error": message}, "Failed")
        raise ToolError(message, code="background_failed")

    async def _leave(self, text: str, result: Json, status: str) -> None:
        shown = json.dumps(result, indent=2, ensure_ascii=False)
        try:
            files = self._host.files.of_session(self._tenant, self._session)
            await files.write_file(self._run.log_path, _sayable(text))
            await files.write_file(self._run.result_path, shown)
        except Error as problem:
            if problem.code is not Code.SESSION_UNKNOWN:  # the session was deleted, and its files with it
                raise
        await self._mirror(SessionTaskUpdate(state_detail=status))


def _sayable(text: str) -> str:
    """Replace characters that UTF-8 cannot encode, such as lone surrogates."""
    return text.encode("utf-8", "replace").decode()


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
            log.error("background run failed", exc_info=said, extra={"tool": tool})
            return INTERNAL_ERROR
        case _:
            return INTERNAL_ERROR
