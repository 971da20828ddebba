"""Runners: the functions that run when an effect of a turn is dispatched, one for each kind of effect.

A runner turns an effect in flight into an outcome. It records nothing of the turn itself. Only the parts of a call are
recorded from here, through a guard that closes once the turn continues without the call.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

import msgspec

from perdure.clock import Clock
from perdure.codec import Json, encode
from perdure.commit.plan import Blob
from perdure.effects import keys
from perdure.effects.controller import EffectLog, JournaledController
from perdure.effects.journal import EffectJournal
from perdure.effects.promises import SECRET, TurnScope
from perdure.errors import Error
from perdure.ids import BlobHash, CallId, EffectId, WorkerId
from perdure.observe.emit import EventContext
from perdure.observe.live import LiveEmitter
from perdure.runtime.calls.clients import Cache, CallSite
from perdure.runtime.calls.jobs import ProviderJob
from perdure.runtime.calls.orphaned_calls import NOT_WANTED, PartialReply
from perdure.runtime.calls.perform import MAX_JOB_BYTES, ModelAccess, ask_model, ask_outside, run_tool, without_deps
from perdure.runtime.calls.reading import ReplySink
from perdure.runtime.deps import DepsFailed, TurnDeps
from perdure.runtime.shared import Secrets
from perdure.runtime.turns.envelopes import Where, envelope
from perdure.runtime.turns.in_flight import AttemptCompletion, InFlight, WriteGuard
from perdure.runtime.turns.preparing import ReadyCall
from perdure.runtime.turns.transcript import VisibleMessages
from perdure.runtime.turns.waiting import Joining, opener_of
from perdure.runtime.worker.lounge import Lounge
from perdure.runtime.worker.permits import Permits
from perdure.runtime.worker.waits import Waits
from perdure.store.protocol import Store
from perdure.tools.body import Body
from perdure.tools.body_scope import BodyScope, call_place
from perdure.tools.clients.turn import TurnContext
from perdure.tools.context import ToolContext
from perdure.tools.door import AdmittedCall
from perdure.tools.execute import ToolThreads
from perdure.tools.origin import CallOrigin, Clients
from perdure.tools.prepare import ToolPrepareContext
from perdure.tools.services import Services
from perdure.tools.step_outcomes import Parked
from perdure.tools.subagents import Spawner
from perdure.tools.toolbox import Prepared, Toolbox
from perdure.turn.state import AskModel, AwaitApproval, AwaitCompletion, AwaitVerdict, Probe, RunCall, Turn
from perdure.vocab.approvals import approved, decision_of, did_not_happen, lapsed
from perdure.vocab.effects import AwaitEvent, Envelope
from perdure.vocab.outcomes import (
    AwaitEventOutcome,
    Done,
    DurableStepOutcome,
    LlmCallOutcome,
    Outcome,
    Pending,
    SleepOutcome,
)
from perdure.vocab.promises import Cancelled, EventKey, Resolution
from perdure.vocab.records import ApprovalGranted, EffectSettled, EffectStarted, InputAdmitted, ModelJobBegun, Record

log = logging.getLogger("perdure.runtime")

Runner: TypeAlias = Callable[[InFlight], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True)
class RunnerDeps:
    """The dependencies of a turn and its runners."""

    model: ModelAccess
    toolbox: Toolbox
    threads: ToolThreads
    clock: Clock
    deps: TurnDeps
    shown: Callable[[Iterable[Record]], VisibleMessages]
    on_delta: Callable[[Turn, EffectId, str, bool], None]
    emitter: LiveEmitter
    services: Services
    clients: Callable[[CallSite], Clients]
    is_dead: Callable[[WorkerId], Awaitable[bool]]
    on_loose_end: Callable[[], None]
    store: Store
    secrets: Secrets
    lounge: Lounge
    permits: Permits
    opened_at: int
    joining: Callable[[Turn, InputAdmitted | None], list[Joining]]
    grant: Callable[[Turn, Prepared], ApprovalGranted | None]
    spawner: Callable[[CallId, EffectLog], Spawner]
    lost: Callable[[Turn, Iterable[Record], EffectId, PartialReply | None], Awaitable[EffectSettled]]
    lost_completion: Callable[[Turn, EffectStarted], Awaitable[EffectSettled]]
    give_up: Callable[[Turn, Iterable[ProviderJob]], Awaitable[None]]


class TurnPort(EffectLog, Protocol):
    """The running turn, as its runners see it."""

    turn: Turn
    records: list[Record]

    def so_far(self) -> Turn:
        """Return the turn with the unrecorded usage of its running calls."""
        ...

    def attach(self, call: CallId, blob: Blob) -> None:
        """Store bytes that a call keeps, and record a reference to them."""
        ...

    def keep(self, *blobs: Blob) -> None:
        """Store bytes with the next append."""
        ...

    def drop(self, hashes: Iterable[BlobHash]) -> None:
        """Release bytes with the next append."""
        ...


class Runners:
    """The runners of one turn."""

    def __init__(
        self, driven: TurnPort, journal: EffectJournal, where: Where, around: RunnerDeps, waits: Waits
    ) -> None:
        self._driven = driven
        self._journal = journal
        self._where = where
        self._around = around
        self._waits = waits
        self._scope = TurnScope(where.tenant, where.session, driven.turn.id)

    def model(self, item: AskModel) -> Runner:
        """Return the runner of a model call."""
        turn = self._driven.turn
        shown = self._around.shown(self._driven.records)

        async def run(flight: InFlight) -> Outcome:
            def on_delta(text: str, thinking: bool) -> None:
                self._around.on_delta(turn, flight.id, text, thinking)

            if self._driven.turn.cancel:
                return LlmCallOutcome(error=NOT_WANTED)
            kept: list[Blob] = []
            hearing = ReplySink(on_delta, partial(self._job_begun, flight))
            flight.said = PartialReply()
            outcome = await ask_model(self._around.model, turn, item, shown, hearing, flight.said, kept.append)
            flight.blobs = tuple(kept)
            return outcome

        return run

    async def _job_begun(self, flight: InFlight, job: Json) -> None:
        """Record the provider job before anything else of the call. The next owner waits for it and buys no other."""
        if len(encode(job)) > MAX_JOB_BYTES:
            log.warning("provider job too large to record", extra={"effect": flight.id})
            return
        flight.valve = flight.valve or WriteGuard(self._driven)
        flight.valve.submit(ModelJobBegun(id=flight.id, job=job))
        try:
            await flight.valve.durable()
        except Error:
            raise Parked from None  # the current owner of the turn may have read of the job, or not

    def sleep(self, due_at: int) -> Runner:
        """Return the runner that waits for a time."""

        async def run(flight: InFlight) -> Outcome:
            await self._waits.until(flight.id, None, due_at)
            return SleepOutcome()

        return run

    def completion(self, item: AwaitCompletion) -> Runner:
        """Return the runner that waits for the external completion of a call."""

        async def run(flight: InFlight) -> Outcome:
            due_at = item.pending.due_at or flight.begun.policy.due_at
            key = item.pending.key
            answer = await self._waits.until(flight.id, key, due_at)
            resolution = answer or await self._waits.give_up(key, item.pending.silence)
            return AwaitEventOutcome(resolution=resolution)

        return run

    def approval(self, item: AwaitApproval) -> Runner:
        """Return the runner that waits for a person's approval of a call."""

        async def run(flight: InFlight) -> Outcome:
            await self._driven.durable()  # the promise must be durable before it can be answered
            key = item.command.key
            resolution = await self._waits.until(flight.id, key, item.due_at) or await self._waits.give_up(key)
            return AwaitEventOutcome(resolution=await still_holds(self._around.store, key, resolution))

        return run

    def verdict(self, item: AwaitVerdict) -> Runner:
        """Return the runner that waits for a person's verdict on a call in doubt."""

        async def run(flight: InFlight) -> Outcome:
            await self._driven.durable()
            command = flight.begun.envelope.command
            assert isinstance(command, AwaitEvent)
            due_at = flight.begun.policy.due_at
            known = await self._waits.until(flight.id, command.key, due_at)
            resolution = known or await self._waits.give_up(command.key)
            decision = decision_of(resolution)
            if decision is not None and did_not_happen(resolution) and not await self._nobody_can_still_do_it(item):
                reason = "reported as not done, but the former worker may still be doing it"
                resolution = msgspec.structs.replace(decision, verdict="unknown", reason=reason).resolution
            return AwaitEventOutcome(resolution=resolution)

        return run

    def probe(self, item: Probe, ready: ReadyCall) -> Runner:
        """Return the runner that probes an external system about a call in doubt."""

        async def run(flight: InFlight) -> Outcome:
            flight.start()
            certain = await self._nobody_can_still_do_it(item)
            try:
                async with self._around.deps.use() as given:
                    ctx = self._context(item, ready, flight, given)
                    return await ask_outside(ready.prepared, ctx, self._around.threads, certain=certain)
            except DepsFailed:
                return DurableStepOutcome(value={"verdict": "unknown", "reason": "the probe could not run"})

        return run

    async def _nobody_can_still_do_it(self, item: Probe | AwaitVerdict) -> bool:
        """Return True if a call in doubt can certainly not take effect any more: the process that made it is dead.

        A passed deadline is no proof, because a frozen worker continues when it thaws. The end of a cancelled body is
        no proof either, because a thread or request that it started continues without it.
        """
        return item.worker != self._driven.worker and await self._around.is_dead(item.worker)

    def tool(self, item: RunCall, ready: ReadyCall, admitted: AdmittedCall) -> Runner:
        """Return the runner of one attempt of a call."""

        async def run(flight: InFlight) -> Outcome:
            try:
                async with self._around.deps.use() as given:
                    return await self._attempt(item, ready, admitted, flight, given)
            except DepsFailed:
                return without_deps(item.call)

        return run

    async def _attempt(
        self, item: RunCall, ready: ReadyCall, admitted: AdmittedCall, flight: InFlight, given: object
    ) -> Outcome:
        flight.valve = WriteGuard(self._driven)
        controller = JournaledController(self._journal, flight.valve)
        place = self._place(item)
        if flight.effect == "resumable":
            flight.body = await self._body(item, place, flight, controller)
        completion = self._attempts_completion(item, controller)
        ctx = self._context(item, ready, flight, given, completion)
        if flight.site:
            flight.site.place, flight.site.controller = place, controller
        if flight.body and flight.site:
            flight.site.keep = partial(self._driven.attach, item.call.id)
            flight.site.cache = Cache(self._driven.keep, self._driven.drop)
        pure = not flight.begun.policy.waits

        def may_start() -> bool:
            if flight.cancellation.cancelled or not (pure or self._driven.lease_live()):
                return False
            flight.start()
            return True

        around = self._around
        done = await run_tool(
            item,
            admitted,
            ctx,
            around.threads,
            around.clock,
            deadline_at=flight.begun.policy.deadline_at,
            may_start=may_start,
        )
        completion.over = True
        if completion.key and isinstance(done.outcome.launch, Done):
            await self._waits.withdraw(completion.key)  # the call ended by itself: a late use of the key is told so
        around.emitter.flush()  # progress comes before the outcome
        flight.blobs = done.blobs
        site = flight.site
        if site is None or not site.triggers:
            return done.outcome
        return msgspec.structs.replace(done.outcome, triggers=tuple(site.triggers))

    def _place(self, item: RunCall) -> BodyScope:
        assert item.ref.index is not None
        return call_place(
            scope=self._scope,
            turn_index=self._driven.turn.index,
            iteration=item.ref.iteration,
            index=item.ref.index,
            call=item.call.id,
            tool=item.call.name,
        )

    async def _body(self, item: RunCall, place: BodyScope, flight: InFlight, controller: JournaledController) -> Body:
        around = self._around
        secret = await around.secrets.get(SECRET, self._scope.tenant)
        body = Body(place, controller, self._waits.of(flight.id), around.clock, around.threads, secret)
        body.spawner = around.spawner(item.call.id, controller.ledger)
        return body

    def _attempts_completion(self, item: RunCall, controller: JournaledController) -> AttemptCompletion:
        turn, ref = self._driven.turn, msgspec.structs.replace(item.ref, tail="completion")

        def describe(key: EventKey) -> Envelope:
            return envelope(self._where, turn, AwaitCompletion(ref, item.call, Pending(key=key)))

        around = self._around
        return AttemptCompletion(
            controller, describe, around.secrets, self._scope, item.call.id, item.ref.attempt, around.clock
        )

    # --- contexts for user code

    def prepare_context(self, item: RunCall) -> ToolPrepareContext:
        """Return the context for a provider's hook or an approval predicate."""
        site = CallSite(self._driven.turn, item.call.id, item.ref.id, self._turn_context(), self._spent_up)
        return ToolPrepareContext(
            session_id=self._where.session,
            call_id=item.call.id,
            turn_context=site.turn_context,
            _deps=self._around.deps.at_hand,
            sessions=self._around.clients(site).sessions,
        )

    def _spent_up(self) -> str:
        return self._driven.so_far().spent_up

    def _turn_context(self) -> TurnContext:
        turn = self._driven.turn
        opener = opener_of(turn, self._driven.records)
        return TurnContext(
            session_id=self._where.session,
            turn_id=turn.id,
            turn_index=turn.index,
            iteration=turn.iteration,
            agent=turn.composition.agent,
            model=turn.composition.model,
            plugin_inputs=(opener.plugin_input if opener else None) or {},
        )

    def _context(
        self,
        item: RunCall | Probe,
        ready: ReadyCall,
        flight: InFlight,
        given: object,
        completion: AttemptCompletion | None = None,
    ) -> ToolContext[object]:
        where, prepared = self._where, ready.prepared
        turn = self._driven.turn
        flight.site = CallSite(turn, item.call.id, flight.id, self._turn_context(), self._spent_up, flight.cancellation)
        return ToolContext(
            session_id=where.session,
            turn_id=self._driven.turn.id,
            call_id=item.call.id,
            tool_name=item.call.name,
            tenant=where.tenant,
            attempt=item.ref.attempt,
            max_attempts=prepared.contract.durability.retry.max_attempts,
            idempotency_key=keys.tool_idempotency(where.tenant, where.session, item.call.id, item.call.name),
            args=ready.call.args,
            cancellation=flight.cancellation,
            _call=CallOrigin(
                deps=given,
                services=self._around.services,
                event_emitter=self._around.emitter,
                event_context=EventContext(turn_id=self._driven.turn.id, exec_id=flight.id),
                prepared_payload=ready.call.prepared_payload,
                turn_context=flight.site.turn_context,
                parent_invocation=flight.begun.envelope.invocation,
                clients=self._around.clients(flight.site),
                body=flight.body,
                completion=completion,
            ),
        )


async def still_holds(store: Store, key: EventKey, resolution: Resolution) -> Resolution:
    """Return the resolution, or a refusal if its approval is used up or has expired by the store's clock."""
    decision = approved(resolution)
    if decision is None:
        return resolution
    state = await store.peek(key.key_id)
    if state is None or state.consumed_at is not None:
        return Cancelled()
    expired = state.deadline_at is not None and state.deadline_at <= await store.now()
    return lapsed(decision) if expired else resolution
