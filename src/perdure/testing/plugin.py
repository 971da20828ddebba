"""The pytest plugin: fixtures for tests of applications that use Perdure.

It has fixtures and nothing else, no hook and no option, and loads Perdure only for a test that asks for one of them.
None of them is async, so they work with pytest-asyncio, with anyio, and with neither.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from perdure.clock import Clock
    from perdure.runtime.runtime import Runtime
    from perdure.store.protocol import Store
    from perdure.testing.clock import ManualClock
    from perdure.testing.world import World


@pytest.fixture
def perdure_clock() -> ManualClock:
    """A clock that only moves when the test says so. Asking for it puts the stores and runtimes of the test on it."""
    from perdure.testing.clock import ManualClock

    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
def perdure_new_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """Opens the same data every time it is called, as a new process would. The test runs once per kind of store."""
    clock = _clock(request)
    if request.param == "memory":
        from perdure.store.memory.store import MemoryStore

        memory = MemoryStore(clock)
        return lambda: memory
    from perdure.store.sqlite.store import SqliteStore

    return lambda: SqliteStore(tmp_path / "perdure.db", clock)


@pytest.fixture
def perdure_store(perdure_new_store: Callable[[], Store]) -> Store:
    """A store in memory, then one in a file, empty. Whoever uses it opens and closes it, as a `Runtime` does."""
    return perdure_new_store()


@pytest.fixture
def perdure_runtime(request: pytest.FixtureRequest, perdure_new_store: Callable[[], Store]) -> Callable[..., Runtime]:
    """Makes runtimes on one store: `async with perdure_runtime(agents=[agent]) as rt:`. The next one is a restart."""
    from perdure.runtime.runtime import Runtime
    from perdure.runtime.tuning import Tuning

    tuning = Tuning(clock=_clock(request))

    def new(**options: object) -> Runtime:
        make = partial(Runtime, perdure_new_store(), tuning=tuning)
        return make(**options)  # pyright: ignore[reportArgumentType] - whatever a Runtime takes

    return new


@pytest.fixture
def perdure_world(tmp_path: Path) -> World:
    """The outside: an empty ledger in the test's own folder."""
    from perdure.testing.world import World

    return World(tmp_path / "world.jsonl")


def _clock(request: pytest.FixtureRequest) -> Clock:
    if "perdure_clock" in request.fixturenames:
        return request.getfixturevalue("perdure_clock")
    from perdure.runtime.clock import SystemClock

    return SystemClock()
