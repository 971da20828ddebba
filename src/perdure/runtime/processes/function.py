"""`@process`: durable async functions, and the protocols of the code that runs processes."""

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
from perdure.store.shapes import Placement
from perdure.tools.step_arguments import MAX_STEP_BYTES, refuse_unordered
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


def name_of(definition: str) -> str:
    """Return the name by which a user starts a process of this definition."""
    return definition.removeprefix(f"{ENGINE}:")


class ProcessCode(Protocol):
    """Process code that a worker can serve."""

    @property
    def definitions(self) -> tuple[str, ...]:
        """The definition names of this code in process registrations."""
        ...

    @property
    def place(self) -> Placement:
        """The queue and priority of its processes."""
        ...


@runtime_checkable
class RunsHere(ProcessCode, Protocol):
    """Code whose processes are bodies that a worker enters."""

    async def run(self, ctx: ProcessContext, given: ProcessInput) -> object:
        """Run one process, and return its result. The body may be entered again from the top."""
        ...


@runtime_checkable
class HasCapacity(Protocol):
    """Code with a limit of concurrent processes per worker."""

    def check_capacity(self, run: StreamId, *, again: bool) -> None:
        """Reserve a slot for a process before it starts or resumes.

        Raises:
            Error: `task_limit_exceeded`: the process waits for a slot, here or on another worker.
        """
        ...


@runtime_checkable
class NotifiesOnEnd(Protocol):
    """Code that sends messages at the end of its processes, whatever ends them."""

    def end_notification(
        self, record: ProcessRecord, output: ProcessOutput, tenant: Tenant, now: int
    ) -> tuple[Delivery, ...]:
        """Return the deliveries that commit with the end. Repeated calls use the same source keys."""
        ...


class Driver(Protocol):
    """The driver of one process that a worker owns."""

    record: ProcessRecord

    async def run(self) -> bool:
        """Drive the process. Return True once its end is durable, False once it is durably parked."""
        ...

    async def poll(self) -> None:
        """Check the waits for resolutions."""
        ...

    async def drain(self) -> None:
        """Hand the process over."""
        ...

    def on_record(self, fact: Record, record: ProcessRecord) -> None:
        """Take in a record that another writer appended. `record` includes it."""
        ...

    def on_notify(self) -> None:
        """Note that a session for which the process may wait has ended."""
        ...

    def refused(self, error: Error) -> None:
        """Stop after a refused append."""
        ...

    def forbid_starts(self) -> None:
        """Start nothing more, because the worker stops."""
        ...

    def abandon(self) -> None:
        """Stop the running work, and record nothing more."""
        ...


@runtime_checkable
class WatchesOutside(Protocol):
    """Code whose processes run outside, and are watched from here."""

    def watcher(
        self,
        record: ProcessRecord,
        facts: Sequence[Record],
        tenant: Tenant,
        owned: OwnedStream,
        shared: Shared,
        stopping: Callable[[], bool],
    ) -> Driver:
        """Return the driver that watches one process."""
        ...


@runtime_checkable
class CleansUp(Protocol):
    """Code whose processes leave external resources that are removed at their end."""

    async def clean_up(self, record: ProcessRecord, facts: Sequence[Record], stream: StreamId) -> None:
        """Remove the external resources, after the end is durable and before the stream is released. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class ProcessFunction:
    """A durable function. Calling it runs nothing; `rt.start(function, ...)` starts it durably."""

    function: Function
    name: str
    place: Placement
    aliases: tuple[str, ...] = ()
    events: tuple[EventType, ...] = ()

    @property
    def definition(self) -> str:
        """The definition name of new processes."""
        return f"{ENGINE}:{self.name}"

    @property
    def definitions(self) -> tuple[str, ...]:
        """The definition names of its processes: the current name and the former ones."""
        return tuple(f"{ENGINE}:{name}" for name in (self.name, *self.aliases))

    async def run(self, ctx: ProcessContext, given: ProcessInput) -> object:
        """Call the function with the input of the process."""
        assert isinstance(given, EngineInput)
        payload = cast("dict[str, Json]", given.payload)
        return await self.function(ctx, *payload["args"], **payload["kwargs"])

    def input_of(self, args: tuple[object, ...], kwargs: dict[str, object]) -> EngineInput:
        """Return the input of a process, if the function accepts the arguments.

        Raises:
            Error: `invalid_argument`, `invalid_json`, `input_too_large`.
        """
        try:
            inspect.signature(self.function).bind(None, *args, **kwargs)
        except TypeError as problem:
            raise Error(
                Code.INVALID_ARGUMENT, f"invalid arguments for the process {self.name}", because=str(problem)
            ) from None
        return input_of(self.name, args, kwargs)


def input_of(name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> EngineInput:
    """Return the input of a process as JSON.

    Raises:
        Error: `invalid_json`, `input_too_large`.
    """
    where = f"the input of the process {name}"
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
    aliases: Iterable[str] = (),
    events: Iterable[EventType | str] = (),
) -> Callable[[Function], ProcessFunction]: ...
def process(
    function: Function | None = None,
    /,
    *,
    name: str | None = None,
    queue: str = "default",
    priority: int = 0,
    aliases: Iterable[str] = (),
    events: Iterable[EventType | str] = (),
) -> ProcessFunction | Callable[[Function], ProcessFunction]:
    """Make an async function durable: `Runtime(processes=[function])`, then `rt.start(function, ...)`.

    Its first parameter is a `ProcessContext`. Any worker that has the function may run it. A waiting process holds no
    memory; after a crash or a long wait the function is entered again from the top, and its log answers recorded steps.
    *Code between steps may run again, and what is passed to a recorded step must be equal every time.* `aliases` lists
    former names, so that processes started under them continue. `events` declares the events it may `emit`.

    Raises:
        Error: `process_definition_invalid`, `process_event_type_invalid`, `invalid_id`, `invalid_argument`.
    """

    def make(fn: Function) -> ProcessFunction:
        if not inspect.iscoroutinefunction(fn):
            raise _invalid(
                "a process must be an async function", f"async def {getattr(fn, '__name__', 'nightly')}(ctx, …)"
            )
        try:
            inspect.signature(fn).bind_partial(None)
        except TypeError:
            raise _invalid(
                "the first parameter of a process is its context", f"async def {fn.__name__}(ctx, …)"
            ) from None
        names = (name or fn.__name__, *aliases)
        for one in names:
            if not _NAME.fullmatch(one):
                raise _invalid(f"invalid name {one!r:.120}", "use 1 to 100 letters, digits, dots, dashes, underscores")
        declared = tuple(EventType(name=one) if isinstance(one, str) else one for one in events)
        check_event_types(declared)
        return ProcessFunction(fn, names[0], check_place(queue, priority), names[1:], declared)

    return make if function is None else make(function)


def _invalid(because: str, hint: str) -> Error:
    return Error(
        Code.PROCESS_DEFINITION_INVALID, "the function cannot be a process", because=because, hint=hint
    )  # fmt: skip


def by_definition(codes: Iterable[ProcessCode]) -> dict[str, ProcessCode]:
    """Index process code by definition name.

    Raises:
        Error: `process_definition_invalid` for a duplicate name, or a value that is not process code.
    """
    known: dict[str, ProcessCode] = {}
    for code in codes:
        if not hasattr(code, "definitions"):
            raise _invalid(f"{code!r:.120} is not process code", "decorate the function with @process")
        for name in code.definitions:
            if name in known:
                raise _invalid(f"duplicate name {name}", "give each process its own name")
            known[name] = code
    return known
