"""Running a process: enter its body, wait with it in memory while that is worth it, park it, record its end.

All that is worth keeping is in its log; what is here are tasks, which a crash may take.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from perdure.codec import Json
from perdure.effects.controller import JournaledController
from perdure.effects.journal import EffectJournal
from perdure.effects.promises import SECRET, ProcessScope
from perdure.errors import Code, Error
from perdure.ids import EffectId, InputId, SessionId, Tenant, TurnId, join
from perdure.inbox.admit import Delivery, delivery
from perdure.inbox.items import Wake
from perdure.processes.events import STEPS_UNUSED, check_same, check_sayable
from perdure.processes.machine import abandoned, cancelled, ending
from perdure.processes.record import ProcessRecord, Signals
from perdure.processes.wakes import wake_of
from perdure.runtime.calls.honesty import LEFT_BEHIND
from perdure.runtime.clock import short_id, uuid7
from perdure.runtime.deps import DepsContext, DepsFailed, TurnDeps
from perdure.runtime.processes.context import ProcessContext
from perdure.runtime.processes.cycles import Circle, circle_of
from perdure.runtime.processes.events import checked_event
from perdure.runtime.processes.function import ProcessCode, RunsHere, SaysFarewell
from perdure.runtime.shared import Shared
from perdure.runtime.turns.flights import Valve
from perdure.runtime.turns.subagents import Subagents, let_go
from perdure.runtime.worker.owned import OwnedStream
from perdure.runtime.worker.patience import Patience
from perdure.runtime.worker.waits import Waits
from perdure.services.secrets import Veil
from perdure.services.spawns import Line
from perdure.tools.body import Body
from perdure.tools.contained import drive, end_of
from perdure.tools.context import CancelToken
from perdure.tools.errors import OutcomeUnknown, ToolError, foremost, message_of, text_of
from perdure.tools.given import MAX_STEP_BYTES
from perdure.tools.places import process_place
from perdure.tools.results import Unstorable, keep
from perdure.tools.threads import Ended, NotStarted, Raised, Returned
from perdure.vocab.outcomes import InDoubt
from perdure.vocab.promises import Err
from perdure.vocab.records import EffectSettled, ProcessEvent, Record
from perdure.vocab.refs import PROCESS_BODY
from perdure.vocab.registrations import ProcessFailure, ProcessOutput, ProcessWasAbandoned, Registration, Succeeded

if TYPE_CHECKING:
    from perdure.runtime.runtime import Runtime

log = logging.getLogger("perdure.runtime")

LOOK_AGAIN_S = 0.1
GRACE_S = 0.1
"""How long a body that is put aside may take to come back."""

INTERNAL = "An internal error occurred in the process"

_NAMED = (
    "step:",
    "sleep:",
    "event:",
    "direct:",
    "start:",
    "wait:",
    "ask:",
    "answer:",
    "first:",
    "process:",
    "trigger:",
)


@dataclass(slots=True)
class Entry:
    """One entry of the body. What it does counts until its valve is shut."""

    body: Body
    valve: Valve
    cancellation: CancelToken
    task: asyncio.Task[Ended] | None = None
    stopped: bool = False
    id: EffectId = field(default=EffectId(PROCESS_BODY))


class ProcessDriver:
    """Drives one process of one owned stream. It is the ledger of its own controller."""

    def __init__(
        self,
        record: ProcessRecord,
        facts: Sequence[Record],
        tenant: Tenant,
        owned: OwnedStream,
        shared: Shared,
        code: RunsHere,
    ) -> None:
        self.record = record
        self.worker = owned.worker
        self.refusal: Error | None = None
        self._registration = record.known
        self._scope = ProcessScope(tenant, self._registration.process_id)
        self._owned = owned
        self._shared = shared
        self._code = code
        journal, self._signals = EffectJournal(), Signals()
        self._emitted = {(fact.event, fact.replay): fact for fact in facts if isinstance(fact, ProcessEvent)}
        for fact in facts:
            journal.fold(fact)
            self._signals.fold(fact)
        self._controller = JournaledController(journal, self)
        self._news = asyncio.Event()
        self._waits = Waits(shared.store, shared.clock, self._news.set, self._signals)
        self._patience = Patience(self._waits, shared.lounge, shared.clock, record.registered_at)
        self._entry: Entry | None = None
        self._ended: Ended | None = None
        self._hurried = False
        self._told = False
        self._heard = False

    # --- the ledger

    def submit(self, *records: Record, sends: tuple[Delivery, ...] = ()) -> None:
        """Hand facts to the stream."""
        for record in records:
            self._signals.fold(record)
        self._owned.submit_all(records, sends=sends)

    def durable(self) -> Awaitable[None]:
        """Wait until everything submitted so far is durable."""
        return self._owned.durable()

    def lease_live(self) -> bool:
        """Whether our lease has certainly not lapsed."""
        return self._owned.lease_live()

    async def reassert(self) -> None:
        """Renew a lapsed lease, or raise `lease_lost`."""
        await self._owned.reassert()

    # --- what it tells others

    def emit(self, name: str, payload: Json, replay: str, *, ours: bool = False) -> None:
        """Append a declared event, once for each replay key, and tell its target session with it if it wakes."""
        if not ours:
            check_sayable(name, self._scope.process)
        new = checked_event(self._registration, name, payload, replay)
        if new.output is not None:
            raise Error(
                Code.INVALID_ARGUMENT,
                f"the event {name} ends the process",
                hint="return, or raise, instead of emitting it",
                process=self._scope.process,
            )
        known = self._emitted.get((name, replay))
        if known is not None:
            check_same(known, new, self._scope.process)
            return
        self._emitted[name, replay] = new
        wake = wake_for(self._shared, self._scope.tenant, self._registration, new)
        self._owned.submit(new, sends=() if wake is None else (wake,))

    # --- what others tell it

    def learn(self, fact: Record, record: ProcessRecord) -> None:
        """Somebody wrote something into its log; `record` has it in."""
        self.record = record
        self._signals.fold(fact)
        self._waits.hand_out()
        self._told = True
        self._hurried = self._hurried or record.abandon is not None
        if record.cancel is not None:
            self._stop()
        self._news.set()

    def _stop(self) -> None:
        """It was asked to end: what it waits for does, once, and nothing new begins unless it cleans up."""
        if self._entry is not None and not self._entry.stopped:
            self._entry.stopped = True
            self._entry.body.life.stop()
            self._entry.cancellation.cancel()
            self._waits.stop()

    def hear(self) -> None:
        """A session that it may wait for has told its end, and what would have woken it is used up."""
        self._heard = True

    async def look(self) -> None:
        """Something that it waits for may have been answered."""
        await self._waits.look()

    def refused(self, error: Error) -> None:
        """The store refused an append: nothing that was begun on top of it counts."""
        self.refusal = error
        self._news.set()

    # --- the loop

    async def run(self) -> bool:
        """Drive the process to its end, and return once that is durable; False once it is durably parked.

        Raises:
            Error: why the store refused to go on.
        """
        self._controller.doubt_unsettled_steps(InDoubt(reason="worker_lost"))
        deps = TurnDeps(self._shared.deps, self._deps_context())
        try:
            await self._enter(deps)
            while True:
                if self.refusal:
                    self.abandon()
                    raise self.refusal
                if self._ended is not None:
                    await self._end(self._ended)
                    return True
                if await self._wait_long_enough():
                    if self.record.abandon is not None:
                        await self._end_abandoned()
                        return True
                    if await self._may_park() and await self._park():
                        await self._look_back()
                        return False
                if self._entry is None:
                    await self._enter(deps)
                self._news.clear()
        finally:
            await deps.close()

    def _deps_context(self) -> DepsContext:
        return DepsContext(SessionId(self._scope.process), self._scope.tenant, self._registration.definition)

    async def _enter(self, deps: TurnDeps) -> None:
        shared, cancellation = self._shared, CancelToken()
        valve = Valve(self)
        secret = await shared.secrets.get(SECRET)
        controller = JournaledController(self._controller.journal, valve)
        waiter = self._waits.of(EffectId(PROCESS_BODY))
        veil = Veil(shared.revealed, self._owned.stream)
        body = Body(process_place(self._scope), controller, waiter, shared.clock, shared.threads, secret, veil)
        stream = self._owned.stream
        body.spawner = Subagents(shared, stream, Line(stream, 0), TurnId(""), self._scope.process, valve)
        entry = self._entry = Entry(body, valve, cancellation)
        if self.record.cancel is not None:
            self._stop()
        entry.task = asyncio.create_task(self._live(entry, deps), name=f"perdure:process:{self._scope.process}")
        entry.task.add_done_callback(lambda _: self._came_back(entry))

    async def _live(self, entry: Entry, deps: TurnDeps) -> Ended:
        async def call() -> object:
            entry.body.life.enter()
            async with deps.use() as given:
                return await self._code.run(self._context(entry, given), self._registration.input)

        ended = await drive(call)
        await entry.body.life.end()
        return ended

    def _context(self, entry: Entry, given: object) -> ProcessContext:
        return ProcessContext(
            process_id=self._scope.process,
            tenant=self._scope.tenant,
            idempotency_key=join("perdure-process", self._scope.tenant, self._scope.process),
            tool_name=self._registration.definition,
            body=entry.body,
            look=lambda: self.record,
            driver=self,
            runtime=cast("Runtime", self._shared.host),
            given=given,
            cancellation=entry.cancellation,
            veil=Veil(self._shared.revealed, self._owned.stream),
        )

    def _came_back(self, entry: Entry) -> None:
        assert entry.task is not None
        if self._entry is entry and not entry.body.life.parked:
            self._ended = end_of(entry.task)
            if (problem := _trouble(self._ended)) is not None:
                self.refused(problem)
        self._news.set()

    async def _wait_long_enough(self) -> bool:
        """Wait for news. True if there is none, and the body has only waited for long enough."""
        if self.refusal or self._ended is not None:
            return False
        if self._entry is None:  # it was abandoned: whoever did that ends this too
            await self._news.wait()
            return False
        patience = self._patience.left_s((self._entry,), hurried=self._hurried)
        once_only = self._registration.recovery == "owner_bound" and self.record.abandon is None
        if patience is None or once_only:  # nobody could enter that again
            await self._news.wait()
            return False
        self._news.clear()  # that is what the news was about
        lounge = self._shared.lounge
        if not self._hurried and patience > 0:
            lounge.sit(self._owned.stream, self._hurry)
        try:
            async with asyncio.timeout(patience):
                await self._news.wait()
        except TimeoutError:
            return not self._news.is_set() and self._patience.left_s((self._entry,), hurried=True) == 0.0
        finally:
            lounge.leave(self._owned.stream)
        return False

    def _hurry(self) -> None:
        self._hurried = True
        self._news.set()

    async def _may_park(self) -> bool:
        """Whether what it waits for can come, as far as its waits are durable. In a circle, whoever sees all others
        parked is refused its wait; the last by name looks again until it does, the others park."""
        if self._waits.count != len(self.record.waiting):
            return True
        me, circle = self._scope.process, await self._circle()
        if circle is None or self._news.is_set():
            return not self._news.is_set()
        if circle.unparked:
            if me > max(circle.unparked):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_AGAIN_S):
                        await self._news.wait()
                return False
            return True
        log.warning("processes wait for each other: %s", circle.told, extra={"process_id": me})
        message = f"the process {me} would wait for ever: {circle.told}"
        self._waits.refuse_ends(Err(code=Code.PROCESS_WAIT_CYCLE.value, message=message))
        await self._news.wait()
        return False

    async def _look_back(self) -> None:
        """It is parked, and so are its waits. If it closed a circle, it shall look at it."""
        circle = await self._circle()
        if circle is not None and not circle.unparked:
            stream, name = self._owned.stream, f"circle:{self.record.seq}"
            wake = delivery(stream, name, Wake(reason=name), at=self._shared.clock.wall_ms())
            await self._shared.store.admit(wake)
            self._shared.host.stir((stream,))

    async def _circle(self) -> Circle | None:
        return await circle_of(self._shared.store, self._scope.tenant, self.record)

    async def _park(self) -> bool:
        """Unwind the body and give the stream up. False if something came meanwhile: then it is entered again."""
        assert self._entry is not None
        self._hurried = self._told = False
        heard, self._heard = self._heard, False
        promises, due_at = self._waits.promises, self._patience.look_again_at((self._entry,))
        await self._unwind()
        self._entry = self._ended = None
        if self._told or heard or self._heard or self.refusal:
            return False  # what would have woken the stream may be used up
        return await self._owned.park(promises, due_at)

    async def _unwind(self) -> None:
        entry = self._entry
        if entry is None or entry.task is None:
            return
        entry.body.life.unwind()
        self._waits.unwind()
        await asyncio.wait({entry.task}, timeout=GRACE_S)
        entry.valve.is_shut = True  # if it does not come back, whatever it still does is refused
        entry.task.cancel()

    # --- how it ends

    async def _end(self, ended: Ended) -> None:
        self._controller.doubt_unsettled_steps(LEFT_BEHIND)
        await self._finish(self._ending(ended), *self._unused(ended))

    async def _end_abandoned(self) -> None:
        """Somebody gave it up, and it only waits: nobody runs it any more."""
        await self._unwind()
        self._entry = None
        await self._finish(abandoned(self.record))

    async def _finish(self, end: ProcessEvent, *before: ProcessEvent) -> None:
        gone = let_go(self._owned.stream, self._effects(), self._shared.clock.wall_ms())
        sends = (*farewell(self._shared, self._scope.tenant, self.record, end), *gone)
        self._owned.submit(*before, end, sends=sends)
        await self._owned.durable()

    def _effects(self) -> Iterator[Record]:
        """What the body began, and what became of it."""
        journal = self._controller.journal
        for id in tuple(journal.ids()):
            if (started := journal.started(id)) is not None:
                yield started
            if (outcome := journal.outcome(id)) is not None:
                yield EffectSettled(id=id, outcome=outcome)

    def _unused(self, ended: Ended) -> tuple[ProcessEvent, ...]:
        """What was recorded, and the code that came to the end does not have any more."""
        body = self._entry.body if self._entry else None
        if not isinstance(ended, Returned) or body is None:
            return ()
        begins = f"{PROCESS_BODY}/"
        names = [id.removeprefix(begins) for id in self._controller.journal.ids() if not body.reached(id)]
        unused: list[str] = [name for name in names if name.startswith(_NAMED)]
        if not unused:
            return ()
        log.warning(
            "the process %s ended without %s, which it has recorded", self._scope.process, ", ".join(unused),
            extra={"process_id": self._scope.process},
        )  # fmt: skip
        return (ProcessEvent(event=STEPS_UNUSED, payload={"steps": unused}, replay="end"),)

    def _ending(self, ended: Ended) -> ProcessEvent:
        match ended:
            case Returned(value=value):
                return ending(self.record, _kept(value))
            case Raised(error=error):
                if isinstance(error, asyncio.CancelledError) and self.record.cancel is not None:
                    return cancelled(self.record)
                return ending(self.record, self._failure(foremost(error)))
            case NotStarted():
                return ending(self.record, ProcessFailure(code="internal_error", message=INTERNAL))

    def _failure(self, error: BaseException) -> ProcessFailure:
        broken = self._entry.body.life.broken if self._entry else None
        if broken is not None:
            error = broken
        if isinstance(error, OutcomeUnknown):
            return ProcessFailure(code="outcome_unknown", message=message_of(error), failure_class="in_doubt")
        if isinstance(error, ToolError):
            code = text_of(error.code).strip() or "process_failed"
            return ProcessFailure(code=code, message=message_of(error), failure_class="declared")
        if isinstance(error, Error):
            return ProcessFailure(code=error.code.value, message=str(error), failure_class="invalid")
        log.error("a process failed", exc_info=error, extra={"process_id": self._scope.process})
        panicked = not isinstance(error, Exception) and not isinstance(error, asyncio.CancelledError)
        code = "process_panicked" if panicked else "internal_error"
        return ProcessFailure(code=code, message=INTERNAL, raw={"error_type": type(error).__name__})

    # --- being given up

    def abandon(self) -> None:
        """Stop what runs, and record nothing more."""
        entry, self._entry = self._entry, None
        if entry is None or entry.task is None:
            return
        self._note_loose(entry)
        entry.body.life.unwind()
        entry.valve.is_shut = True
        self._waits.unwind()
        entry.task.cancel()

    def _note_loose(self, entry: Entry) -> None:
        if entry.body.life.running:
            self._shared.loose_ends.note()

    def forbid_starts(self) -> None:
        """The worker stops: tell the body."""
        if self._entry is not None:
            self._entry.cancellation.cancel()

    async def drain(self) -> None:
        """Hand it over: running `once` steps are in doubt. Nobody else may go on with an owner-bound one."""
        if self._entry is not None:
            self._note_loose(self._entry)
        await self._unwind()
        self._controller.doubt_unsettled_steps(InDoubt(reason="drained", message="the worker was stopped"))
        if self._registration.recovery == "owner_bound" and self._ended is None:
            reason = "its worker was stopped"
            end = ending(self.record, ProcessWasAbandoned(by=self.worker, reason=reason), authority="owner_drain")
            gone = let_go(self._owned.stream, self._effects(), self._shared.clock.wall_ms())
            self._owned.submit(end, sends=(*farewell(self._shared, self._scope.tenant, self.record, end), *gone))
            self._owned.active = False


def wake_for(shared: Shared, tenant: Tenant, registration: Registration, event: ProcessEvent) -> Delivery | None:
    """What the target session is told of an event, if it is to be told."""
    now = shared.clock.wall_ms()
    turn, input = TurnId(uuid7(now)), InputId(short_id("in", now))
    return wake_of(tenant, registration, event, at=now, turn=turn, input=input)


def farewell(shared: Shared, tenant: Tenant, record: ProcessRecord, end: ProcessEvent) -> tuple[Delivery, ...]:
    """What is sent in the transaction in which a process ends: its wake, and whatever its code wants to tell."""
    wake, code = wake_for(shared, tenant, record.known, end), shared.processes.get(record.known.definition)
    wakes = () if wake is None else (wake,)
    if end.output is None or not isinstance(code, SaysFarewell):
        return wakes
    return (*wakes, *code.farewell(record, end.output, tenant, shared.clock.wall_ms()))


def code_for(shared: Shared, record: ProcessRecord) -> ProcessCode:
    """What runs a process here.

    Raises:
        Error: `process_definition_unknown`.
    """
    definition = record.known.definition
    code = shared.processes.get(definition)
    if code is None:
        raise Error(
            Code.PROCESS_DEFINITION_UNKNOWN,
            f"this runtime cannot run a process of {definition!r}",
            because=f"it has {', '.join(sorted(shared.processes)) or 'none'}",
            hint="start a worker that has it: Runtime(processes=[...]); the process waits",
            process=record.known.process_id,
        )
    return code


def _trouble(ended: Ended) -> Error | None:
    """What is not the process's own fault, and may be over when it is tried again."""
    match ended:
        case Raised(error=DepsFailed()):
            return Error(Code.PROCESS_FAILED, "the dependencies of a process could not be made")
        case Raised(error=Error() as problem) if problem.retry == "later":
            return problem
        case _:
            return None


def _kept(value: object) -> ProcessOutput:
    kept = keep(value)
    if isinstance(kept, Unstorable):
        message = f"the process returned what cannot be stored, at {kept.path}: {kept.reason}"
        return ProcessFailure(code="process_result_invalid", message=message, failure_class="invalid")
    if kept.size > MAX_STEP_BYTES:
        message = f"the process returned {kept.size} bytes; at most {MAX_STEP_BYTES} are kept"
        return ProcessFailure(code="process_result_too_large", message=message, failure_class="invalid")
    return Succeeded(value=kept.value)
