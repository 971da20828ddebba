"""What a worker takes on: which queues, how many sessions at once, and which limits it keeps with all others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from perdure.errors import Code, Error
from perdure.ids import check_id
from perdure.store.shapes import Place

MAX_SESSIONS = 256
PREFIXES = ("tool:", "model:", "queue:")

_LIMITS = 'limits={"tool:charge": 2, "model:openai:*": 10, "queue:reports": 5}'

Limits = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Work:
    """How a runtime's worker works: `Runtime(..., worker=Work(queues=["bulk"], concurrency=8))`.

    `queues` are those it serves (None: all), `concurrency` is how many sessions it drives at once, and `all_tenants`
    lets it serve every tenant of the store, in turns. `limits` hold across all workers of the store that have them:
    `{"tool:charge": 2, "model:openai:*": 10, "queue:reports": 5}` lets two calls of the tool run at once, ten requests
    to any of the models, and five sessions of the queue. A name that ends with `*` stands for all that begin so, which
    share the number.

    Raises:
        Error: `invalid_argument` for what cannot be meant.
    """

    queues: Iterable[str] | None = None
    concurrency: int = MAX_SESSIONS
    limits: Mapping[str, int] = field(default_factory=dict[str, int])
    all_tenants: bool = False
    served: tuple[str, ...] | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.queues, str):
            raise _wrong(
                f"queues={self.queues!r} is one text", "a list of names is needed", f"queues=[{self.queues!r}]"
            )
        if self.queues is not None and not isinstance(self.queues, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - it comes from a caller
            raise _wrong(f"queues={self.queues!r} is no list", "a list of names is needed", 'queues=["bulk"]')
        served = None if self.queues is None else tuple(dict.fromkeys(check_queue(name) for name in self.queues))
        object.__setattr__(self, "served", served)
        if served == ():
            raise _wrong("queues=[] leaves nothing to do", hint="leave it out to serve all, or Runtime(worker=False)")
        if not _is_number(self.concurrency):
            raise _wrong(f"concurrency={self.concurrency!r} cannot work", "it is a whole number, at least 1")
        if not isinstance(self.limits, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - it comes from a caller
            raise _wrong(f"limits={self.limits!r} cannot be meant", "they are names with numbers", _LIMITS)
        for name, most in self.limits.items():
            _check_limit(name, most)

    @property
    def caps(self) -> dict[str, int]:
        """How many sessions of a queue may be driven at once, by all workers together."""
        caps = {name.removeprefix("queue:"): most for name, most in self.limits.items() if name.startswith("queue:")}
        return {name: most for name, most in caps.items() if self.served is None or name in self.served}

    @property
    def picky(self) -> bool:
        """Whether a session must not be taken without looking at its queue."""
        return self.served is not None or bool(self.caps)

    def limits_of(self, what: str) -> Limits:
        """The limits that something falls under, such as `tool:charge`."""
        return tuple((name, most) for name, most in self.limits.items() if name == what or _covers(name, what))


def check_queue(name: str) -> str:
    """What a queue can be called.

    Raises:
        Error: `invalid_id`.
    """
    return check_id(name, what="the queue")


def check_place(queue: str, priority: int) -> Place:
    """Where work stands.

    Raises:
        Error: `invalid_id`, `invalid_argument`.
    """
    if isinstance(priority, bool) or not isinstance(priority, int) or not -1000 <= priority <= 1000:  # pyright: ignore[reportUnnecessaryIsInstance] - it comes from a caller
        raise _wrong(f"priority={priority!r} cannot be meant", "it is a whole number from -1000 to 1000, 0 by default")
    return Place(check_queue(queue), priority)


def _covers(pattern: str, what: str) -> bool:
    if not pattern.endswith("*"):
        return False
    prefix = pattern[:-1]
    return what.startswith(prefix)


def _check_limit(name: str, most: int) -> None:
    if not isinstance(name, str) or not name.startswith(PREFIXES) or "*" in name[:-1] or name in PREFIXES:  # pyright: ignore[reportUnnecessaryIsInstance] - it comes from a caller
        raise _wrong(
            f"{name!r} cannot be limited",
            f"a limit is named {', '.join(PREFIXES)} and what it is about, with * at the end if at all",
            _LIMITS,
        )
    if name.startswith("queue:") and name.endswith("*"):
        raise _wrong(f"{name!r} cannot be limited", "each queue has a number of its own", 'limits={"queue:reports": 5}')
    if not _is_number(most):
        raise _wrong(f"the limit {most!r} of {name!r} cannot work", "it is a whole number, at least 1")


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _wrong(what: str, because: str = "", hint: str = "") -> Error:
    return Error(Code.INVALID_ARGUMENT, what, because=because, hint=hint)
