"""Bodies that wait: what a resumable tool may do through its context, and how each of it is recorded once.

A coroutine cannot be stored, so a body that waits long is unwound with `Parked` and later entered again from the top;
what it has finished is answered from the log. One rule follows: *code between steps may run again, and what is passed
to a recorded step must be equal every time*.

Laws: a finished step is never run again, whatever it ended with. Used names belong to one entry of the body, recorded
outcomes to the call. Once unwound, a body records nothing more.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, Protocol, cast

import msgspec

from perdure.clock import Clock
from perdure.codec import Json, as_stored
from perdure.effects import keys
from perdure.effects.controller import Begun, Care, JournaledController, Local, NotDispatched
from perdure.effects.promises import TurnScope, check_key, signed_key, unsigned_key
from perdure.errors import Code, Error
from perdure.ids import EffectId, check_id
from perdure.services.secrets import Veil
from perdure.tools.clients.process_events import ProcessEventInfo, ProcessEvents
from perdure.tools.errors import OutcomeUnknown, ToolError, foremost, message_of, text_of, whole_ms
from perdure.tools.places import Place
from perdure.tools.results import Unstorable, keep
from perdure.tools.threads import Ended, NotStarted, Raised, Returned, ToolThreads
from perdure.vocab.effects import (
    AwaitEvent,
    Command,
    Direct,
    DurableStep,
    EffectKind,
    Envelope,
    Invocation,
    LlmRequestSpec,
    Process,
    Sleep,
)
from perdure.vocab.outcomes import (
    AwaitEventOutcome,
    DirectOutcome,
    DurableStepOutcome,
    InDoubt,
    Outcome,
    ProcessEffectOutcome,
    SleepOutcome,
    StepFailure,
    into_await_event,
    into_direct,
    into_durable_step,
    into_process,
    into_sleep,
)
from perdure.vocab.processes import ProcessCommand, ProcessOutcome
from perdure.vocab.promises import (
    AwaitEventKey,
    Cancelled,
    Custom,
    Err,
    Ok,
    ProcessSignal,
    ProcessTerminal,
    Resolution,
    TimedOut,
    TurnTerminal,
)
from perdure.vocab.refs import PartKind

logger = logging.getLogger("perdure.tools")

StepEffect = Literal["once", "idempotent", "pure"]

_STEP_CARE: dict[StepEffect, Care] = {
    "once": Care(effect="once"),
    "idempotent": Care(effect="idempotent"),
    "pure": Care(effect="pure"),
}

MAX_STEP_BYTES = 524_288
"""A step's input and its result are kept in the log, each up to this size."""

THREAD_PAUSE_S = 0.05
"""Between two tries of a step for which there was no thread, or no lease."""

INTERNAL = "An internal error occurred in the step"


class Parked(BaseException):
    """The body is put aside until what it waits for has happened; `finally` runs, and nothing else should."""


class StepFailed(ToolError):
    """A step failed: now, or when it was run; a replay raises the same. `step` names it."""

    step: str = ""
    error_type: str = ""


class EventFailed(ToolError):
    """An awaited event ended without a value."""


class EventTimedOut(EventFailed):
    """Nobody answered in time."""


