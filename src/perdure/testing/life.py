"""One run of an application under test: from its start to the end of its script, or to its fatal boundary.

A simulated run (`testing/simulated.py`) is an event loop that stops for good. A real run (`testing/children.py`) is a
child process that ends by SIGKILL. This module is the part both share.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

from perdure.errors import Code, Error
from perdure.models.scripted import ScriptedModel
from perdure.runtime.agent import Agent, setup_of
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of
from perdure.runtime.runtime import Runtime, alike
from perdure.runtime.stores import store_for
from perdure.store.memory.store import MemoryStore
from perdure.store.protocol import Store
from perdure.store.sqlite.store import SqliteStore
from perdure.testing.crash import Boundary, Crashed, Gate, gated
from perdure.testing.world import World
from perdure.tools.catalog import Runnable
from perdure.tools.context import ToolContext
from perdure.tools.toolbox import Prepared, Toolbox
from perdure.vocab.outcomes import FailureDetail
from perdure.vocab.tools import EffectClass

App: TypeAlias = Callable[[Store, World], Runtime]
"""Start of the application: returns a runtime on this store, whose tools act on this world."""

Script: TypeAlias = Callable[[Runtime], Awaitable[object]]
"""The application's callers. The script runs again after a crash, so every input it sends needs a key."""

_POLL_S = 0.002
_LEASE_MS = 10_000


@dataclass(frozen=True, slots=True)
class Played:
    """An application, the script of its callers, and the time limit of one run."""

    app: App
    script: Script
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Home:
    """The folder of one experiment, shared by its runs."""

    folder: Path
    memory: MemoryStore | None = None

    @staticmethod
    def at(folder: Path, *, in_memory: bool, url: str | None = None) -> Home:
        """Create a home. With `url`, its store is a separate schema of that database."""
        folder.mkdir(parents=True)
        home = Home(folder, MemoryStore(SystemClock()) if in_memory else None)
        if url is not None:
            home._elsewhere.write_text(f"{url}{'&' if '?' in url else '?'}schema=crash_{os.urandom(8).hex()}")
        return home

    @property
    def _elsewhere(self) -> Path:
        """The file that names a store outside the folder. Child processes receive only the folder."""
        return self.folder / "store.url"

    def store(self) -> Store:
        """Open the data as a new process does."""
        if self._elsewhere.exists():
            return store_for(self._elsewhere.read_text(), SystemClock(), lease_ms=_LEASE_MS)
        return self.memory or SqliteStore(self.folder / "store.db", SystemClock())

    async def clear(self) -> None:
        """Delete a store outside the folder."""
        if not self._elsewhere.exists():
            return
        from perdure.store.postgres.address import parse
        from perdure.store.postgres.driver import dial

        address = parse(self._elsewhere.read_text())
        connection = await dial(address.dsn, settings={}, cached=0, connect_s=10, command_s=60)
        try:
            await connection.execute(f"DROP SCHEMA IF EXISTS {address.schema} CASCADE")
        finally:
            await connection.close()

    def world(self, gate: Gate | None = None) -> World:
        """Return the test's world."""
        return World(self.folder / "world.jsonl", fsync=False, gate=gate)  # a kill takes nothing from the page cache

    @property
    def calls(self) -> World:
        """The record of every tool body that began."""
        return World(self.folder / "calls.jsonl", fsync=False)

    def faults(self, agent: str) -> World:
        """Return the record of a scripted model's past faults. A provider does not repeat a fault because its client
        died.
        """
        return World(self.folder / f"faults-{agent}.jsonl", fsync=False)

    @property
    def trace(self) -> Path:
        """The file of passed boundaries, one per line. Each run writes it anew."""
        return self.folder / "trace"

    @property
    def failure(self) -> Path:
        """The file with the traceback of a failed child process."""
        return self.folder / "failure"


@dataclass(frozen=True, slots=True)
class Lived:
    """The result of a run: the boundaries it passed, and whether it died or failed."""

    passed: tuple[Boundary, ...]
    died: bool = False
    failure: str = ""
    unwind: Callable[[], None] = lambda: None
    """Clears up after a simulated process, when its remains can no longer affect the judgement."""


