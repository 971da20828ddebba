"""One life of an application under test: from its start to the end of its script, or to the boundary it dies at.

Simulated (`testing/simulated.py`) it is an event loop that is stopped for good; real (`testing/children.py`) it is a
child process and its end is SIGKILL. What happens in between is the same, and is here.
"""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

from perdure.errors import Code, Error
from perdure.models.scripted import ScriptedModel
from perdure.runtime.agent import Agent
from perdure.runtime.clock import SystemClock
from perdure.runtime.runtime import Runtime
from perdure.runtime.stores import store_for
from perdure.store.memory.store import MemoryStore
from perdure.store.protocol import Store
from perdure.store.sqlite.store import SqliteStore
from perdure.testing.crash import Boundary, Crashed, Gate, gated
from perdure.testing.world import World
from perdure.tools.catalog import Runnable
from perdure.tools.context import ToolContext
from perdure.tools.toolbox import Prepared, Toolbox
from perdure.vocab.outcomes import Failure
from perdure.vocab.tools import EffectClass

App: TypeAlias = Callable[[Store, World], Runtime]
"""How your process starts: a runtime on this store, whose tools act on this world."""

Script: TypeAlias = Callable[[Runtime], Awaitable[object]]
"""What your callers do. It is run again after a crash, so every input it sends needs a key."""

_POLL_S = 0.002
_LEASE_MS = 10_000


@dataclass(frozen=True, slots=True)
class Played:
    """What is lived: an application, the script of its callers, and how long one life may take."""

    app: App
    script: Script
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Home:
    """Where one experiment happens: what its lives share, in a folder of its own."""

    folder: Path
    memory: MemoryStore | None = None

    @staticmethod
    def at(folder: Path, *, in_memory: bool, url: str | None = None) -> Home:
        """A new one; with `url`, its store is in a schema of its own of that database."""
        folder.mkdir(parents=True)
        home = Home(folder, MemoryStore(SystemClock()) if in_memory else None)
        if url is not None:
            home._elsewhere.write_text(f"{url}{'&' if '?' in url else '?'}schema=crash_{os.urandom(8).hex()}")
        return home

    @property
    def _elsewhere(self) -> Path:
        """Says where the store is, if it is not in the folder: child processes are given nothing but that."""
        return self.folder / "store.url"

    def store(self) -> Store:
        """A way to the data, as a new process has it."""
        if self._elsewhere.exists():
            return store_for(self._elsewhere.read_text(), SystemClock(), lease_ms=_LEASE_MS)
        return self.memory or SqliteStore(self.folder / "store.db", SystemClock())

    async def clear(self) -> None:
        """Leave nothing of a store that is not in the folder."""
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
        """The outside."""
        return World(self.folder / "world.jsonl", fsync=False, gate=gate)  # a kill takes nothing from the page cache

    @property
    def calls(self) -> World:
        """Every tool body that was begun, by our own account."""
        return World(self.folder / "calls.jsonl", fsync=False)

    def faults(self, agent: str) -> World:
        """Which faults of a scripted model have struck: a provider does not fail anew because its client died."""
        return World(self.folder / f"faults-{agent}.jsonl", fsync=False)

    @property
    def trace(self) -> Path:
        """The boundaries that were passed, one per line; one file, for a life each."""
        return self.folder / "trace"

    @property
    def failure(self) -> Path:
        """Why a child process failed."""
        return self.folder / "failure"


@dataclass(frozen=True, slots=True)
class Lived:
    """How a life went: the boundaries it passed, whether it died at one, or why it failed by itself."""

    passed: tuple[Boundary, ...]
    died: bool = False
    failure: str = ""
    unwind: Callable[[], None] = lambda: None
    """Clears up what is left of a simulated process, once nobody can be misled by that any more."""


def reader(played: Played, home: Home) -> Runtime:
    """A runtime that only reads what the application wrote: for its tenant, through its codec."""
    return played.app(home.store(), home.world()).like(store=home.store(), agents=(), worker=False)


async def live(played: Played, home: Home, gate: Gate, store: Store) -> None:
    """Start the application, run the script, let everything settle, end in order. Whatever fails is raised."""
    runtime = played.app(gated(store, gate), home.world(gate))
    _check(runtime, gate)
    for name, agent in runtime.agents.items():
        if isinstance(agent.resolved, ScriptedModel):
            agent.resolved.struck = home.faults(name)
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
            f"the app made a {type(runtime).__name__}, not a Runtime",
            hint="def app(store, world): return Runtime(store, agents=[...])",
        )
    if getattr(runtime.store, "_gate", None) is not gate:
        raise Error(
            Code.INVALID_ARGUMENT,
            "the app opened a store of its own",
            because="only the store it is given can be crashed",
            hint="def app(store, world): return Runtime(store, agents=[...])",
        )


async def _settled(runtime: Runtime) -> None:
    """Until no session has anything left to do."""
    while any(  # noqa: ASYNC110 - only the store knows
        one.active or one.parked or one.waiting_inputs for one in await runtime.sessions(limit=10_000)
    ):
        await asyncio.sleep(_POLL_S)


def _hooked_agent(agent: Agent, gate: Gate, calls: World) -> Agent:
    """The same agent, with a boundary on each side of every tool body."""
    hooked = copy.copy(agent)
    object.__setattr__(hooked, "toolbox", cast(Toolbox, _HookedToolbox(agent.toolbox, gate, calls)))
    return hooked


class _HookedToolbox:
    def __init__(self, toolbox: Toolbox, gate: Gate, calls: World) -> None:
        self._toolbox = toolbox
        self._gate = gate
        self._calls = calls

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            return getattr(self._toolbox, name)

        def prepare(self, *args: object, **options: object) -> Prepared | Failure:
            """Prepare a call, and put the gate between it and its tool."""
            prepared = self._toolbox.prepare(*args, **options)
            return self._hooked(prepared) if isinstance(prepared, Prepared) else prepared

    def _hooked(self, prepared: Prepared) -> Prepared:
        hooked = copy.copy(prepared.tool)  # what kind of tool it is matters to the runtime: only its body is changed
        body = _Body(prepared.tool, prepared.durability.effect, self._gate, self._calls)
        hooked.__dict__["invoke"] = body.invoke_async if hooked.is_async else body.invoke
        return replace(prepared, tool=hooked)


@dataclass(frozen=True, slots=True)
class _Body:
    tool: Runnable
    effect: EffectClass
    gate: Gate
    calls: World

    def invoke(self, ctx: ToolContext[object], arguments: Mapping[str, object]) -> object:
        """Run it in a thread, if there is still somebody to run it."""
        boundary = self._enter(ctx)
        try:
            return self.tool.invoke(ctx, arguments)
        finally:
            self.gate.after(boundary)

    async def invoke_async(self, ctx: ToolContext[object], arguments: Mapping[str, object]) -> object:
        """Run it on the event loop, if there is still somebody to run it."""
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
