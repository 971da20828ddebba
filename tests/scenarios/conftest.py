"""User stories run on every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from perdure import Agent, Runtime, RuntimeOptions, WorkerOptions
from perdure.models.protocol import Model
from perdure.runtime.clock import SystemClock
from perdure.runtime.processes.function import ProcessCode
from perdure.store.memory.store import MemoryStore
from perdure.store.postgres.store import PostgresStore
from perdure.store.protocol import Store
from perdure.store.sqlite.store import SqliteStore
from perdure.tools.toolbox import ToolSource

NewStore = Callable[[], Store]


STORES = ("memory", "sqlite", "postgres")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on every store, or with the marker `any_store` on the memory store only."""
    if "new_store" in metafunc.fixturenames:
        any_store = metafunc.definition.get_closest_marker("any_store") is not None
        metafunc.parametrize("new_store", STORES[:1] if any_store else STORES, indirect=True)


@pytest.fixture
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> NewStore:
    """Opens the same data every time it is called, as a new process would."""
    clock = SystemClock()
    if request.param == "memory":
        memory = MemoryStore(clock)
        return lambda: memory
    if request.param == "postgres":
        url: str = request.getfixturevalue("postgres_url")
        return lambda: PostgresStore(url, clock)
    return lambda: SqliteStore(tmp_path / "s.db", clock)


async def until(look: Callable[[], Awaitable[bool]], *, seconds: float = 10, every: float = 0.01) -> None:
    """Look again and again until it is so."""
    async with asyncio.timeout(seconds):
        while not await look():  # noqa: ASYNC110 - what is looked at may be in another process
            await asyncio.sleep(every)


class App:
    """Opens runtimes on one store, and closes them."""

    def __init__(self, new_store: NewStore, stack: AsyncExitStack) -> None:
        self.new_store = new_store
        self._stack = stack

    async def open(
        self,
        model: Model,
        *tools: ToolSource,
        deps: object = None,
        worker: bool | WorkerOptions = True,
        tuning: RuntimeOptions | None = None,
    ) -> Runtime:
        agent = Agent("a", model=model, tools=tools)
        return await self.add([agent], deps=deps, worker=worker, tuning=tuning)

    async def add(
        self,
        agents: list[Agent],
        *,
        deps: object = None,
        worker: bool | WorkerOptions = True,
        tuning: RuntimeOptions | None = None,
    ) -> Runtime:
        runtime = Runtime(self.new_store(), agents=agents, deps=deps, worker=worker, options=tuning)
        return await self._stack.enter_async_context(runtime)


@pytest.fixture
async def app(new_store: NewStore) -> AsyncIterator[App]:
    async with AsyncExitStack() as stack:
        yield App(new_store, stack)


class ProcessApp:
    """Opens runtimes with processes on one store, and closes them."""

    def __init__(self, new_store: NewStore, stack: AsyncExitStack) -> None:
        self.new_store = new_store
        self._stack = stack
        self._closed: set[Runtime] = set()

    async def open(
        self, *functions: ProcessCode, worker: bool | WorkerOptions = True, tuning: RuntimeOptions | None = None
    ) -> Runtime:
        runtime = Runtime(self.new_store(), processes=functions, worker=worker, options=tuning, deps="the deps")
        await runtime.__aenter__()
        self._stack.push_async_callback(self.close, runtime)
        return runtime

    async def close(self, runtime: Runtime) -> None:
        if runtime not in self._closed:
            self._closed.add(runtime)
            await runtime.__aexit__(None, None, None)


@pytest.fixture
async def process_app(new_store: NewStore) -> AsyncIterator[ProcessApp]:
    async with AsyncExitStack() as stack:
        yield ProcessApp(new_store, stack)
