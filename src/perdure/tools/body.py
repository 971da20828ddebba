"""Bodies that wait: the operations of a resumable tool's context, each recorded once.

A coroutine cannot be stored. A body that waits long is unwound with `Parked` and later re-entered from the top.
Finished parts are then answered from the log. One rule follows: *code between steps may run again, and arguments of a
recorded step must be equal every time*.

Laws: a finished step never runs again, whatever its outcome. Used names belong to one entry of the body, recorded
outcomes to the call. An unwound body records nothing more.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

import msgspec

from perdure.clock import Clock
from perdure.codec import Json
from perdure.effects import keys
from perdure.effects.controller import Begun, DispatchPolicy, JournaledController, Local, NotDispatched, asking_policy
from perdure.effects.promises import TurnScope, check_key, signed_key, unsigned_key
from perdure.errors import Code, Error
from perdure.ids import EffectId, check_id
from perdure.services.secrets import speaker
from perdure.tools import branches, step_outcomes, steps
from perdure.tools.body_lifetime import BodyLifetime
from perdure.tools.body_scope import BodyScope
from perdure.tools.clients.process_events import ProcessEventInfo, ProcessEvents, emitted
from perdure.tools.errors import ToolError
from perdure.tools.step_arguments import checked_input
from perdure.tools.steps import STEP_POLICY, StepEffect
from perdure.tools.threads import NotStarted, Raised, Returned, ToolThreads
from perdure.vocab.effects import (
    AwaitEvent,
    Command,
    Direct,
    DurableStep,
    Envelope,
    Invocation,
    LlmRequestSpec,
    Process,
    Sleep,
)
from perdure.vocab.outcomes import (
    AwaitEventOutcome,
    DirectOutcome,
    DirectUsage,
    DurableStepOutcome,
    Outcome,
    ProcessEffectOutcome,
    SleepOutcome,
    into_await_event,
    into_direct,
    into_durable_step,
    into_process,
    into_sleep,
)
from perdure.vocab.processes import ProcessCommand, ProcessOutcome
from perdure.vocab.promises import (
    Custom,
    EventKey,
    ProcessSignal,
    ProcessTerminal,
    Resolution,
    TimedOut,
    TurnTerminal,
)
from perdure.vocab.refs import PartKind


class Waiter(Protocol):
    """Waits on behalf of a body, first in memory."""

    async def until(self, promise: EventKey | None, due_at: int | None) -> Resolution | None:
        """Wait for the promise and return its resolution, or None once `due_at` has passed.

        Raises:
            Parked: the wait takes too long for memory.
        """
        ...

    async def give_up(self, promise: EventKey, silence: Json = None) -> Resolution:
        """Resolve an expired promise with `silence` and return its resolution. An earlier resolution wins."""
        ...

    def let_go(self, promise: EventKey) -> None:
        """Release a resolution that this body does not consume, so that another waiter can."""
        ...

    def changed(self) -> None:
        """Record that the body started or finished a part."""
        ...


class BodyPermit(Protocol):
    """The permit a body needs while it works."""

    async def have(self) -> None:
        """Acquire the permit; wait for it if needed."""
        ...


class Body:
    """One entry of a resumable tool's function."""

    def __init__(
        self,
        place: BodyScope,
        controller: JournaledController,
        waiter: Waiter,
        clock: Clock,
        threads: ToolThreads,
        secret: bytes,
    ) -> None:
        self.place = place
        self.controller = controller
        self.life = BodyLifetime(place.called, waiter.changed)
        self.spawner: object | None = None
        self.permit: BodyPermit | None = None
        self._waiter = waiter
        self._clock = clock
        self._threads = threads
        self._secret = secret
        self._used: set[tuple[PartKind, str]] = set()
        self._counted: Counter[str] = Counter()
        self._reached: set[EffectId] = set()

    # --- steps

    async def step(
        self,
        name: str,
        given: Json,
        call: Callable[[], object],
        effect: StepEffect,
        *,
        in_loop: bool,
        leave: Callable[[], None] | None = None,
    ) -> Json:
        """Run a step, or replay it from the log.

        `leave` consumes the step's approval in the append that starts it.
        """
        if effect not in STEP_POLICY:
            raise Error(Code.INVALID_ARGUMENT, f"unknown effect {effect!r} of step {name!r}")
        outcome = await self._step(name, given, call, STEP_POLICY[effect], in_loop=in_loop, leave=leave)
        return step_outcomes.step_value(name, into_durable_step(outcome))

    def inner(self, place: BodyScope) -> Body:
        """Return a body nested in this one: it shares the waiter, and its lifetime ends with this body."""
        body = Body(place, self.controller, self._waiter, self._clock, self._threads, self._secret)
        body.life = BodyLifetime(place.called, self._waiter.changed, self.life)
        return body

    async def run_inner(
        self,
        name: str,
        given: Json,
        enter: Callable[[int | None], object],
        *,
        timeout_ms: int | None = None,
        leave: Callable[[], None] | None = None,
    ) -> None:
        """Run a nested body as a step: every entry re-enters it until it ends, within its remaining time.

        The time limit counts from its first start. The outcome is in the log.
        """
        now, begun = self._clock.wall_ms(), self.controller.journal.started(self.place.part("step", name))
        fresh = None if timeout_ms is None else now + timeout_ms
        deadline_at = begun.deadline_at if begun else fresh
        left_ms = None if deadline_at is None else deadline_at - now
        policy = DispatchPolicy(effect="resumable", deadline_at=deadline_at)
        into_durable_step(await self._step(name, given, lambda: enter(left_ms), policy, in_loop=True, leave=leave))

    def _step(
        self,
        name: str,
        given: Json,
        call: Callable[[], object],
        policy: DispatchPolicy,
        *,
        in_loop: bool,
        leave: Callable[[], None] | None,
    ) -> Awaitable[Outcome]:
        """Prepare a step, to be awaited at once: reserve its name and consume its approval."""
        self._reserve("step", name)
        command = DurableStep(step_id=name, input=checked_input(name, given))
        described = self._described("step", name, command, "durable-step", name)

        async def run() -> DurableStepOutcome:
            ended = await steps.run(
                call, in_loop=in_loop, life=self.life, ledger=self.controller.ledger, threads=self._threads
            )
            match ended:
                case Returned(value=value):
                    return step_outcomes.returned(name, value)
                case Raised(error=error):
                    return step_outcomes.raised(name, error, self.place)
                case NotStarted():
                    raise NotDispatched

        if leave is not None:
            leave()
            policy = msgspec.structs.replace(policy, needs_approval=True)
        return self._execute(described, run, policy)

    def now(self) -> Json:
        """Return the time as ISO 8601 text."""
        return datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC).isoformat()

    def value(self, kind: str, make: Callable[[], Json], name: str | None) -> Json:
        """Return a nondeterministic value. The first value is recorded and replayed."""
        if name is None:
            name = f"{kind}:{self.count(kind)}"
        else:
            name = f"{kind}:{name}"
            self._reserve("value", name)
        begun = self._begin(self._described("value", name, DurableStep(step_id=name)), DispatchPolicy(effect="pure"))
        if not isinstance(begun, Begun):
            return into_durable_step(begun).value
        made = make()
        self.controller.settle(begun, DurableStepOutcome(value=made))
        return made

    def recorded(self, kind: PartKind, name: str) -> Json:
        """Return the value recorded under this name, or None."""
        outcome = self.outcome_of(kind, name)
        return None if outcome is None else into_durable_step(outcome).value

    def record(self, kind: PartKind, name: str, value: Json) -> None:
        """Record a value under a name, unless one is recorded."""
        self._reserve(kind, name)
        begun = self._begin(self._described(kind, name, DurableStep(step_id=name)), DispatchPolicy(effect="pure"))
        if isinstance(begun, Begun):
            self.controller.settle(begun, DurableStepOutcome(value=value))

    # --- parts that the caller performs

    def open_part(self, kind: PartKind, name: str, command: Command, policy: DispatchPolicy) -> Begun | Outcome:
        """Start a part that the caller performs and closes, or return its recorded outcome."""
        self._reserve(kind, name)
        described = self._described(kind, name, command)
        self._check_wanted(described)
        return self._begin(described, policy)

    def close_part(self, begun: Begun, outcome: Outcome) -> None:
        """Record the outcome of a part."""
        self.life.check_open()
        self.controller.settle(begun, outcome)

    def outcome_of(self, kind: PartKind, name: str) -> Outcome | None:
        """Return the outcome recorded for a part, in this entry or an earlier one."""
        return self.controller.journal.outcome(self.place.part(kind, name))

    async def answer_to(self, promise: EventKey, due_at: int | None, silence: Json = None) -> Resolution:
        """Wait for the promise of a part. After `due_at`, resolve it with `silence`."""
        resolution = await self._until(promise, due_at)
        self.life.check_open()
        return resolution or await self._waiter.give_up(promise, silence)

    # --- waits

    async def sleep(self, name: str, length_ms: int) -> None:
        """Wait until the due time that was fixed when this sleep first started."""
        self._reserve("sleep", name)
        described = self._described("sleep", name, Sleep(duration_ms=length_ms))
        into_sleep(await self._await(described, None, length_ms))

    def event_key(self, name: str) -> EventKey:
        """Return the key of an event of this turn. Equal names give equal keys."""
        self.life.check_open()
        if isinstance(name, str) and not name.strip():  # pyright: ignore[reportUnnecessaryIsInstance] - tools pass any type
            raise Error(
                Code.DURABLE_EFFECT_EMPTY_EVENT_KEY, "an event needs a name", hint='ctx.wait_for_event("reviewed")'
            )
        check_id(name, what="the name of an event")
        return signed_key(self._secret, self.place.scope_id, Custom(key=name))

    async def event(self, key: EventKey, timeout_ms: int | None) -> Json:
        """Wait for an event and return its value, or raise the error it ended with."""
        self.life.check_open()
        check_key(self._secret, key)
        ours = key.scope == self.place.scope_id
        name = key.wait.key if ours and isinstance(key.wait, Custom) else key.key_id
        wait = unsigned_key(key.scope, key.wait)
        described = self._described("event", name, AwaitEvent(key=wait), "await-event", key.key_id)
        return step_outcomes.event_value(name, await self._resolution(described, wait, timeout_ms))

    async def signal(self, process: str, name: str, timeout_ms: int | None) -> Json:
        """Wait for the next signal of this name that the process has not consumed."""
        ordinal = self.count(f"signal:{name}")
        wait = unsigned_key(self.place.scope_id, ProcessSignal(process_id=process, name=name, ordinal=ordinal))
        key = (f"signal.{name}", "await", str(ordinal))
        described = self._described("signal", f"{name}:{ordinal}", AwaitEvent(key=wait), *key)
        return step_outcomes.signal_value(name, await self._resolution(described, wait, timeout_ms))

    async def ended(self, scope_id: str, process: str, timeout_ms: int | None) -> Resolution:
        """Wait for the end of another process, or for the timeout."""
        wait = unsigned_key(scope_id, ProcessTerminal(process_id=process))
        nth = self.count(f"wait:{process}")  # an earlier wait that timed out does not decide this one
        name = process if nth == 1 else f"{process}#{nth}"
        described = self._described("wait", name, AwaitEvent(key=wait), "process", "await", name)
        return await self._resolution(described, wait, timeout_ms)

    async def end_of_turn(self, name: str, turn: TurnScope, timeout_ms: int | None) -> Resolution:
        """Wait for the end of a turn of another session."""
        self._reserve("answer", name)
        wait = unsigned_key(turn.id, TurnTerminal(turn_id=turn.turn))
        return await self._resolution(self._described("answer", name, AwaitEvent(key=wait)), wait, timeout_ms)

    async def _resolution(self, described: Envelope, wait: EventKey, timeout_ms: int | None) -> Resolution:
        return into_await_event(await self._await(described, wait, timeout_ms))

    # --- models, other agents, processes

    async def direct(
        self,
        name: str,
        request: LlmRequestSpec,
        asks: DirectUsage,
        ask: Callable[[EffectId], Awaitable[DirectOutcome]],
    ) -> DirectOutcome:
        """Ask a model outside the conversation, or replay the answer from the log.

        A lost request is sent again as the next attempt. A request that the provider still processes is resumed.
        """
        self._reserve("direct", name)
        command = Direct(request=request, usage_source=asks.source)
        key, policy = ("direct", asks.source, "request", name), asking_policy(asks)
        described = self._described("direct", name, command, *key)
        for attempt in itertools.count(2):
            known, id = self._known(described), EffectId(described.id)
            outcome = into_direct(await self._execute(described, partial(ask, id), policy))
            if known is None or not outcome.lost:
                return outcome
            described = self._described("again", f"{attempt}.{name}", command, *key, str(attempt))
        raise AssertionError("unreachable")

    def nth(self, agent: str) -> str:
        """Return a default name for the next request to an agent."""
        return f"{agent}:{self.count(f'agent:{agent}')}"

    async def start(self, name: str, given: object, start: Callable[[], Awaitable[None]]) -> None:
        """Start remote work under a name that makes repeated starts one. Replay skips the start.

        A `ToolError` of `start` is the outcome, on every entry.
        """
        await self.told("ask", name, given, start, DispatchPolicy(effect="pure", record_start=True))

    async def told(
        self,
        kind: PartKind,
        name: str,
        given: object,
        tell: Callable[[], Awaitable[Json]],
        policy: DispatchPolicy | None = None,
    ) -> Json:
        """Send an idempotent message elsewhere and return the reply, or replay the recorded one.

        A `ToolError` is the outcome, on every entry. After any other error the message is sent again.
        """
        self._reserve(kind, name)
        command = DurableStep(step_id=name, input=checked_input(name, msgspec.to_builtins(given)))

        async def run() -> DurableStepOutcome:
            try:
                return DurableStepOutcome(value=await tell())
            except ToolError as refusal:
                return step_outcomes.raised(name, refusal, self.place)

        outcome = await self._execute(
            self._described(kind, name, command), run, policy or DispatchPolicy(effect="idempotent")
        )
        return step_outcomes.step_value(name, into_durable_step(outcome))

    async def command(
        self,
        kind: PartKind,
        name: str,
        command: ProcessCommand,
        perform: Callable[[], Awaitable[ProcessOutcome]],
        *,
        again: int = 1,
    ) -> ProcessOutcome:
        """Perform a process command, or replay its outcome. Every entry must pass an equal command.

        `again` distinguishes repeated commands of one body.
        """
        self._reserve(kind, name)
        key = (command.effect_id,) if again == 1 else (command.effect_id, str(again))

        async def run() -> ProcessEffectOutcome:
            return ProcessEffectOutcome(result=await perform())

        described = self._described(kind, name, Process(command=command), *key)
        return into_process(await self._execute(described, run, DispatchPolicy(effect="idempotent")))

    async def emit(self, events: ProcessEvents, process: str | None, type: str, payload: Json) -> ProcessEventInfo:
        """Append an event to the enclosing process, under a key that re-entry uses again."""
        self.life.check_open()

        async def append() -> ProcessEventInfo:
            key = keys.tool_process_event(self.place.call, self.count("process_event") - 1)
            self.life.began()
            try:
                return await events.emit_request(type, payload, replay_key=key)
            finally:
                self.life.ended()

        return await emitted(type, process, append)

    # --- names

    def count(self, what: str) -> int:
        """Count this visit of the entry, to number unnamed parts."""
        self.life.check_open()
        self._counted[what] += 1
        return self._counted[what]

    def names(self, kind: PartKind) -> set[str]:
        """Return the part names of a kind: those used in this entry and those in the log."""
        begins = self.place.part(kind, "")
        known = {id.removeprefix(begins) for id in self.controller.journal.ids() if id.startswith(begins)}
        return known | {name for used, name in self._used if used == kind}

    def reached(self, part: EffectId) -> bool:
        """Return True if this entry reached the part."""
        return part in self._reached

    def _reserve(self, kind: PartKind, name: str) -> None:
        self.life.check_open()
        if isinstance(name, str) and not name.strip():  # pyright: ignore[reportUnnecessaryIsInstance] - tools pass any type
            raise Error(
                Code.DURABLE_EFFECT_EMPTY_STEP_ID, f"a {kind} needs a name", hint='ctx.step("render", render, doc)'
            )
        check_id(name, what=f"the name of a {kind}")
        speaker().check_names(name)
        if (kind, name) in self._used:
            raise Error(
                Code.DURABLE_EFFECT_DUPLICATE_STEP_ID,
                f"the {kind} {name!r} was used before in this call",
                because="a name stands for one recorded outcome",
                hint=f'use a name per item, ctx.step(f"{name}:{{id}}", …), or use ctx.map({name!r}, fn, items, key=…)',
            )
        self._used.add((kind, name))

    def _described(self, kind: PartKind, name: str, command: Command, *key: str) -> Envelope:
        """Describe a part of the body as an effect. The replay key is kind and name, unless given."""
        id = self.place.part(kind, name)
        self._reached.add(id)
        replay_key = self.place.key(*key) if key else self.place.key(kind, name)
        return Envelope(
            invocation=Invocation.effect(self.place.effect_scope, id, command.kind, replay_key, self.place.cause),
            command=command,
        )

    # --- performing, or waiting

    def _begin(self, described: Envelope, policy: DispatchPolicy) -> Begun | Outcome:
        try:
            return self.controller.begin(described, policy)
        except Error as problem:
            self._break_on_mismatch(problem)
            raise

    async def _execute(
        self, described: Envelope, run: Callable[[], Awaitable[Outcome]], policy: DispatchPolicy
    ) -> Outcome:
        """Perform a part of the body, or replay it from the log."""
        if branches.beside_others():
            await self._while_held(described)
        self._check_wanted(described)
        self.life.began()
        try:
            if self.permit is not None and self._known(described) is None:
                await self.permit.have()
            return await self.controller.execute(described, Local(described.kind, lambda _: run()), policy)
        except Error as problem:
            self._break_on_mismatch(problem)
            raise
        finally:
            self.life.ended()

    def _break_on_mismatch(self, problem: Error) -> None:
        """Mark the body as broken after a replay mismatch, even if user code catches the error."""
        if problem.code is Code.REPLAY_MISMATCH:
            self.life.broken = problem

    async def _until(self, promise: EventKey | None, due_at: int | None) -> Resolution | None:
        self.life.rest()
        try:
            resolution = await self._waiter.until(promise, due_at)
        finally:
            self.life.rise()
        if self.permit is not None:
            self.life.began()  # a body queued for a permit counts as running, not as waiting
            try:
                await self.permit.have()
            finally:
                self.life.ended()
        return resolution

    async def _await(self, described: Envelope, promise: EventKey | None, within_ms: int | None) -> Outcome:
        due_at = None if within_ms is None else self._clock.wall_ms() + within_ms
        await self._while_held(described)
        self._check_wanted(described)
        begun = self._begin(described, DispatchPolicy(effect="pure", record_start=True, due_at=due_at))
        if not isinstance(begun, Begun):
            return begun
        try:
            resolution = await self._until(promise, begun.policy.due_at)
            branches.check_not_lost()
        except asyncio.CancelledError:
            self.life.was_cancelled()
            if promise is not None:
                self._waiter.let_go(promise)
            raise
        self.life.check_open()
        if resolution is None and promise is not None:
            others = self._also_awaited(described.id, promise)
            resolution = TimedOut() if others else await self._waiter.give_up(promise)
            self.life.check_open()
        outcome = SleepOutcome() if resolution is None else AwaitEventOutcome(resolution=resolution)
        if (known := self._known(described)) is not None:
            return known  # two branches of the body awaited the same event
        return self.controller.settle(begun, outcome).outcome

    def _also_awaited(self, id: str, promise: EventKey) -> bool:
        """Return True if another call of the turn awaits the same event, perhaps with a longer timeout."""
        return any(
            isinstance(other.command, AwaitEvent) and other.command.key == promise and other.id != id
            for other in self.controller.journal.unsettled()
        )

    async def _while_held(self, described: Envelope) -> None:
        await branches.while_held(lambda: self._known(described) is not None)

    def _check_wanted(self, described: Envelope) -> None:
        if self._known(described) is None:
            self.life.check_wanted()

    def _known(self, described: Envelope) -> Outcome | None:
        return self.controller.journal.outcome(EffectId(described.id))
