"""`@process`: an async function that outlives whoever started it, and the worker that runs it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast, overload, runtime_checkable

from perdure.codec import Json, as_stored
from perdure.errors import Code, Error
from perdure.processes.events import SIGNAL, check_event_types
from perdure.runtime.work import check_place
from perdure.store.shapes import Place
from perdure.tools.given import MAX_STEP_BYTES, refuse_unordered
from perdure.vocab.registrations import EngineInput, EventType, ProcessInput, ProcessOutput

if TYPE_CHECKING:
    from perdure.ids import StreamId, Tenant
    from perdure.inbox.admit import Delivery
    from perdure.processes.record import ProcessRecord
    from perdure.runtime.processes.context import ProcessContext
    from perdure.runtime.shared import Shared
    from perdure.runtime.worker.owned import OwnedStream
    from perdure.vocab.records import Record

ENGINE = "python"
ANY_SIGNAL = EventType(name=f"{SIGNAL}*")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")

Function = Callable[..., Awaitable[object]]


class ProcessCode(Protocol):
    """What a worker can serve: `definitions` are the names under which processes ask for it."""

    @property
    def definitions(self) -> tuple[str, ...]:
        """The names under which processes ask for it."""
        ...

    @property
    def place(self) -> Place:
        """The queue of its processes, and how urgent they are."""
        ...


@runtime_checkable
class RunsHere(ProcessCode, Protocol):
    """Code whose processes are bodies that a worker enters."""

    async def run(self, ctx: ProcessContext, given: ProcessInput) -> object:
        """Run one process; what it returns is its result. It may be entered again from the top."""
        ...


@runtime_checkable
class HasRoom(Protocol):
    """Code of which a worker runs only so many at once."""

    def check_room(self, run: StreamId, *, again: bool) -> None:
        """Take a place for a process before it is begun, or gone on with.

        Raises:
            Error: `task_limit_exceeded`: it is tried again later, here or by another worker.
        """
        ...


@runtime_checkable
class SaysFarewell(Protocol):
    """Code whose processes tell somebody that they are over, whoever ends them."""

    def farewell(self, record: ProcessRecord, output: ProcessOutput, tenant: Tenant, now: int) -> tuple[Delivery, ...]:
        """What is sent in the transaction of the end. Called again, it says the same under the same source key."""
        ...


class Driver(Protocol):
    """What drives one process that a worker has in hand."""

    record: ProcessRecord

    async def run(self) -> bool:
        """Drive it to its end, and return once that is durable; False once it is durably parked."""
        ...

    async def look(self) -> None:
        """Something that it waits for may have been answered."""
        ...

    async def drain(self) -> None:
        """Hand it over."""
        ...

    def learn(self, fact: Record, record: ProcessRecord) -> None:
        """Somebody wrote something into its log; `record` has it in."""
        ...

    def hear(self) -> None:
        """A session that it may wait for has told its end."""
        ...

    def refused(self, error: Error) -> None:
        """The store refused an append."""
        ...

    def forbid_starts(self) -> None:
        """The worker stops."""
        ...

    def abandon(self) -> None:
        """Stop what runs, and record nothing more."""
        ...


@runtime_checkable
class WatchesOutside(Protocol):
    """Code whose processes are done outside, and watched from here."""

    def watcher(
        self,
        record: ProcessRecord,
        facts: Sequence[Record],
        tenant: Tenant,
        owned: OwnedStream,
        shared: Shared,
        stopping: Callable[[], bool],
    ) -> Driver:
        """What watches one of them."""
        ...


@runtime_checkable
class TidiesUp(Protocol):
    """Code whose processes leave something outside that goes with their end."""

    async def tidy(self, record: ProcessRecord, facts: Sequence[Record], stream: StreamId) -> None:
        """Take it away, once the end is durable and before anybody forgets of it. Called again, it does nothing."""
        ...


@dataclass(frozen=True, slots=True)
class ProcessFunction:
    """A durable function. Calling it runs nothing: `rt.start(function, ...)` does, durably."""

    function: Function
    name: str
    place: Place
    formerly: tuple[str, ...] = ()
    events: tuple[EventType, ...] = ()

    @property
    def definition(self) -> str:
        """The name under which new processes ask for it."""
        return f"{ENGINE}:{self.name}"

    @property
    def definitions(self) -> tuple[str, ...]:
        """The names under which processes ask for it: its own, and those it had."""
        return tuple(f"{ENGINE}:{name}" for name in (self.name, *self.formerly))

    async def run(self, ctx: ProcessContext, given: ProcessInput) -> object:
        """Call the function with what the process was started with."""
        assert isinstance(given, EngineInput)
        payload = cast("dict[str, Json]", given.payload)
        return await self.function(ctx, *payload["args"], **payload["kwargs"])

    def input_of(self, args: tuple[object, ...], kwargs: dict[str, object]) -> EngineInput:
        """What a process is started with, if the function can be called so.

        Raises:
            Error: `invalid_argument`, `invalid_json`, `input_too_large`.
        """
        try:
            inspect.signature(self.function).bind(None, *args, **kwargs)
        except TypeError as problem:
            raise Error(
                Code.INVALID_ARGUMENT, f"the process {self.name} cannot be started so", because=str(problem)
            ) from None
        return input_of(self.name, args, kwargs)


def input_of(name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> EngineInput:
    """What a process of some function is started with: JSON.

    Raises:
        Error: `invalid_json`, `input_too_large`.
    """
    where = f"what the process {name} is started with"
    given: Json = {"args": list(args), "kwargs": kwargs}
    refuse_unordered(given, where)
    plain, data = as_stored(given, where=where)
    if len(data) > MAX_STEP_BYTES:
        raise Error(
            Code.INPUT_TOO_LARGE,
            f"{where} is {len(data)} bytes",
            because=f"the limit is {MAX_STEP_BYTES}",
            hint="pass a reference, and load the content in a step",
        )
    return EngineInput(kind=ENGINE, payload=plain)


@overload
def process(function: Function, /) -> ProcessFunction: ...
@overload
def process(
    *,
    name: str | None = None,
    queue: str = "default",
    priority: int = 0,
    formerly: Iterable[str] = (),
    events: Iterable[EventType | str] = (),
) -> Callable[[Function], ProcessFunction]: ...
def process(
    function: Function | None = None,
    /,
    *,
    name: str | None = None,
    queue: str = "default",
    priority: int = 0,
    formerly: Iterable[str] = (),
    events: Iterable[EventType | str] = (),
) -> ProcessFunction | Callable[[Function], ProcessFunction]:
    """Make an async function durable: `Runtime(processes=[function])`, then `rt.start(function, ...)`.

    Its first parameter is a `ProcessContext`. It runs on any worker that knows it, waits without holding memory, and is
    entered again from the top after a crash or a long wait; what it did through `ctx` is answered from its log. *Code
    between steps may run again, and what is passed to a recorded step must be equal every time.* `formerly` are names
    it had: processes that were started under them go on with it. `events` are those it may `emit`.

    Raises:
        Error: `process_definition_invalid`, `process_event_type_invalid`, `invalid_id`, `invalid_argument`.
    """

    def make(fn: Function) -> ProcessFunction:
        if not inspect.iscoroutinefunction(fn):
            raise _invalid("a process is an async function", f"async def {getattr(fn, '__name__', 'nightly')}(ctx, …)")
        try:
            inspect.signature(fn).bind_partial(None)
        except TypeError:
            raise _invalid("a process takes its context first", f"async def {fn.__name__}(ctx, …)") from None
        names = (name or fn.__name__, *formerly)
        for one in names:
            if not _NAME.fullmatch(one):
                raise _invalid(f"{one!r:.120} cannot be its name", "use letters, digits, dots, dashes, underscores")
        declared = tuple(EventType(name=one) if isinstance(one, str) else one for one in events)
        check_event_types(declared)
        return ProcessFunction(fn, names[0], check_place(queue, priority), names[1:], declared)

    return make if function is None else make(function)


def _invalid(because: str, hint: str) -> Error:
    return Error(
        Code.PROCESS_DEFINITION_INVALID, "the function cannot be a process", because=because, hint=hint
    )  # fmt: skip


def by_definition(codes: Iterable[ProcessCode]) -> dict[str, ProcessCode]:
    """What a runtime can run, by the names that processes ask for it.

    Raises:
        Error: `process_definition_invalid` if two share a name, or one is no process.
    """
    known: dict[str, ProcessCode] = {}
    for code in codes:
        if not hasattr(code, "definitions"):
            raise _invalid(f"{code!r:.120} is not one", "decorate it with @process")
        for name in code.definitions:
            if name in known:
                raise _invalid(f"two of them are called {name}", "give each its own name")
            known[name] = code
    return known
