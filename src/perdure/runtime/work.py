"""The work that a worker accepts: queues, concurrent sessions, and fleet-wide limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from perdure.errors import Code, Error
from perdure.ids import check_id
from perdure.store.shapes import Placement

MAX_SESSIONS = 256
PREFIXES = ("tool:", "model:", "queue:")

_LIMITS = 'limits={"tool:charge": 2, "model:openai:*": 10, "queue:reports": 5}'

Limits = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The work of a runtime's worker: `Runtime(..., worker=WorkerOptions(queues=["bulk"], concurrency=8))`.

    - `queues`: the queues it serves; None means all.
    - `concurrency`: how many sessions it drives at once.
    - `all_tenants`: serve every tenant of the store, in rotation.
    - `limits`: apply across all workers of the store that configure them.

    `{"tool:charge": 2, "model:openai:*": 10, "queue:reports": 5}` allows two concurrent calls of the tool, ten
    concurrent requests to the models together, and five sessions of the queue. A name that ends with `*` covers all
    names with that prefix, which share the number.

    Raises:
        Error: `invalid_argument`.
    """

    queues: Iterable[str] | None = None
    concurrency: int = MAX_SESSIONS
    limits: Mapping[str, int] = field(default_factory=dict[str, int])
    all_tenants: bool = False
    served: tuple[str, ...] | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.queues, str):
            raise _wrong(f"queues={self.queues!r} is a string", "expected a list of names", f"queues=[{self.queues!r}]")
        if self.queues is not None and not isinstance(self.queues, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - it comes from a caller
            raise _wrong(f"invalid queues={self.queues!r}", "expected a list of names", 'queues=["bulk"]')
        served = None if self.queues is None else tuple(dict.fromkeys(check_queue(name) for name in self.queues))
        object.__setattr__(self, "served", served)
        if served == ():
            raise _wrong("queues=[] serves no queue", hint="omit queues to serve all, or Runtime(worker=False)")
        if not _is_number(self.concurrency):
            raise _wrong(f"concurrency must be an integer >= 1, not {self.concurrency!r}")
        if not isinstance(self.limits, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - it comes from a caller
            raise _wrong(f"invalid limits={self.limits!r}", "expected a mapping of names to numbers", _LIMITS)
        for name, most in self.limits.items():
            _check_limit(name, most)

    def limits_of(self, what: str) -> Limits:
        """Return the limits that apply to a name, such as `tool:charge`."""
        return tuple((name, most) for name, most in self.limits.items() if name == what or _covers(name, what))


def queue_caps(work: WorkerOptions) -> dict[str, int]:
    """Return the maximum of sessions per queue across all workers, for the served queues."""
    caps = {name.removeprefix("queue:"): most for name, most in work.limits.items() if name.startswith("queue:")}
    return {name: most for name, most in caps.items() if work.served is None or name in work.served}


def checks_queues(work: WorkerOptions) -> bool:
    """Return True if a session's queue must be checked before it is claimed."""
    return work.served is not None or bool(queue_caps(work))


def check_queue(name: str) -> str:
    """Return a valid queue name.

    Raises:
        Error: `invalid_id`.
    """
    return check_id(name, what="the queue")


def check_place(queue: str, priority: int) -> Placement:
    """Return a valid queue and priority.

    Raises:
        Error: `invalid_id`, `invalid_argument`.
    """
    if isinstance(priority, bool) or not isinstance(priority, int) or not -1000 <= priority <= 1000:  # pyright: ignore[reportUnnecessaryIsInstance] - it comes from a caller
        raise _wrong(f"invalid priority={priority!r}", "expected an integer from -1000 to 1000; the default is 0")
    return Placement(check_queue(queue), priority)


def _covers(pattern: str, what: str) -> bool:
    if not pattern.endswith("*"):
        return False
    prefix = pattern[:-1]
    return what.startswith(prefix)


def _check_limit(name: str, most: int) -> None:
    if not isinstance(name, str) or not name.startswith(PREFIXES) or "*" in name[:-1] or name in PREFIXES:  # pyright: ignore[reportUnnecessaryIsInstance] - it comes from a caller
        raise _wrong(
            f"invalid limit name {name!r}",
            f"expected one of {', '.join(PREFIXES)} and a name; * is allowed only at the end",
            _LIMITS,
        )
    if name.startswith("queue:") and name.endswith("*"):
        raise _wrong(f"invalid limit name {name!r}", "each queue needs its own limit", 'limits={"queue:reports": 5}')
    if not _is_number(most):
        raise _wrong(f"invalid limit {most!r} for {name!r}", "expected an integer >= 1")


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _wrong(what: str, because: str = "", hint: str = "") -> Error:
    return Error(Code.INVALID_ARGUMENT, what, because=because, hint=hint)
