"""`ctx.processes` of one call: process commands, as effects of the tool."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, cast

import msgspec
from msgspec import structs

from perdure.codec import Json, decode, encode
from perdure.effects import keys
from perdure.effects.promises import ProcessScope
from perdure.errors import Code
from perdure.ids import join
from perdure.processes.registration import environment
from perdure.runtime.calls.clients import CallSite, visibly
from perdure.runtime.processes import edges
from perdure.runtime.processes.admin import PAGE, CancelSource, Listed, list_processes, release
from perdure.runtime.processes.events import info_of
from perdure.runtime.processes.function import ProcessFunction, name_of
from perdure.runtime.processes.handle import ProcessHandle
from perdure.runtime.processes.starting import python_process, register
from perdure.tools.context import ToolContext, origin_of
from perdure.tools.durations import seconds
from perdure.tools.errors import ToolError
from perdure.tools.step_outcomes import EventFailed, EventTimedOut
from perdure.vocab.blobs import Blob
from perdure.vocab.causes import ToolCallCause
from perdure.vocab.log_keys import event_key
from perdure.vocab.processes import (
    CancelProcess,
    DeleteSessionEdges,
    ListProcesses,
    ProcessCancelled,
    ProcessCommand,
    ProcessesListed,
    ProcessesTransferred,
    ProcessListMode,
    ProcessOutcome,
    ProcessSignalled,
    ProcessStarted,
    SessionEdgesDeleted,
    SessionScope,
    SignalProcess,
    StartProcess,
    TransferProcesses,
)
from perdure.vocab.promises import Cancelled, Failure, Ok, TimedOut
from perdure.vocab.records import ProcessEvent
from perdure.vocab.registrations import EngineInput, Provenance, Registration

if TYPE_CHECKING:
    from perdure.runtime.core import RuntimeCore

TOOL_REASON = "requested by tool"


CheckStart: TypeAlias = Callable[[Collection[str], str], Awaitable[None]]
"""Raises if a process that is itself the caller may not start another one beside those that it started."""


@dataclass(slots=True)
class RunLocal:
    """The processes that one call has started, which it may use regardless of their visibility."""

    started: set[str] = field(default_factory=set[str])
    counted: Counter[str] = field(default_factory=Counter[str])


class ProcessesClient:
    """`ctx.processes` of one call. Commands are recorded if its body is resumable, else deduplicated by keys of the
    call."""

    def __init__(
        self,
        runtime: RuntimeCore,
        ctx: ToolContext[object],
        site: CallSite,
        local: RunLocal,
        check_start: CheckStart | None = None,
    ) -> None:
        self._rt = runtime
        self._ctx = ctx
        self._origin = origin_of(ctx)
        self._body = self._origin.body
        self._site = site
        self._local = local
        self._check_start = check_start
        self._scope = SessionScope(session_id=ctx.session_id, frame_id=self._origin.agent_frame_id)

    # --- starting

    async def start(
        self,
        process: object,
        /,
        *args: object,
        id: str | None = None,
        label: str = "",
        wake_on_end: bool = False,
        **kwargs: object,
    ) -> dict[str, Json]:
        """Start a process that belongs to this session."""
        with visibly():
            asked, env = self._asked(process, args, dict(kwargs), id, label)
            if self._check_start is not None:
                await self._check_start(self._local.started, asked.process_id)
        asked = structs.replace(asked, wake_on_end=wake_on_end or asked.wake_on_end)
        command = StartProcess(process_id=asked.process_id, registration=decode(encode(asked)))

        async def perform() -> ProcessOutcome:
            handle = await register(self._rt, asked, env=env)
            return ProcessStarted(record=handle.to_json())

        started = await self._do(command, perform)
        assert isinstance(started, ProcessStarted)
        self._local.started.add(asked.process_id)
        self._origin.emit_child_process_started(asked.process_id, asked.definition)
        return cast("dict[str, Json]", started.record)

    def _asked(
        self, process: object, args: tuple[object, ...], kwargs: dict[str, object], id: str | None, label: str
    ) -> tuple[Registration, Blob | None]:
        mine = Provenance(
            originator=self._scope,
            parent=self._origin.runtime_process_id or "",
            caused_by=ToolCallCause(session_id=self._ctx.session_id, call_id=self._ctx.call_id),
        )
        if isinstance(process, Registration):
            asked, blob = process, None
            if isinstance(asked.input, EngineInput) and not asked.env:
                env, blob = environment({}, {})
                asked = structs.replace(asked, env=env)
            return structs.replace(asked, provenance=mine, wake_target=asked.wake_target or self._scope), blob
        if not isinstance(process, ProcessFunction | str):
            raise ToolError("A process must be a function, its name, or a registration", code="invalid_argument")
        self._local.counted["start"] += 1
        derived = join(self._ctx.tenant, self._ctx.session_id, self._ctx.call_id, str(self._local.counted["start"]))
        name = f"prc_{hashlib.sha256(derived.encode()).hexdigest()[:24]}" if id is None else id
        return python_process(
            self._rt, process, args, kwargs, id=name, label=label, provenance=mine, wake_target=self._scope
        )

    async def complete_external(self, handle: Json, value: Json = None) -> None:
        """End an externally owned process."""
        self._site.check_running()
        with visibly():
            await (await self._visible(handle)).complete(value)

    # --- reading

    async def await_process(self, handle: Json, *, timeout: float | str | None = None) -> Json:
        """Wait for the end of a process, and return its outcome."""
        with visibly():
            within = seconds(timeout)
            target = await self._visible(handle)
            if self._body is None:
                return decode(encode(await target.wait(within)))
        scope = ProcessScope(self._ctx.tenant, target.id)
        limit = None if within is None else round(within * 1000)
        match await self._body.ended(scope.id, target.id, limit):
            case Ok(value=output):
                return output
            case TimedOut():
                raise EventTimedOut(f"the process {target.id} has not ended in time", code=Code.RESULT_TIMEOUT.value)
            case Failure(code=code, message=message):
                raise EventFailed(message, code=code)
            case Cancelled():
                raise EventFailed("the wait was cancelled", code=Code.DURABLE_EFFECT_EVENT_CANCELLED.value)

    async def list_handles(self) -> tuple[Json, ...]:
        """Return the visible live processes."""
        return await self._list("live")

    async def list_all_handles(self) -> tuple[Json, ...]:
        """Return all visible processes."""
        return await self._list("all")

    async def list_handles_filtered(
        self, *, definition: str | None = None, status: str | None = None
    ) -> tuple[Json, ...]:
        """Return the visible processes of one definition, or in one status.

        The definition of a function is its name, as in `start`.
        """
        wanted = None if definition is None else name_of(definition)
        return tuple(
            one
            for one in await self._list("all")
            if wanted in (None, name_of(one["definition"])) and status in (None, one["status"])
        )

    async def _list(self, mode: ProcessListMode) -> tuple[Json, ...]:
        command = ListProcesses(session_scope=self._scope, mode=mode)

        async def perform() -> ProcessOutcome:
            found: list[Json] = []
            before: int | None = None
            while page := await list_processes(self._rt, mode, scope=self._scope, limit=PAGE, before=before):
                found += [_entry(one) for one in page]
                before = page[-1].place
            return ProcessesListed(entries=tuple(found))

        listed = await self._do(command, perform)
        assert isinstance(listed, ProcessesListed)
        return listed.entries

    async def validate_handles(self, *handles: Json) -> tuple[str, ...]:
        """Return the ids of handles, if all are visible here."""
        with visibly():
            return tuple([(await self._visible(handle)).id for handle in handles])

    # --- control

    async def signal(self, handle: Json, name: str, payload: Json = None) -> Json:
        """Send a signal to a process."""
        with visibly():
            target = self._rt.processes.from_json(handle)
        self._local.counted[f"{target.id}:{name}"] += 1
        nth = self._local.counted[f"{target.id}:{name}"]
        signal_id = self._ctx.call_id if nth == 1 else f"{self._ctx.call_id}:{nth}"
        command = SignalProcess(process_id=target.id, signal_name=name, signal_id=signal_id, payload=payload)

        async def perform() -> ProcessOutcome:
            seen = await self._visible(handle)
            await seen.signal(name, payload, id=signal_id)
            replay = keys.process_signal(seen.id, name, signal_id)
            row = await self._rt.store.find(seen.stream, event_key(f"signal.{name}", replay))
            assert row is not None
            assert isinstance(row.record, ProcessEvent)
            return ProcessSignalled(event=msgspec.to_builtins(info_of(seen.id, row)))

        sent = await self._do(command, perform)
        assert isinstance(sent, ProcessSignalled)
        return sent.event

    async def cancel(self, handle: Json, reason: str = TOOL_REASON) -> bool:
        """Request the end of a process."""
        with visibly():
            target = self._rt.processes.from_json(handle)
        command = CancelProcess(process_id=target.id, reason=reason)

        async def perform() -> ProcessOutcome:
            seen = await self._visible(handle)
            asked = await self._rt.processes.cancel(seen, reason, source=self._source)
            return ProcessCancelled(record={"process_id": seen.id, "requested": asked})

        done = await self._do(command, perform)
        assert isinstance(done, ProcessCancelled)
        return bool(done.record["requested"])

    async def cancel_all(self, reason: str = TOOL_REASON) -> int:
        """Request the end of all visible processes."""
        return sum([await self.cancel(one["handle"], reason) for one in await self.list_handles()])

    async def cancel_unreferenced_handles(self, *keep: Json) -> int:
        """Request the end of all visible processes, except these."""
        with visibly():
            kept = {self._rt.processes.from_json(value).id for value in keep}
        rest = [one for one in await self.list_handles() if one["handle"]["id"] not in kept]
        return sum([await self.cancel(one["handle"]) for one in rest])

    @property
    def _source(self) -> CancelSource:
        return "tool" if self._origin.runtime_process_id is None else "process"

    # --- visibility

    async def transfer_handles(self, session: str, *handles: Json) -> None:
        """Move the visibility of processes to another session."""
        await self._transfer(SessionScope(session_id=session), handles)

    async def transfer_handles_to_frame(self, frame: str, *handles: Json) -> None:
        """Move the visibility of processes to a frame of this session."""
        await self._transfer(SessionScope(session_id=self._scope.session_id, frame_id=frame), handles)

    async def _transfer(self, to: SessionScope, handles: tuple[Json, ...]) -> None:
        if not handles:
            return
        with visibly():
            targets = [self._rt.processes.from_json(value) for value in handles]
        command = TransferProcesses(
            from_scope=self._scope, to_scope=to, process_ids=tuple(target.id for target in targets)
        )
        replay = join(self._ctx.call_id, command.effect_id)

        async def perform() -> ProcessOutcome:
            known = await self._rt.store.find(targets[0].stream, event_key("process.observer_added", replay))
            if known is None:  # no earlier attempt made the transfer
                for one in targets:
                    await self._check(one)
                await edges.check_session(self._rt, to)
            await edges.move(self._rt, targets, self._scope, to, replay=replay)
            return ProcessesTransferred()

        await self._do(command, perform)

    async def release_session(self, session: str) -> int:
        """Remove the visibility of all processes in a session."""
        command = DeleteSessionEdges(session_id=session)

        async def perform() -> ProcessOutcome:
            released = await release(self._rt, SessionScope(session_id=session))
            return SessionEdgesDeleted(report={"session_id": session, "released": released})

        done = await self._do(command, perform)
        assert isinstance(done, SessionEdgesDeleted)
        return int(done.report["released"])

    # --- execution

    async def _visible(self, handle: Json) -> ProcessHandle:
        found = self._rt.processes.from_json(handle)
        await self._check(found)
        return found

    async def _check(self, handle: ProcessHandle) -> None:
        if handle.id in self._local.started and await self._rt.store.stream(handle.stream) is not None:
            return
        await edges.check_visible(self._rt, [handle], self._scope)

    async def _do(self, command: ProcessCommand, perform: Callable[[], Awaitable[ProcessOutcome]]) -> ProcessOutcome:
        self._site.check_running()
        with visibly():
            if self._body is None:
                return await perform()
            nth = self._body.count(f"process:{command.effect_id}")
            name = command.effect_id if nth == 1 else f"{command.effect_id}#{nth}"
            return await self._body.command("process", name, command, perform, again=nth)


def _entry(one: Listed) -> Json:
    asked = one.registration
    return {
        "handle": one.handle.to_json(),
        "definition": name_of(asked.definition),
        "kind": asked.kind,
        "label": asked.label,
        "status": one.status,
    }