class Waiter(Protocol):
    """Who can wait on behalf of a body, in memory first."""

    async def until(self, promise: AwaitEventKey | None, due_at: int | None) -> Resolution | None:
        """How the promise ended; None if it is time, and there is no answer.

        Raises:
            Parked: it takes too long to wait here.
        """
        ...

    async def give_up(self, promise: AwaitEventKey) -> Resolution:
        """Time is over for this promise: it ends with that, unless it was answered in the last moment."""
        ...

    def changed(self) -> None:
        """The body began or finished something."""
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
        self.broken: Error | None = None
        self.running = 0
        self.main: asyncio.Task[object] | None = None
        self.spawner: object | None = None
        self._waiter = waiter
        self._clock = clock
        self._threads = threads
        self._secret = secret
        self._veil = veil or Veil()
        self._used: set[tuple[PartKind, str]] = set()
        self._counted: Counter[str] = Counter()
        self._state: Literal["open", "ended", "parked"] = "open"
        self._stopping = False
        self._stopped = False
        self._reached: set[EffectId] = set()
        self._quiet = asyncio.Event()
        self._quiet.set()

    # --- the body's life

    @property
    def parked(self) -> bool:
        """Whether it was unwound: however it ends, that is not its call's outcome."""
        return self._state == "parked"

    def enter(self) -> None:
        """The function is about to be called, by this task."""
        self.main = asyncio.current_task()

    def unwind(self) -> None:
        """Nothing that this entry does counts any more."""
        self._state = "parked"

    def stop(self) -> None:
        """Somebody asked for its end: what it waits for now, or does next that is not recorded, raises
        `CancelledError`. Once: cleaning up is its own business. What runs is not interrupted."""
        self._stopping = True

    def _check_wanted(self, described: Envelope) -> None:
        if self._stopping and not self._stopped and self.controller.journal.outcome(EffectId(described.id)) is None:
            self._stopped = True
            raise asyncio.CancelledError("its end was asked for")

    def used(self, part: EffectId) -> bool:
        """Whether this entry came to that part."""
        return part in self._reached

    async def end(self) -> None:
        """The function came back: wait for steps that it left running, and refuse new ones."""
        if self._state == "open":
            self._state = "ended"
        await self._quiet.wait()

    def _check_open(self) -> None:
        if self._state == "parked":
            raise Parked
        if self.broken is not None:
            raise self.broken
        if self._state == "ended":
            raise Error(
                Code.DURABLE_EFFECT_STATE_POISONED,
                f"{self.place.called} is over; its context cannot be used any more",
                hint="await everything that uses ctx before the function returns",
            )

    def _began(self) -> None:
        self.running += 1
        self._quiet.clear()

    def _ended(self) -> None:
        self.running -= 1
        if not self.running:
            self._quiet.set()
        self._waiter.changed()

    async def _execute(self, described: Envelope, local: Local, care: Care) -> Outcome:
        """Perform a part of the body, or answer it from the log."""
        self._check_wanted(described)
        self._began()
        try:
            return await self.controller.execute(described, local, care)
        except Error as problem:
            self._break_on_mismatch(problem)
            raise
        finally:
            self._ended()

    def _begin(self, described: Envelope, care: Care) -> Begun | Outcome:
        try:
            return self.controller.begin(described, care)
        except Error as problem:
            self._break_on_mismatch(problem)
            raise

    def _break_on_mismatch(self, problem: Error) -> None:
        """Whoever passed something else than last time must not go on, even if it catches the error."""
        if problem.code is Code.REPLAY_MISMATCH:
            self.broken = problem

    # --- steps

    async def step(
        self, name: str, given: Json, call: Callable[[], object], effect: StepEffect, *, in_loop: bool
    ) -> Json:
        """Run a step, or answer it from the log."""
        if effect not in _STEP_CARE:
            raise Error(Code.INVALID_ARGUMENT, f"effect={effect!r} of step {name!r} does not exist")
        self._reserve("step", name)
        command = DurableStep(step_id=name, input=self._veil.json(_checked_input(name, given)))
        key = self.place.key("durable-step", name)
        described = self._envelope(self.place.part("step", name), command, key)

        async def run(_: Envelope) -> Outcome:
            return self._outcome(name, await self._call(call, in_loop))

        outcome = await self._execute(described, Local(EffectKind.DURABLE_STEP, run), _STEP_CARE[effect])
        return _step_value(name, into_durable_step(outcome))

    async def _call(self, call: Callable[[], object], in_loop: bool) -> Ended:
        self._check_open()
        ended = await _drive(call) if in_loop else await self._in_thread(call)
        if isinstance(ended, Returned) and inspect.isawaitable(ended.value):
            value: Awaitable[object] = ended.value
            return await _drive(lambda: value)
        return ended

    async def _in_thread(self, call: Callable[[], object]) -> Ended:
        def begin() -> object:
            if self._state != "open" or not self.controller.ledger.lease_live():
                raise NotDispatched
            return call()

        job = self._threads.submit(begin)
        try:
            ended = await asyncio.shield(job.future)
        except asyncio.CancelledError:
            self._threads.withdraw(job, "the call was stopped")
            if not job.future.done():
                self._threads.abandon(job)
            raise
        if isinstance(ended, NotStarted) or (isinstance(ended, Raised) and isinstance(ended.error, NotDispatched)):
            await asyncio.sleep(THREAD_PAUSE_S)
            self._check_open()
            raise NotDispatched
        return ended

    def _outcome(self, name: str, ended: Ended) -> DurableStepOutcome:
        match ended:
            case Returned(value=value):
                return self._kept(name, value)
            case Raised(error=error):
                return self._failed(name, foremost(error))
            case NotStarted():
                raise NotDispatched

    def _failed(self, name: str, error: BaseException) -> DurableStepOutcome:
        if isinstance(error, OutcomeUnknown):
            return DurableStepOutcome(in_doubt=InDoubt(reason="declared", message=self._veil.text(message_of(error))))
        kind = type(error).__name__
        if isinstance(error, ToolError):
            failure = StepFailure(
                code=text_of(error.code).strip() or "tool_error",
                message=self._veil.text(message_of(error)),
                retry_safe=bool(error.retry_safe),
                retry_after_ms=whole_ms(error.retry_after_ms),
                error_type=kind,
            )
        else:
            where = {"call": self.place.call, "step": name}
            logger.error("step %s of %s failed", name, self.place.called, exc_info=error, extra=where)
            failure = StepFailure(code="internal_error", message=INTERNAL, error_type=kind)
        return DurableStepOutcome(error=failure)

    def _kept(self, name: str, value: object) -> DurableStepOutcome:
        kept = keep(value)
        if isinstance(kept, Unstorable):
            message = f"the step {name} did run, but its result cannot be stored, at {kept.path}: {kept.reason}"
            return DurableStepOutcome(error=StepFailure(code="step_result_invalid", message=message))
        if kept.size > MAX_STEP_BYTES:
            message = f"the step {name} did run, but its result is {kept.size} bytes; at most {MAX_STEP_BYTES} are kept"
            return DurableStepOutcome(error=StepFailure(code="step_result_too_large", message=message))
        return DurableStepOutcome(value=self._veil.json(kept.value))

    def now(self) -> Json:
        """The time as text."""
        return datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC).isoformat()

    def value(self, kind: str, make: Callable[[], Json], name: str | None) -> Json:
        """Something that differs each time it is asked for, the first answer of which is kept."""
        if name is not None:
            self._reserve("value", f"{kind}:{name}")
        self._check_open()
        self._counted[kind] += name is None
        name = f"{kind}:{self._counted[kind]}" if name is None else f"{kind}:{name}"
        described = self._envelope(
            self.place.part("value", name),
            DurableStep(step_id=name),
            self.place.key("value", name),
        )
        begun = self._begin(described, Care(effect="pure"))
        if not isinstance(begun, Begun):
            return into_durable_step(begun).value
        made = make()
        self.controller.settle(begun, DurableStepOutcome(value=made))
        return made

    def count(self, what: str) -> int:
        """How often this entry has come here, this time included: unnamed things are told apart by it."""
        self._check_open()
        self._counted[what] += 1
        return self._counted[what]

    def recorded(self, kind: PartKind, name: str) -> Json:
        """What was recorded under this name; None if nothing was."""
        outcome = self.controller.journal.outcome(self.place.part(kind, name))
        return None if outcome is None else into_durable_step(outcome).value

    def record(self, kind: PartKind, name: str, value: Json) -> None:
        """Keep a value under a name, if none is kept."""
        self._reserve(kind, name)
        described = self._envelope(self.place.part(kind, name), DurableStep(step_id=name), self.place.key(kind, name))
        begun = self._begin(described, Care(effect="pure"))
        if isinstance(begun, Begun):
            self.controller.settle(begun, DurableStepOutcome(value=value))

    # --- asking a model

    async def direct(
        self, name: str, request: LlmRequestSpec, source: str, ask: Callable[[], Awaitable[DirectOutcome]]
    ) -> DirectOutcome:
        """Ask a model outside the conversation, or answer from the log. A crash before the answer asks again."""
        self._reserve("direct", name)
        place = self.place
        key = place.key("direct", source, "request", name)

        async def run(_: Envelope) -> Outcome:
            return await ask()

        described = self._envelope(place.part("direct", name), Direct(request=request, usage_source=source), key)
        return into_direct(await self._execute(described, Local(EffectKind.DIRECT, run), Care(effect="pure")))

    # --- waits

    async def sleep(self, name: str, length_ms: int) -> None:
        """Wait until the moment that was fixed when this sleep first began."""
        self._reserve("sleep", name)
        key = self.place.key("sleep", name)
        described = self._envelope(self.place.part("sleep", name), Sleep(duration_ms=length_ms), key)
        into_sleep(await self._await(described, None, self._clock.wall_ms() + length_ms))

    def event_key(self, name: str) -> AwaitEventKey:
        """The key of an event of this turn: the same for the same name."""
        self._check_open()
        if isinstance(name, str) and not name.strip():  # pyright: ignore[reportUnnecessaryIsInstance] - whatever is given
            raise Error(Code.DURABLE_EFFECT_EMPTY_EVENT_KEY, "an event needs a name", hint='ctx.event("reviewed")')
        check_id(name, what="the name of an event")
        return signed_key(self._secret, self.place.scope_id, Custom(key=name))

    async def event(self, key: AwaitEventKey, timeout_ms: int | None) -> Json:
        """The value of an event, or what it ended with instead."""
        self._check_open()
        check_key(self._secret, key)
        ours = key.scope == self.place.scope_id
        name = key.wait.key if ours and isinstance(key.wait, Custom) else key.key_id
        wait = unsigned_key(key.scope, key.wait)
        replay = self.place.key("await-event", key.key_id)
        described = self._envelope(self.place.part("event", name), AwaitEvent(key=wait), replay)
        due_at = None if timeout_ms is None else self._clock.wall_ms() + timeout_ms
        return _event_value(name, into_await_event(await self._await(described, wait, due_at)))

    async def signal(self, process: str, name: str, timeout_ms: int | None) -> Json:
        """The next signal of a name that this process has not taken yet."""
        self._check_open()
        self._counted[f"signal:{name}"] += 1
        ordinal = self._counted[f"signal:{name}"]
        wait = unsigned_key(self.place.scope_id, ProcessSignal(process_id=process, name=name, ordinal=ordinal))
        replay = self.place.key(f"signal.{name}", "await", str(ordinal))
        described = self._envelope(self.place.part("signal", f"{name}:{ordinal}"), AwaitEvent(key=wait), replay)
        due_at = None if timeout_ms is None else self._clock.wall_ms() + timeout_ms
        match into_await_event(await self._await(described, wait, due_at)):
            case Ok(value=value):
                return value
            case TimedOut():
                code = Code.PROCESS_SIGNAL_WAIT_TIMEOUT.value
                raise EventTimedOut(f"no signal {name} came in time", code=code)
            case Cancelled() | Err():
                code = Code.PROCESS_SIGNAL_WAIT_CANCELLED.value
                raise EventFailed(f"the wait for the signal {name} was cancelled", code=code)

    async def ended(self, scope_id: str, process: str, timeout_ms: int | None) -> Resolution:
        """How another process ended, or that it did not in time."""
        self._check_open()
        wait = unsigned_key(scope_id, ProcessTerminal(process_id=process))
        replay = self.place.key("process", "await", process)
        described = self._envelope(self.place.part("wait", process), AwaitEvent(key=wait), replay)
        due_at = None if timeout_ms is None else self._clock.wall_ms() + timeout_ms
        return into_await_event(await self._await(described, wait, due_at))

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
        key = self.place.key(command.effect_id) if again == 1 else self.place.key(command.effect_id, str(again))

        async def run(_: Envelope) -> Outcome:
            return ProcessEffectOutcome(result=await perform())

        described = self._envelope(self.place.part(kind, name), Process(command=command), key)
        outcome = await self._execute(described, Local(EffectKind.PROCESS, run), Care(effect="idempotent"))
        return into_process(outcome)

    async def _await(self, described: Envelope, promise: AwaitEventKey | None, due_at: int | None) -> Outcome:
        self._check_wanted(described)
        care = Care(effect="pure", record_start=True, due_at=due_at)
        begun = self._begin(described, care)
        if not isinstance(begun, Begun):
            return begun
        try:
            resolution = await self._waiter.until(promise, begun.care.due_at)
        except asyncio.CancelledError:
            self._stopped = self._stopping
            raise
        self._check_open()
        if resolution is None and promise is not None:
            others = self._also_awaited(described.id, promise)
            resolution = TimedOut() if others else await self._waiter.give_up(promise)
            self._check_open()
        outcome = SleepOutcome() if resolution is None else AwaitEventOutcome(resolution=resolution)
        if (known := self.controller.journal.outcome(EffectId(described.id))) is not None:
            return known  # two branches of the body awaited the same event
        self.controller.settle(begun, outcome)
        return outcome

    def _also_awaited(self, id: str, promise: AwaitEventKey) -> bool:
        """Whether another call of the turn waits for the same event, perhaps with more time."""
        return any(
            isinstance(other.command, AwaitEvent) and other.command.key == promise and other.id != id
            for other in self.controller.journal.unsettled()
        )

    # --- other agents

    def nth(self, agent: str) -> str:
        """A name for the next thing that is asked of an agent, if it has no other."""
        self._counted[f"agent:{agent}"] += 1
        return f"{agent}:{self._counted[f'agent:{agent}']}"

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
        command = DurableStep(step_id=name, input=_checked_input(name, msgspec.to_builtins(given)))
        described = self._envelope(self.place.part(kind, name), command, self.place.key(kind, name))

        async def run(_: Envelope) -> Outcome:
            try:
                return DurableStepOutcome(value=await tell())
            except ToolError as refusal:
                return self._failed(name, refusal)

        local = Local(EffectKind.DURABLE_STEP, run)
        care = care or Care(effect="idempotent")
        return _step_value(name, into_durable_step(await self._execute(described, local, care)))

    async def end_of_turn(self, name: str, turn: TurnScope, timeout_ms: int | None) -> Resolution:
        """How a turn of another session ended."""
        self._reserve("answer", name)
        wait = unsigned_key(turn.id, TurnTerminal(turn_id=turn.turn))
        key = self.place.key("answer", name)
        described = self._envelope(self.place.part("answer", name), AwaitEvent(key=wait), key)
        due_at = None if timeout_ms is None else self._clock.wall_ms() + timeout_ms
        return into_await_event(await self._await(described, wait, due_at))

    # --- process events

    async def emit(
        self, events: ProcessEvents | None, process: str | None, type: str, payload: Json
    ) -> ProcessEventInfo:
        """Append an event to the process this runs in, under a key that a re-entry uses again."""
        self._check_open()
        if events is None:
            raise Error(
                Code.DURABLE_EFFECT_PROCESS_EVENT_UNAVAILABLE,
                f"{self.place.called} does not run in a process, so nobody would see its process events",
            )
        if not type.strip():
            raise Error(Code.DURABLE_EFFECT_EMPTY_PROCESS_EVENT_TYPE, "a process event needs a type")
        key = keys.tool_process_event(self.place.call, self._counted["process_event"])
        self._counted["process_event"] += 1
        self._began()
        try:
            event = await events.emit_request(type, payload, replay_key=key)
        except Error as problem:
            raise Error(
                Code.DURABLE_EFFECT_PROCESS_EVENT_APPEND_FAILED,
                f"the process event {type} was not appended",
                because=problem.message,
            ) from problem
        finally:
            self._ended()
        if event.process_id != process:
            raise Error(
                Code.DURABLE_EFFECT_PROCESS_EVENT_PROCESS_MISMATCH,
                f"the process event {type} went to process {event.process_id}, not to {process}",
            )
        return event

    # --- names

    def _reserve(self, kind: PartKind, name: str) -> None:
        self._check_open()
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

    def _envelope(self, id: EffectId, command: Command, key: str) -> Envelope:
        self._reached.add(id)
        return Envelope(
            invocation=Invocation.effect(self.place.effect_scope, id, command.kind, key, self.place.cause),
            command=command,
        )


