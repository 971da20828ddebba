"""Driving one turn: the loop that every turn goes through, live, resumed, streamed or simulated.

Look at what is owed, begin what has not begun, wait for something to arrive, record it, look again. All state worth
keeping is in the turn (a fold of its records); what is here are tasks, which a crash may take.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from perdure.commit.plan import Ask, Blob
from perdure.effects.controller import Begun, Care, JournaledController, Local
from perdure.effects.journal import EffectJournal
from perdure.effects.promises import TurnScope, unsigned_key
from perdure.errors import Code, Error
from perdure.ids import CallId, EffectId, PromiseId
from perdure.inbox.admit import Delivery
from perdure.runtime.consent import Consents
from perdure.runtime.envelopes import Where, envelope
from perdure.runtime.flights import Flight
from perdure.runtime.honesty import LEFT_BEHIND, with_steps
from perdure.runtime.owned import OwnedStream
from perdure.runtime.patience import Patience
from perdure.runtime.permits import TurnPermits
from perdure.runtime.preparing import Preparations, Ready, UnderWay, identity
from perdure.runtime.runners import Runner, Runners, Surroundings
from perdure.runtime.waits import Waits
from perdure.tools.body import Parked
from perdure.turn.machine import advance, owed, recovery, refolded, settlement, stopped, unanswered
from perdure.turn.state import (
    AskModel,
    AwaitApproval,
    AwaitCompletion,
    AwaitVerdict,
    Call,
    Effect,
    EndTurn,
    Owed,
    Probe,
    RunCall,
    Turn,
    Wait,
)
from perdure.vocab.approvals import Decision, approved, consent_to, lapsed, refused
from perdure.vocab.effects import AwaitEvent, Envelope
from perdure.vocab.messages import AttachmentRef
from perdure.vocab.outcomes import (
    AwaitEventOutcome,
    CompletedToolCall,
    Done,
    DurableStepOutcome,
    Failed,
    Failure,
    InDoubt,
    LlmCallOutcome,
    LlmError,
    NotRun,
    Outcome,
    Pending,
    PendingCompletion,
    ToolCallOutcome,
    ToolOutput,
)
from perdure.vocab.promises import Cancelled, ClientResult, UserAnswer
from perdure.vocab.questions import questions_of, silence
from perdure.vocab.records import (
    AttachmentKept,
    CancelRequested,
    EffectSettled,
    EffectStarted,
    GrantMade,
    OutcomeArrivedLate,
    Record,
    TurnEnded,
    gate_key,
    revocation_key,
)
from perdure.vocab.refs import PartRef, call_body, is_part

log = logging.getLogger("perdure.runtime")

APPROVAL_MS = 24 * 3_600_000
"""How long people have to answer, and their answer holds, unless the tool says otherwise."""

GRACE_S = 0.1
"""How long a cancelled tool may take to say how it ended: a little longer than its runner waits for it."""


@dataclass(frozen=True, slots=True)
class Leave:
    """What allows a call: answers that its start uses up, unless somebody has taken one of these log keys."""

    uses: tuple[PromiseId, ...]
    unless: tuple[str, ...]


class TurnDriver:
    """Drives one turn of one owned stream to its end. It is the ledger of its own controller."""

    def __init__(
        self, turn: Turn, records: list[Record], where: Where, owned: OwnedStream, around: Surroundings
    ) -> None:
        self.turn = turn
        self.records = records
        self.worker = owned.worker
        self._where = where
        self._owned = owned
        self._around = around
        journal = EffectJournal()
        for record in records:
            journal.fold(record)
        self._controller = JournaledController(journal, self)
        self.flights: dict[EffectId, Flight] = {}
        self._news = asyncio.Event()
        self._landed: list[Flight] = []
        self._waits = Waits(around.store, around.clock, self._news.set)
        self._runners = Runners(self, journal, where, around, self._waits)
        self._preparations = Preparations(
            around.toolbox,
            journal,
            self._runners.prepare_context,
            self.durable,
            self._news.set,
            visible=turn.composition.names,
        )
        self._consents = Consents(self._runners.prepare_context, self.durable, self._news.set)
        self._withdrawals: set[asyncio.Task[object]] = set()
        self._leaves: dict[PromiseId, tuple[RunCall, Decision]] = {}
        self._permits = TurnPermits(around.permits, owned.stream, self._news.set)
        self._patience = Patience(self._waits, around.lounge, around.clock, around.opened_at)
        self._hurried = False
        self._heard = False
        self._paused = False
        self.refusal: Error | None = None

    # --- the ledger: every fact goes to the machine and to the stream at once

    def submit(self, *records: Record, sends: tuple[Delivery, ...] = ()) -> None:
        """Fold facts into the turn and hand them to the stream."""
        for record in records:
            self.turn = advance(self.turn, record)
            self.records.append(record)
        self._owned.submit(*records, sends=sends)

    async def durable(self) -> None:
        """Wait until everything submitted so far is durable."""
        await self._owned.durable()

    def keep(self, *blobs: Blob) -> None:
        """Store bytes with the next append."""
        self._owned.blob(*blobs)

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
        return self._owned.lease_live()

    async def reassert(self) -> None:
        """Renew a lapsed lease, or raise `lease_lost`."""
        await self._owned.reassert()

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
        self._owned.submit(record, consume=(inbox_id,))
        self._news.set()

    def hear(self) -> None:
        """A session that the turn may wait for has told its end, and what would have woken the turn is used up."""
        self._heard = True

    async def look(self) -> None:
        """Something that the turn waits for may have been answered in another process."""
        await self._waits.look()

    def refused(self, error: Error) -> None:
        """The store refused an append: everything begun on top of it must end."""
        self.refusal = error
        self._news.set()

    def withdrawn(self, records: tuple[Record, ...], problem: Error) -> None:
        """Calls that somebody had allowed do not begin: that was revoked, cancelled or had expired when the store
        judged it. Their records were not written, nor what shared their append; the turn stands where it stood."""
        gone = {id(record) for record in records}
        self.records[:] = [record for record in self.records if id(record) not in gone]
        self.turn = replace(refolded(self.turn, self.records), cancel=self.turn.cancel)
        for record in records:
            self._controller.journal.unfold(record)
            flight = self.flights.pop(record.id, None) if isinstance(record, EffectStarted) else None
            if flight is not None:
                flight.shut()
                flight.stop()
        leave = self._leaves.get(PromiseId(str(problem.details.get("promise"))))
        if problem.code is Code.APPROVAL_STALE and leave is not None and not (self.turn.cancel or self.turn.ended):
            self._lapse(*leave)
        self._news.set()

    def _lapse(self, item: RunCall, decision: Decision) -> None:
        """By the store's clock it is too late for this call, whatever ours says. If the decision was not recorded
        before, whoever waits for it finds out."""
        for ref, call in unanswered(self.turn):
            if ref == item.ref and call.decision is not None:
                self._controller.record(settlement(ref, call.request, refused(lapsed(decision))))

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
            self._preparations.stop()
            self._consents.stop()
            self._permits.only(())
            for flight in self.flights.values():
                if flight.effect != "once":  # what became of those is told by whoever outlives this
                    flight.shut()

    async def _run(self) -> TurnEnded | None:
        self._controller.record(*recovery(self.turn))
        self._controller.doubt_unsettled_steps(InDoubt(reason="worker_lost"))
        while True:
            self._settle_landed()
            if self.turn.cancel and not self.turn.ended:
                await self._end_cancelled()
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
            if not self._landed and await self._wait_long_enough() and await self._park():
                return None
            self._news.clear()
            if self.refusal:
                raise self.refusal

    async def _wait_long_enough(self) -> bool:
        """Wait for news. True if there is none, nothing is under way, and waiting in memory has lasted long enough."""
        if self.refusal:
            return False
        left_to_others = self._permits.in_line and self._around.permits.leaving
        if (self._paused or left_to_others) and not (self.flights or self._thinking):
            return True
        patience = self._patience.left_s(self.flights.values(), hurried=self._hurried or self._paused)
        if patience is None or self._thinking or self._permits.worth_waiting:
            await self._news.wait()
            return False
        self._news.clear()  # that is what the news was about
        lounge = self._around.lounge
        if not (self._hurried or self._paused) and patience > 0:
            lounge.sit(self, self._hurry)
        try:
            async with asyncio.timeout(patience):
                await self._news.wait()
        except TimeoutError:
            return self._may_park()
        finally:
            lounge.leave(self)
        return False

    def _may_park(self) -> bool:
        """Whether it is still so that nothing but waiting is under way: a body may have begun a step meanwhile."""
        if self.refusal or self._landed or self._news.is_set() or self._thinking or self._permits.worth_waiting:
            return False
        return self._patience.left_s(self.flights.values(), hurried=True) == 0.0

    @property
    def _thinking(self) -> bool:
        """Whether somebody else's code is being asked about a call that has not begun."""
        return self._preparations.under_way or self._consents.under_way

    def _hurry(self) -> None:
        self._hurried = True
        self._news.set()

    async def _park(self) -> bool:
        """Unwind what waits and give the stream up. False if an answer came meanwhile: then everything goes on."""
        self._hurried = False
        heard, self._heard = self._heard, False
        promises, due_at = (
            self._waits.promises,
            self._patience.look_again_at(self.flights.values(), in_line=self._permits.in_line and not self._paused),
        )
        await self._unwind()
        self.flights.clear()
        self._landed.clear()
        if self.turn.cancel or heard or self._heard:
            return False  # learned meanwhile, and what would have woken the stream is used up
        return await self._owned.park(promises, due_at)

    async def _unwind(self) -> None:
        for flight in self.flights.values():
            flight.put_aside()
        self._waits.unwind()
        tasks = [flight.task for flight in self.flights.values() if flight.task]
        if tasks:
            await asyncio.wait(tasks, timeout=GRACE_S)
        for flight in self.flights.values():
            flight.shut()  # if it does not come back, whatever it still does is refused
        for task in tasks:
            task.cancel()

    def _settle_landed(self) -> None:
        landed, self._landed = self._landed, []
        landed.sort(key=lambda flight: isinstance(flight.owed, AwaitApproval))
        for flight in landed:
            if flight.outcome is None and self.turn.cancel:
                continue  # it stays in sight: whether it was dispatched decides what the call is told
            if self.flights.get(flight.id) is flight:
                del self.flights[flight.id]
            if flight.outcome is None or flight.id not in self._expected():
                continue
            if isinstance(flight.owed, AwaitApproval):
                self._owned.flush()  # a decision and the start of what it allows are one append, alone
            self._settle(flight, flight.outcome)
            if isinstance(flight.owed, AwaitApproval):
                self._remember(flight.owed, flight.outcome)

    def _expected(self) -> set[EffectId]:
        """The effects whose outcomes count. Cancelling a turn undoes nothing: how a call ended counts all the same."""
        if not self.turn.cancel or self.turn.ended:
            return {item.ref.id for item in owed(self.turn) if not isinstance(item, EndTurn)}
        ends = (RunCall, AwaitCompletion, AwaitVerdict, Probe)
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
            self._around.on_loose_end()
        self.keep(*flight.blobs)
        if flight.site is not None:
            for blob in flight.site.attached:
                self.attach(flight.site.call, blob)
        if flight.effect == "resumable" and isinstance(flight.owed, RunCall):
            outcome = self._without_loose_steps(flight.owed, outcome)
        self._controller.settle(flight.begun, outcome)

    def _without_loose_steps(self, item: RunCall, outcome: Outcome) -> Outcome:
        """Its body is over: a step that it went on without is nobody's any more, and a failure says so."""
        body = _body(item)
        self._controller.doubt_unsettled_steps(LEFT_BEHIND, body=f"{body}/")
        match outcome:
            case ToolCallOutcome(launch=Done(result=CompletedToolCall(output=Failed() as failed) as result)):
                told = with_steps(failed, self._controller.journal.steps(body))
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
                    begun = self._begin(item) or begun
        self._owned.part()
        left = {_id(item) for item in owed(self.turn)}
        self._permits.only(left)
        for stray in self.flights.keys() - left:
            self._drop(self.flights[stray])

    def _in_order(self, items: Sequence[Owed]) -> Sequence[Owed]:
        """Who asks first for permits: calls that never had one. Others were parked, and which of them has something to
        do only they know: each shall be the first at some time."""
        if not self._around.permits.work.limits:
            return items
        fresh = [item for item in items if not (isinstance(item, RunCall) and self._has_begun(item))]
        again = [item for item in items if item not in fresh]
        return [*fresh, *random.sample(again, len(again))]

    def _begin(self, item: Effect) -> bool:
        """Begin one effect. True if it was settled on the spot, so that what is owed has changed."""
        try:
            if isinstance(item, RunCall):
                return self._begin_call(item)
            ran = self._preparations.sealed(item) if isinstance(item, AwaitVerdict) else None
            described = envelope(self._where, self.turn, item, ran)
            match item:
                case AskModel():
                    self._take_in()
                    care = Care(effect="pure", record_start=True, keep_command=False)
                    return self._start(item, described, care, self._runners.model(item))
                case Wait():
                    return self._begin_wait(item, described)
                case AwaitCompletion():
                    care = Care(effect="pure", record_start=True, due_at=item.pending.due_at)
                    return self._start(item, described, care, self._runners.completion(item))
                case AwaitApproval():
                    care = Care(effect="pure", record_start=True, due_at=item.due_at)
                    return self._start(item, described, care, self._runners.approval(item))
                case AwaitVerdict():
                    return self._begin_verdict(item, described)
                case Probe():
                    return self._begin_probe(item, described)
        except Error as problem:
            if problem.code is not Code.REPLAY_MISMATCH:
                raise
            return self._mismatch(item, problem)

    def _take_in(self) -> None:
        """The model is about to be asked: whatever was sent to the running turn is said to it now, and is not waiting
        any more. In an append of its own, which fails if somebody took such an input back or cancelled it this moment.
        """
        joining = self._around.joining(self.turn)
        if joining:
            self._owned.flush()
        for one in joining:
            self.turn = advance(self.turn, one.said)
            self.records.append(one.said)
            self._owned.submit(one.said, consume=(one.row,))
        self._owned.need((), tuple(gate_key(one.asked_for) for one in joining))

    def _start(self, item: Effect, described: Envelope, care: Care, runner: Runner) -> bool:
        if not self._permits.may_begin(item, self.turn.composition.model):
            return False  # not begun, so nothing is recorded: there is news when it may
        begun = self._controller.begin(described, care)
        if not isinstance(begun, Begun):
            self.turn = advance(self.turn, EffectSettled(id=EffectId(described.id), outcome=begun))
            return True
        flight = Flight(item, begun)
        self.flights[flight.id] = flight
        flight.task = asyncio.create_task(self._fly(flight, runner), name=f"perdure:{flight.id}")
        self._permits.lend(flight.id, flight.task)
        return False

    async def _fly(self, flight: Flight, runner: Runner) -> None:
        async def run(_: Envelope) -> Outcome:
            return await runner(flight)

        try:
            flight.outcome = await self._controller.dispatch(flight.begun, Local(flight.begun.envelope.kind, run))
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
                self._landed.append(flight)
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
        settled = [record for record in self._owned.undurable() if isinstance(record, EffectSettled)]
        landed = [(flight.id, flight.outcome) for flight in self._landed if flight.outcome]
        known = [*((record.id, record.outcome) for record in settled), *landed]
        return tuple((id, outcome) for id, outcome in known if self._is_once(id))

    def _is_once(self, effect: EffectId) -> bool:
        started = self._controller.journal.started(effect)
        return started is not None and started.effect == "once"

    # --- beginning each kind of effect

    def _begin_call(self, item: RunCall) -> bool:
        ready = self._preparations.of(item)
        if isinstance(ready, UnderWay):
            return False
        if not isinstance(ready, Ready):
            told = with_steps(ready, self._controller.journal.steps(_body(item)))
            self._controller.record(settlement(item.ref, item.call, told))
            return True
        if ready.prepared.contract.client_side:
            self._controller.record(self._left_to_client(item, ready))
            return True
        begun_before = self._has_begun(item)
        if item.decision is None and not begun_before:
            match self._consents.needed(item, ready):
                case UnderWay():
                    return False
                case True:
                    return self._ask(item, ready)
                case False:
                    pass
        described = envelope(self._where, self.turn, item, ready.call)
        durability = ready.prepared.contract.durability
        timeout = durability.timeout_ms
        care = Care(
            effect=durability.effect,
            doubt=durability.doubt,
            deadline_at=self._around.clock.wall_ms() + timeout if timeout else None,
            record_start=ready.recorded or ready.prepared.has_predicate,
            keep_command=ready.recorded,
            leave=item.decision is not None,
        )
        if not self._permits.may_begin(item, self.turn.composition.model):
            return False  # before anybody's leave is used up: that belongs to the append that begins it
        if item.decision is not None and not begun_before:
            leave = self._leave(item, item.decision)
            if not isinstance(leave, Leave):
                self._controller.record(settlement(item.ref, item.call, leave))
                return True
            self._owned.need(leave.uses, leave.unless, on_trial=True)
            self._leaves.update(dict.fromkeys(leave.uses, (item, item.decision)))
        return self._start(item, described, care, self._runners.tool(item, ready))

    def _left_to_client(self, item: RunCall, ready: Ready) -> EffectSettled:
        """A call that is run elsewhere is pending from the start: nothing is dispatched, so nothing can be in doubt."""
        call, timeout = item.call, ready.prepared.durability.timeout_ms
        asked = questions_of(call.args) if getattr(ready.prepared.tool, "asks_person", False) else ()
        wait = UserAnswer(call_id=call.id) if asked else ClientResult(call_id=call.id)
        pending = Pending(
            key=unsigned_key(TurnScope(self._where.tenant, self._where.session, self.turn.id).id, wait),
            pending=PendingCompletion(deadline_ms=timeout),
            due_at=self._around.clock.wall_ms() + timeout if timeout else None,
            silence=silence(asked),
        )
        return EffectSettled(id=item.ref.id, outcome=ToolCallOutcome(launch=pending))

    def _has_begun(self, item: RunCall) -> bool:
        """Whether an attempt of this call has begun: then nobody is asked about it any more."""
        refs = (replace(item.ref, attempt=attempt) for attempt in range(1, item.ref.attempt + 1))
        return any(self._controller.journal.started(ref.id) for ref in refs)

    def _ask(self, item: RunCall, ready: Ready) -> bool:
        """Ask people to allow a call, exactly as it would run; a grant that they gave for the session is an answer."""
        now = self._around.clock.wall_ms()
        patience = ready.prepared.durability.approval_ms
        due_at = now + (APPROVAL_MS if patience is None else patience)
        scope = TurnScope(self._where.tenant, self._where.session, self.turn.id)
        key = unsigned_key(scope.id, consent_to(item.call.id, item.call.name, ready.call.args))
        wait = AwaitApproval(
            replace(item.ref, tail="approval"), item.call, AwaitEvent(key=key, about=ready.call), due_at
        )
        described = envelope(self._where, self.turn, wait)
        care = Care(effect="pure", record_start=True, due_at=due_at)
        grant = self._around.grant(item.call.name)
        if grant is None:
            settled = self._start(wait, described, care, self._runners.approval(wait))
            self._owned.ask(Ask(key.key_id, "approval", now, due_at))
            return settled
        self._owned.flush()  # using a grant and the start of what it allows are one append, alone
        begun = self._controller.begin(described, care)
        if isinstance(begun, Begun):
            use = Decision(verdict="approve", by=grant.by, at=now, via="grant", grant=grant.grant)
            self._controller.settle(begun, AwaitEventOutcome(resolution=use.resolution))
        return True

    def _leave(self, item: RunCall, decision: Decision) -> Leave | ToolOutput:
        """What the start of an allowed call uses up, and what would forbid it: that it was cancelled or revoked.

        The output of a call whose leave is over, if its decision was recorded and its start was not.
        """
        gate = gate_key(self.turn.id)
        if decision.grant:
            grant = self._around.grant(item.call.name)
            if grant is None or grant.grant != decision.grant:
                return refused(Cancelled())
            return Leave((), (gate, revocation_key(decision.grant)))
        asked = self._preparations.question(item)
        if asked is None or not isinstance(asked.command, AwaitEvent):
            return refused(Cancelled())
        if asked.due_at is not None and asked.due_at <= self._around.clock.wall_ms():
            return refused(lapsed(decision))
        return Leave((asked.command.key.key_id,), (gate,))

    def _begin_verdict(self, item: AwaitVerdict, described: Envelope) -> bool:
        patience = item.contract.durability.approval_ms if item.contract else None
        now = self._around.clock.wall_ms()
        due_at = now + (APPROVAL_MS if patience is None else patience)
        new = self._controller.journal.started(item.ref.id) is None
        care = Care(effect="pure", record_start=True, due_at=due_at)
        settled = self._start(item, described, care, self._runners.verdict(item))
        if new and isinstance(described.command, AwaitEvent):
            self._owned.ask(Ask(described.command.key.key_id, "doubt", now, due_at))
        return settled

    def _begin_probe(self, item: Probe, described: Envelope) -> bool:
        sealed = self._preparations.sealed(item)
        prepared = self._around.toolbox.prepare(item.call, item.contract, sealed)
        if isinstance(prepared, Failure) or prepared.tool.probe is None:
            unknown = DurableStepOutcome(value={"verdict": "unknown", "reason": "the probe does not exist any more"})
            self._controller.record(EffectSettled(id=item.ref.id, outcome=unknown))
            return True

        ready = Ready(prepared, sealed or identity(item, prepared.contract), recorded=False)
        return self._start(item, described, Care(effect="pure"), self._runners.probe(item, ready))

    def _begin_wait(self, item: Wait, described: Envelope) -> bool:
        due_at = item.due_at if item.due_at is not None else self._around.clock.wall_ms() + item.duration_ms
        care = Care(effect="pure", record_start=True, due_at=due_at)
        return self._start(item, described, care, self._runners.sleep(due_at))

    def _mismatch(self, item: Effect, problem: Error) -> bool:
        log.error("%s", problem, extra={"session": self._where.session, "turn": self.turn.id})
        if isinstance(item, RunCall):
            failure = Failure(code=problem.code.value, message=problem.message, failure_class="invalid")
            self._controller.record(settlement(item.ref, item.call, Failed(failure=failure)))
        else:
            self.submit(stopped(self.turn, "replay_mismatch", problem.message))
        return True

    # --- endings that are not the model's

    def _drop(self, flight: Flight) -> None:
        """Something made this effect unnecessary (a late outcome made a probe so, or a question)."""
        del self.flights[flight.id]
        flight.stop()
        command = flight.begun.envelope.command
        if isinstance(command, AwaitEvent) and command.about:
            withdrawal: asyncio.Task[object] = asyncio.create_task(self._waits.withdraw(command.key))
            self._withdrawals.add(withdrawal)
            withdrawal.add_done_callback(self._withdrawals.discard)

    async def _end_cancelled(self) -> None:
        """Somebody cancelled the turn: stop what runs, answer every call, end."""
        for flight in self.flights.values():
            flight.put_aside()
        await self.halt()
        self._controller.doubt_unsettled_steps(InDoubt(reason="cancelled"))
        await self._forget_events()
        self._settle_landed()  # what came while it was halted: a call may now be pending, in doubt, or have failed
        for ref, call in unanswered(self.turn):
            flight = self.flights.get(ref.id)
            if call.pending is not None:
                telling = call.pending.pending.on_cancel == "cancel_external_work"
                ended = AwaitEventOutcome(resolution=await self._waits.withdraw(call.pending.key, telling=telling))
                self._controller.record(EffectSettled(id=replace(ref, tail="completion").id, outcome=ended))
            elif call.undecided is not None:
                await self._withdraw_question(call.undecided)
                superseded = AwaitEventOutcome(resolution=Cancelled())  # whatever was decided in the last moment
                self._controller.record(EffectSettled(id=replace(ref, tail="approval").id, outcome=superseded))
            elif call.doubt is not None and call.policy == "ask":
                asked = self._controller.journal.started(replace(ref, tail="doubt").id)
                await self._withdraw_question(asked)
                left = AwaitEventOutcome(resolution=Cancelled())
                self._controller.record(EffectSettled(id=replace(ref, tail="doubt").id, outcome=left))
            elif call.doubt is not None:
                unknown = DurableStepOutcome(value={"verdict": "unknown", "reason": "the turn was cancelled"})
                self._controller.record(EffectSettled(id=replace(ref, tail="probe").id, outcome=unknown))
            else:
                self._note_loose(flight)
                self._controller.record(settlement(ref, call.request, self._cut_short(flight, call)))
        self.flights.clear()
        self._landed.clear()
        reason = self.turn.cancel.reason if self.turn.cancel else ""
        self.submit(stopped(self.turn, "cancelled", reason or "cancelled on request"))

    async def _withdraw_question(self, asked: EffectStarted | None) -> None:
        """Nobody need answer it any more; whoever does is told so."""
        if asked is not None and isinstance(asked.command, AwaitEvent):
            await self._waits.withdraw(asked.command.key)

    async def _forget_events(self) -> None:
        """Nobody waits any more for the events of this turn."""
        for started in self._controller.journal.unsettled():
            if isinstance(started.command, AwaitEvent) and is_part(started.id):
                ended = AwaitEventOutcome(resolution=await self._waits.withdraw(started.command.key))
                self._controller.record(EffectSettled(id=started.id, outcome=ended))

    def _cut_short(self, flight: Flight | None, call: Call) -> ToolOutput:
        """How a call ended that was stopped; a body as what its steps ended with."""
        if call.started is None or call.started.effect != "resumable":
            return _cut_short(flight, call.failures)
        iteration = self.turn.iteration
        for doubtful in self._controller.journal.doubtful():
            part = PartRef.parse(doubtful) if is_part(doubtful) else None
            if part and (part.iteration, part.index) == (iteration, call.index):
                return InDoubt(reason="cancelled", message=f"the turn was cancelled during the step {part.name}")
        message = "the turn was cancelled while the call was under way; the steps it had finished stand"
        return Failed(failure=Failure(code="tool_cancelled", message=message, failure_class="cancelled"))

    def abandon(self) -> None:
        """The session is gone: stop what runs, and record nothing."""
        for flight in self.flights.values():
            self._note_loose(flight)
            flight.put_aside()
            flight.shut()
            flight.stop()

    def forbid_starts(self) -> None:
        """What has not begun yet shall not begin: everything under way is told to stop."""
        for flight in self.flights.values():
            flight.cancellation.cancel()

    def _note_loose(self, flight: Flight | None) -> None:
        """A `once` call that we stop in the middle may go on without us, in a thread or outside."""
        if flight is not None and flight.may_act:
            self._around.on_loose_end()

    async def halt(self) -> None:
        """Ask everything under way to stop, and give it a moment."""
        tasks = [flight.task for flight in self.flights.values() if flight.task and not flight.task.done()]
        for flight in self.flights.values():
            flight.stop()
        if tasks:
            await asyncio.wait(tasks, timeout=GRACE_S)
        for flight in self.flights.values():
            flight.shut()

    async def drain(self) -> None:
        """Hand the turn over: running `once` calls are recorded as in doubt, then the stream is released."""
        abandoned = self._around.threads.abandoned
        for flight in self.flights.values():
            flight.put_aside()
            self._note_loose(flight)
        await self.halt()
        self._controller.doubt_unsettled_steps(InDoubt(reason="drained", message="the worker was stopped"))
        left_running = self._around.threads.abandoned > abandoned
        for ref, call in unanswered(self.turn):
            flight = self.flights.get(ref.id)
            if flight is not None and flight.outcome is not None:
                self._settle(flight, flight.outcome)
            elif flight is not None and flight.dispatched and flight.effect == "once":
                message = "the worker was stopped while the call ran"
                doubt = InDoubt(reason="drained", message=message, left_running=left_running)
                self._controller.record(settlement(ref, call.request, doubt))
        self.flights.clear()


def _is_doubt(outcome: Outcome) -> bool:
    match outcome:
        case ToolCallOutcome(launch=Done(result=CompletedToolCall(output=InDoubt()))):
            return True
        case _:
            return False


def _body(item: RunCall) -> str:
    """What the parts of a call are named after."""
    assert item.ref.index is not None
    return call_body(item.ref.iteration, item.ref.index)


def _id(item: Owed) -> EffectId | None:
    return None if isinstance(item, EndTurn) else item.ref.id


def _cut_short(flight: Flight | None, failures: int) -> ToolOutput:
    """How a call ended that was stopped: unknown if it may have taken effect, not run if it never left."""
    if failures and (flight is None or not flight.dispatched):
        message = "the turn was cancelled before the next attempt; the attempts before it failed"
        return Failed(failure=Failure(code="tool_cancelled", message=message, failure_class="cancelled"))
    if flight is None or not flight.dispatched:
        return NotRun(reason="the turn was cancelled")
    if flight.effect == "once":
        return InDoubt(reason="cancelled", message="the turn was cancelled while the call ran")
    failure = Failure(
        code="tool_cancelled", message="the turn was cancelled while the call ran", failure_class="cancelled"
    )
    return Failed(failure=failure)
