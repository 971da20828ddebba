"""What surrounds the turns of one session: models, tools, services and clients, all bound to its owned stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, cast

from perdure.errors import Code, Error
from perdure.ids import EffectId, SessionId, StreamId, stream_names
from perdure.models.protocol import Model
from perdure.runtime.agent import Agent, output_check
from perdure.runtime.calls import jobs, lost
from perdure.runtime.calls.child_leave import People
from perdure.runtime.calls.children import AroundChildren, DispatchClient
from perdure.runtime.calls.clients import AttachmentsClient, CallSite, SessionsClient
from perdure.runtime.calls.completions import AskedModels, CompletionsClient
from perdure.runtime.calls.perform import ModelAccess
from perdure.runtime.calls.programs import ProgramsClient
from perdure.runtime.calls.reading import Patience
from perdure.runtime.calls.runners import Surroundings
from perdure.runtime.deps import TurnDeps
from perdure.runtime.processes.client import ProcessesClient, RunLocal
from perdure.runtime.services import services_of
from perdure.runtime.shared import Shared
from perdure.runtime.triggers.client import TriggersClient, client_of_call
from perdure.runtime.turns.call_changes import CallChanges
from perdure.runtime.turns.live_pieces import LivePieces
from perdure.runtime.turns.subagents import Subagents
from perdure.runtime.turns.transcript import Transcript
from perdure.runtime.turns.waiting import Waiting
from perdure.runtime.worker.owned import OwnedStream
from perdure.services.spawns import Line
from perdure.session.fold import SessionState, grant_for
from perdure.tools.clients.surface import CallSurface, Clients
from perdure.tools.context import ToolContext
from perdure.turn.state import Turn
from perdure.vocab.messages import AttachmentRef
from perdure.vocab.records import EffectSettled, EffectStarted, Record

if TYPE_CHECKING:
    from perdure.runtime.runtime import Runtime


class TurnWorld:
    """Makes the surroundings of each turn; `state` is the session as it is now."""

    def __init__(
        self,
        shared: Shared,
        owned: OwnedStream,
        transcript: Transcript,
        waiting: Waiting,
        live: LivePieces,
        changes: CallChanges,
        state: Callable[[], SessionState],
    ) -> None:
        self._shared = shared
        self._stream: StreamId = owned.stream
        self._owned = owned
        self._transcript = transcript
        self._waiting = waiting
        self._live = live
        self._changes = changes
        self._state = state

    def around(self, agent: Agent, turn: Turn, deps: TurnDeps, opened_at: int) -> Surroundings:
        """The world around a turn that is about to be driven."""
        shared = self._shared
        model = shared.host.models.of(agent, turn.composition.model)
        return Surroundings(
            model=ModelAccess(model, self._fetch, output_check(agent, turn.composition), self._patience(turn)),
            toolbox=agent.toolbox,
            threads=shared.threads,
            clock=shared.clock,
            deps=deps,
            shown=self._transcript.shown,
            on_delta=self._live.on_delta,
            emitter=self._live.emitter,
            services=services_of(shared, self._stream, agent, turn.composition, self._owned.durable),
            clients=lambda site: self._clients(site, agent),
            is_dead=shared.store.is_dead,
            on_loose_end=shared.loose_ends.note,
            store=shared.store,
            secrets=shared.secrets,
            lounge=shared.lounge,
            permits=shared.permits,
            opened_at=opened_at,
            joining=partial(self._waiting.joining, together=agent.drain == "together"),
            grant=lambda tool: grant_for(self._state(), tool),
            spawner=lambda call, ledger: Subagents(
                shared, self._stream, Line.of(self._stream, self._state().parent), turn.id, call, ledger
            ),
            lost=partial(self.lost, agent),
            lost_completion=partial(self.lost_completion, agent),
            give_up=partial(self.give_up, agent),
        )

    async def lost(
        self, agent: Agent, turn: Turn, records: Iterable[Record], effect: EffectId, said: lost.Saying | None
    ) -> EffectSettled:
        """The end of a model call that nobody will answer. What it had said, others may have to tell."""
        shared = self._shared
        model = shared.host.models.of(agent, turn.composition.model)
        before = said.written if said else await self._written(turn, effect)
        known = shared.unsaved.take(self._stream, turn.id, effect)
        shown = self._transcript.shown(records)
        return EffectSettled(id=effect, outcome=await lost.ended(model, turn, shown, before, known))

    async def _written(self, turn: Turn, effect: EffectId) -> lost.Written:
        """What a call of a worker that is gone had written."""
        before = await lost.written(self._shared.store, self._stream, turn.id, effect)
        partial = self._shared.host.models.sources.partial_streams
        if partial is None:
            return before
        return await lost.told_by_host(partial, SessionId(stream_names(self._stream)[2]), turn.id, before)

    async def lost_completion(self, agent: Agent, turn: Turn, started: EffectStarted) -> EffectSettled:
        """The end of what a tool had asked a model, and nobody will answer."""
        assert started.asks is not None
        asked = self._asked_model(agent, turn, started.asks.model)
        known = self._shared.unsaved.take(self._stream, turn.id, started.id)
        return EffectSettled(id=started.id, outcome=await lost.completion_ended(asked, turn, started.asks, known))

    async def give_up(self, agent: Agent, turn: Turn, unwanted: Iterable[jobs.Job]) -> None:
        """Nobody wants what providers work on for this turn."""
        await jobs.give_up((self._asked_model(agent, turn, one.model), one) for one in unwanted)

    def _asked_model(self, agent: Agent, turn: Turn, name: str) -> Model | None:
        """The model of this name that the turn or one of its tools has asked."""
        models = self._shared.host.models
        own = models.of(agent, turn.composition.model)
        return next((one for one in (own, models.utility) if one is not None and one.name == name), None)

    def _patience(self, turn: Turn) -> Patience:
        beats = self._shared.host.models.sources.heartbeats
        session = SessionId(stream_names(self._stream)[2])
        return Patience(turn.limits.stall_ms, beats(session, turn.id) if beats else None, self._shared.clock)

    async def _fetch(self, ref: AttachmentRef) -> bytes:
        store = self._shared.store
        try:
            return (await store.blob(ref.hash, stream=self._stream)).data
        except Error as problem:
            if problem.code is not Code.BLOB_UNKNOWN:
                raise
        # A result of this very turn, perhaps: its bytes were on their way, and may have arrived since we looked.
        await self._owned.durable()
        return (await store.blob(ref.hash, stream=self._stream)).data

    def _clients(self, site: CallSite, agent: Agent) -> Clients:
        shared, stream = self._shared, self._stream
        models = shared.host.models
        model = models.of(agent, site.turn.composition.model)

        def dispatch(parent: CallSurface) -> DispatchClient:
            people = People(
                self._owned, shared.store, shared.clock, site.turn.id, lambda tool: grant_for(self._state(), tool)
            )
            ctx = cast("ToolContext[object]", parent)
            clients = partial(self._clients, agent=agent)
            is_dead, permits = shared.store.is_dead, shared.permits
            around = AroundChildren(agent.toolbox, shared.threads, people, is_dead, permits, clients)
            return DispatchClient(ctx, site, around)

        def completions(parent: CallSurface) -> CompletionsClient:
            ctx = cast("ToolContext[object]", parent)
            asked = AskedModels(model, models.utility, partial(shared.permits.held, stream))
            return CompletionsClient(ctx.body, ctx.services.veil, site, asked, self._fetch)

        local = RunLocal()

        def processes(parent: CallSurface) -> ProcessesClient:
            body = cast("ToolContext[object]", parent).body
            return ProcessesClient(cast("Runtime", shared.host), parent, body, site, local)

        def triggers(parent: CallSurface) -> TriggersClient:
            ctx = cast("ToolContext[object]", parent)
            return client_of_call(shared.host.triggers, ctx, site, self._owned.durable)

        return Clients(
            triggers=triggers,
            sessions=SessionsClient(site, shared, stream, agent, self._changes.tools, self._changes.hand_over),
            attachments=AttachmentsClient(site, self._fetch),
            direct_completions=completions,
            programs=ProgramsClient(site, shared.store, stream, lambda: self._state().environment, self._fetch),
            dispatch=dispatch,
            processes=processes if stream_names(stream)[0] == shared.tenant else None,
        )
