"""A pytest plugin that delays every store at random, like a loaded machine. No test may depend on the timing.

    python -m pytest -p dev.jitter --jitter 7 tests/scenarios

Every store call waits before and after its work: mostly not at all, sometimes some milliseconds, rarely a fifth of a
second. The guarantees of a store still hold. Appends are submitted at the call and end in their order. A cancelled
caller cancels no write, and closing waits for pending calls.

The plugin does not suit tests that count store calls or their order: `tests/scenarios/test_kit_sweep.py` names every
write of a run, and `tests/unit/observe/test_follow.py` counts rounds of the event loop. With `--jitter-threads`,
callbacks from threads arrive late too, in order. The same seed draws the same numbers for a test; the machine decides
which call draws first.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from perdure.commit.plan import Plan, Receipt
from perdure.store.memory.live import MemoryChannel
from perdure.store.memory.store import MemoryStore
from perdure.store.postgres.live import PostgresChannel
from perdure.store.postgres.store import PostgresStore
from perdure.store.sqlite.live import SqliteChannel
from perdure.store.sqlite.store import SqliteStore

SOMETIMES, RARELY = 0.15, 0.003
SHORT_S, LONG_S = (0.001, 0.03), 0.2

Call = Callable[..., Coroutine[Any, Any, Any]]

_draw = random.Random(0)
_sleep = asyncio.sleep  # tests may replace `asyncio.sleep`


def delay_s() -> float:
    """Return the next delay."""
    drawn = _draw.random()
    if drawn < RARELY:
        return LONG_S
    return _draw.uniform(*SHORT_S) if drawn < SOMETIMES else 0.0


async def pause() -> None:
    """Wait for a random time, often zero."""
    if seconds := delay_s():
        await _sleep(seconds)


class Under:
    """The pending calls of one store, and the end time of the latest append of each stream."""

    def __init__(self) -> None:
        self.work: set[asyncio.Future[Any]] = set()
        self.ends: dict[str, float] = {}

    def add(self, work: asyncio.Future[Any]) -> None:
        """Register a pending call; closing waits for it."""
        self.work.add(work)
        work.add_done_callback(self._ended)

    def _ended(self, work: asyncio.Future[Any]) -> None:
        self.work.discard(work)
        if not work.cancelled():
            work.exception()  # the caller may be gone

    async def finished(self) -> None:
        """Wait for all pending calls of this event loop. Calls of a stopped loop never end."""
        loop = asyncio.get_running_loop()
        while here := [work for work in self.work if work.get_loop() is loop]:
            await asyncio.wait(here)


_under: WeakKeyDictionary[object, Under] = WeakKeyDictionary()


def slowed(call: Call) -> Call:
    """Return a delayed version of a call. Like in a store, a cancelled caller cancels nothing."""

    @functools.wraps(call)
    async def slow(self: object, *args: Any, **kwargs: Any) -> Any:
        async def whole() -> Any:
            await pause()
            try:
                return await call(self, *args, **kwargs)
            finally:
                await pause()

        task = asyncio.create_task(whole(), name=f"jitter:{call.__name__}")
        _under.setdefault(self, Under()).add(task)
        return await asyncio.shield(task)

    return slow


def slowed_close(close: Call) -> Call:
    """Return a version of `close` that waits for all pending calls."""

    @functools.wraps(close)
    async def slow(self: object) -> None:
        await _under.setdefault(self, Under()).finished()
        await close(self)

    return slow


def slowed_append(append: Callable[[Any, Plan], Awaitable[Receipt]]) -> Callable[[Any, Plan], Awaitable[Receipt]]:
    """Return a delayed `append`: submitted at the call, results late and in order per stream."""

    @functools.wraps(append)
    def slow(self: object, plan: Plan) -> Awaitable[Receipt]:
        loop = asyncio.get_running_loop()
        under = _under.setdefault(self, Under())
        told: asyncio.Future[Receipt] = loop.create_future()
        under.add(told)

        def tell(done: asyncio.Future[Receipt], at: float) -> None:
            if under.ends[plan.stream] == at:
                del under.ends[plan.stream]
            if told.done():
                return
            if problem := done.exception():
                told.set_exception(problem)
            else:
                told.set_result(done.result())

        def ended(done: asyncio.Future[Receipt]) -> None:
            at = max(loop.time() + delay_s(), under.ends.get(plan.stream, 0.0) + 1e-6)
            under.ends[plan.stream] = at
            loop.call_at(at, tell, done, at)

        asyncio.ensure_future(append(self, plan)).add_done_callback(ended)
        return told

    return slow


def slow_stores() -> None:
    """Delay every call of every store."""
    for kind in (MemoryStore, SqliteStore, PostgresStore, MemoryChannel, SqliteChannel, PostgresChannel):
        for name, call in list(vars(kind).items()):
            if name == "close" and inspect.iscoroutinefunction(call):
                setattr(kind, name, slowed_close(call))
            elif not name.startswith("_") and inspect.iscoroutinefunction(call):
                setattr(kind, name, slowed(call))
            elif name == "append":
                setattr(kind, name, slowed_append(call))


def slow_threads() -> None:
    """Delay callbacks from threads to an event loop, in order."""
    at_once = asyncio.BaseEventLoop.call_soon_threadsafe
    latest: WeakKeyDictionary[asyncio.BaseEventLoop, float] = WeakKeyDictionary()

    def late(loop: asyncio.BaseEventLoop, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        def wait() -> None:
            at = max(loop.time() + delay_s(), latest.get(loop, 0.0) + 1e-6)
            latest[loop] = at
            loop.call_at(at, callback, *args, context=context)

        return at_once(loop, wait)

    setattr(asyncio.BaseEventLoop, "call_soon_threadsafe", late)  # noqa: B010 - a method is not assigned to


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; the seed turns the plugin on."""
    group = parser.getgroup("jitter")
    group.addoption("--jitter", metavar="SEED", default="", help="make every store slow at random")
    group.addoption("--jitter-threads", action="store_true", help="with --jitter: delay callbacks from threads too")


def pytest_configure(config: pytest.Config) -> None:
    """Delay the stores from the start: a test may open its store in a fixture."""
    if config.getoption("--jitter"):
        slow_stores()
        if config.getoption("--jitter-threads"):
            slow_threads()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed the random numbers per test, independent of earlier tests."""
    _draw.seed(f"{item.config.getoption('--jitter')} {item.nodeid}")
