"""A process as others see it: wait for it, look at it, signal it, ask it to end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from msgspec import structs

from perdure.codec import Json, brief, check_text, digest, encode, to_json
from perdure.commit.changes import Intervention
from perdure.commit.plan import Entry
from perdure.effects import keys
from perdure.effects.promises import ProcessScope, unsigned_key
from perdure.errors import Code, Error
from perdure.ids import Seq, StreamId, check_id
from perdure.inbox.admit import Admitted, Conflict, Delivery
from perdure.inbox.items import Wake
from perdure.observe.events import Cursor, Event
from perdure.observe.follow import follow
from perdure.processes.chronology import Moment, chronology
from perdure.processes.commands import OUTPUT, command_of
from perdure.processes.events import CANCEL_REQUESTED, COMPLETED, check_same, check_sayable, signal_type
from perdure.processes.machine import ending
from perdure.processes.record import ProcessRecord, fold_all
from perdure.processes.registration import stream_of, unknown
from perdure.runtime.clock import short_id
from perdure.runtime.processes.cycles import circle_of
from perdure.runtime.processes.events import ProcessEventsClient, checked_event
from perdure.runtime.sessions import answers
from perdure.store.shapes import Resolved
from perdure.tools.durations import seconds
from perdure.tools.given import refuse_unordered
from perdure.vocab.log_keys import ABANDON, PROCESS_END, event_key
from perdure.vocab.promises import Custom, Err
from perdure.vocab.records import AbandonRequested, ProcessEvent, ProcessRegistered, Row
from perdure.vocab.registrations import (
    ProcessFailure,
    ProcessOutput,
    ProcessWasAbandoned,
    ProcessWasCancelled,
    Registration,
    Succeeded,
)

if TYPE_CHECKING:
    from perdure.runtime.runtime import Runtime

MAX_PAYLOAD_BYTES = 262_144


@dataclass(frozen=True, slots=True)
class ProcessWhy:
    """What a process is waiting for: `orphaned` if its worker is gone and nobody else may go on with it."""

    status: Literal["ended", "orphaned", "external", "running", "waiting", "queued"]
    because: str
    code: str = ""
    """`process_wait_cycle` if it waits for what waits for it."""


class ProcessHandle:
    """One process, wherever it runs. Handles are cheap, and any number of them may look at the same one."""

    def __init__(self, runtime: Runtime, id: str) -> None:
        self.runtime = runtime
        self.id = id
        self.stream: StreamId = stream_of(runtime.tenant, id)

    def __repr__(self) -> str:
        return f"ProcessHandle({self.id!r})"

    @property
    def json(self) -> dict[str, Json]:
        """The handle as a value that may be stored or sent."""
        return {"__handle__": "process", "id": self.id}

    # --- looking

    async def record(self) -> ProcessRecord:
        """What is known of it now: a fold of its log.

        Raises:
            Error: `process_unknown`.
        """
        return fold_all(await self.rows())

    async def rows(self) -> tuple[Row, ...]:
        """Its whole log.

        Raises:
            Error: `process_unknown`.
        """
        self.runtime.check_usable()
        rows = await self.runtime.store.read(self.stream)
        if not rows:
            raise unknown(self.id)
        return rows

    async def chronology(self) -> tuple[Moment, ...]:
        """What happened to it, in order.

        Raises:
            Error: `process_unknown`.
        """
        return tuple(chronology(await self.rows()))

    async def events(self, *, after: str = "") -> AsyncIterator[Event]:
        """What happens to it, from a cursor on, endlessly."""
        self.runtime.check_usable()
        start = Cursor.parse(after) if after else Cursor(Seq(0))
        async for one in follow(self.runtime.sources, self.stream, start):
            yield one

    async def wait(self, timeout: float | str | None = None) -> ProcessOutput:
        """How it ended, once that is durable. Cancelling the wait, or its timeout, changes nothing.

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
                f"the process {self.id} is not over after {within} s; it goes on",
                hint="wait again, or look at it: perdure processes show",
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
        """What it returned.

        Raises:
            Error: `process_failed` if it did not: `details["reason"]` says how; `process_unknown`, `result_timeout`.
        """
        return value_of(self.id, await self.wait(timeout))

    async def output(self, stream: str = "stdout") -> str:
        """What a command has printed so far, as far as it is in its log.

        Raises:
            Error: `process_unknown`.
        """
        events = (row.record for row in await self.rows() if row.kind == "process_event")
        said = (one.payload for one in events if isinstance(one, ProcessEvent) and one.event == OUTPUT)
        return "".join(piece["text"] for piece in said if piece["stream"] == stream)

    # --- saying something to it

    async def signal(self, name: str, payload: Json = None, *, id: str | None = None) -> None:
        """Send it a signal, which `ctx.signal(name)` receives; durable when this returns. One that comes before it is
        waited for is kept. The same id and payload again is the same signal.

        Raises:
            Error: `process_signal_invalid`, `process_event_undeclared`, `process_already_terminal`,
                `process_event_conflict`, `process_unknown`, `invalid_json`, `input_too_large`.
        """
        kind = signal_type(name)
        unique = short_id("sig", self.runtime.clock.wall_ms()) if id is None else check_id(id, what="the signal id")
        await self.append(kind, payload, replay=keys.process_signal(self.id, name, unique))

    async def cancel(self, reason: str = "") -> bool:
        """Ask it to end, durably. It does so by itself: what it waits for raises `CancelledError` in it, once, and it
        may clean up. False if it had ended or was asked before.

        Raises:
            Error: `process_unknown`.
        """
        payload: Json = {"reason": check_text(reason, where="the reason")}
        record = await self.record()
        if record.output is not None or record.cancel is not None:
            return False
        replay = keys.process_cancel_request(self.id, brief(digest(payload)))
        return await self.append(CANCEL_REQUESTED, payload, replay=replay)

    async def resolve(self, name: str, value: Json = None, *, error: Err | None = None) -> Resolved:
        """Answer what it awaits as `ctx.event(name)`. The first answer stands.

        Raises:
            Error: `process_unknown`, `invalid_id`, `invalid_json`, `input_too_large`.
        """
        self.runtime.check_usable()
        answer = answers.answer_of(value, error)
        await self._registration()
        key = unsigned_key(ProcessScope(self.runtime.tenant, self.id).id, Custom(key=check_id(name, what="the event")))
        return await answers.resolve(self.runtime, key, answer)

    async def append(
        self,
        kind: str,
        payload: Json,
        *,
        replay: str,
        after_end: bool = False,
        end: ProcessEvent | None = None,
        sends: tuple[Delivery, ...] = (),
    ) -> bool:
        """Append a declared event from outside, once for each replay key, and tell whoever runs the process. One that
        only adds to what is known may come `after_end`. With `end` the process ends in the same transaction, and
        `sends` go to others in it.

        False if it was there already.
        """
        self.runtime.check_usable()
        check_sayable(kind, self.id)
        refuse_unordered(payload, "the payload")
        payload = to_json(payload, where="the payload")
        if (size := len(encode(payload))) > MAX_PAYLOAD_BYTES:
            raise Error(
                Code.INPUT_TOO_LARGE, f"the payload is {size} bytes", because=f"the limit is {MAX_PAYLOAD_BYTES}"
            )
        new = checked_event(await self._registration(), kind, payload, replay)
        if new.output is not None:
            raise Error(
                Code.PROCESS_NOT_EXTERNAL,
                f"the event {kind} ends a process; nothing was written",
                because="only its owner says how it ended",
                hint="handle.complete(...) ends a process that is done outside",
                process=self.id,
            )
        return await self._admit(new, *(() if end is None else (end,)), after_end=after_end, sends=sends)

    @property
    def process_events(self) -> ProcessEventsClient:
        """Its events: emit, count and await them."""
        return ProcessEventsClient(self)

    async def complete(self, value: Json = None, *, event: str = COMPLETED["completed"], key: str = "") -> bool:
        """Say how a process ended that is done outside: with a value, or with a terminal event that it declares. False
        if the same was said before.

        Raises:
            Error: `process_not_external`, `process_already_terminal`, `process_unknown`, and what `append` refuses.
        """
        return await self._admit(await self.ending(value, event=event, key=key))

    async def ending(self, value: Json = None, *, event: str = COMPLETED["completed"], key: str = "") -> ProcessEvent:
        """The end of a process that is done outside, as `complete` would write it."""
        registration = await self._registration()
        if registration.recovery != "externally_owned" or command_of(registration) is not None:
            raise Error(
                Code.PROCESS_NOT_EXTERNAL,
                f"the process {self.id} is run or watched here, so nobody outside can say how it ended",
                process=self.id,
            )
        payload = to_json(value, where="the value")
        new = checked_event(registration, event, payload, key or keys.process_terminal(self.id, event))
        if new.output is None:
            raise Error(Code.INVALID_ARGUMENT, f"the event {event} does not end a process", process=self.id)
        return structs.replace(new, authority="external_owner")

    async def fail(self, code: str, message: str = "") -> bool:
        """Say that a process failed that is done outside."""
        return await self.complete({"code": code, "message": message}, event=COMPLETED["failed"])

    async def abandon(self, reason: str = "", *, by: str = "") -> bool:
        """Give it up: it ends as abandoned once nobody runs it. False if that was asked before.

        Raises:
            Error: `process_already_terminal`, `process_unknown`.
        """
        self.runtime.check_usable()
        record = await self.record()
        if record.output is not None:
            raise Error(Code.PROCESS_ALREADY_TERMINAL, f"the process has ended ({record.ended_as})", process=self.id)
        now = self.runtime.clock.wall_ms()
        asked = AbandonRequested(by=check_text(by, where="the name"), reason=check_text(reason, where="the reason"))
        if command_of(record.known) is not None:  # the only machine whose workers would end it may be gone
            output = ProcessWasAbandoned(reason=asked.reason, by=asked.by)
            return await self._admit(ending(record, output, authority="reconciled_abandon"))
        wake = Delivery(self.stream, ABANDON, ABANDON, Wake(reason=ABANDON), now)
        done = await self.runtime.store.intervene(
            Intervention(self.stream, delivery=wake, notes=(Entry.of(asked, at=now),))
        )
        await self.runtime.tell(self.stream)
        return isinstance(done.admission, Admitted)

    async def delete(self) -> bool:
        """Remove a process that has ended, physically. Its id is not used again, so that keys and handles of it stay
        dead. False if there is none.

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
                hint="cancel it, or abandon it if nobody runs it, and wait for its end",
                process=self.id,
            )
        deleted = await store.delete(self.stream)
        await self.runtime.tell(self.stream)
        return deleted

    async def why(self) -> ProcessWhy:
        """Why nothing happens to it, if nothing does.

        Raises:
            Error: `process_unknown`.
        """
        record, info = await self.record(), await self.runtime.store.stream(self.stream)
        if info is None:
            raise unknown(self.id)
        if record.output is not None:
            return ProcessWhy("ended", f"it has ended: {record.ended_as}")
        worker = record.first_worker if record.known.recovery == "owner_bound" else None
        if worker is not None and not (info.owner == worker and info.owner_alive):
            gone = "is dead" if await self.runtime.store.is_dead(worker) else "is gone"
            because = f"its worker {worker} {gone}, and nobody else may go on with it; nobody knows how far it came"
            return ProcessWhy("orphaned", f"{because}: handle.abandon() ends it")
        if record.known.recovery == "externally_owned":
            return ProcessWhy("external", "it is done outside; handle.complete(...) ends it")
        if (circle := await circle_of(self.runtime.store, self.runtime.tenant, record)) is not None:
            because = f"it waits for what waits for it: {circle.told}; cancel one of them"
            return ProcessWhy("waiting", because, Code.PROCESS_WAIT_CYCLE.value)
        if info.owner is not None and info.owner_alive:
            return ProcessWhy("running", f"the worker {info.owner} has it")
        if record.waiting:
            return ProcessWhy(
                "waiting", f"it waits for {', '.join(wait.effect.partition('/')[2] for wait in record.waiting)}"
            )
        return ProcessWhy("queued", f"no worker that has {record.known.definition} has taken it yet")

    async def _admit(
        self, new: ProcessEvent, *also: ProcessEvent, after_end: bool = False, sends: tuple[Delivery, ...] = ()
    ) -> bool:
        store, now = self.runtime.store, self.runtime.clock.wall_ms()
        source, content = event_key(new.event, new.replay), brief(digest((new.event, new.payload)))
        done = await store.intervene(
            Intervention(
                self.stream,
                delivery=Delivery(self.stream, source, content, Wake(reason=source), now),
                notes=tuple(Entry.of(event, at=now) for event in (new, *also)),
                sends=sends,
                unless=() if after_end else (PROCESS_END,),
            )
        )
        if done.admission is None:  # it has ended; what was said before that is not refused when it is said again
            known = await store.find(self.stream, source) or await store.find(self.stream, PROCESS_END)
            assert known is not None
            assert isinstance(known.record, ProcessEvent)
            check_same(known.record, new, self.id)
            return False
        if isinstance(done.admission, Conflict):
            raise Error(
                Code.PROCESS_EVENT_CONFLICT,
                f"the replay key {new.replay} was used before, for another event; nothing was written",
                process=self.id,
                key=new.replay,
            )
        for stream in (self.stream, *(one.stream for one in sends)):
            await self.runtime.tell(stream)
        return isinstance(done.admission, Admitted)

    async def _registration(self) -> Registration:
        rows = await self.runtime.store.read(self.stream, limit=1)
        if not rows or not isinstance(rows[0].record, ProcessRegistered):
            raise unknown(self.id)
        return rows[0].record.registration


def value_of(process: str, output: ProcessOutput) -> Json:
    """What a process returned.

    Raises:
        Error: `process_failed` if it returned nothing.
    """
    match output:
        case Succeeded(value=value):
            return value
        case ProcessFailure(code=code, message=message):
            raise _failed(process, code, message)
        case ProcessWasCancelled(reason=reason):
            raise _failed(process, "process_cancelled", reason or "its end was asked for")
        case ProcessWasAbandoned(reason=reason):
            raise _failed(process, "process_abandoned", reason or "nobody will go on with it")


def _failed(process: str, code: str, message: str) -> Error:
    return Error(
        Code.PROCESS_FAILED,
        f"the process {process} did not return: {code}",
        because=message,
        process=process,
        reason=code,
    )
