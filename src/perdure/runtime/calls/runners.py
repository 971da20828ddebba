"""What runs when an effect of a turn is dispatched: one runner for each thing that can be owed, and what it is given.

A runner turns a flight into an outcome. It records nothing of the turn itself: only what a call records of its own
parts goes through here, and through a valve that is shut once the turn goes on without the call.
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
from perdure.effects.controller import JournaledController, Ledger
from perdure.effects.journal import EffectJournal
from perdure.effects.promises import SECRET, TurnScope
from perdure.errors import Error
from perdure.ids import BlobHash, CallId, EffectId, WorkerId
from perdure.observe.emit import EventContext
from perdure.observe.live import LiveEmitter
from perdure.runtime.calls.clients import Cache, CallSite
from perdure.runtime.calls.jobs import Job
from perdure.runtime.calls.lost import NOT_WANTED, Saying
from perdure.runtime.calls.perform import MAX_JOB_BYTES, ModelAccess, ask_model, ask_outside, run_tool, without_deps
from perdure.runtime.calls.reading import Hearing
from perdure.runtime.deps import DepsFailed, TurnDeps
from perdure.runtime.shared import Secrets
from perdure.runtime.turns.envelopes import Where, envelope
from perdure.runtime.turns.flights import AttemptCompletion, Flight, Valve
from perdure.runtime.turns.preparing import Ready
from perdure.runtime.turns.transcript import Shown
from perdure.runtime.turns.waiting import Joining, opener_of
from perdure.runtime.worker.lounge import Lounge
from perdure.runtime.worker.permits import Permits
from perdure.runtime.worker.waits import Waits
from perdure.store.protocol import Store
from perdure.tools.body import Body
from perdure.tools.clients.surface import Clients
from perdure.tools.clients.turn import TurnContext
from perdure.tools.context import ToolContext
from perdure.tools.endings import Parked
from perdure.tools.execute import ToolThreads
from perdure.tools.places import Place, call_place
from perdure.tools.prepare import ToolPrepareContext
from perdure.tools.services import Services
from perdure.tools.subagents import Spawner
from perdure.tools.toolbox import Toolbox
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
from perdure.vocab.promises import AwaitEventKey, Cancelled, Resolution
from perdure.vocab.records import EffectSettled, EffectStarted, GrantMade, InputAdmitted, ModelJobBegun, Record

log = logging.getLogger("perdure.runtime")

Runner: TypeAlias = Callable[[Flight], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a turn needs of the world around it."""

    model: ModelAccess
    toolbox: Toolbox
    threads: ToolThreads
    clock: Clock
    deps: TurnDeps
    shown: Callable[[Iterable[Record]], Shown]
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
    grant: Callable[[str], GrantMade | None]
    spawner: Callable[[CallId, Ledger], Spawner]
    lost: Callable[[Turn, Iterable[Record], EffectId, Saying | None], Awaitable[EffectSettled]]
    lost_completion: Callable[[Turn, EffectStarted], Awaitable[EffectSettled]]
    give_up: Callable[[Turn, Iterable[Job]], Awaitable[None]]


class Driven(Ledger, Protocol):
    """The turn under way, as its runners see it."""

    turn: Turn
    records: list[Record]

    def so_far(self) -> Turn:
        """The turn with what its running calls have bought."""
        ...

    def attach(self, call: CallId, blob: Blob) -> None:
        """Store bytes that a call keeps, and say so."""
        ...

    def keep(self, *blobs: Blob) -> None:
        """Store bytes with the next append."""
        ...

    def drop(self, hashes: Iterable[BlobHash]) -> None:
        """Let go of bytes with the next append."""
        ...


