"""Driving one turn: the loop that every turn goes through, live, resumed, streamed or simulated.

Look at what is owed, begin what has not begun, wait for something to arrive, record it, look again. All state worth
keeping is in the turn (a fold of its records); what is here are tasks, which a crash may take.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Iterable, Sequence

from msgspec.structs import replace

from perdure.commit.plan import Blob
from perdure.effects.controller import Begun, Care, JournaledController, Local
from perdure.effects.journal import journal_of
from perdure.errors import Code, Error
from perdure.ids import BlobHash, CallId, EffectId, PromiseId
from perdure.inbox.admit import Delivery
from perdure.runtime.calls import jobs
from perdure.runtime.calls.honesty import LEFT_BEHIND, with_steps
from perdure.runtime.calls.lost import Saying, left_asked, unwanted
from perdure.runtime.calls.runners import Runner, Runners, Surroundings
from perdure.runtime.turns.cancelling import end_cancelled
from perdure.runtime.turns.consent import Consents
from perdure.runtime.turns.envelopes import Where
from perdure.runtime.turns.flights import Flight
from perdure.runtime.turns.preparing import Preparations
from perdure.runtime.turns.starts import begin, body_of, has_begun
from perdure.runtime.worker.owned import OwnedStream
from perdure.runtime.worker.patience import Patience
from perdure.runtime.worker.permits import TurnPermits
from perdure.runtime.worker.waits import Waits
from perdure.session.redaction import caches_of
from perdure.tools.endings import Parked
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
from perdure.vocab.approvals import Decision, approved, lapsed, refused
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
    AttachmentKept,
    CancelRequested,
    EffectSettled,
    EffectStarted,
    GrantMade,
    ModelJobBegun,
    OutcomeArrivedLate,
    Record,
    TurnEnded,
)
from perdure.vocab.refs import EffectRef, is_part, outer_body
from perdure.vocab.usage import Usage

log = logging.getLogger("perdure.runtime")

GRACE_S = 0.1
"""How long a cancelled tool may take to say how it ended: a little longer than its runner waits for it."""


class TurnDriver:
    """Drives one turn of one owned stream to its end. It is the ledger of its own controller."""

    def __init__(
        self, turn: Turn, records: list[Record], where: Where, owned: OwnedStream, around: Surroundings
    ) -> None:
        self.turn = turn
        self.records = records
        self.worker = owned.worker
        self.where = where
        self.owned = owned
        self.around = around
        journal = journal_of(records)
        self.controller = JournaledController(journal, self)
        self.flights: dict[EffectId, Flight] = {}
        self._news = asyncio.Event()
        self.landed: list[Flight] = []
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
        self.consents = Consents(self.runners.prepare_context, self.durable, self._news.set)
        self._withdrawals: set[asyncio.Task[object]] = set()
        self.leaves: dict[PromiseId, tuple[RunCall, Decision]] = {}
        self.permits = TurnPermits(around.permits, owned.stream, self._news.set)
        self._patience = Patience(self.waits, around.lounge, around.clock, around.opened_at)
        self._hurried = False
        self._heard = False
        self._paused = False
        self._stands_still = False
        self.refusal: Error | None = None

    # --- the ledger: every fact goes to the machine and to the stream at once

    def submit(self, *records: Record, sends: tuple[Delivery, ...] = ()) -> None:
        """Fold facts into the turn and hand them to the stream."""
        for record in records:
            self.turn = advance(self.turn, record)
            self.records.append(record)
            self._stands_still = self._stands_still and _is_asking(record)
        if self._stands_still and records:
            self.owned.recover()
        if self.turn.ended is not None:
            self._drop_caches()
        self.owned.submit_all(records, sends=sends)

    def so_far(self) -> Turn:
        """The turn with what its running calls have bought and nobody has recorded yet."""
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
        """Let go of bytes with the next append."""
        self.owned.drop(*hashes)

    def attach(self, call: CallId, blob: Blob) -> None:
        """Store bytes that a call keeps, and say so in the log: what nobody refers to nobody can take with them, or
        take away."""
        ref = AttachmentRef(hash=blob.hash, media_type=blob.media_type, size=len(blob.data))
        kept = AttachmentKept(call=call, ref=ref)
        if kept not in self.records:
            self.keep(blob)
            self.submit(kept)

    def lease_live(self) -> bool:
        """Whether our lease has certainly not lapsed."""
        return self.owned.lease_live()

    async def reassert(self) -> None:
        """Renew a lapsed lease, or raise `lease_lost`."""
        await self.owned.reassert()

    # --- what others tell a running turn

    def learn(self, request: CancelRequested) -> None:
        """A cancel request that is in the log already: what has not begun yet does not begin any more."""
        self.turn = advance(self.turn, request)
        if self.turn.cancel and not self.turn.ended:
            for flight in self.flights.values():
                if not flight.dispatched:
                    flight.cancellation.cancel()
        self._news.set()

    def interrupt(self, request: CancelRequested) -> None:
        """An input waits that ends this turn. The request takes the gate, if nobody has."""
        if not (self.turn.cancel or self.turn.ended):
            self.submit(request)
            self._news.set()

    def hold(self, *, paused: bool) -> None:
        """The session is paused, or goes on. What is under way goes on to its end; nothing else begins meanwhile."""
        self._paused = paused
        self._news.set()

    def late(self, record: OutcomeArrivedLate, inbox_id: int) -> None:
        """A former worker reports how a call really ended."""
        self.turn = advance(self.turn, record)
        self.records.append(record)
        self.owned.submit(record, consume=(inbox_id,))
        self._news.set()

    def hear(self) -> None:
        """A session that the turn may wait for has told its end, and what would have woken the turn is used up."""
        self._heard = True

    async def look(self) -> None:
        """Something that the turn waits for may have been answered in another process."""
        await self.waits.look()

    def refused(self, error: Error) -> None:
        """The store refused an append: everything begun on top of it must end."""
        self.refusal = error
        self._news.set()

    def withdrawn(self, records: tuple[Record, ...], problem: Error) -> None:
        """Calls that somebody had allowed do not begin: that was revoked, cancelled or had expired when the store
        judged it. Their records were not written, nor what shared their append; the turn stands where it stood. What
        was bought meanwhile needed nobody's leave, and is written again."""
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
                flight.put_aside()  # a body is entered again, and finds that it has no leave
                flight.shut()
                flight.stop()
        leave = self.leaves.get(PromiseId(str(problem.details.get("promise"))))
        if problem.code is Code.APPROVAL_STALE and leave is not None and not (self.turn.cancel or self.turn.ended):
            self._lapse(*leave)
        if bought:
            self.owned.submit(*bought)
        self._news.set()

    def _flight_of(self, effect: EffectId) -> Flight | None:
        """What is under way by this id, or the call whose body it is a part of."""
        if not is_part(effect):
            return self.flights.get(effect)
        body = outer_body(effect)
        calls = (one for one in self.flights.values() if isinstance(one.owed, RunCall))
        return next((one for one in calls if isinstance(one.owed, RunCall) and body_of(one.owed) == body), None)

    def _lapse(self, item: RunCall, decision: Decision) -> None:
        """By the store's clock it is too late for this call, whatever ours says. If the decision was not recorded
        before, whoever waits for it finds out."""
        for ref, call in unanswered(self.turn):
            if ref == item.ref and call.decision is not None:
                self.controller.record(settlement(ref, call.request, refused(lapsed(decision))))

    # --- the loop

    async def run(self) -> TurnEnded | None:
        """Drive the turn to its end, and return once the end is durable; or None, once it is durably parked, or
        somebody else's (`turn.changes_hands`).

        Raises:
            Error: why the store refused to go on. Nothing that was begun here may be continued.
        """
        try:
            return await self._run()
        finally:
            self.preparations.stop()
            self.consents.stop()
            self.permits.only(())
            for flight in self.flights.values():
                if flight.effect != "once":  # what became of those is told by whoever outlives this
                    flight.shut()

    async def _run(self) -> TurnEnded | None:
        await self._end_what_was_left()
        if (ref := left_asking(self.turn)) is not None and not self.turn.cancel:
            lost = await self.lost_reply(ref)
            self.owned.recover()
            self.controller.record(lost)
        while True:
            self.settle_landed()
            if self.turn.cancel and not self.turn.ended:
                await end_cancelled(self)
            elif not self.turn.ended:
                self._begin_owed()
            if self.turn.ended:
                for flight in self.flights.values():
                    flight.stop()
                await self.durable()
                return self.turn.ended
            if self.turn.changes_hands and not self.turn.cancel:
                await self.durable()
                return None
            if not self.landed and await self._wait_long_enough() and await self._park():
                return None
            self._news.clear()
            if self.refusal:
                raise self.refusal

    async def _end_what_was_left(self) -> None:
        """What a worker that is gone had begun of the calls: some of it is in doubt, and what was asked was bought."""
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
        """Wait for news. True if there is none, nothing is under way, and waiting in memory has lasted long enough."""
        if self.refusal:
            return False
        left_to_others = self.permits.in_line and self.around.permits.leaving
        if (self._paused or left_to_others) and not (self.flights or self._thinking):
            return True
        patience = self._patience.left_s(self.flights.values(), hurried=self._hurried or self._paused)
        if patience is None or self._thinking or self.permits.worth_waiting:
            await self._news.wait()
            return False
        self._news.clear()  # that is what the news was about
        lounge = self.around.lounge
        if not (self._hurried or self._paused) and patience > 0:
            lounge.sit(self.owned.stream, self._hurry)
        try:
            async with asyncio.timeout(patience):
                await self._news.wait()
        except TimeoutError:
            return self._may_park()
        finally:
            lounge.leave(self.owned.stream)
        return False

    def _may_park(self) -> bool:
        """Whether it is still so that nothing but waiting is under way: a body may have begun a step meanwhile."""
        if self.refusal or self.landed or self._news.is_set() or self._thinking or self.permits.worth_waiting:
            return False
        return self._patience.left_s(self.flights.values(), hurried=True) == 0.0

    @property
    def _thinking(self) -> bool:
        """Whether somebody else's code is being asked about a call that has not begun."""
        return self.preparations.under_way or self.consents.under_way

    def _hurry(self) -> None:
        self._hurried = True
        self._news.set()

    async def _park(self) -> bool:
        """Unwind what waits and give the stream up. False if an answer came meanwhile: then everything goes on."""
        self._hurried = False
        heard, self._heard = self._heard, False
        promises, due_at = (
            self.waits.promises,
            self._patience.look_again_at(self.flights.values(), in_line=self.permits.in_line and not self._paused),
        )
        await self._unwind()
        self.flights.clear()
        self.landed.clear()
        if self.turn.cancel or heard or self._heard:
            return False  # learned meanwhile, and what would have woken the stream is used up
        return await self.owned.park(promises, due_at)

    async def _unwind(self) -> None:
        for flight in self.flights.values():
            flight.put_aside()
        self.waits.unwind()
        tasks = [flight.task for flight in self.flights.values() if flight.task]
        if tasks:
            await asyncio.wait(tasks, timeout=GRACE_S)
        for flight in self.flights.values():
            flight.shut()  # if it does not come back, whatever it still does is refused
        for task in tasks:
            task.cancel()

    def settle_landed(self) -> None:
        """Record how what has come back since the last time ended."""
        landed, self.landed = self.landed, []
        landed.sort(key=lambda flight: isinstance(flight.owed, AwaitApproval))
        for flight in landed:
            if flight.outcome is None and self.turn.cancel:
                continue  # it stays in sight: whether it was dispatched decides what the call is told
            if self.flights.get(flight.id) is flight:
                del self.flights[flight.id]
            if flight.outcome is None or flight.id not in self._expected():
                continue
            if self.turn.cancel and isinstance(flight.outcome, LlmCallOutcome):
                self.controller.settle(flight.begun, unwanted(flight.outcome))
                continue
            if isinstance(flight.owed, AwaitApproval):
                self.owned.flush()  # a decision and the start of what it allows are one append, alone
            self._settle(flight, flight.outcome)
            if isinstance(flight.owed, AwaitApproval):
                self._remember(flight.owed, flight.outcome)

    def _expected(self) -> set[EffectId]:
        """The effects whose outcomes count. Cancelling a turn undoes nothing: how a call ended counts all the same."""
        if not self.turn.cancel or self.turn.ended:
            return {item.ref.id for item in owed(self.turn) if not isinstance(item, EndTurn)}
        ends = (RunCall, AwaitCompletion, AwaitVerdict, Probe, AskModel)
        return {item.ref.id for item in owed(replace(self.turn, cancel=None)) if isinstance(item, ends)}

    def _remember(self, asked: AwaitApproval, outcome: Outcome) -> None:
        """An approval for the whole session covers later calls of the tool."""
        decision = approved(outcome.resolution) if isinstance(outcome, AwaitEventOutcome) else None
        if decision is not None and decision.for_session:
            grant = asked.command.key.key_id
            tool, by, at, via = asked.call.name, decision.by, decision.at, decision.via
            self.submit(GrantMade(grant=grant, tool=tool, by=by, at=at, via=via))

    def _settle(self, flight: Flight, outcome: Outcome) -> None:
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
        """Its body is over: a step that it went on without is nobody's any more, and a failure says so."""
        body = body_of(item)
        self.controller.doubt_unsettled_steps(LEFT_BEHIND, body=body)
        self.controller.end_inner_bodies(body=body)
        match outcome:
            case ToolCallOutcome(launch=Done(result=CompletedToolCall(output=Failed() as failed) as result)):
                told = with_steps(failed, self.controller.journal.steps(body))
                return replace(outcome, launch=Done(result=replace(result, output=told)))
            case _:
                return outcome

    def _begin_owed(self) -> None:
        """Begin everything that is owed; something settled on the spot may make something else owed."""
        begun = True
        while begun:
            begun = False
            for item in self._in_order(owed(self.turn)):
                if isinstance(item, EndTurn):
                    self.submit(item.ended)
                elif self._paused:
                    continue
                elif item.ref.id not in self.flights:
                    begun = begin(self, item) or begun
        self.owned.part()
        left = {_id(item) for item in owed(self.turn)}
        self.permits.only(left)
        for stray in self.flights.keys() - left:
            self._drop(self.flights[stray])

    def _drop_caches(self) -> None:
        """Where programs stood that came to no end: nobody goes on from there any more."""
        settled = [record for record in self.records if isinstance(record, EffectSettled)]
        stood = [(record.id, hash) for record in settled for hash in caches_of(record)]
        if not stood:
            return  # as mostly
        ended = {outer_body(record.id) for record in settled if isinstance(record.outcome, ExecCodeOutcome)}
        if left := [hash for id, hash in stood if outer_body(id) not in ended]:
            self.drop(left)

    def _in_order(self, items: Sequence[Owed]) -> Sequence[Owed]:
        """Who asks first for permits: calls that never had one. Others were parked, and which of them has something to
        do only they know: each shall be the first at some time."""
        if not self.around.permits.work.limits:
            return items
        fresh = [item for item in items if not (isinstance(item, RunCall) and has_begun(self, item))]
        again = [item for item in items if item not in fresh]
        return [*fresh, *random.sample(again, len(again))]

    def start(self, item: Effect, described: Envelope, care: Care, runner: Runner) -> bool:
        """Let an effect begin, once it has its permit. True if its outcome is known already."""
        if not self.permits.may_begin(item, self.turn.composition.model):
            return False  # not begun, so nothing is recorded: there is news when it may
        begun = self.controller.begin(described, care)
        if not isinstance(begun, Begun):
            self.turn = advance(self.turn, EffectSettled(id=EffectId(described.id), outcome=begun))
            return True
        flight = Flight(item, begun)
        self.flights[flight.id] = flight
        flight.task = asyncio.create_task(self._fly(flight, runner), name=f"perdure:{flight.id}")
        self.permits.lend(flight.id, flight.task)
        return False

    async def _fly(self, flight: Flight, runner: Runner) -> None:
        async def run(_: Envelope) -> Outcome:
            return await runner(flight)

        try:
            flight.outcome = await self.controller.dispatch(flight.begun, Local(flight.begun.envelope.kind, run))
        except Parked:
            flight.unwound = True
        except Error as problem:
            if self.refusal is None:
                self.refused(problem)
        except Exception as problem:
            log.exception("an effect could not be performed", extra={"turn": self.turn.id, "effect": flight.id})
            self.refused(Error(Code.TURN_FAILED, f"effect {flight.id} broke off", because=type(problem).__name__))
        finally:
            if self.flights.get(flight.id) is flight:  # else the turn went on without it
                if flight.outcome is None and not (flight.unwound or flight.cancellation.cancelled or self.refusal):
                    self._broke_off(flight)
                self.landed.append(flight)
                self._news.set()

    def _broke_off(self, flight: Flight) -> None:
        """It ended without a word, and nobody had stopped it: somebody else's code cancelled itself."""
        if isinstance(flight.owed, AskModel):
            message = "the model client ended without an answer"
            flight.outcome = LlmCallOutcome(error=LlmError(kind="internal", message=message))
        else:
            self.refused(Error(Code.TURN_FAILED, f"effect {flight.id} ended without an outcome"))

    def unconfirmed_once(self) -> tuple[tuple[EffectId, Outcome], ...]:
        """Outcomes of `once` calls that the store has not confirmed: known here, and nowhere else."""
        return tuple((id, outcome) for id, outcome in self._unconfirmed() if self._is_once(id))

    def unsaved(self) -> tuple[tuple[EffectId, Usage], ...]:
        """What model calls cost whose end the store has not confirmed."""
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

    # --- beginning each kind of effect

    # --- endings that are not the model's

    def _drop(self, flight: Flight) -> None:
        """Something made this effect unnecessary (a late outcome made a probe so, or a question)."""
        del self.flights[flight.id]
        flight.stop()
        command = flight.begun.envelope.command
        if isinstance(command, AwaitEvent) and command.about:
            withdrawal: asyncio.Task[object] = asyncio.create_task(self.waits.withdraw(command.key))
            self._withdrawals.add(withdrawal)
            withdrawal.add_done_callback(self._withdrawals.discard)

    async def lost_reply(self, ref: EffectRef) -> EffectSettled:
        """The end of a model call that nobody will answer, with what it bought."""
        flight = self.flights.get(ref.id)
        said = (flight.said or Saying()) if flight is not None else None
        return await self.around.lost(self.turn, self.records, ref.id, said)

    def abandon(self) -> None:
        """The session is gone: stop what runs, and record nothing."""
        for flight in self.flights.values():
            self.note_loose(flight)
            flight.put_aside()
            flight.shut()
            flight.stop()

    def forbid_starts(self) -> None:
        """What has not begun yet shall not begin: everything under way is told to stop."""
        for flight in self.flights.values():
            flight.cancellation.cancel()

    def note_loose(self, flight: Flight | None) -> None:
        """A `once` call that we stop in the middle may go on without us, in a thread or outside."""
        if flight is not None and flight.may_act:
            self.around.on_loose_end()

    async def halt(self) -> None:
        """Ask everything under way to stop, and give it a moment."""
        tasks = [flight.task for flight in self.flights.values() if flight.task and not flight.task.done()]
        for flight in self.flights.values():
            flight.stop()
        if tasks:
            await asyncio.wait(tasks, timeout=GRACE_S)
        for flight in self.flights.values():
            flight.shut()
            self._end_what_it_asked(flight)

    def _end_what_it_asked(self, flight: Flight) -> None:
        """What a call had asked a model when it was stopped was bought."""
        if flight.site is not None and flight.site.left:
            left = [EffectSettled(id=id, outcome=one) for id, one in flight.site.left.items()]
            flight.site.left.clear()
            self.controller.record(*left)

    async def drain(self) -> None:
        """Hand the turn over: running `once` calls are recorded as in doubt, then the stream is released."""
        for flight in self.flights.values():
            flight.put_aside()
            self.note_loose(flight)
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
        """A reply that came in the last moment is kept; of one that will not come, what was bought."""
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
    """Whether it tells of a model call that a tool made."""
    match record:
        case EffectStarted(asks=DirectUsage()) | EffectSettled(outcome=DirectOutcome()) | ModelJobBegun():
            return True
        case _:
            return False


def _is_asking(record: Record) -> bool:
    """Whether it says only that a tool asks a model, or that nobody waits for the answer: a call that kills its workers
    gets that far each time."""
    match record:
        case (
            EffectStarted(asks=DirectUsage()) | EffectSettled(outcome=DirectOutcome(error=LlmError(kind="worker_lost")))
        ):
            return True
        case _:
            return False


def _id(item: Owed) -> EffectId | None:
    return None if isinstance(item, EndTurn) else item.ref.id
