"""What a process function is given: steps, waits, signals, and who it is."""

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
from perdure.ids import BlobHash, CallId, Tenant, check_id, join, process_stream
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
from perdure.services.secrets import Veil
from perdure.tools.body import Body
from perdure.tools.context import NOT_GIVEN, CancelToken
from perdure.tools.durable import DurableOps, Duration
from perdure.tools.durations import duration_ms
from perdure.tools.endings import EventFailed, EventTimedOut
from perdure.tools.errors import ToolError
from perdure.vocab.causes import ProcessCause
from perdure.vocab.processes import ProcessStarted, StartProcess
from perdure.vocab.promises import Cancelled, Err, Ok, TimedOut
from perdure.vocab.registrations import ProcessOutput, Provenance

if TYPE_CHECKING:
    from perdure.runtime.processes.function import ProcessFunction
    from perdure.runtime.runtime import Runtime

T = TypeVar("T")


class Driven(Protocol):
    """The process under way, as its context sees it."""

    def emit(self, name: str, payload: Json, replay: str, *, ours: bool = False) -> None:
        """Append a declared event, once for each replay key; `ours` is one of those that only the runtime writes."""
        ...


@dataclass(frozen=True, kw_only=True, repr=False)
class ProcessContext(DurableOps):
    """One entry of a process's function.

    `idempotency_key` is the same on every entry, after every restart; `ctx.step_key(name)` is one for a step.
    """

    process_id: str
    tenant: Tenant
    idempotency_key: str
    tool_name: str
    body: Body | None
    look: Callable[[], ProcessRecord]
    driver: Driven
    runtime: Runtime
    given: object = NOT_GIVEN
    cancellation: CancelToken = field(default_factory=CancelToken)
    veil: Veil = field(default_factory=Veil)
    call_id: CallId = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "call_id", CallId(self.process_id))

    @property
    def deps(self) -> object:
        """What the runtime was given as `deps=`.

        Raises:
            Error: `invalid_argument` if it was given nothing.
        """
        if self.given is NOT_GIVEN:
            raise Error(
                Code.INVALID_ARGUMENT,
                f"the process {self.process_id} asks for ctx.deps, and there are none",
                because="the runtime was opened without deps",
                hint="pass them: Runtime(..., deps=...)",
            )
        return self.given

    @property
    def record(self) -> ProcessRecord:
        """What is known of this process, as far as it is durable."""
        return self.look()

    async def signal(self, name: str, *, timeout: Duration | None = None) -> Json:
        """Wait for the next signal of this name: `handle.signal(name, payload)`. Each is received once, in order.

        Raises:
            EventTimedOut: none came within `timeout` (`process_signal_wait_timeout`).
            Error: `process_signal_invalid`.
        """
        signal_type(name)
        limit = None if timeout is None else duration_ms(timeout, what=f"the timeout of the signal {name!r}")
        return await self.durable_effects().signal(self.process_id, name, limit)

    async def emit(self, event: str, payload: Json = None, *, key: str | None = None) -> None:
        """Append an event that the process declares (`@process(events=[...])`), once however often the function is
        entered: the n-th on every entry is the same, or the one of that `key`.

        Raises:
            Error: `process_event_undeclared`, `process_event_invalid`, `process_event_conflict`.
        """
        body = self.durable_effects()
        check_id(event, what="the event")
        payload = to_json(payload, where="the payload")
        self.driver.emit(
            event, payload, keys.process_event(self.process_id, body.count("emit")) if key is None else key
        )

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """A named stretch of the function: `with ctx.phase("fetch"):`. When it began and ended stands in the log, once
        however often the function is entered, and `record.phases` has it. One that a cancel breaks off stays open."""
        body = self.durable_effects()
        nth = body.count(f"phase:{check_id(name, what='the name of the phase')}")
        self._mark(name, "begun", nth)
        try:
            yield
        except Exception:
            self._mark(name, "ended", nth)
            raise
        self._mark(name, "ended", nth)

    def _mark(self, name: str, edge: str, nth: int) -> None:
        self.driver.emit(PHASE, {"phase": name, "edge": edge}, f"phase:{name}:{nth}:{edge}", ours=True)

    async def chronological_projection(self) -> tuple[Moment, ...]:
        """What happened to this process until now, in order, as far as it is durable when this is called."""
        await self.durable_effects().controller.ledger.durable()
        return await self.runtime.process(self.process_id).chronology()

    async def protocol_extension(self, name: str, type: type[T]) -> T | None:
        """What the host said when it started this process, or the one that started it, besides its arguments
        (`rt.start(..., extensions={name: …})`), as `type`; None if it said nothing, or something of another shape."""
        given = (await self._extensions()).get(name)
        if given is None:
            return None
        try:
            return msgspec.convert(given, type)
        except msgspec.ValidationError:
            return None

    async def _extensions(self) -> dict[str, Json]:
        mine = self.look().known
        if mine.env in ("", NOTHING_CAPTURED):
            return {}
        hash = BlobHash(mine.env.rpartition(":")[2])
        kept = await self.runtime.store.blob(hash, stream=process_stream(self.tenant, self.process_id))
        return decode(kept.data)["plugin_options"]

    @property
    def triggers(self) -> TriggersClient:
        """What happens, and who wants a process for it: `await ctx.triggers.emit("order.paid", {...})`. Said once,
        however often the function is entered; subscriptions belong to whom this process belongs to."""
        mine, body = self.look().known, self.durable_effects()
        by = Spokesman(
            key=self.idempotency_key,
            originator=mine.provenance.originator,
            wake_target=mine.wake_target,
            veil=self.veil,
            nth=lambda source_type: body.count(join("trigger", source_type)),
            durable=body.controller.ledger.durable,
            report=lambda _: None,
        )
        return TriggersClient(self.runtime.triggers.of(self.tenant), by, body)

    async def start(
        self, process: ProcessFunction | str, /, *args: object, id: str | None = None, **kwargs: object
    ) -> ProcessHandle:
        """Start a child: once, however often the function is entered. It belongs to whom this process belongs to, and
        goes on when this one ends. Without an `id`, children are numbered by their function.

        Raises:
            Error: `process_conflict`, `process_children_exceeded`, `process_depth_exceeded`, and what `rt.start`
                refuses.
        """
        body = self.durable_effects()
        name = check_id(getattr(process, "name", process), what="the process")
        child = f"{self.process_id}/{name}:{body.count(f'start:{name}')}" if id is None else check_process_id(id)
        mine = self.look().known
        provenance = Provenance(
            originator=mine.provenance.originator,
            parent=self.process_id,
            caused_by=ProcessCause(process_id=self.process_id),
        )
        asked, env = python_process(
            self.runtime, process, args, dict(kwargs), id=child, provenance=provenance, wake_target=mine.wake_target,
            extensions=await self._extensions(),
        )  # fmt: skip
        command = StartProcess(process_id=child, registration=decode(encode(asked)))
        await self._check_child(body, child)

        async def register_child() -> ProcessStarted:
            return ProcessStarted(record=(await register(self.runtime, asked, env=env)).json)

        await body.command("start", child, command, register_child)
        return ProcessHandle(self.runtime, child)

    async def command(  # noqa: PLR0913 - its options, each one word
        self,
        argv: str | Sequence[str],
        *,
        name: str | None = None,
        shell: bool = False,
        cwd: str | PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        label: str = "",
        grace: Duration = GRACE_S,
        keep_bytes: int = KEEP_BYTES,
    ) -> ProcessHandle:
        """Run a command of the operating system: once, however often the function is entered, on the machine where it
        was first asked for. `ctx.wait(handle)` waits for its end. Without a `name`, commands are numbered.

        Raises:
            Error: `process_conflict`, and what `rt.command` refuses.
        """
        body = self.durable_effects()
        part = str(body.count("command")) if name is None else check_id(name, what="the name of the command")
        child, mine = f"{self.process_id}/command:{part}", self.look().known
        grace_ms, origin = duration_ms(grace, what="the grace"), mine.provenance.originator
        given: Json = {"argv": argv, "shell": shell, "cwd": None if cwd is None else str(cwd), "env": env}
        given = to_json(given, where="the command")
        command = StartProcess(process_id=child, registration=given)
        await self._check_child(body, child)

        async def start_it() -> ProcessStarted:
            host = self.runtime.commands.host
            asked = checked(argv, host=host, shell=shell, cwd=cwd, env=env, grace_ms=grace_ms, keep_bytes=keep_bytes)
            came_from = Provenance(
                originator=origin, parent=self.process_id, caused_by=ProcessCause(process_id=self.process_id)
            )  # fmt: skip
            session = "" if origin is None else origin.session_id
            started = await self.runtime.commands.start(
                asked, id=child, label=label, session=session, provenance=came_from
            )  # fmt: skip
            return ProcessStarted(record=started.json)

        await body.command("start", child, command, start_it)
        return ProcessHandle(self.runtime, child)

    async def _check_child(self, body: Body, child: str) -> None:
        rt, parent = self.runtime, (self.process_id, self.look().known.provenance)
        await check_child(rt.store, self.tenant, rt.process_limits, body, parent, child)

    async def wait(self, process: ProcessHandle | str, *, timeout: Duration | None = None) -> Json:
        """What another process returned. While this one waits it holds nothing.

        Raises:
            Error: `process_failed` if it did not return; `process_handle_invalid`.
            EventTimedOut: it has not ended within `timeout`.
            EventFailed: there is none (`process_unknown`), or it waits for this one (`process_wait_cycle`).
        """
        id = self.runtime.processes.handle(process).id
        if id == self.process_id:
            raise Error(Code.INVALID_ARGUMENT, f"the process {id} cannot wait for its own end", process=id)
        limit = None if timeout is None else duration_ms(timeout, what="the timeout")
        scope = ProcessScope(self.tenant, check_process_id(id))
        match await self.durable_effects().ended(scope.id, id, limit):
            case Ok(value=value):
                return value_of(id, msgspec.convert(value, ProcessOutput))
            case TimedOut():
                raise EventTimedOut(f"the process {id} has not ended in time", code=Code.RESULT_TIMEOUT.value)
            case Err(code=code, message=message):
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
        """Ask an agent in a session of its own: once, however often it is entered, and parked while that works. Like
        `ctx.agent(agent).ask(...)`; or in the session that is named, which is nobody's child.

        Raises:
            SubagentFailed: the agent was stopped or cancelled, or gave no such output.
            StepFailed: the turn of the named session was stopped.
        """
        if session is None:
            client = self.agent(agent)
            return await (
                client.ask(content, name=name) if output is None else client.ask(content, output=output, name=name)
            )
        body = self.durable_effects()
        for given, what in ((agent, "the agent"), (session, "the session id")):
            check_id(given, what=what)
        name = f"{agent}:{body.count(f'ask:{agent}')}" if name is None else name

        async def answer(agent: str, content: str, where: str) -> str:
            opened = await self.runtime.session(where, agent=agent)
            try:
                return await opened.ask(content, key=join("process", self.process_id, "ask", name))
            except Error as problem:
                if problem.code is not Code.TURN_FAILED:
                    raise
                raise ToolError(problem.because or problem.message, code=str(problem.details["reason"])) from None

        return await self.step(f"ask:{name}", answer, agent, content, session, effect="idempotent")

    async def gather(self, *branches: Awaitable[T]) -> list[T]:
        """Do several things at once; if one fails, the others are stopped where they wait, and it is raised. Which one
        failed is recorded, so that the others get no further on a later entry; gathers are told apart by their order.
        """
        return await process_branches.gather(self.durable_effects(), branches)

    async def first(
        self, name: str, /, *, losers: Literal["stop", "leave"] = "stop", **branches: Awaitable[Json]
    ) -> tuple[str, Json]:
        """Whichever of several comes first: its name and its value. Which it was is recorded, and so is what became of
        the `losers`: stopped where they wait, or left to themselves for as long as the function runs. What is stopped
        takes nothing any more: a signal that it waited for is kept for the next wait.

        Raises:
            Error: `invalid_argument` if there is nothing to wait for.
        """
        return await process_branches.first(self.durable_effects(), name, branches, stops=losers == "stop")
