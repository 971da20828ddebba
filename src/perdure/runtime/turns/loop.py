"""The loop that drives one turn, whether live, resumed, streamed or simulated.

Each round begins what is owed and not yet begun, waits for a result, and records it. All state worth keeping is in the
turn (a fold of its records). The driver holds only tasks, which a crash may destroy.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Iterable, Sequence

from msgspec.structs import replace

from perdure.commit.plan import Blob
from perdure.effects.controller import Begun, DispatchPolicy, JournaledController, Local
from perdure.effects.journal import journal_of
from perdure.errors import Code, Error
from perdure.ids import BlobHash, CallId, EffectId, PromiseId
from perdure.inbox.admit import Delivery
from perdure.runtime.calls import jobs
from perdure.runtime.calls.failure_context import LEFT_BEHIND, with_steps
from perdure.runtime.calls.orphaned_calls import PartialReply, left_asked, unwanted
from perdure.runtime.calls.runners import Runner, RunnerDeps, Runners
from perdure.runtime.turns.approval_policy import ApprovalPolicy
from perdure.runtime.turns.cancelling import SETTLED_AT_ONCE, end_cancelled
from perdure.runtime.turns.envelopes import Where
from perdure.runtime.turns.in_flight import InFlight
from perdure.runtime.turns.preparing import Preparations
from perdure.runtime.turns.starts import begin, body_of, has_begun
from perdure.runtime.worker.idle_policy import IdlePolicy
from perdure.runtime.worker.owned import OwnedStream
from perdure.runtime.worker.permits import TurnPermits
from perdure.runtime.worker.waits import Waits
from perdure.session.redaction import caches_of
from perdure.tools.step_outcomes import Parked
from perdure.turn.machine import (
    advance,
    awaited,
    left_asking,
    owed,
    recovery,
    refolded,
    settlement,
    unanswered,
)
from perdure.turn.state import (
    AskModel,
    AwaitApproval,
    AwaitCompletion,
    AwaitVerdict,
    Effect,
    EndTurn,
    Owed,
    Probe,
    RunCall,
    Turn,
)
from perdure.vocab.approvals import Decision, approved, granted, lapsed, refused
from perdure.vocab.effects import AwaitEvent, Envelope
from perdure.vocab.messages import AttachmentRef
from perdure.vocab.outcomes import (
    AwaitEventOutcome,
    CompletedToolCall,
    DirectOutcome,
    DirectUsage,
    Done,
    ExecCodeOutcome,
    Failed,
    InDoubt,
    LlmCallOutcome,
    LlmError,
    Outcome,
    ToolCallOutcome,
)
from perdure.vocab.records import (
    AttachmentStored,
    CancelRequested,
    EffectSettled,
    EffectStarted,
    ModelJobBegun,
    OutcomeArrivedLate,
    Record,
    TurnEnded,
)
from perdure.vocab.refs import EffectRef, is_part, outer_body
from perdure.vocab.usage import Usage

log = logging.getLogger("perdure.runtime")

GRACE_S = 0.1
"""Grace period of a cancelled tool, in seconds: slightly longer than its runner waits for it."""


class TurnDriver:
    """The driver of one turn of one owned stream. It is the ledger of its own controller."""

    def __init__(self, turn: Turn, records: list[Record], where: Where, owned: OwnedStream, around: RunnerDeps) -> None:
        self.turn = turn
        self.records = records
        self.worker = owned.worker
        self.where = where
        self.owned = owned
        self.around = around
        journal = journal_of(records)
        self.controller = JournaledController(journal, self)
        self.flights: dict[EffectId, InFlight] = {}
        self._news = asyncio.Event()
        self.landed: list[InFlight] = []
        self.waits = Waits(around.store, around.clock, self._news.set)
        self.runners = Runners(self, journal, where, around, self.waits)
        self.preparations = Preparations(
            around.toolbox,
            journal,
            self.runners.prepare_context,
            self.durable,
            self._news.set,
            visible=turn.composition.names,
        )
        self.consents = ApprovalPolicy(self.runners.prepare_context, self.durable, self._news.set)
        self._withdrawals: set[asyncio.Task[object]] = set()
        self.leaves: dict[PromiseId, tuple[RunCall, Decision]] = {}
        self.permits = TurnPermits(around.permits, owned.stream, self._news.set)
        self._idle_policy = IdlePolicy(self.waits, around.lounge, around.clock, around.opened_at)
        self._evicting = False
        self._heard = False
        self._paused = False
        self._stands_still = False
        self.refusal: Error | None = None

    # --- the ledger: every fact goes to the machine and to the stream at once

    def submit(self, *records: Record, outbox: tuple[Delivery, ...] = ()) -> tuple[Record, ...]:
        """Fold facts into the turn and submit them to the stream, both without secrets. Return them as written."""
        records = self.owned.redactor.values(records)
        for record in records:
            self.turn = advance(self.turn, record)
            self.records.append(record)
            self._stands_still = self._stands_still and _is_asking(record)
        if self._stands_still and records:
            self.owned.recover()
        if self.turn.ended is not None:
            self._drop_caches()
        self.owned.submit_all(records, outbox=outbox)
        return records

    def so_far(self) -> Turn:
        """Return the turn with the model usage of running calls that is not recorded yet."""
        sites = [flight.site for flight in self.flights.values() if flight.site]
        spent = [one.usage for site in sites for one in site.spent]
        left = [one.bought for site in sites for one in site.left.values()]
        return replace(self.turn, usage=sum((*spent, *left), self.turn.usage))

    def durable(self) -> Awaitable[None]:
        """Wait until everything submitted so far is durable."""
        return self.owned.durable()

    def keep(self, *blobs: Blob) -> None:
        """Store bytes with the next append."""
        self.owned.blob(*blobs)

    def drop(self, hashes: Iterable[BlobHash]) -> None:
        """Release bytes with the next append."""
        self.owned.drop(*hashes)

    def attach(self, call: CallId, blob: Blob) -> None:
        """Store bytes that a call keeps.

        Record a reference, so that export includes the bytes and redaction deletes them.
        """
        ref = AttachmentRef(hash=blob.hash, media_type=blob.media_type, size=len(blob.data))
        kept = AttachmentStored(call=call, ref=ref)
        if kept not in self.records:
            self.keep(blob)
            self.submit(kept)

    def lease_live(self) -> bool:
        """Return True if our lease has certainly not lapsed."""
        return self.owned.lease_live()

    async def reassert(self) -> None:
        """Renew a lapsed lease, or raise `lease_lost`."""
        await self.owned.reassert()

    # --- notifications to a running turn

    def on_record(self, request: CancelRequested) -> None:
        """Apply a cancel request that is already in the log. Effects not yet dispatched do not begin any more."""
        self.turn = advance(self.turn, request)
        if self.turn.cancel and not self.turn.ended:
            for flight in self.flights.values():
                if not flight.dispatched:
                    flight.cancellation.cancel()
        self._news.set()

    def interrupt(self, request: CancelRequested) -> None:
        """Cancel this turn for a waiting input. The request takes the cancel gate if it is free."""
        if not (self.turn.cancel or self.turn.ended):
            self.submit(request)
            self._news.set()

    def hold(self, *, paused: bool) -> None:
        """Pause or resume the turn. Effects in flight run to their end; while paused, no effect begins."""
        self._paused = paused
        self._news.set()

    def late(self, record: OutcomeArrivedLate, inbox_id: int) -> None:
        """Record how a call really ended, as reported by a former worker."""
        self.turn = advance(self.turn, record)
        self.records.append(record)
        self.owned.submit(record, consume=(inbox_id,))
        self._news.set()

    def on_notify(self) -> None:
        """Note that a session the turn may wait for has ended. Its wake is consumed, so the turn must not park."""
        self._heard = True

    async def poll(self) -> None:
        """Check the turn's waits for resolutions made by other processes."""
        await self.waits.poll()

    def refused(self, error: Error) -> None:
        """Note that the store refused an append. Everything begun on top of it must end."""
        self.refusal = error
        self._news.set()

    def withdrawn(self, records: tuple[Record, ...], problem: Error) -> None:
        """Undo the start of approved calls whose approval was revoked, cancelled or expired when the store checked it.

        Neither their records nor the others of that append were written, so the turn returns to its state before. Model
        usage recorded meanwhile needs no approval, and is submitted again.
        """
        bought = tuple(record for record in records if _is_purchase(record))
        records = tuple(record for record in records if not _is_purchase(record))
        gone = {id(record) for record in records}
        self.records[:] = [record for record in self.records if id(record) not in gone]
        self.turn = replace(refolded(self.turn, self.records), cancel=self.turn.cancel)
        for record in records:
            self.controller.journal.unfold(record)
            flight = self._flight_of(record.id) if isinstance(record, EffectStarted) else None
            if flight is not None:
                del self.flights[flight.id]
                flight.put_aside()  # a body is re-entered, and finds that it has no approval
                flight.shut()
                flight.stop()
        leave = self.leaves.get(PromiseId(str(problem.details.get("promise"))))
        if problem.code is Code.APPROVAL_STALE and leave is not None and not (self.turn.cancel or self.turn.ended):
            self._lapse(*leave)
        if bought:
            self.owned.submit(*bought)
        self._news.set()

    def _flight_of(self, effect: EffectId) -> InFlight | None:
        """Return the effect in flight with this id, or the call whose body contains this part."""
        if not is_part(effect):
            return self.flights.get(effect)
        body = outer_body(effect)
        calls = (one for one in self.flights.values() if isinstance(one.owed, RunCall))
        return next((one for one in calls if isinstance(one.owed, RunCall) and body_of(one.owed) == body), None)

    def _lapse(self, item: RunCall, decision: Decision) -> None:
        """Settle a call whose approval has expired by the store's clock.

        If the decision was withdrawn with the call, the approval's own wait finds the expiry.
        """
        for ref, call in unanswered(self.turn):
            if ref == item.ref and call.decision is not None:
                self.controller.record(settlement(ref, call.request, refused(lapsed(decision))))

    # --- the loop

    async def run(self) -> TurnEnded | None:
        """Drive the turn to its end. Return the end once it is durable.

        Return None if the turn is durably parked, or belongs to another agent now (`turn.changes_hands`).

        Raises:
            Error: why the store refused an append. Nothing begun here may be continued.
        """
        try:
            return await self._run()
        finally:
            self.preparations.stop()
            self.consents.stop()
            self.permits.only(())
            for flight in self.flights.values():
                if flight.effect != "once":  # the outcomes of those are reported by `Orphans`
                    flight.shut()

    async def _run(self) -> TurnEnded | None:
        await self._end_what_was_left()
        if (ref := left_asking(self.turn)) is not None and not self.turn.cancel:
            lost = await self.lost_reply(ref)
            self.owned.recover()
            self.controller.record(lost)
        while True:
            self.settle_completed()
            if self.turn.cancel and not self.turn.ended:
                await end_cancelled(self)
            more = not (self.turn.cancel or self.turn.ended) and self._begin_owed()
            if self.turn.ended:
                for flight in self.flights.values():
                    flight.stop()
                await self.durable()
                return self.turn.ended
            if self.turn.changes_hands and not self.turn.cancel:
                await self.durable()
                return None
            if more:
                await asyncio.sleep(0)
            elif not self.landed and await self._wait_long_enough() and await self._park():
                return None
            self._news.clear()
            if self.refusal:
                raise self.refusal

    async def _end_what_was_left(self) -> None:
        """Settle what a gone worker left: unfinished `once` steps are in doubt, model calls of tools are charged."""
        journal = self.controller.journal
        asked, begun = left_asked(self.turn, journal, over=False), jobs.asked_for(journal)
        acting, known = bool(unanswered(self.turn)), len(self.records)
        self.controller.record(*recovery(self.turn))
        self.controller.doubt_unsettled_steps(InDoubt(reason="worker_lost"))
        self._stands_still = acting and len(self.records) == known
        for started in asked:
            self.controller.record(await self.around.lost_completion(self.turn, started))
        if ended := {one.id for one in asked}:
            await self.around.give_up(self.turn, [job for job in begun if job.effect in ended])

    async def _wait_long_enough(self) -> bool:
        """Wait for news. Return True if there is none, only waits are in flight, and the idle timeout has passed."""
        if self.refusal:
            return False
        left_to_others = self.permits.in_line and self.around.permits.leaving
        if (self._paused or left_to_others) and not (self.flights or self._thinking):
            return True
        patience = self._idle_policy.left_s(self.flights.values(), evicting=self._evicting or self._paused)
        if patience is None or self._thinking or self.permits.worth_waiting:
            await self._news.wait()
            return False
        self._news.clear()  # its cause has been handled
        lounge = self.around.lounge
        if not (self._evicting or self._paused) and patience > 0:
            lounge.sit(self.owned.stream, self._evict)
        try:
            async with asyncio.timeout(patience):
                await self._news.wait()
        except TimeoutError:
            return self._may_park()
        finally:
            lounge.leave(self.owned.stream)
        return False

    def _may_park(self) -> bool:
        """Return True if there are still only waits in flight: a body may have begun a step meanwhile."""
        if self.refusal or self.landed or self._news.is_set() or self._thinking or self.permits.worth_waiting:
            return False
        return self._idle_policy.left_s(self.flights.values(), evicting=True) == 0.0

    @property
    def _thinking(self) -> bool:
        """True while user code decides about a call that has not begun."""
        return self.preparations.under_way or self.consents.under_way

    def _evict(self) -> None:
        self._evicting = True
        self._news.set()

    async def _park(self) -> bool:
        """Unwind the waits and release the stream.

        Return False if an answer arrived meanwhile: the turn then continues.
        """
        self._evicting = False
        heard, self._heard = self._heard, False
        promises, due_at = (
            self.waits.promises,
            self._idle_policy.look_again_at(self.flights.values(), in_line=self.permits.in_line and not self._paused),
        )
        await self._unwind()
        self.flights.clear()
        self.landed.clear()
        if self.turn.cancel or heard or self._heard:
            return False  # arrived meanwhile, and the wake that announced it is consumed
        return await self.owned.park(promises, due_at)

    async def _unwind(self) -> None:
        for flight in self.flights.values():
            flight.put_aside()
        self.waits.unwind()
        tasks = [flight.task for flight in self.flights.values() if flight.task]
        if tasks:
            await asyncio.wait(tasks, timeout=GRACE_S)
        for flight in self.flights.values():
            flight.shut()  # later writes of a body that has not stopped are refused
        for task in tasks:
            task.cancel()

    def settle_completed(self) -> None:
        """Record the outcomes of all effects that completed since the last time."""
        landed, self.landed = self.landed, []
        landed.sort(key=lambda flight: isinstance(flight.owed, AwaitApproval))
        for flight in landed:
            if flight.outcome is None and self.turn.cancel:
                continue  # kept: the call's outcome depends on whether this was dispatched
            if self.flights.get(flight.id) is flight:
                del self.flights[flight.id]
            if flight.outcome is None or flight.id not in self._expected():
                continue
            if self.turn.cancel and isinstance(flight.outcome, LlmCallOutcome):
                self.controller.settle(flight.begun, unwanted(flight.outcome))
                continue
            if isinstance(flight.owed, AwaitApproval):
                self.owned.flush()  # one separate append has the decision and the start of the call
            self._settle(flight, flight.outcome)
            if isinstance(flight.owed, AwaitApproval):
                self._remember(flight.owed, flight.outcome)

    def _expected(self) -> set[EffectId]:
        """Return the effects whose outcomes count. A cancelled turn still records how its calls ended."""
        if not self.turn.cancel or self.turn.ended:
            return {item.ref.id for item in owed(self.turn) if not isinstance(item, EndTurn)}
        ends = (RunCall, AwaitCompletion, AwaitVerdict, Probe, AskModel)
        return {item.ref.id for item in owed(replace(self.turn, cancel=None)) if isinstance(item, ends)}

    def _remember(self, asked: AwaitApproval, outcome: Outcome) -> None:
        """Record a session-wide approval, which covers later calls of the tool."""
        decision = approved(outcome.resolution) if isinstance(outcome, AwaitEventOutcome) else None
        if decision is not None and decision.for_session and asked.contract is not None:
            self.submit(granted(asked.command.key.key_id, self.turn.composition.agent, asked.contract, decision))

    def _settle(self, flight: InFlight, outcome: Outcome) -> None:
        """Record an outcome, with the bytes it refers to."""
        if flight.effect == "once" and _is_doubt(outcome):
            self.around.on_loose_end()
        flight.shut()
        self._end_what_it_asked(flight)
        self.keep(*flight.blobs)
        if flight.site is not None:
            for blob in flight.site.attached:
                self.attach(flight.site.call, blob)
        if flight.effect == "resumable" and isinstance(flight.owed, RunCall):
            outcome = self._without_loose_steps(flight.owed, outcome)
        self.controller.settle(flight.begun, outcome)

    def _without_loose_steps(self, item: RunCall, outcome: Outcome) -> Outcome:
        """Settle the steps that an ended body left behind. Return its outcome; a failure then names the steps."""
        body = body_of(item)
        self.controller.doubt_unsettled_steps(LEFT_BEHIND, body=body)
        self.controller.end_inner_bodies(body=body)
        match outcome:
            case ToolCallOutcome(launch=Done(result=CompletedToolCall(output=Failed() as failed) as result)):
                told = with_steps(failed, self.controller.journal.steps(body))
                return replace(outcome, launch=Done(result=replace(result, output=told)))
            case _:
                return outcome

    def _begin_owed(self) -> bool:
        """Begin what is owed. An effect settled at once may make others owed.

        Return True if more is owed: thousands of calls of one reply may be refused, so other tasks run in between.
        """
        begun, settled = True, 0
        while begun and settled < SETTLED_AT_ONCE:
            begun = False
            for item in self._in_order(owed(self.turn)):
                if isinstance(item, EndTurn):
                    self.submit(item.ended)
                elif self._paused:
                    continue
                elif item.ref.id not in self.flights:
                    at_once = begin(self, item)
                    begun, settled = at_once or begun, settled + at_once
        self.owned.part()
        left = {_id(item) for item in owed(self.turn)}
        self.permits.only(left)
        for stray in self.flights.keys() - left:
            self._drop(self.flights[stray])
        return begun

    def _drop_caches(self) -> None:
        """Release the stored states of programs that did not end."""
        settled = [record for record in self.records if isinstance(record, EffectSettled)]
        stood = [(record.id, hash) for record in settled for hash in caches_of(record)]
        if not stood:
            return  # the common case
        ended = {outer_body(record.id) for record in settled if isinstance(record.outcome, ExecCodeOutcome)}
        if left := [hash for id, hash in stood if outer_body(id) not in ended]:
            self.drop(left)

    def _in_order(self, items: Sequence[Owed]) -> Sequence[Owed]:
        """Order permit requests: new calls first, then parked calls in random order, so that none starves."""
        if not self.around.permits.work.limits:
            return items
        fresh = [item for item in items if not (isinstance(item, RunCall) and has_begun(self, item))]
        again = [item for item in items if item not in fresh]
        return [*fresh, *random.sample(again, len(again))]

    def start(self, item: Effect, described: Envelope, policy: DispatchPolicy, runner: Runner) -> bool:
        """Begin an effect, once it has its permit. Return True if its outcome is already known."""
        if not self.permits.may_begin(item, self.turn.composition.model):
            return False  # nothing is recorded; the granted permit wakes the loop
        begun = self.controller.begin(described, policy)
        if not isinstance(begun, Begun):
            self.turn = advance(self.turn, EffectSettled(id=EffectId(described.id), outcome=begun))
            return True
        flight = InFlight(item, begun)
        self.flights[flight.id] = flight
        flight.task = asyncio.create_task(self._run_effect(flight, runner), name=f"perdure:{flight.id}")
        self.permits.lend(flight.id, flight.task)
        return False

    async def _run_effect(self, flight: InFlight, runner: Runner) -> None:
        async def run(_: Envelope) -> Outcome:
            return await runner(flight)

        self.owned.redactor.speaks()
        try:
            flight.outcome = await self.controller.dispatch(flight.begun, Local(flight.begun.envelope.kind, run))
        except Parked:
            flight.unwound = True
        except Error as problem:
            if self.refusal is None:
                self.refused(problem)
        except Exception as problem:
            log.exception("effect failed unexpectedly", extra={"turn": self.turn.id, "effect": flight.id})
            if isinstance(flight.owed, AskModel):  # the request may be paid for, so it is not sent again
                message = "the model call failed; the log has the cause"
                flight.outcome = LlmCallOutcome(error=LlmError(kind="internal", message=message))
            else:
                self.refused(Error(Code.TURN_FAILED, f"effect {flight.id} failed", because=type(problem).__name__))
        finally:
            if self.flights.get(flight.id) is flight:  # else the turn continued without it
                if flight.outcome is None and not (flight.unwound or flight.cancellation.cancelled or self.refusal):
                    self._broke_off(flight)
                self.landed.append(flight)
                self._news.set()

    def _broke_off(self, flight: InFlight) -> None:
        """Handle an effect that ended without an outcome and without a stop request: user code cancelled itself."""
        if isinstance(flight.owed, AskModel):
            message = "the model client ended without an answer"
            flight.outcome = LlmCallOutcome(error=LlmError(kind="internal", message=message))
        else:
            self.refused(Error(Code.TURN_FAILED, f"effect {flight.id} ended without an outcome"))

    def unconfirmed_once(self) -> tuple[tuple[EffectId, Outcome], ...]:
        """Return the outcomes of `once` calls that the store has not confirmed. Only this process knows them."""
        return tuple((id, outcome) for id, outcome in self._unconfirmed() if self._is_once(id))

    def unsaved(self) -> tuple[tuple[EffectId, Usage], ...]:
        """Return the usage of model calls whose end the store has not confirmed."""
        known = self._unconfirmed()
        return tuple(
            (id, outcome.bought) for id, outcome in known if isinstance(outcome, LlmCallOutcome | DirectOutcome)
        )

    def _unconfirmed(self) -> list[tuple[EffectId, Outcome]]:
        settled = [record for record in self.owned.undurable() if isinstance(record, EffectSettled)]
        landed = [(flight.id, flight.outcome) for flight in self.landed if flight.outcome]
        return [*((record.id, record.outcome) for record in settled), *landed]

    def _is_once(self, effect: EffectId) -> bool:
        started = self.controller.journal.started(effect)
        return started is not None and started.effect == "once"

    # --- ends without a model reply

    def _drop(self, flight: InFlight) -> None:
        """Stop an effect that is no longer owed. Example: a late outcome makes a probe or a question unnecessary."""
        del self.flights[flight.id]
        flight.stop()
        command = flight.begun.envelope.command
        if isinstance(command, AwaitEvent) and command.about:
            withdrawal: asyncio.Task[object] = asyncio.create_task(self.waits.withdraw(command.key))
            self._withdrawals.add(withdrawal)
            withdrawal.add_done_callback(self._withdrawals.discard)

    async def lost_reply(self, ref: EffectRef) -> EffectSettled:
        """Return the settlement of a model call that will get no reply, with its usage."""
        flight = self.flights.get(ref.id)
        said = (flight.said or PartialReply()) if flight is not None else None
        return await self.around.lost(self.turn, self.records, ref.id, said)

    def abandon(self) -> None:
        """Stop what runs, and record nothing, because the session is gone."""
        for flight in self.flights.values():
            self.note_untracked(flight)
            flight.put_aside()
            flight.shut()
            flight.stop()

    def forbid_starts(self) -> None:
        """Tell all effects in flight to stop. Those not yet dispatched do not begin."""
        for flight in self.flights.values():
            flight.cancellation.cancel()

    def note_untracked(self, flight: InFlight | None) -> None:
        """Note a `once` call that was stopped halfway: it may continue in a thread or in an external system."""
        if flight is not None and flight.may_act:
            self.around.on_loose_end()

    async def halt(self) -> None:
        """Ask all effects in flight to stop, and wait for a short grace period."""
        tasks = [flight.task for flight in self.flights.values() if flight.task and not flight.task.done()]
        for flight in self.flights.values():
            flight.stop()
        if tasks:
            await asyncio.wait(tasks, timeout=GRACE_S)
        for flight in self.flights.values():
            flight.shut()
            self._end_what_it_asked(flight)

    def _end_what_it_asked(self, flight: InFlight) -> None:
        """Record the usage of model calls that a stopped call left without an end."""
        if flight.site is not None and flight.site.left:
            left = [EffectSettled(id=id, outcome=one) for id, one in flight.site.left.items()]
            flight.site.left.clear()
            self.controller.record(*left)

    async def drain(self) -> None:
        """Stop what runs and record running `once` calls as in doubt, so that another worker can continue the turn."""
        for flight in self.flights.values():
            flight.put_aside()
            self.note_untracked(flight)
        await self.halt()
        self.controller.doubt_unsettled_steps(InDoubt(reason="drained", message="the worker was stopped"))
        for ref, call in unanswered(self.turn):
            flight = self.flights.get(ref.id)
            if flight is not None and flight.outcome is not None:
                self._settle(flight, flight.outcome)
            elif flight is not None and flight.dispatched and flight.effect == "once":
                message = "the worker was stopped while the call ran"
                doubt = InDoubt(reason="drained", message=message, left_running=flight.left_running)
                self.controller.record(settlement(ref, call.request, doubt))
        await self._hand_over_reply()
        self.flights.clear()

    async def _hand_over_reply(self) -> None:
        """Record a model reply that arrived just in time, or the usage of a call that will get none."""
        ref = awaited(self.turn)
        flight = self.flights.get(ref.id) if ref else None
        if flight is not None and flight.outcome is not None:
            self._settle(flight, flight.outcome)
        elif flight is not None and (left := left_asking(self.turn)) is not None:
            self.controller.record(await self.lost_reply(left))


def _is_doubt(outcome: Outcome) -> bool:
    match outcome:
        case ToolCallOutcome(launch=Done(result=CompletedToolCall(output=InDoubt()))):
            return True
        case _:
            return False


def _is_purchase(record: Record) -> bool:
    """Return True if the record belongs to a model call made by a tool."""
    match record:
        case EffectStarted(estimated_usage=DirectUsage()) | EffectSettled(outcome=DirectOutcome()) | ModelJobBegun():
            return True
        case _:
            return False


def _is_asking(record: Record) -> bool:
    """Return True if the record only begins a tool's model call or ends it as lost.

    Neither is progress: a call that kills its workers gets that far each time.
    """
    match record:
        case (
            EffectStarted(estimated_usage=DirectUsage())
            | EffectSettled(outcome=DirectOutcome(error=LlmError(kind="worker_lost")))
        ):
            return True
        case _:
            return False


def _id(item: Owed) -> EffectId | None:
    return None if isinstance(item, EndTurn) else item.ref.id