async def _drive(call: Callable[[], object]) -> Ended:
    try:
        value = call()
        return Returned(await value if inspect.isawaitable(value) else value)
    except (asyncio.CancelledError, Parked):
        raise
    except BaseException as error:  # noqa: BLE001 - how a step ended is judged by the caller
        return Raised(error)


def _step_value(name: str, outcome: DurableStepOutcome) -> Json:
    if outcome.in_doubt is not None:
        said = f": {outcome.in_doubt.message}" if outcome.in_doubt.message else ""
        raise OutcomeUnknown(f"the step {name} may or may not have taken effect, and was not run again{said}")
    if outcome.error is not None:
        failure = outcome.error
        failed = StepFailed(
            failure.message,
            code=failure.code,
            retry_safe=failure.retry_safe,
            retry_after_ms=failure.retry_after_ms,
        )
        failed.step, failed.error_type = name, failure.error_type
        raise failed
    return outcome.value


def _event_value(name: str, resolution: Resolution) -> Json:
    match resolution:
        case Ok(value=value):
            return value
        case Err(code=code, message=message):
            raise EventFailed(message, code=code)
        case TimedOut():
            message = f"nobody answered the event {name} in time"
            raise EventTimedOut(message, code=Code.DURABLE_EFFECT_EVENT_TIMEOUT.value)
        case Cancelled():
            message = f"the wait for the event {name} was cancelled"
            raise EventFailed(message, code=Code.DURABLE_EFFECT_EVENT_CANCELLED.value)


