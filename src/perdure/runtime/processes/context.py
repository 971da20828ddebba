"""The context of a process function: steps, waits, signals, children."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, overload

import msgspec

from perdure.codec import Json, decode, encode, to_json
from perdure.effects import keys
from perdure.effects.promises import ProcessScope
from perdure.errors import Code, Error
from perdure.ids import BlobHash, Tenant, check_id, join, process_stream
from perdure.processes.chronology import Moment
from perdure.processes.events import PHASE, signal_type
from perdure.processes.record import ProcessRecord
from perdure.processes.registration import NOTHING_CAPTURED, check_process_id
from perdure.runtime.processes import branches as process_branches
from perdure.runtime.processes.handle import ProcessHandle, value_of
from perdure.runtime.processes.limits import check_child
from perdure.runtime.processes.starting import python_process, register
from perdure.runtime.triggers.client import Spokesman, TriggersClient
from perdure.services.commands import GRACE_S, KEEP_BYTES, checked
from perdure.tools.body import Body
from perdure.tools.context import Cancellation, ToolContext
from perdure.tools.durable import DurableOps, Duration, recorded_body
from perdure.tools.durations import duration_ms
from perdure.tools.errors import ToolError
from perdure.tools.origin import NOT_GIVEN
from perdure.tools.step_outcomes import EventFailed, EventTimedOut
from perdure.vocab.causes import ProcessCause
from perdure.vocab.processes import ProcessStarted, StartProcess
from perdure.vocab.promises import Cancelled, Failure, Ok, TimedOut
from perdure.vocab.registrations import ProcessOutput, Provenance

if TYPE_CHECKING:
    from perdure.runtime.core import RuntimeCore
    from perdure.runtime.processes.function import ProcessFunction

T = TypeVar("T")


class ProcessPort(Protocol):
    """The driver of a process, as its context sees it."""

    async def emit(self, name: str, payload: Json, replay: str) -> None:
        """Append a declared event, once per replay key."""
        ...

    def mark(self, name: str, payload: Json, replay: str) -> None:
        """Append an event of the runtime itself, once per replay key."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ProcessWiring:
    """The parts of the runtime that serve one entry of a process. Process functions do not see it."""

    tool_name: str
    body: Body | None
    current_view: Callable[[], ProcessRecord]
    driver: ProcessPort
    runtime: RuntimeCore
    in_session: Callable[[ProcessContext], Awaitable[ToolContext[object]]]
    deps: object = NOT_GIVEN


