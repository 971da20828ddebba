"""A session in the hands of this worker: loaded once, served turn after turn, dropped without ceremony.

Whatever a refused append leaves behind is settled by the log: the resident is dropped and the stream claimed again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from perdure.codec import decode, encode
from perdure.commit.changes import REDACTED
from perdure.commit.plan import Plan, Receipt, Snapshot
from perdure.errors import Code, Error
from perdure.ids import BlobHash, EffectId, Seq, SessionId, StreamId, TurnId, stream_names
from perdure.inbox.admit import Delivery, admitted
from perdure.inbox.items import CancelTurn, Input, LateOutcome, Occurrence, Wake
from perdure.observe.ends import last_answer
from perdure.observe.events import Cursor, Delta, Live
from perdure.observe.hub import PEOPLE, QUEUE_LIMIT
from perdure.observe.live import Audience, LiveEmitter
from perdure.runtime.agent import Agent, model_of, output_check
from perdure.runtime.children import DispatchClient
from perdure.runtime.clients import AttachmentsClient, CallSite, CompletionsClient, SessionsClient
from perdure.runtime.deps import DepsContext, TurnDeps
from perdure.runtime.envelopes import Where
from perdure.runtime.held import Held
from perdure.runtime.instructions import InstructionsContext, InstructionsFailed, instructions_for
from perdure.runtime.orphans import Orphans
from perdure.runtime.owned import OwnedStream, rows_of
from perdure.runtime.perform import ModelAccess
from perdure.runtime.process_client import ProcessesClient, RunLocal
from perdure.runtime.runners import Surroundings
from perdure.runtime.sealing import MAX_TAKEOVERS, sealing
from perdure.runtime.services import services_of
from perdure.runtime.shared import Shared, TurnResult
from perdure.runtime.subagents import GONE, Subagents, farewells
from perdure.runtime.transcript import Transcript
from perdure.runtime.trigger_client import TriggersClient, client_of_call
from perdure.runtime.turns import TurnDriver
from perdure.runtime.waiting import Waiting
from perdure.services.spawns import Line
from perdure.session.fold import CODE, SessionState, cancel_of, fold, grant_for, with_membership
from perdure.store.protocol import Claim, InboxRow
from perdure.tools.clients.surface import CallSurface, Clients
from perdure.tools.context import ToolContext
from perdure.tools.errors import ToolError
from perdure.tools.services import Services
from perdure.turn.machine import advance, stopped
from perdure.turn.state import Turn, opened, taken_over
from perdure.vocab.messages import AttachmentRef, Part, Text
from perdure.vocab.records import (
    CancelRequested,
    ChildEnded,
    EffectSettled,
    EffectStarted,
    HandedOver,
    InputAdmitted,
    Limits,
    OutcomeArrivedLate,
    Record,
    Row,
    SessionPaused,
    SessionResumed,
    ToolMembershipChanged,
    TurnEnded,
    TurnOpened,
    TurnRecomposed,
)
from perdure.vocab.tools import Composition

if TYPE_CHECKING:
    from perdure.runtime.runtime import Runtime

log = logging.getLogger("perdure.runtime")

_EFFECTS = (EffectStarted, EffectSettled)
_REQUESTS = frozenset({"cancel_requested", "session_paused", "session_resumed"})

SNAPSHOT_ROWS = 64
"""A snapshot is worth its bytes when a cold claim would otherwise fold this many rows."""


@dataclass(frozen=True, slots=True)
class Offer:
    """An input handed to a session in memory, and what became of it: durable, not taken, or the store's refusal."""

    item: Input
    future: asyncio.Future[bool]

    def answer(self, accepted: bool | Error) -> None:
        """Tell the sender. Whoever lost the stream has written nothing; of other refusals only the log knows more."""
        if self.future.done():
            return
        if isinstance(accepted, Error) and accepted.code is not Code.LEASE_LOST:
            self.future.set_exception(accepted)
        else:
            self.future.set_result(accepted is True)


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
        self._snapshot_seq = Seq(0)
        self._stored_blobs: set[str] = set()
        self._deltas: list[Live] = []
        self._emitter = LiveEmitter(Audience(self._watched, self._tell, self._missed))
        self._offsets: dict[EffectId, int] = {}
        self._waiting = Waiting()
        self._pause_seq = Seq(0)
        self._stale = False
        self._unsure = False
        self.offered: Offer | None = None
        self._busy = False
        self.parked = False
        self._opened_at = 0
        self._stuck = claim.takeovers >= MAX_TAKEOVERS
        self.on_record: Callable[[], None] | None = None

    # --- what the stream tells us

    def durable(self, records: tuple[Record, ...], plan: Plan, receipt: Receipt) -> None:
        """Our facts are durable: fold them, and let the world see them."""
        if records and self.on_record is not None:
            self.on_record()
            self.on_record = None
        for index, record in enumerate(records):
            self._fold(Seq(receipt.first_seq + index), record)
            if isinstance(record, _EFFECTS):
                continue  # most records are
            if (instead := self._waiting.joined(record)) is not None:
                self._shared.results.leave(instead)  # whoever waits for it finds out where its answer will be
        if self._shared.hub.watched(self.stream):
            self._shared.hub.publish(self.stream, *rows_of(plan, receipt))
        if plan.asks:
            self._shared.hub.stir(PEOPLE)
        if self._deltas and self._owned.settled:
            deltas, self._deltas = self._deltas, []
            self._shared.hub.publish(self.stream, *deltas)

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
        if not isinstance(record, _EFFECTS) and isinstance(record, CancelRequested):
            self._waiting.cancel(record.turn)

    # --- serving

    async def serve(self, *, once: bool = False) -> None:
        """Run what is unfinished and what waits, until nothing does; or one turn of it.

        Raises:
            Error: why the stream had to be given up.
        """
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
        loaded = await self._shared.store.load(self.stream, code=CODE)
        if loaded.snapshot:
            self.state = decode(loaded.snapshot.data, SessionState)
            for request in self.state.cancels:
                self._waiting.cancel(request.turn)
            self._snapshot_seq = loaded.snapshot.seq
            if 0 < self.state.view_seq <= self.state.seq:
                await self._load_view(self.state)
        for row in loaded.rows:
            self._fold(row.seq, row.record)
            if row.kind == "turn_opened":
                self._opened_at = row.at
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
                self._opened_at = row.at

    async def _serve_one(self) -> bool:
        self._busy = self.state.open_turn is not None
        arrived, self._arrived = self._arrived, None
        waiting = await self._shared.store.inbox(self.stream) if arrived is None else arrived
        self._waiting.see(waiting)
        self._take_news(waiting)
        await self._refresh()
        if self._unsure:  # whether a turn may begin is known once its cancellation is durable
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
        self.offered = Offer(item, asyncio.get_running_loop().create_future())
        return self.offered

    def _accept(self, agent: Agent) -> tuple[Turn, TurnOpened, list[Record]]:
        assert self.offered is not None
        offer, self.offered = self.offered, None
        assert isinstance(agent.instructions, str)  # or it was not accepted
        start = self._open(agent, offer.item, agent.instructions)
        self._owned.confirm().add_done_callback(lambda done: offer.answer(done.result() or True))
        return start

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
        records = self.driver.records if self.driver else [*self._transcript.open, *self._owned.undurable()]
        now = self._shared.clock.wall_ms()
        return tuple(farewells(self.stream, self.state.parent, ended, records, now))

    async def _refresh(self) -> None:
        """A record was redacted: what the model is shown of it must be read again."""
        if not self._stale:
            return
        self._stale = False
        self._stored_blobs.clear()
        if (first := self._transcript.first_seq) is not None:
            store, until = self._shared.store, self.state.seq
            self._transcript.read_again(await store.read(self.stream, after=Seq(first - 1), until=until))

    # --- opening and resuming

    async def _begin(self, agent: Agent, item: Input, row: InboxRow, deps: TurnDeps) -> None:
        self._waiting.take(row)
        if self._stuck and not cancel_of(self.state, item.turn):  # not even the beginning of a turn was recorded
            await self._seal(self._open(agent, item, "", row.id))
            return
        try:
            instructions = await self._instructions(agent, item.turn, item.parts, deps)
        except InstructionsFailed as problem:
            turn, _, _ = self._open(agent, item, "", row.id)
            await self._end_at_once(stopped(turn, "instructions_failed", str(problem)))
        else:
            await self._drive(agent, self._open(agent, item, instructions, row.id), deps)

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

    def _open(
        self, agent: Agent, item: Input, instructions: str, *consume: int
    ) -> tuple[Turn, TurnOpened, list[Record]]:
        composition = agent.composition(
            instructions, without=self.state.without_tools, model=item.model, output=item.output
        )
        from_turn, view_seq = self._transcript.window(agent.view_bytes)
        self._opened_at = self._shared.clock.wall_ms()
        record = TurnOpened(
            turn=item.turn,
            index=self.state.turns,
            composition=self._keep(composition),
            from_turn=self.state.turns if from_turn is None else from_turn,
            view_seq=Seq(self._owned.known_seq + 1) if view_seq is None else view_seq,
            limits=agent.limits if agent.limits != Limits() else None,
        )
        said = admitted(item, item.turn)
        if self._owned.settled and self.state.seq - self._snapshot_seq >= SNAPSHOT_ROWS:
            self._owned.snapshot(Snapshot(self.state.seq, CODE, encode(self.state)))
            self._snapshot_seq = self.state.seq
        before = [*self._transcript.open, *self._owned.undurable()]
        self._owned.submit(said, record, consume=consume)
        return opened(record, composition), record, [*before, said, record]

    def _keep(self, composition: Composition) -> BlobHash:
        """Have it stored with the next append, if it is not in the store."""
        blob = self._shared.compositions.blob(composition)
        if blob.hash not in self._stored_blobs:
            self._owned.blob(blob)
            self._stored_blobs.add(blob.hash)
        return blob.hash

    async def _take_over(self, agent: Agent, deps: TurnDeps) -> None:
        """The open turn was handed over: it goes on with this agent's model, tools and instructions."""
        turn, start, records = await self._resumed()
        said = [part for one in records if isinstance(one, InputAdmitted) for part in one.parts]
        try:
            instructions = await self._instructions(agent, turn.id, said, deps)
        except InstructionsFailed as problem:
            await self._end_at_once(stopped(turn, "instructions_failed", str(problem)))
            return
        before = turn.composition
        composition = agent.composition(
            instructions, without=self.state.without_tools, output=before.output if before.asked else None
        )
        kept = self._keep(composition)
        record = TurnRecomposed(turn=turn.id, n=turn.hands + 1, agent=agent.name, composition=kept)
        self._owned.submit(record)
        turn = taken_over(turn, record, composition)
        await self._drive(agent, (turn, replace(start, composition=kept), [*records, record]), deps)

    async def _resume(self, agent: Agent, deps: TurnDeps) -> None:
        try:
            start = await self._resumed()
        except Error as problem:
            if problem.code is not Code.BLOB_UNKNOWN or self.state.open_turn is None:
                raise
            message = "what the turn was begun with is not in the store any more"
            ended = TurnEnded(turn=self.state.open_turn, status="stopped", reason="composition_lost", message=message)
            await self._end_at_once(ended)
        else:
            if self._stuck and not cancel_of(self.state, start[0].id):
                await self._seal(start)
            else:
                await self._drive(agent, start, deps)

    async def _seal(self, start: tuple[Turn, TurnOpened, list[Record]]) -> None:
        """Every worker before us died in this turn, and none got any further: do not be the next."""
        self._stuck = False
        turn, _, records = start
        *closing, ended = await sealing(
            turn, records, self._claim.takeovers, self._shared.store, self._shared.clock
        )  # fmt: skip
        assert isinstance(ended, TurnEnded)
        log.error("%s; it is sealed", ended.message, extra={"stream": self.stream, "turn": turn.id})
        self._owned.submit(*closing)
        await self._end_at_once(ended)

    async def _resumed(self) -> tuple[Turn, TurnOpened, list[Record]]:
        records = [*self._transcript.open, *self._owned.undurable()]
        start = next(record for record in records if isinstance(record, TurnOpened))
        self._transcript.begin_at(start.from_turn)
        turn = opened(start, await self._shared.compositions.get(start.composition))
        for record in records[records.index(start) + 1 :]:
            if isinstance(record, TurnRecomposed):
                turn = taken_over(turn, record, await self._shared.compositions.get(record.composition))
                start = replace(start, composition=record.composition)
            else:
                turn = advance(turn, record)
        return turn, start, records

    async def _drive(self, agent: Agent, start: tuple[Turn, TurnOpened, list[Record]], deps: TurnDeps) -> None:
        turn, record, records = start
        where = Where(self._tenant, self._session, record.composition)
        if agent.toolbox.has_hooks:
            await deps.make()  # hooks are asked before a call begins
        driver = TurnDriver(turn, records, where, self._owned, self._around(agent, turn, deps))
        if request := cancel_of(self.state, turn.id):
            driver.learn(request)
        driver.hold(paused=self.state.paused)
        self.driver = driver
        self._interrupt()
        try:
            ended = await driver.run()
            if ended is not None:
                self._shared.results.tell(TurnResult.of(ended, last_answer(driver.records), agent.output_as))
        finally:
            self._offsets.clear()
            self._shared.results.leave(turn.id)
        self.driver = None
        self.parked = ended is None and not driver.turn.changes_hands

    def _interrupt(self) -> None:
        """An input that interrupts ends whatever turn runs: when its sender looked, that may have been another."""
        if self.driver and (request := self._waiting.interruption(self.driver.turn)):
            self.driver.interrupt(request)

    async def _fetch(self, ref: AttachmentRef) -> bytes:
        store = self._shared.store
        try:
            return (await store.blob(ref.hash, stream=self.stream)).data
        except Error as problem:
            if problem.code is not Code.BLOB_UNKNOWN:
                raise
        # A result of this very turn, perhaps: its bytes were on their way, and may have arrived since we looked.
        await self._owned.durable()
        return (await store.blob(ref.hash, stream=self.stream)).data

    def _around(self, agent: Agent, turn: Turn, deps: TurnDeps) -> Surroundings:
        shared = self._shared
        model = model_of(agent, turn.composition.model, shared.agents.values())
        return Surroundings(
            model=ModelAccess(model, self._fetch, output_check(agent, turn.composition)),
            toolbox=agent.toolbox,
            threads=shared.threads,
            clock=shared.clock,
            deps=deps,
            shown=self._transcript.shown,
            on_delta=self._on_delta,
            emitter=self._emitter,
            services=self._services(agent, turn),
            clients=lambda site: self._clients(site, agent),
            is_dead=shared.store.is_dead,
            on_loose_end=shared.loose_ends.note,
            store=shared.store,
            secrets=shared.secrets,
            lounge=shared.lounge,
            permits=shared.permits,
            opened_at=self._opened_at,
            joining=partial(self._waiting.joining, together=agent.drain == "together"),
            grant=lambda tool: grant_for(self.state, tool),
            spawner=lambda call, ledger: Subagents(
                shared, self.stream, Line.of(self.stream, self.state.parent), turn.id, call, ledger
            ),
        )

    def _services(self, agent: Agent, turn: Turn) -> Services:
        return services_of(self._shared, self.stream, agent, turn.composition, self._owned.durable)

    def _clients(self, site: CallSite, agent: Agent) -> Clients:
        shared, stream = self._shared, self.stream
        model = model_of(agent, site.turn.composition.model, shared.agents.values())

        def dispatch(parent: CallSurface) -> DispatchClient:
            return DispatchClient(cast("ToolContext[object]", parent), site, agent.toolbox, shared.threads)

        def completions(parent: CallSurface) -> CompletionsClient:
            ctx = cast("ToolContext[object]", parent)
            return CompletionsClient(ctx.body, ctx.services.veil, site, model, self._fetch)

        local = RunLocal()

        def processes(parent: CallSurface) -> ProcessesClient:
            body = cast("ToolContext[object]", parent).body
            return ProcessesClient(cast("Runtime", shared.host), parent, body, site, local)

        def triggers(parent: CallSurface) -> TriggersClient:
            ctx = cast("ToolContext[object]", parent)
            return client_of_call(shared.host.triggers, ctx, site, self._owned.durable)

        return Clients(
            triggers=triggers,
            sessions=SessionsClient(site, shared, stream, agent, self._change_tools, self._hand_over),
            attachments=AttachmentsClient(site, self._fetch),
            direct_completions=completions,
            dispatch=dispatch,
            processes=processes if stream_names(stream)[0] == shared.tenant else None,
        )

    async def _change_tools(self, site: CallSite, names: tuple[str, ...], present: bool) -> int:
        """Take tools out of this session or put them back, from its next turn on."""
        if self.driver is None or site.effect not in self.driver.flights:
            raise ToolError("The call is over: nobody waits for it any more", code="tool_cancelled")
        state = self.state
        for record in self._owned.undurable():
            if isinstance(record, ToolMembershipChanged):
                state = with_membership(state, record)
        changed = tuple(name for name in names if (name in state.without_tools) is present)
        if changed:
            change = ToolMembershipChanged(names=changed, present=present, call=site.call)
            state = with_membership(state, change)
            self.driver.submit(change)
        await self._owned.durable()
        return state.tools_generation

    async def _hand_over(self, site: CallSite, to: str, reason: str) -> None:
        """Give the conversation to another agent, who is asked next. Said again by the same call, it is the same."""
        if self.driver is None or site.effect not in self.driver.flights:
            raise ToolError("The call is over: nobody waits for it any more", code="tool_cancelled")
        told = [
            record for record in self.driver.records if isinstance(record, HandedOver) and record.turn == site.turn.id
        ]
        if self.driver.turn.to and told[-1].call != site.call:
            raise ToolError(
                f"The conversation is being handed over to {self.driver.turn.to} already", code="handed_over"
            )
        if not self.driver.turn.to:
            self.driver.submit(HandedOver(turn=site.turn.id, call=site.call, to=to, reason=reason))
        await self._owned.durable()

    def _on_delta(self, turn: Turn, effect: EffectId, text: str, thinking: bool) -> None:
        if not self._watched():
            return
        offset = self._offsets.get(effect, 0) + len(text)
        self._offsets[effect] = offset
        self._tell(Delta(Cursor(self.state.seq, effect, offset), turn.id, effect, text, thinking))

    def _watched(self) -> bool:
        return self._shared.hub.watched(self.stream)

    def _tell(self, piece: Live) -> None:
        """Something live leaves the process once every fact before it is durable."""
        if self._owned.settled:
            self._shared.hub.publish(self.stream, piece)
        elif len(self._deltas) < QUEUE_LIMIT:
            self._deltas.append(piece)
        else:
            self._missed(1)

    def _missed(self, count: int) -> None:
        self._shared.hub.miss(self.stream, count)

    # --- looking again while a turn runs

    async def look(self) -> None:
        """Something changed in the store: a request, a late outcome or an input may be for the running turn."""
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
            orphans.adopt(self.stream, self.driver)