# --- what may be passed to a step -------------------------------------------------------------------------------


def _checked_input(name: str, given: Json) -> Json:
    """A step's input as JSON that is equal whenever the values are.

    Raises:
        Error: `invalid_json` for what has no such form, `input_too_large`.
    """
    if given == [] and type(given) is list:
        return []  # a step without arguments
    where = f"the input of step {name!r}"
    refuse_unordered(given, where)
    plain, data = as_stored(_unsigned(given), where=where)
    if len(data) > MAX_STEP_BYTES:
        raise Error(
            Code.INPUT_TOO_LARGE,
            f"{where} is {len(data)} bytes",
            because=f"it is recorded, and the limit is {MAX_STEP_BYTES}",
            hint="pass a reference, and load the content inside the step",
        )
    return plain


def _unsigned(value: Json, depth: int = 0) -> Json:
    """Keys are recorded without what makes them worth something."""
    if depth > 200:
        return value  # to_json says what is wrong with it
    if isinstance(value, AwaitEventKey):
        return unsigned_key(value.scope, value.wait)
    if isinstance(value, list | tuple):
        return [_unsigned(item, depth + 1) for item in cast("Sequence[Json]", value)]
    if isinstance(value, dict):
        return {key: _unsigned(item, depth + 1) for key, item in cast("dict[str, Json]", value).items()}
    return value


def refuse_unordered(value: object, where: str, depth: int = 0) -> None:
    """Refuse what has no one form in JSON: sets, and keys that are not text."""
    if depth > 200:
        return  # to_json says what is wrong with it
    if isinstance(value, set | frozenset):
        raise Error(
            Code.INVALID_JSON,
            f"{where} is a set",
            because="its order differs from run to run",
            hint="pass a sorted list",
        )
    if isinstance(value, Mapping):
        for key, item in cast("Mapping[object, object]", value).items():
            if not isinstance(key, str):
                raise Error(Code.INVALID_JSON, f"{where} has the key {key!r}", because="JSON keys are text")
            refuse_unordered(item, f"{where}.{key}", depth + 1)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(cast("Sequence[object]", value)):
            refuse_unordered(item, f"{where}[{index}]", depth + 1)