@dataclass(frozen=True, kw_only=True, repr=False)
class ProcessContext(DurableOps):
    """The context of one entry of a process function.

    `idempotency_key` is the same on every entry and after every restart. `ctx.step_key(name)` returns a key for a step.
    """

    process_id: str
    tenant: Tenant
    idempotency_key: str
    cancellation: Cancellation = field(default_factory=Cancellation)
    _call: ProcessWiring

    def _body(self) -> Body:
        return recorded_body(self._call.body, self.process_id, self._call.tool_name)

    @property
    def deps(self) -> object:
        """The dependencies passed to `Runtime(deps=...)`.

        Raises:
            Error: `invalid_argument` without dependencies.
        """
        if self._call.deps is NOT_GIVEN:
            raise Error(
                Code.INVALID_ARGUMENT,
                f"no dependencies for ctx.deps of the process {self.process_id}",
                because="the runtime was opened without deps",
                hint="Runtime(..., deps=...)",
            )
        return self._call.deps

    @property
    def info(self) -> ProcessRecord:
        """The durable record of this process."""
        return self._call.current_view()

    async def wait_for_signal(self, name: str, *, timeout: Duration | None = None) -> Json:
        """Wait for the next signal of this name, sent by `handle.signal(name, payload)`. Each is received once, in
        order.

        Raises:
            EventTimedOut: no signal came within `timeout` (`process_signal_wait_timeout`).
            Error: `process_signal_invalid`.
        """
        signal_type(name)
        limit = None if timeout is None else duration_ms(timeout, what=f"the timeout of the signal {name!r}")
        return await self._body().signal(self.process_id, name, limit)

    async def emit(self, event: str, payload: Json = None, *, key: str | None = None) -> None:
        """Append an event that the process declares (`@process(events=[...])`).

        Recorded once; re-entry does not repeat it. Without a `key`, events are numbered in the order of the calls.

        Raises:
            Error: `process_event_undeclared`, `process_event_invalid`, `process_event_conflict`.
        """
        body = self._body()
        check_id(event, what="the event")
        payload = to_json(payload, where="the payload")
        await self._call.driver.emit(
            event, payload, keys.process_event(self.process_id, body.count("emit")) if key is None else key
        )

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Mark a named phase of the function: `with ctx.phase("fetch"):`.

        The log stores its start and end once, and `record.phases` contains them. A phase that a cancel interrupts stays
        open.
        """
        body = self._body()
        nth = body.count(f"phase:{check_id(name, what='the name of the phase')}")
        self._mark(name, "begun", nth)
        try:
            yield
        except Exception:
            self._mark(name, "ended", nth)
            raise
        self._mark(name, "ended", nth)

    def _mark(self, name: str, edge: str, nth: int) -> None:
        self._call.driver.mark(PHASE, {"phase": name, "edge": edge}, f"phase:{name}:{nth}:{edge}")

    async def timeline(self) -> tuple[Moment, ...]:
        """Return the history of this process, in order, as far as it is durable at the call."""
        await self._body().controller.ledger.durable()
        return await self._call.runtime.get_process(self.process_id).timeline()

    async def session(self) -> ToolContext[object]:
        """Return the context of a tool in the session that this process belongs to.

        It has the files, messages, secrets, schedules, tasks and model of that session, and its process and session
        clients. Its steps are those of this process. Other tools cannot be called, because that needs a turn.

        Raises:
            Error: `invalid_argument` if no tool of a session started the process; `session_unknown`, `agent_unknown`.
        """
        return await self._call.in_session(self)

    async def extension(self, name: str, type: type[T]) -> T | None:
        """Return a value of `rt.start(..., extensions={name: …})`, converted to `type`.

        A child inherits the extensions of its parent. None if there is no such value, or it has another shape.
        """
        given = (await self._extensions()).get(name)
        if given is None:
            return None
        try:
            return msgspec.convert(given, type)
        except msgspec.ValidationError:
            return None

    async def _extensions(self) -> dict[str, Json]:
        mine = self._call.current_view().known
        if mine.env in ("", NOTHING_CAPTURED):
            return {}
        hash = BlobHash(mine.env.rpartition(":")[2])
        kept = await self._call.runtime.store.blob(hash, stream=process_stream(self.tenant, self.process_id))
        return decode(kept.data)["plugin_options"]

    @property
    def triggers(self) -> TriggersClient:
        """Trigger client: `await ctx.triggers.emit("order.paid", {...})`.

        Effects are recorded once; re-entry does not repeat them. Subscriptions have the same owner as this process.
        """
        mine, body = self._call.current_view().known, self._body()
        by = Spokesman(
            key=self.idempotency_key,
            originator=mine.provenance.originator,
            wake_target=mine.wake_target,
            nth=lambda source_type: body.count(join("trigger", source_type)),
            durable=body.controller.ledger.durable,
            report=lambda _: None,
        )
        return TriggersClient(self._call.runtime, by, body)

    async def start(
        self, process: ProcessFunction | str, /, *args: object, id: str | None = None, **kwargs: object
    ) -> ProcessHandle:
        """Start a child process. Recorded once; re-entry does not repeat it.

        The child has the same owner as this process and outlives it. Without an `id`, children are numbered by their
        function.

        Raises:
            Error: `process_conflict`, `process_children_exceeded`, `process_depth_exceeded`, and the errors of
                `rt.start`.
        """
        body = self._body()
        name = check_id(getattr(process, "name", process), what="the process")
        child = f"{self.process_id}/{name}:{body.count(f'start:{name}')}" if id is None else check_process_id(id)
        mine = self._call.current_view().known
        provenance = Provenance(
            originator=mine.provenance.originator,
            parent=self.process_id,
            caused_by=ProcessCause(process_id=self.process_id),
        )
        asked, env = python_process(
            self._call.runtime, process, args, dict(kwargs), id=child, provenance=provenance,
            wake_target=mine.wake_target, extensions=await self._extensions(),
        )  # fmt: skip
        command = StartProcess(process_id=child, registration=decode(encode(asked)))
        await self._check_child(body, child)

        async def register_child() -> ProcessStarted:
            return ProcessStarted(record=(await register(self._call.runtime, asked, env=env)).to_json())

        await body.command("start", child, command, register_child)
        return ProcessHandle(self._call.runtime, child)

    async def start_command(  # noqa: PLR0913 - its options, each one word
        self,
        argv: str | Sequence[str],
        *,
        name: str | None = None,
        shell: bool = False,
        cwd: str | PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        inherit: Sequence[str] = (),
        label: str = "",
        grace: Duration = GRACE_S,
        keep_bytes: int = KEEP_BYTES,
    ) -> ProcessHandle:
        """Run a command of the operating system, on the machine of the first entry. Re-entry does not repeat it.

        `ctx.wait_for_process(handle)` waits for its end. Without a `name`, commands are numbered.

        Raises:
            Error: `process_conflict`, and the errors of `rt.start_command`.
        """
        body = self._body()
        part = str(body.count("command")) if name is None else check_id(name, what="the name of the command")
        child, mine = f"{self.process_id}/command:{part}", self._call.current_view().known
        grace_ms, origin = duration_ms(grace, what="the grace"), mine.provenance.originator
        given: Json = {"argv": argv, "shell": shell, "cwd": None if cwd is None else str(cwd), "env": env}
        if inherit:
            given = {**given, "inherit": list(inherit)}
        given = to_json(given, where="the command")
        command = StartProcess(process_id=child, registration=given)
        await self._check_child(body, child)

        async def start_it() -> ProcessStarted:
            host = self._call.runtime.commands.host
            asked = checked(
                argv,
                host=host,
                shell=shell,
                cwd=cwd,
                env=env,
                inherit=inherit,
                grace_ms=grace_ms,
                keep_bytes=keep_bytes,
            )
            came_from = Provenance(
                originator=origin, parent=self.process_id, caused_by=ProcessCause(process_id=self.process_id)
            )  # fmt: skip
            session = "" if origin is None else origin.session_id
            started = await self._call.runtime.commands.start(
                asked, id=child, label=label, session=session, provenance=came_from
            )  # fmt: skip
            return ProcessStarted(record=started.to_json())

        await body.command("start", child, command, start_it)
        return ProcessHandle(self._call.runtime, child)

    async def _check_child(self, body: Body, child: str) -> None:
        rt, parent = self._call.runtime, (self.process_id, self._call.current_view().known.provenance)
        await check_child(rt.store, self.tenant, rt.process_limits, parent, body.names("start"), child)

    async def wait_for_process(self, process: ProcessHandle | str, *, timeout: Duration | None = None) -> Json:
        """Wait for the end of another process, and return its value. A parked wait holds no memory.

        Raises:
            Error: `process_failed` if the process returned no value; `process_handle_invalid`.
            EventTimedOut: the process has not ended within `timeout`.
            EventFailed: unknown process (`process_unknown`), or a deadlock (`process_wait_cycle`).
        """
        id = self._call.runtime.processes.from_json(process).id
        if id == self.process_id:
            raise Error(Code.INVALID_ARGUMENT, f"the process {id} cannot wait for its own end", process=id)
        limit = None if timeout is None else duration_ms(timeout, what="the timeout")
        scope = ProcessScope(self.tenant, check_process_id(id))
        match await self._body().ended(scope.id, id, limit):
            case Ok(value=value):
                return value_of(id, msgspec.convert(value, ProcessOutput))
            case TimedOut():
                raise EventTimedOut(f"the process {id} has not ended in time", code=Code.RESULT_TIMEOUT.value)
            case Failure(code=code, message=message):
                raise EventFailed(message, code=code)
            case Cancelled():
                raise EventFailed("the wait was cancelled", code=Code.DURABLE_EFFECT_EVENT_CANCELLED.value)

    @overload
    async def ask(
        self, agent: str, content: str, *, output: None = None, name: str | None = None, session: str | None = None
    ) -> str: ...

    @overload
    async def ask(self, agent: str, content: str, *, output: type[T], name: str | None = None) -> T: ...

    async def ask(
        self,
        agent: str,
        content: str,
        *,
        output: type[T] | None = None,
        name: str | None = None,
        session: str | None = None,
    ) -> T | str:
        """Ask an agent in a child session and wait for the answer. With `session=`, use that existing session instead.

        The question is recorded once; re-entry does not repeat it. Without `session=`, like
        `ctx.agent(agent).ask(...)`.

        Raises:
            SubagentFailed: the agent was stopped or cancelled, or gave no such output.
            StepFailed: the turn of the named session was stopped.
        """
        if session is None:
            client = self.agent(agent)
            return await (
                client.ask(content, name=name) if output is None else client.ask(content, output=output, name=name)
            )
        body = self._body()
        for given, what in ((agent, "the agent"), (session, "the session id")):
            check_id(given, what=what)
        name = f"{agent}:{body.count(f'ask:{agent}')}" if name is None else name

        async def answer(agent: str, content: str, where: str) -> str:
            opened = await self._call.runtime.session(where, agent=agent)
            try:
                return await opened.ask(content, key=join("process", self.process_id, "ask", name))
            except Error as problem:
                if problem.code is not Code.TURN_FAILED:
                    raise
                raise ToolError(problem.because or problem.message, code=str(problem.details["reason"])) from None

        return await self.step(f"ask:{name}", answer, agent, content, session, effect="idempotent")

    async def gather(self, *branches: Awaitable[T]) -> list[T]:
        """Run branches concurrently, and return their results. A failure stops the other branches where they wait, and
        is raised.

        The failure is recorded, so the other branches make no progress on a later entry. Gathers are identified by
        their order.
        """
        return await process_branches.gather(self._body(), branches)

    async def race(
        self, name: str, /, *, losers: Literal["cancel", "keep"] = "cancel", **branches: Awaitable[Json]
    ) -> tuple[str, Json]:
        """Return the name and value of the first branch to end.

        The winner and the fate of the `losers` are recorded: cancelled where they wait, or kept running until the
        function ends. A cancelled branch takes no more input: a signal for which it waited is kept for the next wait.

        Raises:
            Error: `invalid_argument` without branches.
        """
        return await process_branches.first(self._body(), name, branches, stops=losers == "cancel")


def wiring_of(ctx: ProcessContext) -> ProcessWiring:
    """Return the wiring of a context: the runtime's own view of a process."""
    return ctx._call  # pyright: ignore[reportPrivateUsage] - the only access from other modules
