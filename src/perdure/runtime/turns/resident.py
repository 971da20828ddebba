"""A session in the hands of this worker: loaded once, served turn after turn, dropped without ceremony.

Whatever a refused append leaves behind is settled by the log: the resident is dropped and the stream claimed again.
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
from perdure.runtime.agent import DEFAULT, Agent
from perdure.runtime.calls import jobs
from perdure.runtime.calls.lost import left_asked
from perdure.runtime.deps import DepsContext, TurnDeps
from perdure.runtime.instructions import InstructionsContext, InstructionsFailed, instructions_for
from perdure.runtime.shared import Shared, TurnResult
from perdure.runtime.turns.beginnings import Beginning, Beginnings
from perdure.runtime.turns.call_changes import CallChanges
from perdure.runtime.turns.envelopes import Where
from perdure.runtime.turns.live_pieces import LivePieces
from perdure.runtime.turns.loop import TurnDriver
from perdure.runtime.turns.subagents import GONE, farewells
from perdure.runtime.turns.transcript import Transcript
from perdure.runtime.turns.waiting import Waiting
from perdure.runtime.turns.world import TurnWorld
from perdure.runtime.worker.held import Held
from perdure.runtime.worker.offers import Offer
from perdure.runtime.worker.orphans import Orphans
from perdure.runtime.worker.owned import OwnedStream, rows_of
from perdure.runtime.worker.sealing import MAX_TAKEOVERS, sealing
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


class Resident(Held[TurnDriver]):
    """One owned session. `serve` runs its turns until nothing waits."""

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
            shared.store, claim.stream, shared.worker, claim.fence, Seq(0), shared.clock, shared.host.stir
        )
        self._owned.listener = self
        self._owned.on_end = self._on_end
        self._loaded = False
        self._arrived: tuple[InboxRow, ...] | None = None  # as of loading
        self._beginnings = Beginnings(shared, self._owned, self._transcript)
        self._waiting = Waiting()
        self._live = LivePieces(shared, claim.stream, claim.fence, self._owned, lambda: self.state.seq)
        changes = CallChanges(self._owned, lambda: self.state, lambda: self.driver)
        self._world = TurnWorld(
            shared, self._owned, self._transcript, self._waiting, self._live, changes, lambda: self.state
        )
        self._pause_seq = Seq(0)
        self._quiet = False  # our last append left nothing to do
        self._stale = False
        self._unsure = False
        self.offered: Offer | None = None
        self._busy = False
        self.parked = False
        self._stuck = claim.takeovers >= MAX_TAKEOVERS
        self.on_record: Callable[[], None] | None = None

    # --- what the stream tells us

    def durable(self, records: tuple[Record, ...], plan: Plan, receipt: Receipt) -> None:
        """Our facts are durable: fold them, and let the world see them."""
        if records and self.on_record is not None:
            self.on_record()
            self.on_record = None
        self._quiet = receipt.quiet
        for seq, record in enumerate(records, receipt.first_seq):
            self._fold(Seq(seq), record)
            if isinstance(record, _EFFECTS):
                if isinstance(record, EffectSettled) and isinstance(record.outcome, LlmCallOutcome):
                    self._shared.texts.over(self.stream)
                continue  # most records are
            if (instead := self._waiting.joined(record)) is not None:
                self._shared.results.leave(instead)  # whoever waits for it finds out where its answer will be
        if self._shared.hub.watched(self.stream):
            self._shared.hub.publish(self.stream, *rows_of(plan, receipt))
        if plan.asks:
            self._shared.hub.stir(PEOPLE)
        self._live.facts_are_durable()

    def admitted(self, rows: tuple[Row, ...]) -> None:
        """Others wrote something into the log."""
        for row in rows:
            self._fold(row.seq, row.record)
            self._learn(row)
        self._shared.hub.publish(self.stream, *rows)

    def _learn(self, row: Row) -> None:
        """What somebody wrote into the log may concern the running turn. Rows are seen in any order, and twice."""
        if self.driver is None:
            return
        match row.record:
            case CancelRequested() as request:
                self._waiting.cancel(request.turn)
                self.driver.learn(request)
            case (SessionPaused() | SessionResumed()) as change if row.seq > self._pause_seq:
                self._pause_seq = row.seq
                self.driver.hold(paused=isinstance(change, SessionPaused))
            case _:
                pass

    def refused(self, error: Error) -> None:
        """The store refused an append."""
        if self.driver:
            self.driver.refused(error)

    def withdrawn(self, records: tuple[Record, ...], error: Error) -> None:
        """What needed somebody's leave was not written, and everything else goes on."""
        if self.driver:
            self.driver.withdrawn(records, error)

    def _fold(self, seq: Seq, record: Record) -> None:
        self.state = fold(self.state, seq, record)
        self._transcript.add(seq, record)
        if isinstance(record, CancelRequested):
            self._waiting.cancel(record.turn)

    # --- serving

    async def serve(self, *, once: bool = False) -> None:
        """Run what is unfinished and what waits, until nothing does; or one turn of it.

        Raises:
            Error: why the stream had to be given up.
        """
        self._quiet = False
        try:
            await self.load()
            while await self._serve_one() and not (once or self._shared.crowd.waiting):
                pass  # else it has had its turn: others wait for longer
        finally:
            self._busy = False
            self._decline()
            self._stuck = False  # what comes later has killed nobody yet

    async def load(self) -> None:
        """Read and fold what the log says, once."""
        if self._loaded:
            return
        loaded = self._claim.loaded or await self._shared.store.load(self.stream, code=CODE)
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
        if self.state.open_turn is not None:  # it may have died after it met an answer while it parked
            self._owned.unpark(at_once=self._claim.parked)
        self._loaded, self._arrived = True, loaded.inbox
        self._shared.hub.stir(self.stream)  # rows whose confirmation got lost were never announced

    async def _load_view(self, state: SessionState) -> None:
        after = Seq(state.view_seq - 1)
        for row in await self._shared.store.read(self.stream, after=after, until=state.seq):
            self._transcript.add(row.seq, row.record)
            if row.kind == "turn_opened":
                self._beginnings.opened_at = row.at

    async def _serve_one(self) -> bool:
        self._busy = self.state.open_turn is not None
        waiting = await self._inbox()
        self._waiting.see(waiting)
        self._take_news(waiting)
        await self._refresh()
        if self._unsure:  # whether a turn may begin, and with which model, is known once we have read what was said
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
            self._decline()  # somebody was first
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
        """What waits, as of now; or as of our last append, if nothing did: whoever sends later tells us. What was
        offered since comes after whatever was sent before it, so then we look."""
        known = () if self._quiet and self.offered is None else self._arrived
        self._arrived, self._quiet = None, False
        return await self._shared.store.inbox(self.stream) if known is None else known

    async def _until_over(self) -> bool:
        """Let each agent to whom the turn is handed over go on with it. False if it is parked."""
        while self.state.next_agent and not self.parked:
            agent = self._agent(self.state.next_agent)
            await self._with_deps(agent, partial(self._take_over, agent))
        return not self.parked

    async def _step_back(self) -> None:
        """The session is paused between turns: give it up. Whoever resumes it makes it claimable."""
        self._owned.flush(lease="release")
        await self._owned.durable()
        self.parked = True  # nothing of it is worth keeping in memory

    async def _with_deps(self, agent: Agent, serve: Callable[[TurnDeps], Awaitable[None]]) -> None:
        """Serve a turn with dependencies of its own; they live as long as it does in this process."""
        deps = TurnDeps(self._shared.deps, DepsContext(self._session, self._tenant, agent.name))
        try:
            await serve(deps)
        finally:
            await deps.close()

    # --- an input that needs no inbox

    def offer(self, item: Input) -> Offer | None:
        """Take an input straight into the log, if the session is idle: one append admits it and opens its turn.

        Idle is also who is still looking for more to do: what is in the inbox comes first, and then this is declined.
        Only for inputs that nobody can send again: the names of others are looked up where they are admitted.
        """
        if not self._loaded or self.stopping or self.offered or self._busy or not self._owned.settled:
            return None
        agent = self._shared.agents.get(self.state.agent)
        if agent is None or not isinstance(agent.instructions, str):
            return None  # the sender does not wait for a function
        if agent.resolved.name == DEFAULT and not (item.model or self.state.model):
            return None  # nor for the host to say which model that is
        self.offered = Offer(item, asyncio.get_running_loop().create_future())
        return self.offered

    def _accept(self, agent: Agent) -> Beginning:
        assert self.offered is not None
        offer, self.offered = self.offered, None
        assert isinstance(agent.instructions, str)  # or it was not accepted
        begun = self._beginnings.open(self.state, agent, offer.item, agent.instructions)
        self._owned.confirm().add_done_callback(lambda done: offer.answer(done.result() or True))
        return begun

    def _decline(self) -> None:
        """Nothing was written of it: let the sender put it into the inbox."""
        if self.offered:
            offer, self.offered = self.offered, None
            offer.answer(False)

    def _agent(self, name: str = "") -> Agent:
        agent = self._shared.agents.get(name or self.state.agent)
        if agent is None:
            raise Error(
                Code.AGENT_UNKNOWN,
                f"this runtime has no agent {name or self.state.agent!r}",
                because=f"it has {', '.join(sorted(self._shared.agents)) or 'none'}",
                hint="start a worker that registers it; the session waits",
                session=self.stream,
            )
        return agent

    def _take_news(self, waiting: Iterable[InboxRow]) -> None:
        """Late outcomes and wakes enter the log at once, whatever the turn is doing."""
        for row in waiting:
            if isinstance(row.item, Input) or not self._waiting.take(row):
                continue
            match row.item:
                case LateOutcome(call=call, id=effect, tool=tool, output=output):
                    record = OutcomeArrivedLate(call=call, id=effect, tool=tool, output=output)
                    if self.driver:
                        self.driver.late(record, row.id)
                    else:
                        self._owned.submit(record, consume=(row.id,))
                case ChildEnded() as told:
                    self._owned.submit(told, consume=(row.id,))
                    if self.driver:
                        self.driver.hear()
                case CancelTurn() as asked:
                    self._cancel(asked, row.id)
                case Wake(reason=reason):
                    self._stale = self._stale or reason == REDACTED
                    self._unsure = self._unsure or reason == MODEL_SET
                    if self.driver and reason.startswith(GONE):
                        self.driver.hear()
                    self._owned.submit(consume=(row.id,))
                case Occurrence():
                    self._owned.submit(consume=(row.id,))  # nothing happens at a session

    def _cancel(self, asked: CancelTurn, inbox_id: int) -> None:
        """Whoever asked for a turn does not want it any more. What is over, or cancelled, stays as it is."""
        turn = asked.turn
        request = CancelRequested(turn=turn, request=f"parent:{turn}", origin=asked.origin, reason=asked.reason)
        if self.driver and self.driver.turn.id == turn:
            self.driver.interrupt(request)
        elif not cancel_of(self.state, turn) and (self.state.open_turn == turn or self._waiting.asks_for(turn)):
            self._owned.submit(request)
            self._unsure = True
        self._owned.submit(consume=(inbox_id,))

    def _on_end(self, ended: TurnEnded) -> tuple[Delivery, ...]:
        """What the end of a turn sends to others, in its own append."""
        records = self.driver.records if self.driver else self._beginnings.records
        now = self._shared.clock.wall_ms()
        return tuple(farewells(self.stream, self.state.parent, ended, records, now))

    async def _refresh(self) -> None:
        """A record was redacted: what the model is shown of it must be read again."""
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
        if self._stuck and not cancel_of(self.state, item.turn):  # not even the beginning of a turn was recorded
            await self._seal(agent, self._beginnings.open(self.state, agent, item, "", row.id))
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
            return ""  # nobody will read them
        text = "\n".join(part.text for part in said if isinstance(part, Text))
        context = InstructionsContext(self._session, self._tenant, self.state.turns, text)
        return await instructions_for(agent.instructions, context, deps, self._shared.threads)

    async def _end_at_once(self, ended: TurnEnded) -> None:
        self._owned.submit(ended)
        await self._owned.durable()
        self._shared.results.tell(TurnResult.of(ended, None))

    async def _take_over(self, agent: Agent, deps: TurnDeps) -> None:
        """The open turn was handed over: it goes on with this agent's model, tools and instructions."""
        begun = await self._beginnings.resumed()
        turn = begun.turn
        said = [part for one in begun.records if isinstance(one, InputAdmitted) for part in one.parts]
        try:
            instructions = await self._instructions(agent, turn.id, said, deps)
        except InstructionsFailed as problem:
            await self._end_at_once(stopped(turn, "instructions_failed", str(problem)))
            return
        before = turn.composition
        composition = agent.composition(
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
            message = "what the turn was begun with is not in the store any more"
            ended = TurnEnded(turn=self.state.open_turn, status="stopped", reason="composition_lost", message=message)
            await self._end_at_once(ended)
        else:
            if self._stuck and not cancel_of(self.state, begun.turn.id):
                await self._seal(agent, begun)
            else:
                await self._drive(agent, begun, deps)

    async def _seal(self, agent: Agent, begun: Beginning) -> None:
        """Every worker before us died in this turn, and none got any further: do not be the next."""
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
        *closing, ended = await sealing(
            turn, records, self._claim.takeovers, self._shared.store, self._shared.clock
        )  # fmt: skip
        assert isinstance(ended, TurnEnded)
        log.error("%s; it is sealed", ended.message, extra={"stream": self.stream, "turn": turn.id})
        self._owned.submit(*closing)
        await self._end_at_once(ended)

    async def _drive(self, agent: Agent, begun: Beginning, deps: TurnDeps) -> None:
        turn, where = begun.turn, Where(self._tenant, self._session, begun.composition)
        if agent.toolbox.has_hooks:
            await deps.make()  # hooks are asked before a call begins
        around = self._world.around(agent, turn, deps, self._beginnings.opened_at)
        driver = TurnDriver(turn, begun.records, where, self._owned, around)
        if request := cancel_of(self.state, turn.id):
            driver.learn(request)
        driver.hold(paused=self.state.paused)
        self.driver = driver
        self._interrupt()
        try:
            ended = await driver.run()
            if ended is not None:
                self._shared.results.tell(TurnResult.of(ended, last_answer(driver.records), agent.output_as))
            self._shared.texts.over(self.stream)
        finally:
            self._live.turn_is_over()
            self._shared.texts.leave(self.stream)
            self._shared.results.leave(turn.id)
        self.driver = None
        self.parked = ended is None and not driver.turn.changes_hands

    def _interrupt(self) -> None:
        """An input that interrupts ends whatever turn runs: when its sender looked, that may have been another."""
        if self.driver and (request := self._waiting.interruption(self.driver.turn)):
            self.driver.interrupt(request)

    # --- looking again while a turn runs

    async def look(self) -> None:
        """Something changed in the store: a request, a late outcome or an input may be for the running turn."""
        self._quiet = False
        if self.driver is None:
            return
        # The inbox first: whatever woke us is in the log by then, and must be learned before the wake is used up.
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
            await self.driver.look()

    # --- in the hands of a worker

    def drives(self, turn: TurnId) -> bool | None:
        """Whether this turn runs; None if none does."""
        return self.driver.turn.id == turn if self.driver else None

    def leave_to(self, orphans: Orphans) -> None:
        """It was given up: what still runs tells others how it ended."""
        if self.driver:
            for effect, spent in self.driver.unsaved():
                self._shared.unsaved.note(self.stream, self.driver.turn.id, effect, spent)
            orphans.adopt(self.stream, self.driver)
