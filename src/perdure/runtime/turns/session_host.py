"""A session owned by this worker: loaded once, served turn after turn, dropped when the store refuses an append.

After a refused append the log decides: the host is dropped and the stream is claimed and folded again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from perdure.codec import decode
from perdure.commit.changes import MODEL_SET, REDACTED
from perdure.commit.plan import Plan, Receipt
from perdure.effects.journal import journal_of
from perdure.errors import Code, Error
from perdure.ids import Seq, SessionId, StreamId, TurnId, stream_names
from perdure.inbox.admit import Delivery
from perdure.inbox.items import CancelTurn, Input, LateOutcome, Occurrence, Wake
from perdure.observe.ends import last_answer
from perdure.observe.hub import PEOPLE
from perdure.runtime.agent import DEFAULT, Agent, setup_of
from perdure.runtime.calls import jobs
from perdure.runtime.calls.orphaned_calls import left_asked
from perdure.runtime.deps import DepsContext, TurnDeps
from perdure.runtime.instructions import InstructionsContext, InstructionsFailed, instructions_for
from perdure.runtime.secret_store import hide_stored
from perdure.runtime.shared import Shared, turn_result
from perdure.runtime.turns.call_changes import CallChanges
from perdure.runtime.turns.envelopes import Where
from perdure.runtime.turns.environment import TurnEnvironment
from perdure.runtime.turns.live_pieces import LivePieces
from perdure.runtime.turns.loop import TurnDriver
from perdure.runtime.turns.opening import OpenedTurn, TurnOpener
from perdure.runtime.turns.subagents import GONE, end_notifications
from perdure.runtime.turns.transcript import Transcript
from perdure.runtime.turns.waiting import InboxView
from perdure.runtime.worker.dead_letter import MAX_BREAKAGES, MAX_TAKEOVERS, dead_letter
from perdure.runtime.worker.driving_host import DrivingHost
from perdure.runtime.worker.offers import Offer
from perdure.runtime.worker.orphans import Orphans
from perdure.runtime.worker.owned import OwnedStream, rows_of
from perdure.services.secrets import REFERENCE, Redactor
from perdure.session.fold import CODE, SessionState, cancel_of, fold
from perdure.store.shapes import Claim, InboxRow
from perdure.turn.machine import advance, awaited, stopped
from perdure.vocab.children import ChildEnded
from perdure.vocab.messages import Part, Text
from perdure.vocab.outcomes import LlmCallOutcome
from perdure.vocab.records import (
    CancelRequested,
    EffectSettled,
    EffectStarted,
    InputAdmitted,
    OutcomeArrivedLate,
    Record,
    Row,
    SessionPaused,
    SessionResumed,
    TurnEnded,
)

log = logging.getLogger("perdure.runtime")

_EFFECTS = (EffectStarted, EffectSettled)
_REQUESTS = frozenset({"cancel_requested", "session_paused", "session_resumed"})


class SessionHost(DrivingHost[TurnDriver]):
    """One owned session. `serve` runs its turns until no work is left."""

    def __init__(self, shared: Shared, claim: Claim) -> None:
        self.stream: StreamId = claim.stream
        self._tenant, _, session = stream_names(claim.stream)
        self._session = SessionId(session)
        self.state = SessionState()
        self.driver: TurnDriver | None = None
        self.stopping = False
        self._shared = shared
        self._claim = claim
        self._transcript = Transcript()
        self._owned = OwnedStream(
            shared.store, claim.stream, shared.worker, claim.fence, Seq(0), shared.clock, shared.host.notify_streams
        )
        self._owned.listener = self
        self._owned.redactor = Redactor(shared.seen_secrets, claim.stream)
        self._owned.on_end = self._on_end
        self._loaded = False
        self._arrived: tuple[InboxRow, ...] | None = None  # as of loading
        self._beginnings = TurnOpener(shared, self._owned, self._transcript)
        self._waiting = InboxView()
        self._live = LivePieces(shared, claim.stream, claim.fence, self._owned, lambda: self.state.seq)
        changes = CallChanges(self._owned, lambda: self.state, lambda: self.driver)
        self._world = TurnEnvironment(
            shared, self._owned, self._transcript, self._waiting, self._live, changes, lambda: self.state
        )
        self._pause_seq = Seq(0)
        self._quiet = False  # after our last append the inbox was empty
        self._stale = False
        self._unsure = False
        self.offered: Offer | None = None
        self._busy = False
        self.parked = False
        self._stuck = claim.takeovers >= MAX_TAKEOVERS
        self.on_record: Callable[[], None] | None = None

    # --- callbacks of the stream

    def durable(self, records: tuple[Record, ...], plan: Plan, receipt: Receipt) -> None:
        """Fold facts that became durable, then publish them."""
        if records and self.on_record is not None:
            self.on_record()
            self.on_record = None
        self._quiet = receipt.quiet
        for seq, record in enumerate(records, receipt.first_seq):
            self._fold(Seq(seq), record)
            if isinstance(record, _EFFECTS):
                if isinstance(record, EffectSettled) and isinstance(record.outcome, LlmCallOutcome):
                    self._shared.texts.over(self.stream)
                continue  # the common case
            if (instead := self._waiting.joined(record)) is not None:
                self._shared.results.leave(instead)  # its waiters then look up the turn that answers it
        if self._shared.hub.watched(self.stream):
            self._shared.hub.publish(self.stream, *rows_of(plan, receipt))
        if plan.person_requests:
            self._shared.hub.notify(PEOPLE)
        self._live.facts_are_durable()

    def admitted(self, rows: tuple[Row, ...]) -> None:
        """Fold and publish rows that others wrote to the log."""
        for row in rows:
            self._fold(row.seq, row.record)
            self._learn(row)
        self._shared.hub.publish(self.stream, *rows)

    def _learn(self, row: Row) -> None:
        """Pass a row that others wrote to the running turn. Rows may come in any order, and twice."""
        if self.driver is None:
            return
        match row.record:
            case CancelRequested() as request:
                self._waiting.cancel(request.turn)
                self.driver.on_record(request)
            case (SessionPaused() | SessionResumed()) as change if row.seq > self._pause_seq:
                self._pause_seq = row.seq
                self.driver.hold(paused=isinstance(change, SessionPaused))
            case _:
                pass

    def refused(self, error: Error) -> None:
        """Tell the running turn that the store refused an append."""
        if self.driver:
            self.driver.refused(error)

    def withdrawn(self, records: tuple[Record, ...], error: Error) -> None:
        """Tell the running turn that an append was withdrawn for lack of an approval. Everything else continues."""
        if self.driver:
            self.driver.withdrawn(records, error)

    def _fold(self, seq: Seq, record: Record) -> None:
        self.state = fold(self.state, seq, record)
        self._transcript.add(seq, record)
        if isinstance(record, CancelRequested):
            self._waiting.cancel(record.turn)

    # --- serving

    async def serve(self, *, once: bool = False) -> None:
        """Run the unfinished turn and the waiting inputs until none is left, or one turn with `once`.

        Raises:
            Error: why the stream must be released.
        """
        self._quiet = False
        try:
            await self.load()
            while await self._serve_one() and not (once or self._shared.crowd.waiting):
                pass  # when slots are scarce, sessions that waited longer come first
        finally:
            self._busy = False
            self._decline()
            self._stuck = False  # later work has not crashed a worker yet

    async def load(self) -> None:
        """Read and fold the log, once."""
        if self._loaded:
            return
        loaded = self._claim.loaded or await self._shared.store.load(self.stream, code=CODE)
        if loaded.snapshot or any(REFERENCE.encode() in row.data for row in loaded.rows):
            shared = self._shared
            await hide_stored(shared.store, shared.secrets, self.stream, shared.seen_secrets)  # threat: S10
        if loaded.snapshot:
            self.state = decode(loaded.snapshot.data, SessionState)
            for request in self.state.cancels:
                self._waiting.cancel(request.turn)
            self._beginnings.snapshot_seq = loaded.snapshot.seq
            if 0 < self.state.view_seq <= self.state.seq:
                await self._load_view(self.state)
        for row in loaded.rows:
            self._fold(row.seq, row.record)
            if row.kind == "turn_opened":
                self._beginnings.opened_at = row.at
        self._owned.known_seq = self.state.seq
        self._owned.active = self.state.open_turn is not None
        if self.state.open_turn is not None:  # its worker may have died after an answer interrupted parking
            self._owned.unpark(at_once=self._claim.parked)
        self._loaded, self._arrived = True, loaded.inbox
        self._shared.hub.notify(self.stream)  # rows whose confirmation got lost were never announced

    async def _load_view(self, state: SessionState) -> None:
        after = Seq(state.view_seq - 1)
        for row in await self._shared.store.read(self.stream, after=after, until=state.seq):
            self._transcript.add(row.seq, row.record)
            if row.kind == "turn_opened":
                self._beginnings.opened_at = row.at

    async def _serve_one(self) -> bool:
        self._busy = self.state.open_turn is not None
        waiting = await self._inbox()
        if await self._waiting.decode(waiting):
            waiting = await self._shared.store.inbox(self.stream)
        self._waiting.see(waiting)
        self._take_news(waiting)
        await self._refresh()
        if self._unsure:  # records of others decide whether a turn may begin, and with which model: read them first
            self._unsure = False
            await self._owned.durable()
        agent = self._agent()
        if self.state.open_turn is not None:
            self._busy = True
            await self._with_deps(agent, lambda deps: self._resume(agent, deps))
            return await self._until_over()
        if self.state.paused:
            await self._step_back()
            return False
        first = self._waiting.first()
        if first is not None:
            self._decline()  # the inbox comes first
        if self.stopping or (first is None and self.offered is None):
            await self._owned.durable()
            self._waiting.settled()
            return self.offered is not None and not self.stopping
        self._busy = True
        if first is None:
            await self._with_deps(agent, lambda deps: self._drive(agent, self._accept(agent), deps))
        else:
            row, item = first
            await self._with_deps(agent, lambda deps: self._begin(agent, item, row, deps))
        return await self._until_over()

    async def _inbox(self) -> tuple[InboxRow, ...]:
        """Return the waiting inbox rows.

        No read is needed if the last append left the inbox empty, because later senders notify this worker. A direct
        input comes after everything sent before it, so it forces a read.
        """
        known = () if self._quiet and self.offered is None else self._arrived
        self._arrived, self._quiet = None, False
        return await self._shared.store.inbox(self.stream) if known is None else known

    async def _until_over(self) -> bool:
        """Continue the turn with each agent it is handed to. Return False if it is parked."""
        while self.state.next_agent and not self.parked:
            agent = self._agent(self.state.next_agent)
            await self._with_deps(agent, partial(self._take_over, agent))
        return not self.parked

    async def _step_back(self) -> None:
        """Release a session that is paused between turns. Its resumption makes it claimable."""
        self._owned.flush(lease="release")
        await self._owned.durable()
        self.parked = True  # the host leaves memory

    async def _with_deps(self, agent: Agent, serve: Callable[[TurnDeps], Awaitable[None]]) -> None:
        """Serve a turn with its own dependencies, which live as long as the turn runs in this process."""
        deps = TurnDeps(self._shared.deps, DepsContext(self._session, self._tenant, agent.name))
        try:
            await serve(deps)
        finally:
            await deps.close()

    # --- direct input, without the inbox

    def offer(self, item: Input) -> Offer | None:
        """Accept a direct input if the session is idle: one append admits it and opens its turn.

        A session that still checks for work counts as idle. If its inbox has an input, that one comes first and the
        direct input is declined. Only inputs without a key qualify: a key that may repeat is looked up by admission.
        """
        if not self._loaded or self.stopping or self.offered or self._busy or not self._owned.settled:
            return None
        if item.by_session:
            return None  # `_begin` counts such turns
        agent = self._shared.agents.get(self.state.agent)
        if agent is None or not isinstance(agent.instructions, str):
            return None  # the sender must not wait for an instructions function
        if setup_of(agent).model.name == DEFAULT and not (item.model or self.state.model):
            return None  # nor for the application's choice of a model
        self.offered = Offer(item, asyncio.get_running_loop().create_future())
        return self.offered

    def _accept(self, agent: Agent) -> OpenedTurn:
        assert self.offered is not None
        offer, self.offered = self.offered, None
        assert isinstance(agent.instructions, str)  # checked by `offer`
        begun = self._beginnings.open(self.state, agent, offer.item, agent.instructions)
        self._owned.confirm().add_done_callback(lambda done: offer.answer(done.result() or True))
        return begun

    def _decline(self) -> None:
        """Decline the direct input. Nothing was written, so its sender puts it into the inbox."""
        if self.offered:
            offer, self.offered = self.offered, None
            offer.answer(False)

    def _agent(self, name: str = "") -> Agent:
        agent = self._shared.agents.get(name or self.state.agent)
        if agent is None:
            raise Error(
                Code.AGENT_UNKNOWN,
                f"this runtime has no agent {name or self.state.agent!r}",
                because=f"the registered agents are {', '.join(sorted(self._shared.agents)) or 'none'}",
                hint="start a worker that registers it; the session waits",
                session=self.stream,
            )
        return agent

    def _take_news(self, waiting: Iterable[InboxRow]) -> None:
        """Take late outcomes, child ends, cancel requests and wakes from the inbox, whatever the turn is doing."""
        for row in waiting:
            if isinstance(item := self._waiting.item(row), Input) or not self._waiting.take(row):
                continue
            match item:
                case LateOutcome(call=call, id=effect, tool=tool, output=output):
                    record = OutcomeArrivedLate(call=call, id=effect, tool=tool, output=output)
                    if self.driver:
                        self.driver.late(record, row.id)
                    else:
                        self._owned.submit(record, consume=(row.id,))
                case ChildEnded() as told:
                    self._owned.submit(told, consume=(row.id,))
                    if self.driver:
                        self.driver.on_notify()
                case CancelTurn() as asked:
                    self._cancel(asked, row.id)
                case Wake(reason=reason):
                    self._stale = self._stale or reason == REDACTED
                    self._unsure = self._unsure or reason == MODEL_SET
                    if self.driver and reason.startswith(GONE):
                        self.driver.on_notify()
                    self._owned.submit(consume=(row.id,))
                case Occurrence():
                    self._owned.submit(consume=(row.id,))  # a session has no subscriptions

    def _cancel(self, asked: CancelTurn, inbox_id: int) -> None:
        """Cancel a turn at the request of its sender. A turn that is over or already cancelled stays as it is."""
        turn = asked.turn
        request = CancelRequested(turn=turn, request=f"parent:{turn}", origin=asked.origin, reason=asked.reason)
        if self.driver and self.driver.turn.id == turn:
            self.driver.interrupt(request)
        elif not cancel_of(self.state, turn) and (self.state.open_turn == turn or self._waiting.asks_for(turn)):
            self._owned.submit(request)
            self._unsure = True
        self._owned.submit(consume=(inbox_id,))

    def _on_end(self, ended: TurnEnded) -> tuple[Delivery, ...]:
        """Return the deliveries that the end of a turn sends in its own append."""
        records = self.driver.records if self.driver else self._beginnings.records
        now = self._shared.clock.wall_ms()
        return tuple(end_notifications(self.stream, self.state.parent, ended, records, now))

    async def _refresh(self) -> None:
        """Read the shown turns again after the redaction of a record."""
        if not self._stale:
            return
        self._stale = False
        self._beginnings.forget_stored()
        if (first := self._transcript.first_seq) is not None:
            store, until = self._shared.store, self.state.seq
            self._transcript.read_again(await store.read(self.stream, after=Seq(first - 1), until=until))

    # --- opening and resuming

    async def _begin(self, agent: Agent, item: Input, row: InboxRow, deps: TurnDeps) -> None:
        self._waiting.take(row)
        if self._stuck and not cancel_of(self.state, item.turn):  # the workers died before the turn's first record
            await self._dead_letter(agent, self._beginnings.open(self.state, agent, item, "", row.id))
            return
        most = self._shared.queues.limits(self._tenant).own_turns
        if item.by_session and self.state.own_turns >= most:  # threat: S16
            begun = self._beginnings.open(self.state, agent, item, "", row.id)
            message = (
                f"the session caused {most} turns in a row itself; the next input of a person or host resets the count"
            )
            await self._end_at_once(stopped(begun.turn, "own_turns_exceeded", message))
            return
        try:
            instructions = await self._instructions(agent, item.turn, item.parts, deps)
        except InstructionsFailed as problem:
            begun = self._beginnings.open(self.state, agent, item, "", row.id)
            await self._end_at_once(stopped(begun.turn, "instructions_failed", str(problem)))
        else:
            model = await self._shared.host.models.chosen(agent, item.model or self.state.model)
            begun = self._beginnings.open(self.state, agent, item, instructions, row.id, model=model)
            await self._drive(agent, begun, deps)

    async def _instructions(self, agent: Agent, turn: TurnId, said: Iterable[Part], deps: TurnDeps) -> str:
        if cancel_of(self.state, turn):
            return ""  # the turn ends before any model call
        text = "\n".join(part.text for part in said if isinstance(part, Text))
        context = InstructionsContext(self._session, self._tenant, self.state.turns, text)
        return await instructions_for(agent.instructions, context, deps, self._shared.threads)

    async def _end_at_once(self, ended: TurnEnded) -> None:
        self._owned.submit(ended)
        await self._owned.durable()
        self._shared.results.deliver(turn_result(ended, None))

    async def _take_over(self, agent: Agent, deps: TurnDeps) -> None:
        """Continue a turn after its handoff, with this agent's model, tools and instructions."""
        begun = await self._beginnings.resumed()
        turn = begun.turn
        said = [part for one in begun.records if isinstance(one, InputAdmitted) for part in one.parts]
        try:
            instructions = await self._instructions(agent, turn.id, said, deps)
        except InstructionsFailed as problem:
            await self._end_at_once(stopped(turn, "instructions_failed", str(problem)))
            return
        before = turn.composition
        composition = setup_of(agent).composition(
            instructions,
            without=self.state.without_tools,
            model=await self._shared.host.models.chosen(agent, self.state.model),
            output=before.output if before.asked else None,
        )
        await self._drive(agent, self._beginnings.taken_over(begun, agent, composition), deps)

    async def _resume(self, agent: Agent, deps: TurnDeps) -> None:
        try:
            begun = await self._beginnings.resumed()
        except Error as problem:
            if problem.code is not Code.BLOB_UNKNOWN or self.state.open_turn is None:
                raise
            message = "the composition of the turn is no longer in the store"
            ended = TurnEnded(turn=self.state.open_turn, status="stopped", reason="composition_lost", message=message)
            await self._end_at_once(ended)
        else:
            broken = self._shared.breakages[begun.turn.id] >= MAX_BREAKAGES
            if (self._stuck or broken) and not cancel_of(self.state, begun.turn.id):
                await self._dead_letter(agent, begun)
            else:
                await self._drive(agent, begun, deps)

    async def _dead_letter(self, agent: Agent, begun: OpenedTurn) -> None:
        """Dead-letter a turn in which every previous worker died, or every attempt failed, without progress."""
        self._stuck = False
        turn, records = begun.turn, begun.records
        journal = journal_of(records)
        unwanted = (*jobs.own(turn), *jobs.asked_for(journal))
        if (ref := awaited(turn)) is not None:
            left = await self._world.lost(agent, turn, records, ref.id, None)
            turn = advance(turn, left)
            self._owned.submit(left)
        for started in left_asked(turn, journal, over=True):
            bought = await self._world.lost_completion(agent, turn, started)
            turn = advance(turn, bought)
            self._owned.submit(bought)
        await self._world.give_up(agent, turn, unwanted)
        breakages = self._shared.breakages.pop(turn.id, 0)
        message = f"the turn was taken over {self._claim.takeovers} times without getting any further"
        if breakages >= MAX_BREAKAGES:
            message = f"the turn failed {breakages} times unexpectedly; the log has the cause"
        *closing, ended = await dead_letter(turn, records, message, self._shared.store, self._shared.clock)
        assert isinstance(ended, TurnEnded)
        log.error("turn dead-lettered: %s", ended.message, extra={"stream": self.stream, "turn": turn.id})
        self._owned.submit(*closing)
        await self._end_at_once(ended)

    async def _drive(self, agent: Agent, begun: OpenedTurn, deps: TurnDeps) -> None:
        turn, where = begun.turn, Where(self._tenant, self._session, begun.composition)
        if setup_of(agent).toolbox.has_hooks:
            await deps.make()  # hooks run before a call begins
        around = self._world.around(agent, turn, deps, self._beginnings.opened_at)
        driver = TurnDriver(turn, begun.records, where, self._owned, around)
        if request := cancel_of(self.state, turn.id):
            driver.on_record(request)
        driver.hold(paused=self.state.paused)
        self.driver = driver
        self._interrupt()
        try:
            ended = await driver.run()
            if ended is not None:
                self._shared.results.deliver(turn_result(ended, last_answer(driver.records), setup_of(agent).output_as))
            self._shared.texts.over(self.stream)
            self._shared.breakages.pop(turn.id, None)
        except Exception as problem:
            if not isinstance(problem, Error) or problem.code is Code.TURN_FAILED:
                self._shared.breakages[turn.id] += 1
            raise
        finally:
            self._live.turn_is_over()
            self._shared.texts.leave(self.stream)
            self._shared.results.leave(turn.id)
        self.driver = None
        self.parked = ended is None and not driver.turn.changes_hands

    def _interrupt(self) -> None:
        """Cancel the running turn for an interrupting input, even if its sender saw another turn."""
        if self.driver and (request := self._waiting.interruption(self.driver.turn)):
            self.driver.interrupt(request)

    # --- polling while a turn runs

    async def poll(self) -> None:
        """Check the store for requests, late outcomes and inputs for the running turn."""
        self._quiet = False
        if self.driver is None:
            return
        # Read the inbox first, so that the log has what its wakes announce; apply that before the wakes are consumed.
        waiting = await self._shared.store.inbox(self.stream)
        if await self._waiting.decode(waiting):
            waiting = await self._shared.store.inbox(self.stream)
        for row in await self._shared.store.read(self.stream, after=self._owned.known_seq):
            if row.kind in _REQUESTS:
                self._learn(row)
        if self.driver:
            self._waiting.see(waiting)
            self._take_news(waiting)
            self._interrupt()
            await self._refresh()
        if self.driver:
            await self.driver.poll()

    # --- interface to the worker

    def drives(self, turn: TurnId) -> bool | None:
        """Return True if this turn runs, False if another one does, or None if none does."""
        return self.driver.turn.id == turn if self.driver else None

    def leave_to(self, orphans: Orphans) -> None:
        """Leave the running calls of a released stream to `orphans`, which report their outcomes."""
        if self.driver:
            for effect, spent in self.driver.unsaved():
                self._shared.unsaved.note(self.stream, self.driver.turn.id, effect, spent)
            orphans.adopt(self.stream, self.driver)
