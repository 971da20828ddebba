"""The environment of one session's turns: models, tools, services and clients, bound to its owned stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, cast

from perdure.errors import Code, Error
from perdure.ids import EffectId, SessionId, StreamId, stream_names
from perdure.models.protocol import Model
from perdure.runtime.agent import Agent, output_check, setup_of
from perdure.runtime.calls import jobs, orphaned_calls
from perdure.runtime.calls.child_leave import ChildApprovals
from perdure.runtime.calls.children import ChildCallDeps, DispatchClient
from perdure.runtime.calls.clients import CallSite
from perdure.runtime.calls.perform import ModelAccess
from perdure.runtime.calls.programs import ProgramsClient
from perdure.runtime.calls.reading import StallPolicy
from perdure.runtime.calls.runners import RunnerDeps
from perdure.runtime.deps import TurnDeps
from perdure.runtime.services import BodyAccess, TurnParts, clients_of, services_of
from perdure.runtime.shared import Shared
from perdure.runtime.turns.call_changes import CallChanges
from perdure.runtime.turns.live_pieces import LivePieces
from perdure.runtime.turns.subagents import Subagents
from perdure.runtime.turns.transcript import Transcript
from perdure.runtime.turns.waiting import InboxView
from perdure.runtime.worker.owned import OwnedStream
from perdure.services.spawns import Lineage
from perdure.session.fold import SessionState, grant_for
from perdure.tools.context import ToolContext
from perdure.tools.origin import Clients
from perdure.tools.toolbox import Prepared
from perdure.turn.state import Turn
from perdure.vocab.messages import AttachmentRef
from perdure.vocab.records import ApprovalGranted, EffectSettled, EffectStarted, Record

if TYPE_CHECKING:
    from perdure.runtime.core import RuntimeCore


class TurnEnvironment:
    """Factory of turn environments for one session. `state` returns the session's current state."""

    def __init__(
        self,
        shared: Shared,
        owned: OwnedStream,
        transcript: Transcript,
        waiting: InboxView,
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

    def around(self, agent: Agent, turn: Turn, deps: TurnDeps, opened_at: int) -> RunnerDeps:
        """Return the environment of a turn that is about to be driven."""
        shared = self._shared
        model = shared.host.models.of(agent, turn.composition.model)
        return RunnerDeps(
            model=ModelAccess(model, self._fetch, output_check(agent, turn.composition), self._idle_policy(turn)),
            toolbox=setup_of(agent).toolbox,
            threads=shared.threads,
            clock=shared.clock,
            deps=deps,
            shown=self._transcript.shown,
            on_delta=self._live.on_delta,
            emitter=self._live.emitter,
            services=services_of(
                cast("RuntimeCore", shared.host),
                self._stream,
                agent,
                composition=turn.composition,
                durable=self._owned.durable,
                in_turn=True,
            ),
            clients=lambda site: self._clients(site, agent),
            is_dead=shared.store.is_dead,
            on_loose_end=shared.abandoned_calls.note,
            store=shared.store,
            secrets=shared.secrets,
            lounge=shared.lounge,
            permits=shared.permits,
            opened_at=opened_at,
            joining=partial(self._waiting.joining, together=agent.batch_inputs),
            grant=self._grant,
            spawner=lambda call, ledger: Subagents(
                shared, self._stream, Lineage.of(self._stream, self._state().parent), turn.id, call, ledger
            ),
            lost=partial(self.lost, agent),
            lost_completion=partial(self.lost_completion, agent),
            give_up=partial(self.give_up, agent),
        )

    async def lost(
        self,
        agent: Agent,
        turn: Turn,
        records: Iterable[Record],
        effect: EffectId,
        said: orphaned_calls.PartialReply | None,
    ) -> EffectSettled:
        """Return the settlement of a model call that will get no reply.

        Without `said`, the partial text comes from the host's stream store or the side channel.
        """
        shared = self._shared
        model = shared.host.models.of(agent, turn.composition.model)
        before = said.written if said else await self._written(turn, effect)
        known = shared.unsaved.take(self._stream, turn.id, effect)
        shown = self._transcript.shown(records)
        return EffectSettled(id=effect, outcome=await orphaned_calls.ended(model, turn, shown, before, known))

    async def _written(self, turn: Turn, effect: EffectId) -> orphaned_calls.PartialText:
        """Return the partial output of a model call whose worker is gone."""
        before = await orphaned_calls.written(self._shared.store, self._stream, turn.id, effect)
        partial = self._shared.host.models.sources.partial_streams
        if partial is None:
            return before
        return await orphaned_calls.partial_from_host(
            partial, SessionId(stream_names(self._stream)[2]), turn.id, before
        )

    async def lost_completion(self, agent: Agent, turn: Turn, started: EffectStarted) -> EffectSettled:
        """Return the settlement of a tool's model call that will get no reply."""
        assert started.estimated_usage is not None
        asked = self._asked_model(agent, turn, started.estimated_usage.model)
        known = self._shared.unsaved.take(self._stream, turn.id, started.id)
        return EffectSettled(
            id=started.id, outcome=await orphaned_calls.completion_ended(asked, turn, started.estimated_usage, known)
        )

    async def give_up(self, agent: Agent, turn: Turn, unwanted: Iterable[jobs.ProviderJob]) -> None:
        """Cancel provider jobs of this turn that are no longer needed."""
        await jobs.give_up((self._asked_model(agent, turn, one.model), one) for one in unwanted)

    def _asked_model(self, agent: Agent, turn: Turn, name: str) -> Model | None:
        """Return the turn's own model or the utility model, whichever has this name, or None."""
        models = self._shared.host.models
        own = models.of(agent, turn.composition.model)
        return next((one for one in (own, models.utility) if one is not None and one.name == name), None)

    def _idle_policy(self, turn: Turn) -> StallPolicy:
        beats = self._shared.host.models.sources.heartbeats
        session = SessionId(stream_names(self._stream)[2])
        return StallPolicy(turn.limits.stall_ms, beats(session, turn.id) if beats else None, self._shared.clock)

    def _grant(self, turn: Turn, prepared: Prepared) -> ApprovalGranted | None:
        """Return the session-wide approval that covers a call, or None.

        A grant covers one contract. A call whose tool was deployed with another one during the turn is asked about.
        """
        if not prepared.is_as_captured:
            return None
        return grant_for(self._state(), turn.composition.agent, prepared.contract)

    async def _fetch(self, ref: AttachmentRef) -> bytes:
        store = self._shared.store
        try:
            return (await store.blob(ref.hash, stream=self._stream)).data
        except Error as problem:
            if problem.code is not Code.BLOB_UNKNOWN:
                raise
        # The blob may belong to a result of this turn whose append was still in flight.
        await self._owned.durable()
        return (await store.blob(ref.hash, stream=self._stream)).data

    def _clients(self, site: CallSite, agent: Agent) -> Clients:
        shared, stream = self._shared, self._stream
        core = cast("RuntimeCore", shared.host.of(stream_names(stream)[0]))

        def dispatch(site: CallSite, ctx: ToolContext[object]) -> DispatchClient:
            people = ChildApprovals(self._owned, shared.store, shared.clock, site.turn, self._grant)
            clients = partial(self._clients, agent=agent)
            is_dead, permits, tasks = shared.store.is_dead, shared.permits, core.tasks
            toolbox = setup_of(agent).toolbox
            return DispatchClient(
                ctx, site, ChildCallDeps(toolbox, shared.threads, people, is_dead, permits, clients, tasks)
            )

        def programs(site: CallSite) -> ProgramsClient:
            return ProgramsClient(site, shared.store, stream, lambda: self._state().environment, self._fetch)

        parts = TurnParts(dispatch, programs, self._changes)
        within_limits = partial(shared.permits.held, stream)
        return clients_of(core, stream, agent, site, BodyAccess(self._owned.durable, self._fetch, within_limits, parts))