class Runners:
    """The runners of one turn."""

    def __init__(
        self, driven: Driven, journal: EffectJournal, where: Where, around: Surroundings, waits: Waits
    ) -> None:
        self._driven = driven
        self._journal = journal
        self._where = where
        self._around = around
        self._waits = waits
        self._scope = TurnScope(where.tenant, where.session, driven.turn.id)

    def model(self, item: AskModel) -> Runner:
        """Ask the model."""
        turn = self._driven.turn
        shown = self._around.shown(self._driven.records)

        async def run(flight: Flight) -> Outcome:
            def on_delta(text: str, thinking: bool) -> None:
                self._around.on_delta(turn, flight.id, text, thinking)

            if self._driven.turn.cancel:
                return LlmCallOutcome(error=NOT_WANTED)
            kept: list[Blob] = []
            hearing = Hearing(on_delta, partial(self._job_begun, flight))
            flight.said = Saying()
            outcome = await ask_model(self._around.model, turn, item, shown, hearing, flight.said, kept.append)
            flight.blobs = tuple(kept)
            return outcome

        return run

    async def _job_begun(self, flight: Flight, job: Json) -> None:
        """Who finds the turn after us waits for this job, instead of buying another: before anything else of it."""
        if len(encode(job)) > MAX_JOB_BYTES:
            log.warning("a job of a provider is too large to be found again", extra={"effect": flight.id})
            return
        flight.valve = flight.valve or Valve(self._driven)
        flight.valve.submit(ModelJobBegun(id=flight.id, job=job))
        try:
            await flight.valve.durable()
        except Error:
            raise Parked from None  # whoever owns the turn now finds out about the job, or not

    def sleep(self, due_at: int) -> Runner:
        """Wait until it is time."""

        async def run(flight: Flight) -> Outcome:
            await self._waits.until(flight.id, None, due_at)
            return SleepOutcome()

        return run

    def completion(self, item: AwaitCompletion) -> Runner:
        """Wait for somebody outside to tell how a call ended."""

        async def run(flight: Flight) -> Outcome:
            due_at = item.pending.due_at or flight.begun.care.due_at
            key = item.pending.key
            answer = await self._waits.until(flight.id, key, due_at)
            resolution = answer or await self._waits.give_up(key, item.pending.silence)
            return AwaitEventOutcome(resolution=resolution)

        return run

    def approval(self, item: AwaitApproval) -> Runner:
        """Wait for somebody to allow a call."""

        async def run(flight: Flight) -> Outcome:
            await self._driven.durable()  # nobody can answer what is not there
            key = item.command.key
            resolution = await self._waits.until(flight.id, key, item.due_at) or await self._waits.give_up(key)
            return AwaitEventOutcome(resolution=await still_holds(self._around.store, key, resolution))

        return run

    def verdict(self, item: AwaitVerdict) -> Runner:
        """Wait for somebody to say what became of a call in doubt."""

        async def run(flight: Flight) -> Outcome:
            await self._driven.durable()
            command = flight.begun.envelope.command
            assert isinstance(command, AwaitEvent)
            due_at = flight.begun.care.due_at
            known = await self._waits.until(flight.id, command.key, due_at)
            resolution = known or await self._waits.give_up(command.key)
            decision = decision_of(resolution)
            if decision is not None and did_not_happen(resolution) and not await self._nobody_can_still_do_it(item):
                reason = "not done, it was said; but the former worker may still be doing it"
                resolution = msgspec.structs.replace(decision, verdict="unknown", reason=reason).resolution
            return AwaitEventOutcome(resolution=resolution)

        return run

    def probe(self, item: Probe, ready: Ready) -> Runner:
        """Ask the outside system about a call in doubt."""

        async def run(flight: Flight) -> Outcome:
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
        """Whether a call in doubt can certainly not take effect any more: only if the process that made it is dead.

        A deadline is no proof (a worker frozen past it goes on where it stood when it thaws), and neither is a body
        that ended when it was cancelled (a thread or a request that it had begun goes on without it).
        """
        return item.worker != self._driven.worker and await self._around.is_dead(item.worker)

    def tool(self, item: RunCall, ready: Ready) -> Runner:
        """Run one attempt of a call."""

        async def run(flight: Flight) -> Outcome:
            try:
                async with self._around.deps.use() as given:
                    return await self._attempt(item, ready, flight, given)
            except DepsFailed:
                return without_deps(item.call)

        return run

    async def _attempt(self, item: RunCall, ready: Ready, flight: Flight, given: object) -> Outcome:
        flight.valve = Valve(self._driven)
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
        pure = not flight.begun.care.waits

        def may_start() -> bool:
            if flight.cancellation.cancelled or not (pure or self._driven.lease_live()):
                return False
            flight.start()
            return True

        around = self._around
        done = await run_tool(
            item,
            ready.prepared,
            ctx,
            around.threads,
            around.clock,
            deadline_at=flight.begun.care.deadline_at,
            may_start=may_start,
        )
        completion.over = True
        if completion.key and isinstance(done.outcome.launch, Done):
            await self._waits.withdraw(completion.key)  # it ended after all: whoever has the key is told so
        around.emitter.flush()  # what the call said stands before what became of it
        flight.blobs = done.blobs
        site = flight.site
        if site is None or not site.triggers:
            return done.outcome
        return msgspec.structs.replace(done.outcome, triggers=tuple(site.triggers))

    def _place(self, item: RunCall) -> Place:
        assert item.ref.index is not None
        return call_place(
            scope=self._scope,
            turn_index=self._driven.turn.index,
            iteration=item.ref.iteration,
            index=item.ref.index,
            call=item.call.id,
            tool=item.call.name,
        )

    async def _body(self, item: RunCall, place: Place, flight: Flight, controller: JournaledController) -> Body:
        around = self._around
        secret = await around.secrets.get(SECRET)
        body = Body(
            place, controller, self._waits.of(flight.id), around.clock, around.threads, secret, around.services.veil
        )
        body.spawner = around.spawner(item.call.id, controller.ledger)
        return body

    def _attempts_completion(self, item: RunCall, controller: JournaledController) -> AttemptCompletion:
        turn, ref = self._driven.turn, msgspec.structs.replace(item.ref, tail="completion")

        def describe(key: AwaitEventKey) -> Envelope:
            return envelope(self._where, turn, AwaitCompletion(ref, item.call, Pending(key=key)))

        around = self._around
        return AttemptCompletion(
            controller, describe, around.secrets, self._scope, item.call.id, item.ref.attempt, around.clock
        )

    # --- what other people's code is given

    def prepare_context(self, item: RunCall) -> ToolPrepareContext:
        """What a provider's hook is given."""
        site = CallSite(self._driven.turn, item.call.id, item.ref.id, self._turn_context(), self._driven.so_far)
        return ToolPrepareContext(
            session_id=self._where.session,
            call_id=item.call.id,
            turn_context=site.turn_context,
            given=self._around.deps.at_hand,
            sessions=self._around.clients(site).sessions,
        )

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
        ready: Ready,
        flight: Flight,
        given: object,
        completion: AttemptCompletion | None = None,
    ) -> ToolContext[object]:
        where, prepared = self._where, ready.prepared
        turn, so_far = self._driven.turn, self._driven.so_far
        flight.site = CallSite(turn, item.call.id, flight.id, self._turn_context(), so_far, flight.cancellation)
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
            given=given,
            cancellation=flight.cancellation,
            services=self._around.services,
            event_emitter=self._around.emitter,
            event_context=EventContext(turn_id=self._driven.turn.id, exec_id=flight.id),
            prepared_payload=ready.call.prepared_payload,
            turn_context=flight.site.turn_context,
            parent_invocation=flight.begun.envelope.invocation,
            clients=self._around.clients(flight.site),
            body=flight.body,
            completion=completion,
        )


async def still_holds(store: Store, key: AwaitEventKey, resolution: Resolution) -> Resolution:
    """An approval holds until it expires by the store's clock, and once."""
    decision = approved(resolution)
    if decision is None:
        return resolution
    state = await store.peek(key.key_id)
    if state is None or state.consumed_at is not None:
        return Cancelled()
    expired = state.deadline_at is not None and state.deadline_at <= await store.now()
    return lapsed(decision) if expired else resolution