def reader(played: Played, home: Home) -> Runtime:
    """Return a runtime that only reads the application's data, with its tenant and codec."""
    return alike(played.app(home.store(), home.world()), store=home.store(), agents=(), worker=False)


async def live(played: Played, home: Home, gate: Gate, store: Store) -> None:
    """Start the application, run the script, wait until all work is settled, and stop in order. Failures are raised."""
    runtime = played.app(gated(store, gate), home.world(gate))
    _check(runtime, gate)
    for name, agent in runtime.agents.items():
        if isinstance(model := setup_of(agent).model, ScriptedModel):
            model.struck = home.faults(name)
        runtime.agents[name] = _hooked_agent(agent, gate, home.calls)
    async with runtime:
        async with asyncio.timeout(played.timeout_s):
            await played.script(runtime)
            await _settled(runtime)
        gate.look_away()


def _check(runtime: object, gate: Gate) -> None:
    if not isinstance(runtime, Runtime):
        raise Error(
            Code.INVALID_ARGUMENT,
            f"the app returned a {type(runtime).__name__}, not a Runtime",
            hint="def app(store, world): return Runtime(store, agents=[...])",
        )
    if getattr(core_of(runtime).store, "_gate", None) is not gate:
        raise Error(
            Code.INVALID_ARGUMENT,
            "the app opened another store",
            because="only the store passed to the app can be crashed",
            hint="def app(store, world): return Runtime(store, agents=[...])",
        )


async def _settled(runtime: Runtime) -> None:
    """Wait until no session has work left."""
    while any(  # noqa: ASYNC110 - only the store knows
        one.active or one.parked or one.waiting_inputs for one in await core_of(runtime).session_streams(limit=10_000)
    ):
        await asyncio.sleep(_POLL_S)


def _hooked_agent(agent: Agent, gate: Gate, calls: World) -> Agent:
    """Return a copy of the agent with a boundary on each side of every tool body."""
    hooked = copy.copy(agent)
    setup = setup_of(agent)
    toolbox = cast(Toolbox, _HookedToolbox(setup.toolbox, gate, calls))
    object.__setattr__(hooked, "_setup", dataclasses.replace(setup, toolbox=toolbox))
    return hooked


class _HookedToolbox:
    def __init__(self, toolbox: Toolbox, gate: Gate, calls: World) -> None:
        self._toolbox = toolbox
        self._gate = gate
        self._calls = calls

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            return getattr(self._toolbox, name)

        def prepare(self, *args: object, **options: object) -> Prepared | FailureDetail:
            """Prepare a call, with the gate around its tool body."""
            prepared = self._toolbox.prepare(*args, **options)
            return self._hooked(prepared) if isinstance(prepared, Prepared) else prepared

    def _hooked(self, prepared: Prepared) -> Prepared:
        hooked = copy.copy(prepared.tool)  # the runtime reads the tool's kind: only its body changes
        body = _RestartedBody(prepared.tool, prepared.durability.effect, self._gate, self._calls)
        hooked.__dict__["invoke"] = body.invoke_async if hooked.is_async else body.invoke
        return replace(prepared, tool=hooked)


@dataclass(frozen=True, slots=True)
class _RestartedBody:
    tool: Runnable
    effect: EffectClass
    gate: Gate
    calls: World

    def invoke(self, ctx: ToolContext[object], arguments: Mapping[str, object]) -> object:
        """Run the body in a thread, unless the process is dead."""
        boundary = self._enter(ctx)
        try:
            return self.tool.invoke(ctx, arguments)
        finally:
            self.gate.after(boundary)

    async def invoke_async(self, ctx: ToolContext[object], arguments: Mapping[str, object]) -> object:
        """Run the body on the event loop, unless the process is dead."""
        try:
            boundary = self._enter(ctx)
            try:
                return await cast("Awaitable[object]", self.tool.invoke(ctx, arguments))
            finally:
                self.gate.after(boundary)
        except Crashed:
            await self.gate.forever()

    def _enter(self, ctx: ToolContext[object]) -> Boundary:
        boundary = self.gate.before("tool", ctx.tool_name)
        self.calls.note(ctx.tool_name, key=ctx.idempotency_key, attempt=ctx.attempt, effect=self.effect)
        return boundary
