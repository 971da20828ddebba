"""The execution of a process: enter its body, wait with it in memory, park it, record its end.

Durable state is in the log. The tasks here may be lost in a crash.
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
from perdure.processes.events import event as event_of
from perdure.processes.machine import abandoned, cancelled, ending
from perdure.processes.record import PendingSignals, ProcessRecord
from perdure.processes.wakes import wake_of
from perdure.runtime.calls.failure_context import LEFT_BEHIND
from perdure.runtime.clock import short_id, uuid7
from perdure.runtime.deps import DepsContext, DepsFailed, TurnDeps
from perdure.runtime.processes.context import ProcessContext, ProcessWiring
from perdure.runtime.processes.cycles import WaitCycle, find_wait_cycle
from perdure.runtime.processes.events import checked_event
from perdure.runtime.processes.function import NotifiesOnEnd, ProcessCode, RunsHere
from perdure.runtime.processes.purchases import charges, lost_calls
from perdure.runtime.processes.session_context import OwnerContext
from perdure.runtime.shared import Shared
from perdure.runtime.turns.in_flight import WriteGuard
from perdure.runtime.turns.subagents import Subagents, let_go
from perdure.runtime.worker.idle_policy import IdlePolicy
from perdure.runtime.worker.owned import OwnedStream
from perdure.runtime.worker.waits import Waits
from perdure.services.spawns import Lineage
from perdure.tools.body import Body
from perdure.tools.body_scope import process_place
from perdure.tools.contained import drive, end_of
from perdure.tools.context import Cancellation
from perdure.tools.errors import OutcomeUnknown, ToolError, foremost, message_of, text_of
from perdure.tools.results import Unstorable, keep
from perdure.tools.step_arguments import MAX_STEP_BYTES
from perdure.tools.threads import Ended, NotStarted, Raised, Returned
from perdure.vocab.outcomes import InDoubt
from perdure.vocab.promises import Failure
from perdure.vocab.records import EffectSettled, ProcessEvent, Record
from perdure.vocab.refs import PROCESS_BODY
from perdure.vocab.registrations import (
    ProcessFailure,
    ProcessOutput,
    ProcessSucceeded,
    ProcessWasAbandoned,
    Registration,
)

if TYPE_CHECKING:
    from perdure.runtime.core import RuntimeCore

log = logging.getLogger("perdure.runtime")

LOOK_AGAIN_S = 0.1
GRACE_S = 0.1
"""The time a body gets to unwind."""

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
class BodyEntry:
    """One entry of the body. Its effects count until its write guard is shut."""

    body: Body
    valve: WriteGuard
    cancellation: Cancellation
    task: asyncio.Task[Ended] | None = None
    stopped: bool = False
    id: EffectId = field(default=EffectId(PROCESS_BODY))


class ProcessDriver:
    """The driver of one process in one owned stream, and the effect log of its own controller."""

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
        journal, self._signals = EffectJournal(), PendingSignals()
        self._emitted = {(fact.event, fact.replay): fact for fact in facts if isinstance(fact, ProcessEvent)}
        for fact in facts:
            journal.fold(fact)
            self._signals.fold(fact)
        self._controller = JournaledController(journal, self)
        self._news = asyncio.Event()
        self._waits = Waits(shared.store, shared.clock, self._news.set, self._signals)
        self._idle_policy = IdlePolicy(self._waits, shared.lounge, shared.clock, record.registered_at)
        self._entry: BodyEntry | None = None
        self._ended: Ended | None = None
        self._evicting = False
        self._told = False
        self._heard = False

    # --- the effect log

    def submit(self, *records: Record, outbox: tuple[Delivery, ...] = ()) -> tuple[Record, ...]:
        """Submit records to the stream, without secrets. Return them as written."""
        records = self._owned.redactor.values(records)
        for record in records:
            self._signals.fold(record)
        charged = charges(self._registration, self._scope.tenant, records, self._shared.clock.wall_ms())
        self._owned.submit_all(records, outbox=(*outbox, *charged))
        return records

    def durable(self) -> Awaitable[None]:
        """Wait until everything submitted so far is durable."""
        return self._owned.durable()

    def lease_live(self) -> bool:
        """Return whether this worker's lease is certainly live."""
        return self._owned.lease_live()

    async def reassert(self) -> None:
        """Renew a lapsed lease, or raise `lease_lost`."""
        await self._owned.reassert()

    # --- events

    async def emit(self, name: str, payload: Json, replay: str) -> None:
        """Append a declared event, once per replay key, and wake the target session with it if the
        event requires that."""
        check_sayable(name, self._scope.process)
        new = await checked_event(self._registration, name, payload, replay)
        if new.output is not None:
            raise Error(
                Code.INVALID_ARGUMENT,
                f"the event {name} ends the process",
                hint="return or raise in the process body",
                process=self._scope.process,
            )
        self._append_once(new, name, replay)

    def mark(self, name: str, payload: Json, replay: str) -> None:
        """Append an event of the runtime itself, once per replay key."""
        self._append_once(event_of(self._registration, name, payload, replay), name, replay)

    def _append_once(self, new: ProcessEvent, name: str, replay: str) -> None:
        new = self._owned.redactor.value(new)
        known = self._emitted.get((name, replay))
        if known is not None:
            check_same(known, new, self._scope.process)
            return
        self._emitted[name, replay] = new
        wake = wake_for(self._shared, self._scope.tenant, self._registration, new)
        self._owned.submit(new, outbox=() if wake is None else (wake,))

    # --- notifications

    def on_record(self, fact: Record, record: ProcessRecord) -> None:
        """Take in a record that another writer appended. `record` includes it."""
        self.record = record
        self._signals.fold(fact)
        self._waits.hand_out()
        self._told = True
        self._evicting = self._evicting or record.abandon is not None
        if record.cancel is not None:
            self._stop()
        self._news.set()

    def _stop(self) -> None:
        """Cancel the body: its current wait raises, once, and no new work begins except clean-up."""
        if self._entry is not None and not self._entry.stopped:
            self._entry.stopped = True
            self._entry.body.life.stop()
            self._entry.cancellation.cancel()
            self._waits.stop()

    def on_notify(self) -> None:
        """Note that a notification was consumed, perhaps the end of a session that the process waits for."""
        self._heard = True

    async def poll(self) -> None:
        """Check the waits for resolutions."""
        await self._waits.poll()

    def refused(self, error: Error) -> None:
        """Stop after a refused append: effects begun after it do not count."""
        self.refusal = error
        self._news.set()

    # --- the loop

    async def run(self) -> bool:
        """Drive the process. Return True once its end is durable, False once it is durably parked.

        Raises:
            Error: why the store refused an append.
        """
        self._controller.doubt_unsettled_steps(InDoubt(reason="worker_lost"))
        self._settle_lost_calls(over=False)
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
        shared, cancellation = self._shared, Cancellation()
        valve = WriteGuard(self)
        secret = await shared.secrets.get(SECRET, self._scope.tenant)
        controller = JournaledController(self._controller.journal, valve)
        waiter = self._waits.of(EffectId(PROCESS_BODY))
        stream = self._owned.stream
        body = Body(process_place(self._scope), controller, waiter, shared.clock, shared.threads, secret)
        body.spawner = Subagents(shared, stream, Lineage(stream, 0), TurnId(""), self._scope.process, valve)
        entry = self._entry = BodyEntry(body, valve, cancellation)
        if self.record.cancel is not None:
            self._stop()
        entry.task = asyncio.create_task(self._live(entry, deps), name=f"perdure:process:{self._scope.process}")
        entry.task.add_done_callback(lambda _: self._came_back(entry))

    async def _live(self, entry: BodyEntry, deps: TurnDeps) -> Ended:
        self._owned.redactor.speaks()

        async def call() -> object:
            entry.body.life.enter()
            async with deps.use() as given:
                return await self._code.run(self._context(entry, given), self._registration.input)

        ended = await drive(call)
        await entry.body.life.end()
        return ended

    def _context(self, entry: BodyEntry, given: object) -> ProcessContext:
        return ProcessContext(
            process_id=self._scope.process,
            tenant=self._scope.tenant,
            idempotency_key=join("perdure-process", self._scope.tenant, self._scope.process),
            cancellation=entry.cancellation,
            _call=ProcessWiring(
                tool_name=self._registration.definition,
                body=entry.body,
                current_view=lambda: self.record,
                driver=self,
                runtime=cast("RuntimeCore", self._shared.host.of(self._scope.tenant)),
                deps=given,
                in_session=OwnerContext().of,
            ),
        )

    def _came_back(self, entry: BodyEntry) -> None:
        assert entry.task is not None
        if self._entry is entry and not entry.body.life.parked:
            self._ended = end_of(entry.task)
            if (problem := _trouble(self._ended)) is not None:
                self.refused(problem)
        self._news.set()

    async def _wait_long_enough(self) -> bool:
        """Wait for news. True if there is none, and the body has waited for the idle timeout."""
        if self.refusal or self._ended is not None:
            return False
        if self._entry is None:  # abandoned: the caller of abandon() ends this wait too
            await self._news.wait()
            return False
        patience = self._idle_policy.left_s((self._entry,), evicting=self._evicting)
        once_only = self._registration.recovery == "owner_bound" and self.record.abandon is None
        if patience is None or once_only:  # an owner-bound body cannot be re-entered
            await self._news.wait()
            return False
        self._news.clear()  # the check above covered this notification
        lounge = self._shared.lounge
        if not self._evicting and patience > 0:
            lounge.sit(self._owned.stream, self._evict)
        try:
            async with asyncio.timeout(patience):
                await self._news.wait()
        except TimeoutError:
            return not self._news.is_set() and self._idle_policy.left_s((self._entry,), evicting=True) == 0.0
        finally:
            lounge.leave(self._owned.stream)
        return False

    def _evict(self) -> None:
        self._evicting = True
        self._news.set()

    async def _may_park(self) -> bool:
        """Return whether the process may park, once its waits are durable.

        Deadlock: if all other members of a wait cycle are parked, fail this wait. Otherwise the member with the
        greatest id polls and the rest park.
        """
        if self._waits.count != len(self.record.waiting):
            return True
        me, cycle = self._scope.process, await self._cycle()
        if cycle is None or self._news.is_set():
            return not self._news.is_set()
        if cycle.unparked:
            if me > max(cycle.unparked):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_AGAIN_S):
                        await self._news.wait()
                return False
            return True
        log.warning("process deadlock cycle=%s", cycle.description, extra={"process_id": me})
        message = f"the process {me} would wait forever: {cycle.description}"
        self._waits.refuse_ends(Failure(code=Code.PROCESS_WAIT_CYCLE.value, message=message))
        await self._news.wait()
        return False

    async def _look_back(self) -> None:
        """Wake the stream after parking if the wait has closed a wait cycle, so that the next entry detects the
        deadlock."""
        cycle = await self._cycle()
        if cycle is not None and not cycle.unparked:
            stream, name = self._owned.stream, f"circle:{self.record.seq}"
            wake = delivery(stream, name, Wake(reason=name), at=self._shared.clock.wall_ms())
            await self._shared.store.admit(wake)
            self._shared.host.notify_streams((stream,))

    async def _cycle(self) -> WaitCycle | None:
        return await find_wait_cycle(self._shared.store, self._scope.tenant, self.record)

    async def _park(self) -> bool:
        """Unwind the body and release the stream. False if a notification arrived meanwhile: then the body is entered
        again."""
        assert self._entry is not None
        self._evicting = self._told = False
        heard, self._heard = self._heard, False
        promises, due_at = self._waits.promises, self._idle_policy.look_again_at((self._entry,))
        await self._unwind()
        self._entry = self._ended = None
        if self._told or heard or self._heard or self.refusal:
            return False  # the notification that would wake the stream may be consumed
        return await self._owned.park(promises, due_at)

    async def _unwind(self) -> None:
        entry = self._entry
        if entry is None or entry.task is None:
            return
        entry.body.life.unwind()
        self._waits.unwind()
        await asyncio.wait({entry.task}, timeout=GRACE_S)
        entry.valve.is_shut = True  # later writes of a body that has not unwound are refused
        entry.task.cancel()

    # --- the end

    async def _end(self, ended: Ended) -> None:
        self._controller.doubt_unsettled_steps(LEFT_BEHIND)
        self._settle_lost_calls(over=True)
        await self._finish(self._ending(ended), *self._unused(ended))

    async def _end_abandoned(self) -> None:
        """End a process that was abandoned and only waits."""
        await self._unwind()
        self._entry = None
        self._settle_lost_calls(over=True)
        await self._finish(abandoned(self.record))

    async def _finish(self, end: ProcessEvent, *before: ProcessEvent) -> None:
        gone = let_go(self._owned.stream, self._effects(), self._shared.clock.wall_ms())
        outbox = (*end_notification(self._shared, self._scope.tenant, self.record, end), *gone)
        self._owned.submit(*before, end, outbox=outbox)
        await self._owned.durable()

    def _settle_lost_calls(self, *, over: bool) -> None:
        if lost := lost_calls(self._controller.journal, over=over):
            self._controller.record(*lost)

    def _effects(self) -> Iterator[Record]:
        """Yield the body's effects and their outcomes."""
        journal = self._controller.journal
        for id in tuple(journal.ids()):
            if (started := journal.started(id)) is not None:
                yield started
            if (outcome := journal.outcome(id)) is not None:
                yield EffectSettled(id=id, outcome=outcome)

    def _unused(self, ended: Ended) -> tuple[ProcessEvent, ...]:
        """Return an event that lists the recorded steps which the code did not reach before it returned."""
        body = self._entry.body if self._entry else None
        if not isinstance(ended, Returned) or body is None:
            return ()
        begins = f"{PROCESS_BODY}/"
        names = [id.removeprefix(begins) for id in self._controller.journal.ids() if not body.reached(id)]
        unused: list[str] = [name for name in names if name.startswith(_NAMED)]
        if not unused:
            return ()
        log.warning(
            "process left recorded steps unused process=%s steps=%s", self._scope.process, ", ".join(unused),
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
        log.error("process failed", exc_info=error, extra={"process_id": self._scope.process})
        panicked = not isinstance(error, Exception) and not isinstance(error, asyncio.CancelledError)
        code = "process_panicked" if panicked else "internal_error"
        return ProcessFailure(code=code, message=INTERNAL, raw={"error_type": type(error).__name__})

    # --- release

    def abandon(self) -> None:
        """Stop the running body, and record nothing more."""
        entry, self._entry = self._entry, None
        if entry is None or entry.task is None:
            return
        self._note_loose(entry)
        entry.body.life.unwind()
        entry.valve.is_shut = True
        self._waits.unwind()
        entry.task.cancel()

    def _note_loose(self, entry: BodyEntry) -> None:
        if entry.body.life.running:
            self._shared.abandoned_calls.note()

    def forbid_starts(self) -> None:
        """Tell the body that the worker stops."""
        if self._entry is not None:
            self._entry.cancellation.cancel()

    async def drain(self) -> None:
        """Hand the process over: running `once` steps become in doubt, and an owner-bound process ends as abandoned."""
        if self._entry is not None:
            self._note_loose(self._entry)
        await self._unwind()
        self._controller.doubt_unsettled_steps(InDoubt(reason="drained", message="the worker was stopped"))
        if self._registration.recovery == "owner_bound" and self._ended is None:
            self._settle_lost_calls(over=True)
            reason = "the worker was stopped"
            end = ending(self.record, ProcessWasAbandoned(by=self.worker, reason=reason), authority="owner_drain")
            gone = let_go(self._owned.stream, self._effects(), self._shared.clock.wall_ms())
            self._owned.submit(
                end, outbox=(*end_notification(self._shared, self._scope.tenant, self.record, end), *gone)
            )
            self._owned.active = False


def wake_for(shared: Shared, tenant: Tenant, registration: Registration, event: ProcessEvent) -> Delivery | None:
    """Return the delivery that reports an event to the target session, or None."""
    now = shared.clock.wall_ms()
    turn, input = TurnId(uuid7(now)), InputId(short_id("in", now))
    return wake_of(tenant, registration, event, at=now, turn=turn, input=input)


def end_notification(shared: Shared, tenant: Tenant, record: ProcessRecord, end: ProcessEvent) -> tuple[Delivery, ...]:
    """Return the deliveries that commit with the end of a process: its wake, and the messages of its code."""
    wake, code = wake_for(shared, tenant, record.known, end), shared.processes.get(record.known.definition)
    wakes = () if wake is None else (wake,)
    if end.output is None or not isinstance(code, NotifiesOnEnd):
        return wakes
    return (*wakes, *code.end_notification(record, end.output, tenant, shared.clock.wall_ms()))


def code_for(shared: Shared, record: ProcessRecord) -> ProcessCode:
    """Return the code that runs a process here.

    Raises:
        Error: `process_definition_unknown`.
    """
    definition = record.known.definition
    code = shared.processes.get(definition)
    if code is None:
        raise Error(
            Code.PROCESS_DEFINITION_UNKNOWN,
            f"this runtime has no process definition {definition!r}",
            because=f"known definitions: {', '.join(sorted(shared.processes)) or 'none'}",
            hint="Runtime(processes=[...])",
            process=record.known.process_id,
        )
    return code


def _trouble(ended: Ended) -> Error | None:
    """Return an error that is not the process's fault and may not recur, or None."""
    match ended:
        case Raised(error=DepsFailed()):
            return Error(Code.PROCESS_FAILED, "the dependencies of the process could not be made")
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
    return ProcessSucceeded(value=kept.value)
