"""The pytest plugin: fixtures for tests of applications that use Perdure.

The plugin has only fixtures, no hook and no option, and loads Perdure only for a test that uses one. No fixture is
async, so all of them work with pytest-asyncio, with anyio, and with neither.
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
    """Return a clock that the test moves by hand. The test's stores and runtimes use the same clock."""
    from perdure.testing.clock import ManualClock

    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
def perdure_new_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """Return a function that opens the same data on each call, as a new process does. Runs once per kind of store."""
    clock = _clock(request)
    if request.param == "memory":
        from perdure.store.memory.store import MemoryStore

        memory = MemoryStore(clock)
        return lambda: memory
    from perdure.store.sqlite.store import SqliteStore

    return lambda: SqliteStore(tmp_path / "perdure.db", clock)


@pytest.fixture
def perdure_store(perdure_new_store: Callable[[], Store]) -> Store:
    """Return an empty store: first in memory, then in a file. The test opens and closes it, as a `Runtime` does."""
    return perdure_new_store()


@pytest.fixture
def perdure_runtime(request: pytest.FixtureRequest, perdure_new_store: Callable[[], Store]) -> Callable[..., Runtime]:
    """Return a factory of runtimes on one store: `async with perdure_runtime(agents=[agent]) as rt:`. The next is a
    restart.
    """
    from perdure.runtime.runtime import Runtime
    from perdure.runtime.tuning import RuntimeOptions

    tuning = RuntimeOptions(clock=_clock(request))

    def new(**options: object) -> Runtime:
        make = partial(Runtime, perdure_new_store(), options=tuning)
        return make(**options)  # pyright: ignore[reportArgumentType] - any option of Runtime

    return new


@pytest.fixture
def perdure_world(tmp_path: Path) -> World:
    """Return a world with an empty ledger in the test's folder."""
    from perdure.testing.world import World

    return World(tmp_path / "world.jsonl")


def _clock(request: pytest.FixtureRequest) -> Clock:
    if "perdure_clock" in request.fixturenames:
        return request.getfixturevalue("perdure_clock")
    from perdure.runtime.clock import SystemClock

    return SystemClock()
