"""Bodies that wait: what a resumable tool may do through its context, and how each of it is recorded once.

A coroutine cannot be stored, so a body that waits long is unwound with `Parked` and later entered again from the top;
what it has finished is answered from the log. One rule follows: *code between steps may run again, and what is passed
to a recorded step must be equal every time*.

Laws: a finished step is never run again, whatever it ended with. Used names belong to one entry of the body, recorded
outcomes to the call. Once unwound, a body records nothing more.
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
from perdure.effects.controller import Begun, Care, JournaledController, Local, NotDispatched, asking_care
from perdure.effects.promises import TurnScope, check_key, signed_key, unsigned_key
from perdure.errors import Code, Error
from perdure.ids import EffectId, check_id
from perdure.services.secrets import Veil
from perdure.tools import branches, endings, steps
from perdure.tools.clients.process_events import ProcessEventInfo, ProcessEvents
from perdure.tools.errors import ToolError
from perdure.tools.given import checked_input
from perdure.tools.life import Life
from perdure.tools.places import Place
from perdure.tools.steps import STEP_CARE, StepEffect
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
    AwaitEventKey,
    Custom,
    ProcessSignal,
    ProcessTerminal,
    Resolution,
    TimedOut,
    TurnTerminal,
)
from perdure.vocab.refs import PartKind


class Waiter(Protocol):
    """Who can wait on behalf of a body, in memory first."""

    async def until(self, promise: AwaitEventKey | None, due_at: int | None) -> Resolution | None:
        """How the promise ended; None if it is time, and there is no answer.

        Raises:
            Parked: it takes too long to wait here.
        """
        ...

    async def give_up(self, promise: AwaitEventKey, silence: Json = None) -> Resolution:
        """Time is over for this promise: it ends with that, unless it was answered in the last moment."""
        ...

    def let_go(self, promise: AwaitEventKey) -> None:
        """Nobody takes what was given for this promise: somebody else may."""
        ...

    def changed(self) -> None:
        """The body began or finished something."""
        ...


class Permit(Protocol):
    """What a body needs while it does something."""

    async def have(self) -> None:
        """Have it, at once or when its turn comes."""
        ...


class Body:
    """One entry of a resumable tool's function."""

    def __init__(
        self,
        place: Place,
        controller: JournaledController,
        waiter: Waiter,
        clock: Clock,
        threads: ToolThreads,
        secret: bytes,
        veil: Veil | None = None,
    ) -> None:
        self.place = place
        self.controller = controller
        self.life = Life(place.called, waiter.changed)
        self.spawner: object | None = None
        self.permit: Permit | None = None
        self._waiter = waiter
        self._clock = clock
        self._threads = threads
        self._secret = secret
        self._veil = veil or Veil()
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
        """Run a step, or answer it from the log. `leave` uses up what allows it, in the append of its start."""
        if effect not in STEP_CARE:
            raise Error(Code.INVALID_ARGUMENT, f"effect={effect!r} of step {name!r} does not exist")
        outcome = await self._step(name, given, call, STEP_CARE[effect], in_loop=in_loop, leave=leave)
        return endings.step_value(name, into_durable_step(outcome))

    def inner(self, place: Place) -> Body:
        """A body that lives inside this one: it waits where this one waits, and what ends this one ends it."""
        body = Body(place, self.controller, self._waiter, self._clock, self._threads, self._secret, self._veil)
        body.life = Life(place.called, self._waiter.changed, self.life)
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
        """Run a body inside this one as a step of it: entered anew with every entry, until it has ended, with what is
        left of its time since it first began. How it ended is in the log."""
        now, begun = self._clock.wall_ms(), self.controller.journal.started(self.place.part("step", name))
        fresh = None if timeout_ms is None else now + timeout_ms
        deadline_at = begun.deadline_at if begun else fresh
        left_ms = None if deadline_at is None else deadline_at - now
        care = Care(effect="resumable", deadline_at=deadline_at)
        into_durable_step(await self._step(name, given, lambda: enter(left_ms), care, in_loop=True, leave=leave))

    def _step(
        self,
        name: str,
        given: Json,
        call: Callable[[], object],
        care: Care,
        *,
        in_loop: bool,
        leave: Callable[[], None] | None,
    ) -> Awaitable[Outcome]:
        """A step, to be awaited at once: its name is taken, and whatever allows it is used up."""
        self._reserve("step", name)
        command = DurableStep(step_id=name, input=self._veil.json(checked_input(name, given)))
        described = self._described("step", name, command, "durable-step", name)

        async def run() -> DurableStepOutcome:
            ended = await steps.run(
                call, in_loop=in_loop, life=self.life, ledger=self.controller.ledger, threads=self._threads
            )
            match ended:
                case Returned(value=value):
                    return endings.returned(name, value, self._veil)
                case Raised(error=error):
                    return endings.raised(name, error, self._veil, self.place)
                case NotStarted():
                    raise NotDispatched

        if leave is not None:
            leave()
            care = msgspec.structs.replace(care, leave=True)
        return self._execute(described, run, care)

    def now(self) -> Json:
        """The time as text."""
        return datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC).isoformat()

    def value(self, kind: str, make: Callable[[], Json], name: str | None) -> Json:
        """Something that differs each time it is asked for, the first answer of which is kept."""
        if name is None:
            name = f"{kind}:{self.count(kind)}"
        else:
            name = f"{kind}:{name}"
            self._reserve("value", name)
        begun = self._begin(self._described("value", name, DurableStep(step_id=name)), Care(effect="pure"))
        if not isinstance(begun, Begun):
            return into_durable_step(begun).value
        made = make()
        self.controller.settle(begun, DurableStepOutcome(value=made))
        return made

    def recorded(self, kind: PartKind, name: str) -> Json:
        """What was recorded under this name; None if nothing was."""
        outcome = self.outcome_of(kind, name)
        return None if outcome is None else into_durable_step(outcome).value

    def record(self, kind: PartKind, name: str, value: Json) -> None:
        """Keep a value under a name, if none is kept."""
        self._reserve(kind, name)
        begun = self._begin(self._described(kind, name, DurableStep(step_id=name)), Care(effect="pure"))
        if isinstance(begun, Begun):
            self.controller.settle(begun, DurableStepOutcome(value=value))

    # --- parts that somebody else performs

    def open_part(self, kind: PartKind, name: str, command: Command, care: Care) -> Begun | Outcome:
        """Begin a part that its caller performs and closes; or its outcome, if it has one."""
        self._reserve(kind, name)
        described = self._described(kind, name, command)
        self._check_wanted(described)
        return self._begin(described, care)

    def close_part(self, begun: Begun, outcome: Outcome) -> None:
        """Record what became of it."""
        self.life.check_open()
        self.controller.settle(begun, outcome)

    def outcome_of(self, kind: PartKind, name: str) -> Outcome | None:
        """What was recorded of a part, on this entry or an earlier one."""
        return self.controller.journal.outcome(self.place.part(kind, name))

    async def answer_to(self, promise: AwaitEventKey, due_at: int | None, silence: Json = None) -> Resolution:
        """How a promise that a part waits for ended; by time, if it must, and then with what silence means."""
        resolution = await self._until(promise, due_at)
        self.life.check_open()
        return resolution or await self._waiter.give_up(promise, silence)

    # --- waits

    async def sleep(self, name: str, length_ms: int) -> None:
        """Wait until the moment that was fixed when this sleep first began."""
        self._reserve("sleep", name)
        described = self._described("sleep", name, Sleep(duration_ms=length_ms))
        into_sleep(await self._await(described, None, length_ms))

    def event_key(self, name: str) -> AwaitEventKey:
        """The key of an event of this turn: the same for the same name."""
        self.life.check_open()
        if isinstance(name, str) and not name.strip():  # pyright: ignore[reportUnnecessaryIsInstance] - whatever is given
            raise Error(Code.DURABLE_EFFECT_EMPTY_EVENT_KEY, "an event needs a name", hint='ctx.event("reviewed")')
        check_id(name, what="the name of an event")
        return signed_key(self._secret, self.place.scope_id, Custom(key=name))

    async def event(self, key: AwaitEventKey, timeout_ms: int | None) -> Json:
        """The value of an event, or what it ended with instead."""
        self.life.check_open()
        check_key(self._secret, key)
        ours = key.scope == self.place.scope_id
        name = key.wait.key if ours and isinstance(key.wait, Custom) else key.key_id
        wait = unsigned_key(key.scope, key.wait)
        described = self._described("event", name, AwaitEvent(key=wait), "await-event", key.key_id)
        return endings.event_value(name, await self._resolution(described, wait, timeout_ms))

    async def signal(self, process: str, name: str, timeout_ms: int | None) -> Json:
        """The next signal of a name that this process has not taken yet."""
        ordinal = self.count(f"signal:{name}")
        wait = unsigned_key(self.place.scope_id, ProcessSignal(process_id=process, name=name, ordinal=ordinal))
        key = (f"signal.{name}", "await", str(ordinal))
        described = self._described("signal", f"{name}:{ordinal}", AwaitEvent(key=wait), *key)
        return endings.signal_value(name, await self._resolution(described, wait, timeout_ms))

    async def ended(self, scope_id: str, process: str, timeout_ms: int | None) -> Resolution:
        """How another process ended, or that it did not in time."""
        wait = unsigned_key(scope_id, ProcessTerminal(process_id=process))
        nth = self.count(f"wait:{process}")  # one that ran out of time says nothing about the next
        name = process if nth == 1 else f"{process}#{nth}"
        described = self._described("wait", name, AwaitEvent(key=wait), "process", "await", name)
        return await self._resolution(described, wait, timeout_ms)

    async def end_of_turn(self, name: str, turn: TurnScope, timeout_ms: int | None) -> Resolution:
        """How a turn of another session ended."""
        self._reserve("answer", name)
        wait = unsigned_key(turn.id, TurnTerminal(turn_id=turn.turn))
        return await self._resolution(self._described("answer", name, AwaitEvent(key=wait)), wait, timeout_ms)

    async def _resolution(self, described: Envelope, wait: AwaitEventKey, timeout_ms: int | None) -> Resolution:
        return into_await_event(await self._await(described, wait, timeout_ms))

    # --- models, other agents, processes

    async def direct(
        self,
        name: str,
        request: LlmRequestSpec,
        asks: DirectUsage,
        ask: Callable[[EffectId], Awaitable[DirectOutcome]],
    ) -> DirectOutcome:
        """Ask a model outside the conversation, or answer from the log. What was lost is asked again, as the next
        attempt; what a provider still works on is waited for, as the same."""
        self._reserve("direct", name)
        command = Direct(request=request, usage_source=asks.source)
        key, care = ("direct", asks.source, "request", name), asking_care(asks)
        described = self._described("direct", name, command, *key)
        for attempt in itertools.count(2):
            known, id = self._known(described), EffectId(described.id)
            outcome = into_direct(await self._execute(described, partial(ask, id), care))
            if known is None or not outcome.lost:
                return outcome
            described = self._described("again", f"{attempt}.{name}", command, *key, str(attempt))
        raise AssertionError("unreachable")

    def nth(self, agent: str) -> str:
        """A name for the next thing that is asked of an agent, if it has no other."""
        return f"{agent}:{self.count(f'agent:{agent}')}"

    def veiled(self, text: str) -> str:
        """A text without the secrets of the session."""
        return self._veil.text(text)

    async def start(self, name: str, given: object, start: Callable[[], Awaitable[None]]) -> None:
        """Start something that lives elsewhere, under a name that makes two starts one; or know that it was started.

        A `ToolError` of whoever starts it is its outcome, on every entry.
        """
        await self.told("ask", name, given, start, Care(effect="pure", record_start=True))

    async def told(
        self, kind: PartKind, name: str, given: object, tell: Callable[[], Awaitable[Json]], care: Care | None = None
    ) -> Json:
        """Tell somebody elsewhere something that is one thing however often it is told; or know what was said to that.

        A `ToolError` is its outcome, on every entry. Any other error is not: then it is told again.
        """
        self._reserve(kind, name)
        command = DurableStep(step_id=name, input=checked_input(name, msgspec.to_builtins(given)))

        async def run() -> DurableStepOutcome:
            try:
                return DurableStepOutcome(value=await tell())
            except ToolError as refusal:
                return endings.raised(name, refusal, self._veil, self.place)

        outcome = await self._execute(self._described(kind, name, command), run, care or Care(effect="idempotent"))
        return endings.step_value(name, into_durable_step(outcome))

    async def command(
        self,
        kind: PartKind,
        name: str,
        command: ProcessCommand,
        perform: Callable[[], Awaitable[ProcessOutcome]],
        *,
        again: int = 1,
    ) -> ProcessOutcome:
        """Do something with the process table, or answer it from the log; on every entry it must be the same thing.
        `again` tells apart what a body does more than once."""
        self._reserve(kind, name)
        key = (command.effect_id,) if again == 1 else (command.effect_id, str(again))

        async def run() -> ProcessEffectOutcome:
            return ProcessEffectOutcome(result=await perform())

        described = self._described(kind, name, Process(command=command), *key)
        return into_process(await self._execute(described, run, Care(effect="idempotent")))

    async def emit(
        self, events: ProcessEvents | None, process: str | None, type: str, payload: Json
    ) -> ProcessEventInfo:
        """Append an event to the process this runs in, under a key that a re-entry uses again."""
        self.life.check_open()
        if events is None:
            raise Error(
                Code.DURABLE_EFFECT_PROCESS_EVENT_UNAVAILABLE,
                f"{self.place.called} does not run in a process, so nobody would see its process events",
            )
        if not type.strip():
            raise Error(Code.DURABLE_EFFECT_EMPTY_PROCESS_EVENT_TYPE, "a process event needs a type")
        key = keys.tool_process_event(self.place.call, self.count("process_event") - 1)
        self.life.began()
        try:
            event = await events.emit_request(type, payload, replay_key=key)
        except Error as problem:
            raise Error(
                Code.DURABLE_EFFECT_PROCESS_EVENT_APPEND_FAILED,
                f"the process event {type} was not appended",
                because=problem.message,
            ) from problem
        finally:
            self.life.ended()
        if event.process_id != process:
            raise Error(
                Code.DURABLE_EFFECT_PROCESS_EVENT_PROCESS_MISMATCH,
                f"the process event {type} went to process {event.process_id}, not to {process}",
            )
        return event

    # --- names

    def count(self, what: str) -> int:
        """How often this entry has come here, this time included: unnamed things are told apart by it."""
        self.life.check_open()
        self._counted[what] += 1
        return self._counted[what]

    def names(self, kind: PartKind) -> set[str]:
        """What was done under this kind: what this entry has come to, and what is recorded of earlier ones."""
        begins = self.place.part(kind, "")
        known = {id.removeprefix(begins) for id in self.controller.journal.ids() if id.startswith(begins)}
        return known | {name for used, name in self._used if used == kind}

    def reached(self, part: EffectId) -> bool:
        """Whether this entry came to that part."""
        return part in self._reached

    def _reserve(self, kind: PartKind, name: str) -> None:
        self.life.check_open()
        if isinstance(name, str) and not name.strip():  # pyright: ignore[reportUnnecessaryIsInstance] - whatever is given
            raise Error(
                Code.DURABLE_EFFECT_EMPTY_STEP_ID, f"a {kind} needs a name", hint='ctx.step("render", render, doc)'
            )
        check_id(name, what=f"the name of a {kind}")
        if (kind, name) in self._used:
            raise Error(
                Code.DURABLE_EFFECT_DUPLICATE_STEP_ID,
                f"the {kind} {name!r} was used before in this call",
                because="a name stands for one recorded outcome",
                hint=f'name it by what it is about, ctx.step(f"{name}:{{id}}", …), '
                f"or use ctx.map({name!r}, fn, items, key=…)",
            )
        self._used.add((kind, name))

    def _described(self, kind: PartKind, name: str, command: Command, *key: str) -> Envelope:
        """A part of the body as an effect; its replay key is made of kind and name, unless it is said."""
        id = self.place.part(kind, name)
        self._reached.add(id)
        replay_key = self.place.key(*key) if key else self.place.key(kind, name)
        return Envelope(
            invocation=Invocation.effect(self.place.effect_scope, id, command.kind, replay_key, self.place.cause),
            command=command,
        )

    # --- performing, or waiting

    def _begin(self, described: Envelope, care: Care) -> Begun | Outcome:
        try:
            return self.controller.begin(described, care)
        except Error as problem:
            self._break_on_mismatch(problem)
            raise

    async def _execute(self, described: Envelope, run: Callable[[], Awaitable[Outcome]], care: Care) -> Outcome:
        """Perform a part of the body, or answer it from the log."""
        if branches.beside_others():
            await self._while_held(described)
        self._check_wanted(described)
        self.life.began()
        try:
            if self.permit is not None and self._known(described) is None:
                await self.permit.have()
            return await self.controller.execute(described, Local(described.kind, lambda _: run()), care)
        except Error as problem:
            self._break_on_mismatch(problem)
            raise
        finally:
            self.life.ended()

    def _break_on_mismatch(self, problem: Error) -> None:
        """Whoever passed something else than last time must not go on, even if it catches the error."""
        if problem.code is Code.REPLAY_MISMATCH:
            self.life.broken = problem

    async def _until(self, promise: AwaitEventKey | None, due_at: int | None) -> Resolution | None:
        self.life.rest()
        try:
            resolution = await self._waiter.until(promise, due_at)
        finally:
            self.life.rise()
        if self.permit is not None:
            self.life.began()  # whoever stands in line does not wait for news
            try:
                await self.permit.have()
            finally:
                self.life.ended()
        return resolution

    async def _await(self, described: Envelope, promise: AwaitEventKey | None, within_ms: int | None) -> Outcome:
        due_at = None if within_ms is None else self._clock.wall_ms() + within_ms
        await self._while_held(described)
        self._check_wanted(described)
        begun = self._begin(described, Care(effect="pure", record_start=True, due_at=due_at))
        if not isinstance(begun, Begun):
            return begun
        try:
            resolution = await self._until(promise, begun.care.due_at)
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
        self.controller.settle(begun, outcome)
        return outcome

    def _also_awaited(self, id: str, promise: AwaitEventKey) -> bool:
        """Whether another call of the turn waits for the same event, perhaps with more time."""
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
