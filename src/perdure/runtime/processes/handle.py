"""A handle to a process: wait for it, read it, signal it, cancel it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from msgspec import structs

from perdure.codec import Json, brief, check_text, digest, encode, to_json
from perdure.commit.changes import Audit, Intervention
from perdure.commit.plan import Entry
from perdure.effects import keys
from perdure.effects.promises import ProcessScope, unsigned_key
from perdure.errors import Code, Error
from perdure.ids import Seq, StreamId, check_id
from perdure.inbox.admit import Admitted, Conflict, Delivery
from perdure.inbox.items import Wake
from perdure.observe.command_lines import command_line
from perdure.observe.events import Cursor, Event
from perdure.observe.follow import follow
from perdure.offload import offload, weight_of
from perdure.processes.chronology import Moment, timeline
from perdure.processes.commands import OUTPUT, command_of
from perdure.processes.events import CANCEL_REQUESTED, COMPLETED, check_same, check_sayable, signal_type
from perdure.processes.machine import ending
from perdure.processes.record import ProcessRecord, fold_all
from perdure.processes.registration import stream_of, unknown
from perdure.runtime.audit import act, actor
from perdure.runtime.clock import short_id
from perdure.runtime.processes.cycles import find_wait_cycle
from perdure.runtime.processes.events import checked_event
from perdure.runtime.sessions import answers
from perdure.store.shapes import Resolved
from perdure.tools.durations import seconds
from perdure.tools.step_arguments import refuse_unordered
from perdure.vocab.audit import ActRecorded
from perdure.vocab.log_keys import ABANDON, PROCESS_END, event_key
from perdure.vocab.promises import Custom, Failure
from perdure.vocab.records import AbandonRequested, ProcessEvent, ProcessRegistered, Row
from perdure.vocab.registrations import (
    ProcessFailure,
    ProcessOutput,
    ProcessSucceeded,
    ProcessWasAbandoned,
    ProcessWasCancelled,
    Registration,
)

if TYPE_CHECKING:
    from perdure.runtime.core import RuntimeCore

MAX_PAYLOAD_BYTES = 262_144


@dataclass(frozen=True, slots=True)
class ProcessWhy:
    """The state of a process and its reason. `orphaned`: its worker is gone and no other worker may continue it."""

    status: Literal["ended", "orphaned", "external", "running", "waiting", "queued"]
    because: str
    code: str = ""
    """`process_wait_cycle` if the process is part of a deadlock."""


class ProcessHandle:
    """One process, on any worker. Handles are cheap; many may refer to the same process."""

    def __init__(self, runtime: RuntimeCore, id: str) -> None:
        self.runtime = runtime
        self.id = id
        self.stream: StreamId = stream_of(runtime.tenant, id)

    def __repr__(self) -> str:
        return f"ProcessHandle({self.id!r})"

    def to_json(self) -> dict[str, Json]:
        """Return the handle as a value that may be stored or sent."""
        return {"__handle__": "process", "id": self.id}

    # --- reading

    async def info(self) -> ProcessRecord:
        """Return the current record: a fold of the log.

        Raises:
            Error: `process_unknown`.
        """
        return fold_all(await self.journal())

    async def journal(self) -> tuple[Row, ...]:
        """Return the whole log.

        Raises:
            Error: `process_unknown`.
        """
        self.runtime.check_usable()
        rows = await self.runtime.store.read(self.stream)
        if not rows:
            raise unknown(self.id)
        return rows

    async def timeline(self) -> tuple[Moment, ...]:
        """Return the history of the process, in order.

        Raises:
            Error: `process_unknown`.
        """
        return tuple(timeline(await self.journal()))

    async def events(self, *, after: str = "") -> AsyncIterator[Event]:
        """Yield the events of the process from a cursor on, endlessly."""
        self.runtime.check_usable()
        start = Cursor.parse(after) if after else Cursor(Seq(0))
        async for one in follow(self.runtime.sources, self.stream, start):
            yield one

    async def wait(self, timeout: float | str | None = None) -> ProcessOutput:
        """Wait for the durable end of the process, and return its outcome. Cancelling the wait, or its timeout, changes
        nothing.

        Raises:
            Error: `process_unknown`, `result_timeout`.
        """
        self.runtime.check_usable()
        within = seconds(timeout)
        try:
            async with asyncio.timeout(within):
                return await self._ended()
        except TimeoutError:
            raise Error(
                Code.RESULT_TIMEOUT,
                f"the process {self.id} has not ended after {within} s; it goes on",
                hint="perdure processes show",
                process=self.id,
            ) from None

    async def _ended(self) -> ProcessOutput:
        store = self.runtime.store
        with self.runtime.hub.subscribe(self.stream, live=False) as news:
            while True:
                row = await store.find(self.stream, PROCESS_END)
                if row is not None and isinstance(row.record, ProcessEvent) and row.record.output is not None:
                    return row.record.output
                if await store.stream(self.stream) is None:
                    raise unknown(self.id)
                await news.wait()

    async def result(self, timeout: float | str | None = None) -> Json:
        """Wait for the end of the process, and return its value.

        Raises:
            Error: `process_failed` if the process returned no value, with the outcome in `details["reason"]`;
                `process_unknown`, `result_timeout`.
        """
        return value_of(self.id, await self.wait(timeout))

    async def output(self, stream: str = "stdout") -> str:
        """Return the output of a command so far, as recorded in its log.

        Raises:
            Error: `process_unknown`.
        """
        events = (row.record for row in await self.journal() if row.kind == "process_event")
        said = (one.payload for one in events if isinstance(one, ProcessEvent) and one.event == OUTPUT)
        return "".join(piece["text"] for piece in said if piece["stream"] == stream)

    # --- control

    async def signal(self, name: str, payload: Json = None, *, id: str | None = None) -> None:
        """Send a signal, which `ctx.wait_for_signal(name)` receives. Durable when this returns.

        A signal that arrives before its wait is kept. The same id and payload again is the same signal.

        Raises:
            Error: `process_signal_invalid`, `process_event_undeclared`, `process_already_terminal`,
                `process_event_conflict`, `process_unknown`, `invalid_json`, `input_too_large`.
        """
        kind = signal_type(name)
        unique = short_id("sig", self.runtime.clock.wall_ms()) if id is None else check_id(id, what="the signal id")
        await self.append_event(kind, payload, replay=keys.process_signal(self.id, name, unique))

    async def cancel(self, reason: str = "", *, by: str = "", via: str = "api") -> bool:
        """Request the end of the process, durably. False if it had ended, or the request was made before.

        The body's current wait raises `CancelledError`, once; the body may clean up.

        Raises:
            Error: `process_unknown`.
        """
        payload: Json = {"reason": check_text(reason, where="the reason")}
        done = act("process_cancelled", actor(by, via), target=self.id)
        record = await self.info()
        if record.output is not None or record.cancel is not None:
            return False
        replay = keys.process_cancel_request(self.id, brief(digest(payload)))
        new = await self._declared(CANCEL_REQUESTED, payload, replay)
        return await self._admit(new, audit=await self._audited(done))

    async def resolve(self, name: str, value: Json = None, *, error: Failure | None = None) -> Resolved:
        """Resolve `ctx.wait_for_event(name)` of the process. The first resolution wins.

        Raises:
            Error: `process_unknown`, `invalid_id`, `invalid_json`, `input_too_large`.
        """
        self.runtime.check_usable()
        answer = await answers.answer_of(value, error)
        await self._registration()
        key = unsigned_key(ProcessScope(self.runtime.tenant, self.id).id, Custom(key=check_id(name, what="the event")))
        return await answers.resolve(self.runtime, key, answer)

    async def append_event(
        self,
        kind: str,
        payload: Json,
        *,
        replay: str,
        after_end: bool = False,
        end: ProcessEvent | None = None,
        outbox: tuple[Delivery, ...] = (),
    ) -> bool:
        """Append a declared event from outside, once per replay key, and notify the owner. False if it was known.

        `after_end` allows an event after the end of the process. `end` ends the process in the same transaction, and
        `outbox` are delivered with it.
        """
        new = await self._declared(kind, payload, replay)
        if new.output is not None:
            raise Error(
                Code.PROCESS_NOT_EXTERNAL,
                f"the event {kind} ends a process; nothing was written",
                because="only its owner may end it",
                hint="handle.complete(...) ends an externally owned process",
                process=self.id,
            )
        return await self._admit(new, *(() if end is None else (end,)), after_end=after_end, outbox=outbox)

    async def _declared(self, kind: str, payload: Json, replay: str) -> ProcessEvent:
        """Return an event from outside, checked."""
        self.runtime.check_usable()
        check_sayable(kind, self.id)
        payload = await offload(weight_of(payload), _payload, payload)
        return await checked_event(await self._registration(), kind, payload, replay)

    async def complete(self, value: Json = None, *, event: str = COMPLETED["completed"], key: str = "") -> bool:
        """End an externally owned process with a value, or with a terminal event that it declares.

        False if the same end was recorded before.

        Raises:
            Error: `process_not_external`, `process_already_terminal`, `process_unknown`, and the errors of `append`.
        """
        return await self._admit(await owners_end(self, value, event=event, key=key))

    async def fail(self, code: str, message: str = "") -> bool:
        """End an externally owned process as failed."""
        return await self.complete({"code": code, "message": message}, event=COMPLETED["failed"])

    async def abandon(self, reason: str = "", *, by: str = "", via: str = "api") -> bool:
        """Request that the process ends as abandoned, once no worker runs it. False if that was requested before.

        Raises:
            Error: `process_already_terminal`, `process_unknown`.
        """
        self.runtime.check_usable()
        record = await self.info()
        if record.output is not None:
            raise Error(Code.PROCESS_ALREADY_TERMINAL, f"the process has ended ({record.ended_as})", process=self.id)
        audit = await self._audited(act("process_abandoned", actor(by, via), target=self.id))
        now = self.runtime.clock.wall_ms()
        asked = AbandonRequested(by=check_text(by, where="the name"), reason=check_text(reason, where="the reason"))
        if command_of(record.known) is not None:  # the only machine whose workers could end it may be gone
            output = ProcessWasAbandoned(reason=asked.reason, by=asked.by)
            return await self._admit(ending(record, output, authority="reconciled_abandon"), audit=audit)
        wake = Delivery(self.stream, ABANDON, ABANDON, Wake(reason=ABANDON), now)
        done = await self.runtime.store.intervene(
            Intervention(self.stream, delivery=wake, notes=(Entry.of(asked, at=now),), audit=audit)
        )
        await self.runtime.notify_stream(self.stream)
        return isinstance(done.admission, Admitted)

    async def delete(self, *, by: str = "", via: str = "api") -> bool:
        """Delete a process that has ended, physically. False if there is none.

        Its id is not used again, so its keys and handles stay invalid.

        Raises:
            Error: `process_not_ended`. Nothing was removed.
        """
        self.runtime.check_usable()
        store = self.runtime.store
        if await store.stream(self.stream) is None:
            return False
        if await store.find(self.stream, PROCESS_END) is None:
            raise Error(
                Code.PROCESS_NOT_ENDED,
                f"the process {self.id} has not ended; nothing was removed",
                hint="await handle.cancel(), or handle.abandon() if its worker is gone",
                process=self.id,
            )
        audit = await self._audited(act("process_deleted", actor(by, via), target=self.id))
        deleted = await store.delete(self.stream, audit=audit)
        await self.runtime.notify_stream(self.stream)
        return deleted

    async def why(self) -> ProcessWhy:
        """Explain the state of the process.

        Raises:
            Error: `process_unknown`.
        """
        record, info = await self.info(), await self.runtime.store.stream(self.stream)
        if info is None:
            raise unknown(self.id)
        if record.output is not None:
            return ProcessWhy("ended", f"ended: {record.ended_as}")
        worker = record.first_worker if record.known.recovery == "owner_bound" else None
        if worker is not None and not (info.owner == worker and info.owner_alive):
            gone = "is dead" if await self.runtime.store.is_dead(worker) else "is gone"
            because = f"its worker {worker} {gone}, and no other worker may continue it; its progress is unknown"
            return ProcessWhy("orphaned", f"{because}: handle.abandon() ends it")
        if record.known.recovery == "externally_owned":
            return ProcessWhy("external", "externally owned; handle.complete(...) ends it")
        if (cycle := await find_wait_cycle(self.runtime.store, self.runtime.tenant, record)) is not None:
            because = f"deadlock: {cycle.description}; cancel one of them"
            return ProcessWhy("waiting", because, Code.PROCESS_WAIT_CYCLE.value)
        if info.owner is not None and info.owner_alive:
            return ProcessWhy("running", f"worker {info.owner} runs it")
        if record.waiting:
            return ProcessWhy(
                "waiting", f"waits for {', '.join(wait.effect.partition('/')[2] for wait in record.waiting)}"
            )
        return ProcessWhy("queued", f"no worker with {record.known.definition} has claimed it yet")

    async def _admit(
        self,
        new: ProcessEvent,
        *also: ProcessEvent,
        after_end: bool = False,
        outbox: tuple[Delivery, ...] = (),
        audit: Audit = (),
    ) -> bool:
        store, now = self.runtime.store, self.runtime.clock.wall_ms()
        source, content = event_key(new.event, new.replay), brief(digest((new.event, new.payload)))
        done = await store.intervene(
            Intervention(
                self.stream,
                delivery=Delivery(self.stream, source, content, Wake(reason=source), now),
                notes=tuple(Entry.of(event, at=now) for event in (new, *also)),
                outbox=outbox,
                unless=() if after_end else (PROCESS_END,),
                audit=audit,
            )
        )
        if done.admission is None:  # the process has ended; a repeated earlier event is not refused
            known = await store.find(self.stream, source) or await store.find(self.stream, PROCESS_END)
            assert known is not None
            assert isinstance(known.record, ProcessEvent)
            check_same(known.record, new, self.id)
            return False
        if isinstance(done.admission, Conflict):
            raise Error(
                Code.PROCESS_EVENT_CONFLICT,
                f"the replay key {new.replay} was used for another event; nothing was written",
                process=self.id,
                key=new.replay,
            )
        for stream in (self.stream, *(one.stream for one in outbox)):
            await self.runtime.notify_stream(stream)
        return isinstance(done.admission, Admitted)

    async def _audited(self, done: ActRecorded) -> Audit:
        return await self.runtime.audit_log.notes(self.runtime.tenant, done)

    async def _registration(self) -> Registration:
        rows = await self.runtime.store.read(self.stream, limit=1)
        if not rows or not isinstance(rows[0].record, ProcessRegistered):
            raise unknown(self.id)
        return rows[0].record.registration


def value_of(process: str, output: ProcessOutput) -> Json:
    """Return the value of a process.

    Raises:
        Error: `process_failed` if the process returned no value.
    """
    match output:
        case ProcessSucceeded(value=value):
            return value
        case ProcessFailure(code=code, message=message):
            raise _failed(process, code, message)
        case ProcessWasCancelled(reason=reason):
            raise _failed(process, "process_cancelled", reason or "the process was cancelled")
        case ProcessWasAbandoned(reason=reason):
            raise _failed(process, "process_abandoned", reason or "the process was abandoned")


def _failed(process: str, code: str, message: str) -> Error:
    return Error(
        Code.PROCESS_FAILED,
        f"process {process} failed: {code}",
        because=message,
        hint=command_line("processes show", process),
        process=process,
        reason=code,
    )


async def owners_end(
    handle: ProcessHandle, value: Json = None, *, event: str = COMPLETED["completed"], key: str = ""
) -> ProcessEvent:
    """Return the end of an externally owned process, as `handle.complete` appends it."""
    registration = await handle._registration()  # pyright: ignore[reportPrivateUsage] - for tasks too
    if registration.recovery != "externally_owned" or command_of(registration) is not None:
        raise Error(
            Code.PROCESS_NOT_EXTERNAL,
            f"the process {handle.id} is run or watched here, so only its worker can end it",
            process=handle.id,
        )
    payload = to_json(value, where="the value")
    new = await checked_event(registration, event, payload, key or keys.process_terminal(handle.id, event))
    if new.output is None:
        raise Error(Code.INVALID_ARGUMENT, f"the event {event} does not end a process", process=handle.id)
    return structs.replace(new, authority="external_owner")


def _payload(payload: Json) -> Json:
    """Return the payload of an event from outside as plain JSON."""
    refuse_unordered(payload, "the payload")
    payload = to_json(payload, where="the payload")
    if (size := len(encode(payload))) > MAX_PAYLOAD_BYTES:
        raise Error(Code.INPUT_TOO_LARGE, f"the payload is {size} bytes", because=f"the limit is {MAX_PAYLOAD_BYTES}")
    return payload
